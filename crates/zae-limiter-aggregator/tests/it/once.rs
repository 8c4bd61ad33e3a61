//! Every record counts once, however often, in whatever pieces and by however many it is
//! delivered.

use std::sync::Arc;

use futures_util::future::join_all;
use zae_limiter_aggregator::{Aggregator, Record};
use zae_limiter_store::SeededEntropy;
use zae_limiter_testkit::table::{EvalTable, Fate, Faults, Odds, SeededGate};

use crate::log::{Log, at};
use crate::rig::{Rig, below};

/// Delivers a batch as the stream does: from the first record that is not complete, until all are.
pub(crate) async fn deliver(aggregator: &Aggregator, records: &[Record]) {
    const DELIVERIES_MAX: usize = 200;
    let mut open = records;
    for _ in 0..DELIVERIES_MAX {
        let report = aggregator.process(open).await;
        let Some(failed) = report.failures.get("shardId-1") else { return };
        let from = open.iter().position(|record| record.sequence == *failed).unwrap();
        open = &open[from..];
    }
    panic!("the batch is never complete");
}

#[tokio::test]
async fn a_batch_twice_counts_once() {
    let rig = Rig::new().await;
    let log = Log::two_hundred(&rig.namespace, 1, 0);
    let aggregator = rig.aggregator(rig.table.client(1));
    let first = aggregator.process(&log.records).await;
    let second = aggregator.process(&log.records).await;
    assert_eq!((first.repeated, second.counted, second.snapshots), (0, 0, 0), "{second:?}");
    assert_eq!(first.counted, second.repeated);
    // Both in one batch.
    let doubled = [log.records.clone(), log.records.clone()].concat();
    assert_eq!(aggregator.process(&doubled).await.counted, 0);
    assert_eq!(rig.usage().await, log.ledger());

    let rig = Rig::new().await;
    let log = Log::two_hundred(&rig.namespace, 1, 0);
    rig.process(&[log.records.clone(), log.records.clone()].concat()).await;
    assert_eq!(rig.usage().await, log.ledger());
}

/// Counted up to any record, then the batch begins again, whole or from any record before.
#[tokio::test]
async fn restarted_at_every_record() {
    for cut in 0..=200 {
        let rig = Rig::new().await;
        let log = Log::two_hundred(&rig.namespace, 2, 0);
        let aggregator = rig.aggregator(rig.table.client(1));
        deliver(&aggregator, &log.records[..cut]).await;
        let from = cut.saturating_sub(cut % 23);
        for batch in log.records[from..].chunks(70) {
            deliver(&aggregator, batch).await;
        }
        assert_eq!(rig.usage().await, log.ledger(), "cut at {cut}");
        deliver(&aggregator, &log.records).await;
        assert_eq!(rig.usage().await, log.ledger(), "cut at {cut}, and again");
    }
}

/// Each has the whole stream, cut otherwise, and their writes interleave.
#[tokio::test]
async fn two_workers_at_once() {
    for seed in 0..60 {
        let rig = Rig::new().await;
        let log = Log::two_hundred(&rig.namespace, seed, 0);
        let gate = Arc::new(SeededGate::new(seed, 60, 5));
        let worker = |client: u32| {
            let table = rig.table.client(client).with_gate(Arc::<SeededGate>::clone(&gate));
            let aggregator = rig.aggregator(table);
            let rng = SeededEntropy::new(seed * 2 + u64::from(client));
            let records = &log.records;
            async move {
                let mut from = 0;
                while from < records.len() {
                    let until = (from + 1 + below(&rng, 60)).min(records.len());
                    deliver(&aggregator, &records[from..until]).await;
                    // Now and then the checkpoint is lost.
                    from = if below(&rng, 4) == 0 { from.max(20) - 20 } else { until };
                }
            }
        };
        join_all([worker(1), worker(2)]).await;
        assert_eq!(rig.usage().await, log.ledger(), "seed {seed}");
    }
}

/// Requests are lost on the way, answers are lost on the way back, and some writes land long after
/// their sender has given up.
#[tokio::test]
async fn lost_requests_and_late_ones() {
    let mut unlucky = 0;
    for seed in 0..60 {
        let rig = Rig::new().await;
        let log = Log::two_hundred(&rig.namespace, seed, i64::try_from(seed % 3).unwrap() * 250);
        let faults = Faults::seeded(seed, Odds { lag: 0, ..Odds::ROUGH });
        let aggregator =
            rig.aggregator(rig.table.client(1).with_faults(faults.clone())).attempts_max(3);
        let rng = SeededEntropy::new(seed);
        let mut from = 0;
        while from < log.records.len() {
            let until = (from + 1 + below(&rng, 60)).min(log.records.len());
            deliver(&aggregator, &log.records[from..until]).await;
            from = until;
        }
        rig.table.land_all();
        assert_eq!(rig.usage().await, log.ledger(), "seed {seed}");
        rig.whole_tokens_are_those_of_the_sums();
        unlucky += faults.drawn();
    }
    assert!(unlucky > 1_000, "faults happened: {unlucky}");
}

/// Shards of one bucket are in different stream shards, which are read in any order: each shard has
/// its own mark.
#[tokio::test]
async fn bucket_shards_in_any_order() {
    for seed in 0..40 {
        let rig = Rig::new().await;
        let log = Log::two_hundred(&rig.namespace, 3, 0);
        let mut streams: Vec<Vec<Record>> = vec![Vec::new(); 3];
        for record in &log.records {
            let shard = record.key.0.rsplit('#').next().unwrap().parse::<usize>().unwrap();
            streams[shard].push(record.clone());
        }
        let aggregator = rig.aggregator(rig.table.client(1));
        let rng = SeededEntropy::new(seed);
        let mut from = [0; 3];
        while let Some(open) = (0..3).find(|shard| from[*shard] < streams[*shard].len()) {
            let drawn = below(&rng, 3);
            let shard = if from[drawn] < streams[drawn].len() { drawn } else { open };
            let until = (from[shard] + 1 + below(&rng, 30)).min(streams[shard].len());
            deliver(&aggregator, &streams[shard][from[shard]..until]).await;
            from[shard] = until;
        }
        assert_eq!(rig.usage().await, log.ledger(), "seed {seed}");
    }
}

/// A take and its refund come to nothing, and still the snapshot must know that they were counted:
/// a write with the take alone may be on its way.
#[tokio::test]
async fn a_sum_of_nothing_is_marked() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    log.adjust(now, ("a", "gpt", 0), &[("tpm", 5_000)]);
    log.adjust(now, ("a", "gpt", 0), &[("tpm", -5_000)]);
    // The first worker reads one record, and its writes get stuck.
    let stuck = Faults::by(|asked| match asked.operation() {
        zae_limiter_testkit::table::Operation::Update => Fate::Late(1_000),
        _ => Fate::Pass,
    });
    let first = rig.aggregator(rig.table.client(1).with_faults(stuck)).attempts_max(1);
    let report = first.process(&log.records[..1]).await;
    assert!(!report.is_complete());
    deliver(&rig.aggregator(rig.table.client(2)), &log.records).await;
    assert_eq!(rig.table.land_all(), 3, "one for each window");
    assert_eq!(rig.usage().await, log.ledger());
}

/// The undone take belongs to an earlier window than the records around it. Its snapshot gets a
/// write out of the order of time, in the order of the stream: delivered again from anywhere, it
/// counts once.
#[tokio::test]
async fn an_undo_in_an_earlier_window_counts_once() {
    let bucket = ("a", "gpt", 0);
    let (ten, eleven) = (at("2026-01-01T10:59:50Z"), at("2026-01-01T11:00:00Z"));
    for first in 0..=6 {
        for again in 0..=first {
            let rig = Rig::new().await;
            let mut log = Log::new(&rig.namespace);
            log.take(ten, bucket, &[("tpm", 9_000)]);
            log.take(ten + 1, bucket, &[("tpm", 1_000)]);
            log.take(eleven, bucket, &[("tpm", 2_000)]);
            log.undo(eleven + 1, ten, bucket, &[("tpm", 9_000)]);
            log.take(eleven + 2, bucket, &[("tpm", 3_000)]);
            log.undo(eleven + 3, ten + 1, bucket, &[("tpm", 1_000)]);
            let aggregator = rig.aggregator(rig.table.client(1));
            deliver(&aggregator, &log.records[..first]).await;
            deliver(&aggregator, &log.records[again..]).await;
            assert_eq!(rig.usage().await, log.ledger(), "{first} counted, again from {again}");
        }
    }
}

/// Some engines do not say what stood in the way of a write.
#[tokio::test]
async fn a_table_that_does_not_show_the_image_is_asked_for_it() {
    let rig = Rig::new().await;
    let log = Log::two_hundred(&rig.namespace, 5, 0);
    rig.process(&log.records[..120]).await;
    let aggregator = rig.aggregator(rig.table.client(1));
    let shy = crate::rig::aggregator(Arc::new(Shy(rig.table.client(2))), &rig.clock);
    deliver(&shy, &log.records[60..]).await;
    assert_eq!(rig.usage().await, log.ledger());
    deliver(&aggregator, &log.records).await;
    assert_eq!(rig.usage().await, log.ledger());
}

/// A table that answers a failed condition without the image.
struct Shy(EvalTable);

mod shy {
    use zae_limiter_dynamodb::table::{
        BatchPage, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write,
    };
    use zae_limiter_store::BoxFuture;

    impl Table for super::Shy {
        fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
            Box::pin(async move {
                self.0.update(update).await.map_err(|error| match error {
                    TableError::Condition(_) => TableError::Condition(None),
                    other => other,
                })
            })
        }
        fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
            self.0.put(put)
        }
        fn transact<'a>(
            &'a self,
            writes: &'a [Write],
            token: &'a str,
        ) -> BoxFuture<'a, Result<(), TableError>> {
            self.0.transact(writes, token)
        }
        fn batch_get<'a>(
            &'a self,
            keys: &'a [Key],
            consistent: bool,
        ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
            self.0.batch_get(keys, consistent)
        }
        fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
            self.0.query(query)
        }
        fn delete_batch<'a>(
            &'a self,
            keys: &'a [Key],
        ) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
            self.0.delete_batch(keys)
        }
    }
}
