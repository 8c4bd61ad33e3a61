//! Benchmarks of zae-limiter against its peers, in one command:
//!
//! ```text
//! cargo run --release -p zae-limiter-bench --features peers -- embedded
//! cargo run --release -p zae-limiter-bench -- dynamodb
//! ```
//!
//! Figures, not tests: the exit code says whether the measurement ran, the table says what came out. Machines are noisy, so
//! every round runs every row once, goals are ratios formed inside a round, and CPU time stands beside wall time.

mod allocations;
mod args;
mod cell;
mod child;
mod dynamodb;
mod goals;
mod histogram;
mod keys;
#[cfg(feature = "peers")]
mod peers;
mod report;
mod rounds;
mod rows;

use std::io::Write;

use anyhow::Result;
use clap::Parser;

use args::{Args, Command, Options, Output};
use rounds::Suite;

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Embedded { options, folder } => {
            let mut notes = vec![allocations::NOTE];
            if cfg!(not(feature = "peers")) {
                notes.push("The rows of others are missing: build with `--features peers`.");
            }
            measure(&options, Suite { rows: rows::all(), goals: &goals::EMBEDDED, notes, folder })
        }
        Command::Dynamodb(options) => {
            let notes = vec![allocations::NOTE];
            measure(&options, Suite { rows: dynamodb::rows(), goals: &goals::DYNAMODB, notes, folder: None })
        }
        Command::Child(role) => child::play(&role),
    }
}

fn measure(options: &Options, suite: Suite) -> Result<()> {
    let results = rounds::run(options, suite)?;
    let text = match options.output {
        Output::Table => report::table(&results),
        Output::Json => report::json(&results),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
