//! The blocking twin: same verbs, no runtime needed, no logic of its own.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails says where; it may spawn what it tests"
)]

use zae_limiter::blocking::RateLimiter;
use zae_limiter::{
    AcquireError, CapacityScope, EntityUpdate, Flag, Level, Limit, MemoryStore, NewEntity, OnDrop,
    PageRequest, Request,
};

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
fn a_prepared_request_from_plain_threads() {
    let limiter = limiter();
    let prepared = limiter.prepare(Request::new("key", "gpt-4").take("tpd", 100)).unwrap();
    prepared.acquire().unwrap().commit().unwrap();
    let another = prepared.clone();
    std::thread::spawn(move || another.acquire_with([("tpd", 50)]).unwrap().commit().unwrap())
        .join()
        .unwrap();
    assert_eq!(left(&limiter), 850);
    assert!(matches!(prepared.acquire_with([("tpd", 851)]), Err(AcquireError::Exceeded(_))));
    assert!(prepared.acquire_with([("rpm", 1)]).is_err(), "not declared");
    assert!(format!("{:?}", prepared.request()).contains("gpt-4"));
    assert!(limiter.prepare(Request::new("key", "a#b")).is_err());
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

/// The administrative verbs hand on what they are given and answer what the store says.
#[test]
fn administration_from_a_plain_thread() {
    let (limiter, page) = (limiter(), PageRequest::default());
    let org = NewEntity::new("org");
    assert_eq!(limiter.create_entity(org.clone()).unwrap().entity.id, "org");
    assert_eq!(limiter.ensure_entity(org).unwrap().entity.version, 1);
    limiter.create_entity(NewEntity::new("key").parent("org").cascade()).unwrap();
    assert_eq!(limiter.entity("key").unwrap().unwrap().parent.unwrap(), "org");
    let named = EntityUpdate { name: Some("a key".into()), ..EntityUpdate::default() };
    assert_eq!(limiter.update_entity("key", 1, named).unwrap().name, "a key");
    assert_eq!(limiter.children("org", &page).unwrap().items.len(), 1);
    assert_eq!(limiter.entities(&page).unwrap().items.len(), 2);

    let own = Level::Entity("key".parse().unwrap());
    limiter.set_limits(&own, [Limit::per_day("tpd", 500).unwrap()]).unwrap();
    assert_eq!(limiter.level(&own).unwrap().unwrap().limits[0].capacity(), 500);
    assert_eq!(limiter.resolve("key", "gpt-4").unwrap().members.len(), 2);
    assert_eq!(limiter.entities_with_limits(None, &page).unwrap().items, ["key"]);
    assert_eq!(limiter.resources_with_entity_limits(&page).unwrap().items, [None]);
    assert!(limiter.resources_with_defaults(&page).unwrap().items.is_empty());

    limiter.acquire(Request::new("key", "gpt-4").take("tpd", 100)).unwrap().commit().unwrap();
    let capacity = limiter.resource_capacity("gpt-4", "tpd", CapacityScope::ParentsOnly).unwrap();
    assert_eq!((capacity.capacity, capacity.available), (1000, 900));
    assert_eq!(limiter.disable(&own).unwrap().buckets, 1);
    assert!(limiter.acquire(Request::new("key", "gpt-4").take("tpd", 1)).is_err());
    for flag in [Some(Flag::Enabled), None] {
        assert_eq!(limiter.set_flag(&own, flag).unwrap().buckets, 1);
    }
    assert_eq!(limiter.enable(&own).unwrap().buckets, 1);
    assert_eq!(limiter.clear_disabled(&own).unwrap().buckets, 1);
    let restored = limiter.reset("key", "gpt-4", None).unwrap().unwrap();
    assert_eq!(restored, [("tpd".parse().unwrap(), 100)]);
    assert_eq!([(); 2].map(|()| limiter.delete_limits(&own).unwrap()), [true, false]);
    assert_eq!(limiter.delete_entity("key").unwrap().buckets, 1);
    assert!(limiter.entity("key").unwrap().is_none());
    assert!(limiter.audit_log(&page).unwrap().items.len() > 10);
}

#[test]
fn namespaces_and_upkeep_from_a_plain_thread() {
    let (limiter, page) = (limiter(), PageRequest::default());
    let tenant = limiter.register_namespace("tenant").unwrap();
    assert_eq!(limiter.register_namespaces(["a", "b"]).unwrap().len(), 2);
    assert_eq!(limiter.namespaces(&page).unwrap().items.len(), 4);
    assert_eq!(*limiter.namespace("tenant").unwrap().namespace_name(), *"tenant");
    assert_eq!(limiter.namespace_info("tenant").unwrap().unwrap().id, tenant.id);
    assert!(limiter.delete_namespace("tenant").unwrap());
    assert_eq!(limiter.orphan_namespaces(&page).unwrap().items.len(), 1);
    assert_eq!(limiter.recover_namespace(tenant.id.clone()).unwrap().name, *"tenant");
    assert!(limiter.delete_namespace("tenant").unwrap());
    limiter.purge_namespace(tenant.id).unwrap();
    assert!(limiter.namespace_info("tenant").unwrap().is_none());

    drop(limiter.acquire(Request::new("key", "gpt-4").take("tpd", 100)).unwrap());
    assert_eq!((limiter.drain().settled, limiter.settled().settled), (1, 1));
    assert!(limiter.is_available());
    let misses = || {
        drop(limiter.acquire(Request::new("key", "gpt-4").take("tpd", 1)).unwrap());
        limiter.cache_stats().misses
    };
    assert_eq!(misses(), 1);
    limiter.invalidate_config_cache();
    assert_eq!(misses(), 2);
    limiter.sweep(10).unwrap();
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
