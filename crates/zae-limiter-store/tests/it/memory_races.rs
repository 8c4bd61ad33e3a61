//! The in-memory store under many threads: nothing is taken twice, nothing slips past an
//! administrator.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use zae_limiter_core::{
    EntityId, EventId, Flag, Limit, LimitSource, Milli, ResourceName, Take, TimeMs,
};
use zae_limiter_store::{
    BoxFuture, BucketStore, Change, ConfigStore, ConsumeOutcome, ConsumeRequest, Level,
    LimitsInForce, MemberTake, MemoryStore, NamespaceStore, PageRequest, StoreError,
    StoreErrorKind,
};

const NOW: TimeMs = TimeMs(0);
const THREADS: usize = 4;

fn id(text: &str) -> EntityId {
    text.parse().expect("a valid id")
}

fn gpt() -> ResourceName {
    "gpt-4".parse().expect("a valid resource")
}

fn limits(text: &str) -> LimitsInForce {
    LimitsInForce::new([text.parse::<Limit>().expect("a valid limit")], LimitSource::System)
}

fn change() -> Change {
    Change { principal: None, reason: None, at: NOW, event: EventId::new(NOW, 1) }
}

/// What the store's futures need of a runtime: nothing, they are ready at once.
fn now<T>(future: BoxFuture<'_, T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn take(
    store: &MemoryStore,
    chain: &[(&EntityId, &LimitsInForce)],
    tokens: u64,
) -> Result<ConsumeOutcome, StoreError> {
    let resource = gpt();
    let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
    let members: Vec<MemberTake<'_>> = chain
        .iter()
        .map(|(entity, limits)| MemberTake {
            entity,
            resource: &resource,
            limits,
            takes: &takes,
            absent: &[],
        })
        .collect();
    store.consume_now(&ConsumeRequest::new(&members, NOW))
}

fn is_granted(outcome: Result<ConsumeOutcome, StoreError>) -> bool {
    matches!(outcome, Ok(ConsumeOutcome::Granted(_)))
}

/// Chains that share ancestors, some of them named from the top and some from the bottom. If shards
/// were locked in the order of the chain, two of these would sooner or later wait for each other,
/// and this test would not end.
#[test]
fn chains_are_all_or_nothing_and_never_wait_for_each_other() {
    const KEYS: usize = 8;
    let store = MemoryStore::new();
    let own = limits("rpm:300/min");
    let shared = limits("rpm:1000/min");
    let keys: Vec<EntityId> = (0..KEYS).map(|key| id(&format!("key-{key}"))).collect();
    let ancestors: Vec<EntityId> = (0..6).map(|level| id(&format!("level-{level}"))).collect();
    let granted: Vec<AtomicI64> = (0..KEYS).map(|_| AtomicI64::new(0)).collect();
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, keys, ancestors, granted, own, shared) =
                (store.clone(), &keys, &ancestors, &granted, &own, &shared);
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for round in 0..5_000 {
                    let key = (round * 3 + thread) % KEYS;
                    let mut chain = vec![(&keys[key], own)];
                    chain.extend(ancestors.iter().map(|ancestor| (ancestor, shared)));
                    if (round + thread) % 2 == 0 {
                        chain.reverse();
                    }
                    if is_granted(take(&store, &chain, 1)) {
                        granted[key].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let granted: Vec<i64> = granted.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert_eq!(granted.iter().sum::<i64>(), 1_000, "the ancestors are drained exactly");
    let views =
        now(store.resource_buckets(&gpt(), &PageRequest::first(100))).expect("a listing").items;
    for view in &views {
        let limit = &view.state.limits()[0];
        let own = keys.iter().position(|key| *key == view.entity);
        let (taken, capacity) = own.map_or((1_000, 1_000), |key| (granted[key], 300));
        assert_eq!(
            (limit.consumed.0, limit.balance.0),
            (taken * 1_000, (capacity - taken) * 1_000),
            "{}",
            view.entity
        );
    }
    assert_eq!(views.len(), KEYS + ancestors.len());
}

#[test]
fn buckets_created_by_several_threads_at_once_are_one() {
    let limits = limits("rpm:3/min");
    for round in 0..200 {
        let store = MemoryStore::new();
        let entity = id(&format!("key-{round}"));
        let (barrier, granted) = (Barrier::new(THREADS), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    granted.fetch_add(
                        usize::from(is_granted(take(&store, &[(&entity, &limits)], 1))),
                        Ordering::Relaxed,
                    );
                });
            }
        });
        assert_eq!(granted.load(Ordering::Relaxed), 3, "four asked for one of three");
    }
}

/// The trap: a take that has read "enabled", and creates its bucket after the disabling has visited
/// all buckets there are.
#[test]
fn a_bucket_created_while_its_resource_is_disabled_is_disabled() {
    let limits = limits("rpm:1000000/min");
    let level = Level::Resource(gpt());
    for round in 0..300 {
        let store = MemoryStore::new();
        let entities: Vec<EntityId> =
            (0..32).map(|key| id(&format!("key-{round}-{key}"))).collect();
        let (barrier, disabled) = (Barrier::new(3), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for part in entities.chunks(16) {
                let (store, barrier, disabled, limits) = (&store, &barrier, &disabled, &limits);
                scope.spawn(move || {
                    barrier.wait();
                    for entity in part {
                        let was_disabled = disabled.load(Ordering::SeqCst);
                        let granted = is_granted(take(store, &[(entity, limits)], 1));
                        assert!(
                            !(granted && was_disabled),
                            "{entity} was granted after set_flag had returned"
                        );
                    }
                });
            }
            scope.spawn(|| {
                let change = change();
                let flag = store.set_flag(&level, Some(Flag::Disabled), &change);
                barrier.wait();
                now(flag).expect("a resource can be disabled");
                disabled.store(true, Ordering::SeqCst);
            });
        });
        for view in
            now(store.resource_buckets(&gpt(), &PageRequest::first(100))).expect("a listing").items
        {
            assert!(view.state.flag.blocks(), "{} was created beside the flag", view.entity);
        }
        for entity in &entities {
            assert_eq!(
                take(&store, &[(entity, &limits)], 1).expect("an answer"),
                ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled }
            );
        }
    }
}

#[test]
fn a_purged_namespace_stays_empty_although_old_handles_go_on() {
    let limits = limits("rpm:1000000/min");
    let root = MemoryStore::new();
    for round in 0..100 {
        let (name, namespace_id) = (
            format!("tenant-{round}").parse().expect("a name"),
            format!("id-{round}").parse().expect("an id"),
        );
        now(root.register_namespace(&name, &namespace_id, &change()))
            .expect("a namespace can be registered");
        let tenant = now(root.scoped(&name)).expect("a handle");
        let entities: Vec<EntityId> = (0..32).map(|key| id(&format!("key-{key}"))).collect();
        let barrier = Barrier::new(3);
        std::thread::scope(|scope| {
            for part in entities.chunks(16) {
                let (tenant, barrier, limits) = (&tenant, &barrier, &limits);
                scope.spawn(move || {
                    let resource = gpt();
                    let takes = [Take { limit: 0, amount: Milli::from_tokens(1) }];
                    barrier.wait();
                    for entity in part {
                        let members = [MemberTake {
                            entity,
                            resource: &resource,
                            limits,
                            takes: &takes,
                            absent: &[],
                        }];
                        match now(tenant.consume(&ConsumeRequest::new(&members, NOW))) {
                            Ok(ConsumeOutcome::Granted(_)) => {}
                            Err(error) if error.kind() == StoreErrorKind::NotFound => {}
                            other => panic!("neither granted nor gone: {other:?}"),
                        }
                    }
                });
            }
            scope.spawn(|| {
                now(root.delete_namespace(&name, &change())).expect("a namespace can be deleted");
                barrier.wait();
                now(root.purge_namespace(&namespace_id, &change()))
                    .expect("a deleted namespace can be purged");
            });
        });
        let left =
            now(tenant.resource_buckets(&gpt(), &PageRequest::default())).expect("a listing").items;
        assert_eq!(left, [], "what was written beside the purge came back");
    }
}
