//! A DynamoDB table in memory that evaluates what the protocol sends: for tests that need faults,
//! an order of events, or every byte that was written.
//!
//! [`EvalTable`] answers each call of [`Table`] as DynamoDB does, down to which image comes back,
//! which leg stood in the way and what it cost. `tests/it/evaluator.rs` holds it against a real
//! engine. Between the caller and the table stand a plan of [`Faults`] and a [`Gate`]; each client
//! has its own handle, all of them share the items.
//!
//! ```
//! use std::sync::Arc;
//! use zae_limiter_dynamodb::table::{Action, Key, Table, TableError, Update};
//! use zae_limiter_testkit::table::{EvalTable, Fate, Faults};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let table = EvalTable::new();
//! let client = table.client(1).with_faults(Faults::scripted([Fate::LostAfter]));
//! let key = Key { pk: "a".into(), sk: "b".into() };
//! let actions = vec![Action::Add("n".into(), 1)];
//! let update = Update { key: key.clone(), actions, conditions: vec![] };
//! assert!(matches!(client.update(&update).await, Err(TableError::Unknown(_))));
//! assert!(table.get(&key).is_some(), "it landed all the same");
//! # }
//! ```
//!
//! The key decision: calls are carried out one by one, in the order their polls arrive. The caller
//! that polls decides what is concurrent with what, and one seed replays a run.

mod call;
mod expression;
mod faults;
mod gate;
mod index;
mod number;
mod state;
mod value;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zae_limiter_dynamodb::bucket::write::BucketWrite;
use zae_limiter_dynamodb::constants::ATTEMPT_TIMEOUT;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::clock::{DateWatch, TableTime};
use zae_limiter_dynamodb::table::{
    BatchPage, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write,
};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{BoxFuture, Clock, StoreError};

pub use call::{Asked, Call, Change, Operation, Request, Told, Units};
pub use faults::{Fate, Faults, Odds};
pub use gate::{Gate, Point, SeededGate};
pub use index::Gsi2;
pub use state::{Counters, SWEEPER};
pub use value::item_size;

use state::{Answer, Caller, State};

/// What kind of table it is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EvalOptions {
    /// What GSI2 keeps.
    pub gsi2: Gsi2,
    /// A page of a query ends after this many items, whatever its limit: what a megabyte is to the
    /// service.
    pub page_max: usize,
    /// Indexes and inconsistent reads are always behind by this many changes. More can come from
    /// [`Fate::Lag`].
    pub lag_writes: u32,
    /// Indexes lack the changes of the last so many milliseconds, by the time the table is told.
    pub index_lag_ms: i64,
    /// Whether every call is written down.
    pub journal: bool,
}

impl EvalOptions {
    /// A table of ours: never behind, pages of a thousand, nothing written down.
    #[must_use]
    pub fn new() -> EvalOptions {
        EvalOptions {
            gsi2: Gsi2::KeysOnly,
            page_max: 1_000,
            lag_writes: 0,
            index_lag_ms: 0,
            journal: false,
        }
    }

    /// What GSI2 keeps.
    #[must_use]
    pub fn gsi2(mut self, gsi2: Gsi2) -> EvalOptions {
        self.gsi2 = gsi2;
        self
    }

    /// The longest page of a query; at least one item.
    #[must_use]
    pub fn page_max(mut self, items: usize) -> EvalOptions {
        self.page_max = items.max(1);
        self
    }

    /// How far indexes and inconsistent reads are behind.
    #[must_use]
    pub fn lag_writes(mut self, changes: u32) -> EvalOptions {
        self.lag_writes = changes;
        self
    }

    /// How far indexes are behind in time.
    #[must_use]
    pub fn index_lag_ms(mut self, ms: i64) -> EvalOptions {
        self.index_lag_ms = ms;
        self
    }

    /// Writes every call down.
    #[must_use]
    pub fn journal(mut self) -> EvalOptions {
        self.journal = true;
        self
    }
}

impl Default for EvalOptions {
    fn default() -> Self {
        EvalOptions::new()
    }
}

/// One client's handle on a table in memory.
#[derive(Clone)]
pub struct EvalTable {
    state: Arc<Mutex<State>>,
    client: u32,
    tag: u64,
    faults: Option<Faults>,
    gate: Option<Arc<dyn Gate>>,
    dates: Option<Dates>,
    /// The clock by which the client stops waiting for a write.
    waits_by: Option<Arc<dyn Clock>>,
}

/// The dates of answers: the watch of the client that reads them, and the clock they come from.
#[derive(Clone)]
struct Dates {
    watch: DateWatch,
    /// The table's own clock.
    truth: Arc<dyn Clock>,
}

impl EvalTable {
    /// An empty table, as the handle of client 0, which has no faults.
    #[must_use]
    pub fn new() -> EvalTable {
        EvalTable::with_options(EvalOptions::new())
    }

    /// An empty table of some kind.
    #[must_use]
    pub fn with_options(options: EvalOptions) -> EvalTable {
        EvalTable {
            state: Arc::new(Mutex::new(State::new(options))),
            client: 0,
            tag: 0,
            faults: None,
            gate: None,
            dates: None,
            waits_by: None,
        }
    }

    /// Another client's handle on the same table: no faults, no gate.
    #[must_use]
    pub fn client(&self, client: u32) -> EvalTable {
        EvalTable {
            state: Arc::clone(&self.state),
            client,
            tag: 0,
            faults: None,
            gate: None,
            dates: None,
            waits_by: None,
        }
    }

    /// The handle with a plan of faults.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> EvalTable {
        self.faults = Some(faults);
        self
    }

    /// The handle with a mark that the journal repeats for every call made through it.
    #[must_use]
    pub fn with_tag(mut self, tag: u64) -> EvalTable {
        self.tag = tag;
        self
    }

    /// The handle with a gate.
    #[must_use]
    pub fn with_gate(mut self, gate: Arc<dyn Gate>) -> EvalTable {
        self.gate = Some(gate);
        self
    }

    /// The handle of a client with a clock of its own, to whom every answer tells the date: what
    /// the table's clock shows when the request is carried out, cut to whole seconds.
    #[must_use]
    pub fn with_dates(mut self, client: Arc<dyn Clock>, table: Arc<dyn Clock>) -> EvalTable {
        self.dates = Some(Dates { watch: DateWatch::new(client), truth: table });
        self
    }

    /// The handle of a client who stops waiting for the answer to a write of one item after
    /// [`ATTEMPT_TIMEOUT`], by this clock: what is carried out later lands unheard.
    #[must_use]
    pub fn with_timeout(mut self, clock: Arc<dyn Clock>) -> EvalTable {
        self.waits_by = Some(clock);
        self
    }

    /// Makes the table one of ours and returns the id of its namespace, `default`. The journal
    /// begins after this.
    pub async fn initialise(&self, options: &DynamoOptions) -> Result<String, StoreError> {
        let shared: Arc<dyn Table> = Arc::new(self.clone());
        DynamoStore::initialise(&shared, options).await?;
        self.take_journal();
        Ok(self.namespace_id("default").unwrap_or_default())
    }

    /// A store of one process on the table, in the namespace `default`.
    pub async fn open(&self, options: DynamoOptions) -> Result<DynamoStore, StoreError> {
        let name = "default".parse().expect("the word is a valid namespace name");
        DynamoStore::on_table(Arc::new(self.clone()), options, &name).await
    }

    /// The id of a namespace in use.
    #[must_use]
    pub fn namespace_id(&self, name: &str) -> Option<String> {
        self.get(&keys::namespace_by_name(name))?.get("namespace_id")?.as_s().ok().cloned()
    }

    /// An item as it is.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Item> {
        self.lock().get(key).cloned()
    }

    /// Every item, by key.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        self.lock().items().cloned().collect()
    }

    /// Puts an item there as if it had always been, in whatever form DynamoDB would keep it. Panics
    /// when it would not.
    #[track_caller]
    pub fn insert(&self, item: &Item) {
        let stored =
            expression::put(item).and_then(|item| expression::check_item(&item).map(|()| item));
        let stored = stored.unwrap_or_else(|why| panic!("not an item: {why}"));
        let key =
            value::key_of(&stored).unwrap_or_else(|| panic!("an item without a key: {stored:?}"));
        self.lock().change(key, Some(stored));
    }

    /// Takes an item away. True when there was one.
    pub fn remove(&self, key: &Key) -> bool {
        self.lock().change(key.clone(), None).before.is_some()
    }

    /// Deletes every item whose `ttl` is at most `now_s`. Returns their keys.
    pub fn sweep(&self, now_s: i64) -> Vec<Key> {
        self.lock().sweep(now_s)
    }

    /// Moves the table's own clock, which only tokens look at. It never goes back.
    pub fn set_now_ms(&self, now_ms: i64) {
        let mut state = self.lock();
        state.now_ms = state.now_ms.max(now_ms);
    }

    /// The writes that are on their way although their callers have given up, in the order they
    /// were sent.
    #[must_use]
    pub fn late(&self) -> Vec<Request> {
        self.lock().late()
    }

    /// Lands one of [`EvalTable::late`] now; false when there is no such.
    pub fn land(&self, index: usize) -> bool {
        self.lock().land_one(index)
    }

    /// Lands all of them. Returns how many.
    pub fn land_all(&self) -> usize {
        self.lock().land_all()
    }

    /// Loses all of them: they never arrive. Returns how many.
    pub fn lose_all(&self) -> usize {
        self.lock().lose_all()
    }

    /// What was called and what it cost so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// As [`EvalTable::counters`], and starts again from nothing.
    pub fn take_counters(&self) -> Counters {
        std::mem::take(&mut self.lock().counters)
    }

    /// The calls since the last time, in the order they were carried out. Empty without
    /// [`EvalOptions::journal`].
    pub fn take_journal(&self) -> Vec<Call> {
        std::mem::take(&mut self.lock().journal)
    }

    async fn call(&self, asked: Asked<'_>) -> Result<Answer, TableError> {
        let polls = |point| self.gate.as_ref().map_or(0, |gate| gate.polls(self.client, point));
        let waiter = self.waits_by.as_ref();
        let began = waiter.map(|waiter| waiter.monotonic());
        let sent = self
            .dates
            .as_ref()
            .filter(|dates| dates.watch.is_due())
            .map(|dates| dates.watch.sent());
        gate::pause(polls(Point::Before(asked.operation()))).await;
        let caller = Caller { client: self.client, tag: self.tag };
        let is_single = match asked {
            Asked::Bucket(_) | Asked::Update(_) | Asked::Put(_) => true,
            // What takes from several shards, or moves tokens between them, does not wait longer.
            Asked::Transact(writes, _) => {
                writes.iter().all(|write| matches!(write, Write::Bucket(_)))
            }
            _ => false,
        };
        let is_late = is_single
            && began.zip(waiter).is_some_and(|(began, waiter)| {
                waiter.monotonic().saturating_sub(began) > ATTEMPT_TIMEOUT
            });
        let late = Faults::scripted([Fate::LostAfter]);
        let answer = self.lock().enter(
            caller,
            &asked,
            if is_late { Some(&late) } else { self.faults.as_ref() },
        );
        let date_ms = self
            .dates
            .as_ref()
            .map_or(0, |dates| dates.truth.now().0.div_euclid(1_000).saturating_mul(1_000));
        gate::pause(polls(Point::After(asked.operation()))).await;
        // Only an answer carries a date.
        if let (Some(dates), Some(sent), false) = (
            &self.dates,
            sent,
            matches!(answer, Err(TableError::Unknown(_) | TableError::Unreachable(_))),
        ) {
            dates.watch.answered(sent, date_ms);
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for EvalTable {
    fn default() -> Self {
        EvalTable::new()
    }
}

impl fmt::Debug for EvalTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvalTable")
            .field("client", &self.client)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

/// An operation has one kind of answer; another one is a bug here.
macro_rules! expect_answer {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            _ => unreachable!("every operation has one kind of answer"),
        }
    };
}

impl Table for EvalTable {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        Box::pin(async move {
            expect_answer!(self.call(Asked::Update(update)).await?, Answer::Item(item) => item)
        })
    }

    fn write_bucket(&self, write: BucketWrite) -> BoxFuture<'_, Result<Item, TableError>> {
        Box::pin(async move {
            match self.call(Asked::Bucket(&write)).await? {
                Answer::Item(item) => Ok(item),
                Answer::Done => match write.rendered() {
                    Write::Put(put) => Ok(put.item),
                    _ => unreachable!("only a put is answered without an item"),
                },
                _ => unreachable!("every operation has one kind of answer"),
            }
        })
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(
            async move { expect_answer!(self.call(Asked::Put(put)).await?, Answer::Done => ()) },
        )
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(async move {
            expect_answer!(self.call(Asked::Transact(writes, token)).await?, Answer::Done => ())
        })
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        Box::pin(async move {
            expect_answer!(self.call(Asked::BatchGet(keys, consistent)).await?, Answer::Batch(page) => page)
        })
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        Box::pin(async move {
            expect_answer!(self.call(Asked::Query(query)).await?, Answer::Page(page) => page)
        })
    }

    /// All in one page, without faults: only migrations scan.
    fn scan<'a>(
        &'a self,
        prefix: &'a str,
        _start: Option<Item>,
    ) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        let is_wanted = |item: &Item| {
            item.get("SK")
                .and_then(|sort| sort.as_s().ok())
                .is_some_and(|sk| sk.starts_with(prefix))
        };
        let items = self.items().into_iter().filter(is_wanted).collect();
        Box::pin(std::future::ready(Ok(QueryPage { items, last: None })))
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        Box::pin(async move {
            expect_answer!(self.call(Asked::DeleteBatch(keys)).await?, Answer::Open(keys) => keys)
        })
    }

    fn time(&self) -> TableTime {
        self.dates.as_ref().map_or(TableTime::Local, |dates| dates.watch.time())
    }
}
