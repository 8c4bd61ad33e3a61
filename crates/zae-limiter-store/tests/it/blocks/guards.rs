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
