//! Buckets of several shards, on a table in memory: what they grant, where tokens go, and what
//! becomes of the shards.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod adverse;
mod kept;
mod limits;
mod lost;
mod moves;
mod pinned;
mod races;
mod refills;
mod takes;
mod undone;
mod views;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{
    ConfigStamp, EntityId, Limit, LimitSource, Milli, ResourceName, Take, TimeMs,
};
use zae_limiter_dynamodb::bucket::upkeep::{BucketName, Upkeep};
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{Item, Table};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Clock, ConsumeOutcome, ConsumeRequest, Delta, Grant,
    LimitsInForce, MemberTake, Place, SeededEntropy, StoreError,
};
use zae_limiter_testkit::table::{EvalOptions, EvalTable, SeededGate};

use crate::evaluated::Rig;

/// A bucket of `key` on `gpt-4`, and those who look after it.
struct Hot {
    rig: Rig,
    limits: LimitsInForce,
    entity: EntityId,
    resource: ResourceName,
    /// Every process draws its own tokens.
    seeds: AtomicU64,
}

/// Limits that no configuration knows, with the expiry of a default.
fn limits_of(texts: &[&str]) -> LimitsInForce {
    let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
    LimitsInForce::resolved(limits, LimitSource::Builder, ConfigStamp(0), 7)
}

impl Hot {
    async fn new(texts: &[&str]) -> Hot {
        Hot::on(EvalOptions::new(), texts).await
    }

    async fn on(options: EvalOptions, texts: &[&str]) -> Hot {
        Hot {
            rig: Rig::new(options).await,
            limits: limits_of(texts),
            entity: "key".parse().unwrap(),
            resource: "gpt-4".parse().unwrap(),
            seeds: AtomicU64::new(1_000),
        }
    }

    /// A process that splits nothing by itself unless it is told.
    async fn process(&self) -> DynamoStore {
        self.process_on(self.rig.table.clone(), |_| {}).await
    }

    async fn process_on(
        &self,
        table: impl Table,
        change: impl FnOnce(&mut DynamoOptions),
    ) -> DynamoStore {
        self.rig
            .client(table, |options| {
                options.share_min_milli = 1_000;
                options.fast_grace_ms = 0;
                change(options);
            })
            .await
    }

    fn upkeep(&self) -> Upkeep {
        self.upkeep_on(self.rig.table.clone())
    }

    fn upkeep_on(&self, table: impl Table) -> Upkeep {
        let mut options = DynamoOptions::new();
        options.clock = Arc::new(self.rig.clock.clone());
        options.entropy = Arc::new(SeededEntropy::new(self.seeds.fetch_add(1, Ordering::Relaxed)));
        options.share_min_milli = 1_000;
        Upkeep::new(Arc::new(table), options)
    }

    /// The table as a client reaches it whose calls wait for those of others, by a seed.
    fn crowded(&self, client: u32, seed: u64) -> EvalTable {
        let gate = SeededGate::new(seed * 100 + u64::from(client), 40, 4);
        self.rig.table.client(client).with_gate(Arc::new(gate))
    }

    fn name(&self) -> BucketName {
        BucketName {
            namespace: self.rig.namespace.clone(),
            entity: "key".to_owned(),
            resource: "gpt-4".to_owned(),
        }
    }

    /// Splits every shard until there are so many.
    async fn split_into(&self, count: i64) {
        let upkeep = self.upkeep();
        while let Some(shard) =
            self.shards().iter().position(|item| number(item, "shard_count") < count)
        {
            let shard = shard_of(&self.shards()[shard]);
            assert!(upkeep.split(&self.name(), shard).await.unwrap(), "shard {shard} splits");
        }
    }

    /// Folds all shards, in the quiet of ten minutes later.
    async fn fold(&self) -> bool {
        self.advance(601_000);
        self.upkeep().fold(&self.name()).await.unwrap()
    }

    fn advance(&self, ms: u64) {
        self.rig.clock.advance(Duration::from_millis(ms));
    }

    fn now(&self) -> TimeMs {
        self.rig.clock.now()
    }

    /// The shards there are, in order.
    fn shards(&self) -> Vec<Item> {
        let at = |shard| keys::bucket_of(&self.rig.namespace, "key", "gpt-4", shard);
        (0..64).filter_map(|shard| self.rig.table.get(&at(shard))).collect()
    }

    fn shard(&self, shard: u32) -> Item {
        let key = keys::bucket_of(&self.rig.namespace, "key", "gpt-4", shard);
        self.rig.table.get(&key).unwrap()
    }

    /// The sum of an attribute over all shards.
    fn sum(&self, name: &str) -> i64 {
        self.shards().iter().map(|item| number(item, name)).sum()
    }

    async fn ask(&self, store: &DynamoStore, tokens: &[u64]) -> Result<ConsumeOutcome, StoreError> {
        self.ask_under(store, &self.limits, tokens).await
    }

    async fn ask_under(
        &self,
        store: &DynamoStore,
        limits: &LimitsInForce,
        tokens: &[u64],
    ) -> Result<ConsumeOutcome, StoreError> {
        let takes = takes(tokens);
        let member = MemberTake {
            entity: &self.entity,
            resource: &self.resource,
            limits,
            takes: &takes,
            absent: &[],
        };
        store.consume(&ConsumeRequest::new(&[member], self.now())).await
    }

    /// Takes, or says why not.
    #[track_caller]
    fn granted(outcome: Result<ConsumeOutcome, StoreError>) -> Grant {
        match outcome.unwrap() {
            ConsumeOutcome::Granted(grant) => grant,
            other => panic!("expected a grant, found {other:?}"),
        }
    }

    /// What is left and how long to wait, by a look that takes nothing.
    async fn peek(&self, store: &DynamoStore, tokens: &[u64]) -> ConsumeOutcome {
        let takes = takes(tokens);
        let member = MemberTake {
            entity: &self.entity,
            resource: &self.resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        };
        store.peek(&ConsumeRequest::new(&[member], self.now())).await.unwrap()
    }

    /// Charges or gives back whole tokens of the first limit at one place.
    async fn adjust(
        &self,
        store: &DynamoStore,
        place: u8,
        tokens: i64,
    ) -> Result<Adjusted, StoreError> {
        let deltas = [Delta { limit: 0, amount: Milli(tokens * 1_000) }];
        let delta = BucketDelta {
            entity: &self.entity,
            resource: &self.resource,
            limits: &self.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place,
        };
        store.adjust(&[delta], self.now()).await.remove(0)
    }

    /// Takes one token after the other until a refusal; how many were granted, and the refusal.
    async fn drain(&self, store: &DynamoStore) -> (u64, ConsumeOutcome) {
        let mut granted = 0;
        let mut contended = 0;
        loop {
            match self.ask(store, &[1]).await.unwrap() {
                ConsumeOutcome::Granted(_) => granted += 1,
                ConsumeOutcome::Contended { .. } => {
                    contended += 1;
                    assert!(contended < 1_000, "never decided");
                    self.advance(50);
                }
                refused => return (granted, refused),
            }
        }
    }
}

fn takes(tokens: &[u64]) -> SmallVec<[Take; 2]> {
    (0..)
        .zip(tokens)
        .map(|(limit, tokens)| Take { limit, amount: Milli::from_tokens(*tokens) })
        .collect()
}

fn number(item: &Item, name: &str) -> i64 {
    item.get(name).map_or(0, |value| value.as_n().unwrap().parse().unwrap())
}

fn shard_of(item: &Item) -> u32 {
    item["PK"].as_s().unwrap().rsplit_once('#').unwrap().1.parse().unwrap()
}

/// The shards of a grant.
fn places(grant: &Grant) -> Vec<(u8, i64)> {
    let taken = |place: &Place| place.taken.iter().map(|take| take.amount.0).sum();
    grant.places.iter().map(|place| (place.shard, taken(place))).collect()
}
