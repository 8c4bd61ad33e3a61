//! A stream in memory with several shards that split, and workers on it that die.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_aggregator::{
    Aggregator, Item, Kind, Poison, Record, Settings, ShardPage, StreamBatch, StreamError,
    StreamShard, Streams, Table, Worker,
};
use zae_limiter_core::{TimeMs, UsageWindow};
use zae_limiter_dynamodb::table::{
    BatchPage, Key, Put, Query, QueryPage, TableError, Update, Write, number,
};
use zae_limiter_dynamodb::{DynamoOptions, stream::Checkpoint};
use zae_limiter_store::{BoxFuture, Clock, Entropy, ManualClock, SeededEntropy};
use zae_limiter_testkit::table::{EvalOptions, EvalTable};

/// 2026-01-31T23:00:00Z.
pub(super) const START_S: i64 = 1_769_900_400;

/// A clock on which sleeping passes the time at once.
#[derive(Clone, Debug)]
pub(super) struct Skipping(pub(super) ManualClock);

impl Clock for Skipping {
    fn now(&self) -> TimeMs {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let clock = self.0.clone();
        let mut slept = false;
        // Others get their turn first.
        Box::pin(std::future::poll_fn(move |context| {
            if std::mem::replace(&mut slept, true) {
                clock.advance(duration);
                return std::task::Poll::Ready(());
            }
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        }))
    }
}

/// One shard of the stream.
#[derive(Clone, Debug, Default)]
struct FakeShard {
    parent: Option<String>,
    records: Vec<Record>,
    is_closed: bool,
    /// Records that are gone.
    trimmed: usize,
    is_gone: bool,
}

#[derive(Debug)]
pub(super) struct State {
    shards: BTreeMap<String, FakeShard>,
    /// The counters of the buckets, by key.
    buckets: BTreeMap<String, i64>,
    sequence: u64,
    /// Records of one answer.
    pub(super) batch: usize,
    /// Records that an answer repeats.
    pub(super) repeats: usize,
    /// Answers that fail before the next that does not.
    pub(super) failures: Vec<StreamError>,
    /// Iterators that expire with the next answer.
    pub(super) expires: bool,
    /// Answers without records before those that have them.
    pub(super) silences: usize,
    /// Whether the list of shards says which record is the first.
    pub(super) tells_first: bool,
    /// The shards in the order of their first read.
    pub(super) first_read: Vec<String>,
    pub(super) trims: Vec<(String, String)>,
    /// How often shards were listed.
    pub(super) lists: u32,
    /// Records that cannot be read, and come with the next answer.
    pub(super) poison: Vec<Poison>,
}

/// The stream.
#[derive(Clone, Debug)]
pub(super) struct FakeStreams(Arc<Mutex<State>>);

impl FakeStreams {
    pub(super) fn new(shards: &[&str]) -> FakeStreams {
        let shards = shards.iter().map(|id| ((*id).to_owned(), FakeShard::default())).collect();
        FakeStreams(Arc::new(Mutex::new(State {
            shards,
            buckets: BTreeMap::new(),
            sequence: 100,
            batch: 7,
            repeats: 0,
            failures: Vec::new(),
            expires: false,
            silences: 0,
            tells_first: false,
            first_read: Vec::new(),
            trims: Vec::new(),
            lists: 0,
            poison: Vec::new(),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A take from a bucket, whose records are in this shard.
    pub(super) fn take(&self, shard: &str, namespace: &str, entity: &str, milli: i64, at_s: i64) {
        let mut state = self.lock();
        let pk = format!("{namespace}/BUCKET#{entity}#gpt-4#0");
        let before = state.buckets.insert(pk.clone(), 0).unwrap_or(0);
        state.buckets.insert(pk.clone(), before + milli);
        let image = |used: i64| -> Item {
            Item::from([
                ("PK".to_owned(), AttributeValue::S(pk.clone())),
                ("SK".to_owned(), AttributeValue::S("#STATE".to_owned())),
                ("b_rpm_tc".to_owned(), number(used)),
            ])
        };
        let (old, new) = (image(before), image(before + milli));
        let key = (pk.clone(), "#STATE".to_owned());
        state.push(shard, key, (Some(old), Some(new)), at_s);
    }

    /// A write that counts nothing.
    pub(super) fn other(&self, shard: &str, at_s: i64) {
        let key = ("_/SYSTEM#".to_owned(), "#CHECKPOINT#x".to_owned());
        self.lock().push(shard, key, (Some(Item::new()), Some(Item::new())), at_s);
    }

    /// Ends a shard; what follows goes to its children.
    pub(super) fn split(&self, shard: &str, children: &[&str]) {
        let mut state = self.lock();
        state.shards.get_mut(shard).unwrap().is_closed = true;
        for child in children {
            let parent = Some(shard.to_owned());
            state.shards.insert((*child).to_owned(), FakeShard { parent, ..Default::default() });
        }
    }

    /// Forgets the first records of a shard, as the service does after a day.
    pub(super) fn forget(&self, shard: &str, records: usize) {
        self.lock().shards.get_mut(shard).unwrap().trimmed = records;
    }

    /// The number of a record.
    pub(super) fn sequence(&self, shard: &str, index: usize) -> String {
        self.lock().shards[shard].records[index].sequence.clone()
    }

    /// Forgets a shard.
    pub(super) fn drop_shard(&self, shard: &str) {
        self.lock().shards.get_mut(shard).unwrap().is_gone = true;
    }
}

impl State {
    pub(super) fn push(
        &mut self,
        shard: &str,
        key: (String, String),
        (old, new): (Option<Item>, Option<Item>),
        at_s: i64,
    ) {
        self.sequence += 1;
        let record = Record {
            stream_shard: shard.to_owned(),
            sequence: format!("{:021}", self.sequence),
            kind: Kind::Modify,
            at_s,
            key,
            old,
            new,
            is_expired: false,
        };
        let found = self.shards.get_mut(shard).unwrap();
        assert!(!found.is_closed, "{shard} has ended");
        found.records.push(record);
    }

    fn fail(&mut self) -> Result<(), StreamError> {
        self.failures.pop().map_or(Ok(()), Err)
    }
}

impl Streams for FakeStreams {
    fn shards<'a>(
        &'a self,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<ShardPage, StreamError>> {
        let answer = || {
            let mut state = self.lock();
            state.fail()?;
            state.lists += 1;
            let there = state.shards.iter().filter(|(_, shard)| !shard.is_gone);
            let rest: Vec<_> =
                there.filter(|(id, _)| after.is_none_or(|after| id.as_str() > after)).collect();
            // Pages of two.
            let shards: Vec<StreamShard> = rest
                .iter()
                .take(2)
                .map(|(id, shard)| StreamShard {
                    id: (*id).clone(),
                    parent: shard.parent.clone(),
                    first: (shard.records.get(shard.trimmed))
                        .filter(|_| state.tells_first)
                        .map(|record| record.sequence.clone()),
                })
                .collect();
            let last = (rest.len() > 2).then(|| shards[1].id.clone());
            Ok(ShardPage { shards, last })
        };
        Box::pin(std::future::ready(answer()))
    }

    fn iterator<'a>(
        &'a self,
        shard: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<String, StreamError>> {
        let answer = || {
            let mut state = self.lock();
            state.fail()?;
            let found = state.shards.get(shard).filter(|shard| !shard.is_gone);
            let found = found.ok_or_else(|| StreamError::Missing(shard.to_owned()))?;
            let Some(after) = after else { return Ok(found.trimmed.to_string()) };
            let place = found.records.iter().position(|record| record.sequence == after);
            let next = place.expect("a number of this shard") + 1;
            if next - 1 < found.trimmed {
                return Err(StreamError::Trimmed);
            }
            Ok(next.to_string())
        };
        Box::pin(std::future::ready(answer()))
    }

    fn read<'a>(
        &'a self,
        shard: &'a str,
        iterator: &'a str,
    ) -> BoxFuture<'a, Result<StreamBatch, StreamError>> {
        let answer = || {
            let mut state = self.lock();
            state.fail()?;
            if std::mem::take(&mut state.expires) {
                return Err(StreamError::Expired);
            }
            if !state.first_read.iter().any(|id| id == shard) {
                state.first_read.push(shard.to_owned());
            }
            let is_silent = state.silences > 0;
            state.silences = state.silences.saturating_sub(1);
            let poison = std::mem::take(&mut state.poison);
            let (batch, repeats) = (if is_silent { 0 } else { state.batch }, state.repeats);
            let found = state.shards.get(shard).filter(|shard| !shard.is_gone);
            let found = found.ok_or_else(|| StreamError::Missing(shard.to_owned()))?;
            let begin: usize = iterator.parse().unwrap();
            if begin < found.trimmed {
                return Err(StreamError::Trimmed);
            }
            let end = (begin + batch).min(found.records.len());
            // What is new comes with what was there before; alone that does not come.
            let repeats = if begin < end { repeats } else { 0 };
            let from = begin.saturating_sub(repeats).max(found.trimmed);
            let records = found.records[from..end].to_vec();
            let is_end = found.is_closed && end == found.records.len();
            let next = (!is_end).then(|| end.to_string());
            Ok(StreamBatch { records, poison, next })
        };
        Box::pin(std::future::ready(answer()))
    }

    fn trim<'a>(
        &'a self,
        shard: &'a str,
        below: &'a str,
    ) -> BoxFuture<'a, Result<u64, StreamError>> {
        let mut state = self.lock();
        state.trims.push((shard.to_owned(), below.to_owned()));
        let found = state.shards.get_mut(shard).unwrap();
        let keeps = found.records.iter().position(|record| record.sequence == below).unwrap();
        found.trimmed = found.trimmed.max(keeps);
        Box::pin(std::future::ready(Ok(0)))
    }
}

/// A table whose writes stop being answered after some: the worker that has it dies.
pub(super) struct Dying {
    table: EvalTable,
    left: AtomicI64,
    /// Whether the write that is not answered lands.
    lands: bool,
    /// The partition whose writes are throttled.
    throttled: Option<String>,
}

impl Dying {
    pub(super) fn after(table: &EvalTable, calls: i64, lands: bool) -> Dying {
        Dying { table: table.clone(), left: AtomicI64::new(calls), lands, throttled: None }
    }

    /// A table that lives and throttles one partition.
    pub(super) fn throttling(table: &EvalTable, partition: String) -> Dying {
        Dying { throttled: Some(partition), ..Dying::after(table, i64::MAX, false) }
    }

    fn is_dead(&self) -> bool {
        self.left.fetch_sub(1, Ordering::Relaxed) <= 0
    }
}

fn silence<T>() -> Result<T, TableError> {
    Err(TableError::Unknown("the process has died".to_owned()))
}

impl Table for Dying {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        Box::pin(async move {
            if self.throttled.as_ref() == Some(&update.key.pk) {
                return Err(TableError::NotApplied("throttled".to_owned()));
            }
            let is_last = self.left.load(Ordering::Relaxed) == 0;
            if self.is_dead() {
                if is_last && self.lands {
                    let _ = self.table.update(update).await;
                }
                return silence();
            }
            self.table.update(update).await
        })
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(async move { if self.is_dead() { silence() } else { self.table.put(put).await } })
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(async move {
            if self.is_dead() { silence() } else { self.table.transact(writes, token).await }
        })
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        self.table.batch_get(keys, consistent)
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        self.table.query(query)
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        self.table.delete_batch(keys)
    }
}

/// A table, a stream and a clock.
pub(super) struct World {
    pub(super) table: EvalTable,
    pub(super) streams: FakeStreams,
    pub(super) clock: Skipping,
    pub(super) namespace: String,
    seed: std::cell::Cell<u64>,
}

impl World {
    pub(super) async fn new(shards: &[&str]) -> World {
        World::on(EvalOptions::new(), shards).await
    }

    pub(super) async fn on(options: EvalOptions, shards: &[&str]) -> World {
        let table = EvalTable::with_options(options);
        let namespace = table.initialise(&DynamoOptions::new()).await.unwrap();
        World {
            table,
            streams: FakeStreams::new(shards),
            clock: Skipping(ManualClock::new(TimeMs(START_S * 1_000))),
            namespace,
            seed: std::cell::Cell::new(1),
        }
    }

    /// Another worker on the same stream.
    pub(super) fn worker(&self) -> Worker {
        self.worker_on(Arc::new(self.table.clone()))
    }

    pub(super) fn worker_on(&self, table: Arc<dyn Table>) -> Worker {
        self.seed.set(self.seed.get() + 1);
        let entropy: Arc<dyn Entropy> = Arc::new(SeededEntropy::new(self.seed.get()));
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let settings = Settings::new("test").windows([UsageWindow::Hourly, UsageWindow::Daily]);
        let aggregator = Aggregator::new(Arc::clone(&table), settings)
            .clock(Arc::clone(&clock))
            .entropy(Arc::clone(&entropy))
            .attempts_max(2);
        Worker::new(Arc::new(self.streams.clone()), table, aggregator).clock(clock).entropy(entropy)
    }

    pub(super) fn take(&self, shard: &str, entity: &str, milli: i64) {
        self.take_at(shard, entity, milli, START_S);
    }

    pub(super) fn take_at(&self, shard: &str, entity: &str, milli: i64, at_s: i64) {
        self.streams.take(shard, &self.namespace, entity, milli, at_s);
    }

    /// What the snapshots of an entity say, in millitokens, by the key of the window.
    pub(super) fn used(&self, entity: &str) -> BTreeMap<String, i64> {
        let partition = format!("{}/ENTITY#{entity}", self.namespace);
        let mut used = BTreeMap::new();
        for item in self.table.items() {
            let text = |name: &str| item.get(name).and_then(|it| it.as_s().ok()).cloned();
            let (Some(pk), Some(sk)) = (text("PK"), text("SK")) else { continue };
            if let (true, Some(window)) = (pk == partition, sk.strip_prefix("#USAGE#gpt-4#")) {
                let sum = item["rpm#m"].as_n().unwrap().parse().unwrap();
                used.insert(window.to_owned(), sum);
            }
        }
        used
    }

    /// What was used in the first hour.
    pub(super) fn first_hour(&self, entity: &str) -> i64 {
        self.used(entity).get("2026-01-31T23:00:00Z").copied().unwrap_or(0)
    }

    pub(super) fn checkpoint(&self, shard: &str) -> Option<Checkpoint> {
        let found = self.table.items().iter().filter_map(Checkpoint::of).collect::<Vec<_>>();
        found.into_iter().find(|checkpoint| checkpoint.shard == shard)
    }

    pub(super) fn pass(&self, seconds: u64) {
        self.clock.0.advance(Duration::from_secs(seconds));
    }
}
