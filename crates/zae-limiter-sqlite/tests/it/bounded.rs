//! The file stays as small as what it has to know: against callers who invent ids, and for
//! processes that live for a moment.

use crate::common::{START, Scratch, at, limits, runtime, take};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::Store;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

fn read(scratch: &Scratch, sql: &str) -> i64 {
    scratch.sqlite().query_row(sql, [], |row| row.get(0)).expect("a number")
}

fn pages(scratch: &Scratch) -> i64 {
    read(scratch, "SELECT page_count FROM pragma_page_count")
}

/// Buckets of invented ids, each taken from once: two limits, as usual.
async fn invent(store: &SqliteStore, ids: std::ops::Range<u32>, now: zae_limiter_core::TimeMs) {
    let two = limits("rpm:60/min tpm:10000/min");
    for id in ids {
        take(store, &format!("invented-{id:06}"), &two, 1, now).await;
    }
}

#[test]
fn forgetting_a_bucket_never_makes_the_file_larger() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        invent(&store, 0..6_000, START).await;
        let before = pages(&scratch);
        let mut most = before;
        for _ in 0..1_000 {
            let swept = store.sweep(at(HOUR), 1).await.expect("a sweep");
            most = most.max(pages(&scratch));
            if swept.complete {
                break;
            }
        }
        assert_eq!(
            (
                read(&scratch, "SELECT count(*) FROM bucket"),
                read(&scratch, "SELECT count(*) FROM usage")
            ),
            (0, 6_000)
        );
        // A page or two, because a tree may need a new page before another gives one back.
        assert!(most <= before + 8, "{before} pages before, {most} meanwhile");
    });
}

#[test]
fn usage_has_a_bound_and_the_oldest_goes_first() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open_with(SqliteOptions::new().usage_rows_max(500));
        for hour in 0..3 {
            invent(&store, 0..400, at(hour * HOUR)).await;
        }
        store.sweep(at(100 * HOUR), 1_000).await.expect("a sweep");
        let rows = read(&scratch, "SELECT count(*) FROM usage");
        assert!((400..=500).contains(&rows), "{rows} rows");
        assert_eq!(
            read(&scratch, "SELECT value FROM meta WHERE name='usage_rows'"),
            rows,
            "they are counted as they come and go"
        );
        let newest = START.0 / HOUR + 2;
        assert_eq!(
            read(&scratch, &format!("SELECT count(*) FROM usage WHERE hour={newest}")),
            400,
            "all of the last hour"
        );
    });
}

#[test]
fn free_pages_are_given_back() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open_with(SqliteOptions::new().usage_rows_max(0));
        invent(&store, 0..30_000, START).await;
        let before = pages(&scratch);
        assert!(before > 1_200, "{before} pages");
        store.sweep(at(HOUR), 10_000).await.expect("a sweep");
        let after = pages(&scratch);
        assert!(
            after <= 1_100,
            "{before} pages before, {after} after; a thousand are kept for reuse"
        );
        assert!(store.writer_stats().task_rows_max <= 2_000);
        let status = store.status(START).expect("a status");
        assert_eq!(status.problems, Vec::<String>::new());
    });
}

#[test]
fn a_file_can_be_given_a_size_it_never_exceeds() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open_with(SqliteOptions::new().pages_max(200));
        let rpm = limits("rpm:60/min");
        let mut refused = None;
        for id in 0..20_000 {
            if let Err(error) =
                crate::common::try_take(&store, &format!("invented-{id}"), &rpm, 1, START).await
            {
                refused = Some(error);
                break;
            }
        }
        let error = refused.expect("the file is full at some time");
        assert_eq!(error.kind(), zae_limiter_store::StoreErrorKind::Full, "{error}");
        assert!(pages(&scratch) <= 200);
        assert_eq!(
            take(&store, "invented-0", &rpm, 1, START).await,
            Some(58),
            "those who are known already go on"
        );
    });
}

/// Processes that live for a moment each: nobody is there for a minute, and still the file forgets.
#[test]
fn those_who_live_for_a_moment_sweep_too() {
    let scratch = Scratch::new();
    let rpm = limits("rpm:60/min");
    for life in 0..60 {
        let store = scratch.open();
        runtime().block_on(take(&store, &format!("key-{life}"), &rpm, 1, at(life * 5 * MINUTE)));
    }
    let buckets = read(&scratch, "SELECT count(*) FROM bucket");
    assert!(buckets < 30, "{buckets} of 60 buckets are left, most of them full for hours");
    assert!(read(&scratch, "SELECT count(*) FROM meta WHERE name='swept_at'") == 1, "whole rounds");
}

/// One of them has a clock that is hours ahead: what it alone has seen is not acted upon.
#[test]
fn one_clock_that_is_ahead_forgets_nothing() {
    let scratch = Scratch::new();
    let rpm = limits("rpm:1/min:100");
    for life in 0..20 {
        let now = at(life * 1_000);
        let left = runtime().block_on(take(
            &scratch.open(),
            "drained",
            &rpm,
            if life == 0 { 100 } else { 0 },
            now,
        ));
        assert_eq!(left, Some(0), "it is not full by any other clock, life {life}");
        runtime().block_on(take(&scratch.open(), "ahead", &rpm, 1, now.plus_ms(13 * HOUR)));
    }
}

/// Several of them in a row, for minutes: a leap is not believed before an hour of it has passed.
#[test]
fn a_clock_that_stays_ahead_for_minutes_forgets_nothing() {
    // After one take as after several: the first look at the clock counts.
    for lives in [1, 5] {
        let scratch = Scratch::new();
        let rpm = limits("rpm:1/min:100");
        for life in 0..lives {
            runtime().block_on(take(
                &scratch.open(),
                "drained",
                &rpm,
                if life == 0 { 100 } else { 0 },
                at(life * 1_000),
            ));
        }
        for life in 0..10 {
            let ahead = at(13 * HOUR + life * (MINUTE + 1_000));
            runtime().block_on(take(&scratch.open(), "ahead", &rpm, 1, ahead));
        }
        assert_eq!(
            runtime().block_on(take(&scratch.open(), "drained", &rpm, 0, at(6_000))),
            Some(0),
            "{lives} lives"
        );
    }
}
