//! `aggregate`.

use clap::Args;

/// `aggregate`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct AggregateArgs {
    /// Count what is there, and end
    #[arg(long)]
    pub(crate) once: bool,

    /// Split hot buckets into at most so many shards; 1 while processes of a version before shards
    /// run
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) shards_max: u32,

    /// Fold no shards: for a stack that clients of the Python package use too
    #[arg(long)]
    pub(crate) keep_shards: bool,

    // Said by `local up`, whose workers end with their supervisor: standard input closes.
    #[arg(long, hide = true)]
    pub(crate) with_supervisor: bool,
}
