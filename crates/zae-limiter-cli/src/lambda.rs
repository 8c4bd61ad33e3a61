//! The program as AWS Lambda starts it.

use std::process::ExitCode;

use crate::again::Again;
use crate::args::{Globals, Output};
use crate::error::Failure;
use crate::printer::Printer;
use crate::settings::{Environment, Looks};

/// Serves the aggregator until Lambda ends the process. What goes wrong is a line of JSON on
/// stderr, which Lambda keeps.
pub(crate) fn run() -> ExitCode {
    let failure = match serve() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => Failure::of(&error, &Again::default()),
    };
    let globals = Globals { output: Some(Output::Json), ..Globals::default() };
    Printer::new(Looks::new(&globals, &Environment::default())).error(failure).into()
}

fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(zae_limiter_aggregator::run_lambda())?)
}
