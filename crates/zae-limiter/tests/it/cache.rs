//! The config cache: bounded in time, never stale in the process that changed something, one flight
//! per key.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails says where; it may spawn what it tests"
)]

use std::time::Duration;

use crate::support::{Bench, limits};
use zae_limiter::store::Fault;
use zae_limiter::{AcquireError, Level, NewEntity, Request, StoreErrorKind};

fn request() -> Request {
    Request::new("key", "gpt-4").take("rpm", 1)
}

#[tokio::test]
async fn an_entry_is_trusted_for_its_time_and_no_longer() {
    let bench = Bench::with(|builder| builder.config_cache_ttl(Duration::from_secs(10)));
    bench.system(&["rpm:60/day"]).await;
    for (advance_ms, reads) in [(0, 1), (9_999, 1), (1, 2), (0, 2)] {
        bench.clock.advance(Duration::from_millis(advance_ms));
        bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        assert_eq!(bench.script.calls("resolve"), reads, "after {advance_ms} ms more");
    }
    let stats = bench.limiter.cache_stats();
    assert_eq!((stats.hits, stats.misses, stats.entries), (2, 2, 1));
}

#[tokio::test]
async fn stepping_the_wall_clock_does_not_stretch_an_entry() {
    let bench = Bench::with(|builder| builder.config_cache_ttl(Duration::from_secs(10)));
    bench.system(&["rpm:60/day"]).await;
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    bench.clock.step_to(crate::support::START.plus_ms(-86_400_000));
    bench.clock.advance(Duration::from_secs(10));
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    assert_eq!(bench.script.calls("resolve"), 2);
}

#[tokio::test]
async fn zero_asks_every_time() {
    let bench = Bench::with(|builder| builder.config_cache_ttl(Duration::ZERO));
    bench.system(&["rpm:60/day"]).await;
    for _ in 0..3 {
        bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    }
    assert_eq!(bench.script.calls("resolve"), 3);
}

#[tokio::test]
async fn a_negative_answer_is_cached_and_evicted_by_our_own_change() {
    let bench = Bench::new();
    for _ in 0..3 {
        bench.limiter.acquire(request()).await.unwrap_err();
    }
    assert_eq!(bench.script.calls("resolve"), 1, "no limits is an answer too");
    bench.system(&["rpm:60/day"]).await;
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn every_kind_of_change_is_seen_at_once_by_the_process_that_made_it() {
    let bench = Bench::new();
    let (key, gpt): (zae_limiter::EntityId, zae_limiter::ResourceName) =
        ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let capacity = async || {
        bench.limiter.resolve("key", "gpt-4").await.unwrap().members[0]
            .limits
            .first()
            .map(|limit| limit.capacity())
    };
    let levels = [
        Level::System,
        Level::Resource(gpt.clone()),
        Level::Entity(key.clone()),
        Level::EntityResource(key.clone(), gpt),
    ];
    for (capacity_set, level) in (1u64..).zip(&levels) {
        let limit = zae_limiter::Limit::per_day("rpm", capacity_set).unwrap();
        bench.limiter.set_limits(level, [limit]).await.unwrap();
        assert_eq!(capacity().await, Some(capacity_set), "{level}");
    }
    for (level, expected) in levels.iter().rev().zip([Some(3), Some(2), Some(1), None]) {
        assert!(bench.limiter.delete_limits(level).await.unwrap());
        assert_eq!(capacity().await, expected, "after deleting {level}");
    }
    assert_eq!(bench.limiter.resolve("key", "gpt-4").await.unwrap().members.len(), 1);
    let org = NewEntity {
        id: "org".parse().unwrap(),
        name: "org".into(),
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    bench.limiter.create_entity(org.clone()).await.unwrap();
    let key = NewEntity { id: key, parent: Some(org.id), cascade: true, ..org };
    bench.limiter.create_entity(key).await.unwrap();
    assert_eq!(
        bench.limiter.resolve("key", "gpt-4").await.unwrap().members.len(),
        2,
        "the new entity cascades"
    );
    bench.limiter.delete_entity("key").await.unwrap();
    assert_eq!(bench.limiter.resolve("key", "gpt-4").await.unwrap().members.len(), 1);
}

#[tokio::test]
async fn callers_of_one_key_wait_for_one_read() {
    let bench = Bench::new();
    bench.system(&["rpm:60/day"]).await;
    bench.script.always("resolve", Fault::Yield(3));
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let limiter = bench.limiter.clone();
            tokio::spawn(async move { limiter.acquire(request()).await.map(drop) })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(bench.script.calls("resolve"), 1);
}

#[tokio::test]
async fn a_failed_read_is_not_cached_and_does_not_fail_the_waiters() {
    let bench = Bench::new();
    bench.system(&["rpm:60/day"]).await;
    bench.script.once("resolve", Fault::FailBefore(StoreErrorKind::Unavailable));
    bench.limiter.acquire(request()).await.unwrap_err();
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn a_change_elsewhere_is_seen_within_the_ttl_and_can_not_be_pushed_back() {
    let bench = Bench::with(|builder| builder.config_cache_ttl(Duration::from_secs(60)));
    bench.system(&["rpd:100/day"]).await;
    let take = |amount| Request::new("key", "gpt-4").take("rpd", amount);
    bench.limiter.acquire(take(1)).await.unwrap().commit().await.unwrap();
    let other = bench.second();
    other.set_limits(&Level::System, limits(&["rpd:10/day"])).await.unwrap();
    other.acquire(take(1)).await.unwrap().commit().await.unwrap();
    // The first limiter still believes in 100, but the bucket knows better and makes it look again.
    let refused = bench.limiter.acquire(take(50)).await.unwrap_err();
    assert!(refused.never_passes(), "{refused}");
    assert_eq!(bench.left("key", "gpt-4", "rpd").await, 9, "99 cut to 10, one taken");
}

#[tokio::test]
async fn the_cache_is_bounded() {
    let bench = Bench::with(|builder| builder.config_cache_entries_max(100));
    bench.system(&["rpm:60/day"]).await;
    for index in 0..1000 {
        bench
            .limiter
            .acquire(Request::new(format!("key-{index}"), "gpt-4").take("rpm", 1))
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
    }
    assert!(bench.limiter.cache_stats().entries <= 100, "{:?}", bench.limiter.cache_stats());
}

#[tokio::test]
async fn invalidating_forgets_everything() {
    let bench = Bench::new();
    bench.system(&["rpm:60/day"]).await;
    bench.limiter.resolve("key", "gpt-4").await.unwrap();
    bench.limiter.invalidate_config_cache();
    bench.limiter.resolve("key", "gpt-4").await.unwrap();
    assert_eq!(bench.script.calls("resolve"), 2);
}

/// A change whose caller gave up may have landed: this process must look again.
#[tokio::test]
async fn a_change_whose_caller_went_away_is_seen_too() {
    let bench = Bench::new();
    bench.system(&["rpm:60/day"]).await;
    bench.limiter.resolve("key", "gpt-4").await.unwrap();
    bench.script.once("set_limits", Fault::HangAfter);
    let mut change = Box::pin(bench.limiter.set_limits(&Level::System, limits(&["rpm:7/day"])));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(change.as_mut().poll(&mut context).is_pending());
    drop(change);
    assert_eq!(
        bench.limiter.resolve("key", "gpt-4").await.unwrap().members[0].limits[0].capacity(),
        7
    );
}

/// A store that says "off" against what is remembered has it read again, once it is a second old:
/// then the answer names the level.
#[tokio::test]
async fn a_key_that_turns_out_to_be_off_is_read_again_once_a_second() {
    let bench = Bench::new();
    bench.system(&["rpm:60/day"]).await;
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    let key = Level::Entity("key".parse().unwrap());
    bench.second().disable(&key).await.unwrap();
    let told = async || match bench.limiter.acquire(request()).await {
        Err(AcquireError::Disabled(disabled)) => disabled.level,
        other => panic!("expected that the key is off, found {other:?}"),
    };
    for _ in 0..5 {
        assert_eq!(told().await, None, "by the bucket: what is remembered was read just now");
    }
    assert_eq!(bench.script.calls("resolve"), 1);
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(told().await, None, "by the bucket once more");
    for _ in 0..5 {
        assert_eq!(told().await, Some(key.clone()), "by the configuration");
    }
    assert_eq!(bench.script.calls("resolve"), 2);
}
