//! Plans that are kept, by the config cache and by prepared requests: they answer as if every
//! request were planned afresh. Every test asks in both ways.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use zae_limiter::store::{
    Adjusted, AtOnce, BoxFuture, BucketDelta, ConsumeRequest, Fault, Grant, SeededEntropy,
    StoreFuture, StoreWrapper,
};
use zae_limiter::{
    AcquireError, Invalid, Lease, Level, ManualClock, MemoryStore, NewEntity, OnUnavailable,
    Prepared, RateLimiter, Request, Store, StoreError, StoreErrorKind, TimeMs,
};

use crate::support::{Bench, START, limits};

/// How long a configuration is trusted.
const TTL: Duration = Duration::from_secs(60);

/// Two processes on one store that always answers at once.
struct Two {
    here: RateLimiter,
    elsewhere: RateLimiter,
    clock: ManualClock,
}

impl Two {
    async fn new(system: &[&str]) -> Two {
        let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
        let process = |seed| {
            let builder = RateLimiter::builder(store.clone()).clock(clock.clone());
            builder.entropy(SeededEntropy::new(seed)).config_cache_ttl(TTL).build().unwrap()
        };
        let two = Two { here: process(1), elsewhere: process(2), clock: clock.clone() };
        two.here.set_limits(&Level::System, limits(system)).await.unwrap();
        two
    }

    fn ask(&self, request: Request) -> [Ask; 2] {
        asks(&self.here, request)
    }

    /// `key` below `org`, to which its takes go on.
    async fn family(&self) {
        for (id, parent) in [("org", None), ("key", Some("org")), ("other", Some("org"))] {
            self.here.create_entity(entity(id, parent)).await.unwrap();
        }
    }
}

/// One of the ways to acquire a request.
enum Ask {
    Plain(RateLimiter, Request),
    Prepared(Prepared),
}

impl Ask {
    async fn acquire(&self) -> Result<Lease, AcquireError> {
        match self {
            Ask::Plain(limiter, request) => limiter.acquire(request.clone()).await,
            Ask::Prepared(prepared) => prepared.acquire().await,
        }
    }

    /// The capacities that the request is held to, the caller's first.
    async fn capacities(&self) -> Vec<u64> {
        let lease = self.acquire().await.unwrap();
        let capacities = lease.statuses().iter().map(|status| status.limit.capacity()).collect();
        lease.rollback().await.unwrap();
        capacities
    }
}

fn asks(limiter: &RateLimiter, request: Request) -> [Ask; 2] {
    let prepared = limiter.prepare(request.clone()).unwrap();
    [Ask::Plain(limiter.clone(), request), Ask::Prepared(prepared)]
}

fn request() -> Request {
    Request::new("key", "gpt-4").take("rpm", 1)
}

fn level(entity: &str) -> Level {
    Level::Entity(entity.parse().unwrap())
}

fn entity(id: &str, parent: Option<&str>) -> NewEntity {
    let parent = parent.map(|parent| parent.parse().unwrap());
    NewEntity {
        id: id.parse().unwrap(),
        name: id.into(),
        cascade: parent.is_some(),
        parent,
        metadata: BTreeMap::new(),
    }
}

/// A store that counts the takes for which a future was needed.
struct Counting(Arc<dyn Store>, Arc<AtomicU32>);

impl StoreWrapper for Counting {
    type Inner = dyn Store;

    fn inner(&self) -> &(dyn Store + 'static) {
        &*self.0
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a (dyn Store + 'static)) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.1.fetch_add(u32::from(operation == "consume"), Ordering::Relaxed);
        call(&*self.0)
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        self.0.adjust(deltas, now)
    }

    fn decide_at_once(&self, request: &ConsumeRequest<'_>, grant: &mut Grant) -> AtOnce {
        self.0.decide_at_once(request, grant)
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Counting(scoped, Arc::clone(&self.1)))
    }
}

#[tokio::test]
async fn only_the_first_request_of_a_kind_needs_a_future() {
    let takes = Arc::new(AtomicU32::new(0));
    let store = Counting(Arc::new(MemoryStore::new()), Arc::clone(&takes));
    let limiter = RateLimiter::builder(store).build().unwrap();
    limiter.set_limits(&Level::System, limits(&["rpm:5/day", "tpm:5/day"])).await.unwrap();
    for ask in asks(&limiter, request()) {
        for _ in 0..2 {
            ask.acquire().await.unwrap().commit().await.unwrap();
        }
    }
    let [plain, prepared] = asks(&limiter, request().take("tpm", 9));
    for ask in [&plain, &plain, &prepared] {
        assert!(matches!(ask.acquire().await, Err(AcquireError::Exceeded(_))), "a refusal too");
    }
    assert_eq!(takes.load(Ordering::Relaxed), 2, "one for each way to declare limits");
    let waiting = limiter.acquire(request());
    assert!(size_of_val(&waiting) <= 256, "{} bytes are moved by callers", size_of_val(&waiting));
}

/// A parent that expires before its child takes the child's plan with it, once.
#[tokio::test]
async fn a_plan_is_kept_again_after_a_part_of_it_has_expired() {
    let (takes, clock) = (Arc::new(AtomicU32::new(0)), ManualClock::new(START));
    let store = Counting(Arc::new(MemoryStore::new()), Arc::clone(&takes));
    let builder = RateLimiter::builder(store).clock(clock.clone()).config_cache_ttl(TTL);
    let limiter = builder.build().unwrap();
    limiter.set_limits(&Level::System, limits(&["rpm:100/day"])).await.unwrap();
    for (id, parent) in [("org", None), ("key", Some("org"))] {
        limiter.create_entity(entity(id, parent)).await.unwrap();
    }
    drop(limiter.acquire(Request::new("org", "gpt-4").take("rpm", 1)).await.unwrap());
    clock.advance(TTL / 2);
    let [plain, prepared] = asks(&limiter, request());
    for asked in [&plain, &plain, &prepared, &prepared] {
        drop(asked.acquire().await.unwrap());
        assert_eq!(takes.load(Ordering::Relaxed), 2, "one for each entity");
    }
    clock.advance(TTL / 2);
    for asked in [&prepared, &prepared, &plain, &plain] {
        drop(asked.acquire().await.unwrap());
        assert_eq!(takes.load(Ordering::Relaxed), 3, "the first plans again, for all");
    }
}

#[tokio::test]
async fn a_change_here_binds_at_once() {
    let two = Two::new(&["rpm:100/day"]).await;
    two.family().await;
    let asks = two.ask(request());
    for (round, who) in [(1, "key"), (2, "org"), (3, "key")] {
        for ask in &asks {
            ask.capacities().await;
        }
        let limit = format!("rpm:{round}0/day");
        two.here.set_limits(&level(who), limits(&[&limit])).await.unwrap();
        for ask in &asks {
            let expected = match round {
                1 => [10, 100],
                2 => [10, 20],
                _ => [30, 20],
            };
            assert_eq!(ask.capacities().await, expected, "after change {round}");
        }
    }
    two.here.disable(&level("org")).await.unwrap();
    for ask in &asks {
        assert!(matches!(ask.acquire().await, Err(AcquireError::Disabled(_))));
    }
    two.here.enable(&level("org")).await.unwrap();
    for ask in &asks {
        assert_eq!(ask.capacities().await, [30, 20]);
    }
}

#[tokio::test]
async fn a_change_elsewhere_binds_when_the_cache_expires() {
    for who in ["key", "org"] {
        let two = Two::new(&["rpm:100/day"]).await;
        two.family().await;
        let asks = two.ask(request());
        for ask in &asks {
            ask.capacities().await;
        }
        two.elsewhere.set_limits(&level(who), limits(&["rpm:7/day"])).await.unwrap();
        two.clock.advance(TTL - Duration::from_millis(1));
        for ask in &asks {
            assert_eq!(ask.capacities().await, [100, 100], "{who}, trusted to the end");
        }
        two.clock.advance(Duration::from_millis(1));
        let expected = if who == "key" { [7, 100] } else { [100, 7] };
        for ask in &asks {
            assert_eq!(ask.capacities().await, expected, "{who}");
        }
    }
}

/// The entry of a parent may be older than that of the child: the plan of the child ends with the
/// older one, and the plan after it is kept as well.
#[tokio::test]
async fn a_plan_ends_with_the_oldest_of_its_entries() {
    let two = Two::new(&["rpm:100/day"]).await;
    two.family().await;
    for ask in two.ask(Request::new("other", "gpt-4").take("rpm", 1)) {
        ask.capacities().await;
    }
    two.clock.advance(TTL / 2);
    let asks = two.ask(request());
    for ask in &asks {
        ask.capacities().await;
    }
    two.elsewhere.set_limits(&level("org"), limits(&["rpm:7/day"])).await.unwrap();
    two.clock.advance(TTL / 2);
    for ask in &asks {
        assert_eq!(ask.capacities().await, [100, 7], "the parent's entry has expired");
    }
    two.elsewhere.set_limits(&level("key"), limits(&["rpm:3/day"])).await.unwrap();
    two.clock.advance(TTL / 2);
    for ask in &asks {
        assert_eq!(ask.capacities().await, [3, 7], "and now the child's");
    }
}

#[tokio::test]
async fn what_the_store_switched_off_elsewhere_binds_at_once_and_is_read_again() {
    let two = Two::new(&["rpm:100/day"]).await;
    two.family().await;
    let asks = two.ask(request());
    for (who, ask) in [("key", &asks[0]), ("org", &asks[1]), ("org", &asks[0])] {
        ask.capacities().await;
        two.elsewhere.disable(&level(who)).await.unwrap();
        // An entry that was read less than a second ago is not read again.
        two.clock.advance(Duration::from_secs(1));
        let mut said_by = Vec::new();
        for _ in 0..2 {
            match ask.acquire().await {
                Err(AcquireError::Disabled(disabled)) => {
                    said_by.push((disabled.entity.to_string(), disabled.level.is_some()))
                }
                other => panic!("{who} is disabled, found {other:?}"),
            }
        }
        let expected = [(who.to_owned(), false), (who.to_owned(), true)];
        assert_eq!(said_by, expected, "first the store says so, then the configuration");
        two.elsewhere.enable(&level(who)).await.unwrap();
        two.clock.advance(TTL);
    }
}

#[tokio::test]
async fn an_entity_that_is_deleted_and_made_again_is_another_one() {
    let two = Two::new(&["rpm:100/day"]).await;
    two.family().await;
    two.here.set_limits(&level("key"), limits(&["rpm:10/day"])).await.unwrap();
    let asks = two.ask(request());
    for ask in &asks {
        assert_eq!(ask.capacities().await, [10, 100]);
    }
    two.here.delete_entity("key").await.unwrap();
    for ask in &asks {
        assert_eq!(ask.capacities().await, [100], "no entity, no parent, the limits of all");
    }
    two.here.create_entity(entity("team", None)).await.unwrap();
    two.here.set_limits(&level("team"), limits(&["rpm:50/day"])).await.unwrap();
    two.here.create_entity(entity("key", Some("team"))).await.unwrap();
    for ask in &asks {
        assert_eq!(ask.capacities().await, [100, 50], "made again below another parent");
    }
    two.elsewhere.delete_entity("key").await.unwrap();
    two.elsewhere.create_entity(entity("key", None)).await.unwrap();
    two.elsewhere.set_limits(&level("key"), limits(&["rpm:9/day"])).await.unwrap();
    two.clock.advance(TTL);
    for ask in &asks {
        assert_eq!(ask.capacities().await, [9], "made again elsewhere, seen after the age");
    }
}

#[tokio::test]
async fn a_namespace_that_is_purged_grants_nothing() {
    let two = Two::new(&["rpm:100/day"]).await;
    let id = two.here.register_namespace("tenant").await.unwrap().id;
    let tenant = two.here.namespace("tenant").await.unwrap();
    tenant.set_limits(&Level::System, limits(&["rpm:10/day"])).await.unwrap();
    let asks = asks(&tenant, request());
    for ask in &asks {
        assert_eq!(ask.capacities().await, [10]);
    }
    two.elsewhere.delete_namespace("tenant").await.unwrap();
    two.elsewhere.purge_namespace(id).await.unwrap();
    for ask in &asks {
        let error = ask.acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Invalid(Invalid::Namespace(_))), "{error:?}");
    }
    two.elsewhere.register_namespace("tenant").await.unwrap();
    for ask in &asks {
        assert!(ask.acquire().await.is_err(), "a handle stays with its namespace");
    }
}

#[tokio::test]
async fn a_closed_limiter_grants_nothing() {
    let two = Two::new(&["rpm:100/day"]).await;
    let asks = two.ask(request());
    for ask in &asks {
        ask.capacities().await;
    }
    two.here.close().await;
    for ask in &asks {
        assert!(matches!(ask.acquire().await, Err(AcquireError::Unavailable(_))));
    }
}

#[tokio::test]
async fn a_request_that_waits_still_waits() {
    let two = Two::new(&["rpm:60/min:1"]).await;
    for ask in two.ask(request().wait(Duration::from_secs(5))) {
        ask.acquire().await.unwrap().commit().await.unwrap();
        let (clock, mut waiting) = (two.clock.clone(), std::pin::pin!(ask.acquire()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending(), "nothing is left");
        clock.advance(Duration::from_secs(1));
        waiting.await.unwrap().commit().await.unwrap();
        clock.advance(Duration::from_secs(1));
    }
}

#[tokio::test]
async fn a_plan_is_for_what_was_declared() {
    let two = Two::new(&["rpm:100/day", "tpm:100/day", "rpd:100/day"]).await;
    let shapes: [&[&str]; 5] =
        [&["rpm"], &["tpm", "rpm"], &["rpm", "tpm"], &["rpd"], &["rpm", "tpm", "rpd"]];
    let request = |shape: &[&str]| {
        shape.iter().fold(Request::new("key", "gpt-4"), |request, limit| request.take(*limit, 1))
    };
    for _ in 0..3 {
        for shape in shapes {
            for ask in two.ask(request(shape)) {
                let lease = ask.acquire().await.unwrap();
                let names: Vec<_> =
                    lease.used().iter().map(|(name, used)| (name.to_string(), *used)).collect();
                let expected: Vec<_> = shape.iter().map(|name| ((*name).to_owned(), 1)).collect();
                assert_eq!(names, expected);
                let checked: Vec<_> = lease
                    .statuses()
                    .iter()
                    .map(|status| status.limit.name().as_str().to_owned())
                    .collect();
                assert_eq!(checked, shape);
                lease.rollback().await.unwrap();
            }
        }
    }
    for ask in two.ask(request(&["rpm", "typo"])) {
        for _ in 0..2 {
            let error = ask.acquire().await.unwrap_err();
            assert!(matches!(error, AcquireError::Invalid(Invalid::UnknownLimit { .. })));
        }
    }
}

#[tokio::test]
async fn limits_of_a_request_are_its_own() {
    let two = Two::new(&["rpm:100/day"]).await;
    let plain = two.ask(request());
    let own = two.ask(request().limits(limits(&["rpm:8/day"])));
    for ask in plain.iter().chain(&own).chain(&plain).chain(&own) {
        let expected = if own.iter().any(|other| std::ptr::eq(other, ask)) { 8 } else { 100 };
        assert_eq!(ask.capacities().await, [expected]);
    }
    two.here.delete_limits(&Level::System).await.unwrap();
    for ask in two.ask(request().fallback_limits(limits(&["rpm:6/day"]))) {
        assert_eq!(ask.capacities().await, [6], "no level has limits");
    }
    for ask in &plain {
        assert!(matches!(ask.acquire().await, Err(AcquireError::NoLimits(_))));
    }
}

#[tokio::test]
async fn a_lease_of_a_kept_plan_is_settled_like_any_other() {
    let two = Two::new(&["rpm:100/day", "tpm:1000/day"]).await;
    let left = async || {
        let availability = two.elsewhere.availability(&Request::new("key", "gpt-4")).await.unwrap();
        ["rpm", "tpm"].map(|limit| availability.available(limit).unwrap())
    };
    let asks = two.ask(request().take("tpm", 100));
    for ask in &asks {
        ask.acquire().await.unwrap().rollback().await.unwrap();
    }
    for ask in &asks {
        let before = left().await;
        let lease = ask.acquire().await.unwrap();
        lease.consume([("tpm", 50)]).await.unwrap();
        lease.record("tpm", 120).unwrap();
        assert!(lease.record("rpd", 1).is_err(), "not declared");
        assert!(lease.consume([("rpd", 1)]).await.is_err(), "not declared");
        lease.commit().await.unwrap();
        assert_eq!(left().await, [before[0] - 1, before[1] - 120]);
        drop(ask.acquire().await.unwrap());
        two.here.drain().await;
        assert_eq!(left().await, [before[0] - 1, before[1] - 120], "a dropped lease gives back");
    }
}

#[tokio::test]
async fn amounts_can_be_others_than_those_prepared() {
    let two = Two::new(&["rpm:100/day", "tpm:1000/day"]).await;
    let prepared = two.here.prepare(request().take("tpm", 100)).unwrap();
    for _ in 0..2 {
        let lease = prepared.acquire_with([("tpm", 400)]).await.unwrap();
        let used: Vec<i64> = lease.used().iter().map(|(_, used)| *used).collect();
        assert_eq!(used, [1, 400]);
        lease.commit().await.unwrap();
    }
    let refused = prepared.acquire_with([("rpm", 0), ("tpm", 201)]).await;
    assert!(matches!(refused, Err(AcquireError::Exceeded(_))));
    let lease = prepared.acquire().await.unwrap();
    assert_eq!(lease.statuses()[1].available, 100, "the request keeps its amounts");
    for (limit, amount, named) in [("rpd", 1, "rpd"), ("tpm", u64::MAX, "18446744073709551615")] {
        let error = prepared.acquire_with([(limit, amount)]).await.unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
    assert!(two.here.prepare(Request::new("key\n", "gpt-4")).is_err(), "a mistake is told now");
    assert_eq!(format!("{:?}", prepared.request()).matches("tpm").count(), 1);
}

#[tokio::test]
async fn a_store_that_is_down_is_passed_over_as_the_policy_says() {
    let bench = Bench::new();
    bench.system(&["rpm:100/day"]).await;
    let [allow, block] = [OnUnavailable::Allow, OnUnavailable::Block]
        .map(|policy| bench.limiter.prepare(request().on_unavailable(policy)).unwrap());
    allow.acquire().await.unwrap().commit().await.unwrap();
    bench.script.always("consume", Fault::FailBefore(StoreErrorKind::Unavailable));
    let lease = allow.acquire_with([("rpm", 5)]).await.unwrap();
    assert!(lease.degraded().is_some());
    assert_eq!(lease.used(), [("rpm".parse().unwrap(), 5)]);
    assert!(lease.record("tpm", 1).is_err() && lease.consume([("tpm", 1)]).await.is_err());
    lease.consume([("rpm", 1)]).await.unwrap();
    lease.commit().await.unwrap();
    assert!(matches!(block.acquire().await, Err(AcquireError::Unavailable(_))));
    bench.script.heal();
    bench.clock.advance(Duration::from_secs(60));
    assert!(block.acquire().await.unwrap().degraded().is_none());
}
