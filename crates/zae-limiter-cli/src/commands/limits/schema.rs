//! `limits schema`.

use zae_limiter_manifest::SCHEMA;

use crate::args::Output;
use crate::context::Context;
use crate::escape::json_line;
use crate::exit::Exit;

pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Exit> {
    let text = match context.printer.looks().output {
        Output::Json => json_line(&serde_json::from_str::<serde_json::Value>(SCHEMA)?)?,
        Output::Table => SCHEMA.to_owned(),
    };
    context.printer.page(&text)
}
