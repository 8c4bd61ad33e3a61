//! `namespace purge`.

use serde::Serialize;

use crate::args::NamespacePurgeArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Text};

#[derive(Serialize)]
struct Form {
    namespace_id: String,
    purged: bool,
    records: u64,
}

pub(crate) async fn run(context: &Context<'_>, args: NamespacePurgeArgs) -> anyhow::Result<Exit> {
    let what = format!("all data of the deleted namespace {} for good", args.id);
    confirm(context, &Question { deed: "erases", what: &what, name: args.id.as_str() }, args.confirm)?;
    let limiter = context.open_registry().await?;
    let progress = Progress::start(context.printer, "purging");
    let purged = limiter.purge_namespace(args.id.clone()).await;
    drop(progress);
    let form = Form { namespace_id: args.id.to_string(), purged: true, records: purged?.records };
    let line = format!("purged namespace {} (records: {})", form.namespace_id, form.records);
    context.printer.answer(&form, &Text::new().line(Cell::plain(line)))?;
    Ok(Exit::Ok)
}
