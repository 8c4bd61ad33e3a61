//! Rows of several processes on one file.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use zae_limiter::{Clock, Level, RateLimiter, SystemClock};
use zae_limiter_sqlite::Synchronous;

use super::sqlite::CALLERS;
use super::{Context, Entry};
use crate::cell::{Cell, Figures, Row, Sample, one_thread};
use crate::child::Shared;
use crate::histogram::histogram;
use crate::keys;

/// Longer than other rows: on a busy machine the kernel itself shares unfairly for a while.
const TIMES_LONGER: u32 = 3;
/// Time for children to open the file and warm up.
const START_MS: u64 = 800;

pub(super) fn rows() -> Vec<Entry> {
    use Synchronous::{Full, Normal};
    vec![
        Entry {
            name: "process-1x1",
            what: "1 process with 1 caller",
            make: |context| row(context, 1, 1, Normal),
        },
        Entry {
            name: "process-2x1",
            what: "2 processes with 1 caller each",
            make: |context| row(context, 2, 1, Normal),
        },
        Entry {
            name: "process-1x64",
            what: "1 process with 64 callers",
            make: |context| row(context, 1, CALLERS, Normal),
        },
        Entry {
            name: "process-2x64",
            what: "2 processes with 64 callers each",
            make: |context| row(context, 2, CALLERS, Normal),
        },
        Entry {
            name: "process-full-1x64",
            what: "1 process with 64 callers, FULL",
            make: |context| row(context, 1, CALLERS, Full),
        },
        Entry {
            name: "process-full-2x64",
            what: "2 processes, 64 callers each, FULL",
            make: |context| row(context, 2, CALLERS, Full),
        },
    ]
}

struct Processes {
    path: PathBuf,
    count: usize,
    callers: usize,
    synchronous: Synchronous,
}

fn row(
    context: &Context,
    count: usize,
    callers: usize,
    synchronous: Synchronous,
) -> Result<Box<dyn Row>> {
    let name = format!("processes-{callers}-{synchronous:?}.db");
    let (runtime, store) = (one_thread()?, context.store(&name, synchronous)?);
    runtime.block_on(async {
        RateLimiter::builder(store).build()?.set_limits(&Level::System, keys::wide()).await
    })?;
    Ok(Box::new(Processes { path: context.file(&name), count, callers, synchronous }))
}

impl Row for Processes {
    fn run(&mut self, cell: Cell) -> Result<Sample> {
        let time = cell.time * TIMES_LONGER;
        let start_ms = u64::try_from(SystemClock::new().now().0)? + START_MS;
        let children =
            (0..self.count).map(|_| self.start(start_ms, time)).collect::<Result<Vec<Child>>>()?;
        let mut shares = Vec::new();
        for child in children {
            let output = child.wait_with_output()?;
            ensure!(output.status.success(), "a child failed");
            shares.push(Shared::read(&String::from_utf8(output.stdout)?)?);
        }
        let ops: u64 = shares.iter().map(|share| share.ops).sum();
        let least = shares.iter().map(|share| share.ops).min().unwrap_or(0);
        let gap = shares.iter().map(|share| share.gap).max().unwrap_or_default();
        let mut figures = Figures::from([("longest gap ms", gap.as_secs_f64() * 1e3)]);
        if self.count > 1 {
            figures.push(("least share", least as f64 * self.count as f64 / ops as f64));
        }
        let (wall, cpu) = (time, shares.iter().map(|share| share.cpu).sum());
        Ok(Sample { ops, wall, cpu, server_cpu: None, latency: histogram(), figures })
    }
}

impl Processes {
    fn start(&self, start_ms: u64, time: Duration) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe().context("this program")?);
        command.args(["child", "share"]).arg(&self.path);
        command.args([
            self.callers.to_string(),
            start_ms.to_string(),
            time.as_millis().to_string(),
        ]);
        if self.synchronous == Synchronous::Full {
            command.arg("--full");
        }
        command.stdout(Stdio::piped()).spawn().context("a child")
    }
}
