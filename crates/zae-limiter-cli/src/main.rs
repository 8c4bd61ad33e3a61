//! The `zae-limiter` command: takes from limits, looks at them, explains and changes them.
//!
//! Arguments pass through stages: `args` (as typed) → `settings` (with the environment, ready to
//! run) → `commands` (one file each) → `printer` (the only one that writes). What a command ends
//! with is an `Exit`.

mod again;
mod args;
mod chart;
mod commands;
mod confirm;
mod context;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "dynamodb")]
mod engine;
mod error;
mod escape;
mod exit;
#[cfg(feature = "dynamodb")]
mod lambda;
mod patience;
mod printer;
mod progress;
mod reference;
mod settings;
mod table;
mod user;
mod view;

use std::process::ExitCode;

use args::Globals;
use printer::Printer;
use settings::{Environment, Looks};

fn main() -> ExitCode {
    let environment = Environment::read();
    // Lambda starts the program without arguments, and says in a variable what is wanted.
    #[cfg(feature = "dynamodb")]
    if let Some(function) = environment.function {
        return lambda::run(function, &environment);
    }
    let arguments: Vec<_> = std::env::args_os().collect();
    // Mistakes are told in the form that was asked for.
    let in_any_case = || {
        let output = args::output_in(arguments.clone());
        Printer::new(Looks::new(&Globals { output, ..Globals::default() }, &environment))
    };
    if let Some(failure) = args::coming(&arguments) {
        return in_any_case().error(failure).into();
    }
    let exit = match args::parse(arguments.clone(), environment.help_width()) {
        Ok(cli) => {
            let printer = Printer::new(Looks::new(&cli.globals, &environment));
            commands::run(cli, &environment, &printer)
                .unwrap_or_else(|failure| printer.error(failure))
        }
        Err(error) => in_any_case().parsing(&error),
    };
    exit.into()
}
