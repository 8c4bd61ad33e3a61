//! Which levels have a configuration: the lists are exact at all times.

use super::fixture::{Fixture, all, entity_level, entity_on, resource, resource_level};
use crate::Level;
use zae_limiter_core::Flag::{Disabled, Enabled};

async fn defaults(f: &Fixture) -> Vec<String> {
    let listed = all(async |page| f.store.resources_with_defaults(&page).await).await;
    listed.iter().map(ToString::to_string).collect()
}

async fn entities_on(f: &Fixture, name: Option<&str>) -> Vec<String> {
    let name = name.map(resource);
    let listed = all(async |page| f.store.entities_with_limits(name.as_ref(), &page).await).await;
    listed.iter().map(ToString::to_string).collect()
}

/// The resources some entity has limits for; `*` stands for all resources.
async fn resources(f: &Fixture) -> Vec<String> {
    let listed = all(async |page| f.store.resources_with_entity_limits(&page).await).await;
    let mut names: Vec<String> = listed
        .into_iter()
        .map(|name| name.map_or("*".to_owned(), |name| name.to_string()))
        .collect();
    // Where "all resources" stands among the names is the backend's choice.
    names.sort_unstable_by_key(|name| (name != "*", name.clone()));
    names
}

pub(super) async fn resources_with_limits_are_listed(f: Fixture) {
    assert_eq!(defaults(&f).await, [""; 0], "nothing to begin with");
    for name in ["b", "a", "c:d", "c/d", "B", "b"] {
        f.set(&resource_level(name), "rpm:1").await;
    }
    f.set(&Level::System, "rpm:1").await;
    f.set(&entity_on("key", "not-this"), "rpm:1").await;
    assert_eq!(defaults(&f).await, ["B", "a", "b", "c/d", "c:d"], "each once, by name");
    f.unset(&resource_level("b")).await;
    f.unset(&resource_level("b")).await;
    assert_eq!(defaults(&f).await, ["B", "a", "c/d", "c:d"], "what is deleted is no longer listed");
}

pub(super) async fn entities_with_limits_are_listed_by_resource(f: Fixture) {
    for (id, name) in [("b", "gpt-4"), ("a", "gpt-4"), ("a", "other")] {
        f.set(&entity_on(id, name), "rpm:1").await;
    }
    for id in ["c", "a", "a"] {
        f.set(&entity_level(id), "rpm:1").await;
    }
    assert_eq!(entities_on(&f, Some("gpt-4")).await, ["a", "b"]);
    assert_eq!(entities_on(&f, Some("other")).await, ["a"]);
    assert_eq!(entities_on(&f, None).await, ["a", "c"], "for all resources");
    assert_eq!(entities_on(&f, Some("nobody")).await, [""; 0]);
}

pub(super) async fn resources_for_which_some_entity_has_limits_are_listed(f: Fixture) {
    assert_eq!(resources(&f).await, [""; 0], "nothing to begin with");
    let levels = [
        entity_on("a", "gpt-4"),
        entity_on("b", "gpt-4"),
        entity_on("a", "other"),
        entity_level("a"),
    ];
    for level in &levels {
        f.set(level, "rpm:1").await;
        f.set(level, "rpm:2").await;
    }
    f.set(&resource_level("not-this"), "rpm:1").await;
    assert_eq!(resources(&f).await, ["*", "gpt-4", "other"], "each once");
    f.unset(&levels[0]).await;
    assert_eq!(resources(&f).await, ["*", "gpt-4", "other"], "b still has limits for gpt-4");
    f.unset(&levels[1]).await;
    f.unset(&levels[1]).await;
    assert_eq!(resources(&f).await, ["*", "other"], "nobody has");
    f.unset(&levels[3]).await;
    assert_eq!(resources(&f).await, ["other"]);
}

pub(super) async fn a_flag_is_listed_as_configuration(f: Fixture) {
    let (on_gpt, key) = (resource_level("gpt-4"), entity_on("key", "gpt-4"));
    f.flag(&on_gpt, Some(Disabled)).await;
    f.flag(&key, Some(Enabled)).await;
    assert_eq!(defaults(&f).await, ["gpt-4"]);
    assert_eq!(entities_on(&f, Some("gpt-4")).await, ["key"]);
    f.flag(&on_gpt, None).await;
    f.flag(&key, None).await;
    assert_eq!(defaults(&f).await, [""; 0], "nothing is stored any more");
    assert_eq!(entities_on(&f, Some("gpt-4")).await, [""; 0], "nothing is stored any more");
}

pub(super) async fn a_deleted_entity_is_not_listed(f: Fixture) {
    f.create("a").await;
    f.set(&entity_level("a"), "rpm:1").await;
    f.set(&entity_on("a", "gpt-4"), "rpm:1").await;
    f.delete("a").await;
    assert_eq!(entities_on(&f, None).await, [""; 0]);
    assert_eq!(entities_on(&f, Some("gpt-4")).await, [""; 0]);
    assert_eq!(resources(&f).await, [""; 0], "no resource has entity limits any more");
}
