//! A writing process is killed at any moment: nothing that was acknowledged is lost, nothing is
//! taken twice, and the file stays sound.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{START, Scratch, bucket, entity, gpt, limits, my_role, start_child};
use zae_limiter_core::{ConfigStamp, Limit, LimitSource, Milli, Take, TimeMs, UsageWindow};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use zae_limiter_store::{
    BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Entropy, HistoryStore, Level,
    LimitsChange, LimitsInForce, MemberTake, PageRequest, Store, SystemClock, SystemEntropy,
    UsageQuery,
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
fn live_a_while() -> Duration {
    let life = SystemClock::new();
    std::thread::sleep(Duration::from_micros(SystemEntropy.next_u64() % LIFE_MICROS_MAX));
    life.monotonic()
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
    let mut known = Ledger::default();
    let mut deaths_at_work = 0;
    for kill in 0..KILLS {
        let (role, in_flight) = match kill % 4 {
            0 | 1 => ("one-normal", 1),
            2 => ("many-normal", CALLERS),
            _ => ("many-full", CALLERS),
        };
        let child = start_child(CHILD, role, &path);
        live_a_while();
        drop(child);
        let acks = acknowledged(&path);
        deaths_at_work += usize::from(acks > known.acknowledged);
        let consumed = check_ledger(&scratch, acks);
        known = known.followed_by(Ledger { acknowledged: acks, consumed }, in_flight);
    }
    assert!(
        deaths_at_work > KILLS / 10,
        "only {deaths_at_work} children had begun to work; give them longer"
    );
}

/// What the file says was taken, and what the children say they got.
#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    acknowledged: i64,
    consumed: i64,
}

impl Ledger {
    /// Between two deaths: acknowledged ≤ consumed ≤ acknowledged + in flight at the second. What
    /// the first death left open is in the file since, so nothing adds up.
    fn followed_by(self, after: Ledger, in_flight: usize) -> Ledger {
        let (acknowledged, consumed) =
            (after.acknowledged - self.acknowledged, after.consumed - self.consumed);
        let most = acknowledged + i64::try_from(in_flight).expect("few");
        assert!(
            (acknowledged..=most).contains(&consumed),
            "{acknowledged} acknowledged, {consumed} consumed since {self:?}"
        );
        after
    }
}

/// What was consumed is what is missing; child and parent agree. Returns what was consumed.
fn check_ledger(scratch: &Scratch, acknowledged: i64) -> i64 {
    let store = scratch.open();
    let status = store.status(START).expect("a status");
    assert_eq!(status.problems, Vec::<String>::new());
    crate::common::runtime().block_on(async {
        let (Some(child), Some(parent)) =
            (bucket(&store, "child").await, bucket(&store, "parent").await)
        else {
            assert_eq!(acknowledged, 0, "an acknowledged grant has no bucket");
            return 0;
        };
        let (own, above) = (&child.state.limits()[0], &parent.state.limits()[0]);
        assert_eq!(
            (own.consumed, own.balance),
            (above.consumed, above.balance),
            "a chain is taken from as a whole"
        );
        assert_eq!(
            own.balance.0 + own.consumed.0,
            Milli::from_tokens(CAPACITY.cast_unsigned()).0,
            "nothing is minted or lost"
        );
        assert_eq!(used(&store, "child").await, own.consumed, "the history agrees");
        own.consumed.floor_tokens()
    })
}

/// Everything an entity ever used, forgotten buckets included.
async fn used(store: &SqliteStore, id: &str) -> Milli {
    let query = UsageQuery {
        entity: Some(entity(id)),
        resource: None,
        window: UsageWindow::Monthly,
        from: None,
        until: None,
        page: PageRequest::default(),
    };
    let usage = store.usage(&query).await.expect("a query");
    assert!(usage.next.is_none(), "a few months");
    Milli(usage.items.iter().flat_map(|window| &window.counters).map(|(_, used)| used.0).sum())
}

// -------------------------------------------------------------------- everything in flight at once

/// What the limits are at most: 600 tokens, and ten more a second.
const BURST: i64 = 600;
const PER_SECOND: i64 = 10;
/// The clocks of the children run this much faster than ours.
const HASTE: i64 = 200;
/// From one child to the next: enough for every bucket to fill up, and to expire.
const PAUSE_MS: i64 = 8 * 60_000;
/// By how much the clock of a child may be ahead of the others.
const SKEW_MS: i64 = 20_000;

/// Children whose clocks run and differ, whose buckets refill, close their hours, are swept and
/// change their limits, are killed. Nothing that was acknowledged is lost, nothing is taken twice
/// or from one half of a chain, and the bound holds over it all.
#[test]
fn a_writer_is_killed_while_time_passes_and_limits_change() {
    let scratch = Scratch::new();
    let path = scratch.path();
    drop(scratch.open());
    let mut known = Ledger::default();
    let (mut deaths_at_work, mut latest) = (0, START);
    for kill in 0..KILLS / 2 {
        let skew =
            i64::try_from(SystemEntropy.next_u64() % SKEW_MS.cast_unsigned()).expect("small");
        let now = START.plus_ms(i64::try_from(kill).expect("few") * PAUSE_MS + skew);
        let child = start_child(CHILD, &format!("moving-normal {}", now.0), &path);
        let lived = live_a_while();
        drop(child);
        latest = latest.max(now.plus_ms(i64::try_from(lived.as_millis()).expect("short") * HASTE));
        let acks = acknowledged(&path);
        deaths_at_work += usize::from(acks > known.acknowledged);
        let store = scratch.open();
        assert_eq!(store.status(latest).expect("a status").problems, Vec::<String>::new());
        let (child, parent) = crate::common::runtime()
            .block_on(async { (used(&store, "child").await, used(&store, "parent").await) });
        assert_eq!(child, parent, "a chain is taken from as a whole");
        known = known
            .followed_by(Ledger { acknowledged: acks, consumed: child.floor_tokens() }, CALLERS);
        let most = BURST + PER_SECOND * (latest.0 - START.0) / 1_000 + 1;
        assert!(known.consumed <= most, "{} taken, at most {most} may have been", known.consumed);
    }
    assert!(
        deaths_at_work > KILLS / 20,
        "only {deaths_at_work} children had begun to work; give them longer"
    );
    let forgotten: i64 = scratch
        .sqlite()
        .query_row("SELECT count(*) FROM usage", [], |row| row.get(0))
        .expect("a count");
    assert!(forgotten > 0, "no hour was ever closed and no bucket forgotten");
}

async fn take_while_time_passes(
    store: SqliteStore,
    path: std::path::PathBuf,
    now: impl Fn() -> TimeMs,
    stamp: &AtomicU64,
) {
    let mut acks = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path.with_extension("acks"))
        .expect("a file");
    let (child, parent, resource) = (entity("child"), entity("parent"), gpt());
    let takes = [Take { limit: 0, amount: Milli::from_tokens(1) }];
    for round in 0_u64.. {
        let version = stamp.load(Ordering::Relaxed);
        let text = if version.is_multiple_of(2) { "rpm:600/min" } else { "rpm:300/min:400" };
        let limit = [text.parse::<Limit>().expect("a limit")];
        let limits =
            LimitsInForce::resolved(limit.clone(), LimitSource::System, ConfigStamp(version), 7);
        let member = |entity| MemberTake {
            entity,
            resource: &resource,
            limits: &limits,
            takes: &takes,
            absent: &[],
        };
        let members = [member(&child), member(&parent)];
        match store.consume(&ConsumeRequest::new(&members, now())).await.expect("a decision") {
            ConsumeOutcome::Granted(_) => acks.write_all(b".").expect("an ack"),
            ConsumeOutcome::Refused(_) | ConsumeOutcome::Stale { .. } => {
                tokio::task::yield_now().await
            }
            other => panic!("{other:?}"),
        }
        if round % 20 == 7 {
            let change = crate::common::change(SystemEntropy.next_u64().into());
            let new = LimitsChange {
                limits: limit.to_vec(),
                on_unavailable: None,
                expected_version: None,
            };
            let version =
                store.set_limits(&Level::System, &new, &change).await.expect("new limits");
            stamp.fetch_max(version, Ordering::Relaxed);
        }
        if round % 10 == 3 {
            store.sweep(now(), 2).await.expect("a sweep");
        }
    }
}

#[test]
fn child_process() {
    let Some((role, path)) = my_role() else { return };
    if let Some(begins) = role.strip_prefix("moving-normal ") {
        return let_time_pass(TimeMs(begins.parse().expect("an instant")), &path);
    }
    let (callers, kind) = role.split_once('-').expect("a kind");
    let synchronous = if kind == "full" { Synchronous::Full } else { Synchronous::Normal };
    let store = SqliteStore::open_with(&path, SqliteOptions::new().synchronous(synchronous))
        .expect("a store");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    runtime.block_on(async {
        let count = if callers == "many" { CALLERS } else { 1 };
        let callers: Vec<_> =
            (0..count).map(|_| spawn(take_for_ever(store.clone(), path.clone()))).collect();
        for caller in callers {
            caller.await.expect("no panic");
        }
    });
}

/// A child whose clock runs.
fn let_time_pass(begins: TimeMs, path: &Path) {
    let store = SqliteStore::open(path).expect("a store");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let clock = Arc::new(SystemClock::new());
        let stamp =
            Arc::new(AtomicU64::new(store.resolve(&[]).await.expect("a configuration").stamp.0));
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (store, path, clock, stamp) =
                    (store.clone(), path.to_owned(), Arc::clone(&clock), Arc::clone(&stamp));
                spawn(async move {
                    let elapsed_ms =
                        || i64::try_from(clock.monotonic().as_millis()).expect("a short life");
                    take_while_time_passes(
                        store,
                        path,
                        || begins.plus_ms(elapsed_ms() * HASTE),
                        &stamp,
                    )
                    .await;
                })
            })
            .collect();
        for caller in callers {
            caller.await.expect("no panic");
        }
    });
}

async fn take_for_ever(store: SqliteStore, path: std::path::PathBuf) {
    let mut acks = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path.with_extension("acks"))
        .expect("a file");
    let (child, parent, resource, limits) = (entity("child"), entity("parent"), gpt(), big());
    let takes = [Take { limit: 0, amount: Milli::from_tokens(1) }];
    let member = |entity| MemberTake {
        entity,
        resource: &resource,
        limits: &limits,
        takes: &takes,
        absent: &[],
    };
    let members = [member(&child), member(&parent)];
    loop {
        let outcome =
            store.consume(&ConsumeRequest::new(&members, START)).await.expect("a decision");
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
        acks.write_all(b".").expect("an ack");
    }
}

#[expect(clippy::disallowed_methods, reason = "tests may spawn")]
fn spawn(work: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
    tokio::spawn(work)
}
