//! What is particular to this backend; what every backend does is in the conformance suite.

use std::mem::size_of;

use zae_limiter_core::{
    AuditAction, AuditSubject, BucketState, ConfigStamp, EntityId, EventId, Flag, Limit,
    LimitSource, Milli, ResourceName, Take, TimeMs, UsageWindow,
};

use super::table::Entry;
use super::*;
use crate::{
    Adjusted, AuditQuery, BucketDelta, BucketStore, Change, ConfigStore, ConsumeOutcome,
    ConsumeRequest, Delta, HistoryStore, Level, LimitsChange, LimitsInForce, MemberTake,
    NamespaceStore, PageRequest, StoreError, StoreErrorKind, UsageQuery,
};

const HOUR: i64 = 3_600_000;

fn id(text: &str) -> EntityId {
    text.parse().expect("a valid id")
}

fn gpt() -> ResourceName {
    "gpt-4".parse().expect("a valid resource")
}

fn limits(text: &str, stamp: u64) -> LimitsInForce {
    let limits: Vec<Limit> =
        text.split(' ').map(|limit| limit.parse().expect("a valid limit")).collect();
    LimitsInForce::resolved(limits, LimitSource::System, ConfigStamp(stamp), 7)
}

fn change(entropy: u128) -> Change {
    Change { principal: None, reason: None, at: TimeMs(0), event: EventId::new(TimeMs(0), entropy) }
}

/// Takes tokens of the first limit of every member.
fn take(
    store: &MemoryStore,
    chain: &[(&str, &LimitsInForce)],
    tokens: u64,
    now: i64,
) -> Result<ConsumeOutcome, StoreError> {
    let resource = gpt();
    let entities: Vec<EntityId> = chain.iter().map(|(entity, _)| id(entity)).collect();
    let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
    let members: Vec<MemberTake<'_>> = entities
        .iter()
        .zip(chain)
        .map(|(entity, (_, limits))| MemberTake {
            entity,
            resource: &resource,
            limits,
            takes: &takes,
            absent: &[],
        })
        .collect();
    store.consume_now(&ConsumeRequest::new(&members, TimeMs(now)))
}

#[track_caller]
fn granted(outcome: Result<ConsumeOutcome, StoreError>) {
    assert!(
        matches!(outcome, Ok(ConsumeOutcome::Granted(_))),
        "expected a grant, found {outcome:?}"
    );
}

fn state(store: &MemoryStore, entity: &str) -> Option<BucketState> {
    let (entity, resource) = (id(entity), gpt());
    let key = store.key(&entity, &resource);
    store.shared.lock_of(&key).find(&key).map(|entry| entry.state.clone())
}

/// glibc rounds a block up to 16 bytes, 8 of them its own. With the 28 bytes of the entity's text
/// (a block of 48) and at most 20 bytes of table for each bucket, two limits come to 308 bytes:
/// below the 320 promised.
#[test]
fn a_bucket_of_two_limits_is_one_small_block() {
    assert!(
        size_of::<Entry>() <= 232,
        "an entry of {} bytes takes a larger block",
        size_of::<Entry>()
    );
    let two = BucketState::full(&limits("rpm:60 tpm:1000", 0).limits, ConfigStamp(0), TimeMs(0));
    assert_eq!(
        size_of_val(two.all_limits()),
        144,
        "two limits are stored inline, in the entry itself"
    );
}

#[test]
fn buckets_of_one_resource_share_its_name() {
    let store = MemoryStore::new();
    let rpm = limits("rpm:60/min", 0);
    // Every take parses the name anew.
    granted(take(&store, &[("a", &rpm)], 1, 0));
    granted(take(&store, &[("b", &rpm)], 1, 0));
    let mut scopes = Vec::new();
    store.shared.each_shard(|shard| {
        scopes.extend(shard.table.iter().map(|entry| Arc::clone(&entry.scope)))
    });
    assert!(scopes.len() == 2 && Arc::ptr_eq(&scopes[0], &scopes[1]));
}

/// Two members of a chain in one shard: eight names in 64 shards collide more often than not.
#[test]
fn members_that_share_a_shard_are_all_charged() {
    let rpm = limits("rpm:60/min", 0);
    for round in 0..50 {
        let store = MemoryStore::new();
        let names: Vec<String> = (0..8).map(|member| format!("e{round}-{member}")).collect();
        let chain: Vec<(&str, &LimitsInForce)> =
            names.iter().map(|name| (name.as_str(), &rpm)).collect();
        granted(take(&store, &chain, 10, 0));
        granted(take(&store, &chain, 10, 0));
        for name in &names {
            assert_eq!(
                state(&store, name).expect("a bucket").limits()[0].balance,
                Milli(40_000),
                "{name}"
            );
        }
    }
}

/// Two chains that lock in one order cannot wait for each other. `tests/memory_races.rs` tries;
/// this one proves.
#[test]
fn shards_are_locked_once_each_and_in_ascending_order() {
    let store = MemoryStore::new();
    let resource = gpt();
    for round in 0..200 {
        let entities: Vec<EntityId> =
            (0..8).map(|member| id(&format!("e{round}-{member}"))).collect();
        let keys: Vec<_> = entities.iter().map(|entity| store.key(entity, &resource)).collect();
        let locked = store.shared.lock_all(&keys);
        let indexes: Vec<usize> = locked.guards.iter().map(|(index, _)| *index).collect();
        assert!(indexes.is_sorted_by(|one, next| one < next), "{indexes:?}");
        assert!(keys.iter().all(|key| indexes.contains(&key.shard())));
    }
}

#[test]
fn a_sync_that_fails_leaves_every_bucket_as_it_was() {
    let store = MemoryStore::new();
    let sixteen: Vec<String> = (0..16).map(|number| format!("l{number}:5/min")).collect();
    let (sixteen, rpm) = (limits(&sixteen.join(" "), 0), limits("rpm:60/min", 0));
    granted(take(&store, &[("crowded", &sixteen)], 1, 0));
    granted(take(&store, &[("parent", &rpm)], 1, 0));
    // More limits than a bucket may have, however many of the old ones could be forgotten.
    for limit in 1..16 {
        let deltas = [Delta { limit, amount: Milli(1) }];
        let delta = BucketDelta {
            entity: &id("crowded"),
            resource: &gpt(),
            limits: &sixteen,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        assert_eq!(store.adjust_one(&delta, TimeMs(0)).expect("never refused"), Adjusted::Applied);
    }
    let before = (state(&store, "crowded"), state(&store, "parent"));
    let seventeen: Vec<String> = (0..17).map(|number| format!("other{number}:1/min")).collect();
    let (other, faster) = (limits(&seventeen.join(" "), 1), limits("rpm:600/min", 1));
    let alone = take(&store, &[("crowded", &other)], 1, 10).expect_err("a seventeenth limit");
    let chained = take(&store, &[("parent", &faster), ("crowded", &other)], 1, 10)
        .expect_err("a seventeenth limit");
    assert_eq!((alone.kind(), chained.kind()), (StoreErrorKind::Invalid, StoreErrorKind::Invalid));
    assert_eq!((state(&store, "crowded"), state(&store, "parent")), before);
}

#[test]
fn changed_limits_stay_although_the_chain_is_refused() {
    let store = MemoryStore::new();
    let (old, new) = (limits("rpm:60/min", 1), limits("rpm:600/min", 2));
    granted(take(&store, &[("child", &old), ("parent", &old)], 60, 0));
    let refused = take(&store, &[("child", &new), ("parent", &old)], 1, 0);
    assert!(matches!(refused, Ok(ConsumeOutcome::Refused(_))), "{refused:?}");
    assert!(
        state(&store, "child").expect("a bucket").matches(&new.limits),
        "the new rate counts from now on"
    );
    assert!(state(&store, "parent").expect("a bucket").matches(&old.limits));
}

#[test]
fn a_chain_that_can_not_be_decided_changes_nothing() {
    let store = MemoryStore::new();
    let (old, new) = (limits("rpm:60/min", 1), limits("rpm:30/min", 2));
    granted(take(&store, &[("child", &old)], 1, 0));
    granted(take(&store, &[("parent", &new)], 1, 0));
    let before = (state(&store, "child"), state(&store, "parent"));
    assert_eq!(
        take(&store, &[("child", &new), ("parent", &old)], 1, 0).expect("an answer"),
        ConsumeOutcome::Stale { member: 1 }
    );
    assert_eq!(
        take(&store, &[("new", &new), ("parent", &old)], 1, 0).expect("an answer"),
        ConsumeOutcome::Stale { member: 1 }
    );
    assert_eq!((state(&store, "child"), state(&store, "parent")), before);
    assert_eq!(state(&store, "new"), None);
}

#[tokio::test]
async fn a_sweep_goes_on_where_it_stopped() {
    let store = MemoryStore::new();
    let rpm = limits("rpm:60/min", 0);
    for number in 0..200 {
        granted(take(&store, &[(&format!("e{number}"), &rpm)], 1, 0));
    }
    let mut swept = Swept::default();
    let mut calls = 0;
    while !swept.complete {
        swept = store.sweep(TimeMs(HOUR), 10).await.expect("a sweep");
        calls += 1;
        assert!(calls < 10, "65 steps in tens are seven calls");
    }
    assert_eq!(calls, 7);
    let left =
        store.resource_buckets(&gpt(), &PageRequest::default()).await.expect("a listing").items;
    assert_eq!(left, []);
    assert!(!store.sweep(TimeMs(HOUR), 0).await.expect("a sweep").complete, "no steps, no sweep");
    // With enough steps one call covers everything, wherever the one before has stopped.
    store.sweep(TimeMs(HOUR), 10).await.expect("a sweep");
    for number in 0..200 {
        granted(take(&store, &[(&format!("e{number}"), &rpm)], 1, HOUR));
    }
    let all = store.sweep(TimeMs(2 * HOUR), u32::MAX).await.expect("a sweep");
    assert_eq!((all.buckets, all.complete), (200, true));
}

#[tokio::test]
async fn history_is_bounded_without_a_sweep() {
    let options =
        MemoryOptions { usage_rows_max: 0, audit_events_max: 3, ..MemoryOptions::default() };
    let store = MemoryStore::with_options(options);
    let rpm = limits("rpm:60/min", 0);
    for hour in 0..5 {
        granted(take(&store, &[("a", &rpm)], 1, hour * HOUR));
    }
    let page = PageRequest::default();
    let query = UsageQuery {
        entity: Some(id("a")),
        resource: None,
        window: UsageWindow::Hourly,
        from: None,
        until: None,
        page,
    };
    let usage = store.usage(&query).await.expect("a query").items;
    let starts: Vec<i64> = usage.iter().map(|snapshot| snapshot.start.0).collect();
    assert_eq!(
        starts,
        [3 * HOUR, 4 * HOUR],
        "one hour of history for each shard, and the open one"
    );
    for version in 0..5 {
        let limits = LimitsChange {
            limits: rpm.limits.to_vec(),
            on_unavailable: None,
            expected_version: Some(version),
        };
        store
            .set_limits(&Level::System, &limits, &change(version.into()))
            .await
            .expect("limits can be set");
    }
    let query = AuditQuery { subject: AuditSubject::System, page: PageRequest::default() };
    let ids: Vec<EventId> = store
        .audit_events(&query)
        .await
        .expect("a query")
        .items
        .iter()
        .map(|event| event.id)
        .collect();
    assert_eq!(ids, [change(4).event, change(3).event, change(2).event], "the newest three");
}

#[tokio::test]
async fn a_version_never_comes_back() {
    let store = MemoryStore::new();
    let new = |expected_version| LimitsChange {
        limits: limits("rpm:60/min", 0).limits.to_vec(),
        on_unavailable: None,
        expected_version,
    };
    let level = Level::Entity(id("a"));
    assert_eq!(store.set_limits(&level, &new(Some(0)), &change(1)).await.expect("a new level"), 1);
    assert!(store.delete_limits(&level, &change(2)).await.expect("limits can be deleted"));
    let version =
        store.set_limits(&level, &new(Some(0)), &change(3)).await.expect("it does not exist");
    assert!(version > 1);
    let lost = store
        .set_limits(&level, &new(Some(1)), &change(4))
        .await
        .expect_err("made from what was deleted");
    assert_eq!(lost.kind(), StoreErrorKind::Conflict);
}

#[tokio::test]
async fn two_events_with_one_id_are_both_kept() {
    let store = MemoryStore::new();
    let level = Level::Entity(id("a"));
    for flag in [Some(Flag::Disabled), None] {
        store.set_flag(&level, flag, &change(1)).await.expect("an entity can be disabled");
    }
    let first = AuditQuery { subject: AuditSubject::Entity(id("a")), page: PageRequest::first(1) };
    let one = store.audit_events(&first).await.expect("a query");
    let told = [("disabled", "inherited"), ("was", "true")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(one.items[0].details, told, "the newest first");
    let next = AuditQuery { page: PageRequest::after(1, one.next.expect("another page")), ..first };
    let two = store.audit_events(&next).await.expect("a query");
    assert_eq!((two.items[0].details[0].1.as_str(), two.next), ("true", None));
}

#[tokio::test]
async fn old_handles_of_a_namespace_that_is_gone_bring_nothing_back() {
    let store = MemoryStore::new();
    let rpm = limits("rpm:60/min", 0);
    let default = store.current_namespace();
    granted(take(&store, &[("a", &rpm)], 60, 0));
    assert!(
        store.delete_namespace(&default, &change(1)).await.expect("a namespace can be deleted")
    );
    let error = store.resolve(&[]).await.expect_err("it is not active");
    assert_eq!(
        (error.kind(), error.message().contains("of this handle was deleted")),
        (StoreErrorKind::NotFound, true)
    );
    // Deleted is not purged: what is there may come back, and goes on being counted meanwhile.
    assert!(matches!(take(&store, &[("a", &rpm)], 1, 0), Ok(ConsumeOutcome::Refused(_))));

    let id_of_default = "default".parse().expect("a valid id");
    // One bucket, two audit events.
    assert!(
        store.purge_namespace(&id_of_default, &change(2)).await.expect("it was deleted").records
            >= 2
    );
    assert_eq!(
        take(&store, &[("a", &rpm)], 1, 0).expect_err("it is gone").kind(),
        StoreErrorKind::NotFound
    );
    let deltas = [Delta { limit: 0, amount: Milli(1_000) }];
    let charge = BucketDelta {
        entity: &id("a"),
        resource: &gpt(),
        limits: &rpm,
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    assert_eq!(
        store.adjust_one(&charge, TimeMs(0)).expect_err("it is gone").kind(),
        StoreErrorKind::NotFound
    );
    let query = AuditQuery { subject: AuditSubject::System, page: PageRequest::default() };
    assert_eq!(store.audit_events(&query).await.expect("a query").items, []);

    // The name is free, the id is not, and the old handle does not see the new tenant.
    let error = store
        .register_namespace(&default, &id_of_default, &change(3))
        .await
        .expect_err("ids are never used again");
    assert_eq!(error.kind(), StoreErrorKind::AlreadyExists);
    store
        .register_namespace(&default, &"other".parse().expect("an id"), &change(4))
        .await
        .expect("the name is free");
    assert_eq!(
        take(&store, &[("a", &rpm)], 1, 0).expect_err("still gone").kind(),
        StoreErrorKind::NotFound
    );
}

#[tokio::test]
async fn a_purge_is_recorded_where_it_was_ordered() {
    let store = MemoryStore::new();
    let (name, tenant) = ("tenant".parse().expect("a name"), "t1".parse().expect("an id"));
    store.register_namespace(&name, &tenant, &change(1)).await.expect("a new name");
    store.delete_namespace(&name, &change(2)).await.expect("it is active");
    store.purge_namespace(&tenant, &change(3)).await.expect("it was deleted");
    let query = AuditQuery { subject: AuditSubject::System, page: PageRequest::default() };
    let events = store.audit_events(&query).await.expect("a query").items;
    let found: Vec<_> =
        events.iter().map(|event| (event.action, event.details[1].1.as_str())).collect();
    assert_eq!(found, [(AuditAction::NamespacePurged, "t1")]);
}
