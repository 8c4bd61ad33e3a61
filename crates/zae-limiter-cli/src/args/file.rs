//! `status`, `backup`, `restore`, `sweep`, `demo`, `completions`, `man`.

use clap::Args;
use clap_complete::Shell;

/// `backup`.
#[cfg(feature = "sqlite")]
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupArgs {
    /// The file to write; it must not exist
    pub(crate) path: std::path::PathBuf,
}

/// `restore`.
#[cfg(feature = "sqlite")]
#[derive(Args, Clone, Debug)]
pub(crate) struct RestoreArgs {
    /// The backup to put in the place of the file
    pub(crate) path: std::path::PathBuf,

    #[command(flatten)]
    pub(crate) confirm: super::shared::ConfirmArgs,
}

/// `demo`.
#[cfg(feature = "sqlite")]
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DemoArgs {
    /// How long it runs, from 1 to 3600
    #[arg(long, value_name = "COUNT", default_value_t = 15, value_parser = super::value::count::<3600>)]
    pub(crate) seconds: u32,

    /// Buy tokens ahead of need and serve calls from memory
    #[arg(long)]
    pub(crate) local_blocks: bool,
}

/// `completions`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    pub(crate) shell: Shell,
}

/// `man`.
#[cfg(feature = "man")]
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// The words of the command [default: the program as a whole]
    pub(crate) command: Vec<String>,

    /// Write a page for every command into this folder, which is made if it is missing
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    pub(crate) dir: Option<std::path::PathBuf>,
}
