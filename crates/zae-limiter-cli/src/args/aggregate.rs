//! `aggregate`.

use clap::Args;

use super::value::shards;

/// `aggregate`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct AggregateArgs {
    /// Count what is there, and end
    #[arg(long)]
    pub(crate) once: bool,

    /// Split hot buckets into at most so many shards: 1, 2, 4, 8, 16 or 32; 1 while processes of a
    /// version before shards run [env: ZAEL_SHARDS_MAX] [default: 32]
    #[arg(long, value_name = "NUMBER", value_parser = shards)]
    pub(crate) shards_max: Option<u32>,

    /// Fold no shards: for a stack that clients of the Python package use too
    #[arg(long)]
    pub(crate) keep_shards: bool,

    // Said by `local up`, whose workers end with their supervisor: standard input closes.
    #[arg(long, hide = true)]
    pub(crate) with_supervisor: bool,
}
