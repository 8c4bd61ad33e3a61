//! What happened: the audit log, written by the changes it records, and the usage history, written
//! by an aggregator.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use zae_limiter_core::{
    AuditEvent, EntityId, EventId, ResourceName, TimeMs, UsageSnapshot, parse_rfc3339, rfc3339,
};
use zae_limiter_store::{
    AuditQuery, HistoryStore, Page, PageRequest, StoreError, StoreErrorKind, StoreFuture,
    UsageQuery, UsageWindows,
};

use crate::DynamoStore;
use crate::records::attr;
use crate::records::item::{Shape, audit_event, key_of, shape_of, text_of, usage_item};
use crate::records::keys;
use crate::table::page::{Walk, size_of};
use crate::table::{Index, Item, Key, Query, Sort};

/// Keys one listing of a whole namespace goes over: about 100 MB of the index.
const KEYS_MAX: usize = 500_000;

/// Usage items of a namespace that are read before it is asked again which are still wanted.
const KEYS_READ: usize = 300;

/// Keys of one request for the usage of a resource: their items are fetched before the next, so not
/// too many.
const KEYS_PAGE: i32 = 300;

impl HistoryStore for DynamoStore {
    fn audit_events<'a>(&'a self, query: &'a AuditQuery) -> StoreFuture<'a, Page<AuditEvent>> {
        Box::pin(audit_events(self, query))
    }

    fn audit_log<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<AuditEvent>> {
        Box::pin(audit_log(self, page))
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Page<UsageSnapshot>> {
        Box::pin(usage(self, query))
    }
}

async fn audit_events(
    store: &DynamoStore,
    query: &AuditQuery,
) -> Result<Page<AuditEvent>, StoreError> {
    const OPERATION: &str = "audit_events";
    let size = size_of(&query.page);
    let before: Option<EventId> = query
        .page
        .cursor()
        .map(|cursor| cursor.0.parse())
        .transpose()
        .map_err(|_| StoreError::foreign_cursor(OPERATION))?;
    let sort = match before {
        Some(id) => Sort::Between(keys::AUDIT.to_owned(), format!("{}{id}", keys::AUDIT)),
        None => Sort::Prefix(keys::AUDIT.to_owned()),
    };
    let partition = keys::audit_partition(&store.id, &query.subject);
    // One more for the event of the cursor itself, one more to know whether there is a next page.
    let limit = i32::try_from(size.saturating_add(2)).ok();
    let page = Query {
        index: None,
        partition,
        sort,
        start: None,
        limit,
        ascending: false,
        consistent: true,
    };
    let mut events = Vec::new();
    let mut walk = Walk::new(&store.shared, OPERATION, page);
    while let Some(items) = walk.next().await? {
        let read =
            items.iter().filter_map(|item| readable(OPERATION, audit_event(item, &query.subject)));
        events.extend(read.filter(|event| before.is_none_or(|before| event.id < before)));
        if events.len() > size {
            break;
        }
    }
    Ok(Page::cut(events, &query.page, |event| event.id.to_string()))
}

/// An event of the log of a whole namespace, by its keys: newest first, then by subject.
type Position = (Reverse<EventId>, String);

/// Events of every subject. The index knows them by subject and not by time, so that their keys are
/// gone over, all of them, and a page of the newest is kept and read.
async fn audit_log(
    store: &DynamoStore,
    page: &PageRequest,
) -> Result<Page<AuditEvent>, StoreError> {
    const OPERATION: &str = "audit_log";
    let after = page
        .cursor()
        .map(|cursor| position_of(&cursor.0).ok_or_else(|| StoreError::foreign_cursor(OPERATION)))
        .transpose()?;
    let prefix = keys::index::audit(&store.id);
    let mut newest: BTreeSet<Position> = BTreeSet::new();
    let mut walk = Walk::new(&store.shared, OPERATION, whole_namespace(store, prefix.clone()));
    let mut seen = 0;
    while let Some(items) = walk.next().await? {
        seen += items.len();
        if seen > KEYS_MAX {
            return Err(too_much(OPERATION, "name an entity, a resource or the system"));
        }
        for key in items.iter().filter_map(key_of) {
            let subject = key.pk.strip_prefix(&prefix);
            let id = key.sk.strip_prefix(keys::AUDIT).and_then(|id| id.parse().ok());
            let Some(position) = id.map(Reverse).zip(subject.map(str::to_owned)) else { continue };
            if after.as_ref().is_none_or(|after| position > *after) {
                newest.insert(position);
            }
            if newest.len() > size_of(page) + 1 {
                newest.pop_last();
            }
        }
    }
    let keys: Vec<Key> = newest
        .iter()
        .map(|(id, subject)| keys::audit_of(&store.id, subject, &id.0.to_string()))
        .collect();
    let found = store.shared.read_all(OPERATION, &keys, true).await?;
    let next = Page::cut(newest.iter().cloned().collect(), page, |(id, subject)| {
        format!("{}/{subject}", id.0)
    })
    .next;
    // One more than the page was looked for, to know whether there is another.
    let read = found.iter().zip(&newest).take(size_of(page)).filter_map(|(item, (_, subject))| {
        let subject = subject.parse().ok()?;
        readable(OPERATION, audit_event(item.as_ref()?, &subject))
    });
    Ok(Page { items: read.collect(), next })
}

/// The place a cursor of [`audit_log`] names.
fn position_of(cursor: &str) -> Option<Position> {
    let (id, subject) = cursor.split_once('/')?;
    Some((Reverse(id.parse().ok()?), subject.to_owned()))
}

/// The keys of a namespace that begin with a prefix.
fn whole_namespace(store: &DynamoStore, prefix: String) -> Query {
    let (index, partition) = (Some(Index::Gsi4), store.id.to_string());
    Query {
        index,
        partition,
        sort: Sort::Prefix(prefix),
        start: None,
        limit: None,
        ascending: true,
        consistent: false,
    }
}

fn too_much(operation: &'static str, instead: &str) -> StoreError {
    let message = format!(
        "the namespace has more records than one listing goes over ({KEYS_MAX}); {instead}"
    );
    StoreError::new(StoreErrorKind::Capacity, operation, message)
}

/// What was read, or `None` with a warning: one record that somebody else wrote does not hide all
/// others.
fn readable<T>(operation: &'static str, read: Result<T, StoreError>) -> Option<T> {
    read.inspect_err(
        |error| tracing::warn!(operation, %error, "a record is left out of the history"),
    )
    .ok()
}

/// True for a window that is asked for, as far as its key says.
fn wants(query: &UsageQuery, shape: Shape) -> bool {
    let UsageQuery { window, from, until, .. } = query;
    shape.may_be(*window)
        && from.is_none_or(|from| shape.start >= from)
        && until.is_none_or(|until| shape.start < until)
}

/// Adds what an item says. Both products may have counted in one window: then it is their sum.
fn add(windows: &mut UsageWindows<'_>, item: &Item, shape: Shape) {
    let Some(usage) = readable("usage", usage_item(item, shape)) else { return };
    let UsageQuery { entity, resource, window, .. } = windows.query();
    if usage.window != *window
        || entity.as_ref().is_some_and(|entity| usage.entity != *entity)
        || resource.as_ref().is_some_and(|resource| usage.resource != *resource)
    {
        return;
    }
    if let Some(totals) = windows.at(shape.start, usage.entity, usage.resource) {
        totals.count(usage.events);
        usage.counters.into_iter().for_each(|(limit, used)| totals.use_limit(limit, used));
    }
}

/// The sort keys between which the windows of the page are, behind a prefix; `None` when there can
/// be none.
fn range(windows: &UsageWindows<'_>, prefix: &str) -> Option<Sort> {
    let UsageQuery { window, until, .. } = windows.query();
    // Outside the years of four digits keys do not sort like times: then everything is looked at.
    let years = parse_rfc3339("0001-01-01").ok().zip(parse_rfc3339("9999-12-31").ok());
    let inside = |at: &TimeMs| years.is_some_and(|(first, last)| first <= *at && *at <= last);
    let from = windows.first_start().map(|from| window.start_of(from)).filter(inside);
    let last = until.map(|until| window.start_of(until.plus_ms(-1))).filter(inside);
    // The short key of a window is the beginning of its long one.
    let lower =
        from.map_or_else(|| prefix.to_owned(), |from| format!("{prefix}{}", window.key(from)));
    let upper = last.map_or_else(
        || format!("{prefix}{}", keys::END),
        |last| format!("{prefix}{}{}", rfc3339(last), keys::END),
    );
    // The table does not accept a range that ends before it begins.
    (lower <= upper).then_some(Sort::Between(lower, upper))
}

async fn usage(store: &DynamoStore, query: &UsageQuery) -> Result<Page<UsageSnapshot>, StoreError> {
    let mut windows = UsageWindows::new(query)?;
    match (&query.entity, &query.resource) {
        (Some(entity), resource) => {
            of_entity(store, entity, resource.as_ref(), &mut windows).await?
        }
        (None, Some(resource)) => of_resource(store, resource, &mut windows).await?,
        (None, None) => of_namespace(store, &mut windows).await?,
    }
    Ok(windows.into_page())
}

/// From the partition of the entity: ordered by resource and then by time, so that all resources
/// are gone over.
async fn of_entity(
    store: &DynamoStore,
    entity: &EntityId,
    resource: Option<&ResourceName>,
    windows: &mut UsageWindows<'_>,
) -> Result<(), StoreError> {
    let prefix = keys::usage_prefix(resource);
    let sort =
        if resource.is_some() { range(windows, &prefix) } else { Some(Sort::Prefix(prefix)) };
    let Some(sort) = sort else { return Ok(()) };
    let partition = keys::entity_partition(&store.id, entity);
    let query = Query {
        index: None,
        partition,
        sort,
        start: None,
        limit: None,
        ascending: true,
        consistent: true,
    };
    let mut walk = Walk::new(&store.shared, "usage", query);
    while let Some(items) = walk.next().await? {
        for item in &items {
            let window =
                text_of(item, attr::SK).and_then(keys::parse_usage).map(|(_, window)| window);
            let Some(shape) =
                window.and_then(shape_of).filter(|shape| wants(windows.query(), *shape))
            else {
                continue;
            };
            if resource.is_some() && windows.is_closed_to(shape.start) {
                return Ok(());
            }
            add(windows, item, shape);
        }
    }
    Ok(())
}

/// From the index of the resource: ordered by time. It may hold only keys, so the items are
/// fetched.
async fn of_resource(
    store: &DynamoStore,
    resource: &ResourceName,
    windows: &mut UsageWindows<'_>,
) -> Result<(), StoreError> {
    let Some(sort) = range(windows, keys::index::USAGE) else { return Ok(()) };
    let partition = keys::index::resource(&store.id, resource);
    let index = Some(Index::Gsi2);
    let query = Query {
        index,
        partition,
        sort,
        start: None,
        limit: Some(KEYS_PAGE),
        ascending: true,
        consistent: false,
    };
    let mut walk = Walk::new(&store.shared, "usage", query);
    while let Some(items) = walk.next().await? {
        let mut wanted: Vec<(Key, Shape)> = Vec::new();
        for item in &items {
            let window = text_of(item, attr::GSI2SK)
                .and_then(keys::index::parse_resource_usage)
                .map(|(window, _)| window);
            let Some(shape) =
                window.and_then(shape_of).filter(|shape| wants(windows.query(), *shape))
            else {
                continue;
            };
            wanted.extend(key_of(item).map(|key| (key, shape)));
        }
        let keys: Vec<Key> = wanted.iter().map(|(key, _)| key.clone()).collect();
        let found = store.shared.read_all("usage", &keys, true).await?;
        let last = wanted.last().map(|(_, shape)| shape.start);
        for ((_, shape), item) in wanted.iter().zip(&found) {
            if let Some(item) = item {
                add(windows, item, *shape);
            }
        }
        if last.is_some_and(|last| windows.is_closed_to(last)) {
            break;
        }
    }
    Ok(())
}

/// From the index of the namespace: by entity, in no order of time. Only items whose window may get
/// onto the page are read.
async fn of_namespace(
    store: &DynamoStore,
    windows: &mut UsageWindows<'_>,
) -> Result<(), StoreError> {
    const OPERATION: &str = "usage";
    let mut walk = Walk::new(
        &store.shared,
        OPERATION,
        whole_namespace(store, keys::index::entities(&store.id)),
    );
    let mut seen = 0;
    while let Some(items) = walk.next().await? {
        seen += items.len();
        if seen > KEYS_MAX {
            return Err(too_much(OPERATION, "name an entity or a resource"));
        }
        let wanted: Vec<(Key, Shape)> =
            items.iter().filter_map(key_of).filter_map(|key| wanted(store, windows, key)).collect();
        for chunk in wanted.chunks(KEYS_READ) {
            let keys: Vec<Key> = chunk.iter().map(|(key, _)| key.clone()).collect();
            let found = store.shared.read_all(OPERATION, &keys, true).await?;
            for ((_, shape), item) in chunk.iter().zip(&found) {
                if let Some(item) = item {
                    add(windows, item, *shape);
                }
            }
        }
    }
    Ok(())
}

/// The key of a usage snapshot that may belong onto the page, with what it says.
fn wanted(store: &DynamoStore, windows: &UsageWindows<'_>, key: Key) -> Option<(Key, Shape)> {
    let entity: EntityId = keys::parse_entity_partition(&store.id, &key.pk)?.parse().ok()?;
    let (resource, window) = keys::parse_usage(&key.sk)?;
    let resource: ResourceName = resource.parse().ok()?;
    let shape = shape_of(window).filter(|shape| wants(windows.query(), *shape))?;
    windows.is_open_to(shape.start, &entity, &resource).then_some((key, shape))
}
