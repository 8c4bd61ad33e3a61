//! The worker beside others, and with answers that are lost, late or empty.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_aggregator::Poison;
use zae_limiter_dynamodb::stream::Checkpoint;
use zae_limiter_testkit::table::{EvalOptions, Fate, Faults, Operation, Point};

impl World {
    /// A worker that meets these faults with its first writes.
    fn worker_with(&self, fates: impl IntoIterator<Item = Fate>) -> Worker {
        let (fates, sent): (Vec<Fate>, _) = (fates.into_iter().collect(), AtomicU32::new(0));
        let faults = Faults::by(move |asked| match asked.operation() {
            Operation::Update => {
                let turn = sent.fetch_add(1, Ordering::Relaxed) as usize;
                fates.get(turn).copied().unwrap_or(Fate::Pass)
            }
            _ => Fate::Pass,
        });
        self.worker_on(Arc::new(self.table.client(7).with_faults(faults)))
    }
}

fn passing() -> StreamError {
    StreamError::Passing("throttled".to_owned())
}

#[tokio::test]
async fn a_drain_reads_everything_that_was_there() {
    let world = World::new(&["s"]).await;
    for _ in 0..100 {
        world.take("s", "a", 1_000);
    }
    world.worker().drain(|_| {}).await.unwrap();
    assert_eq!(world.first_hour("a"), 100_000);
}

/// An answer without records does not prove that there are none, and neither does a failure.
#[tokio::test]
async fn empty_and_failed_answers_do_not_end_a_drain() {
    let world = World::new(&["s"]).await;
    world.take("s", "a", 1_000);
    world.streams.lock().silences = 2;
    world.worker().drain(|_| {}).await.unwrap();
    assert_eq!(world.first_hour("a"), 1_000);
    let mut worker = world.worker();
    worker.turn().await.unwrap();
    world.take("s", "a", 1_000);
    world.streams.lock().failures = vec![passing(); 4];
    worker.drain(|_| {}).await.unwrap();
    assert_eq!(world.first_hour("a"), 2_000);
}

/// Eight failures in a row are too many; eight in an hour of work are not.
#[tokio::test]
async fn a_drain_that_goes_on_is_not_given_up() {
    let world = World::new(&["s"]).await;
    for _ in 0..100 {
        world.take("s", "a", 1_000);
    }
    let streams = world.streams.clone();
    let mut turns = 0;
    let tell = |_: &_| {
        turns += 1;
        if turns % 2 == 0 && turns < 40 {
            streams.lock().failures.push(passing());
        }
    };
    world.worker().drain(tell).await.unwrap();
    assert_eq!(world.first_hour("a"), 100_000);
}

/// Checkpoints and snapshots are writes of the table, and come back in its stream.
#[tokio::test]
async fn a_drain_is_not_kept_by_what_it_writes_itself() {
    let world = World::new(&["s"]).await;
    world.take("s", "a", 1_000);
    let mut turns = 0;
    let tell = |_: &_| {
        turns += 1;
        if turns < 50 {
            world.streams.other("s", START_S);
        }
    };
    world.worker().drain(tell).await.unwrap();
    assert!(turns < 10, "{turns} looks");
}

#[tokio::test]
async fn a_drain_waits_for_a_parent_that_another_worker_reads() {
    let world = World::new(&["p"]).await;
    for _ in 0..20 {
        world.take("p", "a", 1_000);
    }
    world.streams.split("p", &["c"]);
    world.take("c", "a", 1_000);
    // The first claims the parent, and is not heard of again.
    world.worker().turn().await.unwrap();
    world.worker().drain(|_| {}).await.unwrap();
    assert_eq!(world.first_hour("a"), 21_000);
}

/// Also those of a shard that had nothing to count.
#[tokio::test]
async fn the_children_of_a_shard_that_has_ended_are_read_at_once() {
    let world = World::new(&["p"]).await;
    world.streams.other("p", START_S);
    world.streams.split("p", &["c"]);
    world.take("c", "a", 1_000);
    let mut worker = world.worker();
    for _ in 0..2 {
        worker.turn().await.unwrap();
    }
    assert_eq!((world.first_hour("a"), worker.totals().shards_done), (1_000, 1));
}

#[tokio::test]
async fn a_child_whose_parent_was_gone_before_anybody_came_is_read() {
    let world = World::new(&["p"]).await;
    world.streams.split("p", &["c"]);
    world.take("c", "a", 1_000);
    world.streams.drop_shard("p");
    world.worker().turn().await.unwrap();
    assert_eq!(world.first_hour("a"), 1_000);
}

/// A failure is followed by a pause, an iterator that has expired by another at once.
#[tokio::test]
async fn a_reader_that_failed_pauses_and_one_whose_iterator_expired_does_not() {
    let world = World::new(&["s"]).await;
    let mut worker = world.worker();
    worker.turn().await.unwrap();
    world.take("s", "a", 1_000);
    world.streams.lock().failures.push(passing());
    for _ in 0..3 {
        worker.turn().await.unwrap();
    }
    assert_eq!(world.first_hour("a"), 0, "no time has passed");
    world.pass(1);
    worker.turn().await.unwrap();
    assert_eq!(world.first_hour("a"), 1_000);
    world.take("s", "a", 1_000);
    world.streams.lock().expires = true;
    for _ in 0..2 {
        worker.turn().await.unwrap();
    }
    assert_eq!(world.first_hour("a"), 2_000);
}

/// Not counted: neither the end of a shard nor the place before it is forgotten.
#[tokio::test]
async fn a_shard_whose_last_records_are_not_counted_has_not_ended() {
    let world = World::new(&["p"]).await;
    for _ in 0..7 {
        world.take("p", "a", 1_000);
    }
    world.take("p", "b", 1_000);
    world.streams.split("p", &["c"]);
    let table = Dying::throttling(&world.table, format!("{}/ENTITY#b", world.namespace));
    let mut worker = world.worker_on(Arc::new(table));
    for _ in 0..4 {
        worker.turn().await.unwrap();
        world.pass(2);
    }
    let checkpoint = world.checkpoint("p").unwrap();
    let counted = world.streams.sequence("p", 6);
    assert_eq!((checkpoint.is_done, checkpoint.sequence), (false, Some(counted)));
    assert_eq!(worker.totals().repeated, 0, "nothing before it is read again");
    drop(worker);
    world.pass(20);
    world.worker().drain(|_| {}).await.unwrap();
    assert_eq!((world.first_hour("a"), world.first_hour("b")), (7_000, 1_000));
}

/// The shard is gone from the list, and its reader may still have what it was given.
#[tokio::test]
async fn a_shard_that_another_worker_reads_is_no_gap() {
    let world = World::new(&["p"]).await;
    world.take("p", "a", 1_000);
    let mut first = world.worker();
    first.turn().await.unwrap();
    world.streams.drop_shard("p");
    let mut second = world.worker();
    second.turn().await.unwrap();
    assert_eq!(second.totals().usage_gaps, 0);
    assert!(!world.checkpoint("p").unwrap().is_done);
}

#[tokio::test]
async fn a_shard_that_goes_while_it_is_read_is_a_gap() {
    let world = World::new(&["p"]).await;
    world.take("p", "a", 1_000);
    let mut worker = world.worker();
    worker.turn().await.unwrap();
    world.streams.drop_shard("p");
    worker.turn().await.unwrap();
    world.pass(20);
    worker.turn().await.unwrap();
    assert_eq!(worker.totals().usage_gaps, 1);
    assert!(world.checkpoint("p").unwrap().is_done);
}

#[tokio::test]
async fn two_workers_count_a_gap_once() {
    let world = World::new(&["p"]).await;
    world.take("p", "a", 1_000);
    world.worker().drain(|_| {}).await.unwrap();
    world.streams.drop_shard("p");
    world.pass(20);
    // Each waits for the other before every call: both have listed when the first writes.
    let slow = || world.table.client(7).with_gate(Arc::new(|_: u32, _: Point| 1));
    let (mut first, mut second) =
        (world.worker_on(Arc::new(slow())), world.worker_on(Arc::new(slow())));
    let (one, other) = tokio::join!(first.turn(), second.turn());
    assert!(one.unwrap().problems.is_empty() && other.unwrap().problems.is_empty());
    assert_eq!(first.totals().usage_gaps + second.totals().usage_gaps, 1);
    assert_eq!(world.checkpoint("p").unwrap().gaps, 1);
}

/// A write whose answer is lost is sent again and meets itself; one that is turned away is sent
/// again as well.
#[tokio::test]
async fn a_checkpoint_whose_answer_is_lost_keeps_the_shard() {
    for fate in [Fate::LostAfter, Fate::LostBefore, Fate::NotApplied] {
        let world = World::new(&["s"]).await;
        world.take("s", "a", 1_000);
        // The first write claims the shard.
        let mut worker = world.worker_with([fate]);
        let turn = worker.turn().await.unwrap();
        assert!(turn.problems.is_empty(), "{fate:?}: {turn:?}");
        assert_eq!((world.first_hour("a"), worker.totals().leases_lost), (1_000, 0), "{fate:?}");
    }
}

/// Every checkpoint counts, on whatever page it is.
#[tokio::test]
async fn checkpoints_beyond_the_first_page_are_read() {
    let world = World::on(EvalOptions::new().page_max(1), &["s1", "s2", "s3"]).await;
    for shard in ["s1", "s2", "s3"] {
        world.take(shard, shard, 1_000);
    }
    world.worker().drain(|_| {}).await.unwrap();
    for shard in ["s1", "s2", "s3"] {
        world.take(shard, shard, 1_000);
    }
    // Who does not know a checkpoint cannot claim its shard.
    world.worker().drain(|_| {}).await.unwrap();
    assert_eq!(["s1", "s2", "s3"].map(|entity| world.first_hour(entity)), [2_000; 3]);
}

/// The list of shards says where each begins now. What is gone before the checkpoint was counted;
/// without the record of the checkpoint itself nobody can tell.
#[tokio::test]
async fn records_that_are_gone_behind_the_checkpoint_are_a_gap_and_those_before_it_are_none() {
    for (gone, gaps) in [(9, 0), (10, 1), (13, 1)] {
        let world = World::new(&["s"]).await;
        world.streams.lock().tells_first = true;
        for _ in 0..10 {
            world.take("s", "a", 1_000);
        }
        world.worker().drain(|_| {}).await.unwrap();
        for _ in 0..10 {
            world.take("s", "a", 1_000);
        }
        world.streams.forget("s", gone);
        let mut next = world.worker();
        next.drain(|_| {}).await.unwrap();
        assert_eq!(next.totals().usage_gaps, gaps, "{gone} are gone");
        assert_eq!(world.checkpoint("s").unwrap().gaps, i64::try_from(gaps).unwrap());
    }
}

/// Somebody else counts and trims between the two lists: by the older list of checkpoints the
/// shard would begin behind its checkpoint.
#[tokio::test]
async fn what_another_worker_trims_between_two_lists_is_no_gap() {
    let world = World::new(&["s"]).await;
    world.streams.lock().tells_first = true;
    for _ in 0..10 {
        world.take("s", "a", 1_000);
    }
    world.worker().drain(|_| {}).await.unwrap();
    for _ in 0..10 {
        world.take("s", "a", 1_000);
    }
    let (table, streams) = (world.table.clone(), world.streams.clone());
    let is_checkpoint = |item: &_| Checkpoint::of(item).is_some();
    let mut counted = table.items().into_iter().find(is_checkpoint).unwrap();
    counted.insert("seq".to_owned(), AttributeValue::S(streams.sequence("s", 19)));
    let before = streams.lock().lists;
    // Between the lists: after that of checkpoints if it is the first, before it if it is not.
    let gate = move |_: u32, point: Point| {
        let lists = streams.lock().lists;
        let is_between = match point {
            Point::Before(Operation::Query) => lists > before,
            Point::After(Operation::Query) => lists == before,
            _ => false,
        };
        if is_between {
            table.insert(&counted);
            streams.forget("s", 19);
        }
        0
    };
    let mut next = world.worker_on(Arc::new(world.table.client(7).with_gate(Arc::new(gate))));
    next.turn().await.unwrap();
    assert_eq!(next.totals().usage_gaps, 0);
}

/// A record from the future, by this clock: nobody is ahead of the stream.
#[tokio::test]
async fn a_clock_that_is_behind_makes_no_reader_early() {
    let world = World::new(&["s"]).await;
    world.take_at("s", "a", 1_000, START_S + 5);
    world.worker().turn().await.unwrap();
    assert_eq!(world.checkpoint("s").unwrap().late_ms, 0);
}

#[tokio::test]
async fn an_answer_of_nothing_but_poison_is_told_and_gone_by() {
    let world = World::new(&["s"]).await;
    world.streams.lock().poison.push(Poison {
        stream_shard: "s".to_owned(),
        sequence: "000000000000000000100".to_owned(),
        key: "?".to_owned(),
        why: "it has no key".to_owned(),
        body: serde_json::Value::Null,
    });
    let mut worker = world.worker();
    worker.turn().await.unwrap();
    assert_eq!(worker.totals().poison, 1);
    let checkpoint = world.checkpoint("s").unwrap();
    assert_eq!(checkpoint.sequence.as_deref(), Some("000000000000000000100"));
}
