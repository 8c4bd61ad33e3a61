//! Rows of the SQLite store and of the limiter on it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use zae_limiter::{
    AcquireError, Clock, EntityId, Level, LimitSource, LocalBlocks, Milli, NewEntity, RateLimiter,
    Request, ResourceName, SystemClock,
};
use zae_limiter_sqlite::{SqliteStore, Synchronous, WriterStats};
use zae_limiter_store::{BucketStore, ConsumeOutcome, ConsumeRequest, LimitsInForce, MemberTake};

use super::{Context, Entry};
use crate::cell::{Calls, Figures, Op, Row, all_cores, one_thread};
use crate::keys::{self, KEYS, REQUESTS, RESOURCE, TOKENS, pick};

/// Callers of the rows with many.
pub(crate) const CALLERS: usize = 64;
/// Parents that the children of the cascading rows share.
const PARENTS: usize = 100;
/// A resource whose limits refuse everything.
const REFUSING: &str = "refusing";

pub(super) fn rows() -> Vec<Entry> {
    vec![
        Entry {
            name: "sqlite-store",
            what: "store consume, prebuilt, 1 caller, NORMAL",
            make: |context| store_row(context, Kind::Grant),
        },
        Entry {
            name: "sqlite-acquire",
            what: "acquire + commit, 1 caller, NORMAL",
            make: |context| acquire_row(context, Kind::Grant),
        },
        Entry {
            name: "sqlite-store-chain",
            what: "store consume, child and parent",
            make: |context| store_row(context, Kind::Chain),
        },
        Entry {
            name: "sqlite-acquire-chain",
            what: "acquire + commit, child and parent",
            make: |context| acquire_row(context, Kind::Chain),
        },
        Entry {
            name: "sqlite-store-refused",
            what: "store consume, refused",
            make: |context| store_row(context, Kind::Refuse),
        },
        Entry {
            name: "sqlite-acquire-refused",
            what: "acquire, refused",
            make: |context| acquire_row(context, Kind::Refuse),
        },
        Entry {
            name: "sqlite-store-1m",
            what: "store consume, a million entities",
            make: store_million,
        },
        Entry {
            name: "sqlite-acquire-1m",
            what: "acquire + commit, a million entities",
            make: acquire_million,
        },
        Entry {
            name: "sqlite-64",
            what: "acquire + commit, 64 callers, 1k keys",
            make: |context| crowd(context, KEYS, Synchronous::Normal),
        },
        Entry {
            name: "sqlite-64-hot",
            what: "acquire + commit, 64 callers, one key",
            make: |context| crowd(context, 1, Synchronous::Normal),
        },
        Entry {
            name: "block-acquire-sqlite",
            what: "acquire + commit with blocks, 1 caller, NORMAL",
            make: |context| acquire_row(context, Kind::Block),
        },
        Entry {
            name: "block-64-hot",
            what: "acquire + commit with blocks, 64 callers, one key",
            make: |context| block_crowd(context),
        },
        Entry {
            name: "sqlite-full-64",
            what: "acquire + commit, 64 callers, FULL",
            make: |context| crowd(context, KEYS, Synchronous::Full),
        },
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Grant,
    Chain,
    Refuse,
    /// Served from local blocks.
    Block,
}

// ------------------------------------------------------------------------------------------- store

/// Requests that are ready to be sent.
struct StoreOp {
    store: SqliteStore,
    entities: Vec<EntityId>,
    parents: Vec<EntityId>,
    resource: ResourceName,
    limits: LimitsInForce,
    kind: Kind,
    rows_written: AtomicU64,
}

impl Op for StoreOp {
    async fn call(&self, random: u64) {
        let StoreOp { resource, limits, .. } = self;
        let takes = takes();
        let member = |entity| MemberTake { entity, resource, limits, takes: &takes, absent: &[] };
        let own = member(pick(&self.entities, random));
        let now = SystemClock::new().now();
        let outcome = if self.kind == Kind::Chain {
            let members = [own, member(pick(&self.parents, random))];
            self.store.consume(&ConsumeRequest::new(&members, now)).await
        } else {
            self.store.consume(&ConsumeRequest::new(&[own], now)).await
        };
        let granted = matches!(outcome.expect("a decision"), ConsumeOutcome::Granted(_));
        assert_eq!(granted, self.kind != Kind::Refuse);
    }

    fn begin(&self) {
        self.rows_written.store(self.store.writer_stats().rows_written, Ordering::Relaxed);
    }

    fn end(&self, ops: u64) -> Figures {
        written_per_op(&self.store, self.rows_written.load(Ordering::Relaxed), ops, self.kind)
    }
}

pub(crate) fn takes() -> [zae_limiter::domain::Take; 2] {
    let take =
        |limit, tokens| zae_limiter::domain::Take { limit, amount: Milli::from_tokens(tokens) };
    [take(0, REQUESTS), take(1, TOKENS)]
}

/// Rows written per call; checks that each call wrote what its kind has to, and a refusal nothing.
fn written_per_op(store: &SqliteStore, before: u64, ops: u64, kind: Kind) -> Figures {
    let rows = store.writer_stats().rows_written - before;
    let expected = match kind {
        Kind::Grant => ops..=ops,
        Kind::Chain => 2 * ops..=2 * ops,
        Kind::Refuse => 0..=0,
        // One for a block of 128; a short run has hardly begun to buy blocks.
        Kind::Block => 0..=ops,
    };
    assert!(expected.contains(&rows), "{rows} rows written by {ops} calls");
    vec![("rows written per op", rows as f64 / ops as f64)]
}

fn store_row(context: &Context, kind: Kind) -> Result<Box<dyn Row>> {
    let (resource, limits) = match kind {
        Kind::Grant => ("store", keys::wide()),
        Kind::Chain => ("store-chain", keys::wide()),
        Kind::Refuse => ("store-refusing", keys::narrow()),
        Kind::Block => unreachable!("blocks are a matter of the limiter"),
    };
    let op = StoreOp {
        store: context.normal()?,
        entities: keys::entities(KEYS),
        parents: keys::entities(2 * KEYS).split_off(2 * KEYS - PARENTS),
        resource: resource.parse()?,
        limits: LimitsInForce::new(limits, LimitSource::System),
        kind: Kind::Grant,
        rows_written: AtomicU64::new(0),
    };
    let runtime = one_thread()?;
    runtime.block_on(create_buckets(&op.store, &op.entities, &op.resource, &op.limits))?;
    if kind == Kind::Chain {
        runtime.block_on(create_buckets(&op.store, &op.parents, &op.resource, &op.limits))?;
    }
    Ok(Calls::alone(runtime, StoreOp { kind, ..op }, 1))
}

/// Takes once from the bucket of each entity.
async fn create_buckets(
    store: &SqliteStore,
    entities: &[EntityId],
    resource: &ResourceName,
    limits: &LimitsInForce,
) -> Result<()> {
    for entity in entities {
        let takes = takes();
        let member = MemberTake { entity, resource, limits, takes: &takes, absent: &[] };
        let outcome =
            store.consume(&ConsumeRequest::new(&[member], SystemClock::new().now())).await?;
        ensure!(matches!(outcome, ConsumeOutcome::Granted(_)), "a new bucket is full");
    }
    Ok(())
}

/// Tasks that fill a file: enough for long transactions.
const CREATORS: usize = 256;

/// A file with a bucket for each of a million entities, fewer when in a hurry.
fn million(context: &Context, name: &str) -> Result<(SqliteStore, Vec<EntityId>)> {
    let path = context.lasting(name);
    let (store, entities) =
        (super::open(&path, Synchronous::Normal)?, keys::entities(context.million()));
    // Set down last: a file of a round that was interrupted is filled again.
    let filled = path.with_extension("filled");
    if !filled.exists() {
        fill(&store, &entities)?;
        std::fs::write(filled, "")?;
    }
    Ok((store, entities))
}

/// Makes a bucket for each of these entities.
pub(crate) fn fill(store: &SqliteStore, entities: &[EntityId]) -> Result<()> {
    all_cores()?.block_on(async {
        let mut creators = JoinSet::new();
        for some in entities.chunks(entities.len().div_ceil(CREATORS)) {
            let (store, some) = (store.clone(), some.to_vec());
            creators.spawn(async move {
                let limits = LimitsInForce::new(keys::wide(), LimitSource::System);
                create_buckets(&store, &some, &keys::resource(), &limits).await
            });
        }
        while let Some(created) = creators.join_next().await {
            created??;
        }
        Ok(())
    })
}

fn store_million(context: &Context) -> Result<Box<dyn Row>> {
    let (store, entities) = million(context, "million-store.db")?;
    let op = StoreOp {
        store,
        entities,
        parents: Vec::new(),
        resource: keys::resource(),
        limits: LimitsInForce::new(keys::wide(), LimitSource::System),
        kind: Kind::Grant,
        rows_written: AtomicU64::new(0),
    };
    Ok(Calls::alone(one_thread()?, op, 1))
}

// ----------------------------------------------------------------------------------------- limiter

/// The public interface, called as a user would: with texts.
struct AcquireOp {
    limiter: RateLimiter,
    store: SqliteStore,
    texts: Vec<String>,
    resource: &'static str,
    kind: Kind,
    rows_written: AtomicU64,
}

impl AcquireOp {
    fn new(limiter: RateLimiter, store: SqliteStore, keys: usize) -> AcquireOp {
        let rows_written = AtomicU64::new(0);
        AcquireOp {
            limiter,
            store,
            texts: keys::texts(keys),
            resource: RESOURCE,
            kind: Kind::Grant,
            rows_written,
        }
    }
}

impl Op for AcquireOp {
    async fn call(&self, random: u64) {
        let request = Request::new(pick(&self.texts, random).as_str(), self.resource)
            .take("rpm", REQUESTS)
            .take("tpm", TOKENS);
        match self.limiter.acquire(request).await {
            Ok(lease) => {
                assert!(self.kind != Kind::Refuse && lease.degraded().is_none());
                lease.commit().await.expect("nothing to write");
            }
            Err(AcquireError::Exceeded(report)) => {
                assert!(self.kind == Kind::Refuse && !report.is_contended())
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn begin(&self) {
        self.rows_written.store(self.store.writer_stats().rows_written, Ordering::Relaxed);
    }

    fn end(&self, ops: u64) -> Figures {
        written_per_op(&self.store, self.rows_written.load(Ordering::Relaxed), ops, self.kind)
    }
}

fn acquire_row(context: &Context, kind: Kind) -> Result<Box<dyn Row>> {
    let (runtime, store) = (one_thread()?, context.normal()?);
    let op = runtime.block_on(async {
        let builder = RateLimiter::builder(store.clone());
        let limiter = match kind {
            Kind::Block => builder.local_blocks(LocalBlocks::default()).build()?,
            _ => builder.build()?,
        };
        limiter.set_limits(&Level::System, keys::wide()).await?;
        let mut op = AcquireOp::new(limiter, store, KEYS);
        match kind {
            Kind::Grant | Kind::Block => {}
            Kind::Chain => op.texts = family(&op.limiter).await?,
            Kind::Refuse => {
                op.resource = REFUSING;
                op.limiter.set_limits(&Level::Resource(REFUSING.parse()?), keys::narrow()).await?;
            }
        }
        for text in &op.texts {
            op.limiter
                .acquire(
                    Request::new(text.as_str(), op.resource)
                        .take("rpm", REQUESTS)
                        .take("tpm", TOKENS),
                )
                .await?
                .commit()
                .await?;
        }
        op.kind = kind;
        anyhow::Ok(op)
    })?;
    Ok(Calls::alone(runtime, op, 1))
}

/// Children that cascade to shared parents; returns the children.
async fn family(limiter: &RateLimiter) -> Result<Vec<String>> {
    for number in 0..PARENTS {
        limiter.create_entity(entity(format!("parent-{number:03}").parse()?, None)).await?;
    }
    let children: Vec<String> =
        (0..KEYS).map(|number| format!("child-of-a-parent-{number:010}")).collect();
    for (number, child) in children.iter().enumerate() {
        let parent = format!("parent-{:03}", number % PARENTS).parse()?;
        limiter.create_entity(entity(child.parse()?, Some(parent))).await?;
    }
    Ok(children)
}

fn entity(id: EntityId, parent: Option<EntityId>) -> NewEntity {
    NewEntity {
        name: id.to_string(),
        id,
        cascade: parent.is_some(),
        parent,
        metadata: BTreeMap::new(),
    }
}

fn acquire_million(context: &Context) -> Result<Box<dyn Row>> {
    let (store, entities) = million(context, "million-acquire.db")?;
    let runtime = one_thread()?;
    let limiter = runtime.block_on(async {
        let limiter = RateLimiter::builder(store.clone()).build()?;
        limiter.set_limits(&Level::System, keys::wide()).await?;
        anyhow::Ok(limiter)
    })?;
    Ok(Calls::alone(runtime, AcquireOp::new(limiter, store, entities.len()), 1))
}

// ------------------------------------------------------------------------------------------- crowd

/// Many callers through the public interface.
struct CrowdOp {
    acquire: AcquireOp,
    before: std::sync::Mutex<WriterStats>,
}

impl Op for CrowdOp {
    async fn call(&self, random: u64) {
        self.acquire.call(random).await;
    }

    fn begin(&self) {
        *self.before.lock().expect("nobody panics with it") = self.acquire.store.writer_stats();
    }

    fn end(&self, ops: u64) -> Figures {
        let (before, after) = (
            *self.before.lock().expect("nobody panics with it"),
            self.acquire.store.writer_stats(),
        );
        let transactions = (after.inline - before.inline) + (after.batches - before.batches);
        vec![
            ("ops per transaction", ops as f64 / transactions.max(1) as f64),
            ("rows written per op", (after.rows_written - before.rows_written) as f64 / ops as f64),
        ]
    }
}

fn crowd(context: &Context, keys: usize, synchronous: Synchronous) -> Result<Box<dyn Row>> {
    let store = context.store(&format!("crowd-{keys}-{synchronous:?}.db"), synchronous)?;
    crowd_on(store, keys, Kind::Grant)
}

fn block_crowd(context: &Context) -> Result<Box<dyn Row>> {
    crowd_on(context.store("crowd-blocks.db", Synchronous::Normal)?, 1, Kind::Block)
}

fn crowd_on(store: SqliteStore, keys: usize, kind: Kind) -> Result<Box<dyn Row>> {
    let runtime = all_cores()?;
    let limiter = runtime.block_on(async {
        let builder = RateLimiter::builder(store.clone());
        let limiter = match kind {
            Kind::Block => builder.local_blocks(LocalBlocks::default()).build()?,
            _ => builder.build()?,
        };
        limiter.set_limits(&Level::System, keys::wide()).await?;
        anyhow::Ok(limiter)
    })?;
    let acquire = AcquireOp { kind, ..AcquireOp::new(limiter, store, keys) };
    let op = CrowdOp { acquire, before: std::sync::Mutex::default() };
    Ok(Calls::crowd(runtime, op, CALLERS))
}
