//! Several processes on one file.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{
    Kid, START, Scratch, bucket, gpt, limits, my_role, runtime, start_child, take,
};
use zae_limiter_core::Milli;
use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use zae_limiter_store::{BucketStore, PageRequest};

/// The test of this file that a child process runs.
const CHILD: &str = "processes::child_process";

const CAPACITY: u64 = 1000;

fn daily() -> zae_limiter_store::LimitsInForce {
    limits("rpd:1000/day")
}

/// How long a test waits for its children before it calls them stuck.
const PATIENCE: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "a test of several processes waits for them")]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait_for(children: Vec<Kid>) {
    for child in children {
        assert!(child.ends_well(), "a child failed");
    }
}

/// What the children have been granted: one byte each.
fn acknowledged(path: &Path, child: usize) -> u64 {
    fs::metadata(path.with_extension(format!("acks-{child}"))).map_or(0, |file| file.len())
}

/// Four processes, one bucket: no token is given twice and none is lost.
fn four_processes_admit_exactly_the_capacity(kind: &str) {
    let scratch = Scratch::new();
    let path = scratch.path();
    let children: Vec<Kid> =
        (0..4).map(|child| start_child(CHILD, &format!("drain-{kind} {child}"), &path)).collect();
    wait_until("the start of all", || {
        (0..4).all(|child| path.with_extension(format!("acks-{child}")).exists())
    });
    fs::write(path.with_extension("go"), "").expect("a start sign");
    wait_for(children);
    let granted: Vec<u64> = (0..4).map(|child| acknowledged(&path, child)).collect();
    assert_eq!(granted.iter().sum::<u64>(), CAPACITY, "{granted:?}");
    let stored = runtime().block_on(bucket(&scratch.open(), "hot")).expect("a bucket");
    let limit = &stored.state.limits()[0];
    assert_eq!((limit.balance, limit.consumed), (Milli::ZERO, Milli::from_tokens(CAPACITY)));
    assert_eq!(u64::from(stored.state.events), CAPACITY);
}

#[test]
fn four_processes_admit_exactly_the_capacity_normal() {
    four_processes_admit_exactly_the_capacity("normal");
}

#[test]
fn four_processes_admit_exactly_the_capacity_full() {
    four_processes_admit_exactly_the_capacity("full");
}

/// What each process whose clock moves asks for, and when: every 25 ms for ten seconds.
const MOVING_TAKES: i64 = 400;
const MOVING_STEP_MS: i64 = 25;
/// By how much their clocks differ.
const MOVING_SKEW_MS: i64 = 5_000;

/// Four processes whose clocks run and differ: together they get what a burst and the time that any
/// of them has seen allow.
#[test]
fn four_processes_whose_clocks_move_stay_within_the_bound() {
    let scratch = Scratch::new();
    let path = scratch.path();
    drop(scratch.open());
    let children: Vec<Kid> =
        (0..4).map(|child| start_child(CHILD, &format!("moving-normal {child}"), &path)).collect();
    wait_until("the start of all", || {
        (0..4).all(|child| path.with_extension(format!("acks-{child}")).exists())
    });
    fs::write(path.with_extension("go"), "").expect("a start sign");
    wait_for(children);
    let granted: u64 = (0..4).map(|child| acknowledged(&path, child)).sum();
    // 100 at once, and 50 a second for as long as the clocks show, from the first to the last.
    let seconds = (MOVING_TAKES * MOVING_STEP_MS + 3 * MOVING_SKEW_MS) / 1_000;
    let most = u64::try_from(100 + 50 * seconds).expect("positive");
    assert!(granted <= most, "{granted} granted, at most {most} may be");
    // Whoever comes first asks 400 times, slower than the refill, and leaves a full bucket to the
    // others.
    assert!(granted >= 450, "{granted} granted");
    let stored = runtime().block_on(bucket(&scratch.open(), "moving")).expect("a bucket");
    assert_eq!(
        stored.state.limits()[0].consumed,
        Milli::from_tokens(granted),
        "every grant is in the file"
    );
}

/// Neither of two busy processes is kept from its turn.
fn two_busy_processes_both_get_on(kind: &str, enough: u64) {
    let scratch = Scratch::new();
    let path = scratch.path();
    drop(scratch.open());
    let children: Vec<Kid> =
        (0..2).map(|child| start_child(CHILD, &format!("busy-{kind} {child}"), &path)).collect();
    // From the moment when both are at work, each gets on while the other does.
    wait_until("the start of both", || (0..2).all(|child| acknowledged(&path, child) > 0));
    let before: Vec<u64> = (0..2).map(|child| acknowledged(&path, child)).collect();
    wait_until("the progress of both", || {
        (0..2).all(|child| acknowledged(&path, child) >= before[child] + enough)
    });
    fs::write(path.with_extension("stop"), "").expect("a stop sign");
    wait_for(children);
    let granted = acknowledged(&path, 0) + acknowledged(&path, 1);
    let buckets = runtime()
        .block_on(scratch.open().resource_buckets(&gpt(), &PageRequest::default()))
        .expect("a listing")
        .items;
    let consumed: i64 =
        buckets.iter().map(|view| view.state.limits()[0].consumed.floor_tokens()).sum();
    assert_eq!(
        u64::try_from(consumed).expect("not negative"),
        granted,
        "every grant is in the file"
    );
}

#[test]
fn two_busy_processes_both_get_on_normal() {
    two_busy_processes_both_get_on("normal", 500);
}

#[test]
fn two_busy_processes_both_get_on_full() {
    two_busy_processes_both_get_on("full", 30);
}

/// Children that create the file at the same time agree on one. Now and then one took a file that
/// was being made for one of another application, or found it locked and did not wait: hence so
/// often.
#[test]
fn a_file_is_created_once() {
    for _ in 0..30 {
        let scratch = Scratch::new();
        let path = scratch.path();
        fs::write(path.with_extension("go"), "").expect("a start sign");
        wait_for(
            (0..4)
                .map(|child| start_child(CHILD, &format!("drain-normal {child}"), &path))
                .collect(),
        );
        let namespaces: i64 = scratch
            .sqlite()
            .query_row("SELECT count(*) FROM namespace", [], |row| row.get(0))
            .expect("a count");
        assert_eq!(namespaces, 1);
    }
}

#[test]
fn child_process() {
    let Some((role, path)) = my_role() else { return };
    let (work, child) = role.split_once(' ').expect("a number");
    let (work, kind) = work.split_once('-').expect("a kind");
    let synchronous = if kind == "full" { Synchronous::Full } else { Synchronous::Normal };
    let store = SqliteStore::open_with(&path, SqliteOptions::new().synchronous(synchronous))
        .expect("a store");
    let acks = path.with_extension(format!("acks-{child}"));
    let mut acks = OpenOptions::new().create(true).append(true).open(acks).expect("a file");
    match work {
        // Several callers in each process, so that those who wait for the disk share commits.
        "drain" => runtime().block_on(async {
            wait_until("the start sign", || path.with_extension("go").exists());
            let one = async || {
                let (mut mine, limits) = (acks.try_clone().expect("a file"), daily());
                while take(&store, "hot", &limits, 1, START).await.is_some() {
                    mine.write_all(b".").expect("an ack");
                }
            };
            tokio::join!(one(), one(), one(), one(), one(), one(), one(), one());
        }),
        "busy" => runtime().block_on(async {
            let stop = path.with_extension("stop");
            let limits = limits("rpd:1000000000/day");
            while !stop.exists() {
                take(&store, child, &limits, 1, START).await.expect("a grant");
                acks.write_all(b".").expect("an ack");
            }
        }),
        "moving" => runtime().block_on(async {
            wait_until("the start sign", || path.with_extension("go").exists());
            let limits = limits("rps:50/sec:100");
            let ahead = child.parse::<i64>().expect("a number") * MOVING_SKEW_MS;
            for step in 0..MOVING_TAKES {
                if take(&store, "moving", &limits, 1, START.plus_ms(ahead + step * MOVING_STEP_MS))
                    .await
                    .is_some()
                {
                    acks.write_all(b".").expect("an ack");
                }
            }
        }),
        other => panic!("there is no role {other}"),
    }
}
