//! Leases: what is taken is kept, returned or settled, exactly once.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails says where; it may spawn what it tests"
)]

use crate::support::Bench;
use zae_limiter::domain::TOKENS_MAX;
use zae_limiter::store::Fault;
use zae_limiter::{
    AcquireError, Invalid, OnDrop, PageRequest, Request, Settled, StoreErrorKind, UsageQuery,
    UsageWindow,
};

fn request() -> Request {
    Request::new("key", "gpt-4").take("rpm", 1).take("tpm", 500)
}

async fn bench() -> Bench {
    let bench = Bench::new();
    bench.system(&["rpm:60/day", "tpm:1000/day"]).await;
    bench
}

#[tokio::test]
async fn commit_charges_what_was_recorded() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(request()).await.unwrap();
    lease.record("tpm", 700).unwrap();
    lease.record("tpm", 800).unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 500, "recording writes nothing");
    lease.commit().await.unwrap();
    assert_eq!(
        (bench.left("key", "gpt-4", "tpm").await, bench.left("key", "gpt-4", "rpm").await),
        (200, 59)
    );
}

#[tokio::test]
async fn commit_gives_back_what_was_not_used() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(request()).await.unwrap();
    lease.adjust("tpm", -400).unwrap();
    lease.commit().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 900);
}

#[tokio::test]
async fn debt_blocks_until_it_is_repaid() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(request()).await.unwrap();
    lease.record("tpm", 3000).unwrap();
    lease.commit().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, -2000);
    let zero = Request::new("key", "gpt-4").take("tpm", 0);
    assert!(
        bench.limiter.acquire(zero).await.unwrap_err().exceeded().is_some(),
        "a declared limit must not be in debt"
    );
    let undeclared = Request::new("key", "gpt-4").take("rpm", 1);
    bench.limiter.acquire(undeclared).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn rollback_gives_everything_back() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(request()).await.unwrap();
    lease.record("tpm", 900).unwrap();
    lease.flush().await.unwrap();
    lease.consume([("tpm", 50)]).await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 50);
    lease.rollback().await.unwrap();
    assert_eq!(
        (bench.left("key", "gpt-4", "tpm").await, bench.left("key", "gpt-4", "rpm").await),
        (1000, 60)
    );
}

#[tokio::test]
async fn more_can_not_be_given_back_than_was_taken() {
    let bench = bench().await;
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    let lease = bench.limiter.acquire(Request::new("key", "gpt-4").take("tpm", 100)).await.unwrap();
    lease.adjust("tpm", i64::MIN).unwrap();
    lease.commit().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 500, "only this lease's 100 came back");
}

#[tokio::test]
async fn consume_is_checked_and_counts_as_used() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(request()).await.unwrap();
    lease.consume([("tpm", 400)]).await.unwrap();
    let refused = lease.consume([("tpm", 101)]).await.unwrap_err();
    assert!(refused.exceeded().is_some());
    assert_eq!(lease.used(), [("rpm".parse().unwrap(), 1), ("tpm".parse().unwrap(), 900)]);
    lease.commit().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 100);
}

#[tokio::test]
async fn undeclared_limits_are_a_typed_error_everywhere() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
    let undeclared =
        |limit: &str| Invalid::from(zae_limiter::UndeclaredLimit { limit: limit.to_owned() });
    assert_eq!(lease.record("tpm", 1).unwrap_err(), undeclared("tpm"));
    assert_eq!(lease.adjust("nope", 1).unwrap_err(), undeclared("nope"));
    let error = lease.consume([("tpm", 1)]).await.unwrap_err();
    assert!(matches!(error, AcquireError::Invalid(Invalid::Undeclared(_))), "{error}");
    lease.commit().await.unwrap();
}

#[tokio::test]
async fn flush_writes_and_keeps_the_lease() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(request()).await.unwrap();
    lease.adjust("tpm", 100).unwrap();
    lease.flush().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 400);
    lease.flush().await.unwrap();
    assert_eq!(bench.script.calls("adjust"), 1, "nothing new, nothing written");
    lease.adjust("tpm", 100).unwrap();
    lease.commit().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 300);
}

#[tokio::test]
async fn a_dropped_lease_acts_as_it_was_asked_to() {
    for (on_drop, left) in [(OnDrop::Rollback, 1000), (OnDrop::Commit, 300), (OnDrop::Keep, 500)] {
        let bench = bench().await;
        let lease = bench.limiter.acquire(request().on_drop(on_drop)).await.unwrap();
        lease.record("tpm", 700).unwrap();
        drop(lease);
        bench.limiter.drain().await;
        assert_eq!(bench.left("key", "gpt-4", "tpm").await, left, "{on_drop:?}");
    }
}

#[tokio::test]
async fn with_lease_commits_on_ok_and_rolls_back_on_err_and_panic() {
    let bench = bench().await;
    let used = async |lease: &zae_limiter::Lease| {
        lease.record("tpm", 100).unwrap();
        Ok::<_, AcquireError>(())
    };
    bench.limiter.with_lease(request(), used).await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 900);

    let failing = async |_: &zae_limiter::Lease| {
        Err::<(), Box<dyn std::error::Error + Send + Sync>>("the model is down".into())
    };
    bench.limiter.with_lease(request(), failing).await.unwrap_err();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 900);

    let limiter = bench.limiter.clone();
    let panicking = tokio::spawn(async move {
        limiter
            .with_lease(request(), async |_| -> Result<(), AcquireError> {
                panic!("a bug in the body")
            })
            .await
    });
    assert!(panicking.await.unwrap_err().is_panic());
    bench.limiter.drain().await;
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 900);
}

#[tokio::test]
async fn a_failed_charge_is_settled_in_the_background() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(request()).await.unwrap();
    lease.record("tpm", 800).unwrap();
    bench.script.once("adjust", Fault::FailBefore(StoreErrorKind::Unavailable));
    let error = lease.commit().await.unwrap_err();
    assert_eq!((error.writes, error.failed), (1, 1));
    bench.limiter.drain().await;
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 200);
    assert_eq!(bench.limiter.settled(), Settled { settled: 1, abandoned: 0, lost: 0, pending: 0 });
}

#[tokio::test]
async fn a_credit_of_unknown_fate_is_never_sent_twice() {
    let bench = bench().await;
    for fault in [
        Fault::FailBefore(StoreErrorKind::Unavailable),
        Fault::FailAfter(StoreErrorKind::Unavailable),
    ] {
        let lease =
            bench.limiter.acquire(Request::new("key", "gpt-4").take("tpm", 100)).await.unwrap();
        bench.script.once("adjust", fault);
        lease.rollback().await.unwrap_err();
        bench.limiter.drain().await;
    }
    assert_eq!(
        bench.left("key", "gpt-4", "tpm").await,
        900,
        "the one that was applied came back once, the other not at all"
    );
    assert_eq!(bench.limiter.settled().lost, 2, "both are counted");
}

#[tokio::test]
async fn a_credit_that_certainly_was_not_applied_is_sent_again() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(Request::new("key", "gpt-4").take("tpm", 100)).await.unwrap();
    bench.script.once("adjust", Fault::FailBefore(StoreErrorKind::Busy));
    lease.rollback().await.unwrap_err();
    bench.limiter.drain().await;
    assert_eq!((bench.left("key", "gpt-4", "tpm").await, bench.limiter.settled().lost), (1000, 0));
}

#[tokio::test]
async fn close_drains_reports_and_refuses_new_requests_for_all_clones() {
    let bench = bench().await;
    drop(bench.limiter.acquire(request()).await.unwrap());
    let clone = bench.limiter.clone();
    let settled = bench.limiter.close().await;
    assert_eq!(settled, Settled { settled: 1, abandoned: 0, lost: 0, pending: 0 });
    assert_eq!(clone.close().await, settled, "idempotent");
    let error = clone.acquire(request()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)), "{error}");
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 1000);
}

#[tokio::test]
async fn leases_are_send_and_static() {
    fn check<T: Send + 'static>(_: &T) {}
    let bench = bench().await;
    let lease = bench.limiter.acquire(request()).await.unwrap();
    check(&lease);
    check(&bench.limiter);
    lease.commit().await.unwrap();
}

/// Found by the simulator: a rollback after a failed flush gave back the flushed charge at once,
/// while the settler had yet to write it. In between, tokens were there that never had been.
#[tokio::test]
async fn a_rollback_never_gives_back_a_charge_that_may_not_have_landed() {
    for dropped in [false, true] {
        let bench = bench().await;
        let lease =
            bench.limiter.acquire(Request::new("key", "gpt-4").take("tpm", 400)).await.unwrap();
        lease.adjust("tpm", 300).unwrap();
        if dropped {
            bench.script.once("adjust", Fault::Hang);
            let mut flush = Box::pin(lease.flush());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(flush.as_mut().poll(&mut context).is_pending());
            drop(flush);
        } else {
            bench.script.once("adjust", Fault::FailBefore(StoreErrorKind::Unavailable));
            lease.flush().await.unwrap_err();
        }
        lease.rollback().await.unwrap();
        let left = bench.left("key", "gpt-4", "tpm").await;
        assert!(left <= 1000, "never more than there was: {left}");
        if !dropped {
            bench.limiter.drain().await;
            assert_eq!(bench.left("key", "gpt-4", "tpm").await, 700, "the charge landed and stays");
            assert_eq!(bench.limiter.settled().lost, 1, "and what was not given back is counted");
        }
    }
}

#[tokio::test]
async fn a_credit_that_may_have_landed_is_not_given_back_again() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(Request::new("key", "gpt-4").take("tpm", 400)).await.unwrap();
    lease.adjust("tpm", -300).unwrap();
    bench.script.once("adjust", Fault::FailAfter(StoreErrorKind::Unavailable));
    lease.flush().await.unwrap_err();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 900, "it did land");
    lease.rollback().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 1000, "only the rest came back");
}

/// A difference that fell below zero must not put a bucket into debt for thousands of years.
#[tokio::test]
async fn what_is_recorded_is_bounded_like_what_is_taken() {
    let bench = bench().await;
    let lease = bench.limiter.acquire(Request::new("key", "gpt-4").take("tpm", 5)).await.unwrap();
    let limit = || "tpm".parse().unwrap();
    for amount in [TOKENS_MAX + 1, u64::MAX] {
        assert_eq!(
            lease.record("tpm", amount).unwrap_err(),
            Invalid::Amount { limit: limit(), amount, max: TOKENS_MAX }
        );
    }
    assert!(matches!(lease.adjust("tpm", i64::MAX), Err(Invalid::Amount { .. })));
    assert_eq!(lease.used(), [(limit(), 5)], "what was refused is not recorded");
    lease.record("tpm", TOKENS_MAX).unwrap();
    assert!(
        matches!(lease.adjust("tpm", 1), Err(Invalid::Amount { amount, .. }) if amount == TOKENS_MAX + 1)
    );
    lease.adjust("tpm", i64::MIN).unwrap();
    assert_eq!(lease.used(), [(limit(), 0)], "use never falls below zero");
    lease.record("tpm", 6).unwrap();
    lease.commit().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 994);
}

/// Ten records of the largest amount there is, in one hour: what cannot be counted is said, and
/// nothing else is lost.
#[tokio::test]
async fn a_counter_that_is_full_says_so() {
    let bench = bench().await;
    let used = async || {
        let (entity, window) = (Some("key".parse().unwrap()), UsageWindow::Hourly);
        let query = UsageQuery {
            entity,
            resource: None,
            window,
            from: None,
            until: None,
            page: PageRequest::default(),
        };
        let page = bench.limiter.usage(&query).await.unwrap();
        page.items
            .iter()
            .flat_map(|item| &item.counters)
            .filter(|(name, _)| name.as_str() == "tpm")
            .map(|(_, used)| used.floor_tokens())
            .sum::<i64>()
    };
    let mut told = 0;
    let mut counted: i64 = 0;
    for _ in 0..10 {
        bench.limiter.reset("key", "gpt-4", None).await.unwrap();
        let lease =
            bench.limiter.acquire(Request::new("key", "gpt-4").take("tpm", 0)).await.unwrap();
        lease.record("tpm", TOKENS_MAX).unwrap();
        match lease.commit().await {
            Ok(()) => counted += i64::try_from(TOKENS_MAX).unwrap(),
            Err(error) => {
                assert!(
                    error.source.message().contains("cannot count that much more"),
                    "{error:?}"
                );
                told += 1;
            }
        }
        assert_eq!(used().await, counted, "every charge is counted or refused");
    }
    assert_eq!((told, counted), (1, 9_000_000_000_000_000));
    // The next hour counts again, and the settler lands what it could not.
    bench.limiter.reset("key", "gpt-4", None).await.unwrap();
    bench.clock.advance(std::time::Duration::from_secs(3600));
    bench.limiter.drain().await;
    bench.limiter.reset("key", "gpt-4", None).await.unwrap();
    bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("tpm", 300))
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    assert_eq!(used().await, 10_000_000_000_000_300, "ten charges and a take");
}
