//! Upkeep of buckets with shards: those that nobody asks any more, and a fleet that is upgraded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zae_limiter_aggregator::{Aggregator, Kind, Record, Settings};
use zae_limiter_core::UsageWindow;
use zae_limiter_core::{ConfigStamp, Limit, LimitSource, Milli, Take};
use zae_limiter_dynamodb::bucket::upkeep::{BucketName, Upkeep};
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{Item, Write, number};
use zae_limiter_store::{
    BucketStore, Clock, ConsumeOutcome, ConsumeRequest, LimitsInForce, MemberTake,
};
use zae_limiter_testkit::table::{Asked, Fate, Faults};

use crate::rig::Rig;

pub(crate) struct Hot {
    pub(crate) rig: Rig,
    limits: LimitsInForce,
}

impl Hot {
    pub(crate) async fn new() -> Hot {
        let limits: Vec<Limit> = vec!["rpm:100000/hour".parse().unwrap()];
        let limits = LimitsInForce::resolved(limits, LimitSource::Builder, ConfigStamp(0), 7);
        Hot { rig: Rig::new().await, limits }
    }

    pub(crate) async fn take(&self, entity: &str) {
        let mut options = self.rig.options();
        // As docs/dynamodb.md says for a fleet that is being upgraded.
        options.shards_max = 1;
        let store = self.rig.table.open(options).await.unwrap();
        let (entity, resource) = (entity.parse().unwrap(), "gpt".parse().unwrap());
        let takes = [Take { limit: 0, amount: Milli(1_000) }];
        let member = MemberTake {
            entity: &entity,
            resource: &resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        };
        let outcome = store.consume(&ConsumeRequest::new(&[member], self.rig.clock.now())).await;
        assert!(matches!(outcome.unwrap(), ConsumeOutcome::Granted(_)));
    }

    pub(crate) fn shards(&self, entity: &str) -> Vec<Item> {
        let at = |shard| keys::bucket_of(&self.rig.namespace, entity, "gpt", shard);
        (0..32).filter_map(|shard| self.rig.table.get(&at(shard))).collect()
    }

    /// Records of a shard as it is now, one of which counts another take.
    pub(crate) fn records(&self, entity: &str, from: u64, records: u64) -> Vec<Record> {
        let item = self.shards(entity).remove(0);
        let key = keys::bucket_of(&self.rig.namespace, entity, "gpt", 0);
        let at_s = self.rig.clock.now().0 / 1_000;
        let with = |taken: i64| {
            let mut item = item.clone();
            item.insert("b_rpm_tc".to_owned(), number(taken * 1_000));
            item.insert("b_wcu_tc".to_owned(), number(taken * 1_000));
            item
        };
        (0..records)
            .map(|turn| Record {
                stream_shard: "shardId-1".to_owned(),
                sequence: (1_000 + from + turn).to_string(),
                kind: Kind::Modify,
                at_s,
                key: (key.pk.clone(), key.sk.to_string()),
                old: Some(with(i64::try_from(turn).unwrap())),
                new: Some(with(i64::try_from(turn).unwrap() + 1)),
                is_expired: false,
            })
            .collect()
    }

    fn upkeep(&self) -> Upkeep {
        Upkeep::new(Arc::new(self.rig.table.clone()), self.rig.options())
    }

    fn name(&self, entity: &str) -> BucketName {
        BucketName {
            namespace: self.rig.namespace.clone(),
            entity: entity.to_owned(),
            resource: "gpt".to_owned(),
        }
    }
}

/// A bucket that nobody asks any more has no records, and its shards do not expire: the aggregator
/// folds it by the clock.
#[tokio::test]
async fn a_bucket_that_nobody_asks_any_more_is_folded_and_expires() {
    let hot = Hot::new().await;
    hot.take("a").await;
    hot.take("b").await;
    assert!(hot.upkeep().split(&hot.name("a"), 0).await.unwrap());
    assert_eq!(hot.shards("a").len(), 2);
    let aggregator = hot.rig.aggregator(hot.rig.table.client(1));
    aggregator.process(&hot.records("a", 0, 5)).await;
    // The load is over after five minutes; the aggregator goes on with other buckets for a month.
    for turn in 0..30 {
        hot.rig.clock.advance(Duration::from_secs(86_400));
        aggregator.process(&hot.records("b", 100 + 10 * turn, 5)).await;
    }
    let now_s = hot.rig.clock.now().0 / 1_000;
    hot.rig.table.sweep(now_s);
    let left = hot.shards("a").len();
    assert!(left <= 1, "{left} items a month after the last take, for good");
}

/// A fleet is upgraded with `shards_max = 1` first, which splits nothing: processes of the version
/// before would be told `Incompatible`. What is no power of two counts as the next one below.
#[tokio::test]
async fn an_aggregator_splits_nothing_while_a_fleet_is_upgraded() {
    let hot = Hot::new().await;
    hot.take("a").await;
    let settings = Settings::new("stack").windows(UsageWindow::ALL);
    for (shards_max, shards) in [(1, 1), (2, 2), (2, 2), (3, 2)] {
        let settings = settings.clone().shards_max(shards_max);
        let table = Arc::new(hot.rig.table.client(1));
        let aggregator = Aggregator::new(table, settings).clock(Arc::new(hot.rig.clock.clone()));
        hot.rig.clock.advance(Duration::from_secs(5));
        let report = aggregator.process(&hot.records("a", 0, 950)).await;
        assert!(report.is_complete());
        assert_eq!(hot.shards("a").len(), shards, "at most {shards_max}");
    }
}

/// A permission that is missing for one thing is told, and everything else is done.
#[tokio::test]
async fn what_an_aggregator_may_not_do_is_told() {
    let hot = Hot::new().await;
    hot.take("a").await;
    hot.take("b").await;
    assert!(hot.upkeep().split(&hot.name("a"), 0).await.unwrap());
    hot.rig.clock.advance(Duration::from_secs(601));
    // As a role without `DeleteItem` is answered: a fold removes shards.
    let faults = Faults::by(|asked| match asked {
        Asked::Transact([Write::Bucket(first), ..], _) if first.key.pk.contains("#a#") => {
            Fate::Denied
        }
        _ => Fate::Pass,
    });
    let aggregator = hot.rig.aggregator(hot.rig.table.client(1).with_faults(faults));
    let mut records = hot.records("a", 0, 5);
    records.extend(hot.records("b", 100, 950));
    let report = aggregator.process(&records).await;
    assert!(report.is_complete(), "usage is counted");
    assert_eq!(report.error_count, 1, "{:?}", report.errors);
    assert!(report.errors[0].starts_with("upkeep of ") && report.errors[0].contains("permission"));
    assert!(report.lines("stack", hot.rig.clock.now())[0].contains("\"WARNING\""));
    assert_eq!((report.kept.folds, report.kept.splits), (0, 1));
    assert_eq!((hot.shards("a").len(), hot.shards("b").len()), (2, 2));
}

/// Each attempt to fold reads all shards there can be.
#[tokio::test]
async fn an_aggregator_looks_at_shards_only_where_it_may_find_some_to_fold() {
    let hot = Hot::new().await;
    for entity in ["a", "b", "c"] {
        hot.take(entity).await;
    }
    assert!(hot.upkeep().split(&hot.name("a"), 0).await.unwrap());
    let reads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reads);
    let faults = Faults::by(move |asked| {
        let is_read = matches!(asked, Asked::BatchGet(keys, _) if keys.len() == 32);
        counted.fetch_add(u64::from(is_read), Ordering::Relaxed);
        Fate::Pass
    });
    let aggregator = hot.rig.aggregator(hot.rig.table.client(1).with_faults(faults));
    // A quiet bucket with shards, a quiet one without any; then seconds until the next batch, and
    // reads so far.
    for (turn, (entity, seconds, expected)) in
        [("a", 10, 1), ("a", 700, 1), ("b", 0, 2), ("b", 700, 2), ("c", 0, 2)].iter().enumerate()
    {
        aggregator.process(&hot.records(entity, 10 * turn as u64, 5)).await;
        assert_eq!(reads.load(Ordering::Relaxed), *expected, "turn {turn}");
        hot.rig.clock.advance(Duration::from_secs(*seconds));
    }
    assert_eq!(hot.shards("a").len(), 1, "folded in the third turn, and forgotten");
}

#[tokio::test]
async fn an_aggregator_that_is_told_not_to_fold_leaves_silent_buckets_alone() {
    let hot = Hot::new().await;
    hot.take("a").await;
    hot.take("b").await;
    assert!(hot.upkeep().split(&hot.name("a"), 0).await.unwrap());
    let settings = Settings::new("stack").windows(UsageWindow::ALL).folds(false);
    let table = Arc::new(hot.rig.table.client(1));
    let aggregator = Aggregator::new(table, settings).clock(Arc::new(hot.rig.clock.clone()));
    aggregator.process(&hot.records("a", 0, 5)).await;
    hot.rig.clock.advance(Duration::from_secs(700));
    aggregator.process(&hot.records("b", 100, 5)).await;
    assert_eq!(hot.shards("a").len(), 2);
}

/// A table that has no room for one bucket has none for the others: they have takes to serve.
#[tokio::test]
async fn upkeep_ends_with_the_first_answer_that_there_is_no_room() {
    let hot = Hot::new().await;
    for entity in ["a", "b"] {
        hot.take(entity).await;
        let mut item = hot.shards(entity).remove(0);
        item.insert("b_rpm_tk".to_owned(), number(0));
        hot.rig.table.insert(&item);
    }
    hot.rig.clock.advance(Duration::from_secs(1));
    let writes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&writes);
    let faults = Faults::by(move |asked| match asked {
        Asked::Bucket(_) => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fate::NotApplied
        }
        _ => Fate::Pass,
    });
    let aggregator = hot.rig.aggregator(hot.rig.table.client(1).with_faults(faults));
    let mut records = hot.records("a", 0, 5);
    records.extend(hot.records("b", 100, 5));
    let report = aggregator.process(&records).await;
    assert!(report.is_complete(), "usage is counted: {report:?}");
    assert_eq!((writes.load(Ordering::Relaxed), report.error_count), (1, 1));
}
