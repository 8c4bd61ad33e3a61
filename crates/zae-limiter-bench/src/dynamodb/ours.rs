//! Our client, from its table to the public interface.

use std::time::Duration;

use anyhow::{Result, ensure};
use zae_limiter::store::Clock;
use zae_limiter::{
    AcquireError, EntityId, LimitSource, LocalBlocks, RateLimiter, Request, ResourceName,
    SystemClock,
};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::sdk::SdkTable;
use zae_limiter_dynamodb::table::{Key, Table, Update};
use zae_limiter_store::{BucketStore, ConsumeOutcome, ConsumeRequest, LimitsInForce, MemberTake};

use super::warm::WarmWrites;
use super::watch::{Callers, Place, Sends, row};
use super::{CHILDREN_MAX, REFUSING, child, limits, partition_key, reach};
use crate::cell::Op;
use crate::keys::{self, REQUESTS, RESOURCE, TOKENS, pick};
use crate::rows::{Entry, takes};

/// What an adjusting row charges beyond what it took.
pub(super) const ADJUSTMENT: i64 = 100;

/// No configuration is read again while a row is measured.
const CONFIG_CACHE_TTL: Duration = Duration::from_secs(86_400);

pub(super) const TABLE: Entry = Entry {
    name: "table",
    what: "SdkTable::update of a prebuilt write",
    make: |context| row(context, (Callers::Alone, Sends::One), TableOp::new),
};

pub(super) const STORE: Entry = Entry {
    name: "store",
    what: "DynamoStore::consume, warm",
    make: |context| row(context, (Callers::Alone, Sends::One), StoreOp::new),
};

pub(super) const ACQUIRE: Entry = Entry {
    name: "acquire",
    what: "acquire + commit, warm",
    make: |context| {
        row(context, (Callers::Alone, Sends::One), async |place| {
            AcquireOp::new(&place, Kind::Plain).await
        })
    },
};

pub(super) const BLOCKS: Entry = Entry {
    name: "acquire-blocks",
    what: "acquire + commit with local blocks, one hot key",
    make: |context| {
        row(context, (Callers::Alone, Sends::Orders), async |place| {
            AcquireOp::new(&place, Kind::Blocks).await
        })
    },
};

pub(super) const ADJUST: Entry = Entry {
    name: "adjust",
    what: "acquire + adjust + commit: two writes",
    make: |context| {
        row(context, (Callers::Alone, Sends::Two), async |place| {
            AcquireOp::new(&place, Kind::Adjust).await
        })
    },
};

pub(super) const CASCADE: Entry = Entry {
    name: "cascade",
    what: "acquire + commit, child and parent: two writes at once",
    make: |context| {
        row(context, (Callers::Alone, Sends::Two), async |place| {
            AcquireOp::new(&place, Kind::Cascade).await
        })
    },
};

pub(super) const REFUSED: Entry = Entry {
    name: "refused",
    what: "acquire, refused from memory, one key",
    make: |context| {
        row(context, (Callers::Alone, Sends::Nothing), async |place| {
            AcquireOp::new(&place, Kind::Refused).await
        })
    },
};

pub(super) const CROWD: Entry = Entry {
    name: "acquire-64",
    what: "acquire + commit, 64 tasks, current-thread",
    make: |context| {
        row(context, (Callers::Crowd, Sends::One), async |place| {
            AcquireOp::new(&place, Kind::Plain).await
        })
    },
};

pub(super) const THREADS: Entry = Entry {
    name: "acquire-mt",
    what: "acquire + commit, 1 task, multi-threaded",
    make: |context| {
        row(context, (Callers::AloneOnThreads, Sends::One), async |place| {
            AcquireOp::new(&place, Kind::Plain).await
        })
    },
};

pub(super) const THREADS_CROWD: Entry = Entry {
    name: "acquire-mt-64",
    what: "acquire + commit, 64 tasks, multi-threaded",
    make: |context| {
        row(context, (Callers::CrowdOnThreads, Sends::One), async |place| {
            AcquireOp::new(&place, Kind::Plain).await
        })
    },
};

// ----------------------------------------------------------------------------- below the interface

struct TableOp {
    table: SdkTable,
    updates: Vec<Update>,
}

impl TableOp {
    async fn new(place: Place<'_>) -> Result<TableOp> {
        let (builder, entities) = (reach(place.url), keys::entities(place.keys));
        let update = WarmWrites::of(&builder, entities[0].as_str()).await?.debit;
        let key = |entity| Key { pk: partition_key(entity), ..update.key.clone() };
        let updates =
            entities.iter().map(|entity| Update { key: key(entity), ..update.clone() }).collect();
        Ok(TableOp { table: builder.table().await?, updates })
    }
}

impl Op for TableOp {
    async fn call(&self, random: u64) {
        assert!(
            self.table
                .update(pick(&self.updates, random))
                .await
                .expect("an answer")
                .contains_key("rf")
        );
    }
}

struct StoreOp {
    store: DynamoStore,
    entities: Vec<EntityId>,
    resource: ResourceName,
    limits: LimitsInForce,
}

impl StoreOp {
    async fn new(place: Place<'_>) -> Result<StoreOp> {
        let (entities, limits) =
            (keys::entities(place.keys), LimitsInForce::new(limits(), LimitSource::System));
        let op = StoreOp {
            store: reach(place.url).connect().await?,
            entities,
            resource: keys::resource(),
            limits,
        };
        for entity in &op.entities {
            ensure!(op.take(entity).await, "a take was refused");
        }
        Ok(op)
    }

    async fn take(&self, entity: &EntityId) -> bool {
        let takes = takes();
        let member = MemberTake {
            entity,
            resource: &self.resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        };
        let outcome =
            self.store.consume(&ConsumeRequest::new(&[member], SystemClock::new().now())).await;
        matches!(outcome.expect("a decision"), ConsumeOutcome::Granted(_))
    }
}

impl Op for StoreOp {
    async fn call(&self, random: u64) {
        assert!(self.take(pick(&self.entities, random)).await);
    }
}

// ----------------------------------------------------------------------------------- the interface

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Adjust,
    Cascade,
    Refused,
    Blocks,
}

/// Called as a user would: with texts.
struct AcquireOp {
    limiter: RateLimiter,
    texts: Vec<String>,
    resource: &'static str,
    kind: Kind,
}

/// A limiter as users build it, on a store that is connected.
pub(super) fn builder(store: DynamoStore) -> zae_limiter::Builder {
    RateLimiter::builder(store).default_limits(limits()).config_cache_ttl(CONFIG_CACHE_TTL)
}

pub(super) fn request(entity: &str, resource: &str) -> Request {
    Request::new(entity, resource).take("rpm", REQUESTS).take("tpm", TOKENS)
}

impl AcquireOp {
    /// Calls once for every key, so that all is warm.
    async fn new(place: &Place<'_>, kind: Kind) -> Result<AcquireOp> {
        let builder = builder(reach(place.url).connect().await?);
        let limiter = match kind {
            Kind::Blocks => builder.local_blocks(LocalBlocks::default()).build()?,
            _ => builder.build()?,
        };
        let (texts, resource) = match kind {
            Kind::Plain | Kind::Adjust => (keys::texts(place.keys), RESOURCE),
            // A hot one: blocks are for those.
            Kind::Blocks => (keys::texts(1), RESOURCE),
            Kind::Cascade => ((0..place.keys.min(CHILDREN_MAX)).map(child).collect(), RESOURCE),
            // One, because every key asks the table once a second, and so many keys would be all
            // that is measured.
            Kind::Refused => (keys::texts(1), REFUSING),
        };
        let op = AcquireOp { limiter, texts, resource, kind };
        for text in &op.texts {
            op.acquire(text).await;
        }
        Ok(op)
    }

    async fn acquire(&self, entity: &str) {
        match (self.limiter.acquire(request(entity, self.resource)).await, self.kind) {
            (Ok(lease), Kind::Plain | Kind::Adjust | Kind::Cascade | Kind::Blocks) => {
                assert!(lease.degraded().is_none());
                if self.kind == Kind::Adjust {
                    lease.adjust("tpm", ADJUSTMENT).expect("a limit of the request");
                }
                lease.commit().await.expect("a commit");
            }
            (Err(AcquireError::Exceeded(report)), Kind::Refused) => assert!(!report.is_contended()),
            (answer, kind) => panic!("{kind:?}: {answer:?}"),
        }
    }
}

impl Op for AcquireOp {
    async fn call(&self, random: u64) {
        self.acquire(pick(&self.texts, random).as_str()).await;
    }
}
