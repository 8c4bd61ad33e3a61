//! Paging: every listing asks for one item more than a page holds, to know whether there is a next page.

use zae_limiter_store::{Cursor, Page, PageRequest};

use crate::error::Outcome;

/// A page of a listing that is ordered by a text. `fetch` gets the text to go on after (empty at the start: nothing is
/// called so) and how many items to get.
pub(crate) fn paged<T>(
    page: &PageRequest,
    fetch: impl FnOnce(&str, u32) -> Outcome<Vec<T>>,
    cursor: impl Fn(&T) -> String,
) -> Outcome<Page<T>> {
    let after = page.cursor().map_or("", |cursor| cursor.0.as_str());
    Ok(cut(fetch(after, page.limit() + 1)?, page, cursor))
}

/// Makes a page of up to one item too many.
pub(crate) fn cut<T>(mut items: Vec<T>, page: &PageRequest, cursor: impl Fn(&T) -> String) -> Page<T> {
    let size = usize::try_from(page.limit()).unwrap_or(usize::MAX);
    let more = items.len() > size;
    items.truncate(size);
    let next = items.last().filter(|_| more).map(|last| Cursor(cursor(last)));
    Page { items, next }
}
