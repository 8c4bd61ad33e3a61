//! Flags along a chain, seen from another process that has read the configuration before.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;

use crate::support::{START, limits};
use zae_limiter::sqlite::SqliteStore;
use zae_limiter::store::SeededEntropy;
use zae_limiter::{AcquireError, Level, ManualClock, NewEntity, RateLimiter, Request, blocking};

fn entity(id: &str, parent: Option<&str>) -> NewEntity {
    let parent = parent.map(|parent| parent.parse().unwrap());
    NewEntity {
        id: id.parse().unwrap(),
        name: id.into(),
        cascade: parent.is_some(),
        parent,
        metadata: BTreeMap::new(),
    }
}

/// A process of its own on a file: its caches, its connections.
fn open(path: &std::path::Path, clock: &ManualClock, seed: u64) -> zae_limiter::Builder {
    RateLimiter::builder(SqliteStore::open(path).unwrap())
        .clock(clock.clone())
        .entropy(SeededEntropy::new(seed))
}

/// `org` has no limits, `key` has; takes of `key` go on to `team`, which has none either, and to
/// `org`.
async fn furnish(limiter: &RateLimiter) {
    for (id, parent) in [("org", None), ("team", Some("org")), ("key", Some("team"))] {
        limiter.create_entity(entity(id, parent)).await.unwrap();
    }
    limiter
        .set_limits(&Level::Entity("key".parse().unwrap()), limits(&["rpm:100000"]))
        .await
        .unwrap();
}

fn request() -> Request {
    Request::new("key", "gpt-4").take("rpm", 1)
}

/// The entity that is disabled, according to a refusal.
fn off(result: Result<zae_limiter::Lease, AcquireError>) -> String {
    match result {
        Err(AcquireError::Disabled(disabled)) => disabled.entity.to_string(),
        other => panic!("expected a disabled entity, found {other:?}"),
    }
}

#[tokio::test]
async fn disabling_a_member_without_limits_binds_other_processes_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("limits.db"), ManualClock::new(START));
    let (a, b) = (open(&path, &clock, 1).build().unwrap(), open(&path, &clock, 2).build().unwrap());
    furnish(&a).await;
    let call = request().limits(limits(&["rpm:100000/hour"]));
    for who in ["org", "team"] {
        let levels = [
            Level::Entity(who.parse().unwrap()),
            Level::EntityResource(who.parse().unwrap(), "gpt-4".parse().unwrap()),
        ];
        for level in levels {
            // B has cached the chain, in which no member is disabled.
            b.acquire(request()).await.unwrap().commit().await.unwrap();
            b.acquire(call.clone()).await.unwrap().rollback().await.unwrap();
            a.disable(&level).await.unwrap();
            assert_eq!(
                off(b.acquire(request()).await),
                who,
                "{level} is off when disable() has returned"
            );
            assert_eq!(
                off(b.acquire(call.clone()).await),
                who,
                "also for limits given with the call"
            );
            assert!(
                matches!(b.availability(&request()).await, Err(AcquireError::Disabled(_))),
                "a look says the same"
            );
            a.clear_disabled(&level).await.unwrap();
            // That it is on again is noticed within the TTL of the config cache; this test does not
            // wait for it.
            b.invalidate_config_cache();
        }
    }
    b.acquire(request()).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn a_lease_that_asks_for_more_is_stopped_too() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("limits.db"), ManualClock::new(START));
    let (a, b) = (open(&path, &clock, 1).build().unwrap(), open(&path, &clock, 2).build().unwrap());
    furnish(&a).await;
    let lease = b.acquire(request()).await.unwrap();
    a.disable(&Level::Entity("org".parse().unwrap())).await.unwrap();
    assert!(matches!(lease.consume([("rpm", 1)]).await, Err(AcquireError::Disabled(_))));
    lease.commit().await.unwrap();
}

/// A member whose limits the request does not name has a bucket, and its flag binds as well.
#[tokio::test]
async fn a_member_with_other_limits_than_those_asked_for_is_stopped_too() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("limits.db"), ManualClock::new(START));
    let (a, b) = (open(&path, &clock, 1).build().unwrap(), open(&path, &clock, 2).build().unwrap());
    furnish(&a).await;
    let org = Level::Entity("org".parse().unwrap());
    a.set_limits(&org, limits(&["tpm:5"])).await.unwrap();
    b.acquire(request()).await.unwrap().commit().await.unwrap();
    a.disable(&org).await.unwrap();
    assert_eq!(off(b.acquire(request()).await), "org");
}

#[test]
fn the_blocking_limiter_is_stopped_too() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("limits.db"), ManualClock::new(START));
    let a = blocking::RateLimiter::build(open(&path, &clock, 1)).unwrap();
    let b = blocking::RateLimiter::build(open(&path, &clock, 2)).unwrap();
    for (id, parent) in [("org", None), ("key", Some("org"))] {
        a.create_entity(entity(id, parent)).unwrap();
    }
    a.set_limits(&Level::Entity("key".parse().unwrap()), limits(&["rpm:100000"])).unwrap();
    b.acquire(request()).unwrap().commit().unwrap();
    a.disable(&Level::Entity("org".parse().unwrap())).unwrap();
    assert!(matches!(b.acquire(request()), Err(AcquireError::Disabled(_))));
}

/// Nobody in the chain has limits: that is said, not granted.
#[tokio::test]
async fn a_chain_without_any_limits_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::new(START);
    let limiter = open(&folder.path().join("limits.db"), &clock, 1).build().unwrap();
    furnish(&limiter).await;
    let refused = limiter.acquire(Request::new("team", "gpt-4").take("rpm", 1)).await;
    assert!(matches!(refused, Err(AcquireError::NoLimits(_))), "{refused:?}");
}
