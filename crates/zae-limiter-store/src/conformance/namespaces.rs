//! Tenants: none reads, writes or observes another.

use zae_limiter_core::{AuditSubject, Flag, TimeMs};

use super::fixture::{
    Fixture, GPT, all, ask, at, entity, fails, limits, namespace, namespace_id, resource,
};
use crate::{AuditQuery, Level, Namespace, NamespaceStatus, PageRequest, StoreErrorKind};

async fn register(f: &Fixture, name: &str, id: &str) -> Namespace {
    f.store
        .register_namespace(&namespace(name), &namespace_id(id), &f.change(at(5)))
        .await
        .expect("a namespace can be registered")
}

async fn delete(f: &Fixture, name: &str) -> bool {
    f.store
        .delete_namespace(&namespace(name), &f.change(at(9)))
        .await
        .expect("a namespace can be deleted")
}

async fn active(f: &Fixture) -> Vec<String> {
    all(async |page| f.store.namespaces(&page).await)
        .await
        .iter()
        .map(|namespace| namespace.name.to_string())
        .collect()
}

async fn orphans(f: &Fixture) -> Vec<String> {
    all(async |page| f.store.orphan_namespaces(&page).await)
        .await
        .iter()
        .map(|namespace| namespace.id.to_string())
        .collect()
}

/// Fills a namespace with one of everything.
async fn furnish(f: &Fixture) {
    f.create("key").await;
    f.set(&Level::System, "rpm:60").await;
    f.set(&Level::EntityResource(entity("key"), resource(GPT)), "rpm:60").await;
    f.flag(&Level::Resource(resource("off")), Some(true)).await;
    f.take(&ask("key", &f.in_force("key").await, &[("rpm", 60)]), at(0)).await.granted(&[0]);
}

/// Nothing of what [`furnish`] made can be seen.
async fn is_empty(f: &Fixture, whose: &str) {
    assert_eq!(f.store.entity(&entity("key")).await.expect("a read"), None, "{whose}: the entity");
    assert_eq!(f.store.level(&Level::System).await.expect("a read"), None, "{whose}: the limits");
    assert_eq!(f.resolve("key", GPT).await.limits, None, "{whose}: the limits of the entity");
    assert_eq!(f.resolve("key", "off").await.blocked_by, None, "{whose}: the flag");
    assert_eq!(f.bucket("key").await, None, "{whose}: the bucket");
    let page =
        f.store.resource_buckets(&resource(GPT), &PageRequest::default()).await.expect("a list");
    assert_eq!(page.items, [], "{whose}: the buckets of the resource");
    assert_eq!(
        f.store.entities(&PageRequest::default()).await.expect("a list").items,
        [],
        "{whose}: the list of entities"
    );
    let listed = f.store.resources_with_defaults(&PageRequest::default()).await.expect("a list");
    assert_eq!(listed.items, [""; 0], "{whose}: the list of resources");
    let query =
        AuditQuery { subject: AuditSubject::Entity(entity("key")), page: PageRequest::default() };
    assert_eq!(
        f.store.audit_events(&query).await.expect("a query").items,
        [],
        "{whose}: the audit log"
    );
    f.take(&ask("key", &limits("rpm:60/min"), &[("rpm", 60)]), at(0)).await.granted(&[0]);
}

pub(super) async fn a_store_begins_in_the_default_namespace(f: Fixture) {
    assert_eq!(f.store.current_namespace(), namespace("default"));
    assert_eq!(active(&f).await, ["default"]);
    let found =
        f.store.namespace(&namespace("default")).await.expect("a read").expect("it is registered");
    assert_eq!(found.status, NamespaceStatus::Active);
}

pub(super) async fn a_registered_namespace_can_be_entered(f: Fixture) {
    let registered = register(&f, "tenant", "id-1").await;
    let (id, name) = (namespace_id("id-1"), namespace("tenant"));
    assert_eq!(
        registered,
        Namespace {
            id,
            name,
            status: NamespaceStatus::Active,
            created_at: at(5),
            deleted_at: None
        }
    );
    assert_eq!(f.store.namespace(&namespace("tenant")).await.expect("a read"), Some(registered));
    let inside = f.store.scoped(&namespace("tenant")).await.expect("it is registered");
    assert_eq!(inside.current_namespace(), namespace("tenant"));
    let back = inside.scoped(&namespace("default")).await.expect("it is registered");
    assert_eq!(
        back.current_namespace(),
        namespace("default"),
        "the registry is common to all handles"
    );
    assert_eq!(inside.current_namespace_id(), Some(namespace_id("id-1")));
    let default =
        f.store.namespace(&namespace("default")).await.expect("a read").expect("it is registered");
    assert_eq!(
        (back.current_namespace_id(), f.store.current_namespace_id()),
        (Some(default.id.clone()), Some(default.id))
    );
}

pub(super) async fn a_name_registered_again_is_another_namespace(f: Fixture) {
    register(&f, "tenant", "id-1").await;
    let old = f.inside("tenant").await;
    furnish(&old).await;
    assert!(delete(&f, "tenant").await);
    register(&f, "tenant", "id-2").await;
    let (new, through_old) = (f.inside("tenant").await, old.inside("tenant").await);
    for handle in [&new, &through_old] {
        assert_eq!(handle.store.current_namespace_id(), Some(namespace_id("id-2")));
    }
    assert_eq!(
        old.store.current_namespace_id(),
        Some(namespace_id("id-1")),
        "a handle stays where it is"
    );
    is_empty(&new, "the new tenant").await;
    let error = fails(old.store.entities(&PageRequest::default()).await, StoreErrorKind::NotFound);
    assert!(
        error.message().contains("register it again and open a new handle"),
        "it says what to do: {error}"
    );
    assert_eq!(
        through_old.balances("key", at(0)).await,
        [0],
        "and that works: it sees what was taken in the new one"
    );
    // The default namespace is one like the others.
    let default = f
        .store
        .namespace(&namespace("default"))
        .await
        .expect("a read")
        .expect("it is registered")
        .id;
    assert!(delete(&f, "default").await);
    register(&f, "default", "id-3").await;
    let anew = f.inside("default").await;
    assert_eq!(anew.store.current_namespace_id(), Some(namespace_id("id-3")));
    anew.create("key").await;
    fails(f.store.entities(&PageRequest::default()).await, StoreErrorKind::NotFound);
    assert_eq!(f.store.current_namespace_id(), Some(default));
}

pub(super) async fn registering_twice_gives_the_first(f: Fixture) {
    let first = register(&f, "tenant", "id-1").await;
    assert_eq!(register(&f, "tenant", "id-2").await, first, "the name has its id already");
    assert_eq!(active(&f).await, ["default", "tenant"]);
    assert_eq!(
        f.store.namespace(&namespace("Tenant")).await.expect("a read"),
        None,
        "names know upper and lower case"
    );
}

pub(super) async fn an_id_is_never_used_again(f: Fixture) {
    // Data is kept under the id: a second name for it would open one tenant's data to another.
    register(&f, "tenant", "id-1").await;
    let again = f
        .store
        .register_namespace(&namespace("other"), &namespace_id("id-1"), &f.change(at(0)))
        .await;
    fails(again, StoreErrorKind::AlreadyExists);
    delete(&f, "tenant").await;
    let again = f
        .store
        .register_namespace(&namespace("other"), &namespace_id("id-1"), &f.change(at(0)))
        .await;
    fails(again, StoreErrorKind::AlreadyExists);
    assert_eq!(
        f.store.namespace(&namespace("other")).await.expect("a read"),
        None,
        "nothing was registered"
    );
}

pub(super) async fn an_unknown_namespace_can_not_be_entered(f: Fixture) {
    fails(f.store.scoped(&namespace("nowhere")).await.map(|_| ()), StoreErrorKind::NotFound);
    assert_eq!(f.store.namespace(&namespace("nowhere")).await.expect("a read"), None);
    assert!(!delete(&f, "nowhere").await, "there is nothing to delete");
    fails(
        f.store.recover_namespace(&namespace_id("nowhere"), &f.change(at(0))).await,
        StoreErrorKind::NotFound,
    );
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
    let one = ask("key", &limits("rpm:60/min"), &[("rpm", 1)]);
    for tenant in [&a, &b] {
        tenant.take(&one, at(0)).await.granted(&[59_000]);
    }
    assert_eq!(
        a.flag(&Level::Resource(resource(GPT)), Some(true)).await,
        1,
        "only a's bucket is reached"
    );
    a.take(&one, at(0)).await.disabled(0);
    b.take(&one, at(0)).await.granted(&[58_000]);
}

pub(super) async fn deleting_in_one_namespace_keeps_the_others(f: Fixture) {
    let (a, b) = (f.tenant("a").await, f.tenant("b").await);
    furnish(&a).await;
    furnish(&b).await;
    let deleted = a
        .store
        .delete_entity(&entity("key"), &a.change(at(0)))
        .await
        .expect("an entity can be deleted");
    assert_eq!((deleted.buckets, deleted.configs), (1, 1), "a's things");
    assert!(b.store.entity(&entity("key")).await.expect("a read").is_some(), "b's entity");
    assert_eq!(b.balances("key", at(0)).await, [0], "b's bucket");
    assert!(b.resolve("key", GPT).await.limits.is_some(), "b's limits");
}

pub(super) async fn a_deleted_namespace_is_an_orphan(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    assert!(delete(&f, "tenant").await, "it was active");
    assert!(!delete(&f, "tenant").await, "it no longer is");
    assert_eq!(
        (active(&f).await, orphans(&f).await),
        (vec!["default".to_owned()], vec!["id-tenant".to_owned()])
    );
    fails(f.store.scoped(&namespace("tenant")).await.map(|_| ()), StoreErrorKind::NotFound);
    fails(inside.store.resolve(&[]).await, StoreErrorKind::NotFound);
    let page = f.store.orphan_namespaces(&PageRequest::default()).await.expect("a list");
    assert_eq!(
        (page.items[0].status, page.items[0].deleted_at),
        (NamespaceStatus::Deleted, Some(at(9)))
    );
}

pub(super) async fn the_name_of_a_deleted_namespace_is_free(f: Fixture) {
    furnish(&f.tenant("tenant").await).await;
    delete(&f, "tenant").await;
    assert_eq!(register(&f, "tenant", "id-new").await.id, namespace_id("id-new"));
    is_empty(&f.inside("tenant").await, "the new holder of the name").await;
}

pub(super) async fn a_deleted_namespace_can_be_recovered(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    delete(&f, "tenant").await;
    let recovered = f
        .store
        .recover_namespace(&namespace_id("id-tenant"), &f.change(at(0)))
        .await
        .expect("it is deleted");
    assert_eq!(
        (recovered.name, recovered.status, recovered.deleted_at),
        (namespace("tenant"), NamespaceStatus::Active, None)
    );
    assert_eq!(
        (active(&f).await, orphans(&f).await),
        (vec!["default".to_owned(), "tenant".to_owned()], vec![])
    );
    let again = f.inside("tenant").await;
    assert_eq!(again.balances("key", at(0)).await, [0], "its bucket, as empty as it was");
    assert!(again.store.entity(&entity("key")).await.expect("a read").is_some(), "its entity");
    assert!(again.resolve("key", GPT).await.limits.is_some(), "its limits");
    inside.store.resolve(&[]).await.expect("old handles work again");
}

pub(super) async fn what_is_not_deleted_can_not_be_recovered(f: Fixture) {
    register(&f, "tenant", "id-1").await;
    fails(
        f.store.recover_namespace(&namespace_id("id-1"), &f.change(at(0))).await,
        StoreErrorKind::State,
    );
    delete(&f, "tenant").await;
    register(&f, "tenant", "id-2").await;
    let error = fails(
        f.store.recover_namespace(&namespace_id("id-1"), &f.change(at(0))).await,
        StoreErrorKind::State,
    );
    assert!(
        error.message().contains("tenant"),
        "the message names the name that is taken, found {:?}",
        error.message()
    );
}

pub(super) async fn an_active_namespace_is_not_purged(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    fails(
        f.store.purge_namespace(&namespace_id("id-tenant"), &f.change(at(0))).await,
        StoreErrorKind::State,
    );
    assert_eq!(inside.balances("key", at(0)).await, [0], "everything is still there");
}

pub(super) async fn a_purged_namespace_is_gone_for_good(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    delete(&f, "tenant").await;
    let purged = f
        .store
        .purge_namespace(&namespace_id("id-tenant"), &f.change(at(0)))
        .await
        .expect("it is deleted");
    assert!(purged.records > 0, "there was something to remove");
    assert_eq!(
        (active(&f).await, orphans(&f).await),
        (vec!["default".to_owned()], vec![]),
        "it is not listed any more"
    );
    fails(
        f.store.recover_namespace(&namespace_id("id-tenant"), &f.change(at(0))).await,
        StoreErrorKind::NotFound,
    );
    register(&f, "tenant", "id-new").await;
    is_empty(&f.inside("tenant").await, "the new holder of the name").await;
}

pub(super) async fn an_old_handle_can_not_revive_a_purged_namespace(f: Fixture) {
    let inside = f.tenant("tenant").await;
    furnish(&inside).await;
    delete(&f, "tenant").await;
    f.store
        .purge_namespace(&namespace_id("id-tenant"), &f.change(at(0)))
        .await
        .expect("it is deleted");
    let one = ask("key", &limits("rpm:60/min"), &[("rpm", 1)]);
    fails(inside.try_take(&one, at(0)).await, StoreErrorKind::NotFound);
    fails(inside.try_create("key", None, false).await, StoreErrorKind::NotFound);
    fails(inside.try_set(&Level::System, "rpm:1", None).await, StoreErrorKind::NotFound);
    let flag = inside
        .store
        .set_flag(&Level::Resource(resource(GPT)), Some(Flag::Disabled), &inside.change(at(0)))
        .await;
    fails(flag, StoreErrorKind::NotFound);
    fails(inside.store.resolve(&[]).await, StoreErrorKind::NotFound);
}

pub(super) async fn a_purge_keeps_the_others(f: Fixture) {
    let (a, b) = (f.tenant("a").await, f.tenant("b").await);
    furnish(&a).await;
    furnish(&b).await;
    delete(&f, "a").await;
    f.store.purge_namespace(&namespace_id("id-a"), &f.change(at(0))).await.expect("it is deleted");
    assert_eq!(b.balances("key", at(0)).await, [0], "b's bucket");
    assert!(b.store.entity(&entity("key")).await.expect("a read").is_some(), "b's entity");
    assert!(b.resolve("key", "off").await.blocked_by.is_some(), "b's flag");
}

pub(super) async fn a_sweep_covers_every_namespace(f: Fixture) {
    let (a, b) = (f.tenant("a").await, f.tenant("b").await);
    for tenant in [&a, &b] {
        tenant
            .take(&ask("key", &limits("rpm:60/min"), &[("rpm", 1)]), at(0))
            .await
            .granted(&[59_000]);
    }
    assert_eq!(f.sweep(TimeMs(at(0).0 + 7 * 60_000)).await, 2, "one bucket each");
    assert_eq!((a.bucket("key").await, b.bucket("key").await), (None, None));
}
