//! Items of the Python package 0.17 are read or refused, and ours come back as they were.

use proptest::prelude::*;
use zae_limiter_core::{AuditAction, AuditSubject, EventId, Flag, Limit, UsageWindow};
use zae_limiter_store::{Change, LevelConfig, OnUnavailable};

use super::*;
use crate::table::{Condition, Update};

/// An item from a short text: `PK=ns/SYSTEM# n:l_rpm_cp=60 b:cascade=true 0:parent_id` (text,
/// number, flag, null).
fn item(text_form: &str) -> Item {
    let mut item = Item::new();
    for word in text_form.split_whitespace() {
        let (name, value) = match word.split_at_checked(2) {
            Some(("n:", rest)) => rest
                .split_once('=')
                .map(|(name, digits)| (name, AttributeValue::N(digits.to_owned()))),
            Some(("b:", rest)) => rest
                .split_once('=')
                .map(|(name, flag)| (name, AttributeValue::Bool(flag == "true"))),
            Some(("0:", name)) => Some((name, AttributeValue::Null(true))),
            _ => word.split_once('=').map(|(name, value)| (name, text(value))),
        }
        .expect("a valid word");
        item.insert(name.to_owned(), value);
    }
    item
}

fn map<const N: usize>(pairs: [(&str, AttributeValue); N]) -> AttributeValue {
    AttributeValue::M(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

const CREATED: &str = "2026-01-01T10:00:00Z";
const AT: TimeMs = TimeMs(1_767_261_600_000);

#[test]
fn golden_entities_are_read() {
    let mut key = item(
        "PK=ns/ENTITY#key SK=#META b:cascade=true created_at=2026-01-01T10:00:00Z entity_id=key name=key parent_id=org \
         n:pgen=1767261600000 pinc=8cd0a77404a55a34 GSI1PK=ns/PARENT#org GSI1SK=CHILD#key GSI4PK=ns GSI4SK=ns/ENTITY#key",
    );
    key.insert(
        "metadata".to_owned(),
        map([("tier", text("gold")), ("seats", number(5)), ("beta", AttributeValue::Bool(true))]),
    );
    let read = entity(&key).expect("a golden item");
    assert_eq!(
        (read.id.as_str(), read.name.as_str(), read.cascade, read.version),
        ("key", "key", true, 1)
    );
    assert_eq!((read.parent.as_ref().map(EntityId::as_str), read.created_at), (Some("org"), AT));
    let metadata: Vec<_> =
        read.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(
        metadata,
        [("beta", "true"), ("seats", "5"), ("tier", "gold")],
        "other types are shown as text"
    );

    let org = item(
        "PK=ns/ENTITY#org SK=#META b:cascade=false created_at=2026-01-01T10:00:00Z entity_id=org name=org 0:parent_id",
    );
    assert_eq!(entity(&org).expect("a golden item").parent, None);
    let newline = Item::from([
        (attr::ENTITY_ID.to_owned(), text("key\n")),
        (attr::PK.to_owned(), text("ns/ENTITY#key\n")),
        (attr::SK.to_owned(), text("#META")),
    ]);
    let error = entity(&newline).expect_err("not a name of ours");
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(
        error.message().contains("entity_id") && error.message().contains("ns/ENTITY#key\\n"),
        "{error}"
    );
}

#[test]
fn what_an_entity_carries_is_what_the_python_product_needs() {
    let new = Entity {
        id: "key".parse().expect("an id"),
        name: "Key".to_owned(),
        parent: Some("org".parse().expect("an id")),
        cascade: true,
        metadata: BTreeMap::from([("tier".to_owned(), "gold".to_owned())]),
        created_at: AT,
        version: 1,
    };
    let stored = entity_item("ns", &new, "8cd0a77404a55a34", &[]);
    let mut expected = item(
        "PK=ns/ENTITY#key SK=#META b:cascade=true created_at=2026-01-01T10:00:00Z entity_id=key name=Key parent_id=org n:version=1 \
         n:pgen=1767261600000 pinc=8cd0a77404a55a34 GSI1PK=ns/PARENT#org GSI1SK=CHILD#key GSI4PK=ns GSI4SK=ns/ENTITY#key",
    );
    expected.insert("metadata".to_owned(), map([("tier", text("gold"))]));
    assert_eq!(stored, expected);
    let alone = entity_item("ns", &Entity { parent: None, ..new }, "x", &[]);
    assert_eq!(alone.get(attr::PARENT_ID), Some(&nothing()));
    assert!(!alone.contains_key(attr::GSI1PK));
}

#[test]
fn golden_configurations_are_read() {
    let system = item(
        "PK=ns/SYSTEM# SK=#CONFIG n:config_version=1 n:l_rpm_cp=60 n:l_rpm_ra=60 n:l_rpm_rp=60 on_unavailable=allow GSI4PK=ns GSI4SK=ns/SYSTEM#",
    );
    let limits = [Limit::per_minute("rpm", 60).expect("a limit")];
    let expected = LevelConfig {
        limits: limits.into(),
        flag: None,
        on_unavailable: Some(OnUnavailable::Allow),
        cascade: None,
        version: 1,
    };
    assert_eq!(config::level_config(&system).expect("a golden item"), expected);

    let stub = item("PK=ns/RESOURCE#old-model SK=#CONFIG b:disabled=true resource=old-model");
    let expected = LevelConfig {
        limits: [].into(),
        flag: Some(Flag::Disabled),
        on_unavailable: None,
        cascade: None,
        version: 1,
    };
    assert_eq!(config::level_config(&stub).expect("a golden item"), expected);
    assert!(
        !config::has_limits(&stub)
            && config::says_nothing_without(&stub, true)
            && !config::says_nothing_without(&stub, false)
    );

    // A name with an underscore, a burst, a number with a needless fraction, and a soft limit that
    // is none.
    let odd = item(
        "PK=p SK=s n:l_a_b.c-d_cp=15 n:l_a_b.c-d_ra=10.0 n:l_a_b.c-d_rp=1 b:l_a_b.c-d_soft=false b:cascade=true",
    );
    assert_eq!(config::limits(&odd).expect("limits")[0].to_string(), "a_b.c-d:10/sec:15");
    assert_eq!(config::cascade(&odd).expect("a flag"), Some(true));
    assert!(!config::says_nothing_without(&odd, false), "the cascade of another writer stays");
}

/// What cannot be honoured is refused, with the attribute and the item in the message.
#[test]
fn golden_configurations_that_can_not_be_honoured_are_refused() {
    let check = |attributes: &str, kind: StoreErrorKind, named: &str| {
        let stored = item(&format!("PK=ns/RESOURCE#gpt-4 SK=#CONFIG {attributes}"));
        let error = config::level_config(&stored).expect_err(attributes);
        assert_eq!(error.kind(), kind, "{attributes}: {error}");
        assert!(error.message().contains(&format!("\"{named}\"")), "{attributes}: {error}");
        assert!(error.message().contains("ns/RESOURCE#gpt-4 #CONFIG"), "{attributes}: {error}");
    };
    use StoreErrorKind::{Corrupt, Incompatible};
    let rpm = "n:l_rpm_cp=150 n:l_rpm_ra=100 n:l_rpm_rp=60";
    check(
        &format!("{rpm} l_rpm_sched=1m0-59h9-17w1-5s500 sched_tz=America/New_York"),
        Incompatible,
        "l_rpm_sched",
    );
    check(&format!("{rpm} l_rpm_rsched=1m0h0"), Incompatible, "l_rpm_rsched");
    check(&format!("{rpm} b:l_rpm_soft=true"), Incompatible, "l_rpm_soft");
    check(&format!("{rpm} n:l_rpm_new=1"), Incompatible, "l_rpm_new");
    check(&format!("{rpm} disabled=bypass"), Incompatible, "disabled");
    check(&format!("{rpm} on_unavailable=maybe"), Incompatible, "on_unavailable");
    check("n:l_tpd_cp=1000000 n:l_tpd_ra=0 n:l_tpd_rp=1", Incompatible, "l_tpd_ra");
    check("n:w_msg_cp=40", Incompatible, "w_msg_cp");
    check("n:l_ttl_cp=1 n:l_ttl_ra=1 n:l_ttl_rp=1", Incompatible, "l_ttl_cp");
    check("n:l_rpm_cp=1.5 n:l_rpm_ra=1 n:l_rpm_rp=1", Incompatible, "l_rpm_cp");
    check("n:l_rpm_cp=9999999999999999 n:l_rpm_ra=1 n:l_rpm_rp=1", Incompatible, "l_rpm_cp");
    check("n:l_rpm_cp=1 n:l_rpm_ra=1", Corrupt, "l_rpm_rp");
    check("n:l_rpm_cp=1 n:l_rpm_ra=1 l_rpm_rp=60", Corrupt, "l_rpm_rp");
}

#[test]
fn golden_records_of_namespaces_are_read() {
    let active = item(
        "PK=_/SYSTEM# SK=#NAMESPACE#default namespace_id=a1B2c3D4e5F namespace_name=default status=active created_at=2026-01-01T10:00:00Z \
         GSI4PK=_ GSI4SK=_/SYSTEM#",
    );
    let read = namespace(&active).expect("a golden item");
    assert_eq!(
        (read.id.as_str(), read.name.as_str(), read.status, read.created_at),
        ("a1B2c3D4e5F", "default", NamespaceStatus::Active, AT)
    );
    let written = namespace_item(&keys::namespace_by_name("default"), &read);
    assert_eq!(written, active);
    let mut deleted = active.clone();
    deleted.insert("status".to_owned(), text("deleted"));
    deleted.insert("deleted_at".to_owned(), text("2026-01-02T00:00:00Z"));
    assert_eq!(namespace(&deleted).expect("a record").deleted_at, Some(AT.plus_ms(14 * 3_600_000)));
    deleted.insert("status".to_owned(), text("frozen"));
    assert_eq!(
        namespace(&deleted).expect_err("an unknown status").kind(),
        StoreErrorKind::Incompatible
    );
}

fn python_event(action: &str, details: AttributeValue) -> Item {
    let mut stored = item(&format!(
        "PK=ns/AUDIT#key SK=#AUDIT#01ARYZ6S410000000000000000 entity_id=key event_id=01ARYZ6S410000000000000000 timestamp={CREATED} \
         action={action} principal=arn:aws:sts::1:assumed-role/ops/me resource=gpt-4 n:ttl=1775037600"
    ));
    stored.insert("details".to_owned(), details);
    stored
}

fn check_event(action: &str, details: AttributeValue, expected: (AuditAction, &[(&str, &str)])) {
    let subject = AuditSubject::Entity("key".parse().expect("an id"));
    let event = audit_event(&python_event(action, details), &subject).expect("an event");
    let told: Vec<_> =
        event.details.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!((event.action, told.as_slice()), expected);
    assert_eq!((event.at, event.resource.as_ref().map(|name| name.as_str())), (AT, Some("gpt-4")));
    assert!(event.principal.is_some());
}

#[test]
fn golden_audit_events_are_read() {
    use AuditAction::{
        BucketReset, BucketToppedUp, EntityCreated, EntityParentChanged, FlagsSet, LimitsSet, Other,
    };
    let limit = map([
        ("name", text("rpm")),
        ("capacity", number(150)),
        ("refill_amount", number(100)),
        ("refill_period_seconds", number(60)),
    ]);
    check_event(
        "limits_set",
        map([("limits", AttributeValue::L(vec![limit.clone()]))]),
        (LimitsSet, &[("limit", "rpm:100/min:150")]),
    );
    let AttributeValue::M(mut scheduled) = limit else { unreachable!("a map") };
    scheduled.insert(
        "schedule".to_owned(),
        AttributeValue::L(vec![map([("scale", AttributeValue::N("0.5".to_owned()))])]),
    );
    let shown = "{capacity: 150, name: rpm, refill_amount: 100, refill_period_seconds: 60, schedule: [{scale: 0.5}]}";
    check_event(
        "limits_set",
        map([("limits", AttributeValue::L(vec![AttributeValue::M(scheduled)]))]),
        (LimitsSet, &[("limit", shown)]),
    );
    let flags = [("cascade", AttributeValue::Bool(true)), ("buckets_stamped", number(0))];
    check_event(
        "limits_set",
        map(flags),
        (FlagsSet, &[("cascade", "true"), ("buckets_stamped", "0")]),
    );
    check_event(
        "limits_set",
        map([("disabled", text("bypass"))]),
        (FlagsSet, &[("disabled", "bypass")]),
    );
    check_event(
        "limits_set",
        map([("disabled", nothing())]),
        (FlagsSet, &[("disabled", "inherited")]),
    );
    let amounts = map([("amounts", map([("msg", number(10))])), ("shards", number(1))]);
    check_event(
        "bucket_topped_up",
        amounts.clone(),
        (BucketToppedUp, &[("amounts", "{msg: 10}"), ("shards", "1")]),
    );
    check_event(
        "bucket_reset",
        amounts,
        (BucketReset, &[("amounts", "{msg: 10}"), ("shards", "1")]),
    );
    check_event(
        "entity_parent_changed",
        map([("new_parent", text("org"))]),
        (EntityParentChanged, &[("new_parent", "org")]),
    );
    check_event(
        "entity_merged",
        map([("with", text("x"))]),
        (Other, &[("action", "entity_merged"), ("with", "x")]),
    );
    let created = [
        ("name", text("Key")),
        ("parent_id", text("org")),
        ("cascade", AttributeValue::Bool(true)),
        ("metadata", map([("tier", text("gold"))])),
    ];
    let told = [("name", "Key"), ("parent", "org"), ("cascade", "true"), ("metadata.tier", "gold")];
    check_event("entity_created", map(created), (EntityCreated, &told));
}

#[test]
fn names_in_events_that_are_not_ours_are_told_as_text() {
    let mut stored = python_event("limits_set", map([]));
    stored.insert("principal".to_owned(), text("some one"));
    stored.insert("resource".to_owned(), text("ttl"));
    let event = audit_event(&stored, &AuditSubject::System).expect("an event");
    assert_eq!((event.principal, event.resource), (None, None));
    assert_eq!(
        event.details,
        [
            ("principal".to_owned(), "some one".to_owned()),
            ("resource".to_owned(), "ttl".to_owned())
        ]
    );
    stored.insert("event_id".to_owned(), text("nothing"));
    assert_eq!(
        audit_event(&stored, &AuditSubject::System).expect_err("no id").kind(),
        StoreErrorKind::Incompatible
    );
}

#[test]
fn our_events_carry_what_the_python_product_needs() {
    let change = Change { principal: None, reason: None, at: AT, event: EventId::new(AT, 7) };
    let event = Event {
        subject: AuditSubject::Entity("key".parse().expect("an id")),
        action: AuditAction::FlagsSet,
        resource: Some("gpt-4"),
        details: details::flag(Some(Flag::Disabled), Some(Flag::Enabled)),
        version: None,
    };
    let stored = audit_item("ns", &change, event, 90 * 86_400);
    let id = change.event.to_string();
    let mut expected = item(&format!(
        "PK=ns/AUDIT#key SK=#AUDIT#{id} GSI4PK=ns GSI4SK=ns/AUDIT#key entity_id=key event_id={id} timestamp={CREATED} action=limits_set \
         0:principal resource=gpt-4 n:ttl=1775037600"
    ));
    expected.insert(
        "details".to_owned(),
        map([("disabled", AttributeValue::Bool(true)), ("was", AttributeValue::Bool(false))]),
    );
    assert_eq!(stored, expected);
    let read = audit_event(&stored, &AuditSubject::Entity("key".parse().expect("an id")))
        .expect("an event");
    assert_eq!((read.id, read.at, read.action), (change.event, AT, AuditAction::FlagsSet));
}

#[test]
fn usage_of_both_products_is_read() {
    let shape = shape_of("2026-01-01T00:00:00Z").expect("a window");
    let python = item(
        "PK=ns/ENTITY#key SK=#USAGE#gpt-4#2026-01-01T00:00:00Z entity_id=key resource=gpt-4 window=daily window_start=2026-01-01T00:00:00Z \
         n:tpm=300 n:rpm=-2 n:tpm#od=4 n:total_events=3 n:ttl=1775037600 GSI4PK=ns",
    );
    let read = usage_item(&python, shape).expect("a snapshot");
    assert_eq!((read.window, read.events), (UsageWindow::Daily, 3));
    let counters = |read: &BTreeMap<zae_limiter_core::LimitName, zae_limiter_core::Milli>| {
        read.iter().map(|(name, used)| format!("{name} {}", used.0)).collect::<Vec<_>>()
    };
    assert_eq!(
        counters(&read.counters),
        ["rpm -2000", "tpm 300000"],
        "overdrafts, events and expiry are no limits"
    );
    let ours = item(
        "PK=p SK=s entity_id=key resource=gpt-4 n:tpm=300 n:tpm#m=300250 n:u_ttl=1 n:mark#0=5 n:_x=1",
    );
    let read = usage_item(&ours, shape_of("2026-01").expect("a window")).expect("a snapshot");
    assert_eq!(
        (read.window, counters(&read.counters)),
        (UsageWindow::Monthly, vec!["tpm 300250".to_owned(), "u_ttl 1000".to_owned()])
    );
}

fn any_limits() -> impl Strategy<Value = Vec<Limit>> {
    let names = proptest::sample::subsequence(
        vec!["rpm", "tpm", "a_b", "a", "Z.9", "l_x_cp", "w_", "lo", "disabled", "cascade"],
        0..=8,
    );
    let numbers =
        (1..=1_000_000_000_000_000_u64, 1..=1_000_000_000_000_000_u64, 1..=1_000_000_000_u64);
    (names.prop_shuffle(), proptest::collection::vec(numbers, 8)).prop_map(|(names, numbers)| {
        let limit = |(name, (capacity, amount, period)): (&str, (u64, u64, u64))| {
            Limit::custom(name, capacity, amount, period)
        };
        names.into_iter().zip(numbers).map(|pair| limit(pair).expect("a valid limit")).collect()
    })
}

/// What an update makes of an item.
fn applied(mut item: Item, actions: Vec<Action>) -> Item {
    for action in actions {
        match action {
            Action::Set(name, value) => item.insert(name.into(), value),
            Action::SetIfAbsent(name, value) => {
                Some(item.entry(name.into()).or_insert(value).clone())
            }
            Action::Remove(name) => item.remove(name.as_str()),
            other => unreachable!("not part of a configuration: {other:?}"),
        };
    }
    item
}

proptest! {
    #[test]
    fn limits_come_back_in_their_order(before in any_limits(), after in any_limits()) {
        let first = applied(item("PK=p SK=s b:disabled=true b:cascade=false kept=yes"), config::limit_actions(None, &before));
        prop_assert_eq!(config::limits(&first).expect("limits"), before);
        let actions = config::limit_actions(Some(&first), &after);
        let update = Update { key: keys::system_config("ns"), actions, conditions: Vec::<Condition>::new() };
        let second = applied(first, update.actions);
        prop_assert_eq!(config::limits(&second).expect("limits"), after.clone());
        prop_assert_eq!(config::has_limits(&second), !after.is_empty());
        for kept in ["disabled", "cascade", "kept"] {
            prop_assert!(second.contains_key(kept), "{}", kept);
        }
        if after.is_empty() {
            prop_assert_eq!(second.len(), 5, "nothing of the limits is left: {:?}", second);
        }
    }

    #[test]
    fn entities_come_back(
        name in "[^\\p{Cc}]{1,40}",
        parent in proptest::option::of("[a-z][a-z0-9@:._-]{0,20}"),
        cascade in any::<bool>(),
        metadata in proptest::collection::btree_map("[^\\p{Cc}]{1,8}", ".{0,20}", 0..5),
        at in 0..4_102_444_800_000_i64,
        version in 1..u64::from(u32::MAX),
    ) {
        let parent = parent.map(|parent| parent.parse().expect("an id"));
        let new = Entity { id: "key@1".parse().expect("an id"), name, parent, cascade, metadata, created_at: TimeMs(at), version };
        let stored = entity_item("ns", &new, "0123456789abcdef", &[]);
        prop_assert_eq!(key_of(&stored), Some(keys::entity("ns", &new.id)));
        prop_assert_eq!(entity(&stored).expect("ours"), new);
    }
}
