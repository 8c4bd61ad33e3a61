//! The worker: reads the stream of a table without Lambda, for development and for tables that
//! nothing else reads.
//!
//! A child stream shard is read only after its parent was read to its end, the records of a shard
//! in order, and a checkpoint moves only behind records whose effects are in the table. So a worker
//! that dies, two workers at once and batches that come twice count once. A lease per stream shard
//! keeps two workers from doing the same work; exactness does not need it.

mod reader;
mod streams;

#[cfg(feature = "streams")]
mod engine;
#[cfg(feature = "streams")]
mod sdk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use futures_util::stream::{self, StreamExt};
use zae_limiter_dynamodb::stream::{Checkpoint, Query, Table, TableError, checkpoints};
use zae_limiter_store::{Clock, Entropy, SystemClock, SystemEntropy};

use crate::aggregator::{Aggregator, is_passing};
use crate::record::padded;
use crate::report::Report;
use crate::upkeep::Kept;
use reader::{Reader, State, Step, Tools, pause};

#[cfg(feature = "streams")]
pub use sdk::SdkStreams;
pub use streams::{Batch as StreamBatch, ShardPage, StreamError, StreamShard, Streams};

/// The pause when there was nothing to read. The service allows five reads a second and shard.
const POLL: Duration = Duration::from_millis(1_000);

/// The same for a worker that is to end.
const DRAIN_PAUSE: Duration = Duration::from_millis(100);

/// How often shards and checkpoints are listed: for new shards, and leases that have ended.
const REFRESH: Duration = Duration::from_secs(5);

/// Shards that are read at once.
const SHARDS_AT_ONCE: usize = 16;

/// Pages of shards, and of checkpoints, that are read at most.
const PAGES_MAX: usize = 1_000;

/// Looks in a row that found nothing before a drained stream counts as empty: an answer without
/// records does not prove that there are none.
const CALM_TURNS: u32 = 3;

/// Looks in a row that failed before a worker that is to end gives up.
const DRAIN_FAILURES_MAX: u32 = 8;

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// There is no stream, or no longer.
    #[error("the stream is not there: {0}")]
    NoStream(String),
    /// It will not pass: no permission, a table that is gone.
    #[error("{0}")]
    Refused(String),
    /// A worker that is to end met nothing but failures.
    #[error("the stream could not be read to its end: {0}")]
    Stuck(String),
}

/// What a worker has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Batches that had records.
    pub batches: u64,
    /// Records read.
    pub records: u64,
    /// Takes among them, less those undone.
    pub takes: i64,
    /// Records counted, once per snapshot.
    pub counted: u64,
    /// Records that had been counted before, once per snapshot.
    pub repeated: u64,
    /// Snapshots written.
    pub snapshots: u64,
    /// Audit events archived.
    pub archived: u64,
    /// Records that cannot be read.
    pub poison: u64,
    /// Records whose snapshot the table will never take, once per snapshot.
    pub lost: u64,
    /// Snapshots of namespaces that are gone, which were not written.
    pub skipped: u64,
    /// What upkeep did.
    pub kept: Kept,
    /// How often records were gone before they were read: their use is lost.
    pub usage_gaps: u64,
    /// Stream shards read to their end.
    pub shards_done: u64,
    /// Stream shards that another worker has taken over.
    pub leases_lost: u64,
    /// Stream shards that another worker reads.
    pub elsewhere: u64,
    /// Records forgotten by the stream because they are counted.
    pub trimmed: u64,
    /// Failures, whether they passed or not.
    pub failures: u64,
}

/// What one look at the stream came to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Turn {
    /// The batches that were processed.
    pub reports: Vec<Report>,
    /// What upkeep did.
    pub kept: Kept,
    /// What went wrong, and is tried again.
    pub problems: Vec<String>,
}

/// Reads the stream of a table and counts.
pub struct Worker {
    streams: Arc<dyn Streams>,
    table: Arc<dyn Table>,
    aggregator: Aggregator,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    owner: String,
    readers: BTreeMap<String, Reader>,
    /// True while the last list of shards and checkpoints was complete.
    is_listed: bool,
    /// Shards that wait for their parent.
    waiting: usize,
    /// When shards and checkpoints are listed next, by the monotonic clock.
    refresh_at: Duration,
    refresh_failures: u32,
    totals: Totals,
}

impl Worker {
    /// A worker on a stream and the table that it belongs to, with the clock and the randomness of
    /// the system.
    #[must_use]
    pub fn new(streams: Arc<dyn Streams>, table: Arc<dyn Table>, aggregator: Aggregator) -> Worker {
        let worker = Worker {
            streams,
            table,
            aggregator,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
            owner: String::new(),
            readers: BTreeMap::new(),
            is_listed: false,
            waiting: 0,
            refresh_at: Duration::ZERO,
            refresh_failures: 0,
            totals: Totals::default(),
        };
        worker.named()
    }

    /// Where time comes from.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Worker {
        self.clock = clock;
        self
    }

    /// Where jitter and the worker's own name come from.
    #[must_use]
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> Worker {
        self.entropy = entropy;
        self.named()
    }

    /// Another name than one drawn at random. Whoever keeps one worker alive gives each the same
    /// name: the next goes on at once, and does not wait for the lease of one that died.
    #[must_use]
    pub fn owner(mut self, name: impl Into<String>) -> Worker {
        self.owner = name.into();
        self
    }

    fn named(mut self) -> Worker {
        self.owner = format!("{:016x}", self.entropy.next_u64());
        self
    }

    /// What it has done so far.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Reads until `stop`, and tells of every look. A batch that is under way is finished, and the
    /// leases are given back.
    pub async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        mut tell: impl FnMut(&Turn),
    ) -> Result<(), WorkerError> {
        let mut stop = pin!(stop.fuse());
        while stop.as_mut().now_or_never().is_none() {
            let turn = match self.turn().await {
                Ok(turn) => turn,
                Err(error) => {
                    self.release().await;
                    return Err(error);
                }
            };
            tell(&turn);
            let pause = self.pause(&turn, POLL);
            if !pause.is_zero()
                && let Either::Left(_) = select(stop.as_mut(), self.clock.sleep(pause)).await
            {
                break;
            }
        }
        self.release().await;
        Ok(())
    }

    /// Reads everything that was written before this call, and ends.
    pub async fn drain(&mut self, mut tell: impl FnMut(&Turn)) -> Result<(), WorkerError> {
        let began_s = self.clock.now().0.div_euclid(1_000);
        let (mut calm, mut failures) = (0, 0);
        while calm < CALM_TURNS {
            let turn = match self.turn().await {
                Ok(turn) => turn,
                Err(error) => {
                    self.release().await;
                    return Err(error);
                }
            };
            tell(&turn);
            if !turn.problems.is_empty() {
                failures += 1;
            } else if !turn.reports.is_empty() {
                failures = 0;
            }
            if failures >= DRAIN_FAILURES_MAX {
                self.release().await;
                return Err(WorkerError::Stuck(turn.problems.join("; ")));
            }
            // What was written since is left to the next worker, or this one would never end.
            let is_read = |reader: &Reader| reader.newest_s.is_none_or(|at_s| at_s > began_s);
            let is_calm = self.is_listed && self.waiting == 0 && turn.problems.is_empty();
            calm = if is_calm && self.readers.values().all(is_read) { calm + 1 } else { 0 };
            let pause = self.pause(&turn, DRAIN_PAUSE);
            if !pause.is_zero() {
                self.clock.sleep(pause).await;
            }
        }
        self.release().await;
        Ok(())
    }

    /// The pause before the next look: until the first reader may read again, and the usual one
    /// when those that may have found nothing.
    fn pause(&self, turn: &Turn, usual: Duration) -> Duration {
        let now = self.clock.monotonic();
        let wait = |reader: &Reader| match reader.ready_at.saturating_sub(now) {
            Duration::ZERO if turn.reports.is_empty() => usual,
            wait => wait,
        };
        let idle = if turn.reports.is_empty() { usual } else { Duration::ZERO };
        self.readers.values().map(wait).min().unwrap_or(idle)
    }

    /// Looks once at every shard that this worker reads.
    pub async fn turn(&mut self) -> Result<Turn, WorkerError> {
        let mut turn = Turn::default();
        if self.clock.monotonic() >= self.refresh_at {
            self.refresh(&mut turn).await?;
        }
        let now = self.clock.monotonic();
        let readers = std::mem::take(&mut self.readers);
        let (due, later): (Vec<_>, Vec<_>) =
            readers.into_iter().partition(|(_, reader)| reader.ready_at <= now);
        self.readers.extend(later);
        let tools = self.tools();
        let tools = &tools;
        let steps = due.into_iter().map(|(_, reader)| reader.step(tools));
        let steps: Vec<(Reader, Step)> =
            stream::iter(steps).buffer_unordered(SHARDS_AT_ONCE).collect().await;
        for (reader, step) in steps {
            self.note(reader, step, &mut turn);
        }
        if turn.reports.is_empty() {
            // Buckets that are silent leave no records to wait for.
            let folded = self.aggregator.fold_the_silent(None, &mut turn.kept).await;
            turn.problems.extend(folded.err().map(|error| format!("upkeep: {error}")));
        }
        self.totals.kept.add(turn.kept);
        Ok(turn)
    }

    fn note(&mut self, reader: Reader, step: Step, turn: &mut Turn) {
        let totals = &mut self.totals;
        totals.usage_gaps += step.gaps;
        totals.trimmed += step.trimmed;
        totals.failures += u64::from(step.problem.is_some());
        turn.problems.extend(step.problem);
        if let Some(report) = step.report {
            totals.batches += 1;
            totals.records += report.records;
            totals.takes += report.takes;
            totals.counted += report.counted;
            totals.repeated += report.repeated;
            totals.snapshots += report.snapshots;
            totals.archived += report.archived;
            totals.poison += report.poison;
            totals.lost += report.lost;
            totals.skipped += report.skipped;
            turn.kept.add(report.kept);
            turn.reports.push(report);
        }
        match step.state {
            State::Reading => {
                self.readers.insert(reader.shard().to_owned(), reader);
                return;
            }
            State::Done => totals.shards_done += 1,
            State::Lost => totals.leases_lost += 1,
        }
        // The children of a shard that has ended are read next.
        self.refresh_at = Duration::ZERO;
    }

    fn tools(&self) -> Tools<'_> {
        Tools {
            streams: &*self.streams,
            table: &*self.table,
            aggregator: &self.aggregator,
            clock: &*self.clock,
            entropy: &*self.entropy,
            owner: &self.owner,
        }
    }

    /// Lists shards and checkpoints, and takes the shards that may be read.
    async fn refresh(&mut self, turn: &mut Turn) -> Result<(), WorkerError> {
        let looked = self.look_around().await;
        self.is_listed = looked.is_ok();
        match looked {
            Ok(()) => {
                self.refresh_failures = 0;
                self.refresh_at = self.clock.monotonic().saturating_add(REFRESH);
                Ok(())
            }
            Err(Obstacle::Final(error)) => Err(error),
            Err(Obstacle::Passing(problem)) => {
                self.refresh_failures = self.refresh_failures.saturating_add(1);
                let pause = pause(&self.tools(), self.refresh_failures);
                self.refresh_at = self.clock.monotonic().saturating_add(pause);
                self.totals.failures += 1;
                turn.problems.push(problem);
                Ok(())
            }
        }
    }

    async fn look_around(&mut self) -> Result<(), Obstacle> {
        // In this order: a shard that was trimmed up to its checkpoint between the two would
        // otherwise look like one that has lost records.
        let shards = self.list_shards().await?;
        let mut found = self.list_checkpoints().await?;
        let listed: BTreeSet<&str> = shards.iter().map(|shard| shard.id.as_str()).collect();
        let is_done = |id: &str| found.get(id).is_some_and(|checkpoint| checkpoint.is_done);
        let may_begin = |shard: &streams::StreamShard| {
            let parent = shard.parent.as_deref();
            parent.is_none_or(|parent| !listed.contains(parent) || is_done(parent))
        };
        let open: Vec<_> = shards
            .iter()
            .filter(|shard| !is_done(&shard.id) && !self.readers.contains_key(&shard.id))
            .map(|shard| (shard, may_begin(shard)))
            .collect();
        self.waiting = open.iter().filter(|(_, may_begin)| !may_begin).count();
        let lost: Vec<Checkpoint> =
            found.values().filter(|one| self.is_lost(one, &listed)).cloned().collect();
        self.totals.elsewhere = 0;
        for (shard, _) in open.into_iter().filter(|(_, may_begin)| *may_begin) {
            self.take(shard, found.remove(&shard.id).as_ref()).await?;
        }
        for checkpoint in lost {
            self.give_up(&checkpoint).await?;
        }
        Ok(())
    }

    async fn take(
        &mut self,
        shard: &streams::StreamShard,
        seen: Option<&Checkpoint>,
    ) -> Result<(), Obstacle> {
        let now = self.clock.now();
        if seen.is_some_and(|seen| !seen.is_free_for(&self.owner, now)) {
            self.totals.elsewhere += 1;
            return Ok(());
        }
        let sequence = seen.and_then(|seen| seen.sequence.as_deref());
        let is_trimmed = match (sequence, shard.first.as_deref()) {
            (Some(sequence), Some(first)) => padded(first) > padded(sequence),
            _ => false,
        };
        let claimed = Reader::claim(&self.tools(), &shard.id, seen, is_trimmed).await;
        if let Some(reader) = claimed.map_err(|error| refused("the checkpoint", &error))? {
            self.totals.usage_gaps += u64::from(is_trimmed);
            self.readers.insert(shard.id.clone(), reader);
        }
        Ok(())
    }

    /// True for a shard that nobody has read to its end and that is gone from the stream: what was
    /// left of it is lost.
    fn is_lost(&self, checkpoint: &Checkpoint, listed: &BTreeSet<&str>) -> bool {
        !checkpoint.is_done
            && !listed.contains(checkpoint.shard.as_str())
            && !self.readers.contains_key(&checkpoint.shard)
            && checkpoint.until_ms <= self.clock.now().0
    }

    /// Counts a shard that is gone as a gap, once.
    async fn give_up(&mut self, seen: &Checkpoint) -> Result<(), Obstacle> {
        let next = Checkpoint { is_done: true, gaps: seen.gaps + 1, late_ms: 0, ..seen.clone() };
        // The owner changes, so that two workers do not both count it.
        let next = Checkpoint { owner: Some(self.owner.clone()), ..next };
        match self.table.update(&next.update(Some(seen), self.clock.now())).await {
            Ok(_) => self.totals.usage_gaps += 1,
            Err(TableError::Condition(_)) => {}
            Err(error) => return Err(refused("the checkpoint", &error)),
        }
        Ok(())
    }

    async fn list_shards(&self) -> Result<Vec<streams::StreamShard>, Obstacle> {
        let (mut shards, mut after) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page =
                self.streams.shards(after.as_deref()).await.map_err(|error| match error {
                    StreamError::Missing(what) => Obstacle::Final(WorkerError::NoStream(what)),
                    StreamError::Refused(why) => Obstacle::Final(WorkerError::Refused(why)),
                    passing => Obstacle::Passing(format!("the stream: {passing}")),
                })?;
            shards.extend(page.shards);
            after = page.last;
            if after.is_none() {
                return Ok(shards);
            }
        }
        Err(Obstacle::Passing("the stream has more shards than can be listed".to_owned()))
    }

    async fn list_checkpoints(&self) -> Result<BTreeMap<String, Checkpoint>, Obstacle> {
        let (mut found, mut query) = (BTreeMap::new(), checkpoints());
        for _ in 0..PAGES_MAX {
            let page = self.table.query(&query).await;
            let page = page.map_err(|error| refused("the checkpoints", &error))?;
            let read = page.items.iter().filter_map(Checkpoint::of);
            found.extend(read.map(|checkpoint| (checkpoint.shard.clone(), checkpoint)));
            match page.last {
                Some(last) => query = Query { start: Some(last), ..query },
                None => return Ok(found),
            }
        }
        Err(Obstacle::Passing("the table has more checkpoints than can be read".to_owned()))
    }

    /// Gives all leases back.
    async fn release(&mut self) {
        let readers = std::mem::take(&mut self.readers);
        let tools = self.tools();
        let tools = &tools;
        let released = readers.into_values().map(|reader| reader.release(tools));
        stream::iter(released).buffer_unordered(SHARDS_AT_ONCE).collect::<()>().await;
    }
}

/// What stands in the way.
enum Obstacle {
    Final(WorkerError),
    Passing(String),
}

fn refused(what: &str, error: &TableError) -> Obstacle {
    match is_passing(error) {
        true => Obstacle::Passing(format!("{what}: {error}")),
        false => Obstacle::Final(WorkerError::Refused(format!("{what}: {error}"))),
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("owner", &self.owner).finish_non_exhaustive()
    }
}
