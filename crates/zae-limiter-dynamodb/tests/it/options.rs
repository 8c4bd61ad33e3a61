//! What each option of a store does, counted in calls; and that none of them changes a decision.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use zae_limiter_core::{EntityId, LimitSource, Milli, ResourceName, Take};
use zae_limiter_dynamodb::bucket::write::Shape;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::number;
use zae_limiter_dynamodb::{CascadeWrites, DynamoOptions, DynamoStore};
use zae_limiter_store::{
    BucketDelta, BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Delta, Level,
    LimitsInForce, MemberTake, PageRequest, StoreErrorKind,
};
use zae_limiter_testkit::table::{EvalOptions, Operation, Request};

use crate::evaluated::{Rig, limits};

/// A process with options of its own on a table of its own, and the chain of `key` below `org`.
struct Process {
    rig: Rig,
    store: DynamoStore,
}

const CHAIN: [&str; 2] = ["key", "org"];

impl Process {
    async fn new(options: impl FnOnce(&mut DynamoOptions)) -> Process {
        let rig = Rig::new(EvalOptions::new().journal()).await;
        // Somebody else has been here: nothing depends on being alone.
        rig.store()
            .await
            .set_limits(&Level::System, &limits("rpm:7"), &rig.change())
            .await
            .unwrap();
        let store = rig.client(rig.table.clone(), options).await;
        rig.table.take_journal();
        Process { rig, store }
    }

    /// Takes tokens of `rpm`, of which there are 10 at one a second for `key`, and 15 for anybody
    /// else.
    async fn take(&self, chain: &[&str], tokens: i64) -> ConsumeOutcome {
        let takes = [Take { limit: 0, amount: Milli(tokens * 1000) }];
        let entities: Vec<EntityId> = chain.iter().map(|name| name.parse().unwrap()).collect();
        let in_force: Vec<LimitsInForce> = chain.iter().map(|name| in_force(name)).collect();
        let resource = resource();
        let members = entities.iter().zip(&in_force);
        let members: Vec<MemberTake<'_>> = members
            .map(|(entity, limits)| MemberTake {
                entity,
                resource: &resource,
                limits,
                takes: &takes,
                absent: &[],
            })
            .collect();
        self.store.consume(&ConsumeRequest::new(&members, self.rig.clock.now())).await.unwrap()
    }

    async fn adjust(&self, entity: &str, tokens: i64) {
        let deltas = [Delta { limit: 0, amount: Milli(tokens * 1000) }];
        let delta = BucketDelta {
            entity: &entity.parse().unwrap(),
            resource: &resource(),
            limits: &in_force(entity),
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        self.store.adjust(&[delta], self.rig.clock.now()).await.remove(0).unwrap();
    }

    /// The calls since the last look.
    fn calls(&self) -> Vec<Operation> {
        self.rig
            .table
            .take_journal()
            .iter()
            .map(|call| call.request.as_asked().operation())
            .collect()
    }

    /// Balance and consumption of a bucket at this moment, in millitokens.
    async fn balance(&self, entity: &str) -> (i64, i64) {
        let page =
            self.store.buckets(&entity.parse().unwrap(), &PageRequest::first(1)).await.unwrap();
        let Some(bucket) = page.items.into_iter().next() else { return (0, 0) };
        let mut state = bucket.state;
        state.refill(self.rig.clock.now());
        (state.limits()[0].balance.0, state.limits()[0].consumed.0)
    }
}

fn resource() -> ResourceName {
    "gpt-4".parse().unwrap()
}

fn in_force(entity: &str) -> LimitsInForce {
    let text = if entity == "key" { "rpm:1/sec:10" } else { "rpm:1/sec:15" };
    LimitsInForce::new(limits(text).limits, LimitSource::Builder)
}

fn is_granted(outcome: &ConsumeOutcome) -> bool {
    match outcome {
        ConsumeOutcome::Granted(_) => true,
        ConsumeOutcome::Refused(_) => false,
        other => panic!("{other:?}"),
    }
}

/// Exact, and without a memory that refuses: what the others are compared with.
fn exact(options: &mut DynamoOptions) {
    options.fast_grace_ms = 0;
    options.rejection_cache_ttl_ms = 0;
}

const UPDATE: Operation = Operation::Update;
const READ: Operation = Operation::BatchGet;

#[tokio::test]
async fn speculation_saves_the_read() {
    let (fast, slow) =
        (Process::new(|_| {}).await, Process::new(|options| options.speculative = false).await);
    for process in [&fast, &slow] {
        assert!(is_granted(&process.take(&["key"], 1).await));
        process.calls();
    }
    for (advance_ms, tokens, granted) in
        [(0, 1, true), (60_000, 1, true), (3_000, 9, true), (2_500, 1, true)]
    {
        for (process, expected) in [(&fast, vec![UPDATE]), (&slow, vec![READ, UPDATE])] {
            process.rig.clock.sleep(Duration::from_millis(advance_ms)).await;
            assert_eq!(
                is_granted(&process.take(&["key"], tokens).await),
                granted,
                "{tokens} after {advance_ms}"
            );
            assert_eq!(process.calls(), expected, "{tokens} after {advance_ms}");
        }
    }
    // Whoever has read knows that it would fail, and does not write.
    for (process, expected) in [(&fast, vec![UPDATE]), (&slow, vec![READ])] {
        process.rig.clock.sleep(Duration::from_millis(1_001)).await;
        assert!(!is_granted(&process.take(&["key"], 10).await));
        assert_eq!(process.calls(), expected);
    }
}

#[tokio::test]
async fn serial_writes_stop_at_the_first_refusal() {
    let serial = |options: &mut DynamoOptions| {
        exact(options);
        options.cascade_writes = CascadeWrites::Serial;
    };
    let (parallel, serial) = (Process::new(exact).await, Process::new(serial).await);
    for process in [&parallel, &serial] {
        assert!(is_granted(&process.take(&CHAIN, 1).await));
        // The child is empty; then the parent.
        assert!(is_granted(&process.take(&["key"], 9).await));
        process.calls();
    }
    for process in [&parallel, &serial] {
        assert!(!is_granted(&process.take(&CHAIN, 5).await));
        // What is known to be short is asked first in either mode; the parent is only looked at.
        assert_eq!(process.calls(), [UPDATE, READ], "the parent's write and its refund are saved");
        process.rig.clock.sleep(Duration::from_secs(20)).await;
        assert!(is_granted(&process.take(&["org"], 15).await));
        process.calls();
        assert!(!is_granted(&process.take(&CHAIN, 5).await));
        // The parent is looked at twice before it refuses.
        assert_eq!(process.calls(), [UPDATE; 4], "what the child has lost by then is given back");
        assert_eq!(process.balance("key").await.0, 10_000);
    }
    // The caller's own bucket is first, whatever the mode; only one of them waits for it.
    assert_eq!(order(&serial).await, order(&parallel).await);
}

/// The buckets of the next take of the chain, in the order they are written.
async fn order(process: &Process) -> Vec<String> {
    process.rig.clock.sleep(Duration::from_secs(60)).await;
    // The first grant after a refusal asks whoever has refused before the others.
    assert!(is_granted(&process.take(&CHAIN, 1).await));
    process.calls();
    assert!(is_granted(&process.take(&CHAIN, 1).await));
    let updates =
        process.rig.table.take_journal().into_iter().filter_map(|call| match call.request {
            Request::Bucket(write) => Some(write.key.pk.rsplit_once('/').unwrap().1.to_owned()),
            _ => None,
        });
    updates.collect()
}

#[tokio::test]
async fn the_memory_refuses_for_as_long_as_it_is_told() {
    for (ttl_ms, calls) in [(0, [1, 1, 1]), (1_000, [0, 0, 1]), (5_000, [0, 0, 0])] {
        let process = Process::new(|options| options.rejection_cache_ttl_ms = ttl_ms).await;
        assert!(is_granted(&process.take(&["org"], 15).await));
        let calls_of = async |after_ms| {
            process.rig.clock.sleep(Duration::from_millis(after_ms)).await;
            process.calls();
            assert!(!is_granted(&process.take(&["org"], 10).await));
            process.calls().len()
        };
        assert_eq!(
            [calls_of(0).await, calls_of(999).await, calls_of(1).await],
            calls,
            "{ttl_ms} ms"
        );
        assert_eq!(
            process.store.counters().local_refusals,
            calls.iter().filter(|calls| **calls == 0).count() as u64
        );
    }
}

/// Within the grace a bucket that is nearly full is written without its refill, which others might
/// be writing as well.
#[tokio::test]
async fn the_grace_saves_refills_of_a_bucket_that_is_nearly_full() {
    for (grace_ms, moved) in [(0, true), (100, false), (2_000, false)] {
        let process = Process::new(|options| options.fast_grace_ms = grace_ms).await;
        assert!(is_granted(&process.take(&["org"], 1).await));
        // 950 ms later all but 50 millitokens are back; the overflow begins 50 ms after that.
        process.rig.clock.sleep(Duration::from_millis(1_050)).await;
        process.calls();
        assert!(is_granted(&process.take(&["org"], 1).await));
        let Request::Bucket(write) = &process.rig.table.take_journal().remove(0).request else {
            panic!("not one write")
        };
        let moves =
            matches!(&write.shape, Shape::Change(change) if change.item.refilled_at.is_some());
        assert_eq!(moves, moved, "{grace_ms} ms of grace");
    }
}

#[tokio::test]
async fn a_small_memory_costs_calls_and_no_decision() {
    let process = Process::new(|options| {
        exact(options);
        options.images_max = 1;
    })
    .await;
    let names: Vec<String> = (0..50).map(|index| format!("user-{index}")).collect();
    for tokens in [10, 5] {
        for name in &names {
            assert!(is_granted(&process.take(&[name], tokens).await));
        }
    }
    for name in &names {
        assert!(!is_granted(&process.take(&[name], 1).await), "{name}");
        assert_eq!(process.balance(name).await, (0, 15_000), "{name}");
    }
}

#[tokio::test]
async fn audit_events_are_kept_as_long_as_it_is_told() {
    for days in [1, 90] {
        let process = Process::new(|options| options.audit_retention_s = days * 86_400).await;
        let change = process.rig.change();
        process.store.set_limits(&Level::System, &limits("rpm:1"), &change).await.unwrap();
        let key = keys::audit(&process.rig.namespace, Level::System.subject(), change.event);
        assert_eq!(
            process.rig.table.get(&key).unwrap()["ttl"],
            number(change.at.0 / 1000 + days * 86_400)
        );
        assert!(process.rig.table.get(&process.rig.bucket("key", "gpt-4")).is_none());
    }
}

/// One line of a history that touches every form of a write: create, fast, refill, fill, charges,
/// credits, debts, refusals by either member of the chain, idle time, bursts.
enum Step {
    Take(&'static [&'static str], i64),
    Adjust(&'static str, i64),
    Wait(u64),
}

const BOTH: &[&str] = &CHAIN;
const KEY: &[&str] = &["key"];
const ORG: &[&str] = &["org"];

const HISTORY: [Step; 34] = [
    Step::Take(BOTH, 3),
    Step::Take(BOTH, 3),
    Step::Take(BOTH, 5),
    Step::Wait(999),
    Step::Take(BOTH, 5),
    Step::Wait(1),
    Step::Take(BOTH, 5),
    Step::Take(ORG, 5),
    Step::Take(ORG, 1),
    Step::Wait(700),
    Step::Take(BOTH, 1),
    Step::Wait(300),
    Step::Take(BOTH, 1),
    Step::Wait(60_000),
    Step::Take(BOTH, 10),
    Step::Take(BOTH, 1),
    Step::Take(ORG, 5),
    Step::Adjust("key", 4),
    Step::Wait(4_999),
    Step::Take(KEY, 1),
    Step::Wait(1),
    Step::Take(KEY, 1),
    Step::Adjust("key", -3),
    Step::Take(KEY, 3),
    Step::Adjust("org", 20),
    Step::Take(BOTH, 1),
    Step::Wait(21_000),
    Step::Take(BOTH, 1),
    Step::Take(BOTH, 11),
    Step::Wait(600_000),
    Step::Adjust("key", -5),
    Step::Take(BOTH, 10),
    Step::Take(KEY, 1),
    Step::Take(ORG, 5),
];

/// Decisions and, after each, what both buckets hold.
async fn live(options: impl FnOnce(&mut DynamoOptions)) -> Vec<String> {
    let process = Process::new(options).await;
    let mut told = Vec::new();
    for (number, step) in HISTORY.iter().enumerate() {
        let what = match step {
            Step::Take(chain, tokens) => {
                if is_granted(&process.take(chain, *tokens).await) {
                    "granted"
                } else {
                    "refused"
                }
            }
            Step::Adjust(entity, tokens) => {
                process.adjust(entity, *tokens).await;
                "adjusted"
            }
            Step::Wait(ms) => {
                process.rig.clock.sleep(Duration::from_millis(*ms)).await;
                "waited"
            }
        };
        told.push(format!(
            "{number}: {what} {:?} {:?}",
            process.balance("key").await,
            process.balance("org").await
        ));
    }
    told
}

#[tokio::test]
async fn no_option_changes_a_decision() {
    let expected = live(exact).await;
    let count = |word: &str| expected.iter().filter(|line| line.contains(word)).count();
    assert!(count("granted") >= 10 && count("refused") >= 8, "{expected:#?}");
    let slow = live(|options| {
        exact(options);
        options.speculative = false;
    });
    assert_eq!(slow.await, expected, "speculative(false)");
    let serial = live(|options| {
        exact(options);
        options.cascade_writes = CascadeWrites::Serial;
    });
    assert_eq!(serial.await, expected, "cascade_writes(Serial)");
    let both = live(|options| {
        exact(options);
        options.speculative = false;
        options.cascade_writes = CascadeWrites::Serial;
    });
    assert_eq!(both.await, expected, "both");
    assert_eq!(
        live(|options| options.fast_grace_ms = 0).await,
        expected,
        "with the memory that refuses"
    );
    let forgetful = live(|options| {
        exact(options);
        options.images_max = 1;
    });
    assert_eq!(forgetful.await, expected, "images_max 1");
}

/// A split doubles the shards: three would be four.
#[tokio::test]
async fn a_count_of_shards_that_is_no_power_of_two_is_refused() {
    let rig = Rig::new(EvalOptions::new()).await;
    for (shards_max, is_right) in
        [(0, false), (1, true), (2, true), (3, false), (24, false), (32, true), (64, false)]
    {
        let mut options = DynamoOptions::new();
        options.shards_max = shards_max;
        match rig.table.open(options).await {
            Ok(_) => assert!(is_right, "{shards_max}"),
            Err(error) => {
                assert!(!is_right, "{shards_max}: {error}");
                assert_eq!(error.kind(), StoreErrorKind::Invalid);
                let told = format!("shards_max {shards_max}: use 1, 2, 4, 8, 16 or 32");
                assert_eq!(error.message(), told);
            }
        }
    }
}
