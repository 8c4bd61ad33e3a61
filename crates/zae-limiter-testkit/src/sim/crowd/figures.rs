//! What a crowd was told, and what that cost.

use std::fmt;
use std::time::Duration;

use zae_limiter_core::Wait;
use zae_limiter_store::{ConsumeOutcome, StoreError, StoreErrorKind};

use super::road::Writes;

/// One answer.
pub(super) struct Told {
    pub(super) took: Duration,
    pub(super) trips: u64,
    pub(super) answer: Result<ConsumeOutcome, StoreError>,
}

/// The answers of one group.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Tokens were taken; how long each took.
    pub granted: Vec<Duration>,
    /// "Short, wait": the round trips of each.
    pub refused: Vec<u64>,
    /// The wait each refusal named, in milliseconds.
    pub waits_ms: Vec<u64>,
    /// "Contended": how many.
    pub contended: u64,
    /// "Busy": the table turned the writes away.
    pub busy: u64,
    /// Grants from the first instant on, those before the measurement included.
    pub granted_in_all: u64,
}

impl Answers {
    pub(super) fn note(&mut self, told: Told, is_measured: bool) {
        self.granted_in_all += u64::from(matches!(told.answer, Ok(ConsumeOutcome::Granted(_))));
        if !is_measured {
            return;
        }
        match told.answer {
            Ok(ConsumeOutcome::Granted(_)) => self.granted.push(told.took),
            Ok(ConsumeOutcome::Refused(reports)) => {
                self.refused.push(told.trips);
                let wait = reports.iter().map(|report| match report.wait {
                    Wait::None => 0,
                    Wait::After(wait) => wait.get(),
                    Wait::Never => u64::MAX,
                });
                self.waits_ms.push(wait.max().unwrap_or(0));
            }
            Ok(ConsumeOutcome::Contended { .. }) => self.contended += 1,
            Err(error) if error.kind() == StoreErrorKind::Busy => self.busy += 1,
            other => panic!("told {other:?}"),
        }
    }

    /// All answers.
    #[must_use]
    pub fn asked(&self) -> u64 {
        (self.granted.len() + self.refused.len()) as u64 + self.contended + self.busy
    }

    /// The share of requests that were granted, in percent.
    #[must_use]
    pub fn granted_percent(&self) -> f64 {
        100.0 * self.granted.len() as f64 / self.asked().max(1) as f64
    }
}

/// What came of one group.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The answers to the group.
    pub answers: Answers,
    /// What reached the buckets, of all groups.
    pub writes: Writes,
    /// When a shard was split, from the first instant on.
    pub splits: Vec<Duration>,
    /// The number of processes of the group.
    pub processes: u32,
    /// How long the run was, the warm-up included.
    pub whole: Duration,
    /// How long the group was measured.
    pub measured: Duration,
}

impl Figures {
    fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.measured.as_secs_f64()
    }

    /// Grants a second.
    #[must_use]
    pub fn granted_per_s(&self) -> f64 {
        self.per_s(self.answers.granted.len() as u64)
    }

    /// So many of something a process and second.
    fn per_process_and_s(&self, count: u64) -> f64 {
        self.per_s(count) / f64::from(self.processes)
    }

    /// Write units a process and second that failed their condition.
    #[must_use]
    pub fn failed_per_process_and_s(&self) -> f64 {
        self.per_process_and_s(self.writes.failed)
    }

    /// Reads of all shards a process and second.
    #[must_use]
    pub fn gather_reads_per_process_and_s(&self) -> f64 {
        self.per_process_and_s(self.writes.gather_reads)
    }

    /// The cells of a row about a bucket with shards: asked, granted, refused/contended/busy, units
    /// that reached the items, calls that were throttled; failed units, gather reads and gathered
    /// takes, each by process and second; grant p50/p99.
    #[must_use]
    pub fn sharded_row(&self) -> String {
        let Answers { refused, contended, busy, .. } = &self.answers;
        let Writes { reached, throttled, gathered, .. } = self.writes;
        format!(
            "{:.0}/s | {:.0}/s | {:.0} / {:.0} / {:.0} | {:.0}/s | {:.0}/s | {:.1} | {:.2} | {:.2} | {}/{} ms",
            self.per_s(self.answers.asked()),
            self.granted_per_s(),
            self.per_s(refused.len() as u64),
            self.per_s(*contended),
            self.per_s(*busy),
            self.per_s(reached),
            self.per_s(throttled),
            self.failed_per_process_and_s(),
            self.gather_reads_per_process_and_s(),
            self.per_process_and_s(gathered),
            self.grant_ms(50),
            self.grant_ms(99),
        )
    }

    /// Write units of the table per grant of this group.
    #[must_use]
    pub fn units_per_grant(&self) -> f64 {
        self.writes.reached as f64 / (self.answers.granted.len() as f64).max(1.0)
    }

    /// How long a grant takes, at this percentile.
    #[must_use]
    pub fn grant_ms(&self, percent: usize) -> u128 {
        percentile(&self.answers.granted, percent).map_or(0, |took| took.as_millis())
    }

    /// The round trips of a refusal, at this percentile.
    #[must_use]
    pub fn refusal_trips(&self, percent: usize) -> u64 {
        percentile(&self.answers.refused, percent).unwrap_or(0)
    }
}

fn percentile<T: Copy + Ord>(values: &[T], percent: usize) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied()
}

/// The cells of a row: asked, granted, refused/contended/busy, writes, units per grant, grant
/// p50/p99, trips of a refusal.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answers { refused, contended, busy, .. } = &self.answers;
        let Writes { reached, failed, throttled, .. } = self.writes;
        write!(
            f,
            "{:.0}/s | {:.0}/s | {:.0} / {:.0} / {:.0} | {:.0}/s ({:.0}, {:.0}) | {:.2} | {}/{} ms | {}",
            self.per_s(self.answers.asked()),
            self.granted_per_s(),
            self.per_s(refused.len() as u64),
            self.per_s(*contended),
            self.per_s(*busy),
            self.per_s(reached),
            self.per_s(failed),
            self.per_s(throttled),
            self.units_per_grant(),
            self.grant_ms(50),
            self.grant_ms(99),
            if refused.is_empty() { "–".to_owned() } else { self.refusal_trips(50).to_string() },
        )
    }
}
