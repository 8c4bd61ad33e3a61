//! `version`.

use serde::Serialize;

use crate::exit::Exit;
use crate::printer::Printer;
use crate::table::Text;

#[derive(Serialize)]
struct Form {
    name: &'static str,
    version: &'static str,
}

pub(crate) fn run(printer: &Printer) -> anyhow::Result<Exit> {
    let form = Form { name: "zae-limiter", version: env!("CARGO_PKG_VERSION") };
    printer.answer(&form, &Text::of(format!("{} {}", form.name, form.version)))
}

/// The same with the versions of a stack. An incompatible one is shown like any other.
#[cfg(feature = "dynamodb")]
pub(crate) async fn of_stack(context: &crate::context::Context<'_>) -> anyhow::Result<Exit> {
    let form = super::check::Form::read(context).await?;
    context.printer.answer(&form, &form.text())
}
