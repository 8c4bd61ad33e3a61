//! Tenants: none reads, writes or observes another.

use zae_limiter_core::NamespaceName;

use super::fixture::{
    Fixture, GPT, MINUTE, about, all, ask, at, entity_on, fails, namespace, namespace_id, resource,
    resource_level, rpm,
};
use crate::StoreErrorKind::{AlreadyExists, NotFound, State};
use crate::{Level, Namespace, NamespaceStatus, PageRequest, StoreError};
use zae_limiter_core::Flag::Disabled;

async fn active(f: &Fixture) -> Vec<String> {
    let listed = all(async |page| f.store.namespaces(&page).await).await;
    listed.iter().map(|namespace| namespace.name.to_string()).collect()
}

async fn orphans(f: &Fixture) -> Vec<String> {
    let listed = all(async |page| f.store.orphan_namespaces(&page).await).await;
    listed.iter().map(|namespace| namespace.id.to_string()).collect()
}

/// The namespace of a new handle.
async fn enter(f: &Fixture, name: &str) -> Result<NamespaceName, StoreError> {
    f.store.scoped(&namespace(name)).await.map(|store| store.current_namespace())
}

/// Fills a namespace with one of everything.
async fn furnish(f: &Fixture) {
    f.create("key").await;
    f.set(&Level::System, "rpm:60").await;
    f.set(&entity_on("key", GPT), "rpm:60").await;
    f.flag(&resource_level("off"), Some(Disabled)).await;
    f.take(&ask("key", &f.in_force("key").await, "rpm=60"), at(0)).await.granted(&[0]);
}

/// Nothing of what [`furnish`] made can be seen.
async fn is_empty(f: &Fixture, whose: &str) {
    assert_eq!(f.entity("key").await, None, "{whose}: the entity");
    assert_eq!(f.level(&Level::System).await, None, "{whose}: the limits");
    assert_eq!(f.resolve("key", GPT).await.limits, None, "{whose}: the limits of the entity");
    assert_eq!(f.resolve("key", "off").await.blocked_by, None, "{whose}: the flag");
    assert_eq!(f.bucket("key").await, None, "{whose}: the bucket");
    let gpt = resource(GPT);
    let buckets = all(async |page| f.store.resource_buckets(&gpt, &page).await).await;
    assert_eq!(buckets, [], "{whose}: the buckets of the resource");
    let entities = all(async |page| f.store.entities(&page).await).await;
    assert_eq!(entities, [], "{whose}: the list of entities");
    let resources = all(async |page| f.store.resources_with_defaults(&page).await).await;
    assert_eq!(resources, [""; 0], "{whose}: the list of resources");
    assert_eq!(f.events(&about("key")).await, [], "{whose}: the audit log");
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
}

pub(super) async fn a_store_begins_in_the_default_namespace(f: Fixture) {
    assert_eq!(f.store.current_namespace(), namespace("default"));
    assert_eq!(active(&f).await, ["default"]);
    let found = f.namespace("default").await.expect("it is registered");
    assert_eq!(found.status, NamespaceStatus::Active);
}

pub(super) async fn a_registered_namespace_can_be_entered(f: Fixture) {
    let registered = f.register("tenant", "id-1").await;
    let (id, name, status) = (namespace_id("id-1"), namespace("tenant"), NamespaceStatus::Active);
    let expected = Namespace { id, name, status, created_at: at(5), deleted_at: None };
    assert_eq!(registered, expected);
    assert_eq!(f.namespace("tenant").await, Some(registered));
    let inside = f.store.scoped(&namespace("tenant")).await.expect("it is registered");
    assert_eq!(inside.current_namespace(), namespace("tenant"));
    let back = inside.scoped(&namespace("default")).await.expect("it is registered");
    let name = back.current_namespace();
    assert_eq!(name, namespace("default"), "the registry is common to all handles");
    assert_eq!(inside.current_namespace_id(), Some(namespace_id("id-1")));
    let default = f.namespace("default").await.expect("it is registered").id;
    assert_eq!(back.current_namespace_id(), Some(default.clone()));
    assert_eq!(f.store.current_namespace_id(), Some(default));
}

pub(super) async fn a_name_registered_again_is_another_namespace(f: Fixture) {
    f.register("tenant", "id-1").await;
    let old = f.inside("tenant").await;
    furnish(&old).await;
    assert!(f.delete_namespace("tenant", at(9)).await);
    f.register("tenant", "id-2").await;
    let (new, through_old) = (f.inside("tenant").await, old.inside("tenant").await);
    for handle in [&new, &through_old] {
        assert_eq!(handle.store.current_namespace_id(), Some(namespace_id("id-2")));
    }
    let id = old.store.current_namespace_id();
    assert_eq!(id, Some(namespace_id("id-1")), "a handle stays where it is");
    is_empty(&new, "the new tenant").await;
    let error = fails(old.store.entities(&PageRequest::default()).await, NotFound);
    let advice = "register it again and open a new handle";
    assert!(error.message().contains(advice), "it says what to do: {error}");
    let seen = through_old.balances("key", at(0)).await;
    assert_eq!(seen, [0], "and that works: it sees what was taken in the new one");
    // The default namespace is one like the others.
    let default = f.namespace("default").await.expect("it is registered").id;
    assert!(f.delete_namespace("default", at(9)).await);
    f.register("default", "id-3").await;
    let anew = f.inside("default").await;
    assert_eq!(anew.store.current_namespace_id(), Some(namespace_id("id-3")));
    anew.create("key").await;
    fails(f.store.entities(&PageRequest::default()).await, NotFound);
    assert_eq!(f.store.current_namespace_id(), Some(default));
}

pub(super) async fn registering_twice_gives_the_first(f: Fixture) {
    let first = f.register("tenant", "id-1").await;
    assert_eq!(f.register("tenant", "id-2").await, first, "the name has its id already");
    assert_eq!(active(&f).await, ["default", "tenant"]);
    assert_eq!(f.namespace("Tenant").await, None, "names know upper and lower case");
}

pub(super) async fn an_id_is_never_used_again(f: Fixture) {
    // Data is kept under the id: a second name for it would open one tenant's data to another.
    f.register("tenant", "id-1").await;
    fails(f.try_register("other", "id-1").await, AlreadyExists);
    f.delete_namespace("tenant", at(9)).await;
    fails(f.try_register("other", "id-1").await, AlreadyExists);
    assert_eq!(f.namespace("other").await, None, "nothing was registered");
}

pub(super) async fn an_unknown_namespace_can_not_be_entered(f: Fixture) {
    fails(enter(&f, "nowhere").await, NotFound);
    assert_eq!(f.namespace("nowhere").await, None);
    assert!(!f.delete_namespace("nowhere", at(9)).await, "there is nothing to delete");
    fails(f.recover("nowhere", at(0)).await, NotFound);
}

pub(super) async fn namespaces_do_not_see_each_other(f: Fixture) {
    let (a, b) = (f.tenant("a").await, f.tenant("b").await);
    furnish(&a).await;
    is_empty(&b, "a neighbour").await;
    is_empty(&f, "the default namespace").await;
    assert_eq!(a.balances("key", at(0)).await, [0], "a's own");
    assert_eq!(a.consumed("key").await, [60_000], "the takes of others were not made here");
}

pub(super) async fn flags_stay_in_their_namespace(f: Fixture) {
    let (a, b) = (f.tenant("a").await, f.tenant("b").await);
    let one = rpm("key", 1);
    for tenant in [&a, &b] {
        tenant.take(&one, at(0)).await.granted(&[59_000]);
    }
    let reached = a.flag(&resource_level(GPT), Some(Disabled)).await;
    assert_eq!(reached, 1, "only a's bucket is reached");
    a.take(&one, at(0)).await.disabled(0);
    b.take(&one, at(0)).await.granted(&[58_000]);
}

pub(super) async fn deleting_in_one_namespace_keeps_the_others(f: Fixture) {
    let (a, b) = (f.tenant("a").await, f.tenant("b").await);
    furnish(&a).await;
    furnish(&b).await;
    let deleted = a.delete("key").await;
    assert_eq!((deleted.buckets, deleted.configs), (1, 1), "a's things");
    assert!(b.entity("key").await.is_some(), "b's entity");
    assert_eq!(b.balances("key", at(0)).await, [0], "b's bucket");
    assert!(b.resolve("key", GPT).await.limits.is_some(), "b's limits");
}

pub(super) async fn a_deleted_namespace_is_an_orphan(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    assert!(f.delete_namespace("tenant", at(9)).await, "it was active");
    assert!(!f.delete_namespace("tenant", at(9)).await, "it no longer is");
    assert_eq!(active(&f).await, ["default"]);
    assert_eq!(orphans(&f).await, ["id-tenant"]);
    fails(enter(&f, "tenant").await, NotFound);
    fails(inside.store.resolve(&[]).await, NotFound);
    let orphan = &all(async |page| f.store.orphan_namespaces(&page).await).await[0];
    assert_eq!((orphan.status, orphan.deleted_at), (NamespaceStatus::Deleted, Some(at(9))));
}

pub(super) async fn the_name_of_a_deleted_namespace_is_free(f: Fixture) {
    furnish(&f.tenant("tenant").await).await;
    f.delete_namespace("tenant", at(9)).await;
    assert_eq!(f.register("tenant", "id-new").await.id, namespace_id("id-new"));
    is_empty(&f.inside("tenant").await, "the new holder of the name").await;
}

pub(super) async fn a_deleted_namespace_can_be_recovered(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    f.delete_namespace("tenant", at(9)).await;
    let recovered = f.recover("id-tenant", at(0)).await.expect("it is deleted");
    assert_eq!(recovered.name, namespace("tenant"));
    assert_eq!((recovered.status, recovered.deleted_at), (NamespaceStatus::Active, None));
    assert_eq!(active(&f).await, ["default", "tenant"]);
    assert_eq!(orphans(&f).await, [""; 0]);
    let again = f.inside("tenant").await;
    assert_eq!(again.balances("key", at(0)).await, [0], "its bucket, as empty as it was");
    assert!(again.entity("key").await.is_some(), "its entity");
    assert!(again.resolve("key", GPT).await.limits.is_some(), "its limits");
    inside.store.resolve(&[]).await.expect("old handles work again");
}

pub(super) async fn what_is_not_deleted_can_not_be_recovered(f: Fixture) {
    f.register("tenant", "id-1").await;
    fails(f.recover("id-1", at(0)).await, State);
    f.delete_namespace("tenant", at(9)).await;
    f.register("tenant", "id-2").await;
    let error = fails(f.recover("id-1", at(0)).await, State);
    let message = error.message();
    assert!(message.contains("tenant"), "it names the name that is taken, found {message:?}");
}

pub(super) async fn an_active_namespace_is_not_purged(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    fails(f.purge("id-tenant", at(0)).await, State);
    assert_eq!(inside.balances("key", at(0)).await, [0], "everything is still there");
}

pub(super) async fn a_purged_namespace_is_gone_for_good(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    f.delete_namespace("tenant", at(9)).await;
    let purged = f.purge("id-tenant", at(0)).await.expect("it is deleted");
    assert!(purged.records > 0, "there was something to remove");
    assert_eq!(active(&f).await, ["default"], "it is not listed any more");
    assert_eq!(orphans(&f).await, [""; 0], "it is not listed any more");
    fails(f.recover("id-tenant", at(0)).await, NotFound);
    f.register("tenant", "id-new").await;
    is_empty(&f.inside("tenant").await, "the new holder of the name").await;
}

pub(super) async fn an_old_handle_can_not_revive_a_purged_namespace(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    f.delete_namespace("tenant", at(9)).await;
    f.purge("id-tenant", at(0)).await.expect("it is deleted");
    fails(inside.try_take(&rpm("key", 1), at(0)).await, NotFound);
    fails(inside.try_create("key", None, false).await, NotFound);
    fails(inside.try_set(&Level::System, "rpm:1", None).await, NotFound);
    fails(inside.try_flag(&resource_level(GPT), Some(Disabled), at(0)).await, NotFound);
    fails(inside.store.resolve(&[]).await, NotFound);
}

pub(super) async fn a_purge_keeps_the_others(f: Fixture) {
    let (a, b) = (f.tenant("a").await, f.tenant("b").await);
    furnish(&a).await;
    furnish(&b).await;
    f.delete_namespace("a", at(9)).await;
    f.purge("id-a", at(0)).await.expect("it is deleted");
    assert_eq!(b.balances("key", at(0)).await, [0], "b's bucket");
    assert!(b.entity("key").await.is_some(), "b's entity");
    assert!(b.resolve("key", "off").await.blocked_by.is_some(), "b's flag");
}

pub(super) async fn a_sweep_covers_every_namespace(f: Fixture) {
    let (a, b) = (f.tenant("a").await, f.tenant("b").await);
    for tenant in [&a, &b] {
        tenant.take(&rpm("key", 1), at(0)).await.granted(&[59_000]);
    }
    assert_eq!(f.sweep(at(7 * MINUTE)).await, 2, "one bucket each");
    assert_eq!((a.bucket("key").await, b.bucket("key").await), (None, None));
}
