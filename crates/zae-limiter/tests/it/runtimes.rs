//! A limiter and the runtimes it is used on: losses are counted, and closing always ends.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::time::Duration;

use tokio::runtime::Runtime;
use zae_limiter::store::{Entropy, Fault, SeededEntropy};
use zae_limiter::{Request, Settled};

use crate::support::Bench;

const CAPACITY: i64 = 1_000_000;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A limiter made on a runtime, with a limit that does not refill while the test runs.
fn made_on(runtime: &Runtime) -> Bench {
    runtime.block_on(async {
        let bench = Bench::new();
        bench.system(&["rpm:1000000/day"]).await;
        bench
    })
}

fn request(tokens: u64) -> Request {
    Request::new("key", "gpt-4").take("rpm", tokens)
}

#[test]
fn a_lease_dropped_before_its_runtime_ended_is_given_back_on_the_next() {
    let first = runtime();
    let bench = made_on(&first);
    drop(first.block_on(bench.limiter.acquire(request(10))).unwrap());
    drop(first);
    assert_eq!(bench.limiter.settled(), Settled { pending: 1, ..Settled::default() }, "it waits");
    let settled = runtime().block_on(bench.limiter.close());
    assert_eq!(settled, Settled { settled: 1, ..Settled::default() });
    assert_eq!(runtime().block_on(bench.left("key", "gpt-4", "rpm")), CAPACITY);
}

#[test]
fn a_write_that_ended_with_its_runtime_is_counted() {
    let first = runtime();
    let bench = made_on(&first);
    let lease = first.block_on(bench.limiter.acquire(request(10))).unwrap();
    bench.script.once("adjust", Fault::Hang);
    first.block_on(async {
        drop(lease);
        tokio::task::yield_now().await;
    });
    assert_eq!(bench.limiter.settled().pending, 1, "the settler is at it");
    drop(first);
    assert_eq!(bench.limiter.settled(), Settled { abandoned: 1, ..Settled::default() });
    assert_eq!(
        runtime().block_on(bench.limiter.close()),
        Settled { abandoned: 1, ..Settled::default() },
        "closing ends"
    );
}

#[test]
fn a_second_runtime_works_like_the_first() {
    let bench = made_on(&runtime());
    for round in 1..=3 {
        let next = runtime();
        next.block_on(async {
            drop(bench.limiter.acquire(request(10)).await.unwrap());
            let settled = bench.limiter.drain().await;
            assert_eq!(settled, Settled { settled: round, ..Settled::default() });
            assert_eq!(bench.left("key", "gpt-4", "rpm").await, CAPACITY);
        });
    }
}

/// A drain on another runtime learns that the runtime of the settler has ended, and goes on with
/// the jobs that wait.
#[test]
fn a_drain_takes_over_when_the_runtime_of_the_settler_ends() {
    let (first, second) = (runtime(), runtime());
    let bench = made_on(&first);
    drop(first.block_on(bench.limiter.acquire(request(10))).unwrap());
    let mut drain = Box::pin(bench.limiter.drain());
    let mut polls = async |times: u32| {
        for _ in 0..times {
            tokio::select! {
                biased;
                settled = &mut drain => return Some(settled),
                () = tokio::task::yield_now() => {}
            }
        }
        None
    };
    assert_eq!(second.block_on(polls(3)), None, "the job waits for the first runtime");
    drop(first);
    assert_eq!(second.block_on(polls(100)), Some(Settled { settled: 1, ..Settled::default() }));
}

/// Dropped where there is no runtime at all: it waits for the next one.
#[test]
fn a_lease_dropped_outside_of_any_runtime_is_settled_later() {
    let first = runtime();
    let bench = made_on(&first);
    let lease = first.block_on(bench.limiter.acquire(request(10))).unwrap();
    drop(first);
    drop(lease);
    assert_eq!(bench.limiter.settled().pending, 1);
    assert_eq!(
        runtime().block_on(bench.limiter.drain()),
        Settled { settled: 1, ..Settled::default() }
    );
}

#[tokio::test]
async fn close_ends_although_the_store_never_answers() {
    let bench = Bench::with(|builder| builder.drain_deadline(Duration::from_secs(7)));
    bench.system(&["rpm:1000000/day"]).await;
    let lease = bench.limiter.acquire(request(10)).await.unwrap();
    bench.script.always("adjust", Fault::Hang);
    drop(lease);
    let mut close = std::pin::pin!(bench.limiter.close());
    let mut polls = 0;
    let settled = loop {
        tokio::select! {
            biased;
            settled = &mut close => break settled,
            () = tokio::task::yield_now() => bench.clock.advance(Duration::from_secs(1)),
        }
        polls += 1;
        assert!(polls < 100, "close() waits for its deadline and no longer");
    };
    assert_eq!(settled.pending, 1, "what was left is told");
    assert!(polls >= 7, "it waited for its deadline, {polls} seconds");
}

/// One seed: runtimes that end at any moment, leases that are dropped on them, outside of them or
/// held beyond them.
fn play(seed: u64) -> Settled {
    let entropy = SeededEntropy::new(seed);
    let below = |bound: u64| entropy.next_u64() % bound;
    let mut current = runtime();
    let bench = made_on(&current);
    let (limiter, script) = (&bench.limiter, &bench.script);
    let mut held = Vec::new();
    let mut dropped = 0;
    for _ in 0..below(30) + 5 {
        match below(8) {
            0..=2 => held.push(current.block_on(limiter.acquire(request(1))).unwrap()),
            3 if !held.is_empty() => {
                let lease = held.swap_remove(usize::try_from(below(held.len() as u64)).unwrap());
                dropped += 1;
                if below(2) == 0 {
                    current.block_on(async { drop(lease) });
                } else {
                    drop(lease);
                }
            }
            4 => script.once("adjust", Fault::Hang),
            5 => current.block_on(async {
                for _ in 0..below(4) {
                    tokio::task::yield_now().await;
                }
            }),
            6 => current = runtime(),
            _ => {}
        }
    }
    dropped += held.len() as u64;
    drop(held);
    script.heal();
    // What hangs with the settler of this runtime ends with it.
    current = runtime();
    let settled = current.block_on(limiter.close());
    assert_eq!(settled.pending, 0, "seed {seed}: everything has ended");
    assert_eq!(
        settled.settled + settled.abandoned,
        dropped,
        "seed {seed}: every lease was settled or counted"
    );
    let left = current.block_on(limiter.availability(&request(0)));
    assert!(left.is_err(), "seed {seed}: a closed limiter admits nothing");
    let view =
        current.block_on(limiter.buckets("key", &zae_limiter::PageRequest::default())).unwrap();
    let missing = view
        .items
        .first()
        .map_or(0, |bucket| CAPACITY - bucket.state.limits()[0].balance.floor_tokens());
    assert_eq!(
        missing,
        i64::try_from(settled.abandoned).unwrap(),
        "seed {seed}: what is missing is what was counted"
    );
    settled
}

/// Seeds of a usual run; `ZAEL_SIM_SEEDS` asks for another number.
const SEEDS: u64 = 5_000;

#[test]
#[expect(clippy::disallowed_methods, reason = "how many seeds to run, as for the simulators")]
fn runtimes_end_at_any_moment_and_every_lease_is_accounted_for() {
    let seeds = std::env::var("ZAEL_SIM_SEEDS").map_or(SEEDS, |text| text.parse().unwrap());
    let all: Vec<Settled> = (0..seeds).map(play).collect();
    let sum = |count: fn(&Settled) -> u64| all.iter().map(count).sum::<u64>();
    let (settled, abandoned) = (sum(|s| s.settled), sum(|s| s.abandoned));
    println!("{seeds} runs: {settled} settled, {abandoned} given up with their runtime");
    assert!(
        settled >= seeds && abandoned >= seeds / 10,
        "{settled} settled, {abandoned} lost in {seeds} runs"
    );
}
