//! Clocks that are wrong, or are stepped while a process runs: no instant that is written is far
//! from the table's clock, so nobody's bucket freezes, refills twice, or goes back to old limits.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod age;
mod engine;
mod limits;
mod reset;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use zae_limiter_core::{
    ConfigStamp, EntityId, EventId, Limit, LimitSource, Milli, ResourceName, Take, TimeMs,
};
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{Item, Key};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{
    BoxFuture, BucketStore, Change, Clock, ConsumeOutcome, ConsumeRequest, LimitsInForce,
    ManualClock, MemberTake, SeededEntropy, StoreError,
};
use zae_limiter_testkit::table::EvalTable;

const START: TimeMs = TimeMs(1_767_261_600_250);

/// Steps a clock may make, in milliseconds: below and above what is tolerated, minutes, hours,
/// years.
const STEPS_MS: [i64; 10] = [
    -315_360_000_000,
    -46_800_000,
    -240_000,
    -6_000,
    -900,
    900,
    6_000,
    240_000,
    46_800_000,
    315_360_000_000,
];

/// The clock of one process. Who waits by it makes time pass, for this process and for the table.
#[derive(Clone)]
struct Hasty {
    own: ManualClock,
    truth: ManualClock,
}

impl Clock for Hasty {
    fn now(&self) -> TimeMs {
        self.own.now()
    }

    fn monotonic(&self) -> Duration {
        self.own.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.own.advance(duration);
        self.truth.advance(duration);
        Box::pin(std::future::ready(()))
    }
}

/// A table with a clock of its own.
struct World {
    table: EvalTable,
    truth: ManualClock,
    namespace: String,
}

/// One process, with a clock of its own.
struct Process {
    store: DynamoStore,
    clock: ManualClock,
}

impl World {
    async fn new() -> World {
        let mut world = World {
            table: EvalTable::new(),
            truth: ManualClock::new(START),
            namespace: String::new(),
        };
        world.namespace = world.table.initialise(&world.options(&world.truth, 0)).await.unwrap();
        world
    }

    /// A process whose clock is this far off, with the default options.
    async fn process(&self, number: u32, off_ms: i64) -> Process {
        self.process_on(self.table.client(number), number, off_ms).await
    }

    async fn process_on(&self, table: EvalTable, number: u32, off_ms: i64) -> Process {
        self.process_by(table, number, ManualClock::new(self.truth.now().plus_ms(off_ms))).await
    }

    async fn process_by(&self, table: EvalTable, number: u32, clock: ManualClock) -> Process {
        let table = table.with_dates(Arc::new(clock.clone()), Arc::new(self.truth.clone()));
        let store = table.open(self.options(&clock, number)).await.unwrap();
        Process { store, clock }
    }

    fn options(&self, clock: &ManualClock, number: u32) -> DynamoOptions {
        let mut options = DynamoOptions::new();
        options.clock = Arc::new(Hasty { own: clock.clone(), truth: self.truth.clone() });
        options.entropy = Arc::new(SeededEntropy::new(u64::from(number)));
        options
    }

    /// Time passes, for everybody.
    fn pass(&self, by: Duration, processes: &[&Process]) {
        self.truth.advance(by);
        processes.iter().for_each(|process| process.clock.advance(by));
    }

    fn key(&self) -> Key {
        keys::bucket_of(&self.namespace, "key", "gpt-4", 0)
    }

    fn bucket(&self) -> Item {
        self.table.get(&self.key()).unwrap()
    }

    fn number(&self, attribute: &str) -> i64 {
        self.bucket()[attribute].as_n().unwrap().parse().unwrap()
    }

    /// How far the refill instant is ahead of the table's clock.
    fn ahead_ms(&self) -> i64 {
        self.number("rf") - self.truth.now().0
    }

    fn change(&self, number: u128) -> Change {
        let at = self.truth.now();
        Change {
            principal: Some("ops".parse().unwrap()),
            reason: None,
            at,
            event: EventId::new(at, number),
        }
    }
}

fn gpt() -> ResourceName {
    "gpt-4".parse().unwrap()
}

/// Limits that are stored nowhere.
fn unstored(text: &str) -> LimitsInForce {
    let limits: Vec<Limit> = text.split(' ').map(|limit| limit.parse().unwrap()).collect();
    LimitsInForce::resolved(limits, LimitSource::Builder, ConfigStamp(0), 7)
}

impl Process {
    async fn take(
        &self,
        limits: &LimitsInForce,
        tokens: u64,
    ) -> Result<ConsumeOutcome, StoreError> {
        let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
        let (entity, resource): (EntityId, _) = ("key".parse().unwrap(), gpt());
        let member =
            MemberTake { entity: &entity, resource: &resource, limits, takes: &takes, absent: &[] };
        self.store.consume(&ConsumeRequest::new(&[member], self.clock.now())).await
    }

    async fn is_granted(&self, limits: &LimitsInForce, tokens: u64) -> bool {
        matches!(self.take(limits, tokens).await, Ok(ConsumeOutcome::Granted(_)))
    }

    /// Takes one by one, as much as it gets.
    async fn drain(&self, limits: &LimitsInForce) -> u64 {
        const TAKES_MAX: u64 = 10_000;
        for granted in 0..TAKES_MAX {
            if !self.is_granted(limits, 1).await {
                return granted;
            }
        }
        panic!("there is no end to it");
    }

    fn step(&self, by_ms: i64) {
        self.clock.step_to(self.clock.now().plus_ms(by_ms));
    }
}
