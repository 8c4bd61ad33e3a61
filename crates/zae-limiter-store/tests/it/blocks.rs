//! Local blocks on a store in memory: what they cost, what they keep, and what others see.

mod chained;
mod crowds;
mod guards;
mod late;
mod overlap;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use zae_limiter_core::{EntityId, EventId, Flag, Limit, LimitSource, Milli, Take, TimeMs};
use zae_limiter_store::conformance::block_sim::run_seeds;
use zae_limiter_store::{
    BlockStore, BucketDelta, BucketStore, Capabilities, Change, ConfigStore, ConsumeOutcome,
    ConsumeRequest, Delta, Fault, FaultStore, Level, LimitsChange, LimitsInForce, LocalBlocks,
    ManualClock, MemberTake, MemoryStore, PageRequest, ResetRequest, SeededEntropy, Store,
    StoreError, StoreErrorKind,
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
        self.try_ask(entity, tokens, at_ms).await.expect("no outage")
    }

    async fn try_ask(
        &self,
        entity: &str,
        tokens: i64,
        at_ms: i64,
    ) -> Result<ConsumeOutcome, StoreError> {
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
            ConsumeOutcome::Paced { .. } => "paced",
            ConsumeOutcome::Blocked { .. } => "blocked",
            ConsumeOutcome::Stale { .. } | ConsumeOutcome::Contended { .. } => "other",
        }
    }

    fn writes(&self) -> u32 {
        self.writes.load(SeqCst)
    }
}

fn entropy() -> Arc<SeededEntropy> {
    Arc::new(SeededEntropy::new(1))
}

fn name(id: &str) -> EntityId {
    id.parse().expect("an id")
}

fn change(at_ms: i64) -> Change {
    let at = TimeMs(BEGIN + at_ms);
    Change { principal: None, reason: None, at, event: EventId::new(at, 1) }
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

/// A wall clock that was set back would bring a block back to life; the clock that is never set
/// does not.
#[tokio::test]
async fn a_block_ages_by_the_clock_that_is_never_set() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(TimeMs(BEGIN)));
    let mut process = Process::new(&store, "x:1/sec:100");
    let inner = Arc::new(FaultStore::new(Arc::new(store.clone()), |_: &'static str| Fault::None));
    let blocks =
        BlockStore::with_clock(inner, LocalBlocks::eager(), Arc::new(clock.clone()), entropy());
    process.blocks = blocks.expect("memory lends");
    assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    clock.advance(Duration::from_millis(1_999));
    assert_eq!((process.take(10).await, process.blocks.stats().orders), ("granted", 1));
    clock.advance(Duration::from_millis(1));
    assert_eq!((process.take(20).await, process.blocks.stats().orders), ("granted", 2));
    assert_eq!(process.blocks.stats().faded, Milli(19_000), "nor is it given back");
}

/// A store that says that it has written nothing leaves the block and the use as they were.
#[tokio::test]
async fn a_return_and_an_order_that_were_not_written_change_nothing() {
    for operation in ["settle", "provision"] {
        let is_down = Arc::new(AtomicU32::new(0));
        let down = Arc::clone(&is_down);
        let fault = move |asked: &str| match asked == operation && down.load(SeqCst) > 0 {
            true => Fault::FailBefore(StoreErrorKind::Busy),
            false => Fault::None,
        };
        let store = MemoryStore::new();
        let process = Process::with(&store, "x:10/sec:100", LocalBlocks::eager(), fault);
        assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
        assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
        // What refill has reached by now counts as faded when it is gone, and not before.
        let before = process.blocks.stats();
        is_down.store(1, SeqCst);
        if operation == "settle" {
            process.blocks.give_back(TimeMs(BEGIN + 1_400)).await;
        } else {
            assert!(process.try_ask("key", 16, 1_400).await.is_err());
        }
        let after = process.blocks.stats();
        assert_eq!((after.held, after.faded, after.lost), (before.held, before.faded, before.lost));
        assert_eq!((after.held, after.missing()), (Milli(15_000), Milli::ZERO));
        assert_eq!(process.take(0).await, "granted");
        is_down.store(0, SeqCst);
        process.blocks.give_back(TimeMs(BEGIN)).await;
        assert_eq!(stored(&store).await, (Milli(89_000), Milli(11_000), 3), "{operation}");
    }
}

/// What was bought under the limits of before is dropped when limits change, also when nothing
/// could be given back.
#[tokio::test]
async fn a_change_of_limits_forfeits_what_could_not_be_given_back() {
    for (is_down, lost, balance) in [(false, 0, 95_000), (true, 20_000, 75_000)] {
        let store = MemoryStore::new();
        let fault = move |operation: &str| match operation == "settle" && is_down {
            true => Fault::FailBefore(StoreErrorKind::Busy),
            false => Fault::None,
        };
        let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fault);
        assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
        let others = LimitsChange {
            limits: vec!["x:1/sec:50".parse().expect("a limit")],
            on_unavailable: None,
            expected_version: None,
        };
        let level = Level::Resource("gpt-4".parse().expect("a resource"));
        process.blocks.set_limits(&level, &others, &change(0)).await.expect("a change");
        let stats = process.blocks.stats();
        assert_eq!((stats.held, stats.lost, stats.missing()), (Milli(0), Milli(lost), Milli(0)));
        assert_eq!(stored(&store).await.0, Milli(balance));
    }
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
        // The requests of 50 ms end at once.
        for _ in 0..if ms % 50 == 49 { 50 } else { 0 } {
            process.settle(-4, ms).await;
        }
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

/// An order that hangs holds up nobody for longer than half a second.
#[tokio::test]
async fn the_wait_for_the_order_of_another_has_an_end() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(TimeMs(BEGIN)));
    let plan = |operation: &'static str| {
        if operation == "provision" { Fault::Hang } else { Fault::None }
    };
    let mut process = Process::new(&store, "x:1/sec:100");
    let faulty = Arc::new(FaultStore::new(Arc::new(store.clone()), plan));
    let blocks =
        BlockStore::with_clock(faulty, LocalBlocks::eager(), Arc::new(clock.clone()), entropy());
    process.blocks = blocks.expect("memory lends");
    let mut hangs = Box::pin(process.ask("key", 1, 0));
    let mut waits = Box::pin(process.ask("key", 1, 0));
    let mut refund = Box::pin(process.settle(-1, 0));
    let mut context = Context::from_waker(Waker::noop());
    assert!(hangs.as_mut().poll(&mut context).is_pending());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    assert!(refund.as_mut().poll(&mut context).is_pending());
    clock.advance(Duration::from_millis(499));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    clock.advance(Duration::from_millis(1));
    let answer = waits.as_mut().poll(&mut context);
    assert!(matches!(answer, Poll::Ready(ConsumeOutcome::Granted(_))), "the store is asked");
    // A refund waits for room in the stock, and then for the end of the block.
    assert!(refund.as_mut().poll(&mut context).is_pending());
    clock.advance(Duration::from_millis(500));
    assert!(refund.as_mut().poll(&mut context).is_ready());
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

#[test]
fn seeds() {
    run_seeds(2_000, |_| {
        let store = MemoryStore::new();
        move || Arc::new(store.clone()) as Arc<dyn Store>
    });
}

#[test]
fn a_store_that_does_not_lend_is_refused() {
    assert!(!Capabilities::minimum("none").lends && MemoryStore::new().capabilities().lends);
    let wrong = LocalBlocks::default().requests(0);
    let refused = BlockStore::new(Arc::new(MemoryStore::new()), wrong);
    assert!(refused.is_err_and(|error| error.to_string().contains("requests is 0")));
}
