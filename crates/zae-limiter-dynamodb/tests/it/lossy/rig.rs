//! One table, one client behind the proxy, one beside it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use zae_limiter_core::{EntityId, Limit, LimitSource, Milli, ResourceName, Take, TimeMs};
use zae_limiter_dynamodb::{Counters, DynamoStore};
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Clock, ConsumeOutcome, ConsumeRequest, Delta,
    LimitsInForce, MemberTake, NamespaceStore, PageRequest, StoreError, SystemClock,
};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::clocks::StillClock;
use zae_limiter_testkit::engine::proxy::{Fault, Proxy};

use crate::lossy::books::Entry;

pub(crate) const STACK: &str = "lossy";

/// The attempt timeout of scripted cases that need one to pass; the others have all the time in the
/// world.
pub(crate) const SHORT: Duration = Duration::from_millis(1_000);
/// Later than that.
pub(crate) const LATE: Fault = Fault::Late(Duration::from_millis(1_500));
const LONG: Duration = Duration::from_secs(20);

pub(crate) const NOW: Duration = Duration::ZERO;

/// Faults after which nobody knows whether the write was applied: it was.
pub(crate) const LANDED_UNHEARD: [Fault; 4] =
    [Fault::CloseAfter, Fault::ErrorAfter, Fault::GarbageAfter, Fault::HalfAfter];
/// Faults after which nobody knows whether the write was applied: it was not.
pub(crate) const LOST_UNHEARD: [Fault; 3] =
    [Fault::CloseBefore, Fault::ErrorBefore, Fault::GarbageBefore];
/// Faults that prove that the write was not applied.
pub(crate) const TOLD: [Fault; 2] = [Fault::Throttle, Fault::Conflict];

pub(crate) struct Bucket {
    pub(crate) entity: EntityId,
    pub(crate) resource: ResourceName,
    pub(crate) limits: LimitsInForce,
}

impl Bucket {
    pub(crate) fn of(entity: &str, limits: &[Limit]) -> Bucket {
        Bucket {
            entity: entity.parse().unwrap(),
            resource: "gpt-4".parse().unwrap(),
            limits: LimitsInForce::new(limits, LimitSource::Builder),
        }
    }

    /// 100 at 1 per second, and 1000 at 10 per second.
    pub(crate) fn new(entity: &str) -> Bucket {
        Bucket::of(
            entity,
            &[Limit::custom("rpm", 100, 1, 1).unwrap(), Limit::custom("tpm", 1000, 10, 1).unwrap()],
        )
    }

    pub(crate) fn member<'a>(&'a self, takes: &'a [Take]) -> MemberTake<'a> {
        MemberTake {
            entity: &self.entity,
            resource: &self.resource,
            limits: &self.limits,
            takes,
            absent: &[],
        }
    }
}

/// Takes from the first limit of each bucket of a chain.
pub(crate) async fn consume(
    store: &DynamoStore,
    chain: &[&Bucket],
    amount: Milli,
    now: TimeMs,
) -> Result<ConsumeOutcome, StoreError> {
    let takes = [Take { limit: 0, amount }];
    let members: Vec<MemberTake<'_>> = chain.iter().map(|bucket| bucket.member(&takes)).collect();
    store.consume(&ConsumeRequest::new(&members, now)).await
}

/// Charges (positive) or gives back (negative).
pub(crate) async fn adjust(
    store: &DynamoStore,
    bucket: &Bucket,
    deltas: &[Delta],
    now: TimeMs,
) -> Result<Adjusted, StoreError> {
    let delta = BucketDelta {
        entity: &bucket.entity,
        resource: &bucket.resource,
        limits: &bucket.limits,
        deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    store.adjust(&[delta], now).await.remove(0)
}

/// Balance and consumption of one limit in millitokens, as stored; `None` without a bucket.
pub(crate) async fn stored(
    store: &DynamoStore,
    bucket: &Bucket,
    limit: usize,
) -> Option<(i64, i64)> {
    let page = store.buckets(&bucket.entity, &PageRequest::first(10)).await.unwrap();
    let name = bucket.limits.limits[limit].name();
    let state = page.items.into_iter().next()?.state;
    let found = state.limits().iter().find(|limit| limit.name == *name).unwrap().clone();
    Some((found.balance.0, found.consumed.0))
}

pub(crate) struct Rig {
    pub(crate) engine: Arc<Engine>,
    pub(crate) proxy: Proxy,
    /// Behind the proxy.
    pub(crate) store: DynamoStore,
    /// Beside it.
    pub(crate) other: DynamoStore,
    clock: StillClock,
    /// The id its keys begin with.
    namespace: String,
    before: Counters,
}

impl Rig {
    pub(crate) async fn new(fault: Fault) -> Rig {
        let engine = Arc::new(Engine::start());
        let clock = StillClock::new();
        let builder = |endpoint: &str, attempt| {
            DynamoStore::builder(STACK, "us-east-1")
                .endpoint_url(endpoint)
                .timeouts(LONG, attempt)
                .fast_grace(NOW)
                .clock(Arc::new(clock.clone()))
                .trust_local_clock()
        };
        let other = builder(engine.endpoint(), LONG).create().await.unwrap();
        let proxy = Proxy::start(engine.endpoint()).await;
        let attempt = if matches!(fault, Fault::Late(_)) { SHORT } else { LONG };
        let store = builder(proxy.endpoint(), attempt).connect().await.unwrap();
        let namespaces = other.namespaces(&PageRequest::first(10)).await.unwrap();
        let namespace = namespaces.items[0].id.to_string();
        Rig { engine, proxy, store, other, clock, namespace, before: Counters::default() }
    }

    pub(crate) fn advance(&self, ms: i64) {
        self.clock.advance(ms);
    }

    pub(crate) async fn take(
        &self,
        bucket: &Bucket,
        tokens: i64,
    ) -> Result<ConsumeOutcome, StoreError> {
        consume(&self.store, &[bucket], Milli(tokens * 1000), self.clock.now()).await
    }

    pub(crate) async fn take_chain(
        &self,
        chain: &[Bucket; 2],
        tokens: i64,
    ) -> Result<ConsumeOutcome, StoreError> {
        consume(&self.store, &[&chain[0], &chain[1]], Milli(tokens * 1000), self.clock.now()).await
    }

    pub(crate) async fn take_by_other(&self, bucket: &Bucket, tokens: i64) {
        let outcome =
            consume(&self.other, &[bucket], Milli(tokens * 1000), self.clock.now()).await.unwrap();
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
    }

    /// By limit and tokens.
    pub(crate) async fn adjust(
        &self,
        bucket: &Bucket,
        changes: &[(u8, i64)],
    ) -> Result<Adjusted, StoreError> {
        let deltas: Vec<Delta> = changes
            .iter()
            .map(|(limit, tokens)| Delta { limit: *limit, amount: Milli(tokens * 1000) })
            .collect();
        adjust(&self.store, bucket, &deltas, self.clock.now()).await
    }

    /// Tokens left of and consumed from the first limit.
    pub(crate) async fn balance(&self, bucket: &Bucket) -> (i64, i64) {
        let (balance, consumed) = stored(&self.other, bucket, 0).await.unwrap();
        (balance / 1000, consumed / 1000)
    }

    /// The key of a bucket.
    pub(crate) fn pk(&self, bucket: &Bucket) -> String {
        zae_limiter_dynamodb::records::keys::bucket(
            &self.namespace,
            &bucket.entity,
            &bucket.resource,
            0,
        )
        .pk
    }

    /// Forgets what came before: the next writes meet these faults.
    pub(crate) fn script(&mut self, faults: &[Fault]) {
        self.before = self.store.counters();
        self.proxy.take();
        self.proxy.script(faults.iter().copied());
    }

    /// Nobody answers any more, and the client has noticed that its connections are gone.
    pub(crate) async fn nobody(&self) {
        self.proxy.close();
        SystemClock::new().sleep(Duration::from_millis(100)).await;
    }

    /// The bucket writes since then, once all have met their fate.
    pub(crate) async fn sent(&self) -> Vec<Entry> {
        self.proxy.idle().await;
        self.proxy.take().iter().filter_map(Entry::read).collect()
    }

    /// What was counted since then: debits sent again, confirmed, unknown; credits unknown.
    pub(crate) fn counted(&self) -> [u64; 4] {
        let (now, before) = (self.store.counters(), self.before);
        [
            now.debits_resent - before.debits_resent,
            now.debits_confirmed - before.debits_confirmed,
            now.debits_unknown - before.debits_unknown,
            now.credits_unknown - before.credits_unknown,
        ]
    }

    /// The next write of the client meets the first fault. Just before the one after it another
    /// writer comes in and makes `changes` to the bucket (as `SET` clauses), so that the client's
    /// mark is gone.
    pub(crate) fn interrupt(&mut self, first: Fault, pk: String, balance_milli: Option<i64>) {
        self.script(&[]);
        let engine = Arc::clone(&self.engine);
        let mut writes = 0;
        self.proxy.plan(move |operation| {
            if operation != "UpdateItem" {
                return Fault::Pass;
            }
            writes += 1;
            if writes == 2 {
                // A request of its own to another process: it does not need this runtime.
                engine.call("UpdateItem", &overwrite(&pk, balance_milli)).ok();
            }
            if writes == 1 { first } else { Fault::Pass }
        });
    }
}

fn overwrite(pk: &str, balance_milli: Option<i64>) -> Value {
    let mut request = json!({
        "TableName": STACK,
        "Key": {"PK": {"S": pk}, "SK": {"S": "#STATE"}},
        "UpdateExpression": "SET lw = :lw",
        "ExpressionAttributeValues": {":lw": {"S": "another"}},
    });
    if let Some(balance) = balance_milli {
        request["UpdateExpression"] = json!("SET lw = :lw, b_rpm_tk = :tk");
        request["ExpressionAttributeValues"][":tk"] = json!({"N": balance.to_string()});
    }
    request
}
