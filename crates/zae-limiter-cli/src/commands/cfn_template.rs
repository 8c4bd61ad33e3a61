//! `cfn-template`.

use anyhow::Context as _;
use serde::Serialize;
use zae_limiter_deploy::TEMPLATE;

use crate::args::Output;
use crate::args::deploy::CfnTemplateArgs;
use crate::exit::Exit;
use crate::printer::Printer;
use crate::table::Text;
use crate::view;

#[derive(Serialize)]
struct Form {
    /// Where the template was written to.
    path: Option<String>,
    bytes: u64,
    /// The template itself, when it was not written to a file.
    template: Option<&'static str>,
}

pub(crate) fn run(printer: &Printer, args: &CfnTemplateArgs) -> anyhow::Result<Exit> {
    let bytes = TEMPLATE.len() as u64;
    let Some(path) = &args.file else {
        return match printer.looks().output {
            Output::Json => {
                let form = Form { path: None, bytes, template: Some(TEMPLATE) };
                printer.answer(&form, &Text::new())
            }
            Output::Table => printer.page(TEMPLATE),
        };
    };
    std::fs::write(path, TEMPLATE)
        .with_context(|| format!("{} could not be written", path.display()))?;
    let form = Form { path: Some(path.display().to_string()), bytes, template: None };
    printer.answer(&form, &Text::of(format!("wrote {} ({})", path.display(), view::bytes(bytes))))
}
