//! `lambda-export`.

use std::path::PathBuf;

use clap::Args;
use zae_limiter_deploy::elf::Architecture;

/// `lambda-export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LambdaExportArgs {
    // `--output FILE` means the same: see `files_named`.
    /// The file to write; --output FILE does the same
    #[arg(long, short = 'o', value_name = "FILE", default_value = "lambda.zip")]
    pub(crate) file: PathBuf,

    /// Write nothing: show what the package would be, and whether it would run; exit code 1 if not
    #[arg(long)]
    pub(crate) info: bool,

    /// Replace the file if it exists
    #[arg(long, short)]
    pub(crate) force: bool,

    /// The executable to pack instead of this program
    #[arg(long, value_name = "PATH")]
    pub(crate) lambda_binary: Option<PathBuf>,

    /// What the function runs on, x86_64 or arm64 [default: as the executable]
    #[arg(long, value_name = "NAME")]
    pub(crate) architecture: Option<Architecture>,
}
