//! One measurement of one row: a warm-up, then calls until the time is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::allocations::Allocated;
use crate::histogram::histogram;
use crate::keys::Dice;

/// How long a row runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
}

/// What came out.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) ops: u64,
    pub(crate) wall: Duration,
    /// CPU time of this process, all threads.
    pub(crate) cpu: Duration,
    /// CPU time of a server that worked for it, in steps of 10 ms.
    pub(crate) server_cpu: Option<Duration>,
    pub(crate) latency: Histogram<u64>,
    /// What else the row knows.
    pub(crate) figures: Figures,
}

pub(crate) type Figures = Vec<(&'static str, f64)>;

/// Something that can be measured again and again.
pub(crate) trait Row {
    fn run(&mut self, cell: Cell) -> Result<Sample>;
}

/// A call that a row repeats. Panics when its answer is not the expected one: a wrong answer has no
/// speed.
pub(crate) trait Op: Send + Sync + 'static {
    fn call(&self, random: u64) -> impl Future<Output = ()> + Send;

    /// Runs before the clock starts.
    fn begin(&self) {}

    /// Runs after the clock has stopped, with the number of calls since `begin`.
    fn end(&self, _ops: u64) -> Figures {
        Figures::new()
    }

    /// The process that serves the calls.
    fn server(&self) -> Option<u32> {
        None
    }
}

/// A row of asynchronous calls.
pub(crate) struct Calls<O> {
    runtime: Runtime,
    op: Arc<O>,
    /// How many tasks call; `None` for no task at all.
    tasks: Option<usize>,
    /// Every how many calls the clock is looked at.
    look_every: u32,
}

impl<O: Op> Calls<O> {
    /// One caller on the thread that asks, as in a program with one thing to do.
    pub(crate) fn alone(runtime: Runtime, op: O, look_every: u32) -> Box<dyn Row> {
        Box::new(Calls { runtime, op: Arc::new(op), tasks: None, look_every })
    }

    /// Callers that are tasks, as in a server.
    pub(crate) fn crowd(runtime: Runtime, op: O, callers: usize) -> Box<dyn Row> {
        Box::new(Calls { runtime, op: Arc::new(op), tasks: Some(callers), look_every: 1 })
    }
}

pub(crate) fn one_thread() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("a runtime")
}

pub(crate) fn all_cores() -> Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("a runtime")
}

impl<O: Op> Row for Calls<O> {
    fn run(&mut self, cell: Cell) -> Result<Sample> {
        self.lap(cell.warm_up)?;
        self.op.begin();
        let server = self.op.server();
        let before = Readings::take(server);
        let (ops, latency) = self.lap(cell.time)?;
        let after = Readings::take(server);
        Ok(after.since(&before, (ops, latency), self.op.end(ops)))
    }
}

impl<O: Op> Calls<O> {
    fn lap(&self, time: Duration) -> Result<(u64, Histogram<u64>)> {
        let until = now() + time;
        let Some(tasks) = self.tasks else {
            return Ok(self.runtime.block_on(repeat(&*self.op, 1, self.look_every, until)));
        };
        self.runtime.block_on(async {
            let mut callers = JoinSet::new();
            for number in 1..=tasks {
                let (op, look_every) = (Arc::clone(&self.op), self.look_every);
                callers.spawn(async move { repeat(&*op, number as u64, look_every, until).await });
            }
            let (mut ops, mut latency) = (0, histogram());
            while let Some(caller) = callers.join_next().await {
                let (more, theirs) = caller.context("a caller got a wrong answer")?;
                ops += more;
                latency.add(&theirs)?;
            }
            Ok((ops, latency))
        })
    }
}

/// Calls until the time is over.
pub(crate) async fn repeat<O: Op>(
    op: &O,
    seed: u64,
    look_every: u32,
    until: Instant,
) -> (u64, Histogram<u64>) {
    let (mut dice, mut ops, mut latency) = (Dice::new(seed), 0, histogram());
    loop {
        for _ in 1..look_every {
            op.call(dice.roll()).await;
        }
        let started = now();
        op.call(dice.roll()).await;
        let ended = now();
        latency.saturating_record(nanos(ended - started));
        ops += u64::from(look_every);
        if ended >= until {
            return (ops, latency);
        }
    }
}

/// A row of calls that are functions.
pub(crate) struct Direct<F> {
    call: F,
    look_every: u32,
}

impl<F: FnMut(u64)> Direct<F> {
    /// `look_every` is the number of calls between two looks at the clock: the shortest take less
    /// time than the look.
    pub(crate) fn new(call: F, look_every: u32) -> Direct<F> {
        Direct { call, look_every }
    }
}

impl<F: FnMut(u64)> Row for Direct<F> {
    fn run(&mut self, cell: Cell) -> Result<Sample> {
        self.lap(cell.warm_up);
        let before = Readings::take(None);
        let lap = self.lap(cell.time);
        Ok(Readings::take(None).since(&before, lap, Figures::new()))
    }
}

impl<F: FnMut(u64)> Direct<F> {
    /// Calls until the time is over.
    pub(crate) fn lap(&mut self, time: Duration) -> (u64, Histogram<u64>) {
        let until = now() + time;
        let (mut dice, mut ops, mut latency) = (Dice::new(1), 0, histogram());
        loop {
            for _ in 1..self.look_every {
                (self.call)(dice.roll());
            }
            let started = now();
            (self.call)(dice.roll());
            let ended = now();
            latency.saturating_record(nanos(ended - started));
            ops += u64::from(self.look_every);
            if ended >= until {
                return (ops, latency);
            }
        }
    }
}

/// What the clocks and counters say at one moment.
pub(crate) struct Readings {
    server_cpu: Option<Duration>,
    allocated: Allocated,
    cpu: Duration,
    at: Instant,
}

impl Readings {
    pub(crate) fn take(server: Option<u32>) -> Readings {
        // Asking for a server's costs some microseconds of ours, which are nothing beside a lap.
        Readings {
            server_cpu: server.and_then(cpu_time_of),
            allocated: Allocated::so_far(),
            cpu: cpu_time(),
            at: now(),
        }
    }

    /// What a lap took that began at `before` and ends here.
    pub(crate) fn since(
        &self,
        before: &Readings,
        (ops, latency): (u64, Histogram<u64>),
        mut figures: Figures,
    ) -> Sample {
        figures.extend(self.allocated.since(before.allocated).per_op(ops));
        let server_cpu = self
            .server_cpu
            .zip(before.server_cpu)
            .map(|(after, before)| after.saturating_sub(before));
        Sample {
            ops,
            wall: self.at - before.at,
            cpu: self.cpu.saturating_sub(before.cpu),
            server_cpu,
            latency,
            figures,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of this process so far.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures CPU time")]
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time of another process so far. Linux counts it in hundredths of a second.
fn cpu_time_of(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}
