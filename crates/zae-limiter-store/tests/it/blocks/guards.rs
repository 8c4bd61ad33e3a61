//! Guards of blocks that nothing else finds missing (`docs/guards.md`).

use super::*;

/// An eager process on a bucket that regains one token a second, and its store.
fn eager(limit: &str) -> (MemoryStore, Process) {
    let store = MemoryStore::new();
    let process = Process::with(&store, limit, LocalBlocks::eager(), |_| Fault::None);
    (store, process)
}

impl Process {
    async fn ask_all(&self, entities: &[&str], tokens: i64, is_exact: bool) -> ConsumeOutcome {
        let names: Vec<EntityId> = entities.iter().map(|id| name(id)).collect();
        let resource = "gpt-4".parse().expect("a resource");
        let takes = [Take { limit: 0, amount: Milli(tokens * 1_000) }];
        let member = |entity| MemberTake {
            entity,
            resource: &resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        };
        let members: Vec<MemberTake<'_>> = names.iter().map(member).collect();
        let request = ConsumeRequest { is_exact, ..ConsumeRequest::new(&members, TimeMs(BEGIN)) };
        match self.blocks.consume_at_once(&request) {
            Some(outcome) => outcome,
            None => self.blocks.consume(&request).await,
        }
        .expect("no outage")
    }
}

#[tokio::test]
async fn a_block_is_bought_anew_while_what_is_left_may_go_back() {
    let (_, process) = eager("x:1/sec:100");
    assert_eq!((process.take(0).await, process.take(1_499).await), ("granted", "granted"));
    assert_eq!(process.blocks.stats().orders, 1);
    assert_eq!(process.take(1_500).await, "granted");
    let stats = process.blocks.stats();
    // One is spent of what refill has left.
    assert_eq!((stats.orders, stats.returned, stats.faded), (2, Milli(1_501), Milli(499)));
}

#[tokio::test]
async fn limits_of_a_call_have_no_block() {
    let (_, mut process) = eager("x:1/sec:100");
    process.limits.source = LimitSource::Call;
    assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
    assert_eq!((process.blocks.stats().orders, process.writes()), (0, 2));
    // The same limits from the configuration buy one, and those of a call do not use it.
    process.limits.source = LimitSource::System;
    assert_eq!(process.take(0).await, "granted");
    assert!(process.blocks.stats().held > Milli::ZERO);
    process.limits.source = LimitSource::Call;
    assert_eq!(process.take(0).await, "granted");
    let stats = process.blocks.stats();
    assert_eq!((stats.held, stats.grants, stats.missing()), (Milli(0), 0, Milli(0)));
}

#[tokio::test]
async fn a_refund_to_a_block_that_is_too_old_goes_to_the_bucket() {
    let (store, process) = eager("x:1/sec:100");
    assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    process.settle(-3, 2_000).await;
    // 75 are left, two refill, and three come back.
    assert_eq!(stored(&store).await, (Milli(80_000), Milli(2_000), 1));
}

#[tokio::test]
async fn a_refund_for_which_there_is_no_room_goes_to_the_bucket_whole() {
    let (store, process) = eager("x:1/sec:1000");
    assert!(matches!(process.ask("key", 10, 0).await, ConsumeOutcome::Granted(_)));
    process.settle(-20, 0).await;
    let (balance, consumed, _) = stored(&store).await;
    assert_eq!((balance, consumed), (Milli(1_000_000), Milli(-10_000)));
    assert_eq!(
        (process.blocks.stats().held, process.blocks.stats().refunded),
        (Milli(0), Milli(0))
    );
}

#[tokio::test]
async fn a_report_that_was_not_written_leaves_the_block() {
    let store = MemoryStore::new();
    let fault = |operation: &str| match operation == "settle" {
        true => Fault::FailBefore(StoreErrorKind::Busy),
        false => Fault::None,
    };
    let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fault);
    assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
    let page = process.blocks.buckets(&name("key"), &PageRequest::default()).await;
    assert!(page.is_ok());
    let stats = process.blocks.stats();
    assert_eq!((stats.held, stats.missing()), (Milli(3_000), Milli::ZERO));
    assert_eq!((process.take(0).await, process.blocks.stats().orders), ("granted", 1));
}

#[tokio::test]
async fn an_exact_request_gives_back_and_asks_the_store() {
    let (store, process) = eager("x:1/day:8");
    assert_eq!(process.take(0).await, "granted");
    assert!(process.blocks.stats().held > Milli::ZERO);
    for tokens in [1, 6] {
        let outcome = process.ask_all(&["key"], tokens, true).await;
        let ConsumeOutcome::Granted(grant) = outcome else { panic!("{outcome:?}") };
        assert!(!grant.is_local, "{tokens} of the store");
    }
    assert_eq!((process.blocks.stats().held, stored(&store).await.0), (Milli(0), Milli(0)));
}

/// What store and own stock have together is enough for a chain.
#[tokio::test]
async fn a_chain_that_is_refused_gives_its_stock_back_and_asks_again() {
    let (_, process) = eager("x:1/day:8");
    let both = ["child", "parent"];
    assert!(matches!(process.ask_all(&both, 1, false).await, ConsumeOutcome::Granted(_)));
    assert!(process.blocks.stats().held > Milli::ZERO);
    assert!(matches!(process.ask_all(&both, 7, false).await, ConsumeOutcome::Granted(_)));
}

#[tokio::test]
async fn a_peek_counts_no_stock_that_is_too_old() {
    let (_, process) = eager("x:1/sec:100");
    assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    for (at_ms, balance) in [(0, 95_000), (2_000, 77_000)] {
        let (entity, resource) = (name("key"), "gpt-4".parse().expect("a resource"));
        let takes = [Take { limit: 0, amount: Milli(1_000) }];
        let members = [MemberTake {
            entity: &entity,
            resource: &resource,
            limits: &process.limits,
            takes: &takes,
            absent: &[],
        }];
        let request = ConsumeRequest::new(&members, TimeMs(BEGIN + at_ms));
        let seen = process.blocks.peek(&request).await.expect("no outage");
        let ConsumeOutcome::Granted(grant) = seen else { panic!("{seen:?}") };
        assert_eq!(grant.reports[0].balance, Milli(balance), "after {at_ms} ms");
        assert_eq!(grant.reports[0].requested, Milli(1_000));
    }
}

/// A slot is given up for another bucket when nothing is lost with it.
#[tokio::test]
async fn a_bucket_with_use_to_report_keeps_its_slot() {
    let store = MemoryStore::new();
    let options = LocalBlocks::eager().blocks_max(64);
    let process = Process::with(&store, "x:1/sec:100", options, |_| Fault::None);
    assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
    for number in 0..500 {
        let outcome = process.ask(&format!("key-{number}"), 1, 20_000).await;
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
    }
    process.blocks.give_back(TimeMs(BEGIN + 20_000)).await;
    let (_, consumed, events) = stored(&store).await;
    assert_eq!((consumed, events), (Milli(2_000), 2));
}

/// What may have been written is neither stock any more nor use to be reported.
#[tokio::test]
async fn what_may_have_been_written_is_lost() {
    for (operation, use_lost) in [("settle", 2), ("provision", 1)] {
        let asked = AtomicU32::new(0);
        let fault = move |name: &str| {
            let is_meant = name == operation;
            match is_meant && asked.fetch_add(1, SeqCst) == u32::from(operation == "provision") {
                true => Fault::FailAfter(StoreErrorKind::Unavailable),
                false => Fault::None,
            }
        };
        let store = MemoryStore::new();
        let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fault);
        assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
        if operation == "settle" {
            assert_eq!(process.take(0).await, "granted");
            process.blocks.give_back(TimeMs(BEGIN)).await;
        } else {
            assert!(process.try_ask("key", 4, 0).await.is_err());
        }
        let stats = process.blocks.stats();
        assert_eq!((stats.held, stats.missing()), (Milli::ZERO, Milli::ZERO), "{operation}");
        assert!(stats.lost > Milli::ZERO, "{operation}");
        assert_eq!(stats.use_lost, use_lost, "{operation}");
    }
}

/// Whoever drops an order that is under way leaves a bucket that others can use.
#[tokio::test]
async fn an_order_that_is_dropped_holds_up_nobody() {
    let asked = AtomicU32::new(0);
    let fault = move |name: &str| match name == "provision" && asked.fetch_add(1, SeqCst) == 0 {
        true => Fault::Hang,
        false => Fault::None,
    };
    let store = MemoryStore::new();
    let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fault);
    let mut hangs = Box::pin(process.ask("key", 1, 0));
    assert!(hangs.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(hangs);
    let next = std::pin::pin!(process.take(0));
    let answer = next.poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(answer, Poll::Ready("granted"));
}

/// Whoever looks at a bucket sees what was used of it, and a sweep finds no stock in the way.
#[tokio::test]
async fn use_is_reported_before_somebody_looks() {
    let page = PageRequest::default();
    let resource = "gpt-4".parse().expect("a resource");
    for way in ["buckets", "resource", "sweep"] {
        let (store, process) = eager("x:1/sec:100");
        assert_eq!((process.take(0).await, process.take(0).await), ("granted", "granted"));
        assert_eq!(stored(&store).await.1, Milli(1_000), "the other one is not known yet");
        match way {
            "buckets" => drop(process.blocks.buckets(&name("key"), &page).await.expect("a page")),
            "resource" => {
                drop(process.blocks.resource_buckets(&resource, &page).await.expect("a page"));
            }
            _ => drop(process.blocks.sweep(TimeMs(BEGIN), 10).await.expect("a sweep")),
        }
        assert_eq!(stored(&store).await.1, Milli(2_000), "{way}");
    }
}

impl Process {
    /// Takes so many tokens of the first limits of "key".
    async fn ask_limits(&self, tokens: &[i64]) -> ConsumeOutcome {
        let (entity, resource) = (name("key"), "gpt-4".parse().expect("a resource"));
        let takes: Vec<Take> = (0_u8..)
            .zip(tokens)
            .map(|(limit, tokens)| Take { limit, amount: Milli(tokens * 1_000) })
            .collect();
        let members = [MemberTake {
            entity: &entity,
            resource: &resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        }];
        let request = ConsumeRequest::new(&members, TimeMs(BEGIN));
        match self.blocks.consume_at_once(&request) {
            Some(outcome) => outcome,
            None => self.blocks.consume(&request).await,
        }
        .expect("no outage")
    }

    /// Charges a limit of "key", past all blocks.
    async fn charge(&self, store: &MemoryStore, limit: u8, tokens: i64) {
        let (entity, resource) = (name("key"), "gpt-4".parse().expect("a resource"));
        let deltas = [Delta { limit, amount: Milli(tokens * 1_000) }];
        let delta = BucketDelta {
            entity: &entity,
            resource: &resource,
            limits: &self.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        let answers = store.adjust(&[delta], TimeMs(BEGIN)).await;
        assert!(answers.iter().all(Result::is_ok));
    }

    /// The same process under other limits.
    fn under(&self, limit: &str, stamp: u64) -> Process {
        let limits: Vec<Limit> =
            limit.split(' ').map(|limit| limit.parse().expect("a limit")).collect();
        let stamp = zae_limiter_core::ConfigStamp(stamp);
        Process {
            blocks: self.blocks.clone(),
            writes: Arc::clone(&self.writes),
            limits: LimitsInForce::resolved(limits, LimitSource::System, stamp, 7),
        }
    }
}

/// A limit that nobody declares is in debt: others are bought all the same.
#[tokio::test]
async fn a_limit_that_is_not_declared_stops_no_block() {
    let (store, process) = eager("x:1/sec:100 y:1/sec:100");
    assert!(matches!(process.ask_limits(&[1]).await, ConsumeOutcome::Granted(_)));
    process.blocks.give_back(TimeMs(BEGIN)).await;
    process.charge(&store, 1, 150).await;
    assert!(matches!(process.ask_limits(&[1]).await, ConsumeOutcome::Granted(_)));
    assert!(process.blocks.stats().held > Milli::ZERO);
}

/// An order is for requests like those before. One that needs less is not refused for them.
#[tokio::test]
async fn a_limit_that_others_need_refuses_nobody_else() {
    let (store, process) = eager("x:1/sec:100 y:1/sec:100");
    for _ in 0..2 {
        assert!(matches!(process.ask_limits(&[1, 1]).await, ConsumeOutcome::Granted(_)));
    }
    process.charge(&store, 1, 150).await;
    let outcome = process.ask_limits(&[50]).await;
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
}

#[tokio::test]
async fn limits_that_change_have_blocks_of_their_own() {
    let (_, process) = eager("x:1/sec:100");
    assert_eq!(process.take(0).await, "granted");
    process.blocks.give_back(TimeMs(BEGIN)).await;
    let changed = process.under("x:1/sec:90", 1);
    assert_eq!((changed.take(0).await, changed.take(0).await), ("granted", "granted"));
    assert_eq!(process.blocks.stats().grants, 1, "the second one is served from stock");
    // Refunds of what was taken under the limits of before are not for this stock.
    process.settle(-1, 0).await;
    assert_eq!(process.blocks.stats().refunded, Milli::ZERO);
}

#[tokio::test]
async fn requests_under_other_limits_are_not_counted_together() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "x:100/day:6000");
    for ms in 0..7 {
        assert_eq!(process.take(ms * 10).await, "granted");
    }
    let changed = process.under("x:100/day:6001", 1);
    assert_eq!(changed.take(70).await, "granted");
    assert_eq!(process.blocks.stats().orders, 0);
}

#[tokio::test]
async fn a_peek_under_other_limits_gives_the_block_back_first() {
    let (_, process) = eager("x:1/day:100");
    assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    let changed = process.under("x:1/day:99", 1);
    let (entity, resource) = (name("key"), "gpt-4".parse().expect("a resource"));
    let takes = [Take { limit: 0, amount: Milli(1_000) }];
    let members = [MemberTake {
        entity: &entity,
        resource: &resource,
        limits: &changed.limits,
        takes: &takes,
        absent: &[],
    }];
    let request = ConsumeRequest::new(&members, TimeMs(BEGIN));
    let seen = process.blocks.peek(&request).await.expect("no outage");
    let ConsumeOutcome::Granted(grant) = seen else { panic!("{seen:?}") };
    assert_eq!(grant.reports[0].balance, Milli(95_000));
}

#[tokio::test]
async fn a_wrong_request_is_not_served_from_stock() {
    let (_, process) = eager("x:1/sec:100");
    assert_eq!(process.take(0).await, "granted");
    assert!(process.try_ask("key", -1, 0).await.is_err());
}

/// A return that fails again and again keeps nobody.
#[tokio::test]
async fn a_request_looks_at_its_bucket_a_few_times() {
    let store = MemoryStore::new();
    let fault = |operation: &str| match operation == "settle" {
        true => Fault::FailBefore(StoreErrorKind::Busy),
        false => Fault::None,
    };
    let process = Process::with(&store, "x:1/sec:100", LocalBlocks::eager(), fault);
    assert_eq!(process.take(0).await, "granted");
    assert_eq!(process.under("x:1/sec:90", 1).take(0).await, "granted");
}

#[tokio::test]
async fn a_request_orders_once() {
    let (store, process) = eager("x:1/sec:100");
    let others = Process::new(&store, "x:1/sec:100").under("x:1/sec:90", 2);
    assert_eq!(others.take(0).await, "granted");
    assert_eq!(process.take(0).await, "other", "its limits are stale");
    assert_eq!(process.blocks.stats().orders, 1);
}

#[tokio::test]
async fn a_chain_that_is_refused_without_stock_asks_once() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "x:1/day:8");
    let both = ["child", "parent"];
    assert!(matches!(process.ask_all(&both, 1, false).await, ConsumeOutcome::Granted(_)));
    assert!(matches!(process.ask_all(&both, 8, false).await, ConsumeOutcome::Refused(_)));
    assert_eq!(process.writes(), 2);
}

/// Stock of before administration takes no refund: nobody spends it.
#[tokio::test]
async fn a_refund_after_administration_goes_to_the_bucket() {
    let (store, process) = eager("x:1/day:100");
    assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
    let level = Level::Resource("gpt-4".parse().expect("a resource"));
    process.blocks.set_flag(&level, Some(Flag::Enabled), &change(1)).await.expect("a flag");
    process.settle(-3, 2).await;
    assert_eq!(stored(&store).await.0, Milli(98_000));
}

/// The time of a block does not go back, and what took and charged tells the time.
#[tokio::test]
async fn a_block_is_as_old_as_it_was_ever_seen() {
    let balance = |outcome: ConsumeOutcome| match outcome {
        ConsumeOutcome::Granted(grant) => grant.reports[0].balance,
        other => panic!("{other:?}"),
    };
    for is_charge in [false, true] {
        let (_, process) = eager("x:1/sec:100");
        assert!(matches!(process.ask("key", 5, 0).await, ConsumeOutcome::Granted(_)));
        if is_charge {
            process.settle(1, 1_400).await;
        } else {
            assert_eq!(process.take(1_400).await, "granted");
        }
        assert_eq!(balance(process.ask("key", 0, 1_350).await), Milli(95_400));
        assert_eq!(process.blocks.stats().orders, 1);
        assert_eq!((process.take(1_200).await, process.blocks.stats().orders), ("granted", 2));
    }
}

/// A charge from stock is used in its own hour, also without a take beside it.
#[tokio::test]
async fn a_charge_from_stock_counts_in_its_hour() {
    let (store, process) = eager("x:1/sec:100");
    assert!(matches!(process.ask("key", 5, -500).await, ConsumeOutcome::Granted(_)));
    process.settle(2, 500).await;
    process.blocks.give_back(TimeMs(BEGIN + 600)).await;
    let page = store.buckets(&name("key"), &PageRequest::default()).await.expect("a page");
    let open = page.items[0].state.open_hour();
    assert_eq!((open.start, open.used[0].1), (TimeMs(BEGIN), Milli(2_000)));
}

/// A process that has become slow gives its block back, and is watched as if it were new.
#[tokio::test]
async fn a_process_that_slows_down_gives_its_block_back_and_is_watched_anew() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "x:100/day:6000");
    let mut at_ms = 0;
    while process.blocks.stats().orders < 2 {
        assert_eq!(process.take(at_ms).await, "granted");
        at_ms += 10;
    }
    assert!(process.blocks.stats().held > Milli::ZERO);
    at_ms += 1_600;
    assert_eq!(process.take(at_ms).await, "granted");
    let stats = process.blocks.stats();
    assert!(stats.held == Milli::ZERO && stats.returned > Milli::ZERO, "{stats:?}");
    for _ in 0..6 {
        at_ms += 10;
        assert_eq!(process.take(at_ms).await, "granted");
    }
    assert_eq!(process.blocks.stats().orders, 2, "seven requests are too few");
    assert_eq!((process.take(at_ms + 10).await, process.blocks.stats().orders), ("granted", 3));
}

/// The same for a chain, whose blocks are bought behind it.
#[tokio::test]
async fn a_chain_that_slows_down_gives_its_blocks_back() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "x:100/day:6000");
    let ask = async |at_ms: i64| {
        let (names, resource) = ([name("child"), name("parent")], "gpt-4".parse().expect("one"));
        let takes = [Take { limit: 0, amount: Milli(1_000) }];
        let member = |entity| MemberTake {
            entity,
            resource: &resource,
            limits: &process.limits,
            takes: &takes,
            absent: &[],
        };
        let members = names.each_ref().map(member);
        let request = ConsumeRequest::new(&members, TimeMs(BEGIN + at_ms));
        let outcome = process.blocks.consume(&request).await.expect("no outage");
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
    };
    let mut at_ms = 0;
    while process.blocks.stats().orders < 2 {
        ask(at_ms).await;
        at_ms += 10;
    }
    ask(at_ms + 1_600).await;
    let stats = process.blocks.stats();
    assert!(stats.held == Milli::ZERO && stats.returned > Milli::ZERO, "{stats:?}");
}

/// A block that ended because a refund had no room in it is bought anew without watching first.
#[tokio::test]
async fn a_block_that_a_refund_has_ended_is_bought_anew_at_once() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "x:100/day:6000");
    let mut at_ms = 0;
    while process.blocks.stats().orders < 1 {
        assert_eq!(process.take(at_ms).await, "granted");
        at_ms += 10;
    }
    for _ in 0..3 {
        at_ms += 1;
        assert_eq!(process.take(at_ms).await, "granted");
    }
    process.settle(-1_000, at_ms).await;
    assert_eq!(process.blocks.stats().held, Milli::ZERO);
    assert_eq!((process.take(at_ms + 1).await, process.blocks.stats().orders), ("granted", 2));
}

/// What was slow for long is hot at once.
#[tokio::test]
async fn a_process_that_was_slow_buys_as_soon_as_it_is_not() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "x:100/day:6000");
    for second in 0..20 {
        assert_eq!(process.take(second * 1_000).await, "granted");
    }
    for ms in 0..20 {
        assert_eq!(process.take(20_000 + ms * 5).await, "granted");
    }
    assert_eq!(process.blocks.stats().orders, 1);
}

/// One request by a clock that was ahead does not keep the bucket from blocks until then.
#[tokio::test]
async fn a_clock_that_was_set_back_stops_no_block() {
    let store = MemoryStore::new();
    let process = Process::new(&store, "x:100/day:6000");
    assert_eq!(process.take(600_000).await, "granted");
    for ms in 0..20 {
        assert_eq!(process.take(ms * 5).await, "granted");
    }
    assert_eq!(process.blocks.stats().orders, 1);
}

/// A bucket that is being watched keeps its slot, although it has nothing to lose.
#[tokio::test]
async fn a_bucket_that_is_watched_keeps_its_slot() {
    let store = MemoryStore::new();
    let options = LocalBlocks::default().blocks_max(64);
    let process = Process::with(&store, "x:100/day:6000", options, |_| Fault::None);
    for step in 0..20 {
        assert_eq!(process.take(step * 10).await, "granted");
        for number in 0..20 {
            let outcome = process.ask(&format!("{step}-{number}"), 1, step * 10).await;
            assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
        }
    }
    assert!(process.blocks.stats().orders > 0);
}

/// Nor does one whose order is under way lose it: what it buys would be known to nobody.
#[tokio::test]
async fn a_slot_in_use_is_kept_and_one_that_is_given_up_counts_what_it_had() {
    let store = MemoryStore::new();
    let fault = |operation: &str| match operation {
        "provision" => Fault::Yield(1),
        _ => Fault::None,
    };
    let options = LocalBlocks::eager().blocks_max(64);
    let process = Process::with(&store, "x:1/sec:100", options, fault);
    let mut order = std::pin::pin!(process.take(0));
    assert!(order.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    for (at_ms, round) in [(0, "a"), (20_000, "b"), (40_000, "c")] {
        for number in 0..500 {
            let outcome = process.ask(&format!("{round}-{number}"), 1, at_ms).await;
            assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
        }
    }
    let stats = process.blocks.stats();
    assert!(stats.missing() == Milli::ZERO && stats.faded > Milli::ZERO, "{stats:?}");
    assert_eq!(order.await, "granted");
    let after = process.blocks.stats();
    assert_eq!(after.missing(), Milli::ZERO);
    assert_eq!(after.held, stats.held.saturating_add(Milli(4_000)));
}
