//! A fleet of processes with local blocks on one store, in virtual time, from one seed: how much of
//! each limit is used, who gets it, who is refused without need, and how many writes that costs.
//!
//! The same requests go to an exact bucket without processes. It says what could have been granted
//! and, fed with what was granted, that nothing was granted too much.

mod arrivals;
mod figures;
mod process;
mod road;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zae_limiter_core::{EntityId, Limit, LimitSource, Milli, ResourceName};
use zae_limiter_store::{BoxFuture, Clock, LimitsInForce, LocalBlocks, MemoryStore};

use crate::sim::time::VirtualTime;
use arrivals::{Arrival, Exact};
pub use figures::{BUSY_PER_S, FleetFigures};
use process::{Process, Told};
use road::{Calls, Road};

/// Zipf's law: the second is asked for half as often as the first, the third a third as often.
fn zipf(count: u32) -> Vec<f64> {
    let whole: f64 = (1..=count).map(|place| 1.0 / f64::from(place)).sum();
    (1..=count).map(|place| 1.0 / f64::from(place) / whole).collect()
}

/// A run.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// How many processes. The load of each is its share by Zipf's law.
    pub processes: u32,
    /// How many buckets. The load of each is its share by Zipf's law.
    pub buckets: u32,
    /// The limit of requests of every bucket.
    pub limit: Limit,
    /// Beside it a limit of tokens; a request takes 100 to 900.
    pub tokens: Option<Limit>,
    /// What is asked for, in multiples of what all buckets together refill.
    pub load: f64,
    /// The blocks; `None` for a call per request.
    pub blocks: Option<LocalBlocks>,
    /// Not measured.
    pub warm_up: Duration,
    /// How long is measured.
    pub measured: Duration,
    /// The seed of the run.
    pub seed: u64,
}

impl Fleet {
    /// Processes with blocks of the usual sizes on one bucket.
    #[must_use]
    pub fn on_one_bucket(processes: u32, limit: &Limit, load: f64) -> Fleet {
        Fleet {
            processes,
            buckets: 1,
            limit: limit.clone(),
            tokens: None,
            load,
            blocks: Some(LocalBlocks::default()),
            warm_up: Duration::from_secs(5),
            measured: Duration::from_secs(15),
            seed: 1,
        }
    }

    /// The same without blocks.
    #[must_use]
    pub fn without_blocks(&self) -> Fleet {
        Fleet { blocks: None, ..self.clone() }
    }

    /// Runs it.
    #[must_use]
    pub fn run(&self) -> FleetFigures {
        let time = VirtualTime::default();
        let arrivals = arrivals::draw(self, time.now());
        let world = Arc::new(World {
            limits: self.limits(),
            names: (0..self.buckets).map(|bucket| parsed(&format!("key-{bucket}"))).collect(),
            resource: parsed("gpt-4"),
            exact: Mutex::new(Exact::new(self, time.now())),
            calls: Mutex::new(Calls::new(self.processes)),
            told: Mutex::new(Told::new(self)),
            warm: time.now().plus_ms(millis(self.warm_up)),
            time: time.clone(),
        });
        let store = MemoryStore::new();
        world.empty(self, &store);
        let mut tasks: Vec<Option<BoxFuture<'static, ()>>> = Vec::new();
        for number in 0..self.processes {
            let mine: Vec<Arrival> =
                arrivals.iter().filter(|it| it.process == number).copied().collect();
            let process = Process::new(self, number, Arc::clone(&world), store.clone());
            tasks.push(Some(Box::pin(process.live(mine))));
        }
        let counted = Arc::clone(&world);
        let (warm_up, processes) = (self.warm_up, self.processes);
        tasks.push(Some(Box::pin(async move {
            counted.time.sleep(warm_up).await;
            let mut calls = lock(&counted.calls);
            *calls = Calls::new(processes);
        })));
        time.run(tasks, self.warm_up + self.measured + Duration::from_secs(5));
        let told = std::mem::take(&mut *lock(&world.told));
        FleetFigures::new(self, &arrivals, world.warm, told, &lock(&world.calls), world.over())
    }

    fn limits(&self) -> LimitsInForce {
        let limits: Vec<Limit> =
            [Some(&self.limit), self.tokens.as_ref()].into_iter().flatten().cloned().collect();
        LimitsInForce::new(limits, LimitSource::System)
    }

    /// Requests of a second, of all processes to all buckets.
    fn asked_per_s(&self) -> f64 {
        let params = self.limit.params();
        let per_s = params.refill_milli as f64 / params.period_ms as f64;
        per_s * self.load * f64::from(self.buckets)
    }

    /// Above the limit a run begins with empty buckets: how they become empty is another question.
    fn begins_empty(&self) -> bool {
        self.load >= 1.0
    }
}

/// What the processes of a run have in common.
struct World {
    limits: LimitsInForce,
    names: Vec<EntityId>,
    resource: ResourceName,
    /// Fed with what was granted.
    exact: Mutex<Exact>,
    calls: Mutex<Calls>,
    told: Mutex<Told>,
    /// From when on it is measured.
    warm: zae_limiter_core::TimeMs,
    time: VirtualTime,
}

impl World {
    /// How much was granted beyond an exact bucket.
    fn over(&self) -> Milli {
        lock(&self.exact).over
    }

    fn empty(&self, fleet: &Fleet, store: &MemoryStore) {
        if fleet.begins_empty() {
            for bucket in 0..fleet.buckets {
                process::take_all(self, bucket, store);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn parsed<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Display,
{
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}
