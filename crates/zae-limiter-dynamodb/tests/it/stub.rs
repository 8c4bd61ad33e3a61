//! What the Python package leaves of a limit that we have dropped: its lease ends with
//! `ADD tk -d, tc +d`, which makes a balance without parameters. No bucket becomes unreadable by
//! that, and nothing that was used is forgotten while the limit is asked for.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zae_limiter_core::{Limit, LimitName, Milli, Take};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::table::{Action, Condition, Item, Table, Update, number as attribute};
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Delta,
    Level, LimitsChange, LimitsInForce, MemberKey, MemberTake, PageRequest, ResetRequest,
};
use zae_limiter_testkit::table::{EvalOptions, Operation, Point};

use crate::evaluated::Rig;

const RPM: &str = "rpm:1/hour:10";
const TPM: &str = "tpm:1/hour:10";

async fn set(rig: &Rig, store: &DynamoStore, texts: &[&str]) -> LimitsInForce {
    let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
    let change = LimitsChange { limits, on_unavailable: None, expected_version: None };
    store.set_limits(&Level::System, &change, &rig.change()).await.unwrap();
    let (entity, resource) = ("org".parse().unwrap(), "gpt-4".parse().unwrap());
    let found = store.resolve(&[MemberKey { entity: &entity, resource: &resource }]).await.unwrap();
    let (limits, source) = found.members[0].limits.clone().unwrap();
    LimitsInForce::resolved(limits, source, found.stamp, 7)
}

async fn ask(
    rig: &Rig,
    store: &DynamoStore,
    limits: &LimitsInForce,
    tokens: &[i64],
    absent: &[LimitName],
    peeks: bool,
) -> ConsumeOutcome {
    let takes: Vec<Take> = (0..)
        .zip(tokens)
        .map(|(limit, tokens)| Take { limit, amount: Milli(tokens * 1_000) })
        .collect();
    let member = MemberTake {
        entity: &"org".parse().unwrap(),
        resource: &"gpt-4".parse().unwrap(),
        limits,
        takes: &takes,
        absent,
    };
    let members = [member];
    let request = ConsumeRequest::new(&members, rig.clock.now());
    if peeks { store.peek(&request).await.unwrap() } else { store.consume(&request).await.unwrap() }
}

fn item(rig: &Rig) -> Item {
    rig.table.get(&rig.bucket("org", "gpt-4")).unwrap()
}

fn number(rig: &Rig, name: &str) -> i64 {
    item(rig)[name].as_n().unwrap().parse().unwrap()
}

/// A bucket of `rpm` and `tpm`, from which `tpm` is dropped once it is full, and then the end of a
/// lease of the Python package that had taken `tpm` before: exactly its write.
async fn stubbed(rig: &Rig, store: &DynamoStore, debit: i64) -> LimitsInForce {
    let both = set(rig, store, &[RPM, TPM]).await;
    assert!(matches!(
        ask(rig, store, &both, &[1, 0], &[], false).await,
        ConsumeOutcome::Granted(_)
    ));
    rig.clock.sleep(std::time::Duration::from_secs(60)).await;
    let one = set(rig, store, &[RPM]).await;
    assert!(matches!(ask(rig, store, &one, &[1], &[], false).await, ConsumeOutcome::Granted(_)));
    assert!(
        !item(rig).keys().any(|name| name.starts_with("b_tpm")),
        "full and not configured: gone"
    );
    let update = Update {
        key: rig.bucket("org", "gpt-4"),
        actions: vec![
            Action::Add("b_tpm_tk".into(), -debit * 1_000),
            Action::Add("b_tpm_tc".into(), debit * 1_000),
        ],
        conditions: vec![Condition::Exists("PK".into())],
    };
    rig.table.update(&update).await.unwrap();
    one
}

#[tokio::test]
async fn a_late_debit_of_python_leaves_a_bucket_that_can_be_read() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let one = stubbed(&rig, &store, 3).await;
    for store in [store, rig.store().await] {
        assert!(
            matches!(ask(&rig, &store, &one, &[1], &[], true).await, ConsumeOutcome::Granted(_)),
            "a peek"
        );
        assert!(
            matches!(ask(&rig, &store, &one, &[1], &[], false).await, ConsumeOutcome::Granted(_)),
            "a take"
        );
        let listed = store.buckets(&"org".parse().unwrap(), &PageRequest::default()).await.unwrap();
        assert_eq!(listed.items.len(), 1, "a listing");
        // One that asks for `tpm`, if the member has it: a balance alone is no limit.
        let absent: [LimitName; 1] = ["tpm".parse().unwrap()];
        assert!(
            matches!(
                ask(&rig, &store, &one, &[1], &absent, false).await,
                ConsumeOutcome::Granted(_)
            ),
            "a take that names it"
        );
        let deltas = [Delta { limit: 0, amount: Milli(1_000) }];
        let (entity, resource) = ("org".parse().unwrap(), "gpt-4".parse().unwrap());
        let delta = BucketDelta {
            entity: &entity,
            resource: &resource,
            limits: &one,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        assert_eq!(
            store.adjust(&[delta], rig.clock.now()).await.remove(0).unwrap(),
            Adjusted::Applied,
            "a charge"
        );
    }
}

#[tokio::test]
async fn the_next_refill_takes_away_what_is_left_of_the_limit() {
    for resets in [false, true] {
        let rig = Rig::new(EvalOptions::new()).await;
        let store = rig.store().await;
        let one = stubbed(&rig, &store, 3).await;
        if resets {
            let request = ResetRequest {
                entity: &"org".parse().unwrap(),
                resource: &"gpt-4".parse().unwrap(),
                only: None,
            };
            assert!(store.reset(&request, &rig.change()).await.unwrap().is_some());
        } else {
            rig.clock.sleep(std::time::Duration::from_secs(7 * 3_600)).await;
            assert!(matches!(
                ask(&rig, &rig.store().await, &one, &[8], &[], false).await,
                ConsumeOutcome::Granted(_)
            ));
        }
        assert!(!item(&rig).keys().any(|name| name.starts_with("b_tpm")), "{:?}", item(&rig));
    }
}

/// The limit comes back while the debit is still written there: it starts with that debt, not full.
#[tokio::test]
async fn a_limit_that_comes_back_owes_what_was_used() {
    for peeks in [false, true] {
        let rig = Rig::new(EvalOptions::new()).await;
        let store = rig.store().await;
        stubbed(&rig, &store, 4).await;
        let both = set(&rig, &store, &[RPM, TPM]).await;
        if peeks {
            assert!(
                matches!(
                    ask(&rig, &store, &both, &[0, 7], &[], true).await,
                    ConsumeOutcome::Refused(_)
                ),
                "10 less 4"
            );
            assert!(matches!(
                ask(&rig, &store, &both, &[0, 6], &[], true).await,
                ConsumeOutcome::Granted(_)
            ));
            continue;
        }
        assert!(
            matches!(
                ask(&rig, &store, &both, &[0, 7], &[], false).await,
                ConsumeOutcome::Refused(_)
            ),
            "10 less 4"
        );
        assert!(matches!(
            ask(&rig, &store, &both, &[0, 6], &[], false).await,
            ConsumeOutcome::Granted(_)
        ));
        assert_eq!(
            (number(&rig, "b_tpm_tk"), number(&rig, "b_tpm_tc")),
            (0, 10_000),
            "Python's four count, and our six"
        );
    }
}

/// Python charges once more between our look and our write: that is owed too.
#[tokio::test]
async fn a_debit_between_look_and_write_is_owed_too() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    stubbed(&rig, &store, 4).await;
    let both = set(&rig, &store, &[RPM, TPM]).await;
    let (table, key, is_made) =
        (rig.table.clone(), rig.bucket("org", "gpt-4"), AtomicBool::new(false));
    let gate = move |_, point| {
        if point == Point::Before(Operation::Update) && !is_made.swap(true, Ordering::SeqCst) {
            let mut item = table.get(&key).unwrap();
            let left: i64 = item["b_tpm_tk"].as_n().unwrap().parse().unwrap();
            item.insert("b_tpm_tk".to_owned(), attribute(left - 1_000));
            table.insert(&item);
        }
        0
    };
    let store = rig.client(rig.table.client(1).with_gate(Arc::new(gate)), |_| {}).await;
    assert!(
        matches!(ask(&rig, &store, &both, &[0, 6], &[], true).await, ConsumeOutcome::Granted(_)),
        "the look: 10 less 4"
    );
    assert!(
        matches!(ask(&rig, &store, &both, &[0, 6], &[], false).await, ConsumeOutcome::Refused(_)),
        "10 less 5"
    );
    assert!(matches!(
        ask(&rig, &store, &both, &[0, 5], &[], false).await,
        ConsumeOutcome::Granted(_)
    ));
    assert_eq!(number(&rig, "b_tpm_tk"), 0);
}

/// A charge of ours on the limit that is gone brings it back, with what Python has charged.
#[tokio::test]
async fn a_charge_adds_to_what_is_left_of_the_limit() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let both = set(&rig, &store, &[RPM, TPM]).await;
    stubbed(&rig, &store, 4).await;
    let deltas = [Delta { limit: 1, amount: Milli(5_000) }];
    let (entity, resource) = ("org".parse().unwrap(), "gpt-4".parse().unwrap());
    let delta = BucketDelta {
        entity: &entity,
        resource: &resource,
        limits: &both,
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    assert_eq!(store.adjust(&[delta], rig.clock.now()).await.remove(0).unwrap(), Adjusted::Applied);
    assert_eq!((number(&rig, "b_tpm_tk"), number(&rig, "b_tpm_tc")), (1_000, 9_000));
    assert_eq!(number(&rig, "b_tpm_cp"), 10_000);
}
