//! Limits that come to a bucket, or leave it, while somebody works with what it was like before.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use crate::evaluated::Rig;
use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{ConfigStamp, Flag, Limit, LimitName, LimitSource, Milli, Take};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::table::number;
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Delta,
    Level, LimitsChange, LimitsInForce, MemberKey, MemberTake, StoreErrorKind,
};
use zae_limiter_testkit::table::EvalOptions;

const RPM: &str = "rpm:1/hour:10";
const TPM: &str = "tpm:1/hour:10";

fn limits_of(texts: &[&str]) -> Vec<Limit> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Takes one `rpm` for a request that asks for a `tpm` as well, if the member has one: here it has
/// not.
async fn take_rpm(rig: &Rig, store: &DynamoStore, limits: &LimitsInForce) -> ConsumeOutcome {
    let absent: [LimitName; 1] = ["tpm".parse().unwrap()];
    take(rig, store, limits, &[Take { limit: 0, amount: Milli(1_000) }], &absent).await
}

async fn take(
    rig: &Rig,
    store: &DynamoStore,
    limits: &LimitsInForce,
    takes: &[Take],
    absent: &[LimitName],
) -> ConsumeOutcome {
    let member = MemberTake {
        entity: &"org".parse().unwrap(),
        resource: &"gpt-4".parse().unwrap(),
        limits,
        takes,
        absent,
    };
    store.consume(&ConsumeRequest::new(&[member], rig.clock.now())).await.unwrap()
}

/// Stores the limits, and brings them to the bucket as a process does that has read them.
async fn set_and_take(rig: &Rig, store: &DynamoStore, texts: &[&str]) -> LimitsInForce {
    let change =
        LimitsChange { limits: limits_of(texts), on_unavailable: None, expected_version: None };
    store.set_limits(&Level::System, &change, &rig.change()).await.unwrap();
    let known = known(store).await;
    let takes: Vec<Take> = (0..u8::try_from(texts.len()).unwrap())
        .map(|limit| Take { limit, amount: Milli(1_000) })
        .collect();
    assert!(matches!(take(rig, store, &known, &takes, &[]).await, ConsumeOutcome::Granted(_)));
    known
}

async fn known(store: &DynamoStore) -> LimitsInForce {
    let (entity, resource) = ("org".parse().unwrap(), "gpt-4".parse().unwrap());
    let found = store.resolve(&[MemberKey { entity: &entity, resource: &resource }]).await.unwrap();
    let (limits, source) = found.members[0].limits.clone().unwrap();
    LimitsInForce::resolved(limits, source, found.stamp, 7)
}

/// The request asks for `tpm`; that its ancestor has got one meanwhile must not be passed by.
#[tokio::test]
async fn a_limit_that_an_ancestor_has_got_meanwhile_is_noticed() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (admin, knows_bucket, knows_limits) =
        (rig.store().await, rig.store().await, rig.store().await);
    set_and_take(&rig, &admin, &[RPM]).await;
    let old = known(&knows_bucket).await;
    let also_old = known(&knows_limits).await;
    assert!(matches!(take_rpm(&rig, &knows_bucket, &old).await, ConsumeOutcome::Granted(_)));
    set_and_take(&rig, &admin, &[RPM, TPM]).await;
    assert_eq!(take_rpm(&rig, &knows_bucket, &old).await, ConsumeOutcome::Stale { member: 0 });
    assert_eq!(
        take_rpm(&rig, &knows_limits, &also_old).await,
        ConsumeOutcome::Stale { member: 0 },
        "without an image"
    );
}

/// The same for a limit that was removed, is still there to refill, and comes back.
#[tokio::test]
async fn a_retired_limit_that_an_ancestor_has_got_back_is_noticed() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (admin, other) = (rig.store().await, rig.store().await);
    set_and_take(&rig, &admin, &[RPM, TPM]).await;
    set_and_take(&rig, &admin, &[RPM]).await;
    let old = known(&other).await;
    for _ in 0..2 {
        assert!(
            matches!(take_rpm(&rig, &other, &old).await, ConsumeOutcome::Granted(_)),
            "retired is not in force"
        );
    }
    set_and_take(&rig, &admin, &[RPM, TPM]).await;
    assert_eq!(take_rpm(&rig, &other, &old).await, ConsumeOutcome::Stale { member: 0 });
}

/// An image that says no is asked again by a write that may land: that the limit came meanwhile
/// must not be forgotten over it.
#[tokio::test]
async fn a_limit_that_came_meanwhile_is_noticed_when_a_refusal_is_too_old() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (admin, other) = (rig.store().await, rig.store().await);
    set_and_take(&rig, &admin, &[RPM]).await;
    let old = known(&other).await;
    let new = set_and_take(&rig, &admin, &[RPM, TPM]).await;
    let all = [Take { limit: 0, amount: Milli(8_000) }];
    assert!(matches!(take(&rig, &admin, &new, &all, &[]).await, ConsumeOutcome::Granted(_)));
    // Sees a bucket that is short, and the new limit in it.
    assert!(matches!(take_rpm(&rig, &other, &old).await, ConsumeOutcome::Refused(_)));
    let deltas = [Delta { limit: 0, amount: Milli(-8_000) }];
    let (entity, resource) = ("org".parse().unwrap(), "gpt-4".parse().unwrap());
    let back = BucketDelta {
        entity: &entity,
        resource: &resource,
        limits: &new,
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    assert_eq!(admin.adjust(&[back], rig.clock.now()).await.remove(0).unwrap(), Adjusted::Applied);
    rig.clock.sleep(std::time::Duration::from_millis(1_500)).await;
    assert_eq!(take_rpm(&rig, &other, &old).await, ConsumeOutcome::Stale { member: 0 });
}

/// Limits that are given with the call are all it wants to be held to.
#[tokio::test]
async fn limits_of_the_call_are_not_asked_about_others() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    set_and_take(&rig, &store, &[RPM, TPM]).await;
    let of_the_call =
        LimitsInForce::resolved(limits_of(&[RPM]), LimitSource::Call, ConfigStamp(0), 7);
    for store in [store, rig.store().await] {
        assert!(matches!(take_rpm(&rig, &store, &of_the_call).await, ConsumeOutcome::Granted(_)));
    }
}

/// A charge is never refused, but what can only be charged by an exact write, and is not, is
/// counted.
#[tokio::test]
async fn a_charge_that_could_not_be_made_is_counted() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let limits = set_and_take(&rig, &store, &[RPM]).await;
    let mut item = rig.table.get(&rig.bucket("org", "gpt-4")).unwrap();
    // A bucket this version cannot refill, and in which nothing is left of `rpm`.
    item.retain(|name, _| !name.starts_with("b_rpm"));
    item.insert("sched".to_owned(), AttributeValue::S("1m0-59h9-17".to_owned()));
    rig.table.insert(&item);
    let deltas = [Delta { limit: 0, amount: Milli(1_000) }];
    let (entity, resource) = ("org".parse().unwrap(), "gpt-4".parse().unwrap());
    let delta = BucketDelta {
        entity: &entity,
        resource: &resource,
        limits: &limits,
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    assert_eq!(store.adjust(&[delta], rig.clock.now()).await.remove(0).unwrap(), Adjusted::Applied);
    assert_eq!(store.counters().charges_lost, 1);
}

/// Found by review: a bucket that no write can pin refused for ever as contended, and nobody
/// learned why.
#[tokio::test]
async fn a_bucket_that_can_not_be_written_says_why_and_can_be_repaired() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let limits = set_and_take(&rig, &store, &[RPM]).await;
    let takes = [Take { limit: 0, amount: Milli(1_000) }];
    let member = MemberTake {
        entity: &"org".parse().unwrap(),
        resource: &"gpt-4".parse().unwrap(),
        limits: &limits,
        takes: &takes,
        absent: &[],
    };
    let members = [member];
    let request = ConsumeRequest::new(&members, rig.clock.now());
    let whole = rig.table.get(&rig.bucket("org", "gpt-4")).unwrap();
    let damages: [(&str, Option<AttributeValue>); 3] = [
        ("shard_count", None),
        ("shard_count", Some(number(0))),
        ("disabled", Some(AttributeValue::Bool(false))),
    ];
    for (name, value) in damages {
        let mut item = whole.clone();
        item.remove(name);
        item.extend(value.map(|value| (name.to_owned(), value)));
        rig.table.insert(&item);
        let error = rig.store().await.consume(&request).await.unwrap_err();
        assert!(
            error.kind() == StoreErrorKind::Corrupt && error.to_string().contains(name),
            "{error}"
        );
    }
    // What the last of them says helps.
    store
        .set_flag(&Level::Entity("org".parse().unwrap()), Some(Flag::Enabled), &rig.change())
        .await
        .unwrap();
    assert!(matches!(
        rig.store().await.consume(&request).await.unwrap(),
        ConsumeOutcome::Granted(_)
    ));
    // A measure of writes that is missing comes back by itself.
    let mut item = rig.table.get(&rig.bucket("org", "gpt-4")).unwrap();
    item.retain(|name, _| !name.starts_with("b_wcu"));
    rig.table.insert(&item);
    let again = ConsumeRequest { now: rig.clock.now().plus_ms(5_000), ..request };
    assert!(matches!(rig.store().await.consume(&again).await.unwrap(), ConsumeOutcome::Granted(_)));
}

/// Writes the bucket of `org` as it is after `change`, by nobody's protocol: its refill instant
/// stays. So it is after a deletion and a creation, or a reset of an instant that was far ahead
/// (rule A5), within the millisecond of the image.
fn rewrite(rig: &Rig, change: impl FnOnce(&mut zae_limiter_dynamodb::table::Item)) {
    let mut item = rig.table.get(&rig.bucket("org", "gpt-4")).unwrap();
    change(&mut item);
    rig.table.insert(&item);
}

async fn set(rig: &Rig, store: &DynamoStore, limits: Vec<Limit>) {
    let change = LimitsChange { limits, on_unavailable: None, expected_version: None };
    store.set_limits(&Level::System, &change, &rig.change()).await.unwrap();
}

/// Takes all the `rpm` there are, so that the next take has to refill.
async fn drain(rig: &Rig, store: &DynamoStore, limits: &LimitsInForce, tokens: i64) {
    let absent: [LimitName; 1] = ["tpm".parse().unwrap()];
    let all = [Take { limit: 0, amount: Milli(1_000 * tokens) }];
    assert!(matches!(take(rig, store, limits, &all, &absent).await, ConsumeOutcome::Granted(_)));
}

/// A refill pins the name too: the refill instant alone does not say that the bucket is the same.
#[tokio::test]
async fn a_refill_notices_a_limit_that_came_within_the_same_millisecond() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (admin, other) = (rig.store().await, rig.store().await);
    set_and_take(&rig, &admin, &[RPM]).await;
    let old = known(&other).await;
    drain(&rig, &other, &old, 9).await;
    set(&rig, &admin, limits_of(&[RPM, TPM])).await;
    rewrite(&rig, |item| {
        for field in ["tk", "cp", "ra", "rp", "tc"] {
            item.insert(format!("b_tpm_{field}"), item[&format!("b_rpm_{field}")].clone());
        }
    });
    rig.clock.sleep(std::time::Duration::from_secs(3_700)).await;
    assert_eq!(take_rpm(&rig, &other, &old).await, ConsumeOutcome::Stale { member: 0 });
}

#[tokio::test]
async fn a_refill_notices_a_retired_limit_that_came_back_within_the_same_millisecond() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (admin, other) = (rig.store().await, rig.store().await);
    set_and_take(&rig, &admin, &[RPM, TPM]).await;
    set_and_take(&rig, &admin, &[RPM]).await;
    let old = known(&other).await;
    drain(&rig, &other, &old, 8).await;
    set(&rig, &admin, limits_of(&[RPM, TPM])).await;
    rewrite(&rig, |item| {
        let read_at: i64 = item["ca"].as_n().unwrap().parse().unwrap();
        item.insert("ca".to_owned(), number(read_at + 1));
        item.remove("ret").unwrap();
    });
    rig.clock.sleep(std::time::Duration::from_secs(3_700)).await;
    assert_eq!(take_rpm(&rig, &other, &old).await, ConsumeOutcome::Stale { member: 0 });
}

/// What a fold remembers is not replaced by somebody who has not seen it.
#[tokio::test]
async fn a_fold_that_came_within_the_same_millisecond_is_not_forgotten() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (admin, other) = (rig.store().await, rig.store().await);
    let names = |letter: &str| -> Vec<Limit> {
        (0..16).map(|at| format!("{letter}{at}:1/hour:10").parse().unwrap()).collect()
    };
    let one_of_each: Vec<Take> =
        (0..16).map(|limit| Take { limit, amount: Milli(1_000) }).collect();
    set(&rig, &admin, names("a")).await;
    let old = known(&other).await;
    assert!(matches!(
        take(&rig, &other, &old, &one_of_each, &[]).await,
        ConsumeOutcome::Granted(_)
    ));
    set(&rig, &admin, names("b")).await;
    // 100 hours; the limits that will be folded need one.
    rewrite(&rig, |item| {
        let fold = [("tk", 0), ("cp", 100_000), ("ra", 1_000), ("rp", 3_600_000), ("tc", 0)];
        for (field, value) in fold {
            item.insert(format!("b_folded_limits_{field}"), number(value));
        }
        item.insert("ret".to_owned(), AttributeValue::Ss(vec!["folded_limits".to_owned()]));
    });
    let new = known(&other).await;
    let _ = take(&rig, &other, &new, &one_of_each, &[]).await;
    let item = rig.table.get(&rig.bucket("org", "gpt-4")).unwrap();
    let field = |name: &str| -> i64 {
        item[&format!("b_folded_limits_{name}")].as_n().unwrap().parse().unwrap()
    };
    assert!(item.contains_key("b_b0_cp") && !item.contains_key("b_a0_cp"), "{item:?}");
    let hours = (field("cp") - field("tk")) / field("ra") * field("rp") / 3_600_000;
    assert!(hours >= 100, "{hours} hours");
}
