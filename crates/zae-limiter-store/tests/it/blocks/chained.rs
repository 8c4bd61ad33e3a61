//! Blocks of the members of chains (`docs/guards.md`).

use std::pin::{Pin, pin};
use std::sync::Mutex;

use zae_limiter_store::BoxFuture;

use super::overlap::{eager_with, poll, tokens};
use super::*;

/// Takes from the child what is named first, and then from the parent.
async fn chain(process: &Process, takes: [&[Take]; 2], at_ms: i64) -> ConsumeOutcome {
    let (names, resource) = ([name("child"), name("parent")], "gpt-4".parse().expect("one"));
    let member = |number: usize| MemberTake {
        entity: &names[number],
        resource: &resource,
        limits: &process.limits,
        takes: takes[number],
        absent: &[],
    };
    let members = [member(0), member(1)];
    let request = ConsumeRequest::new(&members, TimeMs(BEGIN + at_ms));
    match process.blocks.consume_at_once(&request) {
        Some(outcome) => outcome,
        None => process.blocks.consume(&request).await,
    }
    .expect("no outage")
}

/// Who takes nothing of a bucket may be stopped by it all the same.
#[tokio::test]
async fn a_member_that_takes_nothing_is_served_no_longer_than_its_block_lasts() {
    let (store, process) = eager_with("x:1/sec:1000", |_| Fault::None);
    assert!(matches!(process.ask("parent", 1, 0).await, ConsumeOutcome::Granted(_)));
    let level = Level::EntityResource(name("parent"), "gpt-4".parse().expect("a resource"));
    store.set_flag(&level, Some(Flag::Disabled), &change(1)).await.expect("a flag");
    for (at_ms, is_blocked) in [(1_400, false), (2_000, true)] {
        assert!(matches!(process.ask("child", 1, at_ms).await, ConsumeOutcome::Granted(_)));
        let outcome = chain(&process, [&tokens(1), &[]], at_ms).await;
        let blocked = matches!(outcome, ConsumeOutcome::Blocked { member: 1, .. });
        assert_eq!(blocked, is_blocked, "after {at_ms} ms: {outcome:?}");
    }
}

/// Chains that were under way when one of them bought blocks leave these as they are.
#[tokio::test]
async fn chains_that_are_granted_later_keep_the_blocks_of_the_first() {
    for is_behind in [false, true] {
        let store = MemoryStore::new();
        let fault = |name: &str| if name == "consume" { Fault::Yield(1) } else { Fault::None };
        let process = Process::with(&store, "x:100/day:6000", LocalBlocks::default(), fault);
        let queue: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
        let work = Arc::clone(&queue);
        if is_behind {
            process.blocks.work_behind(move |job| work.lock().expect("a queue").push(job));
        }
        let takes = tokens(1);
        let mut chains: Vec<Pin<Box<dyn Future<Output = ConsumeOutcome>>>> = Vec::new();
        for number in 0..16 {
            let mut next: Pin<Box<dyn Future<Output = ConsumeOutcome>>> =
                Box::pin(chain(&process, [&takes, &takes], number * 5));
            assert!(poll(next.as_mut()).is_pending());
            chains.push(next);
        }
        for outcome in chains {
            assert!(matches!(outcome.await, ConsumeOutcome::Granted(_)));
            let jobs = std::mem::take(&mut *queue.lock().expect("a queue"));
            assert!(jobs.len() <= 1, "{is_behind}");
            for job in jobs {
                job.await;
            }
        }
        let stats = process.blocks.stats();
        assert_eq!((stats.orders, stats.returned), (2, Milli::ZERO), "{is_behind}: {stats:?}");
        assert_eq!(stats.held, stats.bought);
    }
}

/// A chain that stock serves after a wait has cost no call.
#[tokio::test]
async fn a_chain_that_waited_for_its_stock_is_served_from_it() {
    let (_, process) =
        eager_with(
            "x:1/day:1000",
            |name| if name == "provision" { Fault::Yield(1) } else { Fault::None },
        );
    for entity in ["child", "parent"] {
        assert!(matches!(process.ask(entity, 1, 0).await, ConsumeOutcome::Granted(_)));
    }
    let mut order = pin!(process.ask("child", 20, 0));
    assert!(poll(order.as_mut()).is_pending());
    let takes = tokens(1);
    let mut waits = pin!(chain(&process, [&takes, &takes], 0));
    assert!(poll(waits.as_mut()).is_pending());
    assert!(matches!(order.await, ConsumeOutcome::Granted(_)));
    let (writes, grants) = (process.writes(), process.blocks.stats().grants);
    let outcome = waits.await;
    assert!(matches!(&outcome, ConsumeOutcome::Granted(grant) if grant.is_local), "{outcome:?}");
    assert_eq!((process.writes(), process.blocks.stats().grants), (writes, grants + 1));
}
