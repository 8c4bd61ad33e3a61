//! Entities and levels as a service names them at its start: by text, again and again.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::support::{Bench, limits};
use zae_limiter::store::Fault;
use zae_limiter::{
    EntityUpdate, EntityWarning, ErrorKind, Level, NewEntity, Request, StoreErrorKind,
};

#[tokio::test]
async fn an_entity_is_described_by_texts() {
    let bench = Bench::new();
    bench
        .limiter
        .create_entity(NewEntity::new("org-1").name("The Org").metadata("team", "a"))
        .await
        .unwrap();
    let key = bench
        .limiter
        .create_entity(NewEntity::new("key-1").parent("org-1").cascade())
        .await
        .unwrap()
        .entity;
    assert_eq!(
        (key.name.as_str(), key.parent.unwrap().as_str(), key.cascade),
        ("key-1", "org-1", true)
    );
    let org = bench.limiter.entity("org-1").await.unwrap().unwrap();
    assert_eq!((org.name.as_str(), org.metadata["team"].as_str()), ("The Org", "a"));
}

/// The first mistake is the one reported, before any request is sent.
#[tokio::test]
async fn a_mistake_in_a_description_surfaces_when_the_entity_is_created() {
    let bench = Bench::new();
    let refused =
        bench.limiter.create_entity(NewEntity::new("a b").parent("c d")).await.unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Invalid && refused.to_string().contains("a b"),
        "{refused}"
    );
    let refused = bench
        .limiter
        .ensure_entity(NewEntity::new("key-1").parent("c d").cascade())
        .await
        .unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Invalid && refused.to_string().contains("c d"),
        "{refused}"
    );
    assert_eq!(bench.script.calls("create_entity") + bench.script.calls("entity"), 0);
}

#[tokio::test]
async fn a_service_that_starts_twice_ensures_its_entities_twice() {
    let bench = Bench::new();
    let describe = || NewEntity::new("key-1").name("Key").parent("org-1").cascade();
    bench.limiter.ensure_entity(NewEntity::new("org-1")).await.unwrap();
    let first = bench.limiter.ensure_entity(describe()).await.unwrap();
    // What an administrator changed meanwhile stays.
    let rename = EntityUpdate { name: Some("Renamed".into()), metadata: None };
    let renamed = bench.limiter.update_entity("key-1", first.entity.version, rename).await.unwrap();
    let second = bench.limiter.ensure_entity(describe()).await.unwrap();
    assert_eq!(second.entity, renamed);
    assert_eq!(
        bench.script.calls("create_entity"),
        2,
        "one for the parent, one for the child, none for the second start"
    );
}

#[tokio::test]
async fn an_entity_with_another_parent_or_cascade_is_an_error_that_says_both() {
    let bench = Bench::new();
    for parent in ["org-1", "org-2"] {
        bench.limiter.ensure_entity(NewEntity::new(parent)).await.unwrap();
    }
    bench.limiter.ensure_entity(NewEntity::new("key-1").parent("org-1").cascade()).await.unwrap();
    let moved = bench
        .limiter
        .ensure_entity(NewEntity::new("key-1").parent("org-2").cascade())
        .await
        .unwrap_err();
    assert_eq!(moved.kind(), ErrorKind::Store(StoreErrorKind::AlreadyExists));
    let text = moved.to_string();
    assert!(
        text.contains(
            "exists with parent org-1 and cascade on, not with parent org-2 and cascade on"
        ),
        "{text}"
    );
    let alone = bench
        .limiter
        .ensure_entity(NewEntity::new("key-1").parent("org-1"))
        .await
        .unwrap_err()
        .to_string();
    assert!(alone.contains("not with parent org-1 and cascade off"), "{alone}");
}

/// Two processes start at once: the read finds nothing, and then the entity is there.
#[tokio::test]
async fn an_entity_that_another_process_creates_in_between_is_found() {
    let bench = Bench::new();
    bench.limiter.create_entity(NewEntity::new("org-1")).await.unwrap();
    let create = bench.limiter.create_entity(NewEntity::new("org-1")).await.unwrap_err();
    assert_eq!(create.kind(), ErrorKind::Store(StoreErrorKind::AlreadyExists));
    // The landed create's answer is lost as "exists already", which is what the slower process
    // hears.
    bench.script.once("create_entity", Fault::FailAfter(StoreErrorKind::AlreadyExists));
    let ensured = bench
        .limiter
        .ensure_entity(NewEntity::new("key-1").parent("org-1").cascade())
        .await
        .unwrap();
    assert_eq!((ensured.entity.id.as_str(), bench.script.calls("entity")), ("key-1", 2));
    assert!(ensured.warnings.is_empty());
}

#[tokio::test]
async fn an_odd_entity_that_is_there_is_warned_about_all_the_same() {
    let bench = Bench::new();
    for _ in 0..2 {
        let lonely = bench.limiter.ensure_entity(NewEntity::new("lonely").cascade()).await.unwrap();
        assert_eq!(lonely.warnings, [EntityWarning::CascadeWithoutParent]);
    }
}

#[tokio::test]
async fn levels_are_named_by_texts() {
    let bench = Bench::new();
    bench.system(&["rpm:10/min"]).await;
    bench
        .limiter
        .set_limits(&Level::resource("gpt-4").unwrap(), limits(&["rpm:20/min"]))
        .await
        .unwrap();
    bench
        .limiter
        .set_limits(&Level::entity("key-1").unwrap(), limits(&["rpm:30/min"]))
        .await
        .unwrap();
    bench
        .limiter
        .set_limits(&Level::entity_on("key-1", "gpt-5").unwrap(), limits(&["rpm:40/min"]))
        .await
        .unwrap();
    for (entity, resource, expected) in
        [("x", "y", 10), ("x", "gpt-4", 20), ("key-1", "gpt-4", 30), ("key-1", "gpt-5", 40)]
    {
        let left = bench
            .limiter
            .availability(&Request::new(entity, resource))
            .await
            .unwrap()
            .available("rpm");
        assert_eq!(left, Some(expected), "{entity} on {resource}");
    }
    assert!(Level::entity("a b").unwrap_err().to_string().contains("a b"));
}

#[tokio::test]
async fn namespaces_are_registered_in_bulk_and_twice() {
    let bench = Bench::new();
    let names = ["tenant-a", "tenant-b"];
    let first = bench.limiter.register_namespaces(names).await.unwrap();
    assert_eq!(first.iter().map(|namespace| namespace.name.as_str()).collect::<Vec<_>>(), names);
    assert_eq!(bench.limiter.register_namespaces(names).await.unwrap(), first);
    assert!(bench.limiter.register_namespaces(Vec::<String>::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_bad_name_among_several_registers_none() {
    let bench = Bench::new();
    let refused = bench.limiter.register_namespaces(["tenant-a", "Not A Name"]).await.unwrap_err();
    assert_eq!((refused.kind(), bench.script.calls("register_namespace")), (ErrorKind::Invalid, 0));
}

#[tokio::test]
async fn a_registration_that_fails_half_way_is_completed_by_repeating_it() {
    let bench = Bench::new();
    bench.limiter.register_namespace("tenant-a").await.unwrap();
    bench.script.once("register_namespace", Fault::None);
    bench.script.once("register_namespace", Fault::FailBefore(StoreErrorKind::Unavailable));
    bench.limiter.register_namespaces(["tenant-a", "tenant-b", "tenant-c"]).await.unwrap_err();
    let all =
        bench.limiter.register_namespaces(["tenant-a", "tenant-b", "tenant-c"]).await.unwrap();
    assert_eq!(all.len(), 3);
}
