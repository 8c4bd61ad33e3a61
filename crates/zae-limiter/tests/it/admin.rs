//! Administration and queries through the public surface.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails says where; it may spawn what it tests"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{Bench, START, limits};
use zae_limiter::{
    AuditAction, AuditQuery, AuditSubject, CapacityScope, EntityUpdate, EntityWarning, Error,
    ErrorKind, Level, LimitsChange, NewEntity, PageRequest, Request, StoreErrorKind, UsageQuery,
    UsageWindow,
};

fn entity(id: &str) -> NewEntity {
    NewEntity {
        id: id.parse().unwrap(),
        name: id.to_uppercase(),
        parent: None,
        cascade: false,
        metadata: BTreeMap::new(),
    }
}

#[tokio::test]
async fn entities_live_and_die() {
    let bench = Bench::new();
    let limiter = &bench.limiter;
    assert!(limiter.create_entity(entity("org")).await.unwrap().warnings.is_empty());
    let child = NewEntity { parent: Some("org".parse().unwrap()), ..entity("key") };
    assert_eq!(
        limiter.create_entity(child).await.unwrap().warnings,
        [EntityWarning::ParentWithoutCascade]
    );
    let lonely = NewEntity { cascade: true, ..entity("lonely") };
    assert_eq!(
        limiter.create_entity(lonely).await.unwrap().warnings,
        [EntityWarning::CascadeWithoutParent]
    );
    assert_eq!(
        limiter.create_entity(entity("org")).await.unwrap_err().kind(),
        ErrorKind::Store(StoreErrorKind::AlreadyExists)
    );
    let orphan = NewEntity { parent: Some("nobody".parse().unwrap()), ..entity("orphan") };
    assert_eq!(
        limiter.create_entity(orphan).await.unwrap_err().kind(),
        ErrorKind::Store(StoreErrorKind::NotFound)
    );

    let key = limiter.entity("key").await.unwrap().unwrap();
    let rename = EntityUpdate { name: Some("Key One".into()), metadata: None };
    let renamed = limiter.update_entity("key", key.version, rename.clone()).await.unwrap();
    assert_eq!((renamed.name.as_str(), renamed.version), ("Key One", key.version + 1));
    assert_eq!(
        limiter.update_entity("key", key.version, rename).await.unwrap_err().kind(),
        ErrorKind::Store(StoreErrorKind::Conflict)
    );

    let refused = limiter.delete_entity("org").await.unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Store(StoreErrorKind::State)
            && refused.to_string().contains("key"),
        "{refused}"
    );
    limiter.delete_entity("key").await.unwrap();
    limiter.delete_entity("org").await.unwrap();
    let left: Vec<String> = limiter
        .entities(&PageRequest::default())
        .await
        .unwrap()
        .items
        .iter()
        .map(|entity| entity.id.to_string())
        .collect();
    assert_eq!(left, ["lonely"]);
}

#[tokio::test]
async fn bad_text_is_refused_before_any_io() {
    let bench = Bench::new();
    let bad = NewEntity { name: "a\u{7}b".into(), ..entity("org") };
    assert_eq!(bench.limiter.create_entity(bad).await.unwrap_err().kind(), ErrorKind::Invalid);
    let bad = EntityUpdate { name: Some(String::new()), metadata: None };
    assert_eq!(
        bench.limiter.update_entity("org", 1, bad).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(
        bench.limiter.set_limits(&Level::System, []).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(bench.limiter.entity("a b").await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(
        bench.script.calls("create_entity")
            + bench.script.calls("update_entity")
            + bench.script.calls("set_limits"),
        0
    );
}

#[tokio::test]
async fn a_lost_update_is_an_error_to_retry() {
    let bench = Bench::new();
    let change = |rate: &str, expected_version| LimitsChange {
        limits: limits(&[rate]),
        on_unavailable: None,
        expected_version,
    };
    let first = bench.limiter.set_limits(&Level::System, change("rpm:1", Some(0))).await.unwrap();
    assert_eq!(
        bench
            .limiter
            .set_limits(&Level::System, change("rpm:2", Some(0)))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Store(StoreErrorKind::Conflict)
    );
    bench.limiter.set_limits(&Level::System, change("rpm:3", Some(first))).await.unwrap();
    assert_eq!(
        bench.limiter.level(&Level::System).await.unwrap().unwrap().limits,
        limits(&["rpm:3"]).into()
    );
}

#[tokio::test]
async fn a_reset_fills_and_forgives() {
    let bench = Bench::new();
    bench.system(&["rpm:60/day", "tpm:1000/day"]).await;
    assert_eq!(
        bench.limiter.reset("key", "gpt-4", None).await.unwrap(),
        None,
        "no bucket, nothing to fill"
    );
    let lease = bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 10).take("tpm", 0))
        .await
        .unwrap();
    lease.record("tpm", 5000).unwrap();
    lease.commit().await.unwrap();
    let only = ["tpm".parse().unwrap()];
    let restored = bench.limiter.reset("key", "gpt-4", Some(&only)).await.unwrap().unwrap();
    assert_eq!(restored, [("tpm".parse().unwrap(), 5000)]);
    assert_eq!(
        (bench.left("key", "gpt-4", "tpm").await, bench.left("key", "gpt-4", "rpm").await),
        (1000, 50)
    );
}

#[tokio::test]
async fn changes_are_audited_under_the_principal_newest_first() {
    let bench = Bench::with(|builder| builder.principal("ops@example"));
    bench.limiter.create_entity(entity("org")).await.unwrap();
    let other = bench.limiter.with_principal("intern".parse().unwrap());
    other.set_limits(&Level::Entity("org".parse().unwrap()), limits(&["rpm:1"])).await.unwrap();
    let query = AuditQuery {
        subject: AuditSubject::Entity("org".parse().unwrap()),
        page: PageRequest::default(),
    };
    let events = bench.limiter.audit_events(&query).await.unwrap().items;
    let seen: Vec<(AuditAction, &str)> = events
        .iter()
        .map(|event| (event.action, event.principal.as_ref().unwrap().as_str()))
        .collect();
    assert_eq!(
        seen,
        [(AuditAction::LimitsSet, "intern"), (AuditAction::EntityCreated, "ops@example")]
    );
    assert!(
        events[0].id > events[1].id && events[0].at == START,
        "ids of one millisecond are in order"
    );
}

#[tokio::test]
async fn a_principal_that_is_no_name_is_refused_when_building() {
    let store = zae_limiter::MemoryStore::new();
    let error = zae_limiter::RateLimiter::builder(store).principal("a\nb").build().unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[test]
fn building_outside_a_runtime_says_what_to_use() {
    let error =
        zae_limiter::RateLimiter::builder(zae_limiter::MemoryStore::new()).build().unwrap_err();
    assert!(error.to_string().contains("blocking"), "{error}");
}

#[tokio::test]
async fn usage_is_summed_over_pages_and_windows() {
    let bench = Bench::new();
    bench.system(&["tpm:100000/day"]).await;
    for _ in 0..5 {
        bench
            .limiter
            .acquire(Request::new("key", "gpt-4").take("tpm", 10))
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
        bench.clock.advance(Duration::from_secs(3600));
    }
    let query = |window| UsageQuery {
        entity: Some("key".parse().unwrap()),
        resource: None,
        window,
        from: None,
        until: None,
        page: PageRequest::first(2),
    };
    let page = bench.limiter.usage(&query(UsageWindow::Hourly)).await.unwrap();
    assert_eq!((page.items.len(), page.next.is_some()), (2, true));
    let summary = bench.limiter.usage_summary(&query(UsageWindow::Hourly)).await.unwrap();
    assert_eq!((summary.snapshots, summary.limits[0].total.0), (5, 50_000));
    let days = bench.limiter.usage(&query(UsageWindow::Daily)).await.unwrap().items;
    assert_eq!((days.len(), days[0].counters[0].1.0, days[0].events), (1, 50_000, 5));
}

#[tokio::test]
async fn capacity_is_summed_over_entities() {
    let bench = Bench::new();
    bench.system(&["rpm:10/day"]).await;
    bench.limiter.create_entity(entity("org")).await.unwrap();
    bench
        .limiter
        .create_entity(NewEntity {
            parent: Some("org".parse().unwrap()),
            cascade: true,
            ..entity("key")
        })
        .await
        .unwrap();
    bench
        .limiter
        .acquire(Request::new("key", "gpt-4").take("rpm", 4))
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let all = bench.limiter.resource_capacity("gpt-4", "rpm", CapacityScope::All).await.unwrap();
    assert_eq!((all.capacity, all.available, all.entities.len()), (20, 12, 2));
    let parents =
        bench.limiter.resource_capacity("gpt-4", "rpm", CapacityScope::ParentsOnly).await.unwrap();
    assert_eq!((parents.capacity, parents.available, parents.utilization_pct()), (10, 6, 40.0));
}

#[tokio::test]
async fn namespaces_share_nothing_but_the_store() {
    let bench = Bench::new();
    bench.system(&["rpm:10/day"]).await;
    assert_eq!(
        bench.limiter.namespace("tenant").await.unwrap_err().kind(),
        ErrorKind::Store(StoreErrorKind::NotFound)
    );
    let registered = bench.limiter.register_namespace("tenant").await.unwrap();
    let tenant = bench.limiter.namespace("tenant").await.unwrap();
    assert_eq!(tenant.namespace_name().as_str(), "tenant");
    assert!(
        tenant.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.is_err(),
        "the default namespace's limits are not its"
    );
    tenant.set_limits(&Level::System, limits(&["rpm:3/day"])).await.unwrap();
    let lease = tenant.acquire(Request::new("key", "gpt-4").take("rpm", 3)).await.unwrap();
    lease.commit().await.unwrap();
    assert_eq!(bench.left("key", "gpt-4", "rpm").await, 10);

    assert!(bench.limiter.delete_namespace("tenant").await.unwrap());
    let error = tenant.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap_err();
    assert_eq!(error.http_status(), 400, "{error}");
    let orphans = bench.limiter.orphan_namespaces(&PageRequest::default()).await.unwrap().items;
    assert_eq!(orphans[0].id, registered.id);
    bench.limiter.recover_namespace(registered.id.clone()).await.unwrap();
    let back = bench.limiter.namespace("tenant").await.unwrap();
    assert_eq!(
        back.availability(&Request::new("key", "gpt-4")).await.unwrap().available("rpm"),
        Some(0),
        "its data came back"
    );
    bench.limiter.delete_namespace("tenant").await.unwrap();
    assert!(bench.limiter.purge_namespace(registered.id.clone()).await.unwrap().records > 0);
    assert_eq!(
        bench.limiter.recover_namespace(registered.id).await.unwrap_err().kind(),
        ErrorKind::Store(StoreErrorKind::NotFound)
    );
}

#[tokio::test]
async fn two_handles_of_one_namespace_share_one_cache() {
    let bench = Bench::new();
    bench.limiter.register_namespace("tenant").await.unwrap();
    let (one, two) = (
        bench.limiter.namespace("tenant").await.unwrap(),
        bench.limiter.namespace("tenant").await.unwrap(),
    );
    one.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap_err();
    two.set_limits(&Level::System, limits(&["rpm:3/day"])).await.unwrap();
    one.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn a_sweep_forgets_only_what_is_full() {
    let bench = Bench::new();
    bench.system(&["rpm:60/min"]).await;
    bench
        .limiter
        .acquire(Request::new("idle", "gpt-4").take("rpm", 1))
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let lease =
        bench.limiter.acquire(Request::new("debtor", "gpt-4").take("rpm", 0)).await.unwrap();
    lease.record("rpm", 1_000_000).unwrap();
    lease.commit().await.unwrap();
    let swept = bench.limiter.sweep(1000).await.unwrap();
    assert_eq!((swept.buckets, swept.complete), (0, true));
    bench.clock.advance(Duration::from_secs(3600));
    let swept = bench.limiter.sweep(1000).await.unwrap();
    assert_eq!((swept.buckets, swept.complete), (1, true));
    assert!(bench.left("debtor", "gpt-4", "rpm").await < 0);
}
