//! `local …`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::value::{count, port};
use crate::commands::shared::local::Local;
use crate::commands::{local_attend, local_down, local_env, local_logs, local_status, local_up};
use crate::exit::Exit;

/// The most lines `local logs` begins with.
const TAIL_MAX: u32 = 10_000;
/// The port that DynamoDB-compatible servers use.
pub(crate) const PORT: u16 = 8000;

/// What to do with the local engine.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum LocalCommand {
    /// Start the engine and return; with --name STACK also create that stack in it
    #[command(after_long_help = super::examples::LOCAL_UP)]
    Up(LocalUpArgs),
    /// Show whether the engine runs, and what is in it; exit code 1 if it does not run
    #[command(after_long_help = super::examples::LOCAL_STATUS)]
    Status,
    /// Print what the engine said, or what the workers said that count usage
    #[command(after_long_help = super::examples::LOCAL_LOGS)]
    Logs(LocalLogsArgs),
    /// Stop the engine and its workers; its data stays
    #[command(after_long_help = super::examples::LOCAL_DOWN)]
    Down,
    /// Print the variables that point AWS tools at the engine, for a shell to evaluate
    #[command(after_long_help = super::examples::LOCAL_ENV)]
    Env(LocalEnvArgs),
    /// Keep the workers alive that count usage
    #[command(hide = true)]
    Attend,
}

impl LocalCommand {
    pub(crate) async fn run(self, local: &Local<'_>) -> anyhow::Result<Exit> {
        match self {
            LocalCommand::Up(args) => local_up::run(local, &args).await,
            LocalCommand::Status => local_status::run(local),
            LocalCommand::Logs(args) => local_logs::run(local, args).await,
            LocalCommand::Down => local_down::run(local).await,
            LocalCommand::Env(args) => local_env::run(local, args),
            LocalCommand::Attend => local_attend::run(local).await,
        }
    }

    /// True for a command that goes on while the engine speaks.
    pub(crate) fn follows(&self) -> bool {
        matches!(
            self,
            LocalCommand::Logs(_)
                | LocalCommand::Attend
                | LocalCommand::Up(LocalUpArgs { foreground: true, .. })
        )
    }
}

/// `local up`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LocalUpArgs {
    /// The port to listen on, on this machine only; 0 for any free one [default: that of the engine
    /// before, else 8000]
    #[arg(long, value_name = "PORT", value_parser = port::<0>)]
    pub(crate) port: Option<u16>,

    /// Stay, print what the engine says, and stop it when this command ends
    #[arg(long, short)]
    pub(crate) foreground: bool,

    // What happens anyway; scripts written for earlier versions say it.
    #[arg(long, short, hide = true, conflicts_with = "foreground")]
    pub(crate) detach: bool,

    /// Where to keep its data [default: a file in your data directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
}

/// `local logs`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LocalLogsArgs {
    /// Go on until the engine stops, or until Ctrl-C
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Print what the workers said that count usage, and when each was started and ended
    #[arg(long, short)]
    pub(crate) worker: bool,

    /// Begin with at most this many of the last lines, up to 10000
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = count::<TAIL_MAX>)]
    pub(crate) tail: u32,
}

/// `local env`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LocalEnvArgs {
    /// For what: a shell's eval, an .envrc, or PowerShell
    #[arg(long, short, value_name = "FORM", default_value = "eval")]
    pub(crate) format: EnvFormat,

    /// The port of the engine [default: that of the one that runs or ran last, else 8000]
    #[arg(long, value_name = "PORT", value_parser = port::<1>)]
    pub(crate) port: Option<u16>,
}

/// Who reads the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvFormat {
    // `eval "$(…)"` in sh, bash, zsh, fish.
    Eval,
    // An `.envrc`.
    Direnv,
    // `… | Out-String | Invoke-Expression`.
    Powershell,
}
