//! `reference`, which is hidden: for `docs/cli.md`.

use crate::exit::Exit;
use crate::printer::Printer;
use crate::{args, reference};

pub(crate) fn run(printer: &Printer) -> anyhow::Result<Exit> {
    printer.page(&reference::page(args::definition()))
}
