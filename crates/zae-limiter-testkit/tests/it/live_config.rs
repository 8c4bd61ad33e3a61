//! Limits that change while they are used, and debts that nobody may forget.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use zae_limiter::{
    AcquireError, Level, Limit, ManualClock, MemoryStore, NewEntity, OnDrop, PageRequest,
    RateLimiter, Request, StoreErrorKind, TimeMs,
};
use zae_limiter_dynamodb::DynamoOptions;
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::{Clock, MemoryOptions};
use zae_limiter_testkit::table::EvalTable;

const DAY: Duration = Duration::from_secs(86_400);
const TTL: Duration = Duration::from_secs(60);

fn clock() -> ManualClock {
    ManualClock::new(TimeMs(1_772_300_000_000))
}

fn sqlite(folder: &tempfile::TempDir, clock: &ManualClock) -> SqliteStore {
    SqliteStore::open_with(
        folder.path().join("limits.db"),
        SqliteOptions::new().clock(Arc::new(clock.clone())),
    )
    .unwrap()
}

fn on_sqlite(folder: &tempfile::TempDir, clock: &ManualClock) -> RateLimiter {
    RateLimiter::builder(sqlite(folder, clock))
        .clock(clock.clone())
        .config_cache_ttl(TTL)
        .build()
        .unwrap()
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// One limiter per store.
fn on_both(folder: &tempfile::TempDir, clock: &ManualClock) -> [(&'static str, RateLimiter); 2] {
    let memory = RateLimiter::builder(MemoryStore::new())
        .clock(clock.clone())
        .config_cache_ttl(TTL)
        .build()
        .unwrap();
    [("memory", memory), ("sqlite", on_sqlite(folder, clock))]
}

/// How long `take` would have to wait; `None` when it passes.
async fn wait_of(limiter: &RateLimiter, request: &Request) -> Option<Duration> {
    limiter.availability(request).await.unwrap().retry_after().duration()
}

/// Leaves `entity` owing 500 of a capacity of 100.
async fn into_debt(limiter: &RateLimiter, entity: &str) {
    let lease = limiter.acquire(Request::new(entity, "gpt-4").take("tpm", 100)).await.unwrap();
    lease.record("tpm", 600).unwrap();
    lease.commit().await.unwrap();
}

#[tokio::test]
async fn a_sweep_never_forgets_a_debt() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    for (name, limiter) in on_both(&folder, &clock) {
        limiter.set_limits(&Level::System, [limit("tpm:100/min")]).await.unwrap();
        // Sweeps have seen the clock for an hour: they believe it.
        limiter.sweep(u32::MAX).await.unwrap();
        clock.advance(Duration::from_secs(3_600));
        into_debt(&limiter, "key").await;
        let request = Request::new("key", "gpt-4").take("tpm", 100);
        // Full again after six minutes, expired seven minutes after the last write.
        for second in 0..360 {
            assert_eq!(
                wait_of(&limiter, &request).await,
                Some(Duration::from_secs(360 - second)),
                "{name}: after {second} s"
            );
            limiter.sweep(u32::MAX).await.unwrap();
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(wait_of(&limiter, &request).await, None, "{name}: the debt is repaid");
        limiter.sweep(u32::MAX).await.unwrap();
        assert_eq!(
            limiter.buckets("key", &PageRequest::default()).await.unwrap().items.len(),
            1,
            "{name}: not expired yet"
        );
        clock.advance(Duration::from_secs(61));
        limiter.sweep(u32::MAX).await.unwrap();
        assert_eq!(
            limiter.buckets("key", &PageRequest::default()).await.unwrap().items.len(),
            0,
            "{name}: full and expired"
        );
    }
}

#[tokio::test]
async fn a_debt_that_outlives_its_expiry_is_kept_until_it_is_repaid() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    for (name, limiter) in on_both(&folder, &clock) {
        limiter.set_limits(&Level::System, [limit("tpm:100/min")]).await.unwrap();
        let lease = limiter.acquire(Request::new("key", "gpt-4").take("tpm", 100)).await.unwrap();
        // Two days of refill; the bucket expires after seven minutes.
        lease.record("tpm", 288_000).unwrap();
        lease.commit().await.unwrap();
        let request = Request::new("key", "gpt-4").take("tpm", 1);
        for _ in 0..47 {
            clock.advance(Duration::from_secs(3_600));
            limiter.sweep(u32::MAX).await.unwrap();
            assert!(wait_of(&limiter, &request).await.is_some(), "{name}: the debt was forgotten");
        }
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(wait_of(&limiter, &request).await, None, "{name}: two days later it is repaid");
    }
}

#[tokio::test]
async fn eviction_never_forgets_a_debt() {
    let clock = clock();
    let store =
        MemoryStore::with_options(MemoryOptions { buckets_max: 8, ..MemoryOptions::default() });
    let limiter = RateLimiter::builder(store).clock(clock.clone()).build().unwrap();
    limiter.set_limits(&Level::System, [limit("tpm:100/min")]).await.unwrap();
    into_debt(&limiter, "debtor").await;
    let mut refused = 0;
    for guest in 0..400 {
        let name = format!("guest-{guest}");
        match limiter
            .acquire(Request::new(name.as_str(), "gpt-4").take("tpm", 10).on_drop(OnDrop::Keep))
            .await
        {
            Ok(lease) => drop(lease),
            Err(AcquireError::Unavailable(unavailable)) => {
                assert_eq!(
                    unavailable.source.map(|error| error.kind()),
                    Some(StoreErrorKind::Capacity)
                );
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
        let owed = wait_of(&limiter, &Request::new("debtor", "gpt-4").take("tpm", 1)).await;
        // 500 and one token more, at 100 a minute.
        let left = Duration::from_millis(300_600).saturating_sub(clock.monotonic());
        assert_eq!(owed, Some(left).filter(|left| !left.is_zero()), "guest {guest}");
        clock.advance(Duration::from_millis(700));
    }
    assert!(refused > 0, "the bound was never reached");
}

#[tokio::test]
async fn a_lowered_limit_binds_in_another_process_within_the_ttl() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let (here, there) = (on_sqlite(&folder, &clock), on_sqlite(&folder, &clock));
    here.set_limits(&Level::System, [limit("rpm:100/min")]).await.unwrap();
    let request = || Request::new("key", "gpt-4").take("rpm", 1).on_drop(OnDrop::Keep);
    drop(there.acquire(request()).await.unwrap());

    here.set_limits(&Level::System, [limit("rpm:10/min")]).await.unwrap();
    clock.advance(TTL);
    let mut granted = 0;
    while let Ok(lease) = there.acquire(request()).await {
        drop(lease);
        granted += 1;
        assert!(granted <= 10, "the old limit still binds");
    }
    assert_eq!(granted, 10, "cut to the new capacity, and no further");
}

#[tokio::test]
async fn a_bucket_with_newer_limits_binds_a_stale_process_at_once() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let (here, there) = (on_sqlite(&folder, &clock), on_sqlite(&folder, &clock));
    here.set_limits(&Level::System, [limit("rpm:100/min")]).await.unwrap();
    let request = |amount| Request::new("key", "gpt-4").take("rpm", amount).on_drop(OnDrop::Keep);
    drop(there.acquire(request(1)).await.unwrap());

    here.set_limits(&Level::System, [limit("rpm:10/min")]).await.unwrap();
    drop(here.acquire(request(1)).await.unwrap());
    // The other process still has 100 in its cache, and no time has passed.
    let refused = there.acquire(request(11)).await.expect_err("more than the new capacity");
    assert!(refused.never_passes(), "{refused}");
    drop(there.acquire(request(9)).await.unwrap());
    assert!(there.acquire(request(1)).await.is_err(), "ten are taken");
}

#[tokio::test]
async fn a_stale_process_can_not_push_old_limits_back() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let (here, there) = (on_sqlite(&folder, &clock), on_sqlite(&folder, &clock));
    here.set_limits(&Level::System, [limit("rpm:5/min")]).await.unwrap();
    let request = |amount| Request::new("key", "gpt-4").take("rpm", amount).on_drop(OnDrop::Keep);
    drop(there.acquire(request(1)).await.unwrap());
    let stored = async |limiter: &RateLimiter| {
        let buckets = limiter.buckets("key", &PageRequest::default()).await.unwrap().items;
        buckets[0].state.limits()[0].params.capacity_milli
    };

    // Raised and lowered by turns; the bucket never goes back to what a cache still says.
    for (round, capacity) in (1..).zip([50_u64, 3, 80, 2, 9]) {
        here.set_limits(&Level::System, [limit(&format!("rpm:{capacity}/min"))]).await.unwrap();
        let _ = here.acquire(request(0)).await;
        assert_eq!(stored(&here).await, i64::try_from(capacity * 1000).unwrap(), "round {round}");
        for _ in 0..3 {
            let _ = there.acquire(request(0)).await;
            assert_eq!(
                stored(&here).await,
                i64::try_from(capacity * 1000).unwrap(),
                "round {round}: pushed back"
            );
        }
    }
}

/// Ten a day beside a hundred a second, touched every second for a day: the slow limit regains
/// exactly its rate.
async fn a_slow_limit_beside_a_fast_one(limiter: &RateLimiter, clock: &ManualClock, name: &str) {
    limiter
        .set_limits(&Level::System, [limit("fast:100/sec"), limit("slow:10/day")])
        .await
        .unwrap();
    let touch = || Request::new("key", "gpt-4").take("fast", 1).on_drop(OnDrop::Keep);
    drop(limiter.acquire(touch().take("slow", 10)).await.unwrap());
    let mut regained = Vec::new();
    for second in 1..=DAY.as_secs() {
        clock.advance(Duration::from_secs(1));
        drop(
            limiter
                .acquire(touch())
                .await
                .unwrap_or_else(|error| panic!("{name}, second {second}: {error}")),
        );
        // A token comes back every 8640 seconds: try just before, and when it is due.
        if matches!(second % 8_640, 0 | 8_639)
            && limiter.acquire(touch().take("slow", 1)).await.map(drop).is_ok()
        {
            regained.push(second);
        }
    }
    let expected: Vec<u64> = (1..=10).map(|token| token * 8_640).collect();
    assert_eq!(regained, expected, "{name}: the slow limit regained a token at these seconds");
}

#[tokio::test]
async fn ten_a_day_beside_a_hundred_a_second_refills_exactly_in_memory() {
    let clock = clock();
    let limiter = RateLimiter::builder(MemoryStore::new()).clock(clock.clone()).build().unwrap();
    a_slow_limit_beside_a_fast_one(&limiter, &clock, "memory").await;
}

#[tokio::test]
async fn ten_a_day_beside_a_hundred_a_second_refills_exactly_on_sqlite() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    a_slow_limit_beside_a_fast_one(&on_sqlite(&folder, &clock), &clock, "sqlite").await;
}

#[tokio::test]
async fn dropping_and_re_adding_a_limit_mints_nothing() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    for (name, limiter) in on_both(&folder, &clock) {
        let both = [limit("rpm:10/min"), limit("tpm:100/day")];
        limiter.set_limits(&Level::System, both.clone()).await.unwrap();
        let request = |tpm| {
            Request::new("key", "gpt-4").take("rpm", 1).take("tpm", tpm).on_drop(OnDrop::Keep)
        };
        drop(limiter.acquire(request(100)).await.unwrap());
        for round in 0..5 {
            limiter.set_limits(&Level::System, [both[0].clone()]).await.unwrap();
            drop(
                limiter
                    .acquire(Request::new("key", "gpt-4").take("rpm", 1).on_drop(OnDrop::Keep))
                    .await
                    .unwrap(),
            );
            limiter.set_limits(&Level::System, both.clone()).await.unwrap();
            assert!(
                limiter.acquire(request(1)).await.is_err(),
                "{name}, round {round}: the limit came back with tokens"
            );
        }
    }
}

/// The request asks for `tpm`, which only the key has when it starts. Whoever still remembers the
/// org without it must not pass it by.
#[tokio::test]
async fn a_limit_that_an_ancestor_gets_binds_at_once_on_dynamodb() {
    let (table, options) = (EvalTable::new(), DynamoOptions::new());
    table.initialise(&options).await.unwrap();
    let mut limiters = Vec::new();
    for _ in 0..2 {
        let store = table.open(options.clone()).await.unwrap();
        limiters.push(RateLimiter::builder(store).config_cache_ttl(TTL).build().unwrap());
    }
    let (admin, server) = (&limiters[0], &limiters[1]);
    let org = Level::Entity("org".parse().unwrap());
    admin.set_limits(&Level::System, [limit("rpm:100/day"), limit("tpm:100/day")]).await.unwrap();
    let entity = |id: &str, parent: Option<&str>| NewEntity {
        id: id.parse().unwrap(),
        name: id.to_owned(),
        parent: parent.map(|parent| parent.parse().unwrap()),
        cascade: parent.is_some(),
        metadata: BTreeMap::new(),
    };
    admin.create_entity(entity("org", None)).await.unwrap();
    admin.create_entity(entity("key", Some("org"))).await.unwrap();
    admin.set_limits(&org, [limit("rpm:100/day")]).await.unwrap();
    let request = || Request::new("key", "gpt-4").take("rpm", 1).take("tpm", 10);
    server.acquire(request()).await.unwrap().commit().await.unwrap();
    admin.set_limits(&org, [limit("rpm:100/day"), limit("tpm:10/day")]).await.unwrap();
    server.acquire(request()).await.unwrap().commit().await.unwrap();
    let refused = server.acquire(request()).await.unwrap_err();
    let short: Vec<String> = refused
        .exceeded()
        .unwrap()
        .violations()
        .map(|status| format!("{} {}", status.entity, status.limit.name()))
        .collect();
    assert_eq!(short, ["org tpm"]);
}
