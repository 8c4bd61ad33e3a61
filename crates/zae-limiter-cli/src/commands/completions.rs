//! `completions`.

use clap_complete::Shell;

use crate::args::{self, file::CompletionsArgs};
use crate::exit::Exit;
use crate::printer::Printer;

pub(crate) fn run(printer: &Printer, args: CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::definition(), "zae-limiter", &mut script);
    let script = String::from_utf8_lossy(&script);
    let script = if args.shell == Shell::Bash { repaired(&script) } else { script.into_owned() };
    printer.page(&script)
}

/// The script for bash with one name for each command. clap_complete (as of 4.6.11) spells the
/// program's name in two ways when it has a hyphen, and what is looked up under one of them is
/// stored under the other (clap-rs/clap#6421).
fn repaired(script: &str) -> String {
    script.replace("zae__subcmd__limiter", "zae__limiter")
}
