//! `aggregate`.

use clap::Args;

/// `aggregate`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct AggregateArgs {
    /// Count what is there, and end
    #[arg(long)]
    pub(crate) once: bool,

    // Said by `local up`, whose workers end with their supervisor: standard input closes.
    #[arg(long, hide = true)]
    pub(crate) with_supervisor: bool,
}
