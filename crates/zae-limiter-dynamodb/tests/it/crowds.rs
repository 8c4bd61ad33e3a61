//! What a take does when others are faster, hold what it needs for a moment, or the table fails:
//! how often it pauses, which bucket of a chain it writes first, when it believes an ancestor that
//! is short, and what it counts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::evaluated::Rig;
use zae_limiter_core::{
    ConfigStamp, EntityId, Limit, LimitSource, Milli, ResourceName, Take, TimeMs,
};
use zae_limiter_dynamodb::bucket::write::{BucketWrite, Shape};
use zae_limiter_dynamodb::table::{
    BatchPage, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write, number,
};
use zae_limiter_dynamodb::{CascadeWrites, DynamoStore};
use zae_limiter_store::{
    Adjusted, BoxFuture, BucketDelta, BucketStore, Clock, ConsumeOutcome, ConsumeRequest, Delta,
    LimitsInForce, MemberTake, StoreError,
};
use zae_limiter_testkit::engine::clocks::HurriedClock;
use zae_limiter_testkit::table::{Asked, EvalOptions, EvalTable, Fate, Faults, Operation, Request};

fn unstored(text: &str) -> LimitsInForce {
    let limit: Limit = text.parse().unwrap();
    LimitsInForce::resolved([limit], LimitSource::Builder, ConfigStamp(0), 7)
}

async fn take(
    store: &DynamoStore,
    chain: &[(&str, &LimitsInForce)],
    tokens: u64,
    now: TimeMs,
) -> Result<ConsumeOutcome, StoreError> {
    ask(store, chain, tokens, now, false).await
}

async fn ask(
    store: &DynamoStore,
    chain: &[(&str, &LimitsInForce)],
    tokens: u64,
    now: TimeMs,
    peeks: bool,
) -> Result<ConsumeOutcome, StoreError> {
    let resource: ResourceName = "gpt-4".parse().unwrap();
    let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
    let entities: Vec<EntityId> = chain.iter().map(|(name, _)| name.parse().unwrap()).collect();
    let member = |(entity, (_, limits))| MemberTake {
        entity,
        resource: &resource,
        limits,
        takes: &takes,
        absent: &[],
    };
    let members: Vec<MemberTake<'_>> =
        entities.iter().zip(chain.iter().copied()).map(member).collect();
    let request = ConsumeRequest::new(&members, now);
    if peeks { store.peek(&request).await } else { store.consume(&request).await }
}

fn is_granted(outcome: &Result<ConsumeOutcome, StoreError>) -> bool {
    matches!(outcome, Ok(ConsumeOutcome::Granted(_)))
}

/// The longest wait of a refusal, in milliseconds.
#[track_caller]
fn wait_of(outcome: Result<ConsumeOutcome, StoreError>) -> u64 {
    let Ok(ConsumeOutcome::Refused(reports)) = outcome else { panic!("{outcome:?}") };
    reports.iter().filter_map(|report| report.wait.ms()).max().unwrap()
}

/// Counts the pauses; at each of them something happens.
#[derive(Clone)]
struct Pauses {
    clock: HurriedClock,
    count: Arc<AtomicU32>,
    meanwhile: Arc<dyn Fn() + Send + Sync>,
}

impl Pauses {
    fn new(rig: &Rig, meanwhile: impl Fn() + Send + Sync + 'static) -> Pauses {
        Pauses { clock: rig.clock.clone(), count: Arc::default(), meanwhile: Arc::new(meanwhile) }
    }

    fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Clock for Pauses {
    fn now(&self) -> TimeMs {
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.count.fetch_add(1, Ordering::Relaxed);
        (self.meanwhile)();
        self.clock.sleep(duration)
    }
}

/// A table on which the next writes of a bucket fail their condition, as if somebody had been
/// faster.
struct Outraced {
    table: EvalTable,
    left: Arc<AtomicU32>,
}

impl Table for Outraced {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        self.table.update(update)
    }

    fn write_bucket(&self, write: BucketWrite) -> BoxFuture<'_, Result<Item, TableError>> {
        let less = |left: u32| left.checked_sub(1);
        if matches!(write.shape, Shape::Change(_))
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
        {
            return Box::pin(std::future::ready(Err(TableError::Condition(
                self.table.get(&write.key),
            ))));
        }
        self.table.write_bucket(write)
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        self.table.put(put)
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        self.table.transact(writes, token)
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        self.table.batch_get(keys, consistent)
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        self.table.query(query)
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        self.table.delete_batch(keys)
    }
}

/// A client that loses `races`, and its pauses.
async fn outraced(rig: &Rig, races: &Arc<AtomicU32>) -> (DynamoStore, Pauses) {
    let pauses = Pauses::new(rig, || {});
    let table = Outraced { table: rig.table.clone(), left: Arc::clone(races) };
    let clock = pauses.clone();
    (rig.client(table, move |options| options.clock = Arc::new(clock)).await, pauses)
}

/// A table that fails at once must not be asked three times at once by a whole fleet.
#[tokio::test]
async fn a_write_that_was_not_answered_is_sent_again_after_a_pause() {
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored("rpm:1/hour:10");
    assert!(is_granted(&take(&rig.store().await, &[("key", &ten)], 1, rig.clock.now()).await));
    let mut failures = 2;
    let faults = Faults::by(move |asked: &Asked<'_>| {
        let fails = asked.operation() == Operation::Update && failures > 0;
        failures -= u32::from(fails);
        if fails { Fate::LostBefore } else { Fate::Pass }
    });
    let pauses = Pauses::new(&rig, || {});
    let clock = pauses.clone();
    let store = rig
        .client(rig.table.client(9).with_faults(faults), move |options| {
            options.clock = Arc::new(clock)
        })
        .await;
    assert!(is_granted(&take(&store, &[("key", &ten)], 1, rig.clock.now()).await));
    assert_eq!(pauses.count(), 2, "one pause after each failure");
}

#[tokio::test]
async fn from_the_third_lost_race_on_there_is_a_pause() {
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored("rpm:1/hour:10");
    assert!(is_granted(&take(&rig.store().await, &[("key", &ten)], 1, rig.clock.now()).await));
    let races = Arc::new(AtomicU32::new(2));
    let (store, pauses) = outraced(&rig, &races).await;
    assert!(is_granted(&take(&store, &[("key", &ten)], 1, rig.clock.now()).await));
    assert_eq!(pauses.count(), 0, "two lost races are common");
    races.store(100, Ordering::Relaxed);
    let outcome = take(&store, &[("key", &ten)], 1, rig.clock.now()).await;
    // The balances that are known are told all the same: a dashboard never goes blank.
    let Ok(ConsumeOutcome::Contended { reports, .. }) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(reports.len(), 1, "{outcome:?}");
    assert_eq!((100 - races.load(Ordering::Relaxed), pauses.count()), (8, 6));
}

/// A chain that was not decided tells the balances it knows, each as that of its member: not one
/// of a bucket that nobody has looked at, and none in the place of a member without limits.
#[tokio::test]
async fn a_contended_chain_tells_the_balances_it_knows() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (none, ten) = (LimitsInForce::none(ConfigStamp(0)), unstored("rpm:1/hour:10"));
    assert!(is_granted(&take(&rig.store().await, &[("team", &ten)], 4, rig.clock.now()).await));
    let races = Arc::new(AtomicU32::new(100));
    let table = Outraced { table: rig.table.clone(), left: Arc::clone(&races) };
    // One after the other: the bucket of the parent is not reached.
    let store = rig.client(table, |options| options.cascade_writes = CascadeWrites::Serial).await;
    let (resource, takes) = ("gpt-4".parse().unwrap(), [Take { limit: 0, amount: Milli(1_000) }]);
    let chain: [(EntityId, &LimitsInForce, &[Take]); 3] = [
        ("key".parse().unwrap(), &none, &[]),
        ("team".parse().unwrap(), &ten, &takes),
        ("org".parse().unwrap(), &ten, &takes),
    ];
    let members = chain.each_ref().map(|(entity, limits, takes)| MemberTake {
        entity,
        resource: &resource,
        limits,
        takes,
        absent: &[],
    });
    let outcome = store.consume(&ConsumeRequest::new(&members, rig.clock.now())).await;
    let Ok(ConsumeOutcome::Contended { reports, .. }) = &outcome else { panic!("{outcome:?}") };
    let told: Vec<(u8, i64)> =
        reports.iter().map(|report| (report.member, report.balance.floor_tokens())).collect();
    assert_eq!(told, [(1, 6)], "{outcome:?}");
}

/// A charge that has lost every race is made without a look at the debt, so nobody knows when the
/// bucket may be forgotten: it stays until the next refill says so.
#[tokio::test]
async fn a_charge_that_has_lost_every_race_keeps_the_bucket() {
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored("rpm:1/hour:10");
    assert!(is_granted(&take(&rig.store().await, &[("key", &ten)], 1, rig.clock.now()).await));
    let item = || rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    assert!(item().contains_key("ttl"));
    let (store, _) = outraced(&rig, &Arc::new(AtomicU32::new(8))).await;
    let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let deltas = [Delta { limit: 0, amount: Milli::from_tokens(1_000) }];
    let delta = BucketDelta {
        entity: &entity,
        resource: &resource,
        limits: &ten,
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    let adjusted = store.adjust(&[delta], rig.clock.now()).await.remove(0);
    assert_eq!(adjusted.unwrap(), Adjusted::Applied);
    assert_eq!(item()["b_rpm_tk"], number(-991_000));
    assert!(!item().contains_key("ttl"), "a debt of weeks would be forgotten within days");
}

/// `wcu` measures what reaches the item: a failed condition costs what a write costs.
#[tokio::test]
async fn failed_conditions_are_counted_by_the_next_write_that_lands() {
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored("rpm:1/hour:10");
    assert!(is_granted(&take(&rig.store().await, &[("key", &ten)], 1, rig.clock.now()).await));
    let counted = || -> i64 {
        let item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
        let number = |name: &str| {
            item.get(name).map_or(0, |value| value.as_n().unwrap().parse::<i64>().unwrap())
        };
        number("b_wcu_tc") + number("wx")
    };
    assert_eq!(counted(), 1_000, "one take");
    let races = Arc::new(AtomicU32::new(2));
    let (store, _) = outraced(&rig, &races).await;
    assert!(is_granted(&take(&store, &[("key", &ten)], 1, rig.clock.now()).await));
    assert_eq!(counted(), 4_000, "two failed, one landed");
    races.store(8, Ordering::Relaxed);
    let outcome = take(&store, &[("key", &ten)], 1, rig.clock.now()).await;
    assert!(matches!(outcome, Ok(ConsumeOutcome::Contended { .. })), "{outcome:?}");
    assert_eq!(counted(), 4_000, "nothing has landed");
    for (milli, expected) in [(-1_000, 12_000), (1_000, 12_000)] {
        let deltas = [Delta { limit: 0, amount: Milli(milli) }];
        let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
        let delta = BucketDelta {
            entity: &entity,
            resource: &resource,
            limits: &ten,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        assert_eq!(
            store.adjust(&[delta], rig.clock.now()).await.remove(0).unwrap(),
            Adjusted::Applied
        );
        assert_eq!(counted(), expected, "the eight lost races are counted by the refund, once");
    }
}

/// How many writes were sent to the bucket of an entity since the last time.
fn writes_to(rig: &Rig, entity: &str) -> usize {
    let key = rig.bucket(entity, "gpt-4");
    let journal = rig.table.take_journal();
    journal
        .iter()
        .filter(|call| matches!(&call.request, Request::Bucket(write) if write.key == key))
        .count()
}

/// What a refused chain takes, its siblings lack for two round trips. So whoever will probably be
/// refused asks alone.
#[tokio::test]
async fn a_key_that_is_short_is_asked_before_its_parent() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let store = rig.store().await;
    let (own, shared) = (unstored("tpm:10/day:10"), unstored("tpm:1000/day:1000"));
    let chain = [("key", &own), ("org", &shared)];
    assert!(is_granted(&take(&store, &chain, 10, rig.clock.now()).await));
    for _ in 0..3 {
        // Too old to refuse, and still a sign.
        rig.clock.advance(Duration::from_secs(5));
        rig.table.take_journal();
        wait_of(take(&store, &chain, 10, rig.clock.now()).await);
        assert_eq!(writes_to(&rig, "org"), 0, "the parent is left alone");
    }
    // By its own reckoning it has regained enough; that its last answer was a refusal counts more,
    // for others were there.
    rig.clock.advance(Duration::from_secs(86_400));
    assert!(is_granted(&take(&rig.store().await, &[("key", &own)], 10, rig.clock.now()).await));
    rig.table.take_journal();
    wait_of(take(&store, &chain, 10, rig.clock.now()).await);
    assert_eq!(writes_to(&rig, "org"), 0, "the parent is left alone");
    rig.clock.advance(Duration::from_secs(86_400));
    assert!(is_granted(&take(&store, &chain, 10, rig.clock.now()).await));
}

/// A parent without a bucket may still be disabled. Its configuration is asked for that, and
/// not at every refusal.
#[tokio::test]
async fn the_configuration_of_a_parent_without_a_bucket_is_not_read_at_every_refusal() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let store = rig.store().await;
    let (own, shared) = (unstored("tpm:10/day:10"), unstored("tpm:1000/day:1000"));
    assert!(is_granted(&take(&store, &[("key", &own)], 10, rig.clock.now()).await));
    let chain = [("key", &own), ("org", &shared)];
    wait_of(take(&store, &chain, 10, rig.clock.now()).await);
    rig.table.take_journal();
    for _ in 0..3 {
        wait_of(take(&store, &chain, 10, rig.clock.now()).await);
        assert_eq!(rig.table.take_journal().len(), 1, "the bucket alone");
    }
    rig.clock.advance(Duration::from_millis(201));
    wait_of(take(&store, &chain, 10, rig.clock.now()).await);
    assert_eq!(rig.table.take_journal().len(), 2, "bucket and configuration");
}

/// A chain elsewhere gives back to the parent.
fn gives_back(rig: &Rig, tokens: i64) -> impl Fn() + Send + Sync + 'static {
    let (table, key) = (rig.table.clone(), rig.bucket("org", "gpt-4"));
    move || {
        let mut item = table.get(&key).unwrap();
        let left: i64 = item["b_tpm_tk"].as_n().unwrap().parse().unwrap();
        item.insert("b_tpm_tk".to_owned(), number(left + tokens * 1_000));
        table.insert(&item);
    }
}

/// A parent of 1 000 000 a day has 300 000 left. A chain that is being refused elsewhere holds 250
/// 000 of them for two round trips; whoever asks for 60 000 meanwhile is neither refused nor told
/// to wait a quarter of an hour.
#[tokio::test]
async fn what_a_refused_chain_holds_refuses_nobody() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let (own, shared) = (unstored("tpm:1000000/day:1000000"), unstored("tpm:1000000/day:1000000"));
    let chain = [("sibling", &own), ("org", &shared)];
    let other = rig.store().await;
    assert!(is_granted(
        &take(&other, &[("org", &shared)], 700_000 + 250_000, rig.clock.now()).await
    ));
    let pauses = Pauses::new(&rig, gives_back(&rig, 250_000));
    let clock = pauses.clone();
    let store =
        rig.client(rig.table.client(7), move |options| options.clock = Arc::new(clock)).await;
    assert!(is_granted(&take(&store, &chain, 60_000, rig.clock.now()).await));
    assert_eq!(pauses.count(), 1);
}

/// An ancestor that is really short is looked at twice, refuses with the wait there is, and then
/// refuses from memory.
#[tokio::test]
async fn an_ancestor_that_is_short_twice_is_believed() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let (own, shared) = (unstored("tpm:1000000/day:1000000"), unstored("tpm:86400/day:86400"));
    let chain = [("sibling", &own), ("org", &shared)];
    assert!(is_granted(
        &take(&rig.store().await, &[("org", &shared)], 86_400, rig.clock.now()).await
    ));
    let store = rig.store().await;
    rig.table.take_journal();
    // One token a second.
    assert!((59_000..=60_000).contains(&wait_of(take(&store, &chain, 60, rig.clock.now()).await)));
    assert_eq!(writes_to(&rig, "org"), 2, "two looks");
    for _ in 0..3 {
        assert!(
            (58_000..=60_000).contains(&wait_of(take(&store, &chain, 60, rig.clock.now()).await))
        );
    }
    assert_eq!(writes_to(&rig, "org"), 0, "from memory");
    rig.clock.advance(Duration::from_millis(1_500));
    wait_of(take(&store, &chain, 60, rig.clock.now()).await);
    assert_eq!(writes_to(&rig, "org"), 1, "one look a second, while it stays short");
}

/// A key that is over its own limit waits for itself, not for what a chain elsewhere holds of its
/// parent for a moment.
#[tokio::test]
async fn a_refused_key_is_not_told_what_a_refused_chain_holds() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let (own, shared) = (unstored("tpm:60000/min:60000"), unstored("tpm:1000000/day:1000000"));
    let chain = [("key", &own), ("org", &shared)];
    let pauses = Pauses::new(&rig, gives_back(&rig, 250_000));
    let clock = pauses.clone();
    let store =
        rig.client(rig.table.client(7), move |options| options.clock = Arc::new(clock)).await;
    assert!(is_granted(&take(&store, &chain, 60_000, rig.clock.now()).await));
    assert!(is_granted(
        &take(&rig.store().await, &[("org", &shared)], 640_000 + 250_000, rig.clock.now()).await
    ));
    rig.clock.advance(Duration::from_secs(2));
    assert!(
        (50_000..=58_000).contains(&wait_of(take(&store, &chain, 60_000, rig.clock.now()).await)),
        "a minute, less two seconds"
    );
    assert_eq!(pauses.count(), 1, "the second look");
}

/// Whoever has looked once at a parent from which a chain elsewhere holds 250 000 does not refuse
/// by that look.
#[tokio::test]
async fn a_parent_that_was_short_at_one_look_refuses_nobody_from_memory() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let (own, shared) = (unstored("tpm:1000000/day:1000000"), unstored("tpm:1000000/day:1000000"));
    let chain = [("sibling", &own), ("org", &shared)];
    let store = rig.store().await;
    assert!(is_granted(&take(&store, &chain, 1, rig.clock.now()).await));
    assert!(is_granted(
        &take(&rig.store().await, &[("org", &shared)], 700_000 + 250_000, rig.clock.now()).await
    ));
    wait_of(ask(&store, &chain, 60_000, rig.clock.now(), true).await);
    gives_back(&rig, 250_000)();
    assert!(is_granted(&take(&store, &chain, 60_000, rig.clock.now()).await));
}

/// The same for a key that is over its own limit: it is refused, and the wait told is its own.
#[tokio::test]
async fn a_parent_that_was_short_at_one_look_is_not_told_as_a_wait() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let (own, shared) = (unstored("tpm:60000/min:60000"), unstored("tpm:1000000/day:1000000"));
    let chain = [("key", &own), ("org", &shared)];
    let store = rig.store().await;
    assert!(is_granted(&take(&store, &chain, 60_000, rig.clock.now()).await));
    assert!(is_granted(
        &take(&rig.store().await, &[("org", &shared)], 640_000 + 250_000, rig.clock.now()).await
    ));
    assert!(
        wait_of(ask(&store, &chain, 60_000, rig.clock.now(), true).await) > 800_000,
        "ten thousand of the parent, a quarter of an hour"
    );
    gives_back(&rig, 250_000)();
    assert!(
        (59_000..=60_000).contains(&wait_of(take(&store, &chain, 60_000, rig.clock.now()).await)),
        "a minute"
    );
}

/// The same beside a key without limits of its own: its parent is an ancestor all the same.
#[tokio::test]
async fn what_a_refused_chain_holds_refuses_no_key_without_limits() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let (own, shared) = (LimitsInForce::none(ConfigStamp(0)), unstored("tpm:1000000/day:1000000"));
    assert!(is_granted(
        &take(&rig.store().await, &[("org", &shared)], 700_000 + 250_000, rig.clock.now()).await
    ));
    let pauses = Pauses::new(&rig, gives_back(&rig, 250_000));
    let clock = pauses.clone();
    let store =
        rig.client(rig.table.client(7), move |options| options.clock = Arc::new(clock)).await;
    let takes = [Take { limit: 0, amount: Milli::from_tokens(60_000) }];
    let (key, org, resource) =
        ("key".parse().unwrap(), "org".parse().unwrap(), "gpt-4".parse().unwrap());
    let members = [
        MemberTake { entity: &key, resource: &resource, limits: &own, takes: &[], absent: &[] },
        MemberTake {
            entity: &org,
            resource: &resource,
            limits: &shared,
            takes: &takes,
            absent: &[],
        },
    ];
    let outcome = store.consume(&ConsumeRequest::new(&members, rig.clock.now())).await;
    assert!(is_granted(&outcome), "{outcome:?}");
    assert_eq!(pauses.count(), 1, "the second look");
}

/// The callers of one process are no crowd to each other: whoever is refused is told the exact
/// wait.
#[tokio::test]
async fn many_callers_of_one_process_are_no_crowd() {
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored("tpm:600/min:10");
    // All are on their way before the first is answered.
    let store = rig.client(rig.table.client(1).with_gate(Arc::new(|_, _| 3)), |_| {}).await;
    assert!(is_granted(&take(&store, &[("key", &ten)], 1, rig.clock.now()).await));
    rig.clock.advance(Duration::from_millis(300));
    let chain = [("key", &ten)];
    let outcomes =
        futures_util::future::join_all((0..20).map(|_| take(&store, &chain, 1, rig.clock.now())))
            .await;
    assert_eq!(outcomes.iter().filter(|outcome| is_granted(outcome)).count(), 10);
    for outcome in outcomes.into_iter().filter(|outcome| !is_granted(outcome)) {
        assert!(wait_of(outcome) <= 100, "a token in a tenth of a second");
    }
    rig.clock.advance(Duration::from_millis(101));
    assert!(is_granted(&take(&store, &chain, 1, rig.clock.now()).await), "and then it is there");
}

/// Ten minutes of refusals, once a second, cost the item nothing that it has not regained long
/// since.
#[tokio::test]
async fn refusals_of_long_ago_are_not_counted_in_a_lump() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, ten) = (rig.store().await, unstored("tpm:10/day:10"));
    assert!(is_granted(&take(&store, &[("key", &ten)], 10, rig.clock.now()).await));
    for _ in 0..600 {
        rig.clock.advance(Duration::from_millis(1_001));
        wait_of(take(&store, &[("key", &ten)], 10, rig.clock.now()).await);
    }
    rig.clock.advance(Duration::from_secs(86_400));
    let counted = || -> i64 {
        rig.table.get(&rig.bucket("key", "gpt-4")).unwrap()["b_wcu_tc"]
            .as_n()
            .unwrap()
            .parse()
            .unwrap()
    };
    let before = counted();
    assert!(is_granted(&take(&store, &[("key", &ten)], 1, rig.clock.now()).await));
    assert!(
        counted() - before <= 2_000,
        "{} write units for one take",
        (counted() - before) / 1_000
    );
}
