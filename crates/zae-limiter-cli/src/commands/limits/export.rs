//! `limits export`.

use zae_limiter_manifest::export_all;

use crate::args::Output;
use crate::context::Context;
use crate::escape::json_line;
use crate::exit::Exit;
use crate::progress::Progress;

pub(crate) async fn run(context: &Context<'_>) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let exported = Progress::during(context.printer, "reading", export_all(&limiter)).await?;
    for place in &exported.cascade_policies {
        context.printer.warning(&format!(
            "{place} has a cascade policy of the Python package, which no file can have: it is left \
             out"
        ));
    }
    let manifest = exported.manifest;
    let text = match context.printer.looks().output {
        Output::Json => json_line(&manifest.to_json())?,
        Output::Table => manifest.to_yaml(),
    };
    context.printer.page(&text)
}
