//! The audit log: every administrative change, once, and nothing else.

use zae_limiter_core::{AuditAction, AuditEvent, AuditSubject, EventId};

use super::fixture::{
    Fixture, GPT, SECOND, about, at, entity_level, entity_on, in_pages_of, limit_list, resource,
    resource_level, rpm,
};
use crate::{Change, EntityUpdate, Level, LimitsChange, OnUnavailable};
use zae_limiter_core::Flag::{Disabled, Enabled};

async fn actions(f: &Fixture, subject: &AuditSubject) -> Vec<AuditAction> {
    f.events(subject).await.iter().map(|event| event.action).collect()
}

pub(super) async fn the_life_of_an_entity_is_recorded(f: Fixture) {
    let created = f.create("key").await;
    f.rename("key", created.version, "Another").await.expect("an update");
    f.delete("key").await;
    use AuditAction::{EntityCreated, EntityDeleted, EntityUpdated};
    assert_eq!(
        actions(&f, &about("key")).await,
        [EntityDeleted, EntityUpdated, EntityCreated],
        "newest first, kept after the deletion"
    );
}

pub(super) async fn changes_of_limits_and_flags_are_recorded_with_their_level(f: Fixture) {
    let gpt = resource(GPT);
    let levels = [
        (Level::System, AuditSubject::System, None),
        (resource_level(GPT), AuditSubject::Resource(gpt.clone()), Some(gpt.clone())),
        (entity_level("all"), about("all"), None),
        (entity_on("key", GPT), about("key"), Some(gpt)),
    ];
    use AuditAction::{FlagsSet, LimitsDeleted, LimitsSet};
    for (level, subject, about) in levels {
        f.set(&level, "rpm:1").await;
        let mut expected = vec![LimitsDeleted, LimitsSet];
        if level != Level::System {
            f.flag(&level, Some(Disabled)).await;
            expected.insert(1, FlagsSet);
        }
        f.unset(&level).await;
        let mut found = f.events(&subject).await;
        found.retain(|event| expected.contains(&event.action));
        assert_eq!(found.iter().map(|event| event.action).collect::<Vec<_>>(), expected, "{level}");
        assert!(
            found.iter().all(|event| event.resource == about && event.subject == subject),
            "{level}: {found:?}"
        );
    }
}

pub(super) async fn an_event_says_who_when_and_what(f: Fixture) {
    let change = Change {
        principal: Some("arn:aws:iam::1:user/ops".parse().expect("a valid principal")),
        reason: Some("OPS-1".into()),
        at: at(1_234),
        event: EventId::new(at(1_234), 77),
    };
    let (level, limits) = (entity_level("key"), limit_list("rpm:60/min").into());
    f.store.set_limits(&level, &limits, &change).await.expect("limits can be set");
    let found = f.events(&about("key")).await;
    assert_eq!(found.len(), 1, "one change, one event: {found:?}");
    let event = &found[0];
    let told = (event.id, event.at, &event.principal);
    assert_eq!(told, (change.event, change.at, &change.principal));
    let details = format!("{:?}", event.details);
    assert!(details.contains("rpm"), "the details tell the new limits, found {details}");
    let reason = ("reason".to_owned(), "OPS-1".to_owned());
    assert!(event.details.contains(&reason), "the details tell why, found {details}");

    let nobody =
        Change { principal: None, reason: None, at: at(2_000), event: EventId::new(at(2_000), 0) };
    f.store.set_flag(&level, Some(Disabled), &nobody).await.expect("a level can be flagged");
    assert_eq!(f.events(&about("key")).await[0].principal, None, "nobody was named");
}

pub(super) async fn an_event_says_what_was_before(f: Fixture) {
    let told = async |subject: AuditSubject| -> Vec<String> {
        let event = f.events(&subject).await.into_iter().next().expect("an event");
        event.details.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    };
    let level = entity_on("key", GPT);
    f.set(&level, "rpm:60/min tpm:100/hour").await;
    let set = ["limit=rpm:60/min", "limit=tpm:100/hour"];
    assert_eq!(told(about("key")).await, set, "there was nothing before");
    f.set(&level, "rpm:30/min").await;
    let found = told(about("key")).await;
    assert_eq!(found, ["limit=rpm:30/min", "was=rpm:60/min", "was=tpm:100/hour"]);
    f.flag(&level, Some(Disabled)).await;
    assert_eq!(told(about("key")).await, ["disabled=true", "was=inherited"]);
    f.flag(&level, Some(Enabled)).await;
    assert_eq!(told(about("key")).await, ["disabled=false", "was=true"]);
    f.flag(&level, None).await;
    assert_eq!(told(about("key")).await, ["disabled=inherited", "was=false"]);
    f.unset(&level).await;
    assert_eq!(told(about("key")).await, ["limit=rpm:30/min"], "what was deleted");

    let set = async |on_unavailable: Option<OnUnavailable>| {
        let change = LimitsChange { on_unavailable, ..limit_list("rpm:1/min").into() };
        f.try_change(&Level::System, &change, at(SECOND)).await.expect("limits can be set");
        told(AuditSubject::System).await
    };
    assert_eq!(set(Some(OnUnavailable::Allow)).await, ["limit=rpm:1/min", "on_unavailable=allow"]);
    assert_eq!(set(None).await, ["limit=rpm:1/min", "was=rpm:1/min"], "the policy is kept");
    let changed =
        ["limit=rpm:1/min", "on_unavailable=block", "was=rpm:1/min", "was_on_unavailable=allow"];
    assert_eq!(set(Some(OnUnavailable::Block)).await, changed);

    let mut version = f.create("key").await.version;
    let pairs = |pairs: &[(&str, &str)]| {
        Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    };
    for (name, metadata, expected) in [
        (None, pairs(&[("a", "1"), ("b", "2")]), "name=The key metadata.a=1 metadata.b=2"),
        (
            Some("K"),
            pairs(&[("b", "3")]),
            "name=K metadata.b=3 was_metadata.a=1 was_metadata.b=2 was_name=The key",
        ),
        (Some("L"), None, "name=L metadata.b=3 was_name=K"),
    ] {
        let update = EntityUpdate { name: name.map(str::to_owned), metadata };
        version = f.try_update("key", version, &update).await.expect("an update").version;
        assert_eq!(told(about("key")).await.join(" "), expected);
    }
}

pub(super) async fn what_failed_is_not_recorded(f: Fixture) {
    let created = f.create("key").await;
    let wrong = [
        f.try_create("key", None, false).await.is_err(),
        f.rename("key", created.version + 1, "Another").await.is_err(),
        f.try_set(&entity_level("key"), "rpm:1", Some(7)).await.is_err(),
        f.try_set(&entity_level("key"), "", None).await.is_err(),
        f.try_create("child", Some("nobody"), true).await.is_err(),
    ];
    assert_eq!(wrong, [true; 5], "all of these fail");
    assert!(!f.unset(&entity_level("key")).await, "there are no limits to delete");
    let found = actions(&f, &about("key")).await;
    assert_eq!(found, [AuditAction::EntityCreated], "only what happened");
    assert_eq!(actions(&f, &about("child")).await, []);
}

pub(super) async fn the_hot_path_is_not_recorded(f: Fixture) {
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.adjust(&rpm("key", 5), at(0)).await;
    let recorded = actions(&f, &about("key")).await;
    assert_eq!(recorded, [], "takes and adjustments are usage, not administration");
}

pub(super) async fn events_are_listed_by_subject_and_newest_first(f: Fixture) {
    for (second, id) in (0..).zip(["key", "other", "key", "other", "key"]) {
        f.set_at(&entity_level(id), "rpm:1", at(second * SECOND)).await;
    }
    let times: Vec<_> = f.events(&about("key")).await.iter().map(|event| event.at).collect();
    assert_eq!(times, [at(4 * SECOND), at(2 * SECOND), at(0)]);
}

pub(super) async fn the_log_of_a_namespace_has_every_subject(f: Fixture) {
    let (inside, other) = (f.tenant("tenant").await, f.tenant("other").await);
    other.create("foreign").await;
    let levels = [Level::System, resource_level(GPT), entity_level("key"), entity_on("b", GPT)];
    let changed: Vec<_> = (1..=9).zip(levels.iter().cycle()).collect();
    for (second, level) in &changed {
        inside.set_at(level, "rpm:1", at(second * SECOND)).await;
    }
    let told =
        |event: &AuditEvent| (event.at.since(at(0)).div_euclid(SECOND), event.subject.clone());
    // The registration of the namespace itself comes last.
    let expected: Vec<_> =
        changed.iter().rev().map(|(second, level)| (*second, level.subject())).collect();
    for size in [1, 2, 3, 100] {
        let listed = in_pages_of(size, async |page| inside.store.audit_log(&page).await).await;
        let listed: Vec<_> = listed.iter().map(told).collect();
        assert_eq!(listed[..9], expected, "in pages of {size}");
        let rest: Vec<_> = listed[9..].iter().map(|(_, subject)| subject).collect();
        assert_eq!(rest, [&AuditSubject::System]);
    }
}

pub(super) async fn events_of_the_same_instant_are_all_kept(f: Fixture) {
    let mut version = f.create("key").await.version;
    for number in 0..5 {
        let updated = f.rename("key", version, &format!("Name {number}")).await;
        version = updated.expect("an update").version;
    }
    let ids: Vec<_> = f.events(&about("key")).await.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), 6, "one event each, read in pages of two");
    assert!(ids.is_sorted_by(|newer, older| newer > older), "newest first: {ids:?}");
}

pub(super) async fn events_are_ordered_by_their_ids(f: Fixture) {
    // Two administrators whose clocks differ: the log has one order all the same.
    for ms in [5_000, 2_000, 9_000, 1_000] {
        f.try_flag(&entity_level("key"), Some(Disabled), at(ms))
            .await
            .expect("a level can be flagged");
    }
    let times: Vec<_> = f.events(&about("key")).await.iter().map(|event| event.at).collect();
    assert_eq!(times, [9_000, 5_000, 2_000, 1_000].map(at), "newest first, by id");
}

pub(super) async fn the_life_of_a_namespace_is_recorded(f: Fixture) {
    let inside = f.tenant("tenant").await;
    f.delete_namespace("tenant", at(6)).await;
    f.recover("id-tenant", at(7)).await.expect("a namespace can be recovered");
    use AuditAction::{NamespaceDeleted, NamespacePurged, NamespaceRecovered, NamespaceRegistered};
    let told = actions(&inside, &AuditSubject::System).await;
    assert_eq!(told, [NamespaceRecovered, NamespaceDeleted, NamespaceRegistered], "in its own log");
    f.delete_namespace("tenant", at(8)).await;
    f.purge("id-tenant", at(9)).await.expect("a namespace can be purged");
    // Its own log is gone with it: the deed is told where the order was given.
    let told = f.events(&AuditSubject::System).await;
    let purged =
        told.iter().find(|event| event.action == NamespacePurged).expect("the purge is recorded");
    let details = format!("{:?}", purged.details);
    assert!(details.contains("id-tenant"), "the details name what was purged, found {details}");
}
