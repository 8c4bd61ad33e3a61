//! What makes the cases short: builders for limits, requests and changes, and answers that check
//! themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zae_limiter_core::{
    BucketState, Entity, EntityId, EventId, Flag, Limit, LimitName, LimitParams, LimitSource,
    LimitState, Milli, NamespaceId, NamespaceName, Reports, ResourceName, Take, TimeMs, Wait,
    WaitMs,
};

use super::Harness;
use crate::{
    Adjusted, BucketDelta, Change, ConsumeOutcome, ConsumeRequest, Delta, EntityUpdate, Grant,
    Level, LimitsChange, LimitsInForce, MemberConfig, MemberKey, MemberTake, NewEntity, Page,
    PageRequest, Store, StoreError, StoreErrorKind,
};

pub(super) const SECOND: i64 = 1_000;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// The resource of every case that does not care which.
pub(super) const GPT: &str = "gpt-4";

/// How often a race asks again when the store says it is busy.
const ATTEMPTS_MAX: u32 = 100;

/// How often a case reads the configuration again because it was told that it is out of date, as a
/// limiter does.
const READS_MAX: u32 = 4;

/// How many pages or sweeps a case goes through before it calls the store endless.
const ROUNDS_MAX: u32 = 1_000;

/// The instant `ms` milliseconds after 2100-01-01T10:00:00Z, where every case begins: a full hour,
/// for the usage windows, and far ahead of the real clock, by which some stores forget on their own
/// whatever has expired.
pub(super) fn at(ms: i64) -> TimeMs {
    TimeMs(4_102_480_800_000).plus_ms(ms)
}

pub(super) fn after(ms: u64) -> Wait {
    Wait::After(WaitMs::at_least_one(ms))
}

pub(super) fn entity(id: &str) -> EntityId {
    id.parse().expect("a valid entity id")
}

pub(super) fn resource(name: &str) -> ResourceName {
    name.parse().expect("a valid resource")
}

pub(super) fn namespace(name: &str) -> NamespaceName {
    name.parse().expect("a valid namespace")
}

pub(super) fn namespace_id(id: &str) -> NamespaceId {
    id.parse().expect("a valid namespace id")
}

/// Limits as the command line writes them, separated by blanks: `rpm:60/min tpm:1000/min:2000`.
pub(super) fn limit_list(text: &str) -> Vec<Limit> {
    text.split_whitespace().map(|limit| limit.parse().expect("a valid limit")).collect()
}

/// Limits from the system level, as read before anything was ever configured.
pub(super) fn limits(text: &str) -> LimitsInForce {
    limits_from(text, LimitSource::System)
}

/// Limits that were not read from the store. Good for a bucket whose limits never change, and for
/// limits that are given with the call; whoever changes the limits of a bucket needs a stamp, and
/// stamps come from the store: [`Fixture::stored`].
pub(super) fn limits_from(text: &str, source: LimitSource) -> LimitsInForce {
    LimitsInForce::new(limit_list(text), source)
}

/// What is asked of one bucket.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) entity: EntityId,
    pub(super) resource: ResourceName,
    pub(super) limits: LimitsInForce,
    pub(super) takes: Vec<Take>,
}

/// Asks whole tokens of the bucket of an entity for [`GPT`].
pub(super) fn ask(id: &str, limits: &LimitsInForce, tokens: &[(&str, u64)]) -> Ask {
    let takes = tokens
        .iter()
        .map(|(name, tokens)| Take {
            limit: index_of(limits, name),
            amount: Milli::from_tokens(*tokens),
        })
        .collect();
    Ask { entity: entity(id), resource: resource(GPT), limits: limits.clone(), takes }
}

impl Ask {
    /// The same, for another resource.
    pub(super) fn on(self, name: &str) -> Ask {
        Ask { resource: resource(name), ..self }
    }

    fn member(&self) -> MemberTake<'_> {
        MemberTake {
            entity: &self.entity,
            resource: &self.resource,
            limits: &self.limits,
            takes: &self.takes,
            absent: &[],
        }
    }
}

/// A charge (positive) or refund (negative) after the fact.
pub(super) struct Correction {
    entity: EntityId,
    resource: ResourceName,
    limits: LimitsInForce,
    pub(super) deltas: Vec<Delta>,
}

/// Corrects the bucket of an entity for [`GPT`] by whole tokens.
pub(super) fn correction(id: &str, limits: &LimitsInForce, tokens: &[(&str, i64)]) -> Correction {
    let deltas = tokens
        .iter()
        .map(|(name, tokens)| Delta {
            limit: index_of(limits, name),
            amount: Milli(tokens * 1_000),
        })
        .collect();
    Correction { entity: entity(id), resource: resource(GPT), limits: limits.clone(), deltas }
}

impl Correction {
    fn delta(&self) -> BucketDelta<'_> {
        BucketDelta {
            entity: &self.entity,
            resource: &self.resource,
            limits: &self.limits,
            deltas: &self.deltas,
            operation: 0,
            take: 0,
            place: 0,
        }
    }
}

fn index_of(limits: &LimitsInForce, name: &str) -> u8 {
    let index = limits
        .limits
        .iter()
        .position(|limit| *limit.name() == *name)
        .expect("the case asks for a limit it has");
    u8::try_from(index).expect("few limits")
}

/// A decision, ready to be compared with what was expected of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer(pub(super) ConsumeOutcome);

impl Answer {
    /// Granted, and these are the balances left, in millitokens, one per take.
    #[track_caller]
    pub(super) fn granted(&self, balances: &[i64]) {
        let ConsumeOutcome::Granted(Grant { reports, .. }) = &self.0 else {
            panic!("expected a grant that leaves {balances:?}, found {:?}", self.0);
        };
        let found: Vec<i64> = reports.iter().map(|report| report.balance.0).collect();
        assert_eq!(found, balances, "the balances left by a grant (found, expected)");
    }

    /// Refused, and these are the balances there are and the waits, one pair per take.
    #[track_caller]
    pub(super) fn refused(&self, limits: &[(i64, Wait)]) {
        let ConsumeOutcome::Refused(reports) = &self.0 else {
            panic!("expected a refusal with {limits:?}, found {:?}", self.0);
        };
        let found: Vec<(i64, Wait)> =
            reports.iter().map(|report| (report.balance.0, report.wait)).collect();
        assert_eq!(found, limits, "the balances and waits of a refusal (found, expected)");
    }

    #[track_caller]
    pub(super) fn stale(&self, member: usize) {
        assert_eq!(
            self.0,
            ConsumeOutcome::Stale { member },
            "expected that member {member} must read the configuration again"
        );
    }

    #[track_caller]
    pub(super) fn disabled(&self, member: usize) {
        assert_eq!(
            self.0,
            ConsumeOutcome::Blocked { member, flag: Flag::Disabled },
            "expected that member {member} is switched off"
        );
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.0, ConsumeOutcome::Granted(_))
    }

    pub(super) fn reports(&self) -> &Reports {
        match &self.0 {
            ConsumeOutcome::Granted(Grant { reports, .. }) | ConsumeOutcome::Refused(reports) => {
                reports
            }
            other => panic!("expected a grant or a refusal, found {other:?}"),
        }
    }
}

/// The operation failed, in this way.
#[track_caller]
pub(super) fn fails<T: std::fmt::Debug>(
    result: Result<T, StoreError>,
    kind: StoreErrorKind,
) -> StoreError {
    match result {
        Err(error) if error.kind() == kind => error,
        other => panic!("expected an error of kind {kind:?}, found {other:?}"),
    }
}

/// A store under test and what the cases do with it. Cheap to clone: races share one.
#[derive(Clone)]
pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    harness: Arc<dyn Harness>,
    events: Arc<AtomicU64>,
}

impl Fixture {
    pub(super) fn new(store: Arc<dyn Store>, harness: Arc<dyn Harness>) -> Fixture {
        Fixture { store, harness, events: Arc::default() }
    }

    /// The same harness with a handle on another namespace, which is registered first.
    pub(super) async fn tenant(&self, name: &str) -> Fixture {
        let id = namespace_id(&format!("id-{name}"));
        self.store
            .register_namespace(&namespace(name), &id, &self.change(at(0)))
            .await
            .expect("a namespace can be registered");
        self.inside(name).await
    }

    /// The same harness with a handle on a namespace that is registered.
    pub(super) async fn inside(&self, name: &str) -> Fixture {
        let store = self
            .store
            .scoped(&namespace(name))
            .await
            .expect("a registered namespace can be entered");
        Fixture { store, ..self.clone() }
    }

    /// Another handle on the same data, beside this one.
    pub(super) async fn beside(&self) -> Fixture {
        let store = self
            .harness
            .reopen()
            .await
            .expect("a store that is durable or shared has a harness that can reopen it");
        Fixture { store, ..self.clone() }
    }

    /// Closes the store and opens it again.
    pub(super) async fn reopened(self) -> Fixture {
        let Fixture { store, harness, events } = self;
        drop(store);
        let store = harness
            .reopen()
            .await
            .expect("a store that is durable or shared has a harness that can reopen it");
        Fixture { store, harness, events }
    }

    /// A change by `admin`; events made later have larger ids.
    pub(super) fn change(&self, at: TimeMs) -> Change {
        let number = self.events.fetch_add(1, Ordering::Relaxed);
        Change {
            principal: Some("admin".parse().expect("a valid principal")),
            at,
            event: EventId::new(at, u128::from(number)),
        }
    }

    pub(super) async fn try_chain(&self, asks: &[Ask], now: TimeMs) -> Result<Answer, StoreError> {
        let members: Vec<_> = asks.iter().map(Ask::member).collect();
        self.store.consume(&ConsumeRequest::new(&members, now)).await.map(Answer)
    }

    pub(super) async fn chain(&self, asks: &[Ask], now: TimeMs) -> Answer {
        self.try_chain(asks, now).await.expect("a valid request is decided")
    }

    pub(super) async fn take(&self, ask: &Ask, now: TimeMs) -> Answer {
        self.chain(std::slice::from_ref(ask), now).await
    }

    pub(super) async fn try_take(&self, ask: &Ask, now: TimeMs) -> Result<Answer, StoreError> {
        self.try_chain(std::slice::from_ref(ask), now).await
    }

    pub(super) async fn try_peek(&self, asks: &[Ask], now: TimeMs) -> Result<Answer, StoreError> {
        let members: Vec<_> = asks.iter().map(Ask::member).collect();
        self.store.peek(&ConsumeRequest::new(&members, now)).await.map(Answer)
    }

    pub(super) async fn peek(&self, asks: &[Ask], now: TimeMs) -> Answer {
        self.try_peek(asks, now).await.expect("a valid request can be peeked")
    }

    /// Takes, and asks again for as long as the store is too busy to decide: what a race does.
    pub(super) async fn insist(&self, asks: &[Ask], now: TimeMs) -> Answer {
        for _ in 0..ATTEMPTS_MAX {
            match self.try_chain(asks, now).await {
                Ok(Answer(ConsumeOutcome::Contended { .. })) => tokio::task::yield_now().await,
                Err(error) if error.is_retryable() => tokio::task::yield_now().await,
                answer => return answer.expect("a valid request is decided"),
            }
        }
        panic!(
            "expected a decision within {ATTEMPTS_MAX} attempts; the store is starving its callers"
        );
    }

    pub(super) async fn adjust_all(
        &self,
        corrections: &[Correction],
        now: TimeMs,
    ) -> Vec<Result<Adjusted, StoreError>> {
        let deltas: Vec<_> = corrections.iter().map(Correction::delta).collect();
        self.store.adjust(&deltas, now).await
    }

    pub(super) async fn adjust(&self, correction: &Correction, now: TimeMs) -> Adjusted {
        let mut results = self.store.adjust(&[correction.delta()], now).await;
        assert_eq!(results.len(), 1, "one result per delta");
        results.remove(0).expect("an adjustment is never refused")
    }

    /// The bucket of an entity for [`GPT`], as stored.
    pub(super) async fn bucket(&self, id: &str) -> Option<BucketState> {
        let page = self
            .store
            .buckets(&entity(id), &PageRequest::default())
            .await
            .expect("buckets can be listed");
        page.items.into_iter().find(|view| view.resource == *GPT).map(|view| view.state)
    }

    /// Balances of all limits, in millitokens, as they are at `now`; by name, whatever order the
    /// store keeps them in.
    pub(super) async fn balances(&self, id: &str, now: TimeMs) -> Vec<i64> {
        let mut state = self.bucket(id).await.expect("the bucket is there");
        state.refill(now);
        by_name(&state).iter().map(|limit| limit.balance.0).collect()
    }

    /// Net consumption of all limits, in millitokens, by name.
    pub(super) async fn consumed(&self, id: &str) -> Vec<i64> {
        let state = self.bucket(id).await.expect("the bucket is there");
        by_name(&state).iter().map(|limit| limit.consumed.0).collect()
    }

    /// The bucket of somebody whose request was refused is as it was. A store that takes from a
    /// chain one by one gives back what it took: it may have touched or even made the bucket, which
    /// all the same holds, has counted and obeys what it did before.
    #[track_caller]
    pub(super) fn is_as_it_was(
        &self,
        bucket: Option<&BucketState>,
        before: Option<&BucketState>,
        now: TimeMs,
    ) {
        if self.store.capabilities().atomic_chains {
            assert_eq!(bucket, before, "the bucket is as it was, to the last field");
        } else {
            let told = |state: &BucketState| as_decided_at(state, now);
            assert_eq!(
                bucket.and_then(told),
                before.and_then(told),
                "the bucket behaves as it did"
            );
        }
    }

    pub(super) async fn try_set(
        &self,
        level: &Level,
        limits: &str,
        expected_version: Option<u64>,
    ) -> Result<u64, StoreError> {
        let change =
            LimitsChange { limits: limit_list(limits), on_unavailable: None, expected_version };
        self.store.set_limits(level, &change, &self.change(at(0))).await
    }

    /// Stores limits at a level; the level's new version.
    pub(super) async fn set(&self, level: &Level, limits: &str) -> u64 {
        self.try_set(level, limits, None).await.expect("limits can be set")
    }

    pub(super) async fn unset(&self, level: &Level) -> bool {
        self.store.delete_limits(level, &self.change(at(0))).await.expect("limits can be deleted")
    }

    pub(super) async fn flag(&self, level: &Level, disabled: Option<bool>) -> u64 {
        self.store
            .set_flag(level, disabled.map(Flag::from_disabled), &self.change(at(0)))
            .await
            .expect("a level can be flagged")
    }

    /// What is stored about an entity for a resource.
    pub(super) async fn resolve(&self, id: &str, name: &str) -> MemberConfig {
        let keys = [MemberKey { entity: &entity(id), resource: &resource(name) }];
        let mut resolution =
            self.store.resolve(&keys).await.expect("configuration can be resolved");
        assert_eq!(resolution.members.len(), 1, "one member per key");
        resolution.members.remove(0)
    }

    /// The stored limits in force of an entity for [`GPT`], with the stamp of this read.
    pub(super) async fn in_force(&self, id: &str) -> LimitsInForce {
        self.read(&entity(id), &resource(GPT)).await.expect("limits are stored")
    }

    /// Stores limits at a level and reads them: what a limiter knows that asks now. Whoever keeps
    /// the answer while others change the level has an older read. At the levels of everybody the
    /// reader is `key`.
    pub(super) async fn stored(&self, level: &Level, limits: &str) -> LimitsInForce {
        self.stored_at(level, limits, at(0)).await
    }

    /// The same by an administrator at some instant: a store may bring the limits to buckets at
    /// once, or with their next take.
    pub(super) async fn stored_at(
        &self,
        level: &Level,
        limits: &str,
        now: TimeMs,
    ) -> LimitsInForce {
        let change = LimitsChange {
            limits: limit_list(limits),
            on_unavailable: None,
            expected_version: None,
        };
        self.store.set_limits(level, &change, &self.change(now)).await.expect("limits can be set");
        let reader = level.entity_id().cloned().unwrap_or_else(|| entity("key"));
        let gpt = resource(GPT);
        let read = self
            .read(&reader, level.resource_name().unwrap_or(&gpt))
            .await
            .expect("limits are stored");
        let by_name = |mut limits: Vec<Limit>| {
            limits.sort_by(|a, b| a.name().cmp(b.name()));
            limits
        };
        assert_eq!(
            by_name(read.limits.to_vec()),
            by_name(limit_list(limits)),
            "what was stored is in force"
        );
        assert_eq!(read.source, level.source(), "nothing stronger is stored");
        read
    }

    /// Limits that are not stored, in the hands of somebody who has read the configuration and
    /// found none for `key`.
    pub(super) async fn unstored(&self, limits: &str, source: LimitSource) -> LimitsInForce {
        let keys = [MemberKey { entity: &entity("key"), resource: &resource(GPT) }];
        let resolution = self.store.resolve(&keys).await.expect("configuration can be resolved");
        assert_eq!(resolution.members[0].limits, None, "nothing is stored");
        LimitsInForce { stamp: resolution.stamp, ..limits_from(limits, source) }
    }

    async fn read(&self, entity: &EntityId, resource: &ResourceName) -> Option<LimitsInForce> {
        let resolution = self
            .store
            .resolve(&[MemberKey { entity, resource }])
            .await
            .expect("configuration can be resolved");
        let (limits, source) = resolution.members[0].limits.clone()?;
        Some(LimitsInForce::resolved(
            limits,
            source,
            resolution.stamp,
            zae_limiter_core::BUCKET_TTL_MULTIPLIER,
        ))
    }

    /// Takes; told that it is out of date, it reads the configuration again and asks again, as a
    /// limiter does. For cases in which the store may not be able to tell which of two reads is the
    /// later.
    pub(super) async fn take_fresh(&self, ask: &Ask, now: TimeMs) -> Answer {
        let mut ask = ask.clone();
        for _ in 0..READS_MAX {
            let answer = self.take(&ask, now).await;
            if !matches!(answer.0, ConsumeOutcome::Stale { .. }) {
                return answer;
            }
            ask.limits = self.read_again(&ask).await;
        }
        panic!("expected to be up to date after {READS_MAX} reads");
    }

    /// Peeks as [`Fixture::take_fresh`] takes.
    pub(super) async fn peek_fresh(&self, ask: &Ask, now: TimeMs) -> Answer {
        let mut ask = ask.clone();
        for _ in 0..READS_MAX {
            let answer = self.peek(std::slice::from_ref(&ask), now).await;
            if !matches!(answer.0, ConsumeOutcome::Stale { .. }) {
                return answer;
            }
            ask.limits = self.read_again(&ask).await;
        }
        panic!("expected to be up to date after {READS_MAX} reads");
    }

    /// The limits of somebody who has read the configuration once more, and found nothing new in
    /// it.
    async fn read_again(&self, ask: &Ask) -> LimitsInForce {
        let keys = [MemberKey { entity: &ask.entity, resource: &ask.resource }];
        let resolution = self.store.resolve(&keys).await.expect("configuration can be resolved");
        if let Some((limits, source)) = &resolution.members[0].limits {
            assert_eq!(
                (limits, *source),
                (&ask.limits.limits, ask.limits.source),
                "the case asks with what is stored"
            );
        }
        LimitsInForce { stamp: resolution.stamp, ..ask.limits.clone() }
    }

    pub(super) async fn try_create(
        &self,
        id: &str,
        parent: Option<&str>,
        cascade: bool,
    ) -> Result<Entity, StoreError> {
        let entity = NewEntity { parent: parent.map(entity), cascade, ..new_entity(id) };
        self.store.create_entity(&entity, &self.change(at(0))).await
    }

    pub(super) async fn create(&self, id: &str) -> Entity {
        self.try_create(id, None, false).await.expect("an entity can be created")
    }

    pub(super) async fn rename(
        &self,
        id: &str,
        version: u64,
        name: &str,
    ) -> Result<Entity, StoreError> {
        let update = EntityUpdate { name: Some(name.to_owned()), metadata: None };
        self.store.update_entity(&entity(id), version, &update, &self.change(at(0))).await
    }

    /// Sweeps until everything was gone over; how many buckets were forgotten.
    pub(super) async fn sweep(&self, now: TimeMs) -> u64 {
        let mut buckets = 0;
        for _ in 0..ROUNDS_MAX {
            let swept = self.store.sweep(now, 100).await.expect("a store can be swept");
            buckets += swept.buckets;
            if swept.complete {
                return buckets;
            }
        }
        panic!("expected a sweep to be complete after {ROUNDS_MAX} rounds");
    }

    /// Runs `count` tasks at once and waits for all of them; their results in order.
    #[expect(clippy::disallowed_methods, reason = "a race needs tasks that run at the same time")]
    pub(super) async fn together<T, F>(
        &self,
        count: usize,
        task: impl Fn(usize, Fixture) -> F,
    ) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let tasks: Vec<_> =
            (0..count).map(|index| tokio::spawn(task(index, self.clone()))).collect();
        let mut results = Vec::with_capacity(count);
        for task in tasks {
            results.push(task.await.expect("a task of the race ends without a panic"));
        }
        results
    }
}

/// The limits of a bucket by name.
fn by_name(state: &BucketState) -> Vec<&LimitState> {
    let mut limits: Vec<_> = state.all_limits().iter().collect();
    limits.sort_by(|a, b| a.name.cmp(&b.name));
    limits
}

/// Whether a bucket is switched off, and name, parameters, balance and consumption of its limits.
type Decided = (bool, Vec<(LimitName, LimitParams, Milli, Milli)>);

/// What decisions at `now` depend on and what has been counted; `None` for a bucket that is as good
/// as none: full, unused, and open.
fn as_decided_at(state: &BucketState, now: TimeMs) -> Option<Decided> {
    let mut state = state.clone();
    state.refill(now);
    let limits = by_name(&state);
    let unused = limits.iter().all(|limit| {
        limit.balance.0 == limit.params.capacity_milli && limit.consumed == Milli::ZERO
    });
    let told = limits
        .into_iter()
        .map(|limit| (limit.name.clone(), limit.params, limit.balance, limit.consumed))
        .collect();
    (state.flag.blocks() || !unused).then_some((state.flag.blocks(), told))
}

/// An entity with a name and nothing else.
pub(super) fn new_entity(id: &str) -> NewEntity {
    NewEntity {
        id: entity(id),
        name: format!("The {id}"),
        parent: None,
        cascade: false,
        metadata: std::collections::BTreeMap::new(),
    }
}

/// Goes through a listing page by page, `limit` items each, and returns the pages.
pub(super) async fn pages<T>(
    limit: u32,
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, StoreError>,
) -> Vec<Vec<T>> {
    let mut found = Vec::new();
    let mut request = PageRequest::first(limit);
    for _ in 0..ROUNDS_MAX {
        let page = list(request).await.expect("a page can be read");
        assert!(
            page.items.len() <= limit as usize,
            "a page of at most {limit} has {} items",
            page.items.len()
        );
        found.push(page.items);
        match page.next {
            Some(cursor) => request = PageRequest::after(limit, cursor),
            None => return found,
        }
    }
    panic!("expected a listing to end after {ROUNDS_MAX} pages");
}

/// Everything a listing has, read in pages of two: what is listed does not depend on where pages
/// end.
pub(super) async fn all<T>(
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, StoreError>,
) -> Vec<T> {
    pages(2, list).await.into_iter().flatten().collect()
}
