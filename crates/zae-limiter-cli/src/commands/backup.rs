//! `backup`.

use anyhow::Context as _;
use serde::Serialize;

use crate::args::file::BackupArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::Text;
use crate::view;

#[derive(Serialize)]
struct Form {
    path: String,
    bytes: u64,
}

pub(crate) async fn run(context: &Context<'_>, args: &BackupArgs) -> anyhow::Result<Exit> {
    let store = context.look_at_file()?;
    let copied = async { store.backup_to(&args.path) };
    Progress::during(context.printer, "copying", copied).await.map_err(zae_limiter::Error::from)?;
    let bytes =
        std::fs::metadata(&args.path).context("the copy is there and cannot be looked at")?.len();
    let form = Form { path: args.path.display().to_string(), bytes };
    let line = format!("copied to {} ({})", form.path, view::bytes(bytes));
    context.printer.answer(&form, &Text::of(line))?;
    context.printer.note(&format!("{} brings it back", context.command(&["restore", &form.path])));
    Ok(Exit::Ok)
}
