//! Looks at everything stored and lets the oracle compare.

use std::sync::Arc;

use zae_limiter_core::{ResourceName, TimeMs, UsageSnapshot, UsageWindow};
use zae_limiter_store::{BucketView, Page, PageRequest, Store, StoreError, UsageQuery};

use crate::oracle::books::Books;
use crate::oracle::journal::finish;

/// The resources of every simulated world.
pub(crate) const RESOURCES: [&str; 2] = ["gpt-4", "images"];

/// Pages one listing may have.
const PAGES_MAX: usize = 1000;

/// Compares every bucket of every namespace.
pub(crate) fn compare_all(books: &Books, now: TimeMs) {
    for (namespace, store) in books.inspectors() {
        let verdict = match stored_buckets(&store) {
            Ok(views) => books.lock().oracle.compare(&namespace, &views, now),
            Err(error) => Err(format!("looking failed: {error}")),
        };
        books.check(verdict);
    }
}

/// Compares the usage history of every namespace.
pub(crate) fn compare_usage(books: &Books, swept: Option<TimeMs>) {
    for (namespace, store) in books.inspectors() {
        let verdict = match stored_usage(&store) {
            Ok(snapshots) => books.lock().oracle.compare_usage(&namespace, &snapshots, swept),
            Err(error) => Err(format!("looking failed: {error}")),
        };
        books.check(verdict);
    }
}

fn resource(name: &str) -> ResourceName {
    name.parse().expect("a valid resource")
}

fn stored_buckets(store: &Arc<dyn Store>) -> Result<Vec<BucketView>, StoreError> {
    let mut views = Vec::new();
    for name in RESOURCES {
        let resource = resource(name);
        views.extend(all_pages(PageRequest::first(100), |page| {
            finish(store.resource_buckets(&resource, page))
        })?);
    }
    Ok(views)
}

fn stored_usage(store: &Arc<dyn Store>) -> Result<Vec<UsageSnapshot>, StoreError> {
    let mut snapshots = Vec::new();
    for name in RESOURCES {
        let mut query = UsageQuery {
            entity: None,
            resource: Some(resource(name)),
            window: UsageWindow::Hourly,
            from: None,
            until: None,
            page: PageRequest::first(1000),
        };
        snapshots.extend(all_pages(PageRequest::first(1000), |page| {
            query.page = page.clone();
            finish(store.usage(&query))
        })?);
    }
    Ok(snapshots)
}

fn all_pages<T>(
    first: PageRequest,
    mut read: impl FnMut(&PageRequest) -> Result<Page<T>, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut items = Vec::new();
    let mut request = first;
    for _ in 0..PAGES_MAX {
        let page = read(&request)?;
        items.extend(page.items);
        match page.next {
            Some(cursor) => request = PageRequest::after(request.limit(), cursor),
            None => break,
        }
    }
    Ok(items)
}
