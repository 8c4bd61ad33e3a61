//! A crowd on few buckets: many processes with caches of their own, on the table in memory, in
//! virtual time, from one seed.
//!
//! The other simulators check that nothing is minted. A crowd shows the price: writes per grant,
//! round trips per answer, and which callers are refused without need. [`Crowd::run`] returns
//! [`Figures`], which a test compares with its goals and prints as a row of a table.

mod figures;
mod road;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use zae_limiter_core::{ConfigStamp, EntityId, EventId, Limit, Milli, ResourceName, Take};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{
    BoxFuture, BucketStore, Change, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Level,
    LimitsChange, LimitsInForce, MemberTake, SeededEntropy,
};

pub use figures::{Answers, Figures};
pub use road::Writes;

use crate::oracle::journal::finish;
use crate::rng::Rng;
use crate::sim::time::VirtualTime;
use crate::table::{EvalTable, item_size};
use figures::Told;
use road::{Road, Traffic, Trips};

/// A write of an item up to this size is one unit.
const UNIT_BYTES: usize = 1_024;

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
    /// How many requests a process has under way at most.
    pub callers: u32,
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
    /// The shards of every bucket at the start; 1 for buckets that the clients make.
    pub shards: u32,
    /// Tokens that are taken from every bucket before the start, if it has shards then.
    pub spent: u64,
    /// Not measured: everybody makes their first look, and an item spends what it has saved.
    pub warm_up: Duration,
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
        let chain = vec![Bucket { entity: "hot", limit }];
        Crowd::of(vec![Group { clients, callers: 1, chain, tokens: 1, asked_per_s }])
    }

    /// These groups, with nothing else said.
    #[must_use]
    pub fn of(groups: Vec<Group>) -> Crowd {
        Crowd {
            groups,
            units_per_s: None,
            fast_grace_ms: None,
            shards: 1,
            spent: 0,
            warm_up: Duration::from_secs(2),
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
        let warm_up = self.warm_up;
        tasks.push(Some(Box::pin(async move {
            clock.sleep(warm_up).await;
            *start.lock().unwrap_or_else(PoisonError::into_inner) = count.writes();
        })));
        let mut number = 0;
        for (group, told) in self.groups.iter().zip(&told) {
            for _ in 0..group.clients {
                number += 1;
                let process = Arc::new(Process {
                    crowd: self.clone(),
                    group: group.clone(),
                    seed: self.seed.wrapping_mul(1_000_003).wrapping_add(number),
                    time: time.clone(),
                    table: table.client(u32::try_from(number).unwrap_or(u32::MAX)),
                    traffic: Arc::clone(&traffic),
                    trips: Arc::default(),
                    store: OnceCell::new(),
                    told: Arc::clone(told),
                });
                for caller in 0..u64::from(group.callers) {
                    let process = Arc::clone(&process);
                    tasks.push(Some(Box::pin(async move { process.live(caller).await })));
                }
            }
        }
        let whole = self.warm_up + self.measured;
        time.run(tasks, whole);
        let is_one_unit = |item| item_size(item) <= UNIT_BYTES;
        assert!(table.items().iter().all(is_one_unit), "a write of an item is more than a unit");
        let writes =
            traffic.writes().since(*at_start.lock().unwrap_or_else(PoisonError::into_inner));
        let figures = |(told, group): (&Arc<Mutex<Answers>>, &Group)| Figures {
            answers: std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner)),
            writes,
            splits: traffic.splits(),
            processes: group.clients,
            whole,
            measured: self.measured,
        };
        told.iter().zip(&self.groups).map(figures).collect()
    }

    /// A table with the limits of every bucket stored.
    fn furnish(&self, time: &VirtualTime) -> EvalTable {
        let table = EvalTable::new();
        let mut options = options(time, self.seed);
        options.born_split = self.shards;
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
                    reason: None,
                    at: time.now(),
                    event: EventId::new(time.now(), event),
                };
                store.set_limits(&Level::Entity(parsed(bucket.entity)), &limits, &change).await?;
            }
            for group in self.groups.iter().filter(|_| self.shards > 1) {
                let chain = Chain::of(&Group { tokens: self.spent, ..group.clone() }, time);
                let made =
                    store.consume(&ConsumeRequest::new(&chain.members(), time.now())).await?;
                assert!(matches!(made, ConsumeOutcome::Granted(_)), "{made:?}");
            }
            Ok::<(), zae_limiter_store::StoreError>(())
        }))
        .unwrap_or_else(|error| panic!("a table for a crowd: {error}"));
        table
    }
}

/// What a group asks for.
struct Chain {
    resource: ResourceName,
    entities: Vec<EntityId>,
    limits: Vec<LimitsInForce>,
    takes: [Take; 1],
}

impl Chain {
    /// With limits that are read now.
    fn of(group: &Group, time: &VirtualTime) -> Chain {
        let entities: Vec<EntityId> =
            group.chain.iter().map(|bucket| parsed(bucket.entity)).collect();
        let read_at = ConfigStamp(u64::try_from(time.now().0).unwrap_or(0) * 1000);
        let level = |entity: &EntityId| Level::Entity(entity.clone()).source();
        let limits = (entities.iter().zip(&group.chain))
            .map(|(entity, bucket)| {
                LimitsInForce::resolved([bucket.limit.clone()], level(entity), read_at, 7)
            })
            .collect();
        let takes = [Take { limit: 0, amount: Milli::from_tokens(group.tokens) }];
        Chain { resource: parsed(RESOURCE), entities, limits, takes }
    }

    fn members(&self) -> Vec<MemberTake<'_>> {
        (self.entities.iter().zip(&self.limits))
            .map(|(entity, limits)| MemberTake {
                entity,
                resource: &self.resource,
                limits,
                takes: &self.takes,
                absent: &[],
            })
            .collect()
    }
}

/// One process.
struct Process {
    crowd: Crowd,
    group: Group,
    seed: u64,
    time: VirtualTime,
    table: EvalTable,
    traffic: Arc<Traffic>,
    trips: Arc<Trips>,
    store: OnceCell<DynamoStore>,
    told: Arc<Mutex<Answers>>,
}

impl Process {
    /// The store, which the first caller opens.
    async fn open(&self) -> DynamoStore {
        let road = Road {
            table: self.table.clone(),
            time: self.time.clone(),
            traffic: Arc::clone(&self.traffic),
            rng: Mutex::new(Rng::new(self.seed, 21)),
            trips: Arc::clone(&self.trips),
        };
        let mut options = options(&self.time, self.seed);
        options.fast_grace_ms = self.crowd.fast_grace_ms.unwrap_or(options.fast_grace_ms);
        DynamoStore::on_table(Arc::new(road), options, &parsed("default"))
            .await
            .unwrap_or_else(|error| panic!("a client of the crowd: {error}"))
    }

    /// One caller: asks again and again, each time half to one and a half of an interval after the
    /// last.
    async fn live(&self, caller: u64) {
        let mut rng = Rng::new(self.seed, 22 + 100 * caller);
        let callers = f64::from(self.group.clients) * f64::from(self.group.callers);
        let interval_us = 1_000_000.0 * callers / self.group.asked_per_s;
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
        let store = self.store.get_or_init(|| self.open()).await;
        let chain = Chain::of(&self.group, &self.time);
        let (members, task) = (chain.members(), self.time.task());
        loop {
            let next = self.time.monotonic() + pause(0.5, 1.5);
            let (began, before) = (self.time.monotonic(), self.trips.of(task));
            let answer = store.consume(&ConsumeRequest::new(&members, self.time.now())).await;
            let told = Told {
                took: self.time.monotonic() - began,
                trips: self.trips.of(task) - before,
                answer,
            };
            let is_measured = began >= self.crowd.warm_up;
            self.told.lock().unwrap_or_else(PoisonError::into_inner).note(told, is_measured);
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
