//! Pages of listings that are in memory.

use std::ops::Bound;

use crate::{Cursor, Page, PageRequest};

/// The keys after the cursor of a page, for keys that are texts.
pub(super) fn after(page: &PageRequest) -> (Bound<&str>, Bound<&str>) {
    let first = page.cursor().map_or(Bound::Unbounded, |cursor| Bound::Excluded(&*cursor.0));
    (first, Bound::Unbounded)
}

/// The first items of a sequence that begins after the page's cursor.
pub(super) fn paged<T>(
    mut items: impl Iterator<Item = T>,
    page: &PageRequest,
    cursor: impl Fn(&T) -> String,
) -> Page<T> {
    let size = usize::try_from(page.limit()).unwrap_or(usize::MAX);
    let taken: Vec<T> = items.by_ref().take(size).collect();
    let more = items.next().is_some();
    let next = taken.last().filter(|_| more).map(|last| Cursor(cursor(last)));
    Page { items: taken, next }
}
