//! `aggregate`.

use clap::Args;

/// `aggregate`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct AggregateArgs {
    /// Count what is there, and end
    #[arg(long)]
    pub(crate) once: bool,

    /// Fold no shards: for a stack that clients of the Python package use too
    #[arg(long)]
    pub(crate) keep_shards: bool,

    // Said by `local up`, whose workers end with their supervisor: standard input closes.
    #[arg(long, hide = true)]
    pub(crate) with_supervisor: bool,
}
