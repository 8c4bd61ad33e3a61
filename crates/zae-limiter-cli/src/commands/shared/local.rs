//! What the commands of `local`, the engine for development and tests, share.

use crate::args::Globals;
use crate::engine::Folder;
use crate::error::Failure;
use crate::printer::Printer;
use crate::settings::Environment;

/// Where AWS tools think that the engine is; it takes any region.
pub(crate) const REGION: &str = "us-east-1";

/// What every `local` command gets.
pub(crate) struct Local<'a> {
    pub(crate) printer: &'a Printer,
    pub(crate) globals: &'a Globals,
    pub(crate) environment: &'a Environment,
}

impl<'a> Local<'a> {
    /// What a command gets, unless its flags are for another one.
    pub(crate) fn new(
        printer: &'a Printer,
        globals: &'a Globals,
        environment: &'a Environment,
    ) -> Result<Local<'a>, Failure> {
        // Flags that name another place than the local engine were meant for another command.
        let (flag, hint) = match globals {
            Globals { store: Some(_), .. } => {
                ("--store", "name the stack to create with --name STACK")
            }
            Globals { endpoint_url: Some(_), .. } => {
                ("--endpoint-url", "choose the port of the engine with --port")
            }
            _ => return Ok(Local { printer, globals, environment }),
        };
        let failure =
            Failure::usage(format!("{flag} is not for `local`, which is on this machine"));
        Err(failure.hint(hint))
    }

    /// Where the engine keeps its files.
    pub(crate) fn folder(&self) -> Result<Folder, Failure> {
        let failure = || {
            Failure::usage("there is no home directory to keep the engine's data in")
                .hint("set HOME or XDG_DATA_HOME")
        };
        self.environment.engine_folder().ok_or_else(failure)
    }
}
