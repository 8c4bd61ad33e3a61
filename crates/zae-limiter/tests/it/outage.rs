//! When the store is down: deadlines, policies, the breaker, and what is never turned into "allow".
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails says where; it may spawn what it tests"
)]

use std::time::Duration;

use crate::support::{Bench, limits};
use zae_limiter::store::Fault;
use zae_limiter::{
    AcquireError, Level, LimitsChange, OnUnavailable, OutageReason, Request, StoreErrorKind,
};

fn request() -> Request {
    Request::new("key", "gpt-4").take("rpm", 1)
}

async fn bench() -> Bench {
    let bench = Bench::new();
    bench.system(&["rpm:60/day"]).await;
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    bench
}

#[tokio::test]
async fn an_outage_blocks_by_default_with_its_own_error() {
    let bench = bench().await;
    bench.script.once("consume", Fault::FailBefore(StoreErrorKind::Unavailable));
    let error = bench.limiter.acquire(request()).await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::Unavailable(unavailable) if unavailable.reason == OutageReason::Failed(StoreErrorKind::Unavailable))
    );
    assert_eq!((error.http_status(), error.retry_after().is_some()), (503, true));
}

#[tokio::test]
async fn allow_gives_a_degraded_lease_whose_writes_do_nothing() {
    let bench = bench().await;
    bench.script.once("consume", Fault::FailBefore(StoreErrorKind::Unavailable));
    let lease =
        bench.limiter.acquire(request().on_unavailable(OnUnavailable::Allow)).await.unwrap();
    assert_eq!(lease.degraded().unwrap().reason, OutageReason::Failed(StoreErrorKind::Unavailable));
    lease.record("rpm", 50).unwrap();
    lease.consume([("rpm", 5)]).await.unwrap();
    lease.flush().await.unwrap();
    lease.commit().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "rpm").await, 59);
}

#[tokio::test]
async fn the_call_decides_before_the_store_before_the_limiter() {
    use OnUnavailable::{Allow, Block};
    let cases = [
        (None, None, None, false),
        (None, None, Some(Allow), true),
        (None, Some(Block), Some(Allow), false),
        (None, Some(Allow), None, true),
        (Some(Block), Some(Allow), Some(Allow), false),
        (Some(Allow), Some(Block), Some(Block), true),
    ];
    for (call, stored, built, allowed) in cases {
        let bench = Bench::with(|builder| match built {
            Some(policy) => builder.on_unavailable(policy),
            None => builder,
        });
        let change = LimitsChange { on_unavailable: stored, ..limits(&["rpm:60/day"]).into() };
        bench.limiter.set_limits(&Level::System, change).await.unwrap();
        bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        bench.script.once("consume", Fault::FailBefore(StoreErrorKind::Unavailable));
        let request = call.map_or_else(request, |policy| request().on_unavailable(policy));
        assert_eq!(
            bench.limiter.acquire(request).await.is_ok(),
            allowed,
            "{call:?} {stored:?} {built:?}"
        );
    }
}

#[tokio::test]
async fn a_stored_policy_that_was_never_read_counts_as_not_set() {
    let bench = bench().await;
    let allow = Some(OnUnavailable::Allow);
    let change = LimitsChange { on_unavailable: allow, ..limits(&["rpm:60/day"]).into() };
    bench.limiter.set_limits(&Level::System, change).await.unwrap();
    let fresh = Bench::new();
    fresh.script.always("resolve", Fault::FailBefore(StoreErrorKind::Unavailable));
    assert!(
        fresh.limiter.acquire(request()).await.is_err(),
        "it starts during the outage and has read nothing"
    );
}

#[tokio::test]
async fn a_store_that_hangs_is_given_up_at_the_deadline() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let bench = bench().await;
        bench.script.once("consume", fault);
        let limiter = bench.limiter.clone();
        let call = tokio::spawn(async move {
            limiter.acquire(request().deadline(Duration::from_millis(200))).await
        });
        tokio::task::yield_now().await;
        bench.clock.advance(Duration::from_millis(200));
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(&error, AcquireError::Unavailable(unavailable) if unavailable.reason == OutageReason::Deadline),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_grant_that_comes_after_the_deadline_is_given_back() {
    let bench = bench().await;
    bench.script.once("consume", Fault::Yield(3));
    let error = bench.limiter.acquire(request().deadline(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)), "{error}");
    bench.limiter.drain().await;
    assert_eq!((bench.script.calls("consume"), bench.left("key", "gpt-4", "rpm").await), (2, 59));
}

#[tokio::test]
async fn the_breaker_stops_hammering_and_probes() {
    let bench = bench().await;
    bench.script.always("consume", Fault::FailBefore(StoreErrorKind::Unavailable));
    for _ in 0..20 {
        bench.limiter.acquire(request()).await.unwrap_err();
    }
    assert_eq!(
        bench.script.calls("consume"),
        1 + 5,
        "five failures open it; the rest cost the store nothing"
    );
    let error = bench.limiter.acquire(request()).await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::Unavailable(unavailable) if unavailable.reason == OutageReason::BreakerOpen)
    );
    bench.script.heal();
    bench.clock.advance(Duration::from_secs(1));
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn an_open_breaker_allows_when_told_to() {
    let bench = bench().await;
    bench.script.always("consume", Fault::FailBefore(StoreErrorKind::Unavailable));
    for _ in 0..6 {
        bench.limiter.acquire(request()).await.unwrap_err();
    }
    let lease =
        bench.limiter.acquire(request().on_unavailable(OnUnavailable::Allow)).await.unwrap();
    assert_eq!(lease.degraded().unwrap().reason, OutageReason::BreakerOpen);
    lease.commit().await.unwrap();
}

#[tokio::test]
async fn answers_are_never_turned_into_allow_and_never_open_the_breaker() {
    use StoreErrorKind::{
        Busy, Capacity, Corrupt, Denied, Full, Incompatible, Internal, Invalid, ReadOnly,
    };
    for kind in [Busy, Capacity, Corrupt, Denied, Full, Incompatible, Internal, Invalid, ReadOnly] {
        let bench = bench().await;
        bench.script.always("consume", Fault::FailBefore(kind));
        for _ in 0..8 {
            let error = bench
                .limiter
                .acquire(request().on_unavailable(OnUnavailable::Allow))
                .await
                .unwrap_err();
            let status = match kind {
                Busy => 429,
                Invalid => 400,
                Denied | Incompatible => 500,
                _ => 503,
            };
            assert_eq!(error.http_status(), status, "{kind:?}: {error}");
        }
        assert_eq!(bench.script.calls("consume"), 9, "{kind:?}: the breaker stayed closed");
    }
}

#[tokio::test]
async fn busy_is_contention_with_a_short_wait() {
    let bench = bench().await;
    bench.script.once("consume", Fault::FailBefore(StoreErrorKind::Busy));
    let error = bench.limiter.acquire(request()).await.unwrap_err();
    assert!(error.exceeded().unwrap().is_contended());
    let wait = error.retry_after().unwrap();
    assert!(wait >= Duration::from_millis(50) && wait < Duration::from_millis(100), "{wait:?}");
}

#[tokio::test]
async fn disabled_and_refused_stay_what_they_are_under_allow() {
    let bench = Bench::with(|builder| builder.on_unavailable(OnUnavailable::Allow));
    bench.system(&["rpm:60/day"]).await;
    let error =
        bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 61)).await.unwrap_err();
    assert_eq!(error.http_status(), 429);
    bench.limiter.disable(&Level::Entity("key".parse().unwrap())).await.unwrap();
    assert_eq!(bench.limiter.acquire(request()).await.unwrap_err().http_status(), 403);
}

#[tokio::test]
async fn a_config_read_that_fails_is_an_outage_too() {
    let bench = Bench::with(|builder| builder.on_unavailable(OnUnavailable::Allow));
    bench.script.once("resolve", Fault::FailBefore(StoreErrorKind::Unavailable));
    let lease = bench.limiter.acquire(request()).await.unwrap();
    assert!(lease.degraded().is_some());
    lease.commit().await.unwrap();
}

#[tokio::test]
async fn administration_has_a_deadline_and_says_that_it_may_have_been_applied() {
    let bench = Bench::new();
    bench.script.once("set_limits", Fault::HangAfter);
    let limiter = bench.limiter.clone();
    let call =
        tokio::spawn(async move { limiter.set_limits(&Level::System, limits(&["rpm:1"])).await });
    tokio::task::yield_now().await;
    bench.clock.advance(Duration::from_secs(10));
    let error = call.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("may have been applied"), "{error}");
}

#[tokio::test]
async fn is_available_never_fails() {
    let bench = Bench::new();
    assert!(bench.limiter.is_available().await);
    bench.script.once("ping", Fault::FailBefore(StoreErrorKind::Unavailable));
    assert!(!bench.limiter.is_available().await);
}
