//! What the commands that list something share.

use serde::Serialize;
use zae_limiter::Page;

use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text};

/// A page as JSON. `next` is what --cursor takes, null on the last page.
#[derive(Serialize)]
pub(super) struct Form<F> {
    items: Vec<F>,
    next: Option<String>,
}

impl<F> Form<F> {
    /// The form of a page whose items have this form.
    pub(super) fn new<'a, T>(page: &'a Page<T>, form: impl Fn(&'a T) -> F) -> Form<F> {
        Form { items: page.items.iter().map(form).collect(), next: page.next.as_ref().map(|cursor| cursor.0.clone()) }
    }
}

/// A page for people: a table of its items, or a line that says that there are none.
pub(super) struct Listing {
    pub(super) table: Table,
    pub(super) nothing: &'static str,
}

/// Prints a page; a note says how to go on.
pub(super) fn answer<'a, T, F: Serialize>(
    context: &Context<'_>,
    page: &'a Page<T>,
    form: impl Fn(&'a T) -> F,
    listing: Listing,
) -> anyhow::Result<Exit> {
    let form = Form::new(page, form);
    let text = if listing.table.is_empty() { Text::new().line(Cell::plain(listing.nothing)) } else { Text::new().table(listing.table) };
    context.printer.answer(&form, &text)?;
    if let Some(next) = &form.next {
        context.printer.note(&format!("there is more; go on with --cursor '{next}'"));
    }
    Ok(Exit::Ok)
}
