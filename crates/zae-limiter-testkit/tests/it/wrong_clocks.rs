//! Wrong clocks on the embedded stores, through the library: what one process does by one is no
//! harm to the others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use zae_limiter_core::{Limit, TimeMs};
use zae_limiter_sqlite::SqliteStore;
use zae_limiter_store::{Clock, Level, ManualClock, MemoryStore, PageRequest};
use zae_limiter_testkit::zae_limiter::{RateLimiter, Request};

const START: TimeMs = TimeMs(1_767_261_600_000);
const HOUR_MS: i64 = 3_600_000;

/// Two limiters on the same data: one with a right clock, one with a clock of its own.
fn pair(
    store: impl Fn() -> RateLimiterBuilder,
) -> (RateLimiter, RateLimiter, ManualClock, ManualClock) {
    let (right, wrong) = (ManualClock::new(START), ManualClock::new(START));
    (
        store().clock(right.clone()).build().unwrap(),
        store().clock(wrong.clone()).build().unwrap(),
        right,
        wrong,
    )
}

type RateLimiterBuilder = zae_limiter_testkit::zae_limiter::Builder;

async fn drain(limiter: &RateLimiter) -> u64 {
    let mut granted = 0;
    while let Ok(lease) = limiter.acquire(Request::new("key", "gpt-4").take("x", 1)).await {
        lease.commit().await.unwrap();
        granted += 1;
    }
    granted
}

async fn with_limits(limiter: &RateLimiter) {
    let limit: Limit = "x:1/min:100".parse().unwrap();
    limiter.set_limits(&Level::System, [limit]).await.unwrap();
}

/// A sweep at thirteen hours ahead, twenty times: 2 000 used to be granted within seconds. Before
/// any sweep by the right clock, or after two that have proven it.
async fn sweeps_forgive_nothing(store: impl Fn() -> RateLimiterBuilder, is_proven: bool) {
    let (limiter, sweeper, right, wrong) = pair(store);
    with_limits(&limiter).await;
    for _ in 0..if is_proven { 2 } else { 0 } {
        limiter.sweep(u32::MAX).await.unwrap();
        right.advance(Duration::from_secs(3_600));
    }
    let mut granted = 0;
    for round in 0..20 {
        granted += drain(&limiter).await;
        wrong.step_to(right.now().plus_ms(13 * HOUR_MS));
        sweeper.sweep(u32::MAX).await.unwrap();
        wrong.step_to(right.now().plus_ms(91 * 24 * HOUR_MS));
        let swept = sweeper.sweep(u32::MAX).await.unwrap();
        assert_eq!(
            (swept.buckets, swept.usage, swept.audit, swept.held_back),
            (0, 0, 0, true),
            "round {round}"
        );
        right.advance(Duration::from_secs(1));
    }
    assert_eq!(granted, 100, "the capacity, once");
}

#[tokio::test]
async fn a_sweep_at_a_wrong_clock_forgives_nothing_in_memory() {
    for is_proven in [false, true] {
        let store = MemoryStore::new();
        sweeps_forgive_nothing(|| RateLimiter::builder(store.clone()), is_proven).await;
    }
}

#[tokio::test]
async fn a_sweep_at_a_wrong_clock_forgives_nothing_on_sqlite() {
    for is_proven in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        sweeps_forgive_nothing(
            || RateLimiter::builder(SqliteStore::open(folder.path().join("limits.db")).unwrap()),
            is_proven,
        )
        .await;
    }
}

/// One take ten years ahead: the others wait for the refill, not for ten years; usage is counted
/// now; a reset helps at once.
async fn a_take_freezes_nothing(store: impl Fn() -> RateLimiterBuilder) {
    let (limiter, ahead, right, wrong) = pair(store);
    with_limits(&limiter).await;
    wrong.step_to(START.plus_ms(87_660 * HOUR_MS));
    assert_eq!(drain(&ahead).await, 100);
    assert_eq!(drain(&limiter).await, 0);
    right.advance(Duration::from_secs(60));
    assert_eq!(drain(&limiter).await, 1, "a minute later");
    // The clock that is ahead is paid no more than the time that passes.
    wrong.advance(Duration::from_secs(60));
    assert_eq!(drain(&ahead).await, 0);
    let bucket =
        limiter.buckets("key", &PageRequest::default()).await.unwrap().items.remove(0).state;
    assert_eq!(
        i64::from(bucket.hour) * HOUR_MS,
        right.now().0.div_euclid(HOUR_MS) * HOUR_MS,
        "the hour usage is counted in"
    );
    limiter.reset("key", "gpt-4", None).await.unwrap();
    assert_eq!(drain(&limiter).await, 100);
    right.advance(Duration::from_secs(120));
    assert_eq!(drain(&limiter).await, 2);
}

#[tokio::test]
async fn a_take_by_a_clock_years_ahead_freezes_nothing_in_memory() {
    let store = MemoryStore::new();
    a_take_freezes_nothing(|| RateLimiter::builder(store.clone())).await;
}

#[tokio::test]
async fn a_take_by_a_clock_years_ahead_freezes_nothing_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    a_take_freezes_nothing(|| {
        RateLimiter::builder(SqliteStore::open(folder.path().join("limits.db")).unwrap())
    })
    .await;
}
