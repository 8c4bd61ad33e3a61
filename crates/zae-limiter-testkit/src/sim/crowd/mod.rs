//! A crowd on few buckets: many processes with caches of their own, on the table in memory, in
//! virtual time, from one seed.
//!
//! The other simulators check that nothing is minted. A crowd shows the price: writes per grant,
//! round trips per answer, and which callers are refused without need. [`Crowd::run`] returns
//! [`Figures`], which a test compares with its goals and prints as a row of a table.

mod figures;
mod road;
mod time;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zae_limiter_core::{ConfigStamp, EntityId, EventId, Limit, Milli, ResourceName, Take};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{
    BoxFuture, BucketStore, Change, Clock, ConfigStore, ConsumeRequest, Level, LimitsChange,
    LimitsInForce, MemberTake, SeededEntropy,
};

pub use figures::{Answers, Figures};
pub use road::Writes;

use crate::oracle::journal::finish;
use crate::rng::Rng;
use crate::table::EvalTable;
use figures::Told;
use road::{Road, Traffic};
use time::VirtualTime;

/// Not measured: everybody makes their first look, and an item spends what it has saved.
const WARM_UP: Duration = Duration::from_secs(2);

/// The one resource.
const RESOURCE: &str = "gpt-4";

/// One bucket of a chain.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// The entity that owns the bucket.
    pub entity: &'static str,
    /// Its one limit.
    pub limit: Limit,
}

/// Clients that all ask the same.
#[derive(Clone, Debug)]
pub struct Group {
    /// The number of clients; each is a process of its own.
    pub clients: u32,
    /// The chain, the caller first.
    pub chain: Vec<Bucket>,
    /// Tokens of one request, from every bucket.
    pub tokens: u64,
    /// Requests a second of all clients together.
    pub asked_per_s: f64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// The groups of clients.
    pub groups: Vec<Group>,
    /// Write units one item takes in a second, failed conditions included; `None` for as many as
    /// come.
    pub units_per_s: Option<u32>,
    /// See [`DynamoOptions::fast_grace_ms`]; `None` for the default.
    pub fast_grace_ms: Option<i64>,
    /// How long the run is measured.
    pub measured: Duration,
    /// The seed of the run.
    pub seed: u64,
}

impl Crowd {
    /// One group on one bucket whose capacity is what it gains in a second.
    #[must_use]
    pub fn on_one_bucket(clients: u32, limit_per_s: u64, asked_per_s: f64) -> Crowd {
        let limit = Limit::per_second("rps", limit_per_s).unwrap_or_else(|error| panic!("{error}"));
        let group =
            Group { clients, chain: vec![Bucket { entity: "hot", limit }], tokens: 1, asked_per_s };
        Crowd {
            groups: vec![group],
            units_per_s: None,
            fast_grace_ms: None,
            measured: Duration::from_secs(5),
            seed: 1,
        }
    }

    /// Runs it. One [`Figures`] per group; the writes are those of all of them.
    #[must_use]
    pub fn run(&self) -> Vec<Figures> {
        let time = VirtualTime::default();
        let table = self.furnish(&time);
        let traffic = Arc::new(Traffic::new(self.units_per_s));
        let told: Vec<Arc<Mutex<Answers>>> = self.groups.iter().map(|_| Arc::default()).collect();
        let at_start: Arc<Mutex<Writes>> = Arc::default();
        let mut tasks: Vec<Option<BoxFuture<'static, ()>>> = Vec::new();
        let (clock, count, start) = (time.clone(), Arc::clone(&traffic), Arc::clone(&at_start));
        tasks.push(Some(Box::pin(async move {
            clock.sleep(WARM_UP).await;
            *start.lock().unwrap_or_else(PoisonError::into_inner) = count.writes();
        })));
        let mut number = 0;
        for (group, told) in self.groups.iter().zip(&told) {
            for _ in 0..group.clients {
                number += 1;
                let client = Client {
                    group: group.clone(),
                    fast_grace_ms: self.fast_grace_ms,
                    seed: self.seed.wrapping_mul(1_000_003).wrapping_add(number),
                    time: time.clone(),
                    told: Arc::clone(told),
                };
                let table = table.client(u32::try_from(number).unwrap_or(u32::MAX));
                tasks.push(Some(Box::pin(client.live(table, Arc::clone(&traffic)))));
            }
        }
        time.run(tasks, WARM_UP + self.measured);
        let writes =
            traffic.writes().since(*at_start.lock().unwrap_or_else(PoisonError::into_inner));
        let answers = told
            .iter()
            .map(|told| std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner)));
        answers.map(|answers| Figures { answers, writes, measured: self.measured }).collect()
    }

    /// A table with the limits of every bucket stored.
    fn furnish(&self, time: &VirtualTime) -> EvalTable {
        let table = EvalTable::new();
        let options = options(time, self.seed);
        finish(Box::pin(async {
            table.initialise(&options).await?;
            let store = table.open(options).await?;
            for (event, bucket) in (0..).zip(self.groups.iter().flat_map(|group| &group.chain)) {
                let limits = LimitsChange {
                    limits: vec![bucket.limit.clone()],
                    on_unavailable: None,
                    expected_version: None,
                };
                let change = Change {
                    principal: None,
                    at: time.now(),
                    event: EventId::new(time.now(), event),
                };
                store.set_limits(&Level::Entity(parsed(bucket.entity)), &limits, &change).await?;
            }
            Ok::<(), zae_limiter_store::StoreError>(())
        }))
        .unwrap_or_else(|error| panic!("a table for a crowd: {error}"));
        table
    }
}

/// One process.
struct Client {
    group: Group,
    fast_grace_ms: Option<i64>,
    seed: u64,
    time: VirtualTime,
    told: Arc<Mutex<Answers>>,
}

impl Client {
    /// Asks again and again, each time half to one and a half of an interval after the last.
    async fn live(self, table: EvalTable, traffic: Arc<Traffic>) {
        let trips = Arc::new(AtomicU64::new(0));
        let rng = Mutex::new(Rng::new(self.seed, 21));
        let road = Road { table, time: self.time.clone(), traffic, rng, trips: Arc::clone(&trips) };
        let mut options = options(&self.time, self.seed);
        options.fast_grace_ms = self.fast_grace_ms.unwrap_or(options.fast_grace_ms);
        let mut rng = Rng::new(self.seed, 22);
        let interval_us = 1_000_000.0 * f64::from(self.group.clients) / self.group.asked_per_s;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a few seconds"
        )]
        let mut pause = move |from: f64, to: f64| {
            let share = from + (to - from) * (rng.between(0, 1_000_000) as f64) / 1_000_000.0;
            Duration::from_micros((interval_us * share) as u64)
        };
        self.time.sleep(pause(0.0, 1.0)).await;
        let store = DynamoStore::on_table(Arc::new(road), options, &parsed("default"))
            .await
            .unwrap_or_else(|error| panic!("a client of the crowd: {error}"));
        let resource: ResourceName = parsed(RESOURCE);
        let entities: Vec<EntityId> =
            self.group.chain.iter().map(|bucket| parsed(bucket.entity)).collect();
        let read_at = ConfigStamp(u64::try_from(self.time.now().0).unwrap_or(0) * 1000);
        let level = |entity: &EntityId| Level::Entity(entity.clone()).source();
        let limits: Vec<LimitsInForce> = (entities.iter().zip(&self.group.chain))
            .map(|(entity, bucket)| {
                LimitsInForce::resolved([bucket.limit.clone()], level(entity), read_at, 7)
            })
            .collect();
        let takes = [Take { limit: 0, amount: Milli::from_tokens(self.group.tokens) }];
        let members: Vec<MemberTake<'_>> = (entities.iter().zip(&limits))
            .map(|(entity, limits)| MemberTake {
                entity,
                resource: &resource,
                limits,
                takes: &takes,
                absent: &[],
            })
            .collect();
        loop {
            let next = self.time.monotonic() + pause(0.5, 1.5);
            let (began, before) = (self.time.monotonic(), trips.load(Ordering::Relaxed));
            let answer = store.consume(&ConsumeRequest::new(&members, self.time.now())).await;
            let told = Told {
                took: self.time.monotonic() - began,
                trips: trips.load(Ordering::Relaxed) - before,
                answer,
            };
            if began >= WARM_UP {
                self.told.lock().unwrap_or_else(PoisonError::into_inner).note(told);
            }
            self.time.sleep(next.saturating_sub(self.time.monotonic())).await;
        }
    }
}

fn options(time: &VirtualTime, seed: u64) -> DynamoOptions {
    let mut options = DynamoOptions::new();
    options.clock = Arc::new(time.clone());
    options.entropy = Arc::new(SeededEntropy::new(seed));
    options
}

fn parsed<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Display,
{
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}
