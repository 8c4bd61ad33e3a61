//! What takes a while is decided by the time at which it goes on, not by that at which it began
//! (`docs/guards.md`).

use std::pin::pin;

use super::overlap::{poll, with_clock};
use super::*;

/// A process whose first order is under way at the beginning, and answered 400 ms later: of the 80
/// tokens of its block, refill has reached 20 by then.
macro_rules! answered_late {
    ($process:ident, $clock:ident, $store:ident, $first:ident) => {
        let $store = MemoryStore::new();
        let ($process, $clock) = with_clock(&$store, "x:100/sec:6000", |name| {
            if name == "provision" { Fault::Yield(1) } else { Fault::None }
        });
        let mut $first = pin!($process.ask("key", 20, 0));
        assert!(poll($first.as_mut()).is_pending());
    };
}

/// What refill has reached while a return waited is not there to be given back any more.
#[tokio::test]
async fn a_return_that_had_to_wait_brings_back_what_is_left_by_then() {
    answered_late!(process, clock, store, first);
    let mut back = pin!(process.blocks.give_back(TimeMs(BEGIN)));
    assert!(poll(back.as_mut()).is_pending(), "the order is under way");
    clock.advance(Duration::from_millis(400));
    assert!(poll(first.as_mut()).is_ready());
    let others = Process::new(&store, "x:100/sec:6000");
    assert!(matches!(others.ask("key", 100, 400).await, ConsumeOutcome::Granted(_)));
    assert!(poll(back.as_mut()).is_ready());
    let stats = process.blocks.stats();
    assert_eq!((stats.returned, stats.faded), (Milli(60_001), Milli(20_000)));
    // An exact bucket was full again when the others came.
    assert_eq!((stored(&store).await.0, stats.missing()), (Milli(5_900_000), Milli::ZERO));
}

/// Nor is it there for a request that waited.
#[tokio::test]
async fn a_request_that_had_to_wait_finds_what_is_left_by_then() {
    answered_late!(process, clock, _store, first);
    let mut next = pin!(process.ask("key", 75, 0));
    assert!(poll(next.as_mut()).is_pending(), "the order is under way");
    clock.advance(Duration::from_millis(400));
    assert!(poll(first.as_mut()).is_ready());
    assert!(matches!(next.await, ConsumeOutcome::Granted(_)), "by the store: 60 are too few");
    let stats = process.blocks.stats();
    assert_eq!((stats.grants, stats.faded, stats.missing()), (0, Milli(20_000), Milli::ZERO));
}

/// Nor for a charge.
#[tokio::test]
async fn a_charge_that_had_to_wait_finds_what_is_left_by_then() {
    answered_late!(process, clock, store, first);
    let mut charge = pin!(process.settle(75, 0));
    assert!(poll(charge.as_mut()).is_pending(), "the order is under way");
    clock.advance(Duration::from_millis(400));
    assert!(poll(first.as_mut()).is_ready());
    assert!(poll(charge.as_mut()).is_ready());
    let stats = process.blocks.stats();
    assert_eq!((stats.returned, stats.faded), (Milli(60_001), Milli(20_000)));
    assert_eq!(stored(&store).await.0, Milli(5_925_000));
}
