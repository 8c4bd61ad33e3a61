//! A writing process is killed at any moment: nothing that was acknowledged is lost, nothing is taken twice, and the file
//! stays sound.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::common::{START, Scratch, bucket, entity, gpt, limits, my_role, start_child};
use zae_limiter_core::{Milli, Take, UsageWindow};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use zae_limiter_store::{
    BucketStore, ConsumeOutcome, ConsumeRequest, Entropy, HistoryStore, LimitsInForce, MemberTake, PageRequest, SystemEntropy, UsageQuery,
};

/// The test of this file that a child process runs.
const CHILD: &str = "kill9::child_process";

const KILLS: usize = 100;
const CAPACITY: i64 = 1_000_000_000;
/// Callers in a child that shares transactions.
const CALLERS: usize = 8;
/// The longest a child lives, in microseconds; most of it is its start.
const LIFE_MICROS_MAX: u64 = 60_000;

fn big() -> LimitsInForce {
    limits("rpd:1000000000/day")
}

#[expect(clippy::disallowed_methods, reason = "the moment of death is chosen by chance")]
fn live_a_while() {
    std::thread::sleep(Duration::from_micros(SystemEntropy.next_u64() % LIFE_MICROS_MAX));
}

fn acknowledged(path: &Path) -> i64 {
    let size = fs::metadata(path.with_extension("acks")).map_or(0, |file| file.len());
    i64::try_from(size).expect("a small file")
}

#[test]
fn a_killed_writer_loses_nothing_and_takes_nothing_twice() {
    let scratch = Scratch::new();
    let path = scratch.path();
    drop(scratch.open());
    let mut in_flight_max = 0;
    let mut deaths_at_work = 0;
    for kill in 0..KILLS {
        let (role, in_flight) = match kill % 4 {
            0 | 1 => ("one-normal", 1),
            2 => ("many-normal", CALLERS),
            _ => ("many-full", CALLERS),
        };
        in_flight_max += i64::try_from(in_flight).expect("few");
        let before = acknowledged(&path);
        let child = start_child(CHILD, role, &path);
        live_a_while();
        drop(child);
        let acks = acknowledged(&path);
        deaths_at_work += usize::from(acks > before);
        check_ledger(&scratch, acks, in_flight_max);
    }
    assert!(deaths_at_work > KILLS / 10, "only {deaths_at_work} children had begun to work; give them longer");
}

/// acknowledged ≤ consumed ≤ acknowledged + in flight; what was consumed is what is missing; child and parent agree.
fn check_ledger(scratch: &Scratch, acknowledged: i64, in_flight_max: i64) {
    let store = scratch.open();
    let status = store.status(START).expect("a status");
    assert_eq!(status.problems, Vec::<String>::new());
    crate::common::runtime().block_on(async {
        let (Some(child), Some(parent)) = (bucket(&store, "child").await, bucket(&store, "parent").await) else {
            assert_eq!(acknowledged, 0, "an acknowledged grant has no bucket");
            return;
        };
        let (own, above) = (&child.state.limits()[0], &parent.state.limits()[0]);
        assert_eq!((own.consumed, own.balance), (above.consumed, above.balance), "a chain is taken from as a whole");
        assert_eq!(own.balance.0 + own.consumed.0, Milli::from_tokens(CAPACITY.cast_unsigned()).0, "nothing is minted or lost");
        let consumed = own.consumed.floor_tokens();
        assert!((acknowledged..=acknowledged + in_flight_max).contains(&consumed), "{acknowledged} acknowledged, {consumed} consumed");
        let query = UsageQuery {
            entity: Some(entity("child")),
            resource: None,
            window: UsageWindow::Daily,
            from: None,
            until: None,
            page: PageRequest::default(),
        };
        let usage = store.usage(&query).await.expect("a query").items;
        assert_eq!(usage[0].counters[0].1, own.consumed, "the history agrees");
    });
}

#[test]
fn child_process() {
    let Some((role, path)) = my_role() else { return };
    let (callers, kind) = role.split_once('-').expect("a kind");
    let synchronous = if kind == "full" { Synchronous::Full } else { Synchronous::Normal };
    let store = SqliteStore::open_with(&path, SqliteOptions::new().synchronous(synchronous)).expect("a store");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    runtime.block_on(async {
        let count = if callers == "many" { CALLERS } else { 1 };
        let callers: Vec<_> = (0..count).map(|_| spawn(take_for_ever(store.clone(), path.clone()))).collect();
        for caller in callers {
            caller.await.expect("no panic");
        }
    });
}

async fn take_for_ever(store: SqliteStore, path: std::path::PathBuf) {
    let mut acks = OpenOptions::new().create(true).append(true).open(path.with_extension("acks")).expect("a file");
    let (child, parent, resource, limits) = (entity("child"), entity("parent"), gpt(), big());
    let takes = [Take { limit: 0, amount: Milli::from_tokens(1) }];
    let member = |entity| MemberTake { entity, resource: &resource, limits: &limits, takes: &takes, absent: &[] };
    let members = [member(&child), member(&parent)];
    loop {
        let outcome = store.consume(&ConsumeRequest { members: &members, now: START }).await.expect("a decision");
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
        acks.write_all(b".").expect("an ack");
    }
}

#[expect(clippy::disallowed_methods, reason = "tests may spawn")]
fn spawn(work: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
    tokio::spawn(work)
}
