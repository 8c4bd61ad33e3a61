//! How old the limits, the chain and the flags may be that a take is decided by: the time an entry
//! of the config cache is trusted, and a few seconds more. All of it with the default options of
//! limiter and store.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::Limit;
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::number;
use zae_limiter_store::{Clock, Level, NewEntity};
use zae_limiter_testkit::table::{EvalOptions, Operation, Point};
use zae_limiter_testkit::zae_limiter::{AcquireError, RateLimiter, Request};

use crate::evaluated::Rig;

const HOURS: Duration = Duration::from_secs(8 * 3600);
const HIGH: u64 = 1_000_000;
const LOW: u64 = 10;

fn process(rig: &Rig, store: DynamoStore) -> RateLimiter {
    RateLimiter::builder(store).clock(rig.clock.clone()).build().unwrap()
}

fn limit(capacity: u64) -> [Limit; 1] {
    [Limit::per_minute("tpm", capacity).unwrap()]
}

fn tokens(amount: u64) -> Request {
    Request::new("user", "gpt-4").take("tpm", amount)
}

async fn take(limiter: &RateLimiter, amount: u64) {
    limiter.acquire(tokens(amount)).await.unwrap().commit().await.unwrap();
}

/// Refused, and by the low limit: no wait would help.
async fn refused(limiter: &RateLimiter, amount: u64) {
    let refused = limiter.acquire(tokens(amount)).await;
    let Err(error @ AcquireError::Exceeded(_)) = &refused else { panic!("{refused:?}") };
    assert!(error.never_passes(), "{error:?}");
}

/// Capacity of the bucket in millitokens, as it is stored.
fn capacity(rig: &Rig) -> Option<String> {
    let item = rig.table.get(&rig.bucket("user", "gpt-4"))?;
    Some(item["b_tpm_cp"].as_n().unwrap().clone())
}

/// A table with the high limit, three processes that know it, and an administrator who lowers it.
async fn three_warm_processes(level: &Level) -> (Rig, Vec<RateLimiter>, RateLimiter) {
    let rig = Rig::new(EvalOptions::new()).await;
    let admin = process(&rig, rig.store().await);
    admin.set_limits(level, limit(HIGH)).await.unwrap();
    let mut warm = Vec::new();
    for _ in 0..3 {
        let limiter = process(&rig, rig.store().await);
        take(&limiter, 1).await;
        warm.push(limiter);
    }
    admin.set_limits(level, limit(LOW)).await.unwrap();
    (rig, warm, admin)
}

/// Found by review: with one request in hours, each process granted one more on the limits it knew,
/// however old they were.
#[tokio::test]
async fn limits_that_expired_hours_ago_decide_nothing() {
    let gpt = Level::Resource("gpt-4".parse().unwrap());
    for level in [Level::System, gpt] {
        let (rig, warm, _) = three_warm_processes(&level).await;
        rig.clock.advance(HOURS);
        for limiter in &warm {
            refused(limiter, HIGH / 2).await;
        }
        // The first of them has brought the low limit to the bucket, and all three together get no
        // more than it holds.
        assert_eq!(capacity(&rig).as_deref(), Some("10000"), "{level}");
        take(&warm[0], LOW / 2).await;
        take(&warm[1], LOW / 2).await;
        assert!(warm[2].acquire(tokens(1)).await.is_err(), "{level}");
    }
}

/// The same when the bucket has expired meanwhile: it was made anew from the limits of hours ago.
#[tokio::test]
async fn no_bucket_is_made_from_limits_that_expired_hours_ago() {
    let (rig, warm, _) = three_warm_processes(&Level::System).await;
    rig.clock.advance(HOURS);
    assert!(rig.table.remove(&rig.bucket("user", "gpt-4")));
    for limiter in &warm {
        refused(limiter, HIGH).await;
    }
    assert_eq!(capacity(&rig), None, "nothing was granted, so nothing was made");
    take(&warm[0], LOW).await;
    assert_eq!(capacity(&rig).as_deref(), Some("10000"));
}

/// An entry may decide once more for five seconds after its minute, and no longer. (The bucket of
/// an entity would know better, because its limits are brought to it: these are the system's.)
#[tokio::test]
async fn an_expired_entry_is_lent_for_five_seconds() {
    for (age_ms, is_lent) in [(60_000, true), (64_999, true), (65_000, false), (70_000, false)] {
        let (rig, warm, _) = three_warm_processes(&Level::System).await;
        rig.clock.advance(Duration::from_millis(age_ms));
        let lease = warm[0].acquire(tokens(HIGH / 2)).await;
        assert_eq!(lease.is_ok(), is_lent, "after {age_ms} ms");
        // Once: what was read beside it decides the next one.
        refused(&warm[0], HIGH / 4).await;
    }
}

/// A bucket that is gone while the entry is still trusted: the read before it is made says other
/// limits.
#[tokio::test]
async fn no_bucket_is_made_from_limits_that_the_read_before_it_contradicts() {
    let (rig, warm, _) = three_warm_processes(&Level::System).await;
    rig.clock.advance(Duration::from_secs(20));
    assert!(rig.table.remove(&rig.bucket("user", "gpt-4")));
    refused(&warm[0], HIGH).await;
    assert_eq!(capacity(&rig), None);
    take(&warm[0], LOW).await;
    assert_eq!(capacity(&rig).as_deref(), Some("10000"));
}

/// The limits are lowered in the moment in which the bucket is made: the read after it says so, and
/// what was taken is given back.
#[tokio::test]
async fn limits_lowered_while_a_bucket_is_made_decide_the_take() {
    let rig = Rig::new(EvalOptions::new()).await;
    let admin = process(&rig, rig.store().await);
    let system = keys::system_config(&rig.namespace);
    admin.set_limits(&Level::System, limit(LOW)).await.unwrap();
    let lowered = rig.table.get(&system).unwrap();
    admin.set_limits(&Level::System, limit(HIGH)).await.unwrap();

    let (table, once) = (rig.table.clone(), Arc::new(AtomicBool::new(true)));
    let lowers = once.clone();
    let gate = move |_client: u32, point: Point| {
        if point == Point::After(Operation::Put) && lowers.swap(false, Ordering::SeqCst) {
            table.insert(&lowered);
        }
        0
    };
    let limiter =
        process(&rig, rig.client(rig.table.client(9).with_gate(Arc::new(gate)), |_| {}).await);
    refused(&limiter, HIGH).await;
    assert!(!once.load(Ordering::SeqCst), "the bucket was made in between");
    take(&limiter, LOW).await;
    assert_eq!(capacity(&rig).as_deref(), Some("10000"));
}

/// Found by the simulator: storing the limits took time, and the buckets got them as of before it.
#[tokio::test]
async fn limits_are_brought_to_buckets_as_of_now() {
    let level = Level::Entity("user".parse().unwrap());
    let rig = Rig::new(EvalOptions::new()).await;
    let admin = process(&rig, rig.store().await);
    admin.set_limits(&level, limit(HIGH)).await.unwrap();
    take(&admin, 600_000).await;
    let clock = rig.clock.clone();
    let gate = move |_, point| {
        if point == Point::After(Operation::Transact) {
            clock.advance(Duration::from_secs(6));
        }
        0
    };
    let slow = rig.client(rig.table.client(1).with_gate(Arc::new(gate)), |_| {}).await;
    process(&rig, slow).set_limits(&level, limit(2 * HIGH)).await.unwrap();
    let item = rig.table.get(&rig.bucket("user", "gpt-4")).unwrap();
    let attributes = ["b_tpm_cp", "b_tpm_tk", "rf"].map(|name| item[name].clone());
    // 400 000 were left, and the old rate has brought 100 000 in these six seconds.
    let expected = [2_000_000_000, 500_000_000, rig.clock.now().0].map(number);
    assert_eq!(attributes, expected);
}

fn entity(id: &str, parent: Option<&str>) -> NewEntity {
    NewEntity {
        id: id.parse().unwrap(),
        name: id.to_owned(),
        parent: parent.map(|parent| parent.parse().unwrap()),
        cascade: parent.is_some(),
        metadata: Default::default(),
    }
}

/// Tokens taken from the bucket of an entity so far.
fn taken(rig: &Rig, entity: &str) -> i64 {
    let item = rig.table.get(&rig.bucket(entity, "gpt-4"));
    item.map_or(0, |item| item["b_tpm_tc"].as_n().unwrap().parse::<i64>().unwrap() / 1000)
}

/// Another product moves an entity to another parent, or ends its cascade: hours later the first
/// take follows.
#[tokio::test]
async fn a_chain_that_changed_hours_ago_is_not_followed_any_more() {
    let rig = Rig::new(EvalOptions::new()).await;
    let limiter = process(&rig, rig.store().await);
    limiter.set_limits(&Level::System, limit(HIGH)).await.unwrap();
    for (id, parent) in [("old", None), ("new", None), ("user", Some("old"))] {
        limiter.create_entity(entity(id, parent)).await.unwrap();
    }
    take(&limiter, 1).await;
    assert_eq!((taken(&rig, "old"), taken(&rig, "new")), (1, 0));

    let key = keys::entity(&rig.namespace, &"user".parse().unwrap());
    let mut record = rig.table.get(&key).unwrap();
    record.insert("parent_id".to_owned(), AttributeValue::S("new".to_owned()));
    rig.table.insert(&record);
    rig.clock.advance(HOURS);
    take(&limiter, 1).await;
    assert_eq!((taken(&rig, "old"), taken(&rig, "new")), (1, 1));

    record.insert("cascade".to_owned(), AttributeValue::Bool(false));
    rig.table.insert(&record);
    rig.clock.advance(HOURS);
    take(&limiter, 1).await;
    assert_eq!((taken(&rig, "user"), taken(&rig, "old"), taken(&rig, "new")), (3, 1, 1));
}

/// What keys share is remembered by the store as well. A key that comes late finds it already old:
/// its age does not begin anew.
#[tokio::test]
async fn what_keys_share_is_not_younger_for_a_key_that_comes_late() {
    for level in [Level::System, Level::Resource("gpt-4".parse().unwrap())] {
        let rig = Rig::new(EvalOptions::new()).await;
        let (admin, limiter) = (process(&rig, rig.store().await), process(&rig, rig.store().await));
        admin.set_limits(&level, limit(HIGH)).await.unwrap();
        let late = |amount| Request::new("late", "gpt-4").take("tpm", amount);
        take(&limiter, 1).await;
        rig.clock.advance(Duration::from_secs(50));
        admin.acquire(late(1)).await.unwrap().commit().await.unwrap();
        limiter.acquire(late(1)).await.unwrap().commit().await.unwrap();
        admin.set_limits(&level, limit(LOW)).await.unwrap();
        rig.clock.advance(Duration::from_secs(15));
        assert!(limiter.acquire(late(HIGH / 2)).await.is_err(), "{level}: read 65 s ago");
    }
}

/// A change that this process makes itself is seen at once by keys it has never seen, whatever they
/// share with others.
#[tokio::test]
async fn a_change_of_this_process_is_seen_at_once_by_new_keys() {
    let rig = Rig::new(EvalOptions::new()).await;
    let limiter = process(&rig, rig.store().await);
    let (gpt, user) = ("gpt-4".parse().unwrap(), "user".parse().unwrap());
    for (capacity, level) in
        [(40, Level::System), (30, Level::Resource(gpt)), (20, Level::Entity(user))]
    {
        limiter.set_limits(&level, limit(capacity)).await.unwrap();
        limiter.invalidate_config_cache();
        let resolved = limiter.resolve("user", "gpt-4").await.unwrap();
        assert_eq!(resolved.members[0].limits[0].capacity(), capacity, "{level}");
        limiter.set_limits(&level, limit(capacity - 1)).await.unwrap();
        let resolved = limiter.resolve("user", "gpt-4").await.unwrap();
        assert_eq!(resolved.members[0].limits[0].capacity(), capacity - 1, "{level}");
    }
}

/// Told of a change elsewhere, a process looks at once: nothing of what it remembers stands in the
/// way.
#[tokio::test]
async fn an_invalidated_cache_reads_everything_again() {
    let (_rig, warm, _) = three_warm_processes(&Level::System).await;
    warm[0].invalidate_config_cache();
    refused(&warm[0], HIGH / 2).await;
    // The bucket knows better now, and makes the others look.
    refused(&warm[1], HIGH / 2).await;
}

/// A namespace deleted elsewhere is noticed by new keys within the time an entry is trusted.
#[tokio::test]
async fn a_namespace_deleted_elsewhere_is_noticed_within_the_ttl() {
    let rig = Rig::new(EvalOptions::new()).await;
    let limiter = process(&rig, rig.store().await);
    limiter.set_limits(&Level::System, limit(HIGH)).await.unwrap();
    take(&limiter, 1).await;
    let key = keys::namespace_by_id(&rig.namespace);
    let mut record = rig.table.get(&key).unwrap();
    record.insert("status".to_owned(), AttributeValue::S("deleted".to_owned()));
    rig.table.insert(&record);
    rig.clock.advance(Duration::from_secs(5));
    let made = limiter.acquire(Request::new("other", "gpt-4").take("tpm", 1)).await;
    assert!(made.is_err(), "no bucket is made in a namespace that has been gone for five seconds");
    rig.clock.advance(Duration::from_secs(60));
    assert!(limiter.acquire(tokens(1)).await.is_err());
}

/// Whoever is told that his namespace is gone has it recovered, and does not wait for an entry to
/// expire.
#[tokio::test]
async fn a_namespace_recovered_elsewhere_is_used_again_within_five_seconds() {
    let rig = Rig::new(EvalOptions::new()).await;
    let limiter = process(&rig, rig.store().await);
    limiter.set_limits(&Level::System, limit(HIGH)).await.unwrap();
    let key = keys::namespace_by_id(&rig.namespace);
    let become_status = |status: &str| {
        let mut record = rig.table.get(&key).unwrap();
        record.insert("status".to_owned(), AttributeValue::S(status.to_owned()));
        rig.table.insert(&record);
    };
    become_status("deleted");
    assert!(limiter.acquire(tokens(1)).await.is_err());
    let reads = rig.table.counters().calls(Operation::BatchGet);
    rig.clock.advance(Duration::from_millis(4_999));
    assert!(limiter.acquire(tokens(1)).await.is_err());
    assert_eq!(
        rig.table.counters().calls(Operation::BatchGet),
        reads,
        "that it is gone is remembered for a while"
    );
    become_status("active");
    rig.clock.advance(Duration::from_millis(1));
    take(&limiter, 1).await;
}

/// A level that is remembered as disabled does not stop every new key for a minute when it is
/// on again elsewhere.
#[tokio::test]
async fn a_resource_switched_on_elsewhere_is_on_for_new_keys_within_a_second() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (limiter, other) = (process(&rig, rig.store().await), process(&rig, rig.store().await));
    let level = Level::Resource("gpt-4".parse().unwrap());
    limiter.set_limits(&Level::System, limit(HIGH)).await.unwrap();
    other.disable(&level).await.unwrap();
    assert!(limiter.acquire(tokens(1)).await.is_err());
    other.enable(&level).await.unwrap();
    rig.clock.advance(Duration::from_millis(1_001));
    // The key that was told is told so until its entry expires, as of any change; others are not.
    assert!(limiter.acquire(Request::new("nobody-yet", "gpt-4").take("tpm", 1)).await.is_ok());
}

/// The hints of a record are only hints: a chain that another product has changed is followed as it
/// is.
#[tokio::test]
async fn ancestors_named_by_a_record_are_not_believed() {
    let rig = Rig::new(EvalOptions::new()).await;
    let admin = process(&rig, rig.store().await);
    admin.set_limits(&Level::System, limit(HIGH)).await.unwrap();
    for (id, parent) in
        [("root", None), ("old", Some("root")), ("new", None), ("user", Some("old"))]
    {
        admin.create_entity(entity(id, parent)).await.unwrap();
    }
    let key = keys::entity(&rig.namespace, &"user".parse().unwrap());
    let mut record = rig.table.get(&key).unwrap();
    assert_eq!(record["anc"].as_l().unwrap().len(), 2);
    record.insert("parent_id".to_owned(), AttributeValue::S("new".to_owned()));
    rig.table.insert(&record);
    take(&process(&rig, rig.store().await), 1).await;
    assert_eq!((taken(&rig, "old"), taken(&rig, "root"), taken(&rig, "new")), (0, 0, 1));
    // Nor is a hint that is no list of names.
    record.insert("anc".to_owned(), AttributeValue::S("new".to_owned()));
    rig.table.insert(&record);
    take(&process(&rig, rig.store().await), 1).await;
    assert_eq!(taken(&rig, "new"), 2);
}
