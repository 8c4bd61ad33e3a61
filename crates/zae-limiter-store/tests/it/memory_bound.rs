//! The bound of the in-memory store: what makes room for a new bucket, and what never does.

use std::sync::atomic::{AtomicUsize, Ordering};

use zae_limiter_core::{
    EntityId, EventId, Limit, LimitSource, Milli, ResourceName, Take, TimeMs, UsageWindow,
};
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Change, ConfigStore, ConsumeOutcome, ConsumeRequest, Delta,
    HistoryStore, LimitsInForce, MemberTake, MemoryOptions, MemoryStore, NewEntity, PageRequest,
    Store, StoreError, StoreErrorKind, UsageQuery,
};

const MINUTE: i64 = 60_000;

fn bounded(buckets_max: usize) -> MemoryStore {
    MemoryStore::with_options(MemoryOptions { buckets_max, ..MemoryOptions::default() })
}

fn id(text: &str) -> EntityId {
    text.parse().expect("a valid id")
}

fn gpt() -> ResourceName {
    "gpt-4".parse().expect("a valid resource")
}

/// Sixty tokens, one a second.
fn rpm() -> LimitsInForce {
    LimitsInForce::new([Limit::per_minute("rpm", 60).expect("a valid limit")], LimitSource::System)
}

/// Takes the same amount from every entity of the chain.
fn take(
    store: &MemoryStore,
    chain: &[&str],
    tokens: u64,
    ms: i64,
) -> Result<ConsumeOutcome, StoreError> {
    let (resource, limits) = (gpt(), rpm());
    let entities: Vec<EntityId> = chain.iter().map(|entity| id(entity)).collect();
    let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
    let members: Vec<MemberTake<'_>> = entities
        .iter()
        .map(|entity| MemberTake {
            entity,
            resource: &resource,
            limits: &limits,
            takes: &takes,
            absent: &[],
        })
        .collect();
    store.consume_now(&ConsumeRequest::new(&members, TimeMs(ms)))
}

#[track_caller]
fn granted(outcome: Result<ConsumeOutcome, StoreError>) {
    assert!(
        matches!(outcome, Ok(ConsumeOutcome::Granted(_))),
        "expected a grant, found {outcome:?}"
    );
}

#[track_caller]
fn no_room(outcome: Result<ConsumeOutcome, StoreError>) {
    let error = outcome.expect_err("there is no room");
    assert_eq!(error.kind(), StoreErrorKind::Capacity, "{error}");
    assert!(
        error.message().contains("raise MemoryOptions::buckets_max"),
        "the message says what to do: {error}"
    );
}

async fn charge(
    store: &MemoryStore,
    entity: &str,
    tokens: i64,
    ms: i64,
) -> Result<Adjusted, StoreError> {
    let deltas = [Delta { limit: 0, amount: Milli(tokens * 1_000) }];
    let delta = BucketDelta {
        entity: &id(entity),
        resource: &gpt(),
        limits: &rpm(),
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    store.adjust(&[delta], TimeMs(ms)).await.pop().expect("one answer per delta")
}

/// Entities with a bucket, and the balance it is stored with.
async fn buckets(store: &MemoryStore) -> Vec<(String, i64)> {
    let page = store.resource_buckets(&gpt(), &PageRequest::first(1_000)).await.expect("a listing");
    page.items
        .iter()
        .map(|view| (view.entity.to_string(), view.state.limits()[0].balance.0))
        .collect()
}

fn listed(pairs: &[(&str, i64)]) -> Vec<(String, i64)> {
    pairs.iter().map(|(entity, milli)| ((*entity).to_owned(), *milli)).collect()
}

#[tokio::test]
async fn a_full_bucket_makes_room_and_no_other_does() {
    let store = bounded(3);
    granted(take(&store, &["drained"], 60, 0));
    granted(take(&store, &["full"], 0, 0));
    granted(take(&store, &["touched"], 1, 0));
    granted(take(&store, &["new"], 5, 0));
    assert_eq!(
        buckets(&store).await,
        listed(&[("drained", 0), ("new", 55_000), ("touched", 59_000)])
    );
    no_room(take(&store, &["newer"], 1, 0));
    assert_eq!(buckets(&store).await.len(), 3, "nobody was forgotten");
}

#[tokio::test]
async fn eviction_never_forgets_debt() {
    let store = bounded(2);
    granted(take(&store, &["owes"], 60, 0));
    charge(&store, "owes", 60, 0).await.expect("a charge is never refused");
    granted(take(&store, &["drained"], 60, 0));
    no_room(take(&store, &["new"], 1, MINUTE - 1));
    // The drained one is full after a minute, the one in debt after two.
    granted(take(&store, &["new"], 60, MINUTE));
    assert_eq!(buckets(&store).await, listed(&[("new", 0), ("owes", -60_000)]));
    no_room(take(&store, &["newer"], 1, 2 * MINUTE - 1));
    granted(take(&store, &["newer"], 1, 2 * MINUTE));
}

#[tokio::test]
async fn a_store_without_room_goes_on_with_the_buckets_it_has() {
    let store = bounded(1);
    granted(take(&store, &["only"], 59, 0));
    no_room(take(&store, &["other"], 1, 0));
    granted(take(&store, &["only"], 1, 0));
    assert!(matches!(take(&store, &["only"], 1, 0), Ok(ConsumeOutcome::Refused(_))));
    assert!(
        matches!(take(&store, &["other"], 61, 0), Ok(ConsumeOutcome::Refused(_))),
        "a refusal needs no room"
    );
}

#[tokio::test]
async fn a_charge_that_must_be_remembered_needs_room_too() {
    let store = bounded(1);
    granted(take(&store, &["only"], 60, 0));
    let error = charge(&store, "forgotten", 5, 0)
        .await
        .expect_err("there is no room to remember the charge");
    assert_eq!(error.kind(), StoreErrorKind::Capacity);
    assert_eq!(
        charge(&store, "forgotten", -5, 0).await.expect("nothing to remember"),
        Adjusted::Dropped
    );
    assert_eq!(
        charge(&store, "forgotten", 5, MINUTE).await.expect("the other is full again"),
        Adjusted::Recreated
    );
    assert_eq!(buckets(&store).await, listed(&[("forgotten", 55_000)]));
}

#[tokio::test]
async fn what_an_evicted_bucket_counted_is_kept() {
    let store = bounded(1);
    granted(take(&store, &["old"], 60, 0));
    granted(take(&store, &["new"], 1, MINUTE));
    assert_eq!(buckets(&store).await, listed(&[("new", 59_000)]));
    let page = PageRequest::default();
    let query = UsageQuery {
        entity: Some(id("old")),
        resource: None,
        window: UsageWindow::Hourly,
        from: None,
        until: None,
        page,
    };
    let usage = store.usage(&query).await.expect("a query").items;
    let found: Vec<_> = usage
        .iter()
        .map(|snapshot| (snapshot.start, snapshot.counters[0].1, snapshot.events))
        .collect();
    assert_eq!(found, [(TimeMs(0), Milli(60_000), 1)]);
    // The bucket comes back within the hour, and the hour is still one.
    granted(take(&store, &["old"], 2, 3 * MINUTE));
    let usage = store.usage(&query).await.expect("a query").items;
    assert_eq!((usage.len(), usage[0].counters[0].1, usage[0].events), (1, Milli(62_000), 2));
}

#[tokio::test]
async fn a_chain_finds_room_although_its_own_members_may_be_evicted_for_it() {
    for parent in 0..64 {
        let store = bounded(2);
        let parent = format!("parent-{parent}");
        granted(take(&store, &[&parent], 0, 0));
        granted(take(&store, &["bystander"], 0, 0));
        granted(take(&store, &["child", &parent], 7, 0));
        assert_eq!(buckets(&store).await, listed(&[("child", 53_000), (&parent, 53_000)]));
        no_room(take(&store, &["one", "two", "three"], 1, MINUTE));
        assert!(buckets(&store).await.len() <= 2);
    }
}

#[tokio::test]
async fn a_refused_chain_gives_its_room_back() {
    let store = bounded(2);
    granted(take(&store, &["parent"], 60, 0));
    for _ in 0..10 {
        assert!(matches!(take(&store, &["child", "parent"], 1, 0), Ok(ConsumeOutcome::Refused(_))));
    }
    granted(take(&store, &["other"], 1, 0));
    no_room(take(&store, &["another"], 1, 0));
}

#[tokio::test]
async fn what_is_removed_makes_room() {
    let store = bounded(1);
    let change =
        Change { principal: None, reason: None, at: TimeMs(0), event: EventId::new(TimeMs(0), 1) };
    let new = NewEntity {
        id: id("a"),
        name: "A".to_owned(),
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    store.create_entity(&new, &change).await.expect("an entity can be created");
    granted(take(&store, &["a"], 60, 0));
    store.delete_entity(&id("a"), &change).await.expect("an entity can be deleted");
    granted(take(&store, &["b"], 60, 0));
    // Seven times the minute it takes to fill.
    assert_eq!(store.sweep(TimeMs(7 * MINUTE), u32::MAX).await.expect("a sweep").buckets, 1);
    granted(take(&store, &["c"], 60, 7 * MINUTE));
    no_room(take(&store, &["d"], 1, 7 * MINUTE));
}

#[test]
fn the_bound_holds_for_many_threads() {
    const MAX: usize = 50;
    let store = bounded(MAX);
    let (created, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, created, refused) = (store.clone(), &created, &refused);
            scope.spawn(move || {
                for number in 0..100 {
                    let (child, parent) =
                        (format!("c{thread}-{number}"), format!("p{thread}-{number}"));
                    match take(&store, &[&child, &parent], 1, 0) {
                        Ok(ConsumeOutcome::Granted(_)) => created.fetch_add(2, Ordering::Relaxed),
                        Err(error) if error.kind() == StoreErrorKind::Capacity => {
                            refused.fetch_add(2, Ordering::Relaxed)
                        }
                        other => panic!("neither granted nor out of room: {other:?}"),
                    };
                }
            });
        }
    });
    assert_eq!(created.load(Ordering::Relaxed), MAX, "every slot is used, and none twice");
    assert_eq!(refused.load(Ordering::Relaxed), 800 - MAX);
}
