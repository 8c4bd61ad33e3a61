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
