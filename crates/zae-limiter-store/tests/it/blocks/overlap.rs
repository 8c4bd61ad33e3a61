//! What happens beside an order, a return or a chain that is under way (`docs/guards.md`).

use std::pin::pin;
use std::sync::{Mutex, OnceLock};

use zae_limiter_core::{NamespaceId, UsageWindow};
use zae_limiter_store::{BoxFuture, HistoryStore as _, NamespaceStore as _, UsageQuery};

use super::*;

pub(super) fn poll<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

pub(super) async fn chain(
    process: &Process,
    names: &[EntityId; 2],
    takes: &[Take],
) -> ConsumeOutcome {
    let resource = "gpt-4".parse().expect("a resource");
    let member = |entity| MemberTake {
        entity,
        resource: &resource,
        limits: &process.limits,
        takes,
        absent: &[],
    };
    let members = names.each_ref().map(member);
    let request = ConsumeRequest::new(&members, TimeMs(BEGIN));
    process.blocks.consume(&request).await.expect("no outage")
}

pub(super) fn both() -> [EntityId; 2] {
    [name("child"), name("parent")]
}

pub(super) fn tokens(amount: i64) -> [Take; 1] {
    [Take { limit: 0, amount: Milli(amount * 1_000) }]
}

pub(super) fn eager_with(limit: &str, fault: fn(&str) -> Fault) -> (MemoryStore, Process) {
    let store = MemoryStore::new();
    let process = Process::with(&store, limit, LocalBlocks::eager(), fault);
    (store, process)
}

/// Eager blocks that age by a clock of their own.
pub(super) fn with_clock(
    store: &MemoryStore,
    limit: &str,
    fault: impl Fn(&str) -> Fault + Send + Sync + 'static,
) -> (Process, ManualClock) {
    let clock = ManualClock::new(TimeMs(BEGIN));
    let mut process = Process::new(store, limit);
    let plan = move |operation: &'static str| fault(operation);
    let faulty = Arc::new(FaultStore::new(Arc::new(store.clone()), plan));
    let blocks =
        BlockStore::with_clock(faulty, LocalBlocks::eager(), Arc::new(clock.clone()), entropy());
    process.blocks = blocks.expect("memory lends");
    (process, clock)
}

/// The tokens of a refused chain were taken from a block that has been replaced meanwhile. In the
/// stock of the next block they would take the place of what was spent from that one, and an exact
/// bucket has got no refund.
#[tokio::test]
async fn what_a_refused_chain_took_does_not_go_into_the_next_block() {
    let (store, process) =
        eager_with(
            "x:1/day:100",
            |name| if name == "consume" { Fault::Yield(3) } else { Fault::None },
        );
    assert!(matches!(process.ask("child", 4, 0).await, ConsumeOutcome::Granted(_)));
    let others = Process::new(&store, "x:1/day:100");
    assert!(matches!(others.ask("parent", 100, 0).await, ConsumeOutcome::Granted(_)));
    let (names, takes) = (both(), tokens(5));
    let mut refused = pin!(chain(&process, &names, &takes));
    assert!(poll(refused.as_mut()).is_pending(), "five of the child are reserved");
    assert!(matches!(process.ask("child", 12, 0).await, ConsumeOutcome::Granted(_)));
    assert!(matches!(process.ask("child", 6, 0).await, ConsumeOutcome::Granted(_)));
    let before = process.blocks.stats();
    assert_eq!((before.orders, before.lost), (2, Milli::ZERO));
    assert!(matches!(refused.await, ConsumeOutcome::Refused(_)));
    let after = process.blocks.stats();
    assert_eq!((after.held, after.lost), (before.held, Milli(5_000)));
    assert_eq!(after.missing(), Milli::ZERO);
}

#[tokio::test]
async fn what_a_refused_chain_took_is_in_its_refusal() {
    let (store, process) = eager_with("x:1/day:100", |_| Fault::None);
    assert!(matches!(process.ask("child", 4, 0).await, ConsumeOutcome::Granted(_)));
    let others = Process::new(&store, "x:1/day:100");
    assert!(matches!(others.ask("parent", 100, 0).await, ConsumeOutcome::Granted(_)));
    let outcome = chain(&process, &both(), &tokens(5)).await;
    let ConsumeOutcome::Refused(reports) = outcome else { panic!("{outcome:?}") };
    assert_eq!((reports[0].member, reports[0].balance), (0, Milli(96_000)));
}

#[tokio::test]
async fn a_blocked_member_is_named_by_its_place_in_the_chain() {
    let (store, process) = eager_with("x:1/day:100", |_| Fault::None);
    assert!(matches!(process.ask("child", 4, 0).await, ConsumeOutcome::Granted(_)));
    let level = Level::EntityResource(name("parent"), "gpt-4".parse().expect("a resource"));
    store.set_flag(&level, Some(Flag::Disabled), &change(1)).await.expect("a flag");
    let outcome = chain(&process, &both(), &tokens(1)).await;
    assert!(matches!(outcome, ConsumeOutcome::Blocked { member: 1, .. }), "{outcome:?}");
}

/// Two chains buy for the same bucket, and one stock would be forgotten.
#[tokio::test]
async fn two_chains_buy_one_block() {
    let (_, process) = eager_with("x:1/day:1000", |name| match name {
        "consume" => Fault::Yield(1),
        "provision" => Fault::Yield(3),
        _ => Fault::None,
    });
    let (names, takes) = (both(), tokens(1));
    let (a, b) = tokio::join!(chain(&process, &names, &takes), chain(&process, &names, &takes));
    assert!(matches!((a, b), (ConsumeOutcome::Granted(_), ConsumeOutcome::Granted(_))));
    assert_eq!(process.blocks.stats().missing(), Milli::ZERO);
}

/// A chain that was granted under limits of before buys nothing under them.
#[tokio::test]
async fn a_chain_buys_no_block_under_other_limits() {
    let (_, mut process) =
        eager_with(
            "x:1/day:1000",
            |name| if name == "consume" { Fault::Yield(2) } else { Fault::None },
        );
    let others = LimitsInForce::new(
        vec!["y:1/day:1000".parse().expect("a limit"), "x:1/day:500".parse().expect("a limit")],
        LimitSource::System,
    );
    let chained = Process {
        blocks: process.blocks.clone(),
        writes: Arc::clone(&process.writes),
        limits: std::mem::replace(&mut process.limits, others),
    };
    let (names, takes) = (both(), tokens(1));
    let mut granted = pin!(chain(&chained, &names, &takes));
    assert!(poll(granted.as_mut()).is_pending());
    assert!(matches!(process.ask("child", 1, 0).await, ConsumeOutcome::Granted(_)));
    assert!(matches!(granted.await, ConsumeOutcome::Granted(_)));
    let stats = process.blocks.stats();
    assert_eq!((stats.orders, stats.returned), (2, Milli(0)), "the child keeps its block");
}

/// A return that was begun by anybody else would say that the bucket is free, and two orders at
/// once forget a stock.
#[tokio::test]
async fn nobody_frees_a_bucket_whose_order_is_under_way() {
    for way in ["exact", "look", "refund", "silent"] {
        let store = MemoryStore::new();
        let asked = AtomicU32::new(0);
        let fault = move |name: &str| match name == "provision" && asked.fetch_add(1, SeqCst) == 1 {
            true => Fault::Hang,
            false => Fault::None,
        };
        let (process, clock) = with_clock(&store, "x:1/sec:1000", fault);
        let queue: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
        let work = Arc::clone(&queue);
        process.blocks.work_behind(move |job| work.lock().expect("a queue").push(job));
        for _ in 0..2 {
            assert!(matches!(process.ask("key", 1, 0).await, ConsumeOutcome::Granted(_)));
        }
        let caller = Process {
            blocks: process.blocks.clone(),
            writes: Arc::clone(&process.writes),
            limits: LimitsInForce { source: LimitSource::Call, ..process.limits.clone() },
        };
        if way == "silent" {
            // Each request passes by a part of the table; the work itself comes later.
            for part in 0..64 {
                let outcome = caller.ask("other", 1, 6_000 + part * 100).await;
                assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
            }
            assert_eq!(queue.lock().expect("a queue").len(), 1);
        }
        let mut hangs = pin!(process.ask("key", 20, 12_500));
        assert!(poll(hangs.as_mut()).is_pending());
        let page = PageRequest::default();
        let key = name("key");
        let mut beside: std::pin::Pin<Box<dyn Future<Output = ()> + '_>> = match way {
            "exact" => Box::pin(async { drop(caller.ask("key", 1, 12_500).await) }),
            "look" => Box::pin(async { drop(process.blocks.buckets(&key, &page).await) }),
            "refund" => Box::pin(process.settle(-1, 12_500)),
            _ => queue.lock().expect("a queue").remove(0),
        };
        for _ in 0..3 {
            if poll(beside.as_mut()).is_ready() {
                break;
            }
            clock.advance(Duration::from_millis(500));
        }
        let mut next = pin!(process.ask("key", 1, 12_500));
        assert!(poll(next.as_mut()).is_pending(), "{way}");
        assert_eq!(process.blocks.stats().orders, 2, "{way}");
        clock.advance(Duration::from_millis(500));
        assert!(poll(next.as_mut()).is_ready(), "{way}");
    }
}

#[tokio::test]
async fn a_request_waits_for_a_return_and_a_report() {
    for way in ["return", "report"] {
        let (_, process) = eager_with("x:1/sec:1000", |name| {
            if name == "settle" { Fault::Yield(3) } else { Fault::None }
        });
        for _ in 0..2 {
            assert!(matches!(process.ask("key", 1, 0).await, ConsumeOutcome::Granted(_)));
        }
        let (page, key) = (PageRequest::default(), name("key"));
        let mut ends: std::pin::Pin<Box<dyn Future<Output = ()> + '_>> = match way {
            "return" => Box::pin(process.blocks.give_back(TimeMs(BEGIN))),
            _ => Box::pin(async { drop(process.blocks.buckets(&key, &page).await) }),
        };
        assert!(poll(ends.as_mut()).is_pending());
        if way == "report" {
            // A look under other limits does not take the block away either.
            let (takes, resource) = (tokens(1), "gpt-4".parse().expect("a resource"));
            let limits = LimitsInForce::new(
                vec!["x:1/sec:900".parse().expect("a limit")],
                LimitSource::System,
            );
            let member = MemberTake {
                entity: &key,
                resource: &resource,
                limits: &limits,
                takes: &takes,
                absent: &[],
            };
            let members = [member];
            let request = ConsumeRequest::new(&members, TimeMs(BEGIN));
            assert!(poll(pin!(process.blocks.peek(&request))).is_ready());
        }
        let mut next = pin!(process.ask("key", 20, 0));
        assert!(poll(next.as_mut()).is_pending(), "{way}");
        ends.await;
        assert!(matches!(next.await, ConsumeOutcome::Granted(_)), "{way}");
        assert_eq!(process.blocks.stats().missing(), Milli::ZERO, "{way}");
    }
}

/// A report that hangs leaves the block where it is, and so does whoever comes meanwhile.
#[tokio::test]
async fn a_block_whose_report_is_under_way_stays() {
    let (store, asked) = (MemoryStore::new(), AtomicU32::new(0));
    let fault = move |name: &str| match name == "settle" && asked.fetch_add(1, SeqCst) == 0 {
        true => Fault::Hang,
        false => Fault::None,
    };
    let (process, clock) = with_clock(&store, "x:1/sec:1000", fault);
    for _ in 0..2 {
        assert!(matches!(process.ask("key", 1, 0).await, ConsumeOutcome::Granted(_)));
    }
    let (page, key) = (PageRequest::default(), name("key"));
    let mut report = pin!(process.blocks.buckets(&key, &page));
    assert!(poll(report.as_mut()).is_pending());
    let mut beside = pin!(process.blocks.give_back(TimeMs(BEGIN)));
    assert!(poll(beside.as_mut()).is_pending());
    clock.advance(Duration::from_millis(500));
    assert!(poll(beside.as_mut()).is_ready());
    let stats = process.blocks.stats();
    assert_eq!((stats.held, stats.returned), (Milli(3_000), Milli(0)));
}

#[tokio::test]
async fn a_look_waits_for_the_order_that_is_under_way() {
    let (_, process) =
        eager_with(
            "x:1/sec:1000",
            |name| if name == "provision" { Fault::Yield(3) } else { Fault::None },
        );
    let (page, key) = (PageRequest::default(), name("key"));
    assert!(matches!(process.ask("key", 1, 0).await, ConsumeOutcome::Granted(_)));
    let (outcome, page) =
        tokio::join!(process.ask("key", 20, 0), process.blocks.buckets(&key, &page));
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
    let state = &page.expect("a page").items[0].state;
    assert_eq!(state.limits()[0].consumed, Milli(21_000));
}

/// Whoever drops a return or an order drops the use that it reports: nobody knows whether usage has
/// it, and that is counted.
#[tokio::test]
async fn the_use_of_what_is_dropped_is_counted_as_lost() {
    for way in ["settle", "provision"] {
        let asked = AtomicU32::new(0);
        let fault = move |name: &str| {
            let is_next =
                name == way && asked.fetch_add(1, SeqCst) == u32::from(way == "provision");
            if is_next { Fault::HangAfter } else { Fault::None }
        };
        let store = MemoryStore::new();
        let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fault);
        assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
        if way == "settle" {
            assert!(poll(pin!(process.blocks.give_back(TimeMs(BEGIN)))).is_pending());
        } else {
            assert!(poll(pin!(process.ask("key", 16, 0))).is_pending());
        }
        let stats = process.blocks.stats();
        assert_eq!((stats.use_lost, stats.held, stats.missing()), (1, Milli(0), Milli(0)), "{way}");
        assert!(stats.lost > Milli::ZERO, "{way}");
    }
}

/// An order that administration of this process overtakes has been bought under what was before.
#[tokio::test]
async fn an_order_that_administration_overtakes_is_no_stock() {
    let (store, shared) = (MemoryStore::new(), Arc::new(OnceLock::new()));
    let blocks: Arc<OnceLock<BlockStore<FaultStore<MemoryStore>>>> = Arc::clone(&shared);
    let fault = move |operation: &str| {
        if operation == "provision" {
            let level = Level::Resource("gpt-4".parse().expect("a resource"));
            let at = change(0);
            let set = blocks.get().expect("it is set").set_flag(&level, Some(Flag::Enabled), &at);
            assert!(matches!(poll(pin!(set)), Poll::Ready(Ok(_))));
        }
        Fault::None
    };
    let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fault);
    assert!(shared.set(process.blocks.clone()).is_ok());
    assert_eq!(process.take(0).await, "granted");
    let stats = process.blocks.stats();
    assert_eq!((stats.held, stats.lost, stats.missing()), (Milli(0), Milli(4_000), Milli(0)));
}

/// Nor is the block that such an order was to replace: the bucket is full without it.
#[tokio::test]
async fn a_block_that_administration_overtakes_does_not_come_back() {
    let (store, asked) = (MemoryStore::new(), AtomicU32::new(0));
    let fault = move |name: &str| match name == "provision" && asked.fetch_add(1, SeqCst) == 1 {
        true => Fault::Yield(1),
        false => Fault::None,
    };
    let (process, clock) = with_clock(&store, "x:1/day:100", fault);
    assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    // More than there can be, so nothing of it will be written.
    let mut order = pin!(process.ask("key", 200, 0));
    assert!(poll(order.as_mut()).is_pending());
    let (key, resource) = (name("key"), "gpt-4".parse().expect("a resource"));
    let request = ResetRequest { entity: &key, resource: &resource, only: None };
    let by = change(0);
    let mut reset = pin!(process.blocks.reset(&request, &by));
    assert!(poll(reset.as_mut()).is_pending(), "half a second for the order");
    clock.advance(Duration::from_millis(500));
    assert!(matches!(poll(reset.as_mut()), Poll::Ready(Ok(_))));
    assert!(matches!(order.await, ConsumeOutcome::Refused(_)));
    let others = Process::new(&store, "x:1/day:100");
    assert!(matches!(others.ask("key", 100, 500).await, ConsumeOutcome::Granted(_)));
    process.blocks.give_back(TimeMs(BEGIN + 500)).await;
    assert!(stored(&store).await.0 < Milli(1_000), "100 of the reset are granted, and no more");
    let stats = process.blocks.stats();
    assert_eq!((stats.held, stats.lost, stats.missing()), (Milli(0), Milli(20_000), Milli(0)));
}

/// A block is as old as its order, not as the answer.
#[tokio::test]
async fn a_late_answer_makes_no_young_block() {
    let store = MemoryStore::new();
    let (process, clock) = with_clock(&store, "x:1/sec:100", |name| {
        if name == "provision" { Fault::Yield(1) } else { Fault::None }
    });
    let mut first = pin!(process.ask("key", 1, 0));
    assert!(poll(first.as_mut()).is_pending());
    clock.advance(Duration::from_millis(1_999));
    assert!(poll(first.as_mut()).is_ready());
    clock.advance(Duration::from_millis(1));
    let orders = process.blocks.stats().orders;
    assert!(matches!(process.ask("key", 1, 0).await, ConsumeOutcome::Granted(_)));
    assert_eq!((orders, process.blocks.stats().orders), (1, 2), "by a wall clock that stands");
}

/// Another bucket was asked by a clock that was ahead for a moment. A report of this one at that
/// time would refill it for all the time in between, and others would be granted that.
#[tokio::test]
async fn a_report_after_a_clock_that_was_ahead_refills_nothing() {
    for has_clock in [false, true] {
        let store = MemoryStore::new();
        let process = match has_clock {
            true => with_clock(&store, "x:1/sec:100", |_| Fault::None).0,
            false => Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), |_| Fault::None),
        };
        assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
        let others = Process::new(&store, "x:1/sec:100");
        assert!(matches!(others.ask("key", 90, 0).await, ConsumeOutcome::Granted(_)));
        assert!(matches!(process.ask("other", 1, 600_000).await, ConsumeOutcome::Granted(_)));
        if !has_clock {
            assert!(matches!(process.ask("another", 1, 10).await, ConsumeOutcome::Granted(_)));
        }
        let page = process.blocks.buckets(&name("key"), &PageRequest::default()).await;
        assert!(page.is_ok());
        let (balance, consumed, _) = stored(&store).await;
        assert_eq!(consumed, Milli(92_000), "it is reported");
        assert!(balance <= Milli(5_010), "{balance} with a clock: {has_clock}");
    }
}

/// Stock that may not be spent any more is not shown: it does not come back.
#[tokio::test]
async fn stock_that_is_too_old_is_not_shown() {
    let store = MemoryStore::new();
    let (process, clock) = with_clock(&store, "x:1/day:100", |_| Fault::None);
    assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    for (passed_ms, balance) in [(0, 95_000), (2_000, 75_000)] {
        clock.advance(Duration::from_millis(passed_ms));
        let page = process.blocks.buckets(&name("key"), &PageRequest::default()).await;
        let state = &page.expect("a page").items[0].state;
        assert_eq!(state.limits()[0].balance, Milli(balance), "after {passed_ms} ms");
    }
}

/// A clock that was an hour ahead for one request: silent buckets are reported all the same.
#[tokio::test]
async fn silent_buckets_are_reported_after_a_clock_was_ahead() {
    let (store, process) = eager_with("x:1/sec:1000", |_| Fault::None);
    let queue: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
    let work = Arc::clone(&queue);
    process.blocks.work_behind(move |job| work.lock().expect("a queue").push(job));
    assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
    let caller = Process {
        blocks: process.blocks.clone(),
        writes: Arc::clone(&process.writes),
        limits: LimitsInForce { source: LimitSource::Call, ..process.limits.clone() },
    };
    assert!(matches!(caller.ask("other", 1, 3_600_000).await, ConsumeOutcome::Granted(_)));
    queue.lock().expect("a queue").clear();
    for part in 0..64 {
        assert!(matches!(
            caller.ask("other", 1, 6_000 + part * 100).await,
            ConsumeOutcome::Granted(_)
        ));
    }
    let jobs = std::mem::take(&mut *queue.lock().expect("a queue"));
    assert_eq!(jobs.len(), 1);
    for job in jobs {
        job.await;
    }
    assert_eq!(stored(&store).await.1, Milli(2_000));
}

/// What was used of a block that an administrator has overtaken is reported when that is possible.
#[tokio::test]
async fn use_outlives_its_block() {
    for is_charge in [false, true] {
        let is_down = Arc::new(AtomicU32::new(0));
        let down = Arc::clone(&is_down);
        let fault = move |name: &str| match name == "settle" && down.load(SeqCst) > 0 {
            true => Fault::FailBefore(StoreErrorKind::Busy),
            false => Fault::None,
        };
        let store = MemoryStore::new();
        let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fault);
        assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
        if is_charge {
            process.settle(2, 0).await;
        } else {
            assert!(matches!(process.ask("key", 0, 0).await, ConsumeOutcome::Granted(_)));
        }
        is_down.store(1, SeqCst);
        let others = LimitsChange {
            limits: vec!["x:1/sec:50".parse().expect("a limit")],
            on_unavailable: None,
            expected_version: None,
        };
        let level = Level::Resource("gpt-4".parse().expect("a resource"));
        process.blocks.set_limits(&level, &others, &change(0)).await.expect("a change");
        assert_eq!(process.blocks.stats().held, Milli::ZERO);
        is_down.store(0, SeqCst);
        process.blocks.give_back(TimeMs(BEGIN)).await;
        let (_, consumed, events) = stored(&store).await;
        let used = if is_charge { (Milli(7_000), 1) } else { (Milli(5_000), 2) };
        assert_eq!((consumed, events), used);
    }
}

/// What is deleted takes its stock along.
#[tokio::test]
async fn stock_of_what_is_deleted_is_not_spent() {
    let (_, process) = eager_with("x:1/sec:100", |_| Fault::None);
    assert_eq!(process.take(0).await, "granted");
    // Nobody created it. A change that failed may have been made.
    assert!(process.blocks.delete_entity(&name("key"), &change(0)).await.is_err());
    assert_eq!(process.blocks.stats().held, Milli::ZERO);
    for way in ["delete", "purge"] {
        let (_, root) = eager_with("x:1/sec:100", |_| Fault::None);
        let tenant = "tenant".parse().expect("a name");
        let id: NamespaceId = "tenant-id-1".parse().expect("an id");
        root.blocks.register_namespace(&tenant, &id, &change(0)).await.expect("a namespace");
        let scoped = root.blocks.scoped(&tenant).await.expect("a namespace");
        let (key, resource, takes) = (name("key"), "gpt-4".parse().expect("a resource"), tokens(1));
        let members = [MemberTake {
            entity: &key,
            resource: &resource,
            limits: &root.limits,
            takes: &takes,
            absent: &[],
        }];
        let request = ConsumeRequest::new(&members, TimeMs(BEGIN));
        let outcome = scoped.consume(&request).await.expect("no outage");
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
        assert!(scoped.consume_at_once(&request).is_some(), "{way}");
        if way == "delete" {
            root.blocks.delete_namespace(&tenant, &change(0)).await.expect("a deletion");
        } else {
            root.blocks.inner().delete_namespace(&tenant, &change(0)).await.expect("a deletion");
            root.blocks.purge_namespace(&id, &change(0)).await.expect("a purge");
        }
        assert!(scoped.consume_at_once(&request).is_none(), "{way}");
    }
}

#[tokio::test]
async fn use_is_reported_before_somebody_asks_for_usage() {
    for way in ["usage", "summary", "give back"] {
        let (store, process) = eager_with("x:1/sec:100", |_| Fault::None);
        assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
        let query = UsageQuery {
            entity: None,
            resource: None,
            window: UsageWindow::Hourly,
            from: None,
            until: None,
            page: PageRequest::default(),
        };
        match way {
            "usage" => drop(process.blocks.usage(&query).await.expect("a page")),
            "summary" => drop(process.blocks.usage_summary(&query).await.expect("a summary")),
            _ => Store::give_back(&process.blocks, TimeMs(BEGIN)).await.expect("no outage"),
        }
        assert_eq!(stored(&store).await.1, Milli(2_000), "{way}");
    }
}
