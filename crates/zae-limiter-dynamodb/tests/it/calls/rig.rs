//! A table on an engine of its own, processes on it, and what they called.

use std::sync::Arc;
use std::time::Duration;

use zae_limiter_core::{EntityId, Limit, LimitSource, Milli, ResourceName, Take};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::sdk::{Builder, Call, CallLog, Gsi2Projection, SdkTable, TableOptions};
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Clock, ConsumeOutcome, ConsumeRequest, Delta, Level,
    LimitsInForce, MemberTake, NewEntity,
};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::clocks::StillClock;
use zae_limiter_testkit::zae_limiter::{RateLimiter, Request};

/// A table on an engine of its own.
pub(crate) struct Rig {
    pub(super) engine: Engine,
    pub(crate) clock: StillClock,
    pub(super) gsi2: Gsi2Projection,
}

/// One process: a store and what it called.
pub(crate) struct Process {
    pub(crate) store: DynamoStore,
    pub(super) table: SdkTable,
    pub(crate) log: Arc<CallLog>,
    pub(super) clock: StillClock,
}

impl Rig {
    pub(crate) async fn new() -> Rig {
        Rig::with(Gsi2Projection::KeysOnly).await
    }

    pub(super) async fn with(gsi2: Gsi2Projection) -> Rig {
        let rig = Rig { engine: Engine::start(), clock: StillClock::new(), gsi2 };
        rig.builder().create().await.unwrap();
        rig
    }

    pub(super) fn builder(&self) -> Builder {
        DynamoStore::builder("calls", "us-east-1")
            .endpoint_url(self.engine.endpoint())
            .table_options(TableOptions::new().gsi2(self.gsi2))
            .timeouts(Duration::from_secs(5), Duration::from_secs(5))
            .clock(Arc::new(self.clock.clone()))
            .trust_local_clock()
    }

    /// A process that knows nothing yet.
    pub(crate) async fn process(&self) -> Process {
        self.process_of(self.builder()).await
    }

    pub(super) async fn process_of(&self, builder: Builder) -> Process {
        let log = Arc::new(CallLog::new());
        let builder = builder.observer(log.clone());
        let table = builder.table().await.unwrap();
        let store = builder.connect().await.unwrap();
        log.take();
        Process { store, table, log, clock: self.clock.clone() }
    }
}

impl Process {
    pub(crate) fn limiter(&self) -> RateLimiter {
        RateLimiter::builder(self.store.clone()).clock(self.clock.clone()).build().unwrap()
    }

    pub(super) async fn take(&self, member: &Bucket, amount: i64) -> ConsumeOutcome {
        self.take_all(&[member], amount).await
    }

    pub(super) async fn take_all(&self, chain: &[&Bucket], amount: i64) -> ConsumeOutcome {
        let takes = [Take { limit: 0, amount: Milli(amount * 1000) }];
        let members: Vec<MemberTake<'_>> = chain.iter().map(|bucket| bucket.take(&takes)).collect();
        self.store.consume(&ConsumeRequest::new(&members, self.clock.now())).await.unwrap()
    }

    pub(super) async fn adjust(&self, bucket: &Bucket, changes: &[(u8, i64)]) -> Adjusted {
        let deltas: Vec<Delta> = changes
            .iter()
            .map(|(limit, amount)| Delta { limit: *limit, amount: Milli(amount * 1000) })
            .collect();
        let delta = BucketDelta {
            entity: &bucket.entity,
            resource: &bucket.resource,
            limits: &bucket.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        self.store.adjust(&[delta], self.clock.now()).await.remove(0).unwrap()
    }

    /// The calls since the last look: their names in the order they ended, and what they cost.
    pub(crate) fn cost(&self) -> Cost {
        let calls = self.log.take();
        let sum = |units: fn(&Call) -> f64| calls.iter().map(units).sum();
        Cost {
            calls: calls.iter().map(|call| call.operation).collect(),
            failed: calls.iter().filter(|call| call.failure.is_some()).count(),
            writes: sum(|call| call.write_units),
            indexes: sum(|call| call.index_units),
            reads: sum(|call| call.read_units),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) calls: Vec<&'static str>,
    pub(crate) failed: usize,
    pub(super) writes: f64,
    pub(super) indexes: f64,
    pub(crate) reads: f64,
}

impl Cost {
    pub(super) fn check(&self, calls: &[&str], writes: f64, reads: f64) {
        assert_eq!((&self.calls[..], self.writes, self.reads), (calls, writes, reads), "{self:?}");
    }
}

pub(super) struct Bucket {
    pub(super) entity: EntityId,
    pub(super) resource: ResourceName,
    pub(super) limits: LimitsInForce,
}

impl Bucket {
    /// 100 per 100 s, and a second limit that never matters.
    pub(super) fn new(entity: &str) -> Bucket {
        Bucket::of(
            entity,
            &[Limit::custom("rpm", 100, 1, 1).unwrap(), Limit::custom("tpm", 1000, 10, 1).unwrap()],
        )
    }

    pub(super) fn of(entity: &str, limits: &[Limit]) -> Bucket {
        Bucket {
            entity: entity.parse().unwrap(),
            resource: "gpt-4".parse().unwrap(),
            limits: LimitsInForce::new(limits, LimitSource::Builder),
        }
    }

    pub(super) fn take<'a>(&'a self, takes: &'a [Take]) -> MemberTake<'a> {
        MemberTake {
            entity: &self.entity,
            resource: &self.resource,
            limits: &self.limits,
            takes,
            absent: &[],
        }
    }
}

#[track_caller]
pub(super) fn granted(outcome: ConsumeOutcome) {
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
}

#[track_caller]
pub(super) fn refused(outcome: ConsumeOutcome) {
    assert!(matches!(outcome, ConsumeOutcome::Refused(_)), "{outcome:?}");
}

pub(super) const CHAIN: [&str; 4] = ["user", "team", "department", "company"];

/// The entities of a chain of `depth`, and 100 per 100 s for everybody.
pub(super) async fn chain(limiter: &RateLimiter, depth: usize) {
    limiter.set_limits(&Level::System, [Limit::custom("rpm", 100, 1, 1).unwrap()]).await.unwrap();
    for index in (0..depth).rev() {
        let parent = (index + 1 < depth).then(|| CHAIN[index + 1].parse().unwrap());
        let cascade = parent.is_some();
        let entity = NewEntity {
            id: CHAIN[index].parse().unwrap(),
            name: "somebody".to_owned(),
            parent,
            cascade,
            metadata: Default::default(),
        };
        limiter.create_entity(entity).await.unwrap();
    }
}

pub(super) fn request() -> Request {
    Request::new("user", "gpt-4").take("rpm", 1)
}
