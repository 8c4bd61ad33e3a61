//! One process of a fleet: asks when its requests come, and does not wait for answers in between.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use zae_limiter_core::{Milli, Take, TimeMs};
use zae_limiter_store::{
    BlockStore, BoxFuture, BucketStore as _, Clock, ConsumeOutcome, ConsumeRequest, MemberTake,
    MemoryStore, SeededEntropy, StoreError,
};

use super::{Arrival, Fleet, Road, World, lock};
use crate::oracle::journal::finish;
use crate::rng::Rng;

/// What was granted in the measured time.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Requests, by process.
    pub(super) granted: Vec<u64>,
    /// Tokens, by process.
    pub(super) tokens: Vec<u64>,
    /// Answers that are neither.
    pub(super) other: u64,
}

impl Told {
    pub(super) fn new(fleet: &Fleet) -> Told {
        let none = vec![0; fleet.processes as usize];
        Told { granted: none.clone(), tokens: none, other: 0 }
    }
}

enum Way {
    Blocks(BlockStore<Road>),
    Plain(Road),
}

pub(super) struct Process {
    way: Way,
    world: Arc<World>,
}

impl Process {
    pub(super) fn new(
        fleet: &Fleet,
        number: u32,
        world: Arc<World>,
        store: MemoryStore,
    ) -> Arc<Process> {
        let rng = Mutex::new(Rng::new(fleet.seed, 37 + 10 * u64::from(number)));
        let road = Road { store, world: Arc::clone(&world), process: number, rng };
        let way = match fleet.blocks {
            Some(options) => {
                let clock = Arc::new(world.time.clone());
                let entropy = SeededEntropy::new(fleet.seed ^ (u64::from(number) << 32));
                let entropy = Arc::new(entropy);
                let blocks = BlockStore::with_clock(Arc::new(road), options, clock, entropy);
                Way::Blocks(blocks.unwrap_or_else(|error| panic!("memory lends: {error}")))
            }
            None => Way::Plain(road),
        };
        Arc::new(Process { way, world })
    }

    pub(super) async fn live(self: Arc<Process>, arrivals: Vec<Arrival>) {
        let (time, mut next) = (self.world.time.clone(), 0);
        let mut waiting: Vec<BoxFuture<'static, ()>> = Vec::new();
        while next < arrivals.len() || !waiting.is_empty() {
            let now = time.now();
            while let Some(arrival) = arrivals.get(next).filter(|it| it.at <= now) {
                next += 1;
                if !self.ask_at_once(arrival) {
                    waiting.push(Box::pin(Arc::clone(&self).ask(*arrival)));
                }
            }
            let pause = arrivals.get(next).map(|it| it.at.since(now));
            let pause = pause.map(|ms| std::time::Duration::from_millis(ms.unsigned_abs()));
            let mut sleep = pause.map(|pause| time.sleep(pause));
            poll_fn(|context| {
                let before = waiting.len();
                waiting.retain_mut(|it| Pin::as_mut(it).poll(context).is_pending());
                let is_time = sleep.as_mut().is_some_and(|it| it.as_mut().poll(context).is_ready());
                let is_over = is_time || waiting.len() < before && sleep.is_none();
                if is_over { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    fn ask_at_once(&self, arrival: &Arrival) -> bool {
        let Way::Blocks(blocks) = &self.way else { return false };
        let takes = takes(&self.world, arrival);
        let members = [member(&self.world, arrival, &takes)];
        let request = ConsumeRequest::new(&members, arrival.at);
        let answer = blocks.consume_at_once(&request);
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            self.told(arrival, &answer);
        }
        is_answered
    }

    async fn ask(self: Arc<Process>, arrival: Arrival) {
        let takes = takes(&self.world, &arrival);
        let members = [member(&self.world, &arrival, &takes)];
        let request = ConsumeRequest::new(&members, arrival.at);
        let answer = match &self.way {
            Way::Blocks(blocks) => blocks.consume(&request).await,
            Way::Plain(road) => road.consume(&request).await,
        };
        self.told(&arrival, &answer);
    }

    fn told(&self, arrival: &Arrival, answer: &Result<ConsumeOutcome, StoreError>) {
        match answer {
            Ok(ConsumeOutcome::Granted(_)) => {
                lock(&self.world.exact).count(arrival, self.world.time.now());
                if arrival.at >= self.world.warm {
                    let mut told = lock(&self.world.told);
                    told.granted[arrival.process as usize] += 1;
                    told.tokens[arrival.process as usize] += u64::from(arrival.tokens);
                }
            }
            Ok(ConsumeOutcome::Refused(_) | ConsumeOutcome::Paced { .. }) => {}
            _ => lock(&self.world.told).other += 1,
        }
    }
}

fn takes(world: &World, arrival: &Arrival) -> Vec<Take> {
    let takes = (0_u8..).zip(arrival.amounts()).map(|(limit, amount)| Take { limit, amount });
    takes.take(world.limits.limits.len()).collect()
}

fn member<'a>(world: &'a World, arrival: &Arrival, takes: &'a [Take]) -> MemberTake<'a> {
    MemberTake {
        entity: &world.names[arrival.bucket as usize],
        resource: &world.resource,
        limits: &world.limits,
        takes,
        absent: &[],
    }
}

/// Empties a bucket.
pub(super) fn take_all(world: &World, bucket: u32, store: &MemoryStore) {
    let now = world.time.now();
    let arrival = Arrival { at: now, process: 0, bucket, tokens: 0 };
    let full = |(limit, of): (u8, &zae_limiter_core::Limit)| Take {
        limit,
        amount: Milli(of.params().capacity_milli),
    };
    let takes: Vec<Take> = (0_u8..).zip(world.limits.limits.iter()).map(full).collect();
    let members = [member(world, &arrival, &takes)];
    let taken = finish(store.consume(&ConsumeRequest::new(&members, TimeMs(now.0))));
    assert!(matches!(taken, Ok(ConsumeOutcome::Granted(_))), "{taken:?}");
}
