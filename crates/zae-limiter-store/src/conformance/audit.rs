//! The audit log: every administrative change, once, and nothing else.

use zae_limiter_core::{AuditAction, AuditEvent, AuditSubject, EventId, Flag};

use super::fixture::{
    Fixture, GPT, SECOND, all, ask, at, correction, entity, limit_list, limits, namespace,
    namespace_id, pages, resource,
};
use crate::{AuditQuery, Change, EntityUpdate, Level, LimitsChange, OnUnavailable};

/// All events of a subject, newest first.
async fn events(f: &Fixture, subject: &AuditSubject) -> Vec<AuditEvent> {
    all(async |page| f.store.audit_events(&AuditQuery { subject: subject.clone(), page }).await)
        .await
}

async fn actions(f: &Fixture, subject: &AuditSubject) -> Vec<AuditAction> {
    events(f, subject).await.iter().map(|event| event.action).collect()
}

fn of_key() -> AuditSubject {
    AuditSubject::Entity(entity("key"))
}

pub(super) async fn the_life_of_an_entity_is_recorded(f: Fixture) {
    let created = f.create("key").await;
    f.rename("key", created.version, "Another").await.expect("an update");
    f.store
        .delete_entity(&entity("key"), &f.change(at(SECOND)))
        .await
        .expect("an entity can be deleted");
    use AuditAction::{EntityCreated, EntityDeleted, EntityUpdated};
    assert_eq!(
        actions(&f, &of_key()).await,
        [EntityDeleted, EntityUpdated, EntityCreated],
        "newest first, kept after the deletion"
    );
}

pub(super) async fn changes_of_limits_and_flags_are_recorded_with_their_level(f: Fixture) {
    let levels = [
        (Level::System, AuditSubject::System, None),
        (
            Level::Resource(resource(GPT)),
            AuditSubject::Resource(resource(GPT)),
            Some(resource(GPT)),
        ),
        (Level::Entity(entity("all")), AuditSubject::Entity(entity("all")), None),
        (Level::EntityResource(entity("key"), resource(GPT)), of_key(), Some(resource(GPT))),
    ];
    use AuditAction::{FlagsSet, LimitsDeleted, LimitsSet};
    for (level, subject, about) in levels {
        f.set(&level, "rpm:1").await;
        let mut expected = vec![LimitsDeleted, LimitsSet];
        if level != Level::System {
            f.flag(&level, Some(true)).await;
            expected.insert(1, FlagsSet);
        }
        f.unset(&level).await;
        let found = events(&f, &subject).await;
        let found: Vec<_> =
            found.into_iter().filter(|event| expected.contains(&event.action)).collect();
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
        at: at(1_234),
        event: EventId::new(at(1_234), 77),
    };
    let limits = LimitsChange {
        limits: limit_list("rpm:60/min"),
        on_unavailable: None,
        expected_version: None,
    };
    f.store
        .set_limits(&Level::Entity(entity("key")), &limits, &change)
        .await
        .expect("limits can be set");
    let found = events(&f, &of_key()).await;
    assert_eq!(found.len(), 1, "one change, one event: {found:?}");
    let event = &found[0];
    assert_eq!(
        (event.id, event.at, &event.principal),
        (change.event, change.at, &change.principal)
    );
    let details = format!("{:?}", event.details);
    assert!(details.contains("rpm"), "the details tell the new limits, found {details}");

    let nobody = Change { principal: None, at: at(2_000), event: EventId::new(at(2_000), 0) };
    f.store
        .set_flag(&Level::Entity(entity("key")), Some(Flag::Disabled), &nobody)
        .await
        .expect("a level can be flagged");
    assert_eq!(events(&f, &of_key()).await[0].principal, None, "nobody was named");
}

pub(super) async fn an_event_says_what_was_before(f: Fixture) {
    let told = async |subject: AuditSubject| -> Vec<String> {
        let event = events(&f, &subject).await.into_iter().next().expect("an event");
        event.details.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    };
    let level = Level::EntityResource(entity("key"), resource(GPT));
    f.set(&level, "rpm:60/min tpm:100/hour").await;
    assert_eq!(
        told(of_key()).await,
        ["limit=rpm:60/min", "limit=tpm:100/hour"],
        "there was nothing before"
    );
    f.set(&level, "rpm:30/min").await;
    assert_eq!(told(of_key()).await, ["limit=rpm:30/min", "was=rpm:60/min", "was=tpm:100/hour"]);
    f.flag(&level, Some(true)).await;
    assert_eq!(told(of_key()).await, ["disabled=true", "was=inherited"]);
    f.flag(&level, Some(false)).await;
    assert_eq!(told(of_key()).await, ["disabled=false", "was=true"]);
    f.flag(&level, None).await;
    assert_eq!(told(of_key()).await, ["disabled=inherited", "was=false"]);
    f.unset(&level).await;
    assert_eq!(told(of_key()).await, ["limit=rpm:30/min"], "what was deleted");

    let set = async |on_unavailable: Option<OnUnavailable>| {
        let limits = LimitsChange {
            limits: limit_list("rpm:1/min"),
            on_unavailable,
            expected_version: None,
        };
        f.store
            .set_limits(&Level::System, &limits, &f.change(at(SECOND)))
            .await
            .expect("limits can be set");
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
        (
            None,
            pairs(&[("a", "1"), ("b", "2")]),
            vec!["name=The key", "metadata.a=1", "metadata.b=2"],
        ),
        (
            Some("K"),
            pairs(&[("b", "3")]),
            vec![
                "name=K",
                "metadata.b=3",
                "was_metadata.a=1",
                "was_metadata.b=2",
                "was_name=The key",
            ],
        ),
        (Some("L"), None, vec!["name=L", "metadata.b=3", "was_name=K"]),
    ] {
        let update = EntityUpdate { name: name.map(str::to_owned), metadata };
        version = f
            .store
            .update_entity(&entity("key"), version, &update, &f.change(at(SECOND)))
            .await
            .expect("an update")
            .version;
        assert_eq!(told(of_key()).await, expected);
    }
}

pub(super) async fn what_failed_is_not_recorded(f: Fixture) {
    let created = f.create("key").await;
    let wrong = [
        f.try_create("key", None, false).await.is_err(),
        f.rename("key", created.version + 1, "Another").await.is_err(),
        f.try_set(&Level::Entity(entity("key")), "rpm:1", Some(7)).await.is_err(),
        f.try_set(&Level::Entity(entity("key")), "", None).await.is_err(),
        f.try_create("child", Some("nobody"), true).await.is_err(),
    ];
    assert_eq!(wrong, [true; 5], "all of these fail");
    assert!(!f.unset(&Level::Entity(entity("key"))).await, "there are no limits to delete");
    assert_eq!(actions(&f, &of_key()).await, [AuditAction::EntityCreated], "only what happened");
    assert_eq!(actions(&f, &AuditSubject::Entity(entity("child"))).await, []);
}

pub(super) async fn the_hot_path_is_not_recorded(f: Fixture) {
    let rpm = limits("rpm:60/min");
    f.take(&ask("key", &rpm, &[("rpm", 60)]), at(0)).await.granted(&[0]);
    f.adjust(&correction("key", &rpm, &[("rpm", 5)]), at(0)).await;
    assert_eq!(
        actions(&f, &of_key()).await,
        [],
        "takes and adjustments are usage, not administration"
    );
}

pub(super) async fn events_are_listed_by_subject_and_newest_first(f: Fixture) {
    for (index, id) in ["key", "other", "key", "other", "key"].into_iter().enumerate() {
        let limits = LimitsChange {
            limits: limit_list("rpm:1"),
            on_unavailable: None,
            expected_version: None,
        };
        let change = f.change(at(i64::try_from(index).expect("small") * SECOND));
        f.store
            .set_limits(&Level::Entity(entity(id)), &limits, &change)
            .await
            .expect("limits can be set");
    }
    let times: Vec<_> = events(&f, &of_key()).await.iter().map(|event| event.at).collect();
    assert_eq!(times, [at(4 * SECOND), at(2 * SECOND), at(0)]);
}

pub(super) async fn the_log_of_a_namespace_has_every_subject(f: Fixture) {
    let (inside, other) = (f.tenant("tenant").await, f.tenant("other").await);
    other.create("foreign").await;
    let levels = [
        Level::System,
        Level::Resource(resource(GPT)),
        Level::Entity(entity("key")),
        Level::EntityResource(entity("b"), resource(GPT)),
    ];
    for (index, level) in levels.iter().cycle().take(9).enumerate() {
        let limits = LimitsChange {
            limits: limit_list("rpm:1"),
            on_unavailable: None,
            expected_version: None,
        };
        let change = inside.change(at(i64::try_from(index + 1).expect("small") * SECOND));
        inside.store.set_limits(level, &limits, &change).await.expect("limits can be set");
    }
    let told =
        |event: &AuditEvent| (event.at.since(at(0)).div_euclid(SECOND), event.subject.clone());
    // The registration of the namespace itself comes last.
    let expected: Vec<_> = (0..9)
        .rev()
        .map(|index| (index + 1, levels[usize::try_from(index).expect("small") % 4].subject()))
        .collect();
    for size in [1, 2, 3, 100] {
        let listed: Vec<_> = pages(size, async |page| inside.store.audit_log(&page).await)
            .await
            .into_iter()
            .flatten()
            .collect();
        let listed: Vec<_> = listed.iter().map(told).collect();
        assert_eq!(listed[..9], expected, "in pages of {size}");
        assert_eq!(
            listed[9..].iter().map(|(_, subject)| subject).collect::<Vec<_>>(),
            [&AuditSubject::System]
        );
    }
}

pub(super) async fn events_of_the_same_instant_are_all_kept(f: Fixture) {
    let mut version = f.create("key").await.version;
    for number in 0..5 {
        let update = EntityUpdate { name: Some(format!("Name {number}")), metadata: None };
        let change = f.change(at(SECOND));
        version = f
            .store
            .update_entity(&entity("key"), version, &update, &change)
            .await
            .expect("an update")
            .version;
    }
    let ids: Vec<_> = events(&f, &of_key()).await.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), 6, "one event each, read in pages of two");
    assert!(ids.is_sorted_by(|newer, older| newer > older), "newest first: {ids:?}");
}

pub(super) async fn events_are_ordered_by_their_ids(f: Fixture) {
    // Two administrators whose clocks differ: the log has one order all the same.
    for ms in [5_000, 2_000, 9_000, 1_000] {
        f.store
            .set_flag(&Level::Entity(entity("key")), Some(Flag::Disabled), &f.change(at(ms)))
            .await
            .expect("a level can be flagged");
    }
    let times: Vec<_> = events(&f, &of_key()).await.iter().map(|event| event.at).collect();
    assert_eq!(times, [9_000, 5_000, 2_000, 1_000].map(at), "newest first, by id");
}

pub(super) async fn the_life_of_a_namespace_is_recorded(f: Fixture) {
    let inside = f.tenant("tenant").await;
    f.store
        .delete_namespace(&namespace("tenant"), &f.change(at(1)))
        .await
        .expect("a namespace can be deleted");
    f.store
        .recover_namespace(&namespace_id("id-tenant"), &f.change(at(2)))
        .await
        .expect("a namespace can be recovered");
    use AuditAction::{NamespaceDeleted, NamespacePurged, NamespaceRecovered, NamespaceRegistered};
    let told = actions(&inside, &AuditSubject::System).await;
    assert_eq!(told, [NamespaceRecovered, NamespaceDeleted, NamespaceRegistered], "in its own log");
    f.store
        .delete_namespace(&namespace("tenant"), &f.change(at(3)))
        .await
        .expect("a namespace can be deleted");
    f.store
        .purge_namespace(&namespace_id("id-tenant"), &f.change(at(4)))
        .await
        .expect("a namespace can be purged");
    // Its own log is gone with it: the deed is told where the order was given.
    let told = events(&f, &AuditSubject::System).await;
    let purged =
        told.iter().find(|event| event.action == NamespacePurged).expect("the purge is recorded");
    let details = format!("{:?}", purged.details);
    assert!(details.contains("id-tenant"), "the details name what was purged, found {details}");
}
