//! The same change once more: a caller whose answer was lost asks again with the same event. And
//! registries that are full.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::AuditSubject;
use zae_limiter_dynamodb::table::{Item, text};
use zae_limiter_store::{ConfigStore, Level, StoreErrorKind};
use zae_limiter_testkit::table::EvalOptions;

use super::{Rig, audit_of, id, keys, limits, new_entity, on, renamed};

#[tokio::test]
async fn limits_set_again_after_a_lost_answer_are_no_conflict() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    for level in [Level::System, Level::Resource("gpt-4".parse().unwrap()), on("key", "gpt-4")] {
        let first = store.set_limits(&level, &limits("rpm:1"), &rig.change()).await.unwrap();
        let (mut new, change) = (limits("rpm:2"), rig.change());
        new.expected_version = Some(first);
        let made = store.set_limits(&level, &new, &change).await.unwrap();
        assert_eq!(
            store.set_limits(&level, &new, &change).await.unwrap(),
            made,
            "{level}: the version it made"
        );
        // Changed by somebody else since: the change was made, and stays overwritten.
        let later = store.set_limits(&level, &limits("rpm:3"), &rig.change()).await.unwrap();
        assert_eq!(store.set_limits(&level, &new, &change).await.unwrap(), made, "{level}: still");
        let stored = store.level(&level).await.unwrap().unwrap();
        assert_eq!(
            (stored.version, stored.limits[0].capacity()),
            (later, 3),
            "{level}: nothing was written again"
        );
        // Another change that saw the old version is a conflict, and the event of another change is
        // not this one's.
        let error = store.set_limits(&level, &new, &rig.change()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{level}: {error}");
        new.limits = limits("rpm:9").limits;
        let error = store.set_limits(&level, &new, &change).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{level}: {error}");
    }
}

#[tokio::test]
async fn other_changes_made_again_are_answered_as_before() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let level = on("key", "gpt-4");
    store.set_limits(&level, &limits("rpm:1"), &rig.change()).await.unwrap();
    let change = rig.change();
    assert!(store.delete_limits(&level, &change).await.unwrap());
    assert!(store.delete_limits(&level, &change).await.unwrap(), "it did delete them");
    assert!(!store.delete_limits(&level, &rig.change()).await.unwrap());
    store.create_entity(&new_entity("key", None), &rig.change()).await.unwrap();
    let change = rig.change();
    let renamed_once = store.update_entity(&id("key"), 1, &renamed("new"), &change).await.unwrap();
    assert_eq!(
        store.update_entity(&id("key"), 1, &renamed("new"), &change).await.unwrap(),
        renamed_once
    );
    let error =
        store.update_entity(&id("key"), 1, &renamed("new"), &rig.change()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    assert_eq!(
        audit_of(&store, AuditSubject::Entity(id("key"))).await.len(),
        4,
        "set, deleted, created, updated"
    );
}

/// A registry is one item of at most 400 KB. Before the table refuses it, the store says what is
/// full.
#[tokio::test]
async fn a_registry_that_is_full_says_so() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let resource = |name: &str| Level::Resource(name.parse().unwrap());
    store.set_limits(&resource("known"), &limits("rpm:1"), &rig.change()).await.unwrap();
    store.set_limits(&on("key", "known"), &limits("rpm:1"), &rig.change()).await.unwrap();
    let names = (0..2_500).map(|index| format!("{index:0120}"));
    let fill = |mut item: Item, of_resources: bool| {
        if let (true, Some(AttributeValue::Ss(members))) = (of_resources, item.get_mut("resources"))
        {
            members.extend(names.clone());
        } else {
            item.extend(names.clone().map(|name| (name, AttributeValue::N("1".to_owned()))));
        }
        rig.table.insert(&item);
    };
    fill(rig.table.get(&keys::resources(&rig.namespace)).unwrap(), true);
    fill(rig.table.get(&keys::entity_config_resources(&rig.namespace)).unwrap(), false);
    for level in [resource("new"), on("key", "new")] {
        let error = store.set_limits(&level, &limits("rpm:1"), &rig.change()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Capacity, "{error}");
        assert!(
            error.message().contains("registry") && error.message().contains("300000"),
            "{error}"
        );
        assert!(
            store.level(&level).await.unwrap().is_none(),
            "nothing is stored that is not listed"
        );
    }
    // What is registered can be changed, and deleted, and then there is room.
    store.set_limits(&resource("known"), &limits("rpm:2"), &rig.change()).await.unwrap();
    store.set_limits(&on("other", "known"), &limits("rpm:2"), &rig.change()).await.unwrap();
    assert!(store.delete_limits(&on("key", "known"), &rig.change()).await.unwrap());
    // An unrelated record is no registry.
    let mut other = rig.table.get(&keys::namespace_by_id(&rig.namespace)).unwrap();
    other.insert("note".to_owned(), text("x"));
    rig.table.insert(&other);
    store.set_limits(&Level::System, &limits("rpm:2"), &rig.change()).await.unwrap();
}
