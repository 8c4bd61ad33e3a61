//! `man`: the pages of the manual, written from the definition of the command line.

use anyhow::Context as _;
use clap::Command;
use clap_mangen::Man;
use serde::Serialize;

use crate::args::{self, Output, file::ManArgs};
use crate::error::Failure;
use crate::exit::Exit;
use crate::printer::Printer;
use crate::table::Text;

#[derive(Serialize)]
struct Form {
    /// The folder that the pages were written to.
    dir: Option<String>,
    /// The names of their files.
    files: Vec<String>,
    /// The page itself, when none was written to a file.
    page: Option<String>,
}

pub(crate) fn run(printer: &Printer, args: &ManArgs) -> anyhow::Result<Exit> {
    let mut definition = args::definition();
    definition.build();
    let Some(dir) = &args.dir else {
        let page = page(found(&definition, &args.command)?)?;
        return match printer.looks().output {
            Output::Json => printer
                .answer(&Form { dir: None, files: Vec::new(), page: Some(page) }, &Text::new()),
            Output::Table => printer.page(&page),
        };
    };
    let not_written = |path: &std::path::Path| format!("{} could not be written", path.display());
    std::fs::create_dir_all(dir).with_context(|| not_written(dir))?;
    let mut commands = Vec::new();
    collect(&definition, &mut commands);
    let mut files = Vec::new();
    for command in commands {
        let name = format!("{}.1", name(command));
        let path = dir.join(&name);
        std::fs::write(&path, page(command)?).with_context(|| not_written(&path))?;
        files.push(name);
    }
    let dir = dir.display().to_string();
    let text = Text::of(format!("wrote {} pages to {dir}", files.len()));
    printer.answer(&Form { dir: Some(dir), files, page: None }, &text)
}

/// The command of these words.
fn found<'a>(definition: &'a Command, words: &[String]) -> Result<&'a Command, Failure> {
    words.iter().try_fold(definition, |command, word| {
        let found = visible(command).find(|command| command.get_name() == word);
        found.ok_or_else(|| {
            let failure = Failure::usage(format!("there is no command {:?}", words.join(" ")));
            failure.hint("`zae-limiter --help` lists the commands")
        })
    })
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    let is_visible = |it: &&Command| !it.is_hide_set() && it.get_name() != "help";
    command.get_subcommands().filter(is_visible)
}

fn collect<'a>(command: &'a Command, found: &mut Vec<&'a Command>) {
    found.push(command);
    visible(command).for_each(|command| collect(command, found));
}

/// `zae-limiter-entity-create`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &Command) -> anyhow::Result<String> {
    let mut written = Vec::new();
    let page = Man::new(command.clone().disable_help_subcommand(true))
        .source(concat!("zae-limiter ", env!("CARGO_PKG_VERSION")))
        .manual("zae-limiter");
    page.render(&mut written).context("the page could not be written")?;
    // What stands below the help has a heading that says nothing.
    let page = String::from_utf8_lossy(&written);
    let page = page.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n");
    Ok(page.replace(".SH EXTRA\n", ".SH NOTES\n"))
}
