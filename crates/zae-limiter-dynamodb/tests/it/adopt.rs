//! Buckets and usage of another store, as items: what the suite cannot see.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{
    BucketState, ConfigStamp, Flag, Limit, Milli, TimeMs, UsageSnapshot, UsageWindow,
};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{Item, number};
use zae_limiter_store::{
    Adopted, Adoption, BucketStore, BucketView, Clock, ConfigStore, Level, ManualClock, Store,
};
use zae_limiter_testkit::table::{EvalOptions, Operation, Point};

use crate::evaluated::Rig;

const DAY_MS: i64 = 86_400_000;

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// A bucket of `user` on `gpt-4`, made at `at`.
fn bucket(at: TimeMs) -> BucketView {
    let limits = [limit("rpm:7/day"), limit("tpm:100/day")];
    let state = BucketState::full(&limits, ConfigStamp(u64::MAX), at);
    BucketView { entity: "user".parse().unwrap(), resource: "gpt-4".parse().unwrap(), state }
}

async fn adopt(rig: &Rig, store: &DynamoStore, buckets: &[BucketView]) -> Vec<Adopted> {
    let adoption = Adoption { buckets, usage: &[], details: &[] };
    store.adopt(&adoption, &rig.change()).await.unwrap()
}

fn stored(rig: &Rig) -> Item {
    rig.table.get(&rig.bucket("user", "gpt-4")).unwrap()
}

/// Rules D5, G, T1 and U1: what an item says of a bucket that owes, hides and remembers.
#[tokio::test]
async fn an_item_has_what_the_bucket_had_and_no_use() {
    let rig = Rig::new(EvalOptions::new()).await;
    let now = rig.clock.now();
    let mut view = bucket(now.plus_ms(-1_000));
    let (rpm, tpm) = (limit("rpm:7/day"), limit("tpm:100/day"));
    view.state.adjust(&rpm, Milli::from_tokens(3), now.plus_ms(-1_000));
    view.state.adjust(&tpm, Milli::from_tokens(1_100), now.plus_ms(-1_000));
    view.state.sync(&[rpm, limit("new:5/sec")], ConfigStamp(u64::MAX), now).unwrap();
    view.state.restore_gap(&"rpm".parse().unwrap(), Milli(5));
    view.state.set_expires_at(Some(now));
    assert_eq!(adopt(&rig, &rig.store().await, std::slice::from_ref(&view)).await, [Adopted::Made]);
    let item = stored(&rig);
    let number_of = |name: &str| item[name].as_n().unwrap().parse::<i64>().unwrap();
    // A second of 7 a day is less than a millitoken: it is in the remainder.
    assert_eq!(number_of("b_rpm_tk"), 4_000);
    assert_eq!(item["rf"], number(now.0));
    assert!(item.contains_key("b_rpm_rm") && item["rmf"] == item["rf"], "{item:?}");
    assert_eq!(item["b_rpm_gp"], number(5));
    assert_eq!(number_of("b_tpm_tk"), -999_999);
    assert_eq!(item["ret"], AttributeValue::Ss(vec!["tpm".to_owned()]));
    for name in ["b_rpm_tc", "b_tpm_tc", "b_new_tc", "b_wcu_tc"] {
        assert_eq!(item[name], number(0), "{name}: the stream would count it");
    }
    assert!(!item.contains_key("lw") && !item.contains_key("ln") && !item.contains_key("disabled"));
    // 1000 tokens of 100 a day take ten days, and seven fill times come on top.
    let kept_days = (number_of("ttl") - now.0 / 1_000) / 86_400;
    assert!((16..=17).contains(&kept_days), "kept for {kept_days} days");
}

/// A bucket that was never to expire there is never to expire here.
#[tokio::test]
async fn a_bucket_that_stays_for_good_has_no_expiry() {
    let rig = Rig::new(EvalOptions::new()).await;
    adopt(&rig, &rig.store().await, &[bucket(rig.clock.now())]).await;
    assert!(!stored(&rig).contains_key("ttl"));
}

/// The store reads the configuration, then writes the bucket; an administrator writes the flag,
/// then looks for buckets. Here the flag comes in between, and the look has found nothing.
#[tokio::test]
async fn a_bucket_that_is_disabled_while_it_is_adopted_is_disabled() {
    let rig = Rig::new(EvalOptions::new()).await;
    let admin = rig.store().await;
    let level = Level::Entity("user".parse().unwrap());
    admin.set_flag(&level, Some(Flag::Disabled), &rig.change()).await.unwrap();
    let key = keys::entity_config(&rig.namespace, &"user".parse().unwrap(), None);
    let flagged = rig.table.get(&key).unwrap();
    admin.set_flag(&level, None, &rig.change()).await.unwrap();
    let (table, once) = (rig.table.clone(), Arc::new(AtomicBool::new(true)));
    let flags = once.clone();
    let gate = move |_client: u32, point: Point| {
        if point == Point::After(Operation::Transact) && flags.swap(false, Ordering::SeqCst) {
            table.insert(&flagged);
        }
        0
    };
    let store = rig.client(rig.table.client(9).with_gate(Arc::new(gate)), |_| {}).await;
    assert_eq!(adopt(&rig, &store, &[bucket(rig.clock.now())]).await, [Adopted::Made]);
    assert!(!once.load(Ordering::SeqCst), "the flag came in between");
    assert_eq!(stored(&rig)["disabled"], AttributeValue::Bool(true));
}

/// What another store has under the clock of its callers, this one has under that of the table.
#[tokio::test]
async fn the_time_of_the_store_is_that_of_the_table() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (local, truth) = (rig.clock.now().plus_ms(3_600_000), rig.clock.now());
    let (local, truth) = (Arc::new(ManualClock::new(local)), Arc::new(ManualClock::new(truth)));
    let table = rig.table.clone().with_dates(local.clone(), truth.clone());
    let clock = local.clone();
    let store = rig.client(table, |options| options.clock = clock).await;
    let shown = store.store_time(local.now()).await.unwrap();
    let off_ms = shown.since(truth.now()).abs();
    assert!(off_ms <= 3_000, "{off_ms} ms from the table's clock");
}

/// Of a transaction with things that others have made meanwhile, the rest is made.
#[tokio::test]
async fn what_others_make_meanwhile_does_not_stop_the_rest() {
    let rig = Rig::new(EvalOptions::new()).await;
    let now = rig.clock.now();
    let other = BucketView { entity: "other".parse().unwrap(), ..bucket(now) };
    adopt(&rig, &rig.store().await, std::slice::from_ref(&other)).await;
    let key = rig.bucket("other", "gpt-4");
    let theirs = rig.table.get(&key).unwrap();
    rig.table.remove(&key);
    let (table, once) = (rig.table.clone(), AtomicBool::new(true));
    let gate = move |_client: u32, point: Point| {
        if point == Point::Before(Operation::Transact) && once.swap(false, Ordering::SeqCst) {
            table.insert(&theirs);
        }
        0
    };
    let store = rig.client(rig.table.client(9).with_gate(Arc::new(gate)), |_| {}).await;
    let answers = adopt(&rig, &store, &[bucket(now), other]).await;
    assert_eq!(answers, [Adopted::Made, Adopted::Kept]);
}

/// An entity that is being deleted gets no bucket that would outlive it.
#[tokio::test]
async fn the_bucket_of_an_entity_that_is_leaving_is_skipped() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let entity = zae_limiter_store::NewEntity {
        id: "user".parse().unwrap(),
        name: "User".to_owned(),
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    store.create_entity(&entity, &rig.change()).await.unwrap();
    let key = keys::entity(&rig.namespace, &"user".parse().unwrap());
    let mut record = rig.table.get(&key).unwrap();
    record.insert("deleting".to_owned(), AttributeValue::S("now".to_owned()));
    rig.table.insert(&record);
    let answers = adopt(&rig, &rig.store().await, &[bucket(rig.clock.now())]).await;
    assert!(matches!(answers[..], [Adopted::Skipped(_)]), "{answers:?}");
    assert!(rig.table.get(&rig.bucket("user", "gpt-4")).is_none());
}

/// A snapshot that would have expired is not made, and one that is has no watermark.
#[tokio::test]
async fn usage_is_kept_as_long_as_that_of_the_table() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, now) = (rig.store().await, rig.clock.now());
    let hour = |days_ago: i64| UsageSnapshot {
        entity: "user".parse().unwrap(),
        resource: "gpt-4".parse().unwrap(),
        window: UsageWindow::Hourly,
        start: UsageWindow::Hourly.start_of(now.plus_ms(-days_ago * DAY_MS)),
        counters: vec![("rpm".parse().unwrap(), Milli(1_500))],
        events: 2,
    };
    let usage = [hour(91), hour(89)];
    let adoption = Adoption { buckets: &[], usage: &usage, details: &[] };
    let answers = store.adopt(&adoption, &rig.change()).await.unwrap();
    assert!(matches!(answers[..], [Adopted::Skipped(_), Adopted::Made]), "{answers:?}");
    let is_usage = |item: &Item| item["SK"].as_s().unwrap().starts_with("#USAGE#");
    let items: Vec<Item> = rig.table.items().into_iter().filter(is_usage).collect();
    let [item] = &items[..] else { panic!("{items:?}") };
    assert_eq!([&item["rpm#m"], &item["rpm"]], [&number(1_500), &number(1)]);
    assert!(!item.keys().any(|name| name.starts_with("w#")), "{item:?}");
    let end = UsageWindow::Hourly.next_start(usage[1].start);
    assert_eq!(item["ttl"], number(end.plus_ms(90 * DAY_MS).0 / 1_000));
}
