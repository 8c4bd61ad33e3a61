//! What our programs ask of a table, call by call, and who asked: for tests of permissions.
//!
//! [`of_conformance`] runs the conformance suite on a table in memory and notes for every request
//! which operation of the store sent it, in which namespace, and which permissions of IAM it needs.
//! [`of_operator`] does what an operator does to the table as a whole, migrations included, and
//! [`of_aggregator`] gives what the suite wrote to the aggregator, with its upkeep.
//!
//! The key decision: the record is made at the `Table` trait, below everything that decides what is
//! asked for. A call that is new there is in the record without anybody adding it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zae_limiter_aggregator::{Aggregator, Kept, Kind, Record, Settings};
use zae_limiter_core::{TimeMs, UsageWindow};
use zae_limiter_dynamodb::bucket::write::BucketWrite;
use zae_limiter_dynamodb::records::keys::{self, STATE};
use zae_limiter_dynamodb::table::clock::TableTime;
use zae_limiter_dynamodb::table::{
    BatchPage, Index, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write, number,
    text,
};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore, Operator, Retention};
use zae_limiter_store::conformance::{CASES, Harness};
use zae_limiter_store::{
    Adjusted, BoxFuture, BucketDelta, Clock, SeededEntropy, Store, StoreError, StoreFuture,
    StoreWrapper,
};

use crate::engine::clocks::HurriedClock;
use crate::table::{Asked, EvalOptions, EvalTable};

/// When every case of the suite begins: 2100-01-01T10:00:00Z.
const BEGINNING_S: i64 = 4_102_480_800;

/// A permission that a request needs: an action on items of the table or of an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The action of IAM, such as `dynamodb:UpdateItem`.
    pub action: &'static str,
    /// The index that is asked, `None` for the table itself.
    pub index: Option<&'static str>,
    /// The partition keys that are asked for, of the table or of the index.
    pub keys: BTreeSet<String>,
}

/// Who asked for what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    /// The operation of the store, by the name of its method; `connect`, `initialise` and
    /// `aggregate` beside them.
    pub operation: &'static str,
    /// The id of the namespace that the caller is bound to, `None` for whoever is bound to none.
    pub namespace: Option<String>,
    /// What one request needs, all of it.
    pub needs: Vec<Need>,
}

type Log = Arc<Mutex<BTreeSet<Sent>>>;

#[derive(Clone)]
struct Asker {
    operation: &'static str,
    namespace: Option<String>,
}

tokio::task_local! {
    static ASKER: Asker;
}

/// What a request needs. The legs of a transaction are judged one by one, each by the action that
/// it would be alone; a batch is one request with several keys.
fn needs(asked: &Asked<'_>) -> Vec<Need> {
    fn need<'a>(action: &'static str, keys: impl IntoIterator<Item = &'a str>) -> Need {
        let keys = keys.into_iter().map(ToOwned::to_owned).collect();
        Need { action, index: None, keys }
    }
    fn leg(write: &Write) -> Need {
        match write {
            Write::Update(update) => need("dynamodb:UpdateItem", [&*update.key.pk]),
            Write::Put(put) => need("dynamodb:PutItem", [pk(&put.item)]),
            Write::Delete(delete) => need("dynamodb:DeleteItem", [&*delete.key.pk]),
            Write::Check(check) => need("dynamodb:ConditionCheckItem", [&*check.key.pk]),
            Write::Bucket(bucket) => leg(&bucket.rendered()),
        }
    }
    let of = |keys: &[Key], action| need(action, keys.iter().map(|key| &*key.pk));
    match asked {
        Asked::Bucket(write) => vec![leg(&write.rendered())],
        Asked::Update(update) => vec![need("dynamodb:UpdateItem", [&*update.key.pk])],
        Asked::Put(put) => vec![need("dynamodb:PutItem", [pk(&put.item)])],
        Asked::Transact(writes, _) => writes.iter().map(leg).collect(),
        Asked::BatchGet(keys, _) => vec![of(keys, "dynamodb:BatchGetItem")],
        Asked::DeleteBatch(keys) => vec![of(keys, "dynamodb:BatchWriteItem")],
        Asked::Query(query) => {
            let index = query.index.map(|index| match index {
                Index::Gsi1 => "GSI1",
                Index::Gsi2 => "GSI2",
                Index::Gsi3 => "GSI3",
                Index::Gsi4 => "GSI4",
            });
            vec![Need { index, ..need("dynamodb:Query", [&*query.partition]) }]
        }
    }
}

fn pk(item: &Item) -> &str {
    item.get("PK").and_then(|value| value.as_s().ok()).map_or("", String::as_str)
}

/// A table that notes what is asked of it.
struct RecordingTable {
    table: EvalTable,
    log: Log,
}

impl RecordingTable {
    fn note(&self, asked: &Asked<'_>) -> &EvalTable {
        self.note_needs(needs(asked))
    }

    fn note_needs(&self, needs: Vec<Need>) -> &EvalTable {
        let nobody = Asker { operation: "nobody", namespace: None };
        let Asker { operation, namespace } = ASKER.try_with(Clone::clone).unwrap_or(nobody);
        let sent = Sent { operation, namespace, needs };
        self.log.lock().unwrap_or_else(PoisonError::into_inner).insert(sent);
        &self.table
    }
}

impl Table for RecordingTable {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        Box::pin(async move { self.note(&Asked::Update(update)).update(update).await })
    }

    fn write_bucket(&self, write: BucketWrite) -> BoxFuture<'_, Result<Item, TableError>> {
        Box::pin(async move { self.note(&Asked::Bucket(&write)).write_bucket(write).await })
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(async move { self.note(&Asked::Put(put)).put(put).await })
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(
            async move { self.note(&Asked::Transact(writes, token)).transact(writes, token).await },
        )
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        Box::pin(async move {
            self.note(&Asked::BatchGet(keys, consistent)).batch_get(keys, consistent).await
        })
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        Box::pin(async move { self.note(&Asked::Query(query)).query(query).await })
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        Box::pin(async move { self.note(&Asked::DeleteBatch(keys)).delete_batch(keys).await })
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a str,
        start: Option<Item>,
    ) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        // A scan has no key.
        let need = Need { action: "dynamodb:Scan", index: None, keys: BTreeSet::new() };
        Box::pin(async move { self.note_needs(vec![need]).scan(prefix, start).await })
    }

    fn time(&self) -> TableTime {
        self.table.time()
    }
}

/// A store whose requests are noted under the name of the method that was called.
struct NamedStore(Arc<dyn Store>);

impl NamedStore {
    fn asker(&self, operation: &'static str) -> Asker {
        let namespace = self.0.current_namespace_id().map(|id| id.to_string());
        Asker { operation, namespace }
    }
}

impl StoreWrapper for NamedStore {
    type Inner = dyn Store;

    fn inner(&self) -> &(dyn Store + 'static) {
        &*self.0
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a (dyn Store + 'static)) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(ASKER.scope(self.asker(operation), async move { call(&*self.0).await }))
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        Box::pin(ASKER.scope(self.asker("adjust"), self.0.adjust(deltas, now)))
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(NamedStore(scoped))
    }
}

/// No time passes, and who waits only lets others go first.
#[derive(Debug)]
struct StandingClock;

impl Clock for StandingClock {
    fn now(&self) -> TimeMs {
        TimeMs(BEGINNING_S * 1_000)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::task::yield_now())
    }
}

/// One case of the suite on a table of its own.
struct Recorded {
    table: EvalTable,
    log: Log,
    shards: u32,
    clients: AtomicU64,
}

impl Recorded {
    fn new(shards: u32, log: &Log) -> Recorded {
        let table = EvalTable::with_options(EvalOptions::new().journal());
        Recorded { table, log: Arc::clone(log), shards, clients: AtomicU64::new(1) }
    }

    fn recording(&self) -> Arc<dyn Table> {
        Arc::new(RecordingTable { table: self.table.clone(), log: Arc::clone(&self.log) })
    }

    /// As the suite has them on a real engine.
    fn options(&self) -> DynamoOptions {
        let mut options = DynamoOptions::new();
        options.clock = Arc::new(StandingClock);
        options.entropy =
            Arc::new(SeededEntropy::new(self.clients.fetch_add(1, Ordering::Relaxed)));
        options.fast_grace_ms = 0;
        options.born_split = self.shards;
        if self.shards > 1 {
            options.share_min_milli = 1;
            options.gather_pause_ms = 0;
            options.herd_pause_ms = 0;
        }
        options
    }

    async fn connect(&self) -> Arc<dyn Store> {
        let name = "default".parse().expect("the word is a valid namespace name");
        let asker = Asker { operation: "connect", namespace: self.table.namespace_id("default") };
        let opened = DynamoStore::on_table(self.recording(), self.options(), &name);
        let store = ASKER.scope(asker, opened).await.expect("the table is initialised");
        Arc::new(NamedStore(Arc::new(store)))
    }
}

impl Harness for Recorded {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let asker = Asker { operation: "initialise", namespace: None };
            let (table, options) = (self.recording(), self.options());
            let made = ASKER.scope(asker, DynamoStore::initialise(&table, &options)).await;
            made.expect("an empty table can be initialised");
            self.connect().await
        })
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async { Some(self.connect().await) })
    }
}

/// Runs every case on whole buckets, and again on buckets of four shards; hands each table on.
fn run_suite(log: &Log, mut after: impl FnMut(&EvalTable)) {
    for shards in [1, 4] {
        for case in CASES {
            let harness = Arc::new(Recorded::new(shards, log));
            zae_limiter_store::conformance::run(case.name, Arc::<Recorded>::clone(&harness));
            after(&harness.table);
        }
    }
}

fn noted(log: &Log) -> BTreeSet<Sent> {
    std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Everything that the store asks of its table in the conformance suite, each once.
#[must_use]
pub fn of_conformance() -> BTreeSet<Sent> {
    let log = Log::default();
    run_suite(&log, |_| ());
    noted(&log)
}

/// Everything that an operator asks of a table as a whole, by the names of the methods: versions,
/// retention, the function, and the migrations of a table that clients of long ago wrote.
#[must_use]
pub fn of_operator() -> BTreeSet<Sent> {
    let log = Log::default();
    let recorded = Recorded::new(1, &log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("the system has a thread for a test runtime");
    runtime.block_on(async {
        recorded.fresh().await;
        let namespace = recorded.table.namespace_id("default").expect("it was made");
        let mut record = recorded.table.get(&keys::version()).expect("it was made");
        record.remove("migrated");
        recorded.table.insert(&record);
        for (place, sort) in [
            ("SYSTEM#", "#LIMIT#rpm"),
            ("RESOURCE#gpt-4", "#LIMIT#rpm"),
            ("ENTITY#key", "#LIMIT#gpt-4#rpm"),
            ("ENTITY#key", "#LIMIT#_default_#rpm"),
        ] {
            recorded.table.insert(&old_row(&format!("{namespace}/{place}"), sort));
        }
        let operator = Operator::on_table(recorded.recording(), recorded.options());
        let asker = |operation| Asker { operation, namespace: None };
        let worked = "nothing is in the way";
        let days = Retention { usage_days: Some(30), audit_days: Some(30) };
        ASKER.scope(asker("versions"), operator.versions()).await.expect(worked);
        ASKER.scope(asker("set_retention"), operator.set_retention(days)).await.expect(worked);
        let stamped = operator.stamp_function(Some("0.1.0"));
        ASKER.scope(asker("stamp_function"), stamped).await.expect(worked);
        let required = operator.require_shard_readers();
        ASKER.scope(asker("require_shard_readers"), required).await.expect(worked);
        let plan = ASKER.scope(asker("plan"), operator.plan()).await.expect(worked);
        let done = ASKER.scope(asker("migrate"), operator.migrate(|_| ())).await.expect(worked);
        assert!(plan.len() == 4 && done.made == 4 && done.complete, "{plan:?} {done:?}");
    });
    noted(&log)
}

/// A limit as clients before 0.8 stored it.
fn old_row(partition: &str, sort: &str) -> Item {
    [
        ("PK", text(partition)),
        ("SK", text(sort)),
        ("limit_name", text("rpm")),
        ("capacity", number(5)),
        ("burst", number(5)),
        ("refill_amount", number(5)),
        ("refill_period_seconds", number(60)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Everything that the aggregator asks of the table when it is given what the suite wrote, as the
/// operation `aggregate`; and what its upkeep did. Hot buckets are made of records that come again
/// and again, quiet ones by the clock.
#[must_use]
pub fn of_aggregator() -> (BTreeSet<Sent>, Kept) {
    const CROWD: usize = 950;
    let (unread, log) = (Log::default(), Log::default());
    let mut kept = Kept::default();
    run_suite(&unread, |table| {
        let records = records(table);
        let Some(last) = records.last().cloned() else { return };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("the system has a thread for a test runtime");
        let clock = HurriedClock::at(TimeMs(last.at_s * 1_000));
        let recording = RecordingTable { table: table.clone(), log: Arc::clone(&log) };
        let aggregator = Aggregator::new(
            Arc::new(recording),
            Settings::new("traffic").windows(UsageWindow::ALL),
        )
        .clock(Arc::new(clock.clone()))
        .entropy(Arc::new(SeededEntropy::new(3)));
        let asker = Asker { operation: "aggregate", namespace: None };
        runtime.block_on(ASKER.scope(asker, async {
            let crowd = vec![last; CROWD];
            for batch in records.chunks(100).chain([&crowd[..]]) {
                add(&mut kept, &aggregator.process(batch).await.kept);
            }
            clock.advance(Duration::from_secs(86_400));
            let late: Vec<Record> = records
                .iter()
                .take(100)
                .map(|record| Record { at_s: record.at_s + 86_400, ..record.clone() })
                .collect();
            add(&mut kept, &aggregator.process(&late).await.kept);
        }));
    });
    (noted(&log), kept)
}

fn add(total: &mut Kept, more: &Kept) {
    total.refills += more.refills;
    total.splits += more.splits;
    total.levelled += more.levelled;
    total.folds += more.folds;
}

/// The stream of a table, by its journal: changes of buckets, all in one second.
fn records(table: &EvalTable) -> Vec<Record> {
    let changes = table.take_journal().into_iter().flat_map(|call| call.changes);
    let of_buckets = changes.filter(|change| change.key.sk == STATE && change.after.is_some());
    of_buckets
        .enumerate()
        .map(|(place, change)| Record {
            stream_shard: "shardId-1".to_owned(),
            sequence: (1_000 + place).to_string(),
            kind: if change.before.is_some() { Kind::Modify } else { Kind::Insert },
            at_s: BEGINNING_S,
            key: (change.key.pk.clone(), change.key.sk.to_string()),
            old: change.before,
            new: change.after,
            is_expired: false,
        })
        .collect()
}
