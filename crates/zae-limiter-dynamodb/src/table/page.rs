//! Paging. A cursor is the last name of a page, so it outlives the process, and a record that is
//! deleted or added between two pages moves nothing.

use zae_limiter_store::{Cursor, Page, PageRequest, StoreError, StoreErrorKind};

use crate::Shared;
use crate::records::item::key_of;
use crate::records::keys::END;
use crate::table::{Index, Item, Key, Query, Sort};

/// Requests that found something, for one page of a listing, at most. Listings that skip much
/// (deleted namespaces among active ones) end with a short page and a cursor instead.
const QUERIES_MAX: u32 = 32;

/// Pages one walk over everything goes through at most: at 1 MB each, more than a partition of a
/// table of ours ever holds.
const WALK_PAGES_MAX: u32 = 100_000;

/// The longest text of a cursor, in bytes: that of two of the longest names, and the number of a
/// shard behind them.
const CURSOR_BYTES_MAX: usize = 2 * 256 + 12;

/// A part of a partition whose sort keys are a prefix and a name, one item each.
pub(crate) struct Listing {
    pub(crate) index: Option<Index>,
    pub(crate) partition: String,
    pub(crate) prefix: String,
}

impl Listing {
    /// A query for everything after a name, or for everything.
    pub(crate) fn after(&self, name: Option<&str>) -> Query {
        let sort = match name {
            // Every character of a name sorts behind the exclamation mark.
            Some(name) => {
                Sort::Between(format!("{}{name}!", self.prefix), format!("{}{END}", self.prefix))
            }
            None if self.prefix.is_empty() => Sort::All,
            None => Sort::Prefix(self.prefix.clone()),
        };
        Query::of(self.index, self.partition.clone(), sort)
    }
}

/// The name a page begins after.
pub(crate) fn position<'a>(
    page: &'a PageRequest,
    operation: &'static str,
) -> Result<Option<&'a str>, StoreError> {
    let Some(cursor) = page.cursor() else { return Ok(None) };
    let text = cursor.0.as_str();
    let plausible = !text.is_empty()
        && text.len() <= CURSOR_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    if plausible { Ok(Some(text)) } else { Err(StoreError::foreign_cursor(operation)) }
}

pub(crate) fn size_of(page: &PageRequest) -> usize {
    usize::try_from(page.limit()).unwrap_or(usize::MAX)
}

impl Shared {
    /// One page of a listing. `read` gives the name of an item, and what is listed of it, if
    /// anything is.
    pub(crate) async fn list<T>(
        &self,
        operation: &'static str,
        listing: &Listing,
        page: &PageRequest,
        read: impl Fn(&Item) -> Result<(String, Option<T>), StoreError>,
    ) -> Result<Page<T>, StoreError> {
        let size = size_of(page);
        let mut query = listing.after(position(page, operation)?);
        let (mut items, mut seen, mut queries) = (Vec::new(), None, 0);
        // A page without items does not move the cursor, so a listing cannot end there.
        while queries < QUERIES_MAX {
            query.limit = i32::try_from((size + 1).saturating_sub(items.len())).ok();
            let found = self.query(operation, &query).await?;
            for item in &found.items {
                let (name, listed) = read(item).map_err(|error| error.during(operation))?;
                items.extend(listed.map(|listed| (name.clone(), listed)));
                seen = Some(name);
            }
            queries += u32::from(!found.items.is_empty());
            query.start = found.last;
            if query.start.is_none() || items.len() > size {
                let page = Page::cut(items, page, |(name, _): &(String, T)| name.clone());
                return Ok(listed(page));
            }
        }
        Ok(listed(Page { items, next: seen.map(Cursor) }))
    }

    /// Goes over everything a query finds, page by page.
    pub(crate) fn walk(&self, operation: &'static str, query: Query) -> Walk<'_> {
        Walk { shared: self, operation, query, pages: 0, is_over: false }
    }

    /// The keys of everything a query finds.
    pub(crate) async fn all_keys(
        &self,
        operation: &'static str,
        query: Query,
    ) -> Result<Vec<Key>, StoreError> {
        let (mut walk, mut keys) = (self.walk(operation, query), Vec::new());
        while let Some(items) = walk.next().await? {
            keys.extend(items.iter().filter_map(key_of));
        }
        Ok(keys)
    }
}

fn listed<T>(page: Page<(String, T)>) -> Page<T> {
    Page { items: page.items.into_iter().map(|(_, item)| item).collect(), next: page.next }
}

/// What was read, or `None` with a warning: one record that another writer made in a way this
/// version does not accept does not hide all others.
pub(crate) fn readable<T>(
    operation: &'static str,
    what: &str,
    read: Result<T, StoreError>,
) -> Option<T> {
    read.inspect_err(|error| tracing::warn!(operation, %error, "{what} is left out of the listing"))
        .ok()
}

/// A way over everything a query finds.
pub(crate) struct Walk<'a> {
    shared: &'a Shared,
    operation: &'static str,
    query: Query,
    pages: u32,
    is_over: bool,
}

impl Walk<'_> {
    /// Whether there is no further page.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The next page; it may be empty. `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Item>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        self.pages += 1;
        if self.pages > WALK_PAGES_MAX {
            let message = format!("a query went on for more than {WALK_PAGES_MAX} pages");
            return Err(StoreError::new(StoreErrorKind::Internal, self.operation, message));
        }
        let page = self.shared.query(self.operation, &self.query).await?;
        self.query.start = page.last;
        self.is_over = self.query.start.is_none();
        Ok(Some(page.items))
    }
}
