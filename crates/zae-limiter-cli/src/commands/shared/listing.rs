//! What the commands that list something share.

use std::fmt::Display;
use std::str::FromStr;

use serde::Serialize;
use zae_limiter::{Error, Page, PageRequest};

use crate::args::Output;
use crate::context::Context;
use crate::escape::quoted;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text};

/// A page as JSON. `next` is what --cursor takes, null on the last page.
#[derive(Serialize)]
pub(crate) struct Form<F> {
    items: Vec<F>,
    next: Option<String>,
    /// What whoever reads the items should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

impl<F> Form<F> {
    /// The form of a page whose items have this form.
    pub(crate) fn new<'a, T>(page: &'a Page<T>, form: impl Fn(&'a T) -> F) -> Form<F> {
        Form {
            items: page.items.iter().map(form).collect(),
            next: page.next.as_ref().map(|cursor| cursor.0.clone()),
            note: None,
        }
    }

    /// The same with what whoever reads it should know.
    pub(crate) fn noted(mut self, note: Option<&'static str>) -> Form<F> {
        self.note = note;
        self
    }
}

/// A page for people: a table of its items, or a line that says that there are none.
pub(crate) struct Listing {
    pub(crate) table: Table,
    pub(crate) nothing: &'static str,
}

/// Prints a page; a note says how to go on.
pub(crate) fn answer<'a, T, F: Serialize>(
    context: &Context<'_>,
    page: &'a Page<T>,
    form: impl Fn(&'a T) -> F,
    listing: Listing,
) -> anyhow::Result<Exit> {
    print(context, &Form::new(page, form), listing)
}

/// Prints a page in its form.
pub(crate) fn print<F: Serialize>(
    context: &Context<'_>,
    form: &Form<F>,
    listing: Listing,
) -> anyhow::Result<Exit> {
    let text = if listing.table.is_empty() {
        Text::new().line(Cell::plain(listing.nothing))
    } else {
        Text::new().table(listing.table)
    };
    context.printer.answer(form, &text)?;
    // In JSON it is in the answer.
    if let (Some(note), Output::Table) = (form.note, context.printer.looks().output) {
        context.printer.note(note);
    }
    if let Some(next) = &form.next {
        context.printer.note(&format!("there is more; go on with --cursor {}", quoted(next)));
    }
    Ok(Exit::Ok)
}

/// Warns of a cursor that names nothing. Such a page begins where the name would be: what it named
/// may have been deleted since the page before, so this is no error.
pub(crate) async fn check_cursor<Name: FromStr + Display + Clone, T>(
    context: &Context<'_>,
    page: &PageRequest,
    find: impl AsyncFnOnce(Name) -> Result<Option<T>, Error>,
) -> Result<(), Error> {
    let Some(name) = page.cursor().and_then(|cursor| cursor.0.parse::<Name>().ok()) else {
        return Ok(());
    };
    if find(name.clone()).await?.is_none() {
        context.printer.warning(&format!(
            "nothing is called {name}, which --cursor names; the list begins where it would be"
        ));
    }
    Ok(())
}
