//! The way of one client to the table: every call takes a round trip, and one item takes so many
//! writes a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zae_limiter_dynamodb::table::{
    BatchPage, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write,
};
use zae_limiter_store::{BoxFuture, Clock};

use super::time::VirtualTime;
use crate::rng::Rng;
use crate::table::EvalTable;

/// A round trip, in microseconds.
const TRIP_US: (u64, u64) = (3_000, 7_000);

/// What reached the buckets of the table. Failed conditions cost what a write costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Writes that landed or failed their condition.
    pub reached: u64,
    /// Those of them that failed their condition.
    pub failed: u64,
    /// Writes that were turned away because the item had taken all it takes.
    pub throttled: u64,
}

impl Writes {
    /// What has come since an earlier count.
    pub(super) fn since(self, before: Writes) -> Writes {
        Writes {
            reached: self.reached - before.reached,
            failed: self.failed - before.failed,
            throttled: self.throttled - before.throttled,
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
}

impl Traffic {
    pub(super) fn new(per_s: Option<u32>) -> Traffic {
        Traffic { per_s, items: Mutex::default(), writes: Mutex::default() }
    }

    pub(super) fn writes(&self) -> Writes {
        *self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the item has a unit left for this write.
    fn admits(&self, pk: &str, now: Duration) -> bool {
        let Some(per_s) = self.per_s.map(f64::from) else { return true };
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let item = items.entry(pk.to_owned()).or_insert(Capacity { left: per_s, at: now });
        item.left = (item.left + per_s * (now - item.at).as_secs_f64()).min(per_s);
        item.at = now;
        let admits = item.left >= 1.0;
        if admits {
            item.left -= 1.0;
        }
        admits
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
    /// Calls made so far: the trips of a client that makes one at a time.
    pub(super) trips: Arc<AtomicU64>,
}

impl Road {
    /// Half of a trip there, then `call`, then the other half back.
    async fn travel<T>(
        &self,
        call: impl Future<Output = Result<T, TableError>>,
    ) -> Result<T, TableError> {
        self.trips.fetch_add(1, Ordering::Relaxed);
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
        if !self.traffic.admits(pk, self.time.monotonic()) {
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
}

impl Table for Road {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        Box::pin(self.travel(async { self.write(&update.key.pk, self.table.update(update)).await }))
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        let pk = put.item.get("PK").and_then(|value| value.as_s().ok()).map_or("", String::as_str);
        Box::pin(self.travel(async move { self.write(pk, self.table.put(put)).await }))
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(self.travel(self.table.transact(writes, token)))
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        Box::pin(self.travel(self.table.batch_get(keys, consistent)))
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        Box::pin(self.travel(self.table.query(query)))
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        Box::pin(self.travel(self.table.delete_batch(keys)))
    }
}
