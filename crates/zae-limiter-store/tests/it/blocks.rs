//! Local blocks on a store in memory: what they cost, what they keep, and what others see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use zae_limiter_core::{EntityId, EventId, Flag, Limit, LimitSource, Milli, Take, TimeMs};
use zae_limiter_store::conformance::block_sim::{BlockRun, simulate};
use zae_limiter_store::{
    BlockStore, BucketDelta, BucketStore, Capabilities, Change, ConfigStore, ConsumeOutcome,
    ConsumeRequest, Delta, Fault, FaultStore, Level, LimitsInForce, LocalBlocks, MemberTake,
    MemoryStore, PageRequest, Store, StoreErrorKind,
};

const BEGIN: i64 = 4_102_480_800_000;

/// A process on a store that others use as well, and how many writes it costs.
struct Process {
    blocks: BlockStore<FaultStore<MemoryStore>>,
    writes: Arc<AtomicU32>,
    limits: LimitsInForce,
}

impl Process {
    fn new(store: &MemoryStore, limit: &str) -> Process {
        Process::with(store, limit, LocalBlocks::default(), |_| Fault::None)
    }

    fn with(
        store: &MemoryStore,
        limit: &str,
        options: LocalBlocks,
        fault: impl Fn(&str) -> Fault + Send + Sync + 'static,
    ) -> Process {
        let writes = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&writes);
        let plan = move |operation: &'static str| {
            if matches!(operation, "consume" | "provision" | "settle" | "adjust") {
                counted.fetch_add(1, SeqCst);
            }
            fault(operation)
        };
        let inner = FaultStore::new(Arc::new(store.clone()), plan);
        let blocks = BlockStore::new(Arc::new(inner), options).expect("memory lends");
        let limits: Vec<Limit> =
            limit.split(' ').map(|limit| limit.parse().expect("a limit")).collect();
        Process { blocks, writes, limits: LimitsInForce::new(limits, LimitSource::System) }
    }

    async fn ask(&self, entity: &str, tokens: i64, at_ms: i64) -> ConsumeOutcome {
        let (entity, resource) = (name(entity), "gpt-4".parse().expect("a resource"));
        let takes = [Take { limit: 0, amount: Milli(tokens * 1_000) }];
        let member = MemberTake {
            entity: &entity,
            resource: &resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        };
        let members = [member];
        let request = ConsumeRequest::new(&members, TimeMs(BEGIN + at_ms));
        match self.blocks.consume_at_once(&request) {
            Some(outcome) => outcome,
            None => self.blocks.consume(&request).await,
        }
        .expect("no outage")
    }

    /// Charges tokens of a grant, or gives them back.
    async fn settle(&self, tokens: i64, at_ms: i64) {
        let (entity, resource) = (name("key"), "gpt-4".parse().expect("a resource"));
        let deltas = [Delta { limit: 0, amount: Milli(tokens * 1_000) }];
        let delta = BucketDelta {
            entity: &entity,
            resource: &resource,
            limits: &self.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        let answers = self.blocks.adjust(&[delta], TimeMs(BEGIN + at_ms)).await;
        assert!(answers.iter().all(Result::is_ok));
    }

    /// Takes one token; the answer as a word.
    async fn take(&self, at_ms: i64) -> &'static str {
        match self.ask("key", 1, at_ms).await {
            ConsumeOutcome::Granted(_) => "granted",
            ConsumeOutcome::Refused(_) => "refused",
            ConsumeOutcome::Blocked { .. } => "blocked",
            ConsumeOutcome::Stale { .. } | ConsumeOutcome::Contended { .. } => "other",
        }
    }

    fn writes(&self) -> u32 {
        self.writes.load(SeqCst)
    }
}

fn name(id: &str) -> EntityId {
    id.parse().expect("an id")
}

fn change(at_ms: i64) -> Change {
    let at = TimeMs(BEGIN + at_ms);
    Change { principal: None, at, event: EventId::new(at, 1) }
}

async fn stored(store: &MemoryStore) -> (Milli, Milli, u32) {
    let page = store.buckets(&name("key"), &PageRequest::default()).await.expect("a page");
    let state = &page.items[0].state;
    (state.limits()[0].balance, state.limits()[0].consumed, state.events)
}

#[tokio::test]
async fn a_hot_bucket_costs_a_fiftieth_of_the_writes() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "rpm:120000/min");
    for ms in 0..10_000 {
        assert_eq!(process.take(ms).await, "granted");
    }
    assert!(process.writes() < 10_000 / 50, "{} writes", process.writes());
    process.blocks.give_back(TimeMs(BEGIN + 10_000)).await;
    let (_, consumed, events) = stored(&store).await;
    assert_eq!((consumed, events), (Milli(10_000_000), 10_000), "use is counted, not stock");
    let stats = process.blocks.stats();
    assert_eq!((stats.held, stats.missing(), stats.lost), (Milli(0), Milli(0), Milli(0)));
}

#[tokio::test]
async fn a_slow_process_and_a_standing_clock_stay_exact() {
    let store = MemoryStore::new();
    let slow = Process::new(&store, "rpm:600/min");
    for second in 0..50 {
        assert_eq!(slow.take(second * 400).await, "granted");
    }
    assert_eq!(slow.blocks.stats().orders, 0, "2.5 a second");
    let standing = Process::new(&store, "rpm:600/min");
    for _ in 0..300 {
        standing.take(20_000).await;
    }
    assert_eq!(standing.blocks.stats().orders, 0);
}

/// Debit ahead of need without the layer rule would grant the stock on top of the full bucket.
#[tokio::test]
async fn a_full_bucket_and_old_stock_admit_the_capacity_once() {
    let store = MemoryStore::new();
    let first = Process::with(&store, "x:200/10sec:200", LocalBlocks::eager(), |_| Fault::None);
    let other = Process::with(&store, "x:200/10sec:200", LocalBlocks::eager(), |_| Fault::None);
    assert!(matches!(first.ask("key", 10, 0).await, ConsumeOutcome::Granted(_)));
    let held = first.blocks.stats().held;
    assert_eq!(held, Milli(40_000), "four more of the same");
    let mut granted = 10;
    for process in [&other, &first] {
        while matches!(process.ask("key", 1, 1_500).await, ConsumeOutcome::Granted(_)) {
            granted += 1;
        }
    }
    assert!(granted <= 200 + 30, "{granted}: the capacity, and what refills in 1.5 s");
}

#[tokio::test]
async fn disabling_binds_here_at_once_and_elsewhere_within_two_seconds() {
    let store = MemoryStore::new();
    let here = Process::with(&store, "rpm:600/min", LocalBlocks::eager(), |_| Fault::None);
    let elsewhere = Process::with(&store, "rpm:600/min", LocalBlocks::eager(), |_| Fault::None);
    assert_eq!((here.take(0).await, elsewhere.take(0).await), ("granted", "granted"));
    let level = Level::Resource("gpt-4".parse().expect("a resource"));
    here.blocks.set_flag(&level, Some(Flag::Disabled), &change(1)).await.expect("a flag");
    assert_eq!(here.take(2).await, "blocked");
    assert_eq!(elsewhere.take(3).await, "granted", "from stock that is paid for");
    assert_eq!(elsewhere.take(2_000).await, "blocked");
}

#[tokio::test]
async fn what_was_given_back_is_there_for_others() {
    let store = MemoryStore::new();
    let first = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), |_| Fault::None);
    assert!(matches!(first.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    assert_eq!(stored(&store).await, (Milli(75_000), Milli(5_000), 1));
    first.blocks.give_back(TimeMs(BEGIN)).await;
    assert_eq!(stored(&store).await, (Milli(95_000), Milli(5_000), 1));
    assert_eq!(first.blocks.stats().held, Milli::ZERO);
}

#[tokio::test]
async fn stock_that_is_too_old_is_neither_spent_nor_given_back() {
    let store = MemoryStore::new();
    let first = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), |_| Fault::None);
    assert!(matches!(first.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    first.blocks.give_back(TimeMs(BEGIN + 2_000)).await;
    assert_eq!(stored(&store).await.0, Milli(77_000), "refill makes up for it");
    assert_eq!(first.blocks.stats().faded, Milli(20_000));
}

#[tokio::test]
async fn a_clock_that_went_back_ends_a_block() {
    let store = MemoryStore::new();
    let first = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), |_| Fault::None);
    assert!(matches!(first.ask("key", 5, 1_000).await, ConsumeOutcome::Granted(_)));
    assert_eq!(first.take(950).await, "granted");
    assert_eq!(first.writes(), 1, "a little");
    assert_eq!(first.take(800).await, "granted");
    assert_eq!(first.writes(), 2, "further");
    assert_eq!(first.blocks.stats().faded, Milli(19_000));
}

#[tokio::test]
async fn a_lost_order_is_not_stock() {
    for fault in [
        Fault::FailAfter(StoreErrorKind::Unavailable),
        Fault::FailBefore(StoreErrorKind::Unavailable),
    ] {
        let store = MemoryStore::new();
        let fails = move |operation: &str| {
            if operation == "provision" { fault } else { Fault::None }
        };
        let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fails);
        let (entity, resource) = (name("key"), "gpt-4".parse().expect("a resource"));
        let takes = [Take { limit: 0, amount: Milli(1_000) }];
        let members = [MemberTake {
            entity: &entity,
            resource: &resource,
            limits: &process.limits,
            takes: &takes,
            absent: &[],
        }];
        let answer = process.blocks.consume(&ConsumeRequest::new(&members, TimeMs(BEGIN))).await;
        assert!(answer.is_err(), "{fault:?}");
        assert_eq!(process.blocks.stats().held, Milli::ZERO, "{fault:?}");
        assert_eq!(process.blocks.stats().missing(), Milli::ZERO, "{fault:?}");
    }
}

#[tokio::test]
async fn a_refund_goes_into_stock_and_costs_nothing() {
    let store = MemoryStore::new();
    let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), |_| Fault::None);
    assert!(matches!(process.ask("key", 4, 0).await, ConsumeOutcome::Granted(_)));
    process.settle(-3, 0).await;
    assert_eq!((process.writes(), process.blocks.stats().held), (1, Milli(19_000)));
    process.blocks.give_back(TimeMs(BEGIN)).await;
    assert_eq!(stored(&store).await, (Milli(99_000), Milli(1_000), 1));
}

/// Requests last longer than a block: what they give back comes to the next one.
#[tokio::test]
async fn a_refund_of_before_goes_into_the_next_block() {
    let store = MemoryStore::new();
    let process = Process::with(&store, "x:1/sec:200", LocalBlocks::eager(), |_| Fault::None);
    for _ in 0..5 {
        assert!(matches!(process.ask("key", 4, 0).await, ConsumeOutcome::Granted(_)));
    }
    process.settle(-8, 0).await;
    for tokens in [4, 8] {
        assert!(matches!(process.ask("key", tokens, 0).await, ConsumeOutcome::Granted(_)));
    }
    assert_eq!(process.writes(), 2, "two orders");
    let held = process.blocks.stats().held;
    for _ in 0..2 {
        process.settle(-4, 0).await;
    }
    let stats = process.blocks.stats();
    assert_eq!((process.writes(), stats.held), (2, held.saturating_add(Milli(8_000))));
    process.blocks.give_back(TimeMs(BEGIN)).await;
    assert_eq!(stored(&store).await, (Milli(184_000), Milli(16_000), 7));
    assert_eq!(process.blocks.stats().missing(), Milli::ZERO);
}

/// To a bucket that is full a refund is nothing, so nothing is written.
#[tokio::test]
async fn refunds_to_a_bucket_that_refills_at_once_cost_nothing() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "x:6000000/min");
    for ms in 0..5_000 {
        assert!(matches!(process.ask("key", 10, ms).await, ConsumeOutcome::Granted(_)));
        process.settle(-4, ms).await;
    }
    assert!(process.writes() < 5_000 / 50, "{} writes", process.writes());
    process.blocks.give_back(TimeMs(BEGIN + 5_000)).await;
    assert_eq!(stored(&store).await.1, Milli(30_000_000), "use is net of refunds");
    assert_eq!(process.blocks.stats().missing(), Milli::ZERO);
}

/// A refund that comes while an order is under way does not end the block of that order.
#[tokio::test]
async fn a_refund_waits_for_the_order_that_is_under_way() {
    let store = MemoryStore::new();
    let fault = |operation: &str| {
        if operation == "provision" { Fault::Yield(3) } else { Fault::None }
    };
    let process = Process::with(&store, "x:1/sec:200", LocalBlocks::eager(), fault);
    assert!(matches!(process.ask("key", 1, 0).await, ConsumeOutcome::Granted(_)));
    for _ in 0..4 {
        assert!(matches!(process.ask("key", 1, 0).await, ConsumeOutcome::Granted(_)));
    }
    assert_eq!(process.writes(), 1);
    let (outcome, ()) = tokio::join!(process.ask("key", 1, 0), process.settle(-1, 0));
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
    assert_eq!((process.writes(), process.blocks.stats().held), (2, Milli(5_000)));
}

#[tokio::test]
async fn no_more_buckets_are_watched_than_may_be() {
    let store = MemoryStore::new();
    let options = LocalBlocks::eager().blocks_max(64);
    let process = Process::with(&store, "x:1/sec:100", options, |_| Fault::None);
    for number in 0..500 {
        let outcome = process.ask(&format!("key-{number}"), 1, 0).await;
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
    }
    let orders = process.blocks.stats().orders;
    assert!((1..=64).contains(&orders), "{orders} blocks");
    assert_eq!(process.writes(), 500, "the others ask the store");
}

/// The sum of many runs, and that all of it happened.
#[test]
fn seeds() {
    let count = |name: &str, usual: u64| {
        #[expect(clippy::disallowed_methods, reason = "how many seeds to run is asked for by hand")]
        let asked = std::env::var(name).ok();
        asked.and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let (first, seeds) = (count("ZAEL_SIM_FIRST", 0), count("ZAEL_SIM_SEEDS", 2_000));
    let half = |rest: u64| {
        let mut sum = BlockRun::default();
        for seed in (first..first + seeds).filter(|seed| seed % 2 == rest) {
            let store = MemoryStore::new();
            let open = move || Arc::new(store.clone()) as Arc<dyn Store>;
            match simulate(seed, &open) {
                Ok(run) => sum = sum.and(run),
                Err(failure) => panic!("seed {seed}: {failure}"),
            }
        }
        sum
    };
    let all = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        half(0).and(odd.join().expect("no broken promise"))
    });
    println!("{all:?}");
    assert!(seeds < 100 || all.local > seeds && all.faults > seeds && all.crashes > 0);
}

#[test]
fn a_store_that_does_not_lend_is_refused() {
    assert!(!Capabilities::minimum("none").lends && MemoryStore::new().capabilities().lends);
    let wrong = LocalBlocks::default().requests(0);
    let refused = BlockStore::new(Arc::new(MemoryStore::new()), wrong);
    assert!(refused.is_err_and(|error| error.to_string().contains("requests is 0")));
}
