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

    // Said by `local up`, whose workers end with their supervisor: standard input closes.
    #[arg(long, hide = true)]
    pub(crate) with_supervisor: bool,
}
