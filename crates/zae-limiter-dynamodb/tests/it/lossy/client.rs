//! A client of the seeded runs: what it does over its lossy wire, what it is told, what it counts.

use std::sync::Arc;
use std::time::Duration;

use zae_limiter_core::Milli;
use zae_limiter_dynamodb::{Counters, DynamoStore};
use zae_limiter_store::{
    Adjusted, Clock, ConsumeOutcome, Delta, Entropy, SeededEntropy, StoreError, SystemClock,
};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::proxy::Proxy;

use crate::lossy::books::Entry;
use crate::lossy::rig::{Bucket, STACK, adjust, consume};
use crate::lossy::seeds::{ATTEMPT, CLIENTS, FAULTS_PERCENT, STEPS};

/// What a client did, what it was told, and what it counted.
#[derive(Debug)]
pub(super) struct Step {
    /// Indexes of the buckets, the caller first.
    pub(super) chain: Vec<usize>,
    pub(super) kind: Kind,
    /// No two takes and charges of a client are for the same amount, so what went over the wire
    /// tells whose it was, whenever it came. A credit has the amount of its take.
    pub(super) milli: i64,
    pub(super) told: Told,
    pub(super) counted: Counted,
}

impl Step {
    /// True when the client sent this for this step. Only a take that is not granted gives back by
    /// itself.
    pub(super) fn has_sent(&self, entry: &Entry) -> bool {
        let amount = entry.counts["rpm"];
        match self.kind {
            Kind::Credit => amount == -self.milli,
            Kind::Charge => amount == self.milli,
            Kind::Take => {
                amount == self.milli || (amount == -self.milli && self.told != Told::Done)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Take,
    Charge,
    Credit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Done,
    Refused,
    /// An error that proves that nothing was applied.
    Failed,
    /// An error that proves nothing.
    Unknown,
}

impl Told {
    pub(super) fn of_error(error: &StoreError) -> Told {
        if error.fate_unknown() { Told::Unknown } else { Told::Failed }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) resent: u64,
    pub(super) confirmed: u64,
    pub(super) unknown: u64,
    pub(super) credits_unknown: u64,
}

impl Counted {
    pub(super) fn between(before: Counters, after: Counters) -> Counted {
        Counted {
            resent: after.debits_resent - before.debits_resent,
            confirmed: after.debits_confirmed - before.debits_confirmed,
            unknown: after.debits_unknown - before.debits_unknown,
            credits_unknown: after.credits_unknown - before.credits_unknown,
        }
    }
}

/// How often something happened over all runs: a check of what never happens is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coverage {
    pub(super) granted: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) resent: u64,
    pub(super) confirmed: u64,
    pub(super) unknown: u64,
    pub(super) credits_unknown: u64,
    pub(super) compensations: u64,
    /// Debits that landed more than once.
    pub(super) doubled: u64,
    /// Debits that landed although their caller was not granted.
    pub(super) orphans: u64,
    /// Credits that landed although nobody heard of it.
    pub(super) credits_unheard: u64,
    pub(super) requests: u64,
}

impl Coverage {
    pub(super) fn add(&mut self, other: &Coverage) {
        let Coverage {
            granted,
            refused,
            failed,
            resent,
            confirmed,
            unknown,
            credits_unknown,
            compensations,
            ..
        } = *other;
        self.granted += granted;
        self.refused += refused;
        self.failed += failed;
        self.resent += resent;
        self.confirmed += confirmed;
        self.unknown += unknown;
        self.credits_unknown += credits_unknown;
        self.compensations += compensations;
        self.doubled += other.doubled;
        self.orphans += other.orphans;
        self.credits_unheard += other.credits_unheard;
        self.requests += other.requests;
    }

    pub(super) fn is_complete(&self) -> bool {
        let Coverage {
            granted,
            refused,
            failed,
            resent,
            confirmed,
            unknown,
            credits_unknown,
            compensations,
            ..
        } = *self;
        [
            granted,
            refused,
            failed,
            resent,
            confirmed,
            unknown,
            credits_unknown,
            compensations,
            self.doubled,
            self.credits_unheard,
        ]
        .iter()
        .all(|count| *count > 0)
    }
}

/// A client with a wire of its own.
pub(super) struct Client {
    pub(super) proxy: Proxy,
    pub(super) store: DynamoStore,
    pub(super) choices: SeededEntropy,
}

impl Client {
    pub(super) async fn new(engine: &Engine, seed: u64, index: u64) -> Client {
        let proxy = Proxy::start(engine.endpoint()).await;
        let stream = seed.wrapping_mul(CLIENTS).wrapping_add(index);
        let store = DynamoStore::builder(STACK, "us-east-1")
            .endpoint_url(proxy.endpoint())
            .timeouts(Duration::from_secs(5), ATTEMPT)
            .entropy(Arc::new(SeededEntropy::new(stream)))
            .connect()
            .await
            .unwrap();
        proxy.take();
        proxy.seed(seed, index, FAULTS_PERCENT, ATTEMPT);
        Client { proxy, store, choices: SeededEntropy::new(!stream) }
    }

    pub(super) fn choose(&self, count: u64) -> u64 {
        self.choices.next_u64() % count
    }

    /// Everything it does, one after the other.
    pub(super) async fn work(&self, buckets: &[Bucket; 3], clock: &SystemClock) -> Vec<Step> {
        let (mut steps, mut receipts) = (Vec::new(), Vec::new());
        for number in 1..=STEPS {
            let milli = i64::try_from(1000 + 1000 * self.choose(6) + number).unwrap();
            let chains: [&[usize]; 4] = [&[0, 2], &[0, 2], &[1], &[2]];
            let chain = chains[usize::try_from(self.choose(4)).unwrap()].to_vec();
            let (kind, chain, milli) = match (self.choose(10), receipts.pop()) {
                (0 | 1, Some((bucket, taken))) => {
                    receipts.push((bucket, taken));
                    (Kind::Charge, vec![bucket], milli)
                }
                // All of it goes back, as a rollback does, and only once.
                (2..=5, Some((bucket, taken))) => (Kind::Credit, vec![bucket], taken),
                (_, receipt) => {
                    receipts.extend(receipt);
                    (Kind::Take, chain, milli)
                }
            };
            let before = self.store.counters();
            let told = self.step(buckets, kind, &chain, milli, clock).await;
            if kind == Kind::Take && told == Told::Done {
                receipts.extend(chain.iter().map(|bucket| (*bucket, milli)));
            }
            let counted = Counted::between(before, self.store.counters());
            steps.push(Step { chain, kind, milli, told, counted });
        }
        steps
    }

    pub(super) async fn step(
        &self,
        buckets: &[Bucket; 3],
        kind: Kind,
        chain: &[usize],
        milli: i64,
        clock: &SystemClock,
    ) -> Told {
        let members: Vec<&Bucket> = chain.iter().map(|index| &buckets[*index]).collect();
        let now = clock.now();
        match kind {
            Kind::Take => match consume(&self.store, &members, Milli(milli), now).await {
                Ok(ConsumeOutcome::Granted(_)) => Told::Done,
                Ok(ConsumeOutcome::Refused(_) | ConsumeOutcome::Contended { .. }) => Told::Refused,
                Ok(other) => panic!("nobody changes any configuration: {other:?}"),
                Err(error) => Told::of_error(&error),
            },
            Kind::Charge | Kind::Credit => {
                let delta = Delta {
                    limit: 0,
                    amount: Milli(if kind == Kind::Charge { milli } else { -milli }),
                };
                match adjust(&self.store, members[0], &[delta], now).await {
                    Ok(Adjusted::Applied) => Told::Done,
                    Ok(other) => panic!("the bucket is there: {other:?}"),
                    Err(error) => Told::of_error(&error),
                }
            }
        }
    }
}
