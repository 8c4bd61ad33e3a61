//! What a run came to, as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::Interval;
use crate::scenario::{Pacing, Scenario};
use crate::tally::{Latency, Summary, Tally};

/// The version of the form.
pub const FORMAT: &str = "zae-limiter-loadtest/1";

/// What a run was asked to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The store, in words.
    pub store: String,
    /// Users of all processes or workers.
    pub users: u32,
    /// Processes on this machine; 0 where Lambda functions ran.
    pub processes: u32,
    /// Lambda functions; 0 on this machine.
    pub workers: u32,
    /// How long it should take, in seconds.
    pub duration_s: f64,
    /// Users that start per second; null when all start at once.
    pub spawn_rate: Option<f64>,
    /// Whether calls were served from tokens bought ahead (local blocks).
    #[serde(default)]
    pub local_blocks: bool,
    /// The run has failed when more than so many of a hundred calls are errors; null asks for
    /// nothing.
    #[serde(default)]
    pub max_errors_pct: Option<f64>,
}

/// A scenario of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Part {
    /// The scenario.
    pub scenario: String,
    /// `closed loop` or `paced`.
    pub pacing: String,
    /// The calls of each user per second of a paced scenario; null in a closed loop.
    pub calls_per_user_s: Option<f64>,
    /// Granted, in calls per second.
    pub granted_per_s: f64,
    /// How many were granted.
    pub granted: u64,
    /// How many a limit refused.
    pub refused: u64,
    /// How many had no answer.
    pub errors: u64,
    /// Errors of a hundred calls, to a thousandth.
    #[serde(default)]
    pub errors_pct: f64,
    /// Errors by their word.
    pub errors_by_kind: BTreeMap<String, u64>,
    /// Calls that were due and not sent before the end.
    pub unsent: u64,
    /// Granted calls; of a paced scenario from the moment at which the call was due.
    pub latency_us: Summary,
    /// Granted calls from the moment at which they were sent.
    pub service_us: Summary,
    /// Refused calls.
    pub refused_us: Summary,
    /// Calls without an answer.
    pub errors_us: Summary,
    /// The slots of `latency_us`: nanoseconds and count.
    pub histogram_ns: Latency,
}

/// One interval of the series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Point {
    /// When it ended, in seconds from the start.
    pub at_s: f64,
    /// Users at its end.
    pub users: u32,
    /// Granted calls per second.
    pub granted_per_s: f64,
    /// How many were refused.
    pub refused: u64,
    /// How many had no answer.
    pub errors: u64,
    /// Half of the granted calls took no longer, in microseconds.
    pub p50_us: f64,
    /// 95 of 100.
    pub p95_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of this form.
    pub format: String,
    /// What was asked for.
    pub run: Run,
    /// False when the run was stopped, or a process or worker was lost.
    pub complete: bool,
    /// Processes or workers that ended before their time.
    pub lost: u32,
    /// More calls are errors than [`Run::max_errors_pct`] allows.
    #[serde(default)]
    pub too_many_errors: bool,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
    /// How coordinated omission is handled, in words.
    pub measured: String,
    /// All scenarios together.
    pub total: Part,
    /// Each scenario.
    pub scenarios: Vec<Part>,
    /// The series.
    pub series: Vec<Point>,
}

/// The names and paces of scenarios, as reports tell them.
#[must_use]
pub fn paces(scenarios: &[std::sync::Arc<dyn Scenario>]) -> Vec<(String, Pacing)> {
    scenarios.iter().map(|scenario| (scenario.name().to_owned(), scenario.pacing())).collect()
}

/// Collects the intervals of all processes and workers.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    intervals: BTreeMap<u64, Vec<Interval>>,
}

impl Collector {
    /// One more, of any process.
    pub fn add(&mut self, interval: Interval) {
        self.intervals.entry(interval.number).or_default().push(interval);
    }

    /// All calls of a scenario so far.
    #[must_use]
    pub fn tally(&self, index: usize) -> Tally {
        let mut sum = Tally::default();
        for interval in self.intervals.values().flatten() {
            if let Some(tally) = interval.tallies.get(index) {
                sum.merge(tally);
            }
        }
        sum
    }

    /// The calls of all scenarios in the newest interval that anybody has told.
    #[must_use]
    pub fn newest(&self) -> Option<Point> {
        self.intervals.iter().next_back().map(|(_, parts)| point(parts))
    }

    fn seconds(&self) -> f64 {
        self.intervals.values().map(|parts| end_s(parts)).fold(0.0, f64::max)
    }

    /// The report of what was collected.
    #[must_use]
    pub fn report(&self, run: Run, scenarios: &[(String, Pacing)], lost: u32) -> Report {
        let elapsed_s = self.seconds();
        let parts: Vec<Part> = scenarios
            .iter()
            .enumerate()
            .map(|(index, (name, pacing))| part(name, *pacing, &self.tally(index), elapsed_s))
            .collect();
        let mut sum = Tally::default();
        (0..scenarios.len()).for_each(|index| sum.merge(&self.tally(index)));
        let closed = scenarios.iter().filter(|(_, pacing)| *pacing == Pacing::ClosedLoop).count();
        let mut total = part("total", Pacing::ClosedLoop, &sum, elapsed_s);
        total.pacing = match closed {
            0 => "paced",
            all if all == scenarios.len() => "closed loop",
            _ => "mixed",
        }
        .to_owned();
        let measured = match total.pacing.as_str() {
            "paced" => PACED.to_owned(),
            "closed loop" => CLOSED.to_owned(),
            _ => format!("{PACED}; {CLOSED}"),
        };
        let series = self.intervals.values().map(|parts| point(parts)).collect();
        // A tenth of a second is what starting and ending may cost.
        let complete = lost == 0 && elapsed_s + 0.1 >= run.duration_s;
        let most = run.max_errors_pct;
        Report {
            format: FORMAT.to_owned(),
            complete,
            lost,
            too_many_errors: most.is_some_and(|most| percent(&sum) > most),
            run,
            elapsed_s: tenth(elapsed_s),
            measured,
            total,
            scenarios: parts,
            series,
        }
    }
}

const PACED: &str = "paced: the latency of a call counts from the moment at which the call was due, so that a stall is charged for every call that it delayed (no coordinated omission)";
const CLOSED: &str = "closed loop: a user calls when the call before has ended, so that the latency is that of the calls which were made; a stall delays calls without showing in their latency (coordinated omission)";

/// When an interval ended, by the process that saw most of it.
fn end_s(parts: &[Interval]) -> f64 {
    let ms = parts.iter().map(|part| part.from_ms + part.ms).max().unwrap_or(0);
    std::time::Duration::from_millis(ms).as_secs_f64()
}

fn point(parts: &[Interval]) -> Point {
    let (mut sum, mut granted_per_s) = (Tally::default(), 0.0);
    for part in parts {
        let mut of_part = Tally::default();
        part.tallies.iter().for_each(|tally| of_part.merge(tally));
        // Each by its own time: one that was held up saw more of it.
        let seconds = std::time::Duration::from_millis(part.ms).as_secs_f64();
        granted_per_s += rate(of_part.granted.count(), seconds);
        sum.merge(&of_part);
    }
    Point {
        at_s: tenth(end_s(parts)),
        users: parts.iter().map(|part| part.users).sum(),
        granted_per_s: tenth(granted_per_s),
        refused: sum.refused.count(),
        errors: sum.failed.count(),
        p50_us: sum.granted.quantile_us(0.5),
        p95_us: sum.granted.quantile_us(0.95),
        p99_us: sum.granted.quantile_us(0.99),
    }
}

fn part(name: &str, pacing: Pacing, tally: &Tally, elapsed_s: f64) -> Part {
    let (word, pace) = match pacing {
        Pacing::ClosedLoop => ("closed loop", None),
        Pacing::Every(period) => ("paced", Some(tenth(1.0 / period.as_secs_f64().max(1e-9)))),
    };
    Part {
        scenario: name.to_owned(),
        pacing: word.to_owned(),
        calls_per_user_s: pace,
        granted_per_s: rate(tally.granted.count(), elapsed_s),
        granted: tally.granted.count(),
        refused: tally.refused.count(),
        errors: tally.failed.count(),
        errors_pct: (percent(tally) * 1_000.0).round() / 1_000.0,
        errors_by_kind: tally.errors.clone(),
        unsent: tally.unsent,
        latency_us: tally.granted.summary(),
        service_us: tally.service.summary(),
        refused_us: tally.refused.summary(),
        errors_us: tally.failed.summary(),
        histogram_ns: tally.granted.clone(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate to a tenth")]
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { tenth(count as f64 / seconds) } else { 0.0 }
}

/// Errors of a hundred calls.
#[expect(clippy::cast_precision_loss, reason = "a share of calls")]
fn percent(tally: &Tally) -> f64 {
    match tally.calls() {
        0 => 0.0,
        calls => tally.failed.count() as f64 * 100.0 / calls as f64,
    }
}

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
