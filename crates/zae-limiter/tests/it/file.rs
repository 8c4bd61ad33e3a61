//! The limiter on a file: queries beside admission, and what a busy file is told as.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::time::Duration;

use zae_limiter::domain::UsageWindow;
use zae_limiter::sqlite::{SqliteOptions, SqliteStore};
use zae_limiter::{
    AcquireError, Clock, Error, Level, ManualClock, PageRequest, RateLimiter, Request, SystemClock,
    UsageQuery,
};

fn hourly() -> UsageQuery {
    let resource = Some("gpt-4".parse().unwrap());
    UsageQuery {
        entity: None,
        resource,
        window: UsageWindow::Hourly,
        from: None,
        until: None,
        page: PageRequest::default(),
    }
}

async fn limited(limiter: &RateLimiter) {
    limiter.set_limits(&Level::System, ["rpm:60/min".parse().unwrap()]).await.unwrap();
    for key in 0..10 {
        limiter
            .acquire(Request::new(format!("key-{key}"), "gpt-4").take("rpm", 1))
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
    }
}

/// Whether a query ends at its deadline. On a busy machine the thread that reads may be done before
/// this one looks, now and then; one that reads in the poll is done every time.
async fn is_given_up(query: impl AsyncFn() -> Result<(), Error>) -> bool {
    for _ in 0..50 {
        if matches!(query().await, Err(Error::Deadline { .. })) {
            return true;
        }
    }
    false
}

/// A query of history never runs in the poll of its future, so its deadline holds: one of no time
/// at all is over before it.
#[tokio::test]
async fn a_query_of_a_file_holds_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.db");
    limited(&RateLimiter::open(&path).await.unwrap()).await;
    let clock = ManualClock::new(SystemClock::new().now());
    let store = SqliteStore::open(&path).unwrap();
    let hasty =
        RateLimiter::builder(store).clock(clock).admin_deadline(Duration::ZERO).build().unwrap();
    assert!(is_given_up(async || hasty.usage(&hourly()).await.map(drop)).await);
    assert!(is_given_up(async || hasty.usage_summary(&hourly()).await.map(drop)).await);
    assert!(
        is_given_up(async || hasty.buckets("key-1", &PageRequest::default()).await.map(drop)).await
    );
    assert!(
        hasty.acquire(Request::new("key-1", "gpt-4").take("rpm", 1)).await.is_ok(),
        "admission has a deadline of its own"
    );
}

#[tokio::test]
async fn a_summary_of_a_file_sums_every_page() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new().usage_rows_max(1_000).pages_max(10_000);
    let limiter = RateLimiter::open_with(folder.path().join("limits.db"), options).await.unwrap();
    limited(&limiter).await;
    let summary = limiter
        .usage_summary(&UsageQuery { page: PageRequest::first(1), ..hourly() })
        .await
        .unwrap();
    assert!(summary.snapshots >= 10, "{summary:?}");
    assert_eq!(summary.limits[0].total.floor_tokens(), 10);
}

/// Another process keeps the lock: with the options as they are by default that is contention, not
/// an outage. Nobody is admitted unlimited, the breaker stays closed, and the counter that says
/// "the file is the bottleneck" counts.
#[tokio::test]
async fn a_file_that_somebody_keeps_locked_is_contended_not_down() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.db");
    let limiter = RateLimiter::open(&path).await.unwrap();
    limited(&limiter).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let request = || {
        Request::new("key-1", "gpt-4")
            .take("rpm", 1)
            .on_unavailable(zae_limiter::OnUnavailable::Allow)
    };
    match limiter.acquire(request()).await {
        Err(AcquireError::Exceeded(report)) => assert!(report.is_contended(), "{report}"),
        other => panic!("{other:?}"),
    }
    other.execute_batch("COMMIT").unwrap();
    assert!(limiter.acquire(request()).await.is_ok(), "the breaker was not opened");
}
