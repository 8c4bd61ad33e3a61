//! Entities: who belongs to whom.

use std::collections::BTreeMap;

use zae_limiter_core::{CHAIN_MAX, Entity};

use super::fixture::{
    Fixture, GPT, all, at, entity, entity_level, entity_on, fails, new_entity, resource, rpm,
};
use crate::StoreErrorKind::{AlreadyExists, Conflict, Invalid, NotFound, State};
use crate::{DeletedEntity, EntityUpdate, NewEntity};
use zae_limiter_core::Flag::Disabled;

fn ids(entities: &[Entity]) -> Vec<&str> {
    entities.iter().map(|entity| entity.id.as_str()).collect()
}

async fn listed(f: &Fixture) -> Vec<Entity> {
    all(async |page| f.store.entities(&page).await).await
}

async fn children(f: &Fixture, parent: &str) -> Vec<Entity> {
    let parent = entity(parent);
    all(async |page| f.store.children(&parent, &page).await).await
}

pub(super) async fn an_entity_comes_back_as_it_was_created(f: Fixture) {
    f.create("org").await;
    let metadata: BTreeMap<String, String> =
        [("team", "Ünïcødé 🦀"), ("note", "line one\nline 'two'\t\"three\""), ("empty", "")]
            .map(|(k, v)| (k.into(), v.into()))
            .into();
    let new = NewEntity {
        name: "Клавиша \"1\"".into(),
        parent: Some(entity("org")),
        cascade: true,
        metadata,
        ..new_entity("key@1:a.b-c_d")
    };
    let created =
        f.store.create_entity(&new, &f.change(at(7))).await.expect("an entity can be created");
    let NewEntity { id, name, parent, cascade, metadata } = new;
    let expected =
        Entity { id, name, parent, cascade, metadata, created_at: at(7), version: created.version };
    assert_eq!(created, expected, "what creating answers");
    assert_eq!(f.entity("key@1:a.b-c_d").await, Some(expected), "what is stored");
}

pub(super) async fn an_unknown_entity_is_not_found(f: Fixture) {
    assert_eq!(f.entity("nobody").await, None);
    assert_eq!(children(&f, "nobody").await, []);
    fails(f.rename("nobody", 1, "Somebody").await, NotFound);
    fails(f.try_delete("nobody").await, NotFound);
}

pub(super) async fn an_id_is_taken_once(f: Fixture) {
    let first = f.create("key").await;
    fails(f.try_create("key", None, true).await, AlreadyExists);
    assert_eq!(f.entity("key").await, Some(first), "the first is as it was");
    f.create("Key").await;
    assert_eq!(ids(&listed(&f).await), ["Key", "key"], "ids know upper and lower case");
}

pub(super) async fn a_parent_must_exist(f: Fixture) {
    fails(f.try_create("key", Some("org"), true).await, NotFound);
    assert_eq!(f.entity("key").await, None, "nothing was created");
}

pub(super) async fn nobody_is_their_own_parent(f: Fixture) {
    fails(f.try_create("key", Some("key"), true).await, Invalid);
    assert_eq!(f.entity("key").await, None, "nothing was created");
}

pub(super) async fn a_cascade_has_a_longest_length(f: Fixture) {
    f.create("e1").await;
    for number in 2..=CHAIN_MAX {
        f.try_create(&format!("e{number}"), Some(&format!("e{}", number - 1)), true)
            .await
            .expect("within the longest chain");
    }
    let last = format!("e{CHAIN_MAX}");
    fails(f.try_create("too-deep", Some(&last), true).await, Invalid);
    assert_eq!(f.entity("too-deep").await, None, "nothing was created");
    f.try_create("no-cascade", Some(&last), false)
        .await
        .expect("who does not cascade has no chain");
    f.try_create("new-start", Some("no-cascade"), true)
        .await
        .expect("the chain ends at the parent, which does not cascade");
}

pub(super) async fn an_update_changes_what_it_names(f: Fixture) {
    let new =
        NewEntity { metadata: BTreeMap::from([("team".into(), "a".into())]), ..new_entity("key") };
    let first =
        f.store.create_entity(&new, &f.change(at(0))).await.expect("an entity can be created");
    let second = f.rename("key", first.version, "Another").await.expect("nobody changed it since");
    let (old, new) = (first.version, second.version);
    assert!(new > old, "versions grow, found {old} and then {new}");
    let expected = Entity { name: "Another".into(), version: new, ..first };
    assert_eq!(second, expected, "only the name was changed");
    let metadata = BTreeMap::from([("note".into(), "b".into())]);
    let update = EntityUpdate { name: None, metadata: Some(metadata.clone()) };
    let third = f.try_update("key", new, &update).await.expect("an update");
    let expected = Entity { metadata, version: third.version, ..second };
    assert_eq!(third, expected, "metadata is replaced whole, the name stays");
    assert_eq!(f.entity("key").await, Some(third));
}

pub(super) async fn an_update_of_another_version_is_a_conflict(f: Fixture) {
    let first = f.create("key").await;
    let second = f.rename("key", first.version, "Second").await.expect("nobody changed it since");
    for wrong in [first.version, second.version + 1, 0] {
        fails(f.rename("key", wrong, "Third").await, Conflict);
    }
    assert_eq!(f.entity("key").await, Some(second), "a lost race changes nothing");
}

pub(super) async fn a_deleted_entity_takes_its_things_along(f: Fixture) {
    for id in ["key", "other"] {
        f.create(id).await;
        f.set(&entity_level(id), "rpm:5").await;
        f.set(&entity_on(id, "gpt-5"), "rpm:6").await;
        f.take(&rpm(id, 60), at(0)).await.granted(&[0]);
        f.take(&rpm(id, 60).on("gpt-5"), at(0)).await.granted(&[0]);
    }
    assert_eq!(f.delete("key").await, DeletedEntity { buckets: 2, configs: 2 });
    assert_eq!((f.entity("key").await, f.bucket("key").await), (None, None));
    assert_eq!(ids(&listed(&f).await), ["other"]);
    assert_eq!(f.level(&entity_level("key")).await, None);
    assert_eq!(f.resolve("key", "gpt-5").await.limits, None);
    let gpt = resource(GPT);
    let buckets = all(async |page| f.store.resource_buckets(&gpt, &page).await).await;
    assert_eq!(buckets.iter().map(|view| view.entity.as_str()).collect::<Vec<_>>(), ["other"]);
    assert_eq!(f.balances("other", at(0)).await, [0], "others keep theirs");
    assert!(f.resolve("other", "gpt-5").await.limits.is_some(), "others keep theirs");
}

pub(super) async fn a_deleted_entity_can_be_created_anew(f: Fixture) {
    f.create("key").await;
    f.flag(&entity_level("key"), Some(Disabled)).await;
    f.take(&rpm("key", 1), at(0)).await.disabled(0);
    f.delete("key").await;
    f.create("key").await;
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
}

pub(super) async fn the_version_of_a_deleted_entity_never_comes_back(f: Fixture) {
    let first = f.create("key").await;
    let second = f.rename("key", first.version, "Second").await.expect("nobody changed it since");
    f.delete("key").await;
    let anew = f.create("key").await;
    for gone in [first.version, second.version] {
        let version = anew.version;
        assert!(version > gone, "version {gone} is gone, the new entity begins with {version}");
        fails(f.rename("key", gone, "Third").await, Conflict);
    }
    let stored = f.entity("key").await.expect("it is there");
    assert_eq!(stored, anew, "who read the old entity changes nothing of the new one");
    f.rename("key", anew.version, "Third").await.expect("who read the new one does");
}

pub(super) async fn versions_grow_one_by_one_however_often_entities_come_and_go(f: Fixture) {
    for round in 1..=70 {
        let created = f.create(&format!("key-{round}")).await;
        assert!(created.version <= round, "entity {round} begins with version {}", created.version);
        f.delete(&format!("key-{round}")).await;
    }
}

pub(super) async fn an_entity_with_children_is_not_deleted(f: Fixture) {
    f.create("org").await;
    f.try_create("child-b", Some("org"), true).await.expect("an entity can be created");
    f.try_create("child-a", Some("org"), false).await.expect("an entity can be created");
    let error = fails(f.try_delete("org").await, State);
    assert!(error.message().contains("child-a"), "it names children, found {error}");
    assert!(f.entity("org").await.is_some(), "it is still there");
    f.delete("child-a").await;
    f.delete("child-b").await;
    assert_eq!(children(&f, "org").await, []);
    f.delete("org").await;
}

pub(super) async fn children_are_direct_and_ordered(f: Fixture) {
    f.create("org").await;
    for id in ["z", "a", "m", "grandchild", "M", "a.b", "a-b"] {
        let parent = if id == "grandchild" { "a" } else { "org" };
        f.try_create(id, Some(parent), true).await.expect("an entity can be created");
    }
    let found = children(&f, "org").await;
    assert_eq!(ids(&found), ["M", "a", "a-b", "a.b", "m", "z"], "by id, byte by byte");
    assert_eq!(ids(&children(&f, "a").await), ["grandchild"]);
    assert_eq!(children(&f, "grandchild").await, []);
}

pub(super) async fn all_entities_are_listed_in_order(f: Fixture) {
    for id in ["b", "a", "0", "B", "a:b", "a@b"] {
        f.create(id).await;
    }
    assert_eq!(ids(&listed(&f).await), ["0", "B", "a", "a:b", "a@b", "b"], "by id, byte by byte");
}

pub(super) async fn texts_that_nobody_can_show_are_refused(f: Fixture) {
    let pair = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let wrong = [
        NewEntity { name: String::new(), ..new_entity("key") },
        NewEntity { name: "two\nlines".into(), ..new_entity("key") },
        NewEntity { name: "x".repeat(257), ..new_entity("key") },
        NewEntity { metadata: pair("", "value"), ..new_entity("key") },
        NewEntity { metadata: pair(&"k".repeat(65), "value"), ..new_entity("key") },
        NewEntity { metadata: pair("key", &"v".repeat(1_025)), ..new_entity("key") },
        NewEntity {
            metadata: (0..65).map(|n| (format!("key-{n}"), String::new())).collect(),
            ..new_entity("key")
        },
    ];
    for new in wrong {
        fails(f.store.create_entity(&new, &f.change(at(0))).await, Invalid);
    }
    let stored = f.create("key").await;
    fails(f.rename("key", stored.version, "").await, Invalid);
    assert_eq!(f.entity("key").await, Some(stored), "a refused update changes nothing");
}
