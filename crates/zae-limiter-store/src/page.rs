//! Paging: every listing is bounded, and goes on where it stopped.

/// The most items one page may ask for.
pub const PAGE_LIMIT_MAX: u32 = 1000;

/// Where a listing goes on. Opaque: only the backend that made it can read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(pub String);

/// The page that a caller asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    limit: u32,
    cursor: Option<Cursor>,
}

impl PageRequest {
    /// The first page, with at most `limit` items (1 to [`PAGE_LIMIT_MAX`]; values outside are
    /// brought inside).
    #[must_use]
    pub fn first(limit: u32) -> PageRequest {
        PageRequest { limit: limit.clamp(1, PAGE_LIMIT_MAX), cursor: None }
    }

    /// The page after the one that ended with `cursor`.
    #[must_use]
    pub fn after(limit: u32, cursor: Cursor) -> PageRequest {
        PageRequest { cursor: Some(cursor), ..PageRequest::first(limit) }
    }

    /// The most items of the page.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Where to go on, if not at the start.
    #[must_use]
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }
}

impl Default for PageRequest {
    fn default() -> Self {
        PageRequest::first(100)
    }
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The items. A page may be empty and still not be the last.
    pub items: Vec<T>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// A page without items and without a next one.
    #[must_use]
    pub fn empty() -> Page<T> {
        Page { items: Vec::new(), next: None }
    }

    /// Makes a page of up to one item too many; `cursor` is asked for that of the last one.
    #[must_use]
    pub fn cut(mut items: Vec<T>, page: &PageRequest, cursor: impl Fn(&T) -> String) -> Page<T> {
        let size = usize::try_from(page.limit()).unwrap_or(usize::MAX);
        let more = items.len() > size;
        items.truncate(size);
        let next = items.last().filter(|_| more).map(|last| Cursor(cursor(last)));
        Page { items, next }
    }
}
