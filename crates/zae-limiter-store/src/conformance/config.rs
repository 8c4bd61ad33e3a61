//! Limits at four levels, and their resolution for a request.

use zae_limiter_core::{AuditAction, AuditSubject, LimitSource};

use super::fixture::{
    Fixture, GPT, at, entity, entity_level, entity_on, fails, limit_list, resource, resource_level,
};
use crate::StoreErrorKind::{Conflict, Invalid, NotFound};
use crate::{
    Level, LevelConfig, LimitsChange, MANAGED_BYTES_MAX, MANAGED_PARTS_MAX, Managed, ManagedChange,
    MemberKey, OnUnavailable, StoreError,
};
use zae_limiter_core::Flag::{Disabled, Enabled};

/// The limits in force for an entity and a resource, and their source.
async fn found(f: &Fixture, id: &str, name: &str) -> String {
    let Some((limits, source)) = f.resolve(id, name).await.limits else { return "none".into() };
    let text: Vec<String> = limits.iter().map(ToString::to_string).collect();
    format!("{} of {source}", text.join(" "))
}

async fn policy(f: &Fixture) -> Option<OnUnavailable> {
    f.store.resolve(&[]).await.expect("configuration can be resolved").on_unavailable
}

async fn set_policy(f: &Fixture, on_unavailable: Option<OnUnavailable>) {
    let change = LimitsChange { on_unavailable, ..limit_list("rpm:1").into() };
    f.try_change(&Level::System, &change, at(0)).await.expect("limits can be set");
}

pub(super) async fn nothing_is_configured_to_begin_with(f: Fixture) {
    assert_eq!(found(&f, "key", GPT).await, "none");
    for level in [Level::System, resource_level(GPT), entity_level("key"), entity_on("key", GPT)] {
        assert_eq!(f.level(&level).await, None, "{level}");
        assert!(!f.unset(&level).await, "{level}: there was nothing to delete");
    }
    assert_eq!(policy(&f).await, None, "no outage policy");
}

pub(super) async fn the_strongest_level_wins(f: Fixture) {
    f.set(&Level::System, "rpm:1/min").await;
    assert_eq!(found(&f, "key", GPT).await, "rpm:1/min of system");
    f.set(&resource_level(GPT), "rpm:2/min").await;
    assert_eq!(found(&f, "key", GPT).await, "rpm:2/min of resource");
    f.set(&entity_level("key"), "rpm:3/min").await;
    assert_eq!(found(&f, "key", GPT).await, "rpm:3/min of entity_default");
    f.set(&entity_on("key", GPT), "rpm:4/min").await;
    assert_eq!(found(&f, "key", GPT).await, "rpm:4/min of entity");

    let in_force = found(&f, "key", "other").await;
    assert_eq!(in_force, "rpm:3/min of entity_default", "the entity on another resource");
    let in_force = found(&f, "other", GPT).await;
    assert_eq!(in_force, "rpm:2/min of resource", "another entity on the resource");
    let in_force = found(&f, "other", "other").await;
    assert_eq!(in_force, "rpm:1/min of system", "another entity on another resource");
}

pub(super) async fn the_winning_level_wins_whole(f: Fixture) {
    f.set(&Level::System, "rpm:1/min tpm:100/min").await;
    f.set(&entity_on("key", GPT), "rpm:4/min").await;
    let in_force = found(&f, "key", GPT).await;
    assert_eq!(in_force, "rpm:4/min of entity", "no limit is mixed in from below");
}

pub(super) async fn a_deleted_level_uncovers_the_next(f: Fixture) {
    for (level, limits) in [
        (Level::System, "rpm:1"),
        (resource_level(GPT), "rpm:2"),
        (entity_level("key"), "rpm:3"),
        (entity_on("key", GPT), "rpm:4"),
    ] {
        f.set(&level, limits).await;
    }
    assert!(f.unset(&entity_on("key", GPT)).await, "there were limits to delete");
    assert_eq!(found(&f, "key", GPT).await, "rpm:3/min of entity_default");
    assert!(f.unset(&resource_level(GPT)).await, "there were limits to delete");
    assert!(f.unset(&entity_level("key")).await, "there were limits to delete");
    assert_eq!(found(&f, "key", GPT).await, "rpm:1/min of system");
    assert!(f.unset(&Level::System).await, "there were limits to delete");
    assert_eq!(found(&f, "key", GPT).await, "none");
    assert!(!f.unset(&Level::System).await, "deleted already");
}

pub(super) async fn setting_replaces_the_whole_level(f: Fixture) {
    f.set(&resource_level(GPT), "rpm:1/min tpm:100/min").await;
    f.set(&resource_level(GPT), "tpm:200/min day:5/day").await;
    let stored = f.level(&resource_level(GPT)).await.expect("the level is there");
    assert_eq!(
        stored.limits,
        limit_list("tpm:200/min day:5/day").into(),
        "what is not named is gone"
    );
}

pub(super) async fn limits_come_back_as_they_were_set(f: Fixture) {
    let text =
        "z:1/sec a:10000/min:15000 m.x-y_z:7/90sec b:1000000000000000/1000000000sec:1 Rpm:5/day";
    f.set(&resource_level(GPT), text).await;
    let stored = f.level(&resource_level(GPT)).await.expect("the level is there");
    assert_eq!(stored.limits, limit_list(text).into(), "numbers and order");
    let (limits, _) = f.resolve("key", GPT).await.limits.expect("limits are stored");
    assert_eq!(limits[..], limit_list(text), "the same when resolved");
}

pub(super) async fn versions_grow_with_every_change(f: Fixture) {
    let first = f.set(&resource_level(GPT), "rpm:1").await;
    let second = f.set(&resource_level(GPT), "rpm:1").await;
    assert!(0 < first && first < second, "versions grow, found {first} and then {second}");
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    let LevelConfig { limits, flag, version, .. } =
        f.level(&resource_level(GPT)).await.expect("the level is there");
    assert_eq!((limits, flag), (limit_list("rpm:1").into(), Some(Disabled)));
    assert!(second < version, "a flag is a change too, found {second} and then {version}");
}

pub(super) async fn a_change_of_another_version_is_a_conflict(f: Fixture) {
    fails(f.try_set(&resource_level(GPT), "rpm:1", Some(1)).await, Conflict);
    let first = f.try_set(&resource_level(GPT), "rpm:1", Some(0)).await;
    let first = first.expect("0 stands for a level that does not exist");
    fails(f.try_set(&resource_level(GPT), "rpm:2", Some(0)).await, Conflict);
    let second = f
        .try_set(&resource_level(GPT), "rpm:3", Some(first))
        .await
        .expect("nobody changed it since");
    fails(f.try_set(&resource_level(GPT), "rpm:4", Some(first)).await, Conflict);
    let stored = f.level(&resource_level(GPT)).await.expect("the level is there");
    assert_eq!(
        (stored.limits, stored.version),
        (limit_list("rpm:3").into(), second),
        "a lost race changes nothing"
    );
}

pub(super) async fn a_version_does_not_come_back_after_a_deletion(f: Fixture) {
    let read = f.set(&resource_level(GPT), "rpm:1").await;
    f.unset(&resource_level(GPT)).await;
    f.set(&resource_level(GPT), "rpm:2").await;
    // A caller that read the first must not overwrite the second unseen.
    fails(f.try_set(&resource_level(GPT), "rpm:3", Some(read)).await, Conflict);
}

pub(super) async fn deleting_limits_keeps_the_flag(f: Fixture) {
    f.set(&resource_level(GPT), "rpm:1").await;
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    assert!(f.unset(&resource_level(GPT)).await, "there were limits to delete");
    let stored = f.level(&resource_level(GPT)).await.expect("the flag is still there");
    assert_eq!((stored.limits, stored.flag), ([].into(), Some(Disabled)));
    assert!(!f.unset(&resource_level(GPT)).await, "no limits are left to delete");
    assert_eq!(f.resolve("key", GPT).await.blocked_by, Some((Disabled, resource_level(GPT))));
}

pub(super) async fn a_level_with_only_a_flag_supplies_no_limits(f: Fixture) {
    f.set(&Level::System, "rpm:1/min").await;
    f.flag(&entity_on("key", GPT), Some(Enabled)).await;
    assert_eq!(found(&f, "key", GPT).await, "rpm:1/min of system", "an empty level does not win");
}

pub(super) async fn many_members_are_resolved_at_once_and_in_order(f: Fixture) {
    f.set(&Level::System, "rpm:1/min").await;
    f.set(&entity_level("b"), "rpm:2/min").await;
    f.set(&entity_on("c", "other"), "rpm:3/min").await;
    let (a, b, c, gpt, other) =
        (entity("a"), entity("b"), entity("c"), resource(GPT), resource("other"));
    let keys = [(&c, &other), (&a, &gpt), (&c, &gpt), (&b, &other), (&c, &other)];
    let keys: Vec<_> =
        keys.into_iter().map(|(entity, resource)| MemberKey { entity, resource }).collect();
    let resolution = f.store.resolve(&keys).await.expect("configuration can be resolved");
    let sources: Vec<_> = resolution
        .members
        .iter()
        .map(|member| member.limits.as_ref().map(|(_, source)| *source))
        .collect();
    use LimitSource::{Entity, EntityResource, System};
    assert_eq!(
        sources,
        [EntityResource, System, System, Entity, EntityResource].map(Some),
        "one per key, in order"
    );
}

pub(super) async fn takes_go_on_to_the_parent_of_a_cascading_entity_only(f: Fixture) {
    f.create("org").await;
    for (id, parent, cascade) in
        [("cascades", Some("org"), true), ("stays", Some("org"), false), ("alone", None, true)]
    {
        f.try_create(id, parent, cascade).await.expect("an entity can be created");
    }
    let next = f.resolve("cascades", GPT).await.cascades_to;
    assert_eq!(next, Some(entity("org")), "where takes of cascades go on to");
    for id in ["stays", "alone", "org", "unknown"] {
        assert_eq!(f.resolve(id, GPT).await.cascades_to, None, "where takes of {id} go on to");
    }
}

pub(super) async fn the_outage_policy_is_kept_until_it_is_deleted(f: Fixture) {
    set_policy(&f, Some(OnUnavailable::Allow)).await;
    assert_eq!(policy(&f).await, Some(OnUnavailable::Allow));
    set_policy(&f, None).await;
    assert_eq!(
        policy(&f).await,
        Some(OnUnavailable::Allow),
        "a change that does not mention it keeps it"
    );
    let stored = f.level(&Level::System).await.expect("the level is there");
    assert_eq!(stored.on_unavailable, Some(OnUnavailable::Allow));
    set_policy(&f, Some(OnUnavailable::Block)).await;
    assert_eq!(policy(&f).await, Some(OnUnavailable::Block));
    f.unset(&Level::System).await;
    assert_eq!(policy(&f).await, None, "deleted with the limits");
}

pub(super) async fn stamps_grow_with_every_change_of_limits(f: Fixture) {
    let stamp = async || f.store.resolve(&[]).await.expect("configuration can be resolved").stamp;
    let mut stamps = vec![stamp().await];
    for level in [Level::System, resource_level(GPT), entity_level("key"), entity_on("key", GPT)] {
        f.set(&level, "rpm:1").await;
        stamps.push(stamp().await);
        f.set(&level, "rpm:2").await;
        stamps.push(stamp().await);
        f.unset(&level).await;
        stamps.push(stamp().await);
    }
    assert!(
        stamps.is_sorted_by(|earlier, later| earlier < later),
        "every change is fresher than the one before: {stamps:?}"
    );
}

async fn managed(f: &Fixture, part: u32) -> Option<Managed> {
    f.store.managed(part).await.expect("what is managed can be read")
}

async fn manage(
    f: &Fixture,
    part: u32,
    text: &str,
    expected_version: u64,
) -> Result<u64, StoreError> {
    let details = vec![("reason".to_owned(), "more room".to_owned())];
    let new = ManagedChange { text: text.into(), expected_version, details };
    f.store.set_managed(part, &new, &f.change(at(1_000))).await
}

pub(super) async fn what_files_manage_is_kept_by_part_and_told(f: Fixture) {
    assert_eq!(managed(&f, 0).await, None, "nothing is managed to begin with");
    let first = manage(&f, 0, "a \"text\"\nof lines é", 0).await.expect("a first text");
    let second = manage(&f, 7, "", 0).await.expect("another part");
    let text = "a \"text\"\nof lines é".to_owned();
    assert_eq!(managed(&f, 0).await, Some(Managed { text, version: first }));
    assert_eq!(managed(&f, 7).await, Some(Managed { text: String::new(), version: second }));
    assert_eq!(managed(&f, 1).await, None, "a part that was not stored");
    let third = manage(&f, 0, "new", first).await.expect("a new text");
    assert!(third > first, "versions grow: {first}, {third}");
    let mut told = f.events(&AuditSubject::System).await;
    told.retain(|event| event.action == AuditAction::LimitsApplied);
    assert_eq!(told.len(), 3, "{told:?}");
    let details = [("reason".to_owned(), "more room".to_owned())];
    assert!(told.iter().all(|event| event.details == details), "{told:?}");
}

pub(super) async fn of_two_that_apply_files_one_notices(f: Fixture) {
    let first = manage(&f, 0, "one", 0).await.expect("a first text");
    fails(manage(&f, 0, "two", 0).await, Conflict);
    let second = manage(&f, 0, "three", first).await.expect("the version there is");
    let error = fails(manage(&f, 0, "four", first).await, Conflict);
    assert!(error.to_string().contains("another apply"), "{error}");
    let expected = Managed { text: "three".into(), version: second };
    assert_eq!(managed(&f, 0).await, Some(expected));
    let events = f.events(&AuditSubject::System).await;
    let told = events.iter().filter(|event| event.action == AuditAction::LimitsApplied).count();
    assert_eq!(told, 2, "a refused change is not told");
}

pub(super) async fn what_files_manage_goes_with_its_namespace(f: Fixture) {
    let tenant = f.tenant("managed").await;
    manage(&tenant, 0, "theirs", 0).await.expect("a text");
    assert_eq!(managed(&f, 0).await, None, "another namespace sees nothing");
    let found = f.namespace("managed").await.expect("the namespace");
    assert!(f.delete_namespace("managed", at(2_000)).await);
    fails(tenant.store.managed(0).await, NotFound);
    fails(manage(&tenant, 0, "late", 0).await, NotFound);
    let purged = f.store.purge_namespace(&found.id, &f.change(at(3_000))).await;
    assert!(purged.expect("a purge").records > 0);
    f.register("managed", "id-managed-anew").await;
    let anew = f.inside("managed").await;
    assert_eq!(managed(&anew, 0).await, None, "nothing is left of the namespace before");
}

pub(super) async fn what_files_manage_has_a_bound(f: Fixture) {
    let longest = "x".repeat(MANAGED_BYTES_MAX);
    let version = manage(&f, 0, &longest, 0).await.expect("the longest text");
    assert_eq!(managed(&f, 0).await.map(|found| found.text.len()), Some(MANAGED_BYTES_MAX));
    fails(manage(&f, 0, &(longest + "x"), version).await, Invalid);
    fails(manage(&f, MANAGED_PARTS_MAX, "", 0).await, Invalid);
}
