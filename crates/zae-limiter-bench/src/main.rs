//! Benchmarks of zae-limiter against its peers, in one command:
//!
//! ```text
//! cargo run --release -p zae-limiter-bench --features peers -- embedded
//! cargo run --release -p zae-limiter-bench -- dynamodb
//! cargo run --release -p zae-limiter-bench -- beside
//! cargo run --release -p zae-limiter-bench -- shards --name STACK [--endpoint URL]
//! cargo run --release -p zae-limiter-bench -- fleets
//! cargo run --release -p zae-limiter-bench -- cold
//! cargo run --release -p zae-limiter-bench -- trimmed
//! cargo run --release -p zae-limiter-bench -- compare OTHER_BINARY
//! ```
//!
//! Figures, not tests: the exit code says whether the measurement ran, the table says what came
//! out; only `compare` judges. Machines are noisy, so every round runs every row once, goals are
//! ratios formed inside a round, and CPU time stands beside wall time.

mod aggregator;
mod allocations;
mod args;
mod beside;
mod cell;
mod child;
mod compare;
mod dynamodb;
mod fleets;
mod goals;
mod histogram;
mod keys;
#[cfg(feature = "peers")]
mod peers;
mod report;
mod rounds;
mod rows;
mod shards;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;

use args::{Args, Command, Options, Output};
use rounds::Suite;

fn main() -> Result<ExitCode> {
    match Args::parse().command {
        Command::Embedded { options, folder } => {
            let mut notes = vec![allocations::NOTE];
            if cfg!(not(feature = "peers")) {
                notes.push("The rows of others are missing: build with `--features peers`.");
            }
            measure(&options, Suite { notes, folder, ..Suite::embedded() })?;
        }
        Command::Dynamodb(options) => {
            measure(&options, Suite { notes: vec![allocations::NOTE], ..Suite::dynamodb() })?
        }
        Command::Beside(args) => beside::run(&args)?,
        Command::Shards(args) => shards::run(&args)?,
        Command::Fleets(args) => fleets::run(&args)?,
        Command::Cold(args) => aggregator::cold(&args)?,
        Command::Trimmed(args) => aggregator::trimmed(&args)?,
        Command::Compare(args) => return compare::run(&args),
        Command::Child(role) => child::play(&role)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(options: &Options, suite: Suite) -> Result<()> {
    let results = rounds::run(options, suite)?;
    print(&match options.output {
        Output::Table => report::table(&results),
        Output::Json => report::json(&results),
    })
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("the figures")
}
