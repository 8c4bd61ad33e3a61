//! The worker on a stream that is simulated: several shards, splits, repetitions, deaths.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod adverse;
#[cfg(feature = "streams")]
mod engine;
#[cfg(feature = "streams")]
mod replies;
mod sim;

use std::sync::Arc;
use std::task::Poll;

use zae_limiter_aggregator::{StreamError, Worker, WorkerError};
use zae_limiter_store::Clock as _;

use crate::upkeep::Hot;
use sim::{Dying, FakeStreams, START_S, World};

const HOUR: &str = "2026-01-31T23:00:00Z";

#[tokio::test]
async fn a_stream_is_counted_once_however_often_it_is_drained() {
    let world = World::new(&["s1", "s2", "s3"]).await;
    for number in 0..40 {
        world.take(["s1", "s2", "s3"][number % 3], ["a", "b", "c"][number % 3], 1_500);
    }
    world.take_at("s1", "a", 250, START_S + 3_600);
    for _ in 0..3 {
        world.worker().drain(|_| {}).await.unwrap();
    }
    let used = world.used("a");
    assert_eq!(used[HOUR], 14 * 1_500);
    assert_eq!((used["2026-02-01T00:00:00Z"], used["2026-02-01"]), (250, 250));
    assert_eq!((world.first_hour("b"), world.first_hour("c")), (13 * 1_500, 13 * 1_500));
}

#[tokio::test]
async fn a_child_stream_shard_waits_for_its_parent() {
    let world = World::new(&["p"]).await;
    for _ in 0..20 {
        world.take("p", "a", 1_000);
    }
    world.streams.split("p", &["c1", "c2"]);
    for _ in 0..20 {
        world.take("c1", "a", 1_000);
        world.take("c2", "b", 1_000);
    }
    world.streams.split("c1", &["d"]);
    world.take("d", "a", 1_000);
    let mut worker = world.worker();
    worker.turn().await.unwrap();
    // The first look has read a part of the parent, and nothing else.
    assert_eq!(world.streams.lock().first_read, ["p"]);
    assert_eq!(world.first_hour("a"), 7_000);
    worker.drain(|_| {}).await.unwrap();
    let order = world.streams.lock().first_read.clone();
    let place = |id: &str| order.iter().position(|read| read == id).unwrap();
    assert!(place("p") < place("c1") && place("c1") < place("d"), "{order:?}");
    assert_eq!((world.first_hour("a"), world.first_hour("b")), (41_000, 20_000));
    assert!(world.checkpoint("p").unwrap().is_done && world.checkpoint("c1").unwrap().is_done);
    assert!(!world.checkpoint("d").unwrap().is_done);
    assert_eq!(worker.totals().shards_done, 2);
}

#[tokio::test]
async fn a_parent_that_another_worker_reads_holds_its_children_back() {
    let world = World::new(&["p"]).await;
    for _ in 0..20 {
        world.take("p", "a", 1_000);
    }
    world.streams.split("p", &["c"]);
    world.take("c", "a", 1_000);
    let (mut first, mut second) = (world.worker(), world.worker());
    first.turn().await.unwrap();
    for _ in 0..3 {
        second.turn().await.unwrap();
        world.pass(3);
    }
    assert_eq!((second.totals().records, second.totals().elsewhere), (0, 1));
    assert_eq!(world.first_hour("a"), 7_000);
    // The lease ends without a sign of life: the second goes on where the first was.
    world.pass(15);
    second.drain(|_| {}).await.unwrap();
    assert_eq!(world.first_hour("a"), 21_000);
    // The first finds out by its checkpoint, and has done no harm.
    first.drain(|_| {}).await.unwrap();
    assert_eq!((world.first_hour("a"), first.totals().leases_lost), (21_000, 1));
}

#[tokio::test]
async fn two_workers_at_once_count_once() {
    for batch in [1, 3, 50] {
        let world = World::new(&["s1", "s2"]).await;
        world.streams.lock().batch = batch;
        let (mut first, mut second) = (world.worker(), world.worker());
        for round in 0_i64..60 {
            world.take(
                ["s1", "s2"][usize::from(round % 3 == 0)],
                ["a", "b"][usize::from(round % 3 == 0)],
                1_001,
            );
            first.turn().await.unwrap();
            // Long enough, now and then, that the lease of the first ends while it reads.
            world.pass(if round % 7 == 0 { 20 } else { 1 });
            second.turn().await.unwrap();
        }
        first.drain(|_| {}).await.unwrap();
        second.drain(|_| {}).await.unwrap();
        world.pass(20);
        world.worker().drain(|_| {}).await.unwrap();
        assert_eq!((world.first_hour("a"), world.first_hour("b")), (40 * 1_001, 20 * 1_001));
        assert!(first.totals().counted > 0 && second.totals().counted > 0, "both have worked");
    }
}

/// Every number of answered writes after which a worker can die, with the last write landed or not,
/// and batches that begin with what was delivered before.
#[tokio::test]
async fn a_worker_that_dies_anywhere_loses_nothing_and_counts_nothing_twice() {
    for lands in [false, true] {
        for repeats in [0, 2] {
            for calls in 0..30 {
                let world = World::new(&["p"]).await;
                world.streams.lock().repeats = repeats;
                for _ in 0..20 {
                    world.take("p", "a", 1_001);
                    world.take("p", "b", 7);
                }
                world.streams.split("p", &["c"]);
                for _ in 0..5 {
                    world.take("c", "a", 1_001);
                }
                let mut worker =
                    world.worker_on(Arc::new(Dying::after(&world.table, calls, lands)));
                for _ in 0..8 {
                    let _ = worker.turn().await;
                }
                drop(worker);
                world.pass(20);
                world.worker().drain(|_| {}).await.unwrap();
                let found = (world.first_hour("a"), world.first_hour("b"));
                assert_eq!(found, (25 * 1_001, 140), "died after {calls}, {lands}, {repeats}");
            }
        }
    }
}

#[tokio::test]
async fn a_checkpoint_moves_only_behind_what_is_counted() {
    let world = World::new(&["s"]).await;
    for _ in 0..7 {
        world.take("s", "a", 1_000);
    }
    // The claim is answered, and nothing after it.
    let mut worker = world.worker_on(Arc::new(Dying::after(&world.table, 1, false)));
    worker.turn().await.unwrap();
    assert_eq!(world.checkpoint("s").unwrap().sequence, None);
    assert_eq!(world.first_hour("a"), 0);
    assert!(worker.totals().failures > 0);
}

#[tokio::test]
async fn a_checkpoint_stays_before_the_first_record_that_is_not_counted() {
    let world = World::new(&["s"]).await;
    for _ in 0..3 {
        world.take("s", "a", 1_000);
    }
    for _ in 0..2 {
        world.take("s", "b", 1_000);
        world.take("s", "a", 1_000);
    }
    let partition = format!("{}/ENTITY#b", world.namespace);
    let table = Dying::throttling(&world.table, partition);
    let mut worker = world.worker_on(Arc::new(table));
    worker.turn().await.unwrap();
    // What is counted of the rest will not count twice; the checkpoint does not speak for it.
    assert_eq!((world.first_hour("a"), world.first_hour("b")), (5_000, 0));
    let third = world.streams.sequence("s", 2);
    assert_eq!(world.checkpoint("s").unwrap().sequence, Some(third));
    drop(worker);
    world.pass(20);
    world.worker().drain(|_| {}).await.unwrap();
    assert_eq!((world.first_hour("a"), world.first_hour("b")), (5_000, 2_000));
}

#[tokio::test]
async fn a_trimmed_checkpoint_is_counted() {
    let world = World::new(&["s"]).await;
    for _ in 0..10 {
        world.take("s", "a", 1_000);
    }
    world.worker().drain(|_| {}).await.unwrap();
    for _ in 0..10 {
        world.take("s", "a", 1_000);
    }
    // Three of the second ten are gone before anybody has read them.
    world.streams.forget("s", 13);
    let mut worker = world.worker();
    worker.drain(|_| {}).await.unwrap();
    assert_eq!(worker.totals().usage_gaps, 1);
    assert_eq!(world.checkpoint("s").unwrap().gaps, 1);
    assert_eq!(world.first_hour("a"), 17_000);
    let mut worker = world.worker();
    worker.drain(|_| {}).await.unwrap();
    assert_eq!((worker.totals().usage_gaps, world.checkpoint("s").unwrap().gaps), (0, 1));
}

#[tokio::test]
async fn a_shard_that_is_gone_before_its_end_is_a_gap_and_holds_nobody_back() {
    let world = World::new(&["p"]).await;
    world.take("p", "a", 1_000);
    world.worker().drain(|_| {}).await.unwrap();
    world.take("p", "a", 1_000);
    world.streams.split("p", &["c"]);
    world.take("c", "a", 1_000);
    world.streams.drop_shard("p");
    world.pass(20);
    for gaps in [1, 0] {
        let mut worker = world.worker();
        worker.drain(|_| {}).await.unwrap();
        assert_eq!(worker.totals().usage_gaps, gaps);
    }
    assert_eq!(world.first_hour("a"), 2_000);
    let lost = world.checkpoint("p").unwrap();
    assert_eq!((lost.is_done, lost.gaps), (true, 1));
}

#[tokio::test]
async fn nothing_feeds_back() {
    let world = World::new(&["s"]).await;
    world.take("s", "a", 1_000);
    let mut worker = world.worker();
    worker.turn().await.unwrap();
    let writes = || world.table.take_counters();
    writes();
    // Whatever is written comes back: checkpoints, snapshots. None of it is answered by a write
    // until the lease is renewed.
    for _ in 0..20 {
        world.streams.other("s", START_S);
        worker.turn().await.unwrap();
    }
    assert_eq!(writes().changes, 0);
    world.pass(5);
    worker.turn().await.unwrap();
    assert_eq!(world.checkpoint("s").unwrap().sequence.as_deref().map(str::len), Some(21));
    assert!(writes().changes > 0);
}

#[tokio::test]
async fn failures_pass_and_expired_iterators_are_found_again() {
    let world = World::new(&["s"]).await;
    for _ in 0..30 {
        world.take("s", "a", 1_000);
    }
    let mut worker = world.worker();
    for round in 0..40 {
        if round % 3 == 0 {
            let failure = StreamError::Passing("throttled".to_owned());
            world.streams.lock().failures.push(failure);
        }
        world.streams.lock().expires = round % 5 == 0;
        worker.turn().await.unwrap();
        world.pass(4);
    }
    assert_eq!(world.first_hour("a"), 30_000);
    assert_eq!((worker.totals().usage_gaps, worker.totals().repeated), (0, 0));
    assert!(worker.totals().failures > 5);
}

#[tokio::test]
async fn a_stream_that_never_answers_ends_a_drain_and_one_that_is_gone_ends_a_worker() {
    let world = World::new(&["s"]).await;
    let silent = vec![StreamError::Passing("no route".to_owned()); 1_000];
    world.streams.lock().failures = silent;
    let error = world.worker().drain(|_| {}).await.unwrap_err();
    assert!(matches!(&error, WorkerError::Stuck(why) if why.contains("no route")), "{error}");
    world.streams.lock().failures = vec![StreamError::Missing("no stream".to_owned())];
    let error = world.worker().run(std::future::pending(), |_| {}).await.unwrap_err();
    assert!(matches!(error, WorkerError::NoStream(_)), "{error}");
}

#[tokio::test]
async fn a_worker_that_is_stopped_gives_its_lease_back() {
    let world = World::new(&["s"]).await;
    for _ in 0..20 {
        world.take("s", "a", 1_000);
    }
    let mut worker = world.worker();
    let stop = std::future::poll_fn(|context| {
        if world.first_hour("a") == 20_000 {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    worker.run(stop, |_| {}).await.unwrap();
    assert_eq!(world.first_hour("a"), 20_000);
    // Another one goes on at once, without any time that passes.
    world.take("s", "a", 1_000);
    let mut next = world.worker();
    next.turn().await.unwrap();
    assert_eq!((world.first_hour("a"), next.totals().elsewhere), (21_000, 0));
    assert_eq!(next.totals().repeated, 0);
}

#[tokio::test]
async fn what_is_counted_is_trimmed_and_the_checkpoint_stays() {
    let world = World::new(&["s"]).await;
    world.streams.lock().batch = 300;
    for _ in 0..1_000 {
        world.take("s", "a", 1_000);
    }
    let mut worker = world.worker();
    worker.drain(|_| {}).await.unwrap();
    // Once for the first 600; 400 more are too few to be worth a request.
    let trims = world.streams.lock().trims.clone();
    assert_eq!(trims, [("s".to_owned(), world.streams.sequence("s", 599))]);
    // Who starts next finds the record of the checkpoint, and sees no gap.
    world.take("s", "a", 1_000);
    let mut next = world.worker();
    next.drain(|_| {}).await.unwrap();
    assert_eq!((next.totals().usage_gaps, world.first_hour("a")), (0, 1_001_000));
}

#[tokio::test]
async fn a_drain_ends_although_others_write() {
    let world = World::new(&["s"]).await;
    world.take("s", "a", 1_000);
    let mut worker = world.worker();
    let later = START_S + 5;
    worker.drain(|_| world.take_at("s", "a", 1_000, later)).await.unwrap();
    assert!(world.first_hour("a") >= 1_000);
}

/// An end gives the lease back, which says nothing about when the worker was seen.
#[tokio::test]
async fn a_worker_that_has_ended_was_seen_when_it_ended() {
    let world = World::new(&["s1"]).await;
    world.take("s1", "a", 1_000);
    world.worker().drain(|_| {}).await.unwrap();
    let checkpoint = world.checkpoint("s1").unwrap();
    assert_eq!(checkpoint.seen_at(), world.clock.now());
    assert!(checkpoint.is_free_for("another", world.clock.now()));
}

/// What upkeep does in batches, and what it does where no record comes, are both in the totals.
#[tokio::test]
async fn the_totals_have_what_upkeep_did() {
    let hot = Hot::new().await;
    hot.take("a").await;
    let streams = FakeStreams::new(&["s1"]);
    streams.lock().batch = 1_000;
    let tell = |from: u64, records: u64| {
        for record in hot.records("a", from, records) {
            streams.lock().push("s1", record.key, (record.old, record.new), record.at_s);
        }
    };
    let (table, clock) = (Arc::new(hot.rig.table.clone()), Arc::new(hot.rig.clock.clone()));
    let aggregator = hot.rig.aggregator(hot.rig.table.client(1));
    let mut worker = Worker::new(Arc::new(streams.clone()), table, aggregator).clock(clock);
    tell(0, 950);
    worker.drain(|_| {}).await.unwrap();
    assert_eq!((worker.totals().kept.splits, hot.shards("a").len()), (1, 2));
    // The bucket is known to have shards, and then nobody asks it any more.
    tell(1_000, 2);
    for _ in 0..3 {
        hot.rig.clock.advance(std::time::Duration::from_secs(2));
        worker.turn().await.unwrap();
    }
    assert_eq!((worker.totals().batches, worker.totals().kept.folds), (2, 0));
    hot.rig.clock.advance(std::time::Duration::from_secs(700));
    let turn = worker.turn().await.unwrap();
    assert!(turn.reports.is_empty(), "{turn:?}");
    assert_eq!((turn.kept.folds, worker.totals().kept.folds), (1, 1));
}
