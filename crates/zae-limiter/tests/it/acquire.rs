//! Admission: names, chains, limits, refusals, waits.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails says where; it may spawn what it tests"
)]

use std::time::Duration;

use crate::support::{Bench, START, limits};
use zae_limiter::{AcquireError, Invalid, Level, NewEntity, Request, Wait};

fn entity(id: &str, parent: Option<&str>) -> NewEntity {
    NewEntity {
        id: id.parse().unwrap(),
        name: id.into(),
        parent: parent.map(|parent| parent.parse().unwrap()),
        cascade: parent.is_some(),
        metadata: Default::default(),
    }
}

#[tokio::test]
async fn a_grant_takes_before_it_returns() {
    let bench = Bench::new();
    bench.system(&["rpm:60", "tpm:1000"]).await;
    let lease = bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 1).take("tpm", 900))
        .await
        .unwrap();
    assert_eq!(bench.left("key", "gpt-4", "tpm").await, 100);
    let left: Vec<(String, i64)> = lease
        .statuses()
        .iter()
        .map(|status| (status.limit.name().to_string(), status.available))
        .collect();
    assert_eq!(left, [("rpm".to_owned(), 59), ("tpm".to_owned(), 100)]);
    lease.commit().await.unwrap();
}

#[tokio::test]
async fn a_refusal_reports_every_limit_and_takes_nothing() {
    let bench = Bench::new();
    bench.system(&["rpm:60", "tpm:1000"]).await;
    let refused = bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 1).take("tpm", 1001))
        .await
        .unwrap_err();
    let report = refused.exceeded().expect("a refusal");
    assert_eq!(report.statuses().len(), 2);
    assert_eq!(report.primary().unwrap().limit.name().as_str(), "tpm");
    assert!(refused.never_passes());
    assert_eq!((refused.http_status(), refused.retry_after()), (429, None));
    assert_eq!(bench.left("key", "gpt-4", "rpm").await, 60);
}

#[tokio::test]
async fn refused_until_the_wait_is_over_and_granted_then() {
    let bench = Bench::new();
    bench.system(&["rpm:60"]).await;
    let request = || Request::new("key", "gpt-4").take("rpm", 60);
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    let wait = bench.limiter.acquire(request()).await.unwrap_err().retry_after().unwrap();
    assert_eq!(wait, Duration::from_secs(60));
    bench.clock.advance(wait - Duration::from_millis(1));
    let wait = bench.limiter.acquire(request()).await.unwrap_err().retry_after().unwrap();
    assert_eq!(wait, Duration::from_millis(1));
    bench.clock.advance(wait);
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn a_chain_is_taken_whole_or_not_at_all() {
    let bench = Bench::new();
    for (id, parent) in [("org", None), ("project", Some("org")), ("key", Some("project"))] {
        bench.limiter.create_entity(entity(id, parent)).await.unwrap();
        let rate = if id == "org" { "rpm:3" } else { "rpm:10" };
        bench
            .limiter
            .set_limits(&Level::Entity(id.parse().unwrap()), limits(&[rate]))
            .await
            .unwrap();
    }
    let request = || Request::new("key", "gpt-4").take("rpm", 2);
    let lease = bench.limiter.acquire(request()).await.unwrap();
    let members: Vec<&str> = lease.statuses().iter().map(|status| status.entity.as_str()).collect();
    assert_eq!(members, ["key", "project", "org"]);
    lease.commit().await.unwrap();
    let refused = bench.limiter.acquire(request()).await.unwrap_err();
    assert_eq!(refused.exceeded().unwrap().primary().unwrap().entity.as_str(), "org");
    assert_eq!(
        (bench.left("key", "gpt-4", "rpm").await, bench.left("org", "gpt-4", "rpm").await),
        (1, 1)
    );
}

#[tokio::test]
async fn a_limit_an_ancestor_lacks_is_not_checked_there() {
    let bench = Bench::new();
    bench.limiter.create_entity(entity("org", None)).await.unwrap();
    bench.limiter.create_entity(entity("key", Some("org"))).await.unwrap();
    bench
        .limiter
        .set_limits(&Level::Entity("key".parse().unwrap()), limits(&["rpm:10", "tpm:100"]))
        .await
        .unwrap();
    bench
        .limiter
        .set_limits(&Level::Entity("org".parse().unwrap()), limits(&["rpm:5"]))
        .await
        .unwrap();
    let lease = bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 1).take("tpm", 7))
        .await
        .unwrap();
    assert_eq!(lease.statuses().len(), 3);
    lease.rollback().await.unwrap();
}

#[tokio::test]
async fn a_member_without_limits_is_skipped_as_long_as_another_has_some() {
    let bench = Bench::new();
    bench.limiter.create_entity(entity("org", None)).await.unwrap();
    bench.limiter.create_entity(entity("key", Some("org"))).await.unwrap();
    bench
        .limiter
        .set_limits(&Level::Entity("key".parse().unwrap()), limits(&["rpm:10"]))
        .await
        .unwrap();
    let lease = bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
    assert_eq!(lease.statuses().len(), 1);
    lease.commit().await.unwrap();
}

#[tokio::test]
async fn a_name_nobody_has_is_an_error_that_lists_the_names_there_are() {
    let bench = Bench::new();
    bench.system(&["rpm:60", "tpm:1000"]).await;
    let error =
        bench.limiter.acquire(Request::new("key", "gpt-4").take("rpn", 1)).await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::Invalid(Invalid::UnknownLimit { known, .. }) if known.len() == 2),
        "{error}"
    );
    assert_eq!(error.to_string(), "no limit is called rpn for key on gpt-4; there is rpm, tpm");
    assert_eq!(error.http_status(), 400);
}

#[tokio::test]
async fn without_any_limit_the_error_names_the_commands() {
    let bench = Bench::new();
    let error =
        bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap_err();
    assert!(matches!(error, AcquireError::NoLimits(_)), "{error}");
    assert!(error.to_string().contains("system set-defaults"), "{error}");
}

#[tokio::test]
async fn bad_names_end_the_call_before_any_io() {
    let bench = Bench::new();
    for request in [
        Request::new("a#b", "gpt-4"),
        Request::new("key", "gpt\n"),
        Request::new("key", "gpt-4").take("wcu", 1),
    ] {
        let error = bench.limiter.acquire(request).await.unwrap_err();
        assert!(matches!(error, AcquireError::Invalid(Invalid::Name(_))), "{error}");
    }
    assert_eq!((bench.script.calls("resolve"), bench.script.calls("consume")), (0, 0));
}

#[tokio::test]
async fn limits_come_from_the_strongest_level_that_has_some() {
    let bench = Bench::with(|builder| builder.default_limits(limits(&["rpm:1"])));
    let (key, gpt) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let source = async || {
        let resolved = bench.limiter.resolve("key", "gpt-4").await.unwrap();
        (resolved.members[0].source.unwrap().as_str(), resolved.members[0].limits[0].capacity())
    };
    assert_eq!(source().await, ("builder", 1));
    bench.system(&["rpm:2"]).await;
    assert_eq!(source().await, ("system", 2));
    bench
        .limiter
        .set_limits(&Level::Resource("gpt-4".parse().unwrap()), limits(&["rpm:3"]))
        .await
        .unwrap();
    assert_eq!(source().await, ("resource", 3));
    bench
        .limiter
        .set_limits(&Level::Entity("key".parse().unwrap()), limits(&["rpm:4"]))
        .await
        .unwrap();
    assert_eq!(source().await, ("entity_default", 4));
    bench.limiter.set_limits(&Level::EntityResource(key, gpt), limits(&["rpm:5"])).await.unwrap();
    assert_eq!(source().await, ("entity", 5));
}

#[tokio::test]
async fn limits_of_the_call_override_and_fallbacks_come_last() {
    let bench = Bench::new();
    let fallback =
        || Request::new("key", "gpt-4").take("rpm", 1).fallback_limits(limits(&["rpm:5"]));
    let lease = bench.limiter.acquire(fallback()).await.unwrap();
    assert_eq!(lease.statuses()[0].limit.capacity(), 5);
    lease.rollback().await.unwrap();
    bench.system(&["rpm:7"]).await;
    let lease = bench.limiter.acquire(fallback()).await.unwrap();
    assert_eq!(lease.statuses()[0].limit.capacity(), 7);
    lease.rollback().await.unwrap();
    let lease = bench.limiter.acquire(fallback().limits(limits(&["rpm:3"]))).await.unwrap();
    assert_eq!(lease.statuses()[0].limit.capacity(), 3);
    lease.rollback().await.unwrap();
}

#[tokio::test]
async fn alternating_overrides_never_gain() {
    let bench = Bench::new();
    let mut granted = 0;
    for round in 0..40 {
        let burst = if round % 2 == 0 { "rpd:10/day:10" } else { "rpd:10/day:100" };
        let request = Request::new("key", "gpt-4").take("rpd", 1).limits(limits(&[burst]));
        if let Ok(lease) = bench.limiter.acquire(request).await {
            granted += 1;
            lease.commit().await.unwrap();
        }
    }
    assert_eq!(granted, 10);
}

#[tokio::test]
async fn a_disabled_resource_refuses_in_every_process_at_once() {
    let bench = Bench::new();
    bench.system(&["rpm:60"]).await;
    let other = bench.second();
    let request = || Request::new("key", "gpt-4").take("rpm", 1);
    other.acquire(request()).await.unwrap().commit().await.unwrap();
    assert_eq!(
        bench.limiter.disable(&Level::Resource("gpt-4".parse().unwrap())).await.unwrap().buckets,
        1
    );
    for limiter in [&bench.limiter, &other] {
        let error = limiter.acquire(request()).await.unwrap_err();
        assert!(matches!(error, AcquireError::Disabled(_)), "{error}");
        assert_eq!(error.http_status(), 403);
    }
    bench.limiter.enable(&Level::Resource("gpt-4".parse().unwrap())).await.unwrap();
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn waiting_requests_sleep_exactly_as_long_as_needed() {
    let bench = Bench::new();
    bench.system(&["rpm:60"]).await;
    bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 60))
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let limiter = bench.limiter.clone();
    let waiting = tokio::spawn(async move {
        limiter
            .acquire(Request::new("key", "gpt-4").take("rpm", 1).wait(Duration::from_secs(5)))
            .await
    });
    tokio::task::yield_now().await;
    bench.clock.advance(Duration::from_millis(999));
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    bench.clock.advance(Duration::from_millis(1));
    waiting.await.unwrap().unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn waiting_gives_up_at_once_when_it_can_not_help() {
    let bench = Bench::new();
    bench.system(&["rpm:60"]).await;
    bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 60))
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let too_long = bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 10).wait(Duration::from_secs(9)))
        .await
        .unwrap_err();
    assert_eq!(too_long.retry_after(), Some(Duration::from_secs(10)));
    let never = bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 61).wait(Duration::from_secs(9)))
        .await
        .unwrap_err();
    assert_eq!(never.exceeded().unwrap().retry_after(), Wait::Never);
}

#[tokio::test]
async fn availability_writes_nothing_and_looks_at_every_limit_when_asked_for_none() {
    let bench = Bench::new();
    bench.system(&["rpm:60", "tpm:1000"]).await;
    let all = bench.limiter.availability(&Request::new("key", "gpt-4")).await.unwrap();
    assert_eq!(
        (all.statuses().len(), all.available("rpm"), all.available("tpm"), all.allowed()),
        (2, Some(60), Some(1000), true)
    );
    let short =
        bench.limiter.availability(&Request::new("key", "gpt-4").take("tpm", 1001)).await.unwrap();
    assert_eq!((short.allowed(), short.retry_after()), (false, Wait::Never));
    let buckets = bench.limiter.buckets("key", &Default::default()).await.unwrap();
    assert!(buckets.items.is_empty(), "a peek creates no bucket");
}

#[tokio::test]
async fn a_warm_acquire_is_one_call_to_the_store() {
    let bench = Bench::new();
    bench.system(&["rpm:60"]).await;
    let request = || Request::new("key", "gpt-4").take("rpm", 1);
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    let (reads, writes, adjusts) = (
        bench.script.calls("resolve"),
        bench.script.calls("consume"),
        bench.script.calls("adjust"),
    );
    bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    let after = (
        bench.script.calls("resolve"),
        bench.script.calls("consume"),
        bench.script.calls("adjust"),
    );
    assert_eq!(
        after,
        (reads, writes + 1, adjusts),
        "no config read, one consume, nothing to settle"
    );
}

#[tokio::test]
async fn a_clock_that_goes_back_admits_nothing_more() {
    let bench = Bench::new();
    bench.system(&["rpm:60"]).await;
    bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 60))
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let take = || bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1));
    let wait = async || take().await.unwrap_err().retry_after().unwrap();
    bench.clock.step_to(START.plus_ms(-60_000));
    assert_eq!(
        wait().await,
        Duration::from_secs(61),
        "a clock that is a little behind must catch up first"
    );
    // One that is further behind is gone on by (ADR 0013): it adds nothing, and time goes on from
    // there.
    bench.clock.step_to(START.plus_ms(-3_600_000));
    assert_eq!(wait().await, Duration::from_secs(1));
    bench.clock.advance(Duration::from_secs(1));
    take().await.unwrap().commit().await.unwrap();
    assert_eq!(wait().await, Duration::from_secs(1));
    // Set right again, it is paid for the second that has passed, and not for the hour once more.
    bench.clock.step_to(START.plus_ms(2_000));
    take().await.unwrap().commit().await.unwrap();
    assert_eq!(wait().await, Duration::from_secs(1));
}
