//! A real engine: our own takes, its stream, and the usage that comes of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use zae_limiter_aggregator::{Aggregator, FolderArchive, Record, Report, Settings};
use zae_limiter_core::{Limit, UsageWindow};
use zae_limiter_dynamodb::sdk::{Stream, TableOptions};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{Clock, Entropy, Level, SystemClock, SystemEntropy};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::stream::record;
use zae_limiter_testkit::zae_limiter::{RateLimiter, Request};

use crate::filters::is_delivered;

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) stack: String,
    store: DynamoStore,
    pub(crate) limiter: RateLimiter,
    archive: tempfile::TempDir,
}

impl World {
    /// On an engine of its own.
    pub(crate) async fn new() -> World {
        World::on(Engine::start(), |_| {}).await
    }

    /// A table of its own on an engine.
    pub(crate) async fn on(engine: Engine, change: impl FnOnce(&mut DynamoOptions)) -> World {
        let stack = format!("aggregated-{:016x}", SystemEntropy.next_u64());
        let options = TableOptions::new().stream(Stream::On);
        let builder = engine.stack(&stack).table_options(options).with_options(change);
        let store = builder.create().await.unwrap();
        let limiter = RateLimiter::builder(store.clone()).deadline(Duration::from_secs(60));
        let limiter = limiter.build().unwrap();
        let limits: Vec<Limit> = ["rpm:1000/hour", "tpm:100000/hour"]
            .iter()
            .map(|limit| limit.parse().unwrap())
            .collect();
        limiter.set_limits(&Level::System, limits).await.unwrap();
        World { engine, stack, store, limiter, archive: tempfile::tempdir().unwrap() }
    }

    pub(crate) async fn take(&self, entity: &str, tokens: u64) {
        let request = Request::new(entity, "gpt-4").take("rpm", 1).take("tpm", tokens);
        self.limiter.acquire(request).await.unwrap().commit().await.unwrap();
    }

    /// Every record of the stream, as the engine tells it.
    pub(crate) fn records(&self) -> Vec<Value> {
        self.engine.stream(&self.stack)
    }

    pub(crate) async fn aggregator(&self) -> Aggregator {
        let table = self.engine.stack(&self.stack).table().await.unwrap();
        Aggregator::new(Arc::new(table), Settings::new(&self.stack).windows(UsageWindow::ALL))
            .archive(Arc::new(FolderArchive::new(self.archive.path())))
    }

    pub(crate) async fn aggregate(&self) -> Report {
        self.aggregate_those(|_| true).await
    }

    /// The same with some of the records.
    pub(crate) async fn aggregate_those(&self, wanted: impl Fn(&Value) -> bool) -> Report {
        let events = self.records();
        let records: Vec<Record> =
            events.iter().filter(|event| wanted(event)).map(record).collect();
        let report = self.aggregator().await.process(&records).await;
        assert!(report.is_complete() && report.poison == 0, "{report:?}");
        report
    }

    pub(crate) async fn usage(&self) -> crate::log::Ledger {
        crate::rig::usage(&self.store).await
    }

    /// Everything with an expiry is gone.
    pub(crate) fn sweep_all(&self) {
        // Not too far ahead: what expired years ago is not removed.
        let later = SystemClock::new().now().plus_ms(200 * 86_400_000).0 / 1_000;
        assert!(self.engine.sweep_ttl_at(u64::try_from(later).unwrap()) > 0);
    }
}

/// By hand: takes, a lease that used more, one that used less; then the stream twice.
#[tokio::test]
async fn usage_of_real_takes() {
    let world = World::new().await;
    for tokens in [10, 20, 30] {
        world.take("a", tokens).await;
    }
    world.take("b", 7).await;
    let lease = |tokens| Request::new("a", "gpt-4").take("rpm", 1).take("tpm", tokens);
    let more = world.limiter.acquire(lease(100)).await.unwrap();
    more.record("tpm", 150).unwrap();
    more.commit().await.unwrap();
    let less = world.limiter.acquire(lease(100)).await.unwrap();
    less.record("tpm", 60).unwrap();
    less.commit().await.unwrap();
    world.aggregate().await;
    world.aggregate().await;

    let usage = world.usage().await;
    let totals = |entity: &str, window: UsageWindow| {
        let mut sums = [0; 2];
        for ((of, _, kind, _), (used, _)) in &usage {
            if (of.as_str(), *kind) == (entity, window) {
                sums[0] += used.get("rpm").copied().unwrap_or(0);
                sums[1] += used.get("tpm").copied().unwrap_or(0);
            }
        }
        sums
    };
    for window in UsageWindow::ALL {
        assert_eq!(totals("a", window), [5_000, 270_000], "{window}");
        assert_eq!(totals("b", window), [1_000, 7_000], "{window}");
    }
}

/// The events that the engine has expired, and no bucket or snapshot: of what Lambda is given.
#[tokio::test]
async fn expired_events_of_a_real_engine_are_archived() {
    let world = World::new().await;
    world.take("a", 10).await;
    world.sweep_all();
    let report = world.aggregate_those(is_delivered).await;
    assert!(report.archived >= 1, "{report:?}");
    assert_eq!(report.archived, report.expired);
    let audits = world
        .records()
        .iter()
        .filter(|event| {
            event["eventName"] == "REMOVE"
                && event["dynamodb"]["Keys"]["SK"]["S"].as_str().unwrap().starts_with("#AUDIT#")
        })
        .count();
    assert_eq!(report.archived, u64::try_from(audits).unwrap());
}
