//! What is typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Benchmarks of zae-limiter against its peers.
#[derive(Debug, Parser)]
#[command(name = "zae-limiter-bench")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The embedded limiter: SQLite and memory.
    Embedded {
        #[command(flatten)]
        options: Options,
        /// Where database files go; the system's temporary folder unless given. Must be on the disk
        /// to be measured.
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// The limiter on DynamoDB, against a local endpoint that answers at once.
    Dynamodb(Options),
    /// Takes beside an administrator at work on a file with many buckets.
    Beside(Beside),
    /// Shards on a table of your own: takes, splits, gathers, refusals, and a crowd. Writes one
    /// entity into the stack and deletes it again.
    Shards(Shards),
    /// What fleets of processes with local blocks get, in virtual time: the page
    /// `docs/local-blocks-figures.md`.
    Fleets(Fleets),
    /// The aggregator as Lambda starts it: time to start and to answer, memory.
    Cold(Cold),
    /// Writes to the engine of `local up` while its worker counts and trims: at first, and after
    /// many records.
    Trimmed(Trimmed),
    /// This build against an older one; the exit code is 3 when a row is worse.
    Compare(Compare),
    /// A process that a row has started.
    #[command(subcommand, hide = true)]
    Child(Role),
}

#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// How often every row runs; 7, or 2 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: Option<u32>,
    /// Short cells and fewer entities: to see that it works, not for figures.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only the rows of these names, or whose names begin so.
    #[arg(long, value_name = "ROW", num_args = 1..)]
    pub(crate) only: Vec<String>,
    /// Print the names of the rows and stop.
    #[arg(long)]
    pub(crate) list: bool,
    /// A table for people, or everything for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

#[derive(Debug, Parser)]
pub(crate) struct Fleets {
    /// A tenth of the time: to see that it works, not for figures.
    #[arg(long)]
    pub(crate) quick: bool,
    /// A page for people, or everything for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, Parser)]
pub(crate) struct Beside {
    /// How many buckets the file has.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    pub(crate) buckets: u32,
    /// Where database files go; the system's temporary folder unless given. Must be on the disk to
    /// be measured.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// A table for people, or everything for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, Parser)]
pub(crate) struct Shards {
    /// The stack: a table that `zae-limiter` has set up.
    #[arg(long)]
    pub(crate) name: String,
    /// Where it is.
    #[arg(long, default_value = "us-east-1")]
    pub(crate) region: String,
    /// A namespace of it.
    #[arg(long, default_value = "default")]
    pub(crate) namespace: String,
    /// An endpoint other than that of the region.
    #[arg(long, alias = "endpoint-url", value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// How many takes are timed.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) takes: u32,
    /// Callers of the crowd.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) callers: u32,
    /// Handles of the crowd; each remembers as a process does.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) handles: u32,
    /// How long the crowd takes.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
    /// A table for people, or everything for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, Parser)]
pub(crate) struct Cold {
    /// How often the function is started.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// How many records a batch has.
    #[arg(long, default_value_t = 100)]
    pub(crate) records: usize,
    /// The command line to measure; the one beside this program unless given.
    #[arg(long, value_name = "BINARY")]
    pub(crate) binary: Option<PathBuf>,
    /// A table for people, or everything for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, Parser)]
pub(crate) struct Trimmed {
    /// How many records are written.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) records: usize,
    /// The command line to measure; the one beside this program unless given.
    #[arg(long, value_name = "BINARY")]
    pub(crate) binary: Option<PathBuf>,
    /// A table for people, or everything for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Debug, Parser)]
pub(crate) struct Compare {
    /// The older build of this program. Beside it, and beside this one, a build with
    /// `--features allocations` is looked for, whose name ends in `-allocations`.
    #[arg(value_name = "OTHER_BINARY")]
    pub(crate) other: PathBuf,
    /// Which rows; both suites unless given.
    #[arg(value_enum)]
    pub(crate) suite: Option<SuiteName>,
    /// How often every row is measured by each build; fewer than 15 say little.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// Short cells and fewer entities: to see that it works, not for figures.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only the rows of these names, or whose names begin so.
    #[arg(long, value_name = "ROW", num_args = 1..)]
    pub(crate) only: Vec<String>,
    /// A table for people, or everything for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    /// Where database files go; the system's temporary folder unless given.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// The newer build; this program unless given.
    #[arg(long, value_name = "BINARY")]
    pub(crate) new: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SuiteName {
    Embedded,
    Dynamodb,
}

impl SuiteName {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SuiteName::Embedded => "embedded",
            SuiteName::Dynamodb => "dynamodb",
        }
    }
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Role {
    /// The rows that are compared between builds, as JSON.
    Rows {
        #[arg(value_enum)]
        suite: SuiteName,
    },
    /// One row, measured once, as JSON.
    Round {
        #[arg(value_enum)]
        suite: SuiteName,
        row: String,
        #[arg(long)]
        quick: bool,
        #[arg(long)]
        folder: Option<PathBuf>,
        /// Where large files are kept for the next round.
        #[arg(long)]
        lasting: Option<PathBuf>,
    },
    /// One of several processes on one file.
    Share {
        path: PathBuf,
        callers: usize,
        /// Wall time at which all begin, in milliseconds.
        start_ms: u64,
        time_ms: u64,
        #[arg(long)]
        full: bool,
    },
    /// What a key costs in memory.
    Weigh { what: String, keys: usize },
    /// An endpoint that gives every write the same answer, until its input ends.
    Canned,
}
