//! `local …`: the engine for development and tests. What its commands share.

use crate::args::{Globals, LocalCommand};
use crate::commands::{local_down, local_env, local_logs, local_status, local_up};
use crate::engine::Folder;
use crate::error::Failure;
use crate::exit::Exit;
use crate::printer::Printer;
use crate::settings::Environment;

/// Where AWS tools think that the engine is; it takes any region.
pub(super) const REGION: &str = "us-east-1";

/// What every `local` command gets.
pub(super) struct Local<'a> {
    pub(super) printer: &'a Printer,
    pub(super) globals: &'a Globals,
    pub(super) environment: &'a Environment,
}

pub(crate) async fn run(
    printer: &Printer,
    command: LocalCommand,
    globals: &Globals,
    environment: &Environment,
) -> anyhow::Result<Exit> {
    let local = Local { printer, globals, environment };
    local.check()?;
    match command {
        LocalCommand::Up(args) => local_up::run(&local, &args).await,
        LocalCommand::Status => local_status::run(&local),
        LocalCommand::Logs(args) => local_logs::run(&local, args).await,
        LocalCommand::Down => local_down::run(&local).await,
        LocalCommand::Env(args) => local_env::run(&local, args),
    }
}

impl Local<'_> {
    /// Flags that name another place than the local engine were meant for another command.
    fn check(&self) -> Result<(), Failure> {
        let wrong = |flag: &str, hint: &str| {
            Err(Failure::usage(format!("{flag} is not for `local`, which is on this machine"))
                .hint(hint))
        };
        match self.globals {
            Globals { store: Some(_), .. } => {
                wrong("--store", "name the stack to create with --name STACK")
            }
            Globals { endpoint_url: Some(_), .. } => {
                wrong("--endpoint-url", "choose the port of the engine with --port")
            }
            _ => Ok(()),
        }
    }

    /// Where the engine keeps its files.
    pub(super) fn folder(&self) -> Result<Folder, Failure> {
        let failure = || {
            Failure::usage("there is no home directory to keep the engine's data in")
                .hint("set HOME or XDG_DATA_HOME")
        };
        self.environment.engine_folder().ok_or_else(failure)
    }
}
