//! What the store forgets, by itself and when asked.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{START, Scratch, at, bucket, change, entity, gpt, limits, runtime, take};
use zae_limiter_core::{AuditSubject, Milli, TimeMs, UsageWindow};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::{
    AuditQuery, BucketDelta, BucketStore, ConfigStore, Delta, HistoryStore, Level, ManualClock,
    PageRequest, Store, UsageQuery,
};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

fn count(scratch: &Scratch, table: &str) -> i64 {
    scratch
        .sqlite()
        .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
        .expect("a count")
}

async fn fill(store: &SqliteStore, buckets: usize, now: TimeMs) {
    for number in 0..buckets {
        take(store, &format!("key-{number:04}"), &limits("rpm:60/min"), 1, now).await;
    }
}

async fn usage_of(store: &SqliteStore, id: &str) -> Vec<(i64, u64)> {
    let query = UsageQuery {
        entity: Some(entity(id)),
        resource: None,
        window: UsageWindow::Hourly,
        from: None,
        until: None,
        page: PageRequest::default(),
    };
    let snapshots = store.usage(&query).await.expect("a query").items;
    snapshots
        .iter()
        .map(|snapshot| {
            (snapshot.counters.iter().map(|(_, used)| used.floor_tokens()).sum(), snapshot.events)
        })
        .collect()
}

#[test]
fn a_sweep_goes_on_where_it_stopped_and_round() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        fill(&store, 450, START).await;
        let later = at(HOUR);
        let first = store.sweep(later, 1).await.expect("a sweep");
        assert_eq!((first.buckets, first.complete), (200, false));
        let second = store.sweep(later, 1).await.expect("a sweep");
        assert_eq!((second.buckets, second.complete), (200, false));
        // Behind the sweep, expired ones come up again: a large enough sweep goes round and finds
        // them.
        fill(&store, 10, later).await;
        let third = store.sweep(at(2 * HOUR), 100).await.expect("a sweep");
        assert_eq!((third.buckets, third.complete), (60, true));
        assert_eq!(count(&scratch, "bucket"), 0);
        assert_eq!(
            usage_of(&store, "key-0001").await,
            [(1, 1), (1, 1)],
            "what they used is in the history"
        );
    });
}

#[test]
fn only_a_full_bucket_is_forgotten() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpm = limits("rpm:60/min");
        take(&store, "debtor", &rpm, 60, START).await;
        let (debtor, resource) = (entity("debtor"), gpt());
        let deltas = [Delta { limit: 0, amount: Milli::from_tokens(6_000) }];
        store
            .adjust(
                &[BucketDelta {
                    entity: &debtor,
                    resource: &resource,
                    limits: &rpm,
                    deltas: &deltas,
                    operation: 0,
                    take: 0,
                    place: 0,
                }],
                START,
            )
            .await;
        // Expired for long, and still 39 tokens short of nothing.
        assert_eq!(store.sweep(at(99 * MINUTE), 100).await.expect("a sweep").buckets, 0);
        assert_eq!(take(&store, "debtor", &rpm, 1, at(99 * MINUTE)).await, None);
        assert_eq!(store.sweep(at(DAY), 100).await.expect("a sweep").buckets, 1);
    });
}

#[test]
fn history_goes_when_its_time_is_over() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let options = SqliteOptions::new().usage_retention_ms(2 * DAY).audit_retention_ms(3 * DAY);
        let store = scratch.open_with(options);
        take(&store, "key", &limits("rpm:60/min"), 1, START).await;
        take(&store, "key", &limits("rpm:60/min"), 1, at(HOUR)).await;
        store.set_flag(&Level::Resource(gpt()), None, &change(1)).await.expect("a change");
        let swept = store.sweep(at(2 * DAY), 100).await.expect("a sweep");
        assert_eq!(
            (swept.buckets, swept.usage, swept.audit),
            (1, 0, 0),
            "one millisecond too early"
        );
        let swept = store.sweep(at(2 * DAY + 1), 100).await.expect("a sweep");
        assert_eq!((swept.usage, swept.audit), (1, 0), "the first hour, not the second");
        let swept = store.sweep(at(3 * DAY + 1), 100).await.expect("a sweep");
        assert_eq!((swept.usage, swept.audit), (1, 1));
        let query =
            AuditQuery { subject: AuditSubject::Resource(gpt()), page: PageRequest::default() };
        assert!(store.audit_events(&query).await.expect("a query").items.is_empty());
    });
}

/// Nobody asks: the store sweeps by itself, a step at a time, when time has passed both for its
/// callers and here.
#[test]
fn the_store_sweeps_by_itself() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let clock = ManualClock::new(START);
        let store = scratch.open_with(SqliteOptions::new().clock(Arc::new(clock.clone())));
        let rpm = limits("rpm:60/min");
        fill(&store, 250, START).await;
        // A caller whose clock is far ahead does not set the pace.
        take(&store, "key-0000", &rpm, 1, at(HOUR)).await;
        settle(&store).await;
        assert_eq!(count(&scratch, "bucket"), 250);
        // Now the time has really passed. Each step follows an operation.
        let mut now = at(2 * HOUR);
        clock.advance(Duration::from_secs(2 * 3600));
        for _ in 0..10 {
            take(&store, "key-0000", &rpm, 1, now).await;
            settle(&store).await;
            clock.advance(Duration::from_millis(100));
            now = now.plus_ms(100);
        }
        assert_eq!(count(&scratch, "bucket"), 1, "all but the one in use");
        assert!(bucket(&store, "key-0000").await.is_some());
        assert!(store.status(now).expect("a status").swept_at.is_some(), "a whole round");
        // The next round is a minute away.
        let before = store.writer_stats().tasks;
        take(&store, "key-0000", &rpm, 1, now.plus_ms(MINUTE / 2)).await;
        clock.advance(Duration::from_secs(30));
        settle(&store).await;
        assert_eq!(store.writer_stats().tasks, before + 1, "only the task of `settle`");
    });
}

/// Waits until the writer thread has done what was queued before.
async fn settle(store: &SqliteStore) {
    assert!(!store.delete_limits(&Level::System, &change(9)).await.expect("a change"));
}

/// Thirteen hours ahead every drained bucket is full, three months ahead every event is old:
/// neither is forgotten for it.
#[test]
fn a_sweep_at_a_wrong_clock_forgives_no_debt_and_deletes_no_history() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let slow = limits("x:1/min:100");
        store.set_flag(&Level::Resource(gpt()), None, &change(1)).await.expect("a change");
        let sweep = async |now: TimeMs| match store.sweep_horizon(now).await.expect("a look") {
            Some(horizon) => store.sweep(horizon, 1_000).await.expect("a sweep"),
            None => Default::default(),
        };
        let mut granted = 0;
        for round in 0..20 {
            let now = at(round * 1_000);
            while take(&store, "key", &slow, 1, now).await.is_some() {
                granted += 1;
            }
            let swept = sweep(now.plus_ms(13 * HOUR)).await;
            assert_eq!(swept.buckets, 0, "round {round}");
            let swept = sweep(now.plus_ms(91 * DAY)).await;
            assert_eq!((swept.buckets, swept.usage, swept.audit), (0, 0, 0), "round {round}");
        }
        assert_eq!(granted, 100, "the capacity, once");
        assert_eq!(count(&scratch, "audit"), 1);
        // A clock that stands by it for an hour is believed, and what it says has been refilled is.
        assert_eq!(sweep(at(14 * HOUR)).await.buckets, 0);
        assert_eq!(sweep(at(15 * HOUR)).await.buckets, 1);
    });
}
