//! Usage of a namespace that is gone does not rise from the dead.

use std::time::Duration;

use zae_limiter_aggregator::Record;
use zae_limiter_core::{EventId, NamespaceId, TimeMs};
use zae_limiter_store::{Change, NamespaceStore};
use zae_limiter_testkit::table::{Fate, Faults, Operation};

use crate::log::{Log, at};
use crate::rig::Rig;

fn change(n: u64) -> Change {
    let now = TimeMs(1_800_000_000_000);
    Change { principal: None, reason: None, at: now, event: EventId::new(now, u128::from(n)) }
}

#[tokio::test]
async fn a_purged_namespace_gets_no_usage() {
    let rig = Rig::new().await;
    let store = rig.store().await;
    let (name, id) = ("tenant".parse().unwrap(), NamespaceId::from_entropy(5));
    store.register_namespace(&name, &id, &change(1)).await.unwrap();
    let mut log = Log::new(id.as_str());
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    let of_tenant = || {
        let of = |item: &&zae_limiter_aggregator::Item| {
            item["PK"].as_s().unwrap().starts_with(id.as_str())
        };
        rig.table.items().iter().filter(of).count()
    };

    let aggregator = rig.aggregator(rig.table.client(1));
    assert_eq!(aggregator.process(&log.records[..1]).await.snapshots, 3);
    // Deleted is not gone: it can be recovered.
    store.delete_namespace(&name, &change(2)).await.unwrap();
    rig.clock.advance(Duration::from_secs(61));
    assert_eq!(aggregator.process(&log.records[1..2]).await.snapshots, 3);
    store.purge_namespace(&id, &change(3)).await.unwrap();
    assert_eq!(of_tenant(), 0);
    rig.clock.advance(Duration::from_secs(61));
    let report = aggregator.process(&log.records[2..]).await;
    assert_eq!((report.skipped, report.snapshots), (3, 0), "{report:?}");
    assert!(report.is_complete(), "there is nothing to repeat");
    assert_eq!(of_tenant(), 0);
    // Nor one that was never there, or whose record somebody else has removed.
    log.namespace = "unknown".to_owned();
    log.records.clear();
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    assert_eq!(aggregator.process(&log.records).await.skipped, 3);
}

#[tokio::test]
async fn the_registry_is_read_once_a_minute() {
    let rig = Rig::new().await;
    let log = Log::two_hundred(&rig.namespace, 1, 0);
    let aggregator = rig.aggregator(rig.table.client(1));
    let reads = |rig: &Rig| rig.table.take_counters().calls(Operation::BatchGet);
    reads(&rig);
    // Buckets of several shards are read by upkeep, too.
    let is_alone = |record: &Record| record.key.0.ends_with("#0");
    let records: Vec<Record> = log.records.into_iter().filter(is_alone).collect();
    let (first, second) = records.split_at(records.len() / 2);
    for batch in first.chunks(10) {
        aggregator.process(batch).await;
    }
    assert_eq!(reads(&rig), 1);
    rig.clock.advance(Duration::from_secs(61));
    aggregator.process(second).await;
    assert_eq!(reads(&rig), 1);
}

/// Without the registry nobody knows what may be counted: the batch comes again.
#[tokio::test]
async fn a_registry_that_cannot_be_read_is_a_failure() {
    let rig = Rig::new().await;
    let log = Log::two_hundred(&rig.namespace, 1, 0);
    let down = Faults::by(|asked| match asked.operation() {
        Operation::BatchGet => Fate::Unreachable,
        _ => Fate::Pass,
    });
    let report = rig.aggregator(rig.table.client(1).with_faults(down)).process(&log.records).await;
    assert_eq!(report.failures["shardId-1"], log.records[0].sequence);
    assert_eq!(report.counted, 0);
    rig.process(&log.records).await;
    assert_eq!(rig.usage().await, log.ledger());
}
