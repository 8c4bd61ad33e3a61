//! `limits export`.

use zae_limiter_manifest::export;

use crate::args::Output;
use crate::context::Context;
use crate::escape::json_line;
use crate::exit::Exit;
use crate::progress::Progress;

pub(crate) async fn run(context: &Context<'_>) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let manifest = Progress::during(context.printer, "reading", export(&limiter)).await?;
    let text = match context.printer.looks().output {
        Output::Json => json_line(&manifest.to_json())?,
        Output::Table => manifest.to_yaml(),
    };
    context.printer.page(&text)
}
