//! The blocking twin: same verbs, no runtime needed, no logic of its own.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails says where; it may spawn what it tests"
)]

use zae_limiter::blocking::RateLimiter;
use zae_limiter::{AcquireError, Level, Limit, MemoryStore, OnDrop, Request};

fn limiter() -> RateLimiter {
    let limiter =
        RateLimiter::build(zae_limiter::RateLimiter::builder(MemoryStore::new())).unwrap();
    limiter.set_limits(&Level::System, [Limit::per_day("tpd", 1000).unwrap()]).unwrap();
    limiter
}

fn left(limiter: &RateLimiter) -> i64 {
    limiter.availability(&Request::new("key", "gpt-4")).unwrap().available("tpd").unwrap()
}

#[test]
fn a_lease_from_a_plain_thread() {
    let limiter = limiter();
    let lease = limiter.acquire(Request::new("key", "gpt-4").take("tpd", 100)).unwrap();
    assert_eq!(lease.statuses()[0].available, 900);
    lease.consume([("tpd", 50)]).unwrap();
    lease.record("tpd", 120).unwrap();
    lease.flush().unwrap();
    assert_eq!(left(&limiter), 880);
    lease.adjust("tpd", 10).unwrap();
    lease.commit().unwrap();
    assert_eq!(left(&limiter), 870);
    limiter.acquire(Request::new("key", "gpt-4").take("tpd", 100)).unwrap().rollback().unwrap();
    assert_eq!(left(&limiter), 870);
}

#[test]
fn with_lease_commits_and_rolls_back() {
    let limiter = limiter();
    limiter
        .with_lease(Request::new("key", "gpt-4").take("tpd", 100), |_| Ok::<_, AcquireError>(()))
        .unwrap();
    let failed: Result<(), Box<dyn std::error::Error>> =
        limiter.with_lease(Request::new("key", "gpt-4").take("tpd", 100), |_| Err("no".into()));
    assert!(failed.is_err());
    assert_eq!(left(&limiter), 900);
}

#[test]
fn a_dropped_lease_is_settled_by_the_thread() {
    let limiter = limiter();
    drop(limiter.acquire(Request::new("key", "gpt-4").take("tpd", 100)).unwrap());
    let lease = limiter
        .acquire(Request::new("key", "gpt-4").take("tpd", 0).on_drop(OnDrop::Commit))
        .unwrap();
    lease.record("tpd", 40).unwrap();
    drop(lease);
    assert_eq!(limiter.close().settled, 2);
    let store_view = limiter.buckets("key", &Default::default()).unwrap();
    assert_eq!(store_view.items[0].state.limits()[0].balance.floor_tokens(), 960);
}

#[test]
fn it_works_in_spawn_blocking() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let granted = runtime.block_on(async {
        tokio::task::spawn_blocking(|| {
            limiter().acquire(Request::new("key", "gpt-4").take("tpd", 1)).unwrap().commit().is_ok()
        })
        .await
        .unwrap()
    });
    assert!(granted);
}

/// A store that has to be connected to is connected to on the thread it will be used on.
#[test]
fn a_limiter_is_built_from_a_store_that_connects() {
    let limiter = RateLimiter::build_from(async {
        Ok(zae_limiter::RateLimiter::builder(MemoryStore::new()))
    })
    .unwrap();
    assert!(limiter.is_available());
    let failed = RateLimiter::build_from(async {
        let refused = zae_limiter::StoreError::new(
            zae_limiter::StoreErrorKind::NotFound,
            "connect",
            "there is no such table",
        );
        Err(refused.into())
    });
    assert!(failed.unwrap_err().to_string().contains("there is no such table"));
}

#[test]
fn on_an_async_worker_it_panics_with_a_clear_text() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let limiter = limiter();
    let panicked = runtime
        .block_on(async {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| limiter.is_available()))
        })
        .unwrap_err();
    let text = panicked
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panicked.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap();
    assert!(text.contains("block the current thread"), "{text}");
}

/// Every public verb of the asynchronous limiter and lease exists in the blocking twin. Read from
/// the sources, so that a new verb without a twin fails here.
#[test]
fn no_verb_is_missing() {
    let verbs = |source: &str| -> Vec<String> {
        source
            .lines()
            .filter_map(|line| {
                line.strip_prefix("    pub async fn ").or_else(|| line.strip_prefix("    pub fn "))
            })
            .map(|rest| rest.split(['(', '<']).next().unwrap().to_owned())
            .collect()
    };
    let mut twin = verbs(include_str!("../../src/blocking.rs"));
    twin.extend(verbs(include_str!("../../src/blocking/lease.rs")));
    let sources = [
        include_str!("../../src/limiter/mod.rs"),
        include_str!("../../src/limiter/acquire.rs"),
        include_str!("../../src/limiter/availability.rs"),
        include_str!("../../src/limiter/limits.rs"),
        include_str!("../../src/limiter/admin.rs"),
        include_str!("../../src/limiter/namespaces.rs"),
        include_str!("../../src/limiter/queries.rs"),
        include_str!("../../src/lease.rs"),
    ];
    // Not verbs of a handle: the builder, and accessors of plain values.
    let others = ["builder", "allowed", "retry_after", "available", "utilization_pct"];
    let missing: Vec<String> = sources
        .iter()
        .flat_map(|source| verbs(source))
        .filter(|verb| !twin.contains(verb) && !others.contains(&verb.as_str()))
        .collect();
    assert!(missing.is_empty(), "not in blocking: {missing:?}");
}
