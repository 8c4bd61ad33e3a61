//! A table on an engine of its own, one limiter on it, and a clock that moves when told.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::Limit;
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::sdk::{Builder, SdkTable};
use zae_limiter_dynamodb::table::{Item, Table};
use zae_limiter_store::{Clock, Level, PageRequest};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::clocks::StillClock;
use zae_limiter_testkit::zae_limiter::{AcquireError, Lease, RateLimiter, Request};

pub(crate) const HOUR_MS: i64 = 3_600_000;
pub(crate) const DAY_MS: i64 = 24 * HOUR_MS;

pub(crate) struct World {
    engine: Engine,
    pub(crate) clock: StillClock,
    pub(crate) table: SdkTable,
    pub(crate) limiter: RateLimiter,
    pub(crate) namespace: String,
}

fn builder(engine: &Engine, clock: &StillClock) -> Builder {
    engine
        .stack("upkeep")
        .clock(Arc::new(clock.clone()))
        .fast_grace(Duration::ZERO)
        .trust_local_clock()
}

/// A limiter that no busy machine makes give up.
fn limiter(store: DynamoStore, clock: &StillClock) -> RateLimiter {
    let builder = RateLimiter::builder(store).clock(clock.clone());
    builder.deadline(Duration::from_secs(60)).build().unwrap()
}

impl World {
    pub(crate) async fn new() -> World {
        let (engine, clock) = (Engine::start(), StillClock::new());
        let builder = builder(&engine, &clock);
        let store = builder.clone().create().await.unwrap();
        let limiter = limiter(store, &clock);
        let namespace =
            limiter.namespaces(&PageRequest::first(1)).await.unwrap().items[0].id.to_string();
        World { engine, clock, table: builder.table().await.unwrap(), limiter, namespace }
    }

    /// A limiter of another process.
    pub(crate) async fn another(&self) -> RateLimiter {
        let store = builder(&self.engine, &self.clock).connect().await.unwrap();
        limiter(store, &self.clock)
    }

    /// With limits for everybody.
    pub(crate) async fn with(limits: &[&str]) -> World {
        let world = World::new().await;
        world.set(&Level::System, limits).await;
        world
    }

    pub(crate) async fn set(&self, level: &Level, limits: &[&str]) {
        let limits: Vec<Limit> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        self.limiter.set_limits(level, limits).await.unwrap();
    }

    pub(crate) async fn acquire(&self, tokens: u64) -> Result<Lease, AcquireError> {
        self.limiter.acquire(Request::new("user", "gpt-4").take("rpm", tokens)).await
    }

    pub(crate) async fn take(&self, tokens: u64) {
        self.acquire(tokens).await.unwrap().commit().await.unwrap();
    }

    /// Uses more than was estimated: this is how debt is made.
    pub(crate) async fn overuse(&self, tokens: u64) {
        let lease = self.acquire(0).await.unwrap();
        lease.record("rpm", tokens).unwrap();
        lease.commit().await.unwrap();
    }

    pub(crate) async fn bucket(&self) -> Option<Item> {
        self.bucket_of("gpt-4").await
    }

    pub(crate) async fn bucket_of(&self, resource: &str) -> Option<Item> {
        let key =
            keys::bucket(&self.namespace, &"user".parse().unwrap(), &resource.parse().unwrap(), 0);
        self.table.batch_get(&[key], true).await.unwrap().items.pop()
    }

    /// When the table may forget the bucket, in seconds.
    pub(crate) async fn expiry(&self) -> Option<i64> {
        self.bucket().await?.get("ttl").map(number)
    }

    pub(crate) async fn available(&self) -> i64 {
        let request = Request::new("user", "gpt-4").take("rpm", 1);
        self.limiter.availability(&request).await.unwrap().available("rpm").unwrap()
    }

    pub(crate) fn now_s(&self) -> i64 {
        self.clock.now().0.div_euclid(1000)
    }

    pub(crate) fn sweep_at(&self, second: i64) -> u64 {
        self.engine.sweep_ttl_at(u64::try_from(second).unwrap())
    }

    pub(crate) fn sweep(&self) -> u64 {
        self.sweep_at(self.now_s())
    }
}

#[track_caller]
pub(crate) fn number(value: &AttributeValue) -> i64 {
    value.as_n().unwrap().parse().unwrap()
}

pub(crate) fn own() -> Level {
    Level::EntityResource("user".parse().unwrap(), "gpt-4".parse().unwrap())
}
