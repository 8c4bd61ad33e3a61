//! What the commands that list something share.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde::Serialize;
use zae_limiter::store::PAGE_LIMIT_MAX;
use zae_limiter::{Error, Page, PageRequest};

use crate::context::Context;
use crate::escape::quoted;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text};

/// A page as JSON. `next` is what --cursor takes, null on the last page.
#[derive(Serialize)]
pub(crate) struct Form<F> {
    items: Vec<F>,
    next: Option<String>,
    /// What a reader of the items should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
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

    /// The same with a note for its readers.
    pub(crate) fn noted(mut self, note: Option<String>) -> Form<F> {
        self.note = note;
        self
    }
}

/// Prints a page: the forms of its items, or for people a table of them.
pub(crate) fn answer<'a, T, F: Serialize>(
    context: &Context<'_>,
    page: &'a Page<T>,
    form: impl Fn(&'a T) -> F,
    table: Table,
    nothing: &str,
) -> anyhow::Result<Exit> {
    print(context, &Form::new(page, form), table, nothing)
}

/// What a name is called in a listing of names: in the table, and in JSON.
type Label = (&'static str, &'static str);
pub(crate) const ENTITY: Label = ("ENTITY", "entity_id");
pub(crate) const RESOURCE: Label = ("RESOURCE", "resource");

/// Prints a page of names.
pub(crate) fn names<T>(
    context: &Context<'_>,
    page: &Page<T>,
    (title, field): Label,
    nothing: &str,
    name: impl Fn(&T) -> String,
) -> anyhow::Result<Exit> {
    let mut table = Table::new([title]);
    page.items.iter().for_each(|item| table.row([Cell::plain(name(item))]));
    let form = |item| BTreeMap::from([(field, name(item))]);
    answer(context, page, form, table, nothing)
}

/// Prints a page in its form; for people a table, or `nothing` where it has no rows. A note says
/// how to go on.
pub(crate) fn print<F: Serialize>(
    context: &Context<'_>,
    form: &Form<F>,
    table: Table,
    nothing: &str,
) -> anyhow::Result<Exit> {
    context.printer.answer(form, &Text::new().table_or(table, nothing))?;
    context.printer.note_beside(form.note.as_deref());
    if let Some(next) = &form.next {
        context.printer.note(&format!("there is more; go on with --cursor {}", quoted(next)));
    }
    Ok(Exit::Ok)
}

/// The items on the first pages of a listing, and whether these are all.
pub(crate) async fn walk<T>(
    pages_max: usize,
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, Error>,
) -> Result<(Vec<T>, bool), Error> {
    let mut found = Vec::new();
    let mut request = PageRequest::first(PAGE_LIMIT_MAX);
    for _ in 0..pages_max {
        let page = list(request).await?;
        found.extend(page.items);
        match page.next {
            Some(cursor) => request = PageRequest::after(PAGE_LIMIT_MAX, cursor),
            None => return Ok((found, true)),
        }
    }
    Ok((found, false))
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
