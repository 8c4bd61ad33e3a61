//! `completions`.

use crate::args::{self, CompletionsArgs};
use crate::exit::Exit;
use crate::printer::Printer;

pub(crate) fn run(printer: &Printer, args: CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::definition(), "zae-limiter", &mut script);
    printer.page(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}
