//! One client's way to the table: writes down who sends what, by which clock, on behalf of which
//! call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zae_limiter_dynamodb::bucket::write::{BucketWrite, Purpose};
use zae_limiter_dynamodb::table::clock::TableTime;
use zae_limiter_dynamodb::table::{
    BatchPage, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write,
};
use zae_limiter_store::{BoxFuture, Clock, ManualClock};

use super::echo::Echoes;
use crate::oracle::books::{Books, CallId};
use crate::table::EvalTable;

/// One request as it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The call of the store it is part of.
    pub(crate) call: Option<CallId>,
    /// What time the sender says it is, if the call says.
    pub(crate) now: Option<i64>,
    /// What time it really was.
    pub(crate) at: i64,
    /// Delivered once more, by the network.
    pub(crate) is_copy: bool,
}

/// Everything sent in a run; the mark of a request is its place here, counted from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Mutex<Vec<Sent>>>);

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Vec<Sent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a request down. Returns its mark.
    fn push(&self, sent: Sent) -> u64 {
        let mut all = self.lock();
        all.push(sent);
        all.len() as u64
    }

    /// The request with this mark.
    pub(crate) fn get(&self, tag: u64) -> Option<Sent> {
        let index = usize::try_from(tag.checked_sub(1)?).ok()?;
        self.lock().get(index).copied()
    }
}

/// A client's handle on the table.
pub(crate) struct Tap {
    /// The client's table, with faults on the way.
    pub(crate) table: EvalTable,
    /// The same client's table without faults, for copies.
    pub(crate) beyond: EvalTable,
    pub(crate) echoes: Echoes,
    pub(crate) books: Books,
    pub(crate) outbox: Outbox,
    pub(crate) clock: ManualClock,
    /// What time it really is.
    pub(crate) truth: ManualClock,
    /// When each transaction was sent first, by its token: it is sent again as it is.
    pub(crate) firsts: Mutex<BTreeMap<String, Sent>>,
}

impl Tap {
    /// Writes the request down, and hands out the handle that marks it. Copies of earlier ones may
    /// arrive before it.
    fn send(&self) -> (EvalTable, Sent) {
        self.echoes.arrive();
        let call = {
            let state = self.books.lock();
            state.call.map(|id| (id, state.calls[id].now))
        };
        let now = call.and_then(|(_, now)| now).map(|(now, began)| {
            let passed = self.clock.monotonic().saturating_sub(began);
            let now = now.plus_ms(i64::try_from(passed.as_millis()).unwrap_or(0));
            self.table.time().span().map_or(now, |span| span.correct(now)).0
        });
        let sent =
            Sent { call: call.map(|(id, _)| id), now, at: self.truth.now().0, is_copy: false };
        (self.table.clone().with_tag(self.outbox.push(sent)), sent)
    }

    /// Sends a write of a bucket, which the network may deliver twice.
    fn send_write(&self, write: &BucketWrite) -> EvalTable {
        let (table, sent) = self.send();
        if self.echoes.wants() && write.purpose != Purpose::GiveBack {
            let tag = self.outbox.push(Sent { is_copy: true, ..sent });
            let beyond = self.beyond.clone().with_tag(tag);
            self.echoes.add(beyond, write.clone(), self.truth.now().0);
        }
        table
    }
}

impl Table for Tap {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        Box::pin(async move { self.send().0.update(update).await })
    }

    fn write_bucket(&self, write: BucketWrite) -> BoxFuture<'_, Result<Item, TableError>> {
        Box::pin(async move { self.send_write(&write).write_bucket(write).await })
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(async move { self.send().0.put(put).await })
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(async move {
            let (table, sent) = self.send();
            let first = {
                let mut firsts = self.firsts.lock().unwrap_or_else(PoisonError::into_inner);
                *firsts.entry(token.to_owned()).or_insert(sent)
            };
            let table = table.with_tag(self.outbox.push(Sent { call: sent.call, ..first }));
            table.transact(writes, token).await
        })
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        Box::pin(async move { self.send().0.batch_get(keys, consistent).await })
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        Box::pin(async move { self.send().0.query(query).await })
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        Box::pin(async move { self.send().0.delete_batch(keys).await })
    }

    fn time(&self) -> TableTime {
        self.table.time()
    }
}
