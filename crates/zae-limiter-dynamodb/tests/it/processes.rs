//! Several processes on one bucket, and a bucket that has been idle: what is let through is exactly
//! what the limit says. On the engine of `engines/`, or on the endpoint named by
//! `ZAEL_TEST_DYNAMODB_ENDPOINT`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use zae_limiter_core::{
    ConfigStamp, EntityId, Limit, LimitSource, Milli, ResourceName, Take, TimeMs,
};
use zae_limiter_dynamodb::constants::FAST_GRACE_MS;
use zae_limiter_dynamodb::sdk::{Builder, delete_table};
use zae_limiter_dynamodb::{Counters, DynamoStore};
use zae_limiter_store::{
    BucketStore, ConsumeOutcome, ConsumeRequest, Entropy, LimitsInForce, MemberTake, PageRequest,
    StoreErrorKind, SystemClock, SystemEntropy,
};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::clocks::InstantClock;

const CAPACITY: usize = 1000;
const PROCESSES: usize = 3;
const TASKS: usize = 16;

/// 2100-01-01T10:00:00Z: an engine that forgets what has expired by the real clock forgets nothing
/// of this.
const START: TimeMs = TimeMs(4_102_480_800_000);

/// Where a child finds what it shall do: the name of the variable.
const ROLE: &str = "ZAE_LIMITER_DYNAMODB_TEST_ROLE";

/// Times a caller asks again after a contended refusal or an outage before a test calls it stuck. A
/// caller that is not decided within a few attempts is starved, so the bound is a tight one.
const PATIENCE: u32 = 20;

fn builder(endpoint: &str, stack: &str) -> Builder {
    // A busy machine is not an outage.
    DynamoStore::builder(stack, "us-east-1")
        .endpoint_url(endpoint)
        .timeouts(Duration::from_secs(20), Duration::from_secs(20))
}

/// A table of its own, which goes away with the test on an engine that stays.
async fn on_fresh_table<F: Future<Output = ()>>(test: impl FnOnce(Builder, Engine, String) -> F) {
    let engine = Engine::from_env_or_start();
    let stack = format!("processes-{:016x}", SystemEntropy.next_u64());
    let builder = builder(engine.endpoint(), &stack);
    builder.clone().create().await.expect("a table");
    test(builder.clone(), engine, stack).await;
    let table = builder.table().await.expect("a table");
    // Gone already when the engine was one of ours.
    let _ = delete_table(&table, &SystemClock::new()).await;
}

fn limits(text: &str) -> LimitsInForce {
    let limit: Limit = text.parse().expect("a valid limit");
    LimitsInForce::resolved([limit], LimitSource::System, ConfigStamp(0), 7)
}

/// What became of one attempt; `None` when it has to be repeated.
async fn attempt(
    store: &DynamoStore,
    limits: &LimitsInForce,
    tokens: u64,
    now: TimeMs,
) -> Option<bool> {
    let (entity, resource): (EntityId, ResourceName) =
        ("hot".parse().unwrap(), "gpt-4".parse().unwrap());
    let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
    let member =
        MemberTake { entity: &entity, resource: &resource, limits, takes: &takes, absent: &[] };
    match store.consume(&ConsumeRequest::new(&[member], now)).await {
        Ok(ConsumeOutcome::Granted(_)) => Some(true),
        Ok(ConsumeOutcome::Refused(_)) => Some(false),
        Ok(ConsumeOutcome::Contended { .. }) => None,
        Ok(other) => panic!("{other:?}"),
        // Refused before it was decided, so nothing was taken.
        Err(error) if error.kind() == StoreErrorKind::Busy => None,
        Err(error) => panic!("{error}"),
    }
}

async fn take(store: &DynamoStore, limits: &LimitsInForce, tokens: u64, now: TimeMs) -> bool {
    for _ in 0..PATIENCE {
        if let Some(granted) = attempt(store, limits, tokens, now).await {
            return granted;
        }
        tokio::task::yield_now().await;
    }
    panic!("contended without end");
}

/// Takes one token at a time in several tasks until each has been refused. How many there were.
async fn drain(store: &DynamoStore, limits: &LimitsInForce) -> usize {
    let worker = || async {
        let mut granted = 0;
        while take(store, limits, 1, START).await {
            granted += 1;
        }
        granted
    };
    join_all((0..TASKS).map(|_| worker())).await.into_iter().sum()
}

// --------------------------------------------------------------------------------------- processes

struct Kid(Child);

impl Drop for Kid {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Kid {
    fn start(endpoint: &str, stack: &str) -> Kid {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", "processes::child_process", "--nocapture", "--quiet"])
            .env(ROLE, format!("{endpoint} {stack}"));
        Kid(command.stdout(Stdio::piped()).spawn().expect("a child process"))
    }

    /// What it was granted.
    fn granted(mut self) -> usize {
        let mut said = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().expect("it is piped"), &mut said)
            .expect("text");
        assert!(self.0.wait().expect("an end").success(), "a child failed: {said}");
        let (_, number) =
            said.split_once("granted ").unwrap_or_else(|| panic!("a child said {said:?}"));
        number.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    }
}

/// 16 tasks in each of 3 processes, started at the same time on a bucket that does not exist yet.
#[tokio::test]
async fn three_processes_are_granted_exactly_the_capacity() {
    on_fresh_table(async |builder, engine, stack| {
        let children: Vec<Kid> =
            (0..PROCESSES).map(|_| Kid::start(engine.endpoint(), &stack)).collect();
        let granted: Vec<usize> = children.into_iter().map(Kid::granted).collect();
        assert_eq!(granted.iter().sum::<usize>(), CAPACITY, "{granted:?}");
        let store = builder.connect().await.expect("the table");
        let buckets = store
            .buckets(&"hot".parse().unwrap(), &PageRequest::default())
            .await
            .expect("a listing")
            .items;
        let limit = &buckets[0].state.limits()[0];
        assert_eq!(
            (limit.balance, limit.consumed),
            (Milli::ZERO, Milli::from_tokens(CAPACITY as u64))
        );
    })
    .await;
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "how a test tells its child what to do")]
async fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (endpoint, stack) = role.split_once(' ').expect("an endpoint and a stack");
    let store = builder(endpoint, stack)
        .clock(Arc::new(InstantClock::default()))
        .trust_local_clock()
        .connect()
        .await
        .expect("the table");
    let granted = drain(&store, &limits("rpd:1000/day")).await;
    let Counters { debits_unknown, .. } = store.counters();
    assert_eq!(debits_unknown, 0, "every debit was answered");
    println!("granted {granted}");
}

// -------------------------------------------------------------------------------------------- idle

/// A full bucket of 100 at 50/s that nobody has touched for a minute, then 160 callers in one
/// instant, one after the other or all at once: how many of them pass.
async fn after_a_minute_idle(builder: &Builder, grace: Duration, parallel: bool) -> usize {
    let store = builder
        .clone()
        .fast_grace(grace)
        .clock(Arc::new(InstantClock::default()))
        .trust_local_clock()
        .connect()
        .await
        .expect("the table");
    let limits = limits("rps:50/sec:100");
    // Declaring a limit makes its bucket and takes nothing.
    assert!(take(&store, &limits, 0, START).await);
    let now = START.plus_ms(60_000);
    let caller = || async { usize::from(take(&store, &limits, 1, now).await) };
    if parallel {
        join_all((0..160).map(|_| caller())).await.into_iter().sum()
    } else {
        let mut granted = 0;
        for _ in 0..160 {
            granted += caller().await;
        }
        granted
    }
}

#[tokio::test]
async fn a_minute_of_idleness_is_not_credited_twice() {
    on_fresh_table(async |builder, _engine, _| {
        assert_eq!(after_a_minute_idle(&builder, Duration::ZERO, false).await, 100);
    })
    .await;
}

#[tokio::test]
async fn a_minute_of_idleness_is_not_credited_twice_to_a_crowd() {
    on_fresh_table(async |builder, _engine, _| {
        assert_eq!(after_a_minute_idle(&builder, Duration::ZERO, true).await, 100);
    })
    .await;
}

/// By default a hot bucket may be taken from a little late: at most the rate times that little,
/// once.
#[tokio::test]
async fn the_allowance_of_a_hot_bucket_is_as_large_as_stated() {
    let grace = Duration::from_millis(u64::try_from(FAST_GRACE_MS).unwrap());
    let allowance = 50 * usize::try_from(FAST_GRACE_MS).unwrap() / 1000;
    for parallel in [false, true] {
        on_fresh_table(async |builder, _engine, _| {
            let granted = after_a_minute_idle(&builder, grace, parallel).await;
            assert!((100..=100 + allowance).contains(&granted), "{granted}");
        })
        .await;
    }
}
