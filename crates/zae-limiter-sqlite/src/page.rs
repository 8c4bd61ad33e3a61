//! Paging: every listing asks for one item more than a page holds, to know whether there is a next
//! page.

use zae_limiter_store::{Page, PageRequest};

use crate::error::Outcome;

/// A page of a listing that is ordered by a text. `fetch` gets the text to go on after (empty at
/// the start, because no name is empty) and how many items to get.
pub(crate) fn paged<T>(
    page: &PageRequest,
    fetch: impl FnOnce(&str, u32) -> Outcome<Vec<T>>,
    cursor: impl Fn(&T) -> String,
) -> Outcome<Page<T>> {
    let after = page.cursor().map_or("", |cursor| cursor.0.as_str());
    Ok(Page::cut(fetch(after, page.limit() + 1)?, page, cursor))
}
