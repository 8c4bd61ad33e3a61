//! The way of one client to the table: every call takes a round trip, and one item takes so many
//! writes a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zae_limiter_dynamodb::bucket::write::Shape;
use zae_limiter_dynamodb::constants::SHARDS_MAX;
use zae_limiter_dynamodb::table::{
    BatchPage, Cancellation, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write,
};
use zae_limiter_store::{BoxFuture, Clock};

use crate::rng::Rng;
use crate::sim::time::VirtualTime;
use crate::table::EvalTable;

/// A round trip, in microseconds.
const TRIP_US: (u64, u64) = (3_000, 7_000);

/// What reached the buckets of the table, in write units: a write is one, a leg of a transaction
/// two. Failed conditions cost what a write costs, and a transaction that is cancelled costs all of
/// its legs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Units that landed or failed their condition.
    pub reached: u64,
    /// Those of them that failed their condition, or were cancelled.
    pub failed: u64,
    /// Calls that were turned away because an item had taken all it takes.
    pub throttled: u64,
    /// Transactions that take from several shards.
    pub gathered: u64,
    /// Reads of all shards of a bucket.
    pub gather_reads: u64,
    /// Shards that were split.
    pub splits: u64,
}

impl Writes {
    /// What has come since an earlier count.
    pub(super) fn since(self, before: Writes) -> Writes {
        Writes {
            reached: self.reached - before.reached,
            failed: self.failed - before.failed,
            throttled: self.throttled - before.throttled,
            gathered: self.gathered - before.gathered,
            gather_reads: self.gather_reads - before.gather_reads,
            splits: self.splits - before.splits,
        }
    }
}

/// What each item still takes: it gains `per_s` units a second and saves up to one second of them.
#[derive(Debug, Default)]
struct Capacity {
    left: f64,
    at: Duration,
}

/// What all roads of a run have in common.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Write units of one item and second; `None` for an item that takes everything.
    per_s: Option<u32>,
    items: Mutex<BTreeMap<String, Capacity>>,
    writes: Mutex<Writes>,
    /// When a shard was split.
    splits: Mutex<Vec<Duration>>,
}

impl Traffic {
    pub(super) fn new(per_s: Option<u32>) -> Traffic {
        let (items, writes, splits) = (Mutex::default(), Mutex::default(), Mutex::default());
        Traffic { per_s, items, writes, splits }
    }

    pub(super) fn splits(&self) -> Vec<Duration> {
        self.splits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn writes(&self) -> Writes {
        *self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spends units of every item of a call, if each of them has one left. Which items have not, in
    /// the order of the call. A leg of a transaction costs two and may lead below nothing by one:
    /// otherwise no transaction would ever be admitted beside writes that wait for one.
    fn admits(&self, pks: &[&str], units: u32, now: Duration) -> Result<(), Vec<bool>> {
        let Some(per_s) = self.per_s.map(f64::from) else { return Ok(()) };
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lacks = |pk: &&str| {
            let item = items.entry((*pk).to_owned()).or_insert(Capacity { left: per_s, at: now });
            item.left = (item.left + per_s * (now - item.at).as_secs_f64()).min(per_s);
            item.at = now;
            item.left < 1.0
        };
        let lacking: Vec<bool> = pks.iter().map(&mut lacks).collect();
        if lacking.contains(&true) {
            return Err(lacking);
        }
        for pk in pks {
            if let Some(item) = items.get_mut(*pk) {
                item.left -= f64::from(units);
            }
        }
        Ok(())
    }

    fn note(&self, count: impl FnOnce(&mut Writes)) {
        count(&mut self.writes.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// One client's handle on the table.
pub(super) struct Road {
    pub(super) table: EvalTable,
    pub(super) time: VirtualTime,
    pub(super) traffic: Arc<Traffic>,
    pub(super) rng: Mutex<Rng>,
    /// Calls made so far, by the task that made them.
    pub(super) trips: Arc<Trips>,
}

/// Calls by task.
#[derive(Debug, Default)]
pub(super) struct Trips(Mutex<BTreeMap<usize, u64>>);

impl Trips {
    /// The calls of a task.
    pub(super) fn of(&self, task: usize) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&task).copied().unwrap_or(0)
    }
}

impl Road {
    /// Half of a trip there, then `call`, then the other half back.
    async fn travel<T>(
        &self,
        call: impl Future<Output = Result<T, TableError>>,
    ) -> Result<T, TableError> {
        let task = self.time.task();
        *self.trips.0.lock().unwrap_or_else(PoisonError::into_inner).entry(task).or_default() += 1;
        let trip_us =
            self.rng.lock().unwrap_or_else(PoisonError::into_inner).between(TRIP_US.0, TRIP_US.1);
        self.time.sleep(Duration::from_micros(trip_us / 2)).await;
        let answer = call.await;
        self.time.sleep(Duration::from_micros(trip_us - trip_us / 2)).await;
        answer
    }

    /// A write of one item, as far as the item takes it.
    async fn write<T>(
        &self,
        pk: &str,
        call: impl Future<Output = Result<T, TableError>>,
    ) -> Result<T, TableError> {
        if !pk.contains("/BUCKET#") {
            return call.await;
        }
        if self.traffic.admits(&[pk], 1, self.time.monotonic()).is_err() {
            self.traffic.note(|writes| writes.throttled += 1);
            return Err(TableError::NotApplied("throttled".to_owned()));
        }
        let answer = call.await;
        self.traffic.note(|writes| {
            writes.reached += 1;
            writes.failed += u64::from(matches!(answer, Err(TableError::Condition(_))));
        });
        answer
    }

    /// A transaction, as far as its items take it.
    async fn write_together(&self, writes: &[Write], token: &str) -> Result<(), TableError> {
        let pks: Vec<&str> = writes.iter().map(pk_of).collect();
        if !pks.iter().all(|pk| pk.contains("/BUCKET#")) {
            return self.table.transact(writes, token).await;
        }
        if let Err(lacking) = self.traffic.admits(&pks, 2, self.time.monotonic()) {
            self.traffic.note(|writes| writes.throttled += 1);
            let reason = |lacks| match lacks {
                true => Cancellation::Throttled,
                false => Cancellation::Innocent,
            };
            return Err(TableError::Canceled(lacking.into_iter().map(reason).collect()));
        }
        let answer = self.table.transact(writes, token).await;
        let is_split = writes.iter().any(is_branch);
        if is_split && answer.is_ok() {
            let mut splits = self.traffic.splits.lock().unwrap_or_else(PoisonError::into_inner);
            splits.push(self.time.monotonic());
        }
        let units = 2 * pks.len() as u64;
        self.traffic.note(|writes| {
            writes.reached += units;
            match answer.is_ok() {
                false => writes.failed += units,
                true if is_split => writes.splits += 1,
                true => writes.gathered += 1,
            }
        });
        answer
    }
}

fn pk_of(write: &Write) -> &str {
    match write {
        Write::Update(update) => &update.key.pk,
        Write::Put(put) => pk_of_item(&put.item),
        Write::Delete(delete) => &delete.key.pk,
        Write::Check(check) => &check.key.pk,
        Write::Bucket(bucket) => &bucket.key.pk,
    }
}

fn pk_of_item(item: &Item) -> &str {
    item.get("PK").and_then(|value| value.as_s().ok()).map_or("", String::as_str)
}

/// Whether it makes a shard.
fn is_branch(write: &Write) -> bool {
    matches!(write, Write::Bucket(bucket) if matches!(bucket.shape, Shape::Branch(_)))
}

impl Table for Road {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        Box::pin(self.travel(async { self.write(&update.key.pk, self.table.update(update)).await }))
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        let pk = pk_of_item(&put.item);
        Box::pin(self.travel(async move { self.write(pk, self.table.put(put)).await }))
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(self.travel(self.write_together(writes, token)))
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        if keys.len() == SHARDS_MAX as usize && keys.iter().all(|key| key.pk.contains("/BUCKET#")) {
            self.traffic.note(|writes| writes.gather_reads += 1);
        }
        Box::pin(self.travel(self.table.batch_get(keys, consistent)))
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        Box::pin(self.travel(self.table.query(query)))
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        Box::pin(self.travel(self.table.delete_batch(keys)))
    }
}
