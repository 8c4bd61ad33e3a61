//! One stream shard that this worker reads: from its checkpoint to its end.

use std::time::Duration;

use futures_util::future::{Either, select};
use zae_limiter_dynamodb::stream::{Checkpoint, LEASE_MS, Table, TableError};
use zae_limiter_store::{Clock, Entropy};

use super::streams::{Batch, StreamError, Streams};
use crate::aggregator::{Aggregator, is_passing};
use crate::record::{Record, padded};
use crate::report::Report;

/// A lease is renewed when it is this old, also by a reader with nothing to do.
const RENEW_AFTER: Duration = Duration::from_millis(LEASE_MS.unsigned_abs() / 3);

/// First pause after a failure; doubles, at least half of it drawn.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);

/// Longest pause after a failure.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Times a checkpoint is sent before the shard is given up for now.
const SAVES_MAX: u32 = 4;

/// Counted records after which those before the checkpoint are trimmed, where the stream can.
const TRIM_RECORDS: u64 = 500;

/// How long trimming may take.
const TRIM_MAX: Duration = Duration::from_secs(5);

/// What a reader needs of the worker.
pub(super) struct Tools<'a> {
    pub(super) streams: &'a dyn Streams,
    pub(super) table: &'a dyn Table,
    pub(super) aggregator: &'a Aggregator,
    pub(super) clock: &'a dyn Clock,
    pub(super) entropy: &'a dyn Entropy,
    pub(super) owner: &'a str,
}

/// A stream shard that is being read.
#[derive(Debug)]
pub(super) struct Reader {
    /// As it is in the table.
    saved: Checkpoint,
    /// The last record whose effects are all in the table; the checkpoint follows.
    position: Option<String>,
    late_ms: i64,
    gaps: i64,
    iterator: Option<String>,
    /// When the checkpoint was written, and when the shard is read next, by the monotonic clock.
    saved_at: Duration,
    pub(super) ready_at: Duration,
    failures: u32,
    untrimmed: u64,
    /// The second of the last record that was read; `None` when there was nothing to count.
    pub(super) newest_s: Option<i64>,
}

/// What one step of a reader came to.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) report: Option<Report>,
    pub(super) gaps: u64,
    pub(super) trimmed: u64,
    pub(super) problem: Option<String>,
    pub(super) state: State,
}

/// What becomes of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// It goes on.
    #[default]
    Reading,
    /// The shard has ended and everything of it is counted.
    Done,
    /// Another worker has the shard, or the shard is gone.
    Lost,
}

impl Reader {
    /// Takes a shard, if nobody was faster. The checkpoint `seen` is the one in the table.
    pub(super) async fn claim(
        tools: &Tools<'_>,
        shard: &str,
        seen: Option<&Checkpoint>,
        is_trimmed: bool,
    ) -> Result<Option<Reader>, TableError> {
        let found = seen.cloned().unwrap_or_else(|| Checkpoint::new(shard));
        let mut reader = Reader {
            position: found.sequence.clone().filter(|_| !is_trimmed),
            late_ms: found.late_ms,
            gaps: found.gaps + i64::from(is_trimmed),
            saved: found,
            iterator: None,
            saved_at: Duration::ZERO,
            ready_at: Duration::ZERO,
            failures: 0,
            untrimmed: 0,
            newest_s: None,
        };
        Ok(reader.save(tools, seen, State::Reading).await?.then_some(reader))
    }

    pub(super) fn shard(&self) -> &str {
        &self.saved.shard
    }

    /// Reads one batch, counts it, and moves the checkpoint behind what is counted.
    pub(super) async fn step(mut self, tools: &Tools<'_>) -> (Reader, Step) {
        let mut step = Step::default();
        if let Err(error) = self.advance(tools, &mut step).await {
            self.failed(tools, &mut step, &error);
        }
        (self, step)
    }

    async fn advance(&mut self, tools: &Tools<'_>, step: &mut Step) -> Result<(), StreamError> {
        let shard = self.saved.shard.clone();
        let iterator = match self.iterator.take() {
            Some(iterator) => iterator,
            None => tools.streams.iterator(&shard, self.position.as_deref()).await?,
        };
        let mut batch = tools.streams.read(&shard, &iterator).await?;
        let last = batch.last().map(str::to_owned);
        let poison = std::mem::take(&mut batch.poison);
        let (mut matters, mut is_whole) = (false, true);
        if last.is_some() {
            let aggregator = tools.aggregator;
            let report = aggregator.process_within(&batch.records, poison, None).await;
            matters = report.buckets > 0 || report.expired > 0 || report.poison > 0;
            let failed = report.failures.get(&shard);
            is_whole = failed.is_none();
            self.position = match failed {
                None => last,
                Some(failed) => before(&batch.records, failed).or_else(|| self.position.take()),
            };
            self.untrimmed += report.records;
            step.report = Some(report);
        }
        self.look_back(tools, &batch, matters);
        let pace = if step.report.is_some() { tools.streams.pace() } else { Duration::ZERO };
        self.ready_at = tools.clock.monotonic().saturating_add(pace);
        let state = if is_whole && batch.next.is_none() { State::Done } else { State::Reading };
        self.iterator = batch.next;
        // The checkpoint is a write of the table and comes back in the stream: without a count it
        // only moves when its lease is renewed, or one checkpoint would cause the next for ever.
        if matters || state == State::Done || self.is_due(tools) {
            self.save_and_trim(tools, step, state).await?;
        }
        if is_whole {
            self.failures = 0;
            return Ok(());
        }
        let errors = step.report.as_ref().map_or_else(String::new, |it| it.errors.join("; "));
        Err(StreamError::Passing(format!("some records are not counted yet: {errors}")))
    }

    /// Notes how far behind the reader is.
    fn look_back(&mut self, tools: &Tools<'_>, batch: &Batch, matters: bool) {
        let newest_s = batch.records.last().map(|record| record.at_s);
        self.newest_s = newest_s.filter(|_| matters);
        let late_ms = |at_s: i64| tools.clock.now().0.saturating_sub(at_s.saturating_mul(1_000));
        self.late_ms = newest_s.map_or(0, |at_s| late_ms(at_s).max(0));
    }

    fn is_due(&self, tools: &Tools<'_>) -> bool {
        tools.clock.monotonic().saturating_sub(self.saved_at) >= RENEW_AFTER
    }

    async fn save_and_trim(
        &mut self,
        tools: &Tools<'_>,
        step: &mut Step,
        state: State,
    ) -> Result<(), StreamError> {
        let seen = self.saved.clone();
        let saved = self.save(tools, Some(&seen), state).await;
        match saved.map_err(|error| StreamError::Passing(format!("the checkpoint: {error}")))? {
            true => step.state = state,
            false => {
                step.state = State::Lost;
                return Ok(());
            }
        }
        if let Some(below) = &self.saved.sequence
            && self.untrimmed >= TRIM_RECORDS
        {
            // A stream that is not trimmed is only slower.
            let trimming = tools.streams.trim(&self.saved.shard, below);
            if let Either::Left((Ok(trimmed), _)) =
                select(trimming, tools.clock.sleep(TRIM_MAX)).await
            {
                step.trimmed = trimmed;
            }
            self.untrimmed = 0;
        }
        Ok(())
    }

    /// Writes the checkpoint in the place of the one that was seen. False when another worker has
    /// written since.
    async fn save(
        &mut self,
        tools: &Tools<'_>,
        seen: Option<&Checkpoint>,
        state: State,
    ) -> Result<bool, TableError> {
        let now = tools.clock.now();
        let until_ms = match state {
            State::Reading => now.0.saturating_add(LEASE_MS),
            // Nobody has to wait for it.
            State::Done | State::Lost => now.0,
        };
        let next = Checkpoint {
            shard: self.saved.shard.clone(),
            sequence: self.position.clone(),
            owner: Some(tools.owner.to_owned()),
            until_ms,
            seen_ms: now.0,
            is_done: state == State::Done,
            late_ms: self.late_ms,
            gaps: self.gaps,
        };
        let update = next.update(seen, now);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let error = match tools.table.update(&update).await {
                Ok(_) => break,
                // An attempt whose answer was lost may have landed.
                Err(TableError::Condition(Some(image)))
                    if attempt > 1 && Checkpoint::of(&image).as_ref() == Some(&next) =>
                {
                    break;
                }
                Err(TableError::Condition(_)) => return Ok(false),
                Err(error) => error,
            };
            if attempt >= SAVES_MAX || !is_passing(&error) {
                return Err(error);
            }
            tools.clock.sleep(pause(tools, attempt)).await;
        }
        self.saved = next;
        self.saved_at = tools.clock.monotonic();
        Ok(true)
    }

    /// Leaves the shard to others at once: the worker ends.
    pub(super) async fn release(mut self, tools: &Tools<'_>) {
        let seen = self.saved.clone();
        // Who comes next waits for the end of the lease if this fails.
        let _ = self.save(tools, Some(&seen), State::Lost).await;
    }

    fn failed(&mut self, tools: &Tools<'_>, step: &mut Step, error: &StreamError) {
        self.iterator = None;
        match error {
            // The same place can be found by its number, at once.
            StreamError::Expired if self.failures == 0 => {}
            StreamError::Trimmed => {
                self.position = None;
                self.gaps += 1;
                step.gaps += 1;
            }
            StreamError::Missing(_) => step.state = State::Lost,
            _ => {
                let pause = pause(tools, self.failures + 1);
                self.ready_at = tools.clock.monotonic().saturating_add(pause);
            }
        }
        self.failures = self.failures.saturating_add(1);
        step.problem = Some(format!("stream shard {}: {error}", self.saved.shard));
    }
}

/// The number of the record before the one with this number.
fn before(records: &[Record], failed: &str) -> Option<String> {
    let failed = padded(failed);
    let counted = records.iter().map(|record| &record.sequence);
    counted.take_while(|sequence| padded(sequence) < failed).last().cloned()
}

/// The pause after so many failures in a row.
pub(super) fn pause(tools: &Tools<'_>, failures: u32) -> Duration {
    let ceiling = BACKOFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(10));
    let half = ceiling.min(BACKOFF_MAX) / 2;
    let half_us = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half.saturating_add(Duration::from_micros(tools.entropy.next_u64() % half_us))
}
