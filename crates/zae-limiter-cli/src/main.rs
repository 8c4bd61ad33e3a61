//! The `zae-limiter` command: takes from limits, looks at them, explains and changes them.
//!
//! Arguments pass through stages: `args` (as typed) → `settings` (with the environment, ready to run) → `commands` (one
//! file each) → `printer` (the only one that writes). What a command ends with is an `Exit`.

mod args;
mod commands;
mod confirm;
mod context;
mod error;
mod escape;
mod exit;
mod printer;
mod settings;
mod table;
mod view;

use std::process::ExitCode;

use anyhow::Context as _;

use args::Cli;
use context::Context;
use error::Report;
use exit::Exit;
use printer::Printer;
use settings::{Environment, Looks, Settings};

fn main() -> ExitCode {
    let environment = Environment::read();
    let exit = match args::parse(std::env::args_os(), environment.help_width()) {
        Ok(cli) => {
            let printer = Printer::new(Looks::new(&cli.globals, &environment));
            run(cli, &environment, &printer).unwrap_or_else(|error| printer.error(&Report::of(&error)))
        }
        Err(error) => Printer::new(Looks::new(&args::Globals::default(), &environment)).parsing(&error),
    };
    exit.into()
}

fn run(cli: Cli, environment: &Environment, printer: &Printer) -> anyhow::Result<Exit> {
    let settings = Settings::new(cli.globals, environment)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().context("the runtime could not be started")?;
    runtime.block_on(commands::run(cli.command, &Context { settings: &settings, printer }))
}
