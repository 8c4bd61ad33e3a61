//! The stream of a table, made of what lands on it, and those who read it: the real aggregator,
//! with its upkeep.
//!
//! Bucket items are spread over lanes, which stand for stream shards: a lane is in order, two lanes
//! are not. A delivery begins where the last complete one has ended. It may be dropped at any poll,
//! be repeated from anywhere before, or have the same records many times; two may be under way at
//! once. Records may be lost before anybody reads them: they count nowhere.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use zae_limiter_aggregator::{Aggregator, Kind, Record, Report, Settings};
use zae_limiter_core::UsageWindow;
use zae_limiter_dynamodb::bucket::write::BucketWrite;
use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_store::{Clock, ManualClock, SeededEntropy};

use super::tap::Tap;
use super::{Scene, Skew};
use crate::oracle::Broken;
use crate::oracle::books::{Asked, Books, Call as StoreCall};
use crate::oracle::protocol::usage::{self, Entry};
use crate::oracle::protocol::{Stream, bucket_of};
use crate::rng::Rng;
use crate::table::{Change, SWEEPER};

/// The client number of the aggregator in the journal.
pub(crate) const AGGREGATOR: u32 = u32::MAX - 2;

const LANES: u64 = 3;

/// Of a hundred moments, those at which a batch is delivered.
const DELIVERS: u64 = 35;

/// Deliveries under way at once.
const WORKERS_MAX: usize = 2;

/// Snapshots outlive every run, whatever the clock of the aggregator says.
const TTL_DAYS: u32 = 100_000;

/// How often a record is in a batch that stands for the writes of a crowd.
const CROWD: usize = 900;

/// Polls of a batch where nothing fails.
const POLLS_MAX: usize = 100_000;

/// A batch on its way: the lane, its first record, and one past its last.
type Delivery = Pin<Box<dyn Future<Output = (usize, usize, usize, Report)>>>;

/// A record, and what it counts.
struct Kept {
    record: Record,
    entry: Option<Entry>,
}

#[derive(Default)]
struct Lane {
    records: Vec<Kept>,
    /// All before it are counted.
    next: usize,
    /// None from here on was ever delivered.
    unread: usize,
}

struct Flow {
    rng: Rng,
    lanes: Vec<Lane>,
    sequence: u64,
    deliveries: Vec<Delivery>,
    aggregators: Vec<Arc<Aggregator>>,
    /// Whether records are lost in this run.
    is_lossy: bool,
    counts: Stream,
}

/// The stream of a run, and its readers.
pub(super) struct Pipe {
    clock: ManualClock,
    flow: Mutex<Flow>,
}

impl Pipe {
    pub(super) fn new(mut rng: Rng, truth: &ManualClock, skew: Skew) -> Pipe {
        let clock = ManualClock::new(truth.now());
        let off_ms = match skew {
            Skew::None => 0,
            Skew::Usual => i64::try_from(rng.between(0, 4_000)).unwrap_or(0) - 2_000,
            Skew::Wild => *rng.pick(&[0, -900_000, 900_000, -86_400_000 * 400]),
        };
        clock.step_to(truth.now().plus_ms(off_ms));
        let flow = Flow {
            is_lossy: rng.chance(30),
            rng,
            lanes: (0..LANES).map(|_| Lane::default()).collect(),
            sequence: 0,
            deliveries: Vec::new(),
            aggregators: Vec::new(),
            counts: Stream::default(),
        };
        Pipe { clock, flow: Mutex::new(flow) }
    }

    pub(super) fn advance(&self, pause: Duration) {
        self.clock.advance(pause);
    }

    pub(super) fn counts(&self) -> Stream {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flow {
    /// A batch of a lane, from its first record that is not known to be counted.
    fn deliver(&mut self) -> Option<Delivery> {
        let lane = self.rng.index(self.lanes.len());
        let aggregator = Arc::clone(&self.aggregators[self.rng.index(self.aggregators.len())]);
        let Flow { rng, lanes, counts, is_lossy, .. } = self;
        let Lane { records, next, unread } = &mut lanes[lane];
        if *is_lossy && rng.chance(6) {
            let lost = rng.index(6).min(records.len() - *unread);
            records.drain(*unread..*unread + lost);
            counts.lost += lost as u64;
        }
        // A checkpoint that was lost, or never written.
        let back = if rng.chance(25) { rng.index(20) } else { 0 };
        let from = next.saturating_sub(back);
        let until = records.len().min(from + 1 + rng.index(30));
        if from >= until {
            return None;
        }
        let mut batch: Vec<Record> =
            records[from..until].iter().map(|kept| kept.record.clone()).collect();
        if rng.chance(4) {
            // As many writes as a crowd makes, all of them the same.
            let again = batch[rng.index(batch.len())].clone();
            let place = batch.iter().position(|record| *record == again).unwrap_or(0);
            batch.splice(place..place, std::iter::repeat_n(again, CROWD));
        } else if rng.chance(20) {
            let place = rng.index(batch.len());
            let again = batch[place].clone();
            batch.insert(place, again);
        }
        *unread = until.max(*unread);
        counts.batches += 1;
        Some(Box::pin(async move {
            let report = aggregator.process(&batch).await;
            (lane, from, until, report)
        }))
    }

    /// A delivery came to its end.
    fn delivered(&mut self, (lane, from, until, report): (usize, usize, usize, Report)) {
        let Lane { records, next, .. } = &mut self.lanes[lane];
        let failed = report.failures.values().next();
        let complete = failed.and_then(|sequence| {
            (from..until).find(|index| records[*index].record.sequence == *sequence)
        });
        *next = complete.unwrap_or(until).max(*next);
        let counts = &mut self.counts;
        counts.cut += u64::from(failed.is_some());
        counts.repeated += report.repeated;
        counts.refills += report.kept.refills;
        counts.splits += report.kept.splits;
        counts.levelled += report.kept.levelled;
        counts.folds += report.kept.folds;
    }
}

impl Scene {
    /// The aggregators of a run, each a process of its own.
    pub(super) fn open_stream(&self, books: &Books) {
        let Some(pipe) = &self.pipe else { return };
        let mut flow = pipe.lock();
        if !flow.aggregators.is_empty() {
            return;
        }
        for _ in 0..WORKERS_MAX {
            let clock: Arc<dyn Clock> = Arc::new(pipe.clock.clone());
            let table = self
                .table
                .client(AGGREGATOR)
                .with_faults(self.faults.clone())
                .with_gate(Arc::<crate::table::SeededGate>::clone(&self.gate))
                .with_timeout(Arc::clone(&clock))
                .with_dates(Arc::clone(&clock), Arc::new(self.truth.clone()));
            let tap = Tap {
                table,
                beyond: self.table.client(AGGREGATOR),
                echoes: self.echoes.clone(),
                books: books.clone(),
                outbox: self.outbox.clone(),
                clock: pipe.clock.clone(),
                truth: self.truth.clone(),
                firsts: Mutex::default(),
            };
            let settings = Settings::new("sim").windows(UsageWindow::ALL);
            let seed = flow.rng.next();
            let aggregator = Aggregator::new(Arc::new(tap), settings.snapshot_ttl_days(TTL_DAYS))
                .clock(clock)
                .entropy(Arc::new(SeededEntropy::new(seed)))
                .attempts_max(3);
            flow.aggregators.push(Arc::new(aggregator));
        }
    }

    /// A write has landed: the stream has one more record.
    pub(super) fn stream(
        &self,
        client: u32,
        (write, change): (Option<&BucketWrite>, &Change),
        asked: Option<&StoreCall>,
    ) -> Result<(), Broken> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        if bucket_of(&change.key).is_none() || change.before == change.after {
            return Ok(());
        }
        let truth = self.truth.now().0;
        let is_credit = write.is_some_and(|write| write.writer() == Writer::Credit);
        // A change of limits reaches buckets by takes of nothing, and undoes those that come too
        // late.
        let is_refund = |call: &StoreCall| matches!(call.asked, Asked::Adjust { .. });
        let take = asked.filter(|call| is_credit && !is_refund(call));
        let began =
            |call: &StoreCall| self.started_ms + i64::try_from(call.began.as_millis()).unwrap_or(0);
        let entry = usage::entry(change, truth, take.map(began))?;
        let mut flow = pipe.lock();
        flow.sequence += 1;
        let mut hasher = DefaultHasher::new();
        change.key.pk.hash(&mut hasher);
        let lane = usize::try_from(hasher.finish() % LANES).unwrap_or(0);
        let record = Record {
            stream_shard: format!("lane-{lane}"),
            sequence: format!("{:021}", flow.sequence),
            kind: match (&change.before, &change.after) {
                (None, _) => Kind::Insert,
                (_, None) => Kind::Remove,
                _ => Kind::Modify,
            },
            at_s: truth.div_euclid(1_000),
            key: (change.key.pk.clone(), change.key.sk.to_string()),
            old: change.before.clone(),
            new: change.after.clone(),
            is_expired: client == SWEEPER,
        };
        flow.lanes[lane].records.push(Kept { record, entry });
        Ok(())
    }

    /// Deliveries go on, and now and then one begins.
    pub(super) fn tick(&self) {
        let Some(pipe) = &self.pipe else { return };
        let mut flow = pipe.lock();
        if flow.aggregators.is_empty() {
            return;
        }
        if flow.rng.chance(DELIVERS) && flow.deliveries.len() < WORKERS_MAX {
            let delivery = flow.deliver();
            flow.deliveries.extend(delivery);
        }
        let mut context = Context::from_waker(Waker::noop());
        for mut delivery in std::mem::take(&mut flow.deliveries) {
            // Some processes stop in the middle.
            if flow.rng.chance(3) {
                flow.counts.cut += 1;
                continue;
            }
            let polls = flow.rng.between(1, 40);
            let done = (0..polls).find_map(|_| match delivery.as_mut().poll(&mut context) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            });
            match done {
                Some(done) => flow.delivered(done),
                None => flow.deliveries.push(delivery),
            }
        }
    }

    /// Everything has come to rest: what is left of the stream is read, and the history must have
    /// everything that was counted, once.
    pub(super) fn drain_stream(&self, books: &Books) -> Result<(), Broken> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        loop {
            self.look(books);
            let mut flow = pipe.lock();
            flow.deliveries.clear();
            let open = flow.lanes.iter().position(|lane| lane.next < lane.records.len());
            let Some(lane) = open.filter(|_| !flow.aggregators.is_empty()) else { break };
            let Lane { records, next, .. } = &flow.lanes[lane];
            let (from, until) = (*next, records.len().min(next + 100));
            let batch: Vec<Record> =
                records[from..until].iter().map(|kept| kept.record.clone()).collect();
            let aggregator = Arc::clone(&flow.aggregators[0]);
            drop(flow);
            let mut processed = Box::pin(aggregator.process(&batch));
            let mut context = Context::from_waker(Waker::noop());
            let report = (0..POLLS_MAX).find_map(|_| match processed.as_mut().poll(&mut context) {
                Poll::Ready(report) => Some(report),
                Poll::Pending => {
                    // Who meets a snapshot of others waits a moment.
                    pipe.advance(Duration::from_millis(1));
                    None
                }
            });
            let Some(report) = report.filter(Report::is_complete) else {
                return Err("a batch without faults is not complete".to_owned());
            };
            drop(processed);
            pipe.lock().delivered((lane, from, until, report));
        }
        let mut flow = pipe.lock();
        let Flow { lanes, counts, .. } = &mut *flow;
        let kept = lanes.iter().flat_map(|lane| &lane.records);
        let entries = kept.filter_map(|kept| kept.entry.as_ref());
        counts.snapshots = usage::check(entries, &self.table.items())?;
        Ok(())
    }
}
