//! What a take or a settlement says when something beside it goes wrong: an outage elsewhere in the
//! chain, limits that change in the middle, a bucket that somebody has damaged, answers that are
//! lost.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::evaluated::Rig;
use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{
    ConfigStamp, EntityId, Flag, Limit, LimitSource, Milli, ResourceName, Take,
};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::bucket::write::Purpose;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::number;
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Delta,
    Level, LimitsChange, LimitsInForce, MemberKey, MemberTake, PageRequest, StoreError,
    StoreErrorKind,
};
use zae_limiter_testkit::table::{Asked, EvalOptions, Fate, Faults, Operation, Point};

fn gpt() -> ResourceName {
    "gpt-4".parse().unwrap()
}

fn limits_of(texts: &[&str]) -> Vec<Limit> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn unstored(texts: &[&str]) -> LimitsInForce {
    LimitsInForce::resolved(limits_of(texts), LimitSource::Builder, ConfigStamp(0), 7)
}

async fn take(
    rig: &Rig,
    store: &DynamoStore,
    chain: &[(&str, &LimitsInForce)],
    tokens: u64,
) -> Result<ConsumeOutcome, StoreError> {
    let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
    let (entities, resource): (Vec<EntityId>, _) =
        (chain.iter().map(|(name, _)| name.parse().unwrap()).collect(), gpt());
    let member = |(entity, (_, limits))| MemberTake {
        entity,
        resource: &resource,
        limits,
        takes: &takes,
        absent: &[],
    };
    let members: Vec<MemberTake<'_>> =
        entities.iter().zip(chain.iter().copied()).map(member).collect();
    store.consume(&ConsumeRequest::new(&members, rig.clock.now())).await
}

async fn adjust(
    rig: &Rig,
    store: &DynamoStore,
    limits: &LimitsInForce,
    milli: i64,
    operation: u64,
) -> Result<Adjusted, StoreError> {
    let deltas = [Delta { limit: 0, amount: Milli(milli) }];
    let delta = BucketDelta {
        entity: &"key".parse().unwrap(),
        resource: &gpt(),
        limits,
        deltas: &deltas,
        operation,
        take: 0,
        place: 0,
    };
    store.adjust(&[delta], rig.clock.now()).await.remove(0)
}

async fn set(rig: &Rig, store: &DynamoStore, texts: &[&str]) {
    let change =
        LimitsChange { limits: limits_of(texts), on_unavailable: None, expected_version: None };
    store.set_limits(&Level::System, &change, &rig.change()).await.unwrap();
}

/// The limits of `key` as a process knows them that reads them now.
async fn known(store: &DynamoStore) -> LimitsInForce {
    let (entity, resource) = ("key".parse().unwrap(), gpt());
    let found = store.resolve(&[MemberKey { entity: &entity, resource: &resource }]).await.unwrap();
    let (limits, source) = found.members[0].limits.clone().unwrap();
    LimitsInForce::resolved(limits, source, found.stamp, 7)
}

fn number_of(rig: &Rig, attribute: &str) -> Option<i64> {
    let item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    item.get(attribute).map(|value| value.as_n().unwrap().parse().unwrap())
}

/// Policy "allow" is for outages: it must never hear of one when a member has said no.
#[tokio::test]
async fn what_one_member_has_decided_stands_beside_an_outage_of_another() {
    let rig = Rig::new(EvalOptions::new()).await;
    let good = rig.store().await;
    let ten = unstored(&["rpm:1/hour:10"]);
    let chain = [("key", &ten), ("org", &ten)];
    assert!(matches!(take(&rig, &good, &chain, 10).await, Ok(ConsumeOutcome::Granted(_))));
    let is_of_org =
        |asked: &Asked<'_>| matches!(asked, Asked::Bucket(write) if write.key.pk.contains("#org#"));
    let faults = Faults::by(
        move |asked: &Asked<'_>| if is_of_org(asked) { Fate::LostBefore } else { Fate::Pass },
    );
    let bad = rig.client(rig.table.client(9).with_faults(faults), |_| {}).await;
    assert!(matches!(take(&rig, &bad, &chain, 1).await, Ok(ConsumeOutcome::Refused(_))));
    let of_key = Level::EntityResource("key".parse().unwrap(), gpt());
    good.set_flag(&of_key, Some(Flag::Disabled), &rig.change()).await.unwrap();
    assert!(matches!(
        take(&rig, &bad, &chain, 1).await,
        Ok(ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled })
    ));
    let outage = take(&rig, &bad, &[("org", &ten)], 1).await.unwrap_err();
    assert_eq!(outage.kind(), StoreErrorKind::Unavailable);
}

/// A limit that is new to everybody but the bucket is neither dropped nor retired by somebody with
/// an older configuration.
#[tokio::test]
async fn a_stale_process_does_not_take_a_new_limit_away() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (first, second) = (rig.store().await, rig.store().await);
    set(&rig, &first, &["rpm:1/hour:10"]).await;
    let old = known(&second).await;
    set(&rig, &first, &["rpm:1/hour:10", "tpm:1/hour:100"]).await;
    let new = known(&first).await;
    assert!(matches!(
        take(&rig, &first, &[("key", &new)], 1).await,
        Ok(ConsumeOutcome::Granted(_))
    ));
    assert!(matches!(
        take(&rig, &second, &[("key", &old)], 1).await,
        Ok(ConsumeOutcome::Stale { member: 0 })
    ));
    assert_eq!(number_of(&rig, "b_tpm_tk"), Some(100_000));
}

/// What a configuration read proves, it proves of the bucket as it was then: limits that others
/// have brought since stay.
#[tokio::test]
async fn a_lost_race_does_not_push_old_limits_back() {
    let rig = Rig::new(EvalOptions::new()).await;
    let first = rig.store().await;
    set(&rig, &first, &["rpm:1/hour:20"]).await;
    let twenty = known(&first).await;
    assert!(matches!(
        take(&rig, &first, &[("key", &twenty)], 1).await,
        Ok(ConsumeOutcome::Granted(_))
    ));
    set(&rig, &first, &["rpm:1/hour:1000"]).await;

    // The second process knows the bucket from its first write; just before it raises it by the
    // next, somebody cuts limit and bucket to 3.
    let (table, bucket, config) =
        (rig.table.clone(), rig.bucket("key", "gpt-4"), keys::system_config(&rig.namespace));
    let updates = AtomicU32::new(0);
    let cut = move |_: u32, point: Point| {
        if point == Point::Before(Operation::Update) && updates.fetch_add(1, Ordering::SeqCst) == 1
        {
            let mut level = table.get(&config).unwrap();
            level.insert("l_rpm_cp".to_owned(), number(3));
            level.insert("config_version".to_owned(), number(9_999_999_999_999_999));
            table.insert(&level);
            let mut item = table.get(&bucket).unwrap();
            let next = |name: &str| number(item[name].as_n().unwrap().parse::<i64>().unwrap() + 1);
            let (rf, ca) = (next("rf"), next("ca"));
            let cut =
                [("b_rpm_cp", number(3_000)), ("b_rpm_tk", number(3_000)), ("rf", rf), ("ca", ca)];
            item.extend(cut.map(|(name, value)| (name.to_owned(), value)));
            table.insert(&item);
        }
        0
    };
    let second = rig.client(rig.table.client(9).with_gate(Arc::new(cut)), |_| {}).await;
    let thousand = known(&second).await;
    assert!(matches!(
        take(&rig, &second, &[("key", &thousand)], 1).await,
        Ok(ConsumeOutcome::Stale { member: 0 })
    ));
    assert_eq!(number_of(&rig, "b_rpm_cp"), Some(3_000));
}

/// Landed is landed: an error would have a refund sent again, and minted.
#[tokio::test]
async fn what_lands_on_a_bucket_that_can_not_be_read_has_landed() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, ten) = (rig.store().await, unstored(&["rpm:1/hour:10"]));
    take(&rig, &store, &[("key", &ten)], 9).await.unwrap();
    let mut item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    // No limit of ours may be called so.
    for (field, value) in [("tk", 1_000), ("cp", 1_000), ("ra", 1_000), ("rp", 60_000), ("tc", 0)] {
        item.insert(format!("b_resource_{field}"), number(value));
    }
    rig.table.insert(&item);
    assert_eq!(adjust(&rig, &store, &ten, -2_000, 0).await.unwrap(), Adjusted::Applied);
    assert_eq!(number_of(&rig, "b_rpm_tk"), Some(3_000));
    assert_eq!(adjust(&rig, &store, &ten, 1_000, 0).await.unwrap(), Adjusted::Applied);
    assert_eq!(number_of(&rig, "b_rpm_tk"), Some(2_000));
    assert!(matches!(
        take(&rig, &rig.store().await, &[("key", &ten)], 1).await,
        Ok(ConsumeOutcome::Granted(_))
    ));
    assert_eq!(number_of(&rig, "b_rpm_tk"), Some(1_000));
    // One that is read first, and cannot be, is left alone.
    let error = take(
        &rig,
        &rig.client(rig.table.clone(), |options| options.speculative = false).await,
        &[("key", &ten)],
        1,
    )
    .await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Corrupt);
    assert_eq!(number_of(&rig, "b_rpm_tk"), Some(1_000));
}

/// Nobody above sends these again, so they are counted where they are given up.
#[tokio::test]
async fn what_could_not_be_given_back_is_counted() {
    let rig = Rig::new(EvalOptions::new()).await;
    let is_credit = |asked: &Asked<'_>| matches!(asked, Asked::Bucket(write) if write.purpose == Purpose::GiveBack);
    let faults = Faults::by(
        move |asked: &Asked<'_>| if is_credit(asked) { Fate::NotApplied } else { Fate::Pass },
    );
    let store = rig.client(rig.table.client(9).with_faults(faults), |_| {}).await;
    let (ten, one) = (unstored(&["rpm:1/hour:10", "tpm:1/hour:10"]), unstored(&["rpm:1/hour:1"]));
    // The parent refuses, and what the child gave cannot be given back.
    let other = rig.store().await;
    assert!(matches!(
        take(&rig, &other, &[("key", &ten), ("org", &one)], 1).await,
        Ok(ConsumeOutcome::Granted(_))
    ));
    assert!(matches!(
        take(&rig, &store, &[("key", &ten), ("org", &one)], 1).await,
        Ok(ConsumeOutcome::Refused(_))
    ));
    assert_eq!((number_of(&rig, "b_rpm_tk"), store.counters().credits_lost), (Some(8_000), 1));
    // Charged on one limit; on the other it cannot be given back.
    let deltas =
        [Delta { limit: 0, amount: Milli(1_000) }, Delta { limit: 1, amount: Milli(-1_000) }];
    let delta = BucketDelta {
        entity: &"key".parse().unwrap(),
        resource: &gpt(),
        limits: &ten,
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    assert_eq!(store.adjust(&[delta], rig.clock.now()).await.remove(0).unwrap(), Adjusted::Applied);
    assert_eq!((number_of(&rig, "b_rpm_tk"), store.counters().credits_lost), (Some(7_000), 2));
}

/// However often a settler sends it: a charge whose answers are lost is made once, as long as
/// nobody writes in between.
#[tokio::test]
async fn a_charge_that_is_repeated_by_its_number_is_made_once() {
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored(&["rpm:1/hour:10"]);
    // Less than half is left: the first write of a charge, which has seen nothing, can land.
    take(&rig, &rig.store().await, &[("key", &ten)], 7).await.unwrap();
    let is_open = Arc::new(AtomicBool::new(false));
    let loses = Arc::clone(&is_open);
    let faults = Faults::by(move |asked: &Asked<'_>| {
        if asked.operation() == Operation::Update && !loses.load(Ordering::SeqCst) {
            Fate::LostAfter
        } else {
            Fate::Pass
        }
    });
    let store = rig.client(rig.table.client(9).with_faults(faults), |_| {}).await;
    for _ in 0..3 {
        let error = adjust(&rig, &store, &ten, 1_000, 7).await.unwrap_err();
        assert!(error.fate_unknown(), "{error}");
        assert_eq!(number_of(&rig, "b_rpm_tk"), Some(2_000), "landed, and once");
    }
    is_open.store(true, Ordering::SeqCst);
    assert_eq!(adjust(&rig, &store, &ten, 1_000, 7).await.unwrap(), Adjusted::Applied);
    assert_eq!(number_of(&rig, "b_rpm_tk"), Some(2_000));
    // Another change is another change.
    assert_eq!(adjust(&rig, &store, &ten, 1_000, 8).await.unwrap(), Adjusted::Applied);
    assert_eq!(number_of(&rig, "b_rpm_tk"), Some(1_000));
}

/// A bucket past its expiry may be deleted at any moment, and what is taken from it forgotten: also
/// a writer that has not seen the expiry puts it off.
#[tokio::test]
async fn a_take_from_a_bucket_past_its_expiry_puts_it_off() {
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored(&["rpm:1/hour:10"]);
    take(&rig, &rig.store().await, &[("key", &ten)], 7).await.unwrap();
    let mut item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    let now_s = rig.clock.now().0 / 1_000;
    item.insert("ttl".to_owned(), number(now_s - 1));
    rig.table.insert(&item);
    assert!(matches!(
        take(&rig, &rig.store().await, &[("key", &ten)], 1).await,
        Ok(ConsumeOutcome::Granted(_))
    ));
    assert!(number_of(&rig, "ttl") > Some(now_s), "{:?} at {now_s}", number_of(&rig, "ttl"));
}

/// Each charge alone is less than the expiry allows for; together they are more, and the second one
/// has not seen the first.
#[tokio::test]
async fn a_debt_that_two_processes_run_up_is_not_forgotten_before_it_is_repaid() {
    const HOUR_S: i64 = 3_600;
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored(&["rpm:1/hour:10"]);
    take(&rig, &rig.store().await, &[("key", &ten)], 7).await.unwrap();
    for charge in [60_000, 10_000] {
        let adjusted = adjust(&rig, &rig.store().await, &ten, charge, 0).await;
        assert_eq!(adjusted.unwrap(), Adjusted::Applied);
    }
    assert_eq!(number_of(&rig, "b_rpm_tk"), Some(-67_000));
    let full_s = rig.clock.now().0 / 1_000 + (67 + 10) * HOUR_S;
    assert!(number_of(&rig, "ttl") >= Some(full_s), "{:?}, {full_s}", number_of(&rig, "ttl"));
}

/// That a bucket was not there when it was last looked at does not mean that there is nothing to
/// give back to.
#[tokio::test]
async fn a_bucket_made_since_the_last_look_is_given_back_to() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, ten) = (rig.store().await, unstored(&["rpm:1/hour:10"]));
    let takes = [Take { limit: 0, amount: Milli(1_000) }];
    let member = MemberTake {
        entity: &"key".parse().unwrap(),
        resource: &gpt(),
        limits: &ten,
        takes: &takes,
        absent: &[],
    };
    store.peek(&ConsumeRequest::new(&[member], rig.clock.now())).await.unwrap();
    take(&rig, &rig.store().await, &[("key", &ten)], 7).await.unwrap();
    assert_eq!(adjust(&rig, &store, &ten, -2_000, 0).await.unwrap(), Adjusted::Applied);
    assert_eq!(number_of(&rig, "b_rpm_tk"), Some(5_000));
}

#[tokio::test]
async fn the_longest_ids_have_a_page_two() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, ten) = (rig.store().await, unstored(&["rpm:1/hour:10"]));
    for index in 0..3 {
        take(&rig, &store, &[(&format!("{}{index}", "x".repeat(255)), &ten)], 1).await.unwrap();
    }
    let mut page = PageRequest::first(1);
    let mut found = 0;
    loop {
        let buckets = store.resource_buckets(&gpt(), &page).await.unwrap();
        found += buckets.items.len();
        let Some(next) = buckets.next else { break };
        page = PageRequest::after(1, next);
    }
    assert_eq!(found, 3);
}

/// A damaged attribute is an error with its name, not an endless "try again".
#[tokio::test]
async fn a_text_where_a_number_belongs_is_named() {
    let rig = Rig::new(EvalOptions::new()).await;
    let ten = unstored(&["rpm:1/hour:10"]);
    take(&rig, &rig.store().await, &[("key", &ten)], 1).await.unwrap();
    let mut item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    item.insert("b_rpm_cp".to_owned(), AttributeValue::S("many".to_owned()));
    rig.table.insert(&item);
    let error = take(&rig, &rig.store().await, &[("key", &ten)], 1).await.unwrap_err();
    assert!(
        error.kind() == StoreErrorKind::Corrupt && error.to_string().contains("b_rpm_cp"),
        "{error}"
    );
}
