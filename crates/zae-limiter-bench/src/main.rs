//! Benchmarks of zae-limiter against its peers, in one command:
//!
//! ```text
//! cargo run --release -p zae-limiter-bench --features peers -- embedded
//! ```
//!
//! Figures, not tests: the exit code says whether the measurement ran, the table says what came out. Machines are noisy, so
//! every round runs every row once, goals are ratios formed inside a round, and CPU time stands beside wall time.

mod args;
mod cell;
mod child;
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

use args::{Args, Command, Output};

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Embedded(options) => {
            let results = rounds::run(&options)?;
            let text = match options.output {
                Output::Table => report::table(&results),
                Output::Json => report::json(&results),
            };
            std::io::stdout().write_all(text.as_bytes())?;
            Ok(())
        }
        Command::Child(role) => child::play(&role),
    }
}
