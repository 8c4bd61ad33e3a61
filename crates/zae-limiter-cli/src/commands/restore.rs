//! `restore`.

use serde::Serialize;
use zae_limiter::sqlite::{SqliteOptions, SqliteStore};

use crate::args::file::RestoreArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Text};
use crate::view;

#[derive(Serialize)]
struct Form {
    path: String,
    from: String,
    bytes: u64,
    schema_version: u32,
    replaced: Option<String>,
}

pub(crate) async fn run(context: &Context<'_>, args: &RestoreArgs) -> anyhow::Result<Exit> {
    let path = context.file()?;
    if path.exists() {
        let what = format!("{} by {}", path.display(), args.path.display());
        let name = path
            .file_name()
            .map_or_else(|| what.clone(), |name| name.to_string_lossy().into_owned());
        confirm(context, &Question { deed: "replaces", what: &what, name: &name }, args.confirm)?;
    }
    let restored = async { SqliteStore::restore(&args.path, path, SqliteOptions::new()) };
    let restored = Progress::during(context.printer, "checking and copying", restored).await;
    let restored = restored.map_err(zae_limiter::Error::from)?;
    let form = Form {
        path: path.display().to_string(),
        from: args.path.display().to_string(),
        bytes: restored.bytes,
        schema_version: restored.schema_version,
        replaced: restored.replaced.map(|path| path.display().to_string()),
    };
    let line = format!("restored {} from {} ({})", form.path, form.from, view::bytes(form.bytes));
    let mut text = Text::of(line);
    if let Some(replaced) = &form.replaced {
        text = text.line(Cell::plain(format!("the file it replaced is kept as {replaced}")));
    }
    context.printer.answer(&form, &text)
}
