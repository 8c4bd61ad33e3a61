//! `system delete-defaults`.

use serde::Serialize;
use zae_limiter::Level;

use crate::args::SystemDeleteDefaultsArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Text};

#[derive(Serialize)]
struct Form {
    deleted: bool,
}

pub(crate) async fn run(
    context: &Context<'_>,
    args: SystemDeleteDefaultsArgs,
) -> anyhow::Result<Exit> {
    let namespace = &context.settings.namespace;
    let what = format!("the system defaults of namespace {namespace}");
    confirm(
        context,
        &Question { deed: "deletes", what: &what, name: namespace.as_str() },
        args.confirm,
    )?;
    let limiter = context.open().await?;
    let deleted = limiter.delete_limits(&Level::System).await?;
    let line = if deleted {
        format!("deleted {what}")
    } else {
        format!("nothing to delete: {what} are not set")
    };
    context.printer.answer(&Form { deleted }, &Text::new().line(Cell::plain(line)))?;
    if deleted {
        super::limits::note_about_caches(context);
    }
    Ok(Exit::Ok)
}
