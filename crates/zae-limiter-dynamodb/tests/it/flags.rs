//! Flags of buckets: a delayed write undoes nothing, a flag that was left behind is taken away, and
//! what `disable` promises while an index lags.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{Flag, LimitSource, Milli, Take};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{Item, number};
use zae_limiter_store::{
    BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Level, LimitsInForce,
    MemberTake,
};
use zae_limiter_testkit::table::{Asked, EvalOptions, Fate, Faults, Operation, Point};
use zae_limiter_testkit::zae_limiter::{AcquireError, RateLimiter, Request};

use crate::evaluated::{Rig, limits};

fn of_key() -> Level {
    Level::Entity("key".parse().unwrap())
}

async fn take(rig: &Rig, store: &DynamoStore) -> ConsumeOutcome {
    ask_store(rig, store, 1_000, false).await
}

async fn peek(rig: &Rig, store: &DynamoStore) -> ConsumeOutcome {
    ask_store(rig, store, 1_000, true).await
}

async fn ask_store(rig: &Rig, store: &DynamoStore, milli: i64, peeks: bool) -> ConsumeOutcome {
    let in_force = LimitsInForce::new(limits("rpm:100").limits, LimitSource::Builder);
    let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let takes = [Take { limit: 0, amount: Milli(milli) }];
    let members = [MemberTake {
        entity: &entity,
        resource: &resource,
        limits: &in_force,
        takes: &takes,
        absent: &[],
    }];
    let request = ConsumeRequest::new(&members, rig.clock.now());
    if peeks { store.peek(&request).await.unwrap() } else { store.consume(&request).await.unwrap() }
}

fn is_flagged(rig: &Rig) -> bool {
    rig.table.get(&rig.bucket("key", "gpt-4")).unwrap().contains_key("disabled")
}

/// Every write of a bucket's flag number `nth` is on its way for ever, until the table is told to
/// let it land.
fn delayed(nth: u32) -> Faults {
    let mut seen = 0;
    Faults::by(move |asked| match asked {
        Asked::Bucket(_) => {
            seen += 1;
            if seen == nth { Fate::Late(u32::MAX) } else { Fate::Pass }
        }
        _ => Fate::Pass,
    })
}

/// One administrator switches, a write of theirs is delayed; another one switches back, and has
/// returned: the delayed write must not land. In both directions, for the write of either pass.
#[tokio::test]
async fn a_delayed_flag_does_not_undo_a_later_one() {
    for first in [true, false] {
        for pass in [1, 2] {
            let rig = Rig::new(EvalOptions::new()).await;
            let fair = rig.store().await;
            assert!(matches!(take(&rig, &fair).await, ConsumeOutcome::Granted(_)));
            if !first {
                fair.set_flag(&of_key(), Some(Flag::Disabled), &rig.change()).await.unwrap();
            }
            let slow = rig.client(rig.table.client(1).with_faults(delayed(pass)), |_| {}).await;
            assert_eq!(
                slow.set_flag(&of_key(), Some(Flag::from_disabled(first)), &rig.change())
                    .await
                    .unwrap(),
                1
            );
            assert_eq!(is_flagged(&rig), first);
            assert_eq!(
                fair.set_flag(&of_key(), Some(Flag::from_disabled(!first)), &rig.change())
                    .await
                    .unwrap(),
                1
            );
            rig.table.land_all();
            assert_eq!(
                is_flagged(&rig),
                !first,
                "switched {first}, then back; the write of pass {pass} came late"
            );
        }
    }
}

/// The Python package writes flags and does not count them. A write of a process that has died
/// since does not undo them.
#[tokio::test]
async fn a_delayed_flag_does_not_undo_that_of_another_product() {
    let rig = Rig::new(EvalOptions::new()).await;
    assert!(matches!(take(&rig, &rig.store().await).await, ConsumeOutcome::Granted(_)));
    let mut is_sent = false;
    let faults = Faults::by(move |asked| match asked {
        _ if is_sent => Fate::Unreachable,
        Asked::Bucket(_) => {
            is_sent = true;
            Fate::Late(u32::MAX)
        }
        _ => Fate::Pass,
    });
    let dying = rig.client(rig.table.client(1).with_faults(faults), |_| {}).await;
    dying.set_flag(&of_key(), Some(Flag::Enabled), &rig.change()).await.unwrap_err();
    let mut item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    item.insert("disabled".to_owned(), AttributeValue::Bool(true));
    rig.table.insert(&item);
    assert_eq!(rig.table.land_all(), 1, "the write that was on its way");
    assert!(is_flagged(&rig));
}

/// A flag is stored in the moment in which a bucket is made, and the administrator's walk does not
/// find the bucket: the read after the create does. The take is refused and gives back, and the
/// bucket carries the flag.
#[tokio::test]
async fn a_bucket_that_is_made_beside_a_flag_is_disabled() {
    made_beside_a_flag(1_000).await;
}

/// What was given back is no event, and so is a take of nothing.
#[tokio::test]
async fn a_bucket_that_is_made_beside_a_flag_has_no_event() {
    for milli in [1_000, 0] {
        let bucket = made_beside_a_flag(milli).await;
        assert_eq!(bucket["b_wcu_tc"], number(0), "{milli} millitokens were asked");
    }
}

async fn made_beside_a_flag(milli: i64) -> Item {
    let rig = Rig::new(EvalOptions::new()).await;
    let admin = rig.store().await;
    let config = keys::entity_config(&rig.namespace, &"key".parse().unwrap(), None);
    admin.set_flag(&of_key(), Some(Flag::Disabled), &rig.change()).await.unwrap();
    let disabled = rig.table.get(&config).unwrap();
    admin.set_flag(&of_key(), None, &rig.change()).await.unwrap();

    let (table, turns) = (rig.table.clone(), AtomicU32::new(0));
    let gate = move |_, point| {
        if point == Point::After(Operation::Put) && turns.fetch_add(1, Ordering::SeqCst) == 0 {
            table.insert(&disabled);
        }
        0
    };
    let store = rig.client(rig.table.client(1).with_gate(Arc::new(gate)), |_| {}).await;
    let outcome = ask_store(&rig, &store, milli, false).await;
    assert_eq!(outcome, ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled });
    assert!(is_flagged(&rig));
    let bucket = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    assert_eq!(bucket["b_rpm_tk"], number(100_000), "the take was given back");
    bucket
}

/// Found by the simulator: between the read and the write another process has written the flag, and
/// the configuration has changed back. The flag of before must not be written once more.
#[tokio::test]
async fn a_new_bucket_gets_the_flag_that_is_configured_when_it_is_written() {
    let rig = Rig::new(EvalOptions::new()).await;
    let admin = rig.store().await;
    let config = keys::entity_config(&rig.namespace, &"key".parse().unwrap(), None);
    admin.set_flag(&of_key(), Some(Flag::Disabled), &rig.change()).await.unwrap();
    let disabled = rig.table.get(&config).unwrap();
    admin.set_flag(&of_key(), None, &rig.change()).await.unwrap();
    let enabled = rig.table.get(&config);

    let (table, key) = (rig.table.clone(), rig.bucket("key", "gpt-4"));
    let (puts, updates) = (AtomicU32::new(0), AtomicU32::new(0));
    let gate = move |_, point| {
        if point == Point::After(Operation::Put) && puts.fetch_add(1, Ordering::SeqCst) == 0 {
            table.insert(&disabled);
        }
        // The first update is the take that finds no bucket.
        if point == Point::Before(Operation::Update)
            && let Some(mut item) = table.get(&key)
            && updates.fetch_add(1, Ordering::SeqCst) == 0
        {
            item.insert("fv".to_owned(), number(1));
            item.insert("disabled".to_owned(), disabled["disabled"].clone());
            table.insert(&item);
            match &enabled {
                Some(enabled) => table.insert(enabled),
                None => assert!(table.remove(&config), "the configuration was there"),
            }
        }
        0
    };
    let store = rig.client(rig.table.client(1).with_gate(Arc::new(gate)), |_| {}).await;
    take(&rig, &store).await;
    assert!(!is_flagged(&rig), "the configuration does not disable the bucket any more");
}

/// Others write the flag of the bucket each time before the write of an administrator: it is
/// reached all the same.
#[tokio::test]
async fn a_flag_that_lost_its_race_is_written_after_another_look() {
    for disabled in [true, false] {
        let rig = Rig::new(EvalOptions::new()).await;
        let fair = rig.store().await;
        assert!(matches!(take(&rig, &fair).await, ConsumeOutcome::Granted(_)));
        if !disabled {
            fair.set_flag(&of_key(), Some(Flag::Disabled), &rig.change()).await.unwrap();
        }
        let (table, key, turns) =
            (rig.table.clone(), rig.bucket("key", "gpt-4"), AtomicU32::new(0));
        let gate = move |_, point| {
            if point == Point::Before(Operation::Update) && turns.fetch_add(1, Ordering::SeqCst) < 2
            {
                let mut item = table.get(&key).unwrap();
                let count: i64 =
                    item.get("fv").map_or(0, |count| count.as_n().unwrap().parse().unwrap());
                item.insert("fv".to_owned(), number(count + 1));
                table.insert(&item);
            }
            0
        };
        let admin = rig.client(rig.table.client(1).with_gate(Arc::new(gate)), |_| {}).await;
        assert_eq!(
            admin
                .set_flag(&of_key(), Some(Flag::from_disabled(disabled)), &rig.change())
                .await
                .unwrap(),
            1,
            "the bucket is reached"
        );
        assert_eq!(is_flagged(&rig), disabled);
    }
}

/// An administrator whose flag lost a race looks again: the configuration decides, not who was
/// first.
#[tokio::test]
async fn flags_of_several_administrators_end_as_the_configuration_says() {
    for seed in 0..60u64 {
        let rig = Rig::new(EvalOptions::new()).await;
        let fair = rig.store().await;
        assert!(matches!(take(&rig, &fair).await, ConsumeOutcome::Granted(_)));
        let gate = |offset: u64| {
            Arc::new(zae_limiter_testkit::table::SeededGate::new(seed * 2 + offset, 60, 5))
        };
        let one = rig.client(rig.table.client(1).with_gate(gate(0)), |_| {}).await;
        let two = rig.client(rig.table.client(2).with_gate(gate(1)), |_| {}).await;
        let (first, second, level) = (rig.change(), rig.change(), of_key());
        let (off, on) = tokio::join!(
            one.set_flag(&level, Some(Flag::Disabled), &first),
            two.set_flag(&level, Some(Flag::Enabled), &second)
        );
        assert!(off.is_ok() && on.is_ok(), "seed {seed}: {off:?}, {on:?}");
        let stored = fair.level(&of_key()).await.unwrap().unwrap().flag;
        assert_eq!(Some(Flag::from_disabled(is_flagged(&rig))), stored, "seed {seed}");
    }
}

/// Somebody who does not keep our rules has left a flag on the bucket: the configuration is what
/// counts.
#[tokio::test]
async fn a_flag_against_the_configuration_is_taken_away() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    assert!(matches!(take(&rig, &store).await, ConsumeOutcome::Granted(_)));
    let mut item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    item.insert("disabled".to_owned(), AttributeValue::Bool(true));
    rig.table.insert(&item);
    rig.clock.sleep(Duration::from_secs(2)).await;
    assert!(
        matches!(peek(&rig, &store).await, ConsumeOutcome::Granted(_)),
        "who only asks hears the same"
    );
    assert!(matches!(take(&rig, &store).await, ConsumeOutcome::Granted(_)), "healed and granted");
    assert!(!is_flagged(&rig));
    // And one that is right stays.
    store.set_flag(&of_key(), Some(Flag::Disabled), &rig.change()).await.unwrap();
    rig.clock.sleep(Duration::from_secs(2)).await;
    assert!(matches!(
        take(&rig, &store).await,
        ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled }
    ));
    assert!(is_flagged(&rig));
}

/// The write that heals is one of those that must not undo a later one.
#[tokio::test]
async fn a_delayed_healing_does_not_switch_on() {
    let rig = Rig::new(EvalOptions::new()).await;
    let fair = rig.store().await;
    assert!(matches!(take(&rig, &fair).await, ConsumeOutcome::Granted(_)));
    let mut item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    item.insert("disabled".to_owned(), AttributeValue::Bool(true));
    rig.table.insert(&item);
    // The first write is the take that hears of the flag, the second one takes the flag away.
    let slow = rig.client(rig.table.client(1).with_faults(delayed(2)), |_| {}).await;
    assert!(
        matches!(take(&rig, &slow).await, ConsumeOutcome::Granted(_)),
        "sent again, and healed"
    );
    fair.set_flag(&of_key(), Some(Flag::Disabled), &rig.change()).await.unwrap();
    rig.table.land_all();
    assert!(is_flagged(&rig));
}

/// A refused request costs nothing for a second; then one write and one read of the configuration.
#[tokio::test]
async fn a_disabled_bucket_costs_one_read_a_second() {
    const REQUESTS: u32 = 63;
    let rig = Rig::new(EvalOptions::new()).await;
    let (admin, user) = (rig.store().await, rig.store().await);
    assert!(matches!(take(&rig, &user).await, ConsumeOutcome::Granted(_)));
    admin.set_flag(&of_key(), Some(Flag::Disabled), &rig.change()).await.unwrap();
    rig.clock.sleep(Duration::from_secs(5)).await;
    rig.table.take_counters();
    for _ in 0..REQUESTS {
        assert!(matches!(
            take(&rig, &user).await,
            ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled }
        ));
        rig.clock.sleep(Duration::from_millis(50)).await;
    }
    let counters = rig.table.take_counters();
    let (reads, writes) = (counters.calls(Operation::BatchGet), counters.calls(Operation::Update));
    assert!(
        (1..=4).contains(&reads) && (1..=4).contains(&writes),
        "3.2 seconds: {reads} reads, {writes} writes"
    );
}

async fn limiter(rig: &Rig) -> RateLimiter {
    RateLimiter::builder(rig.store().await).clock(rig.clock.clone()).build().unwrap()
}

/// What became of a request for one token.
async fn ask(limiter: &RateLimiter, entity: &str) -> bool {
    match limiter.acquire(Request::new(entity, "gpt-4").take("rpm", 1)).await {
        Ok(lease) => {
            lease.commit().await.unwrap();
            true
        }
        Err(AcquireError::Disabled(_)) => false,
        Err(other) => panic!("neither granted nor disabled: {other}"),
    }
}

/// A limiter whose store says "off" while the configuration it remembers says "on" reads again,
/// once a second, and leaves everybody else's entries alone.
#[tokio::test]
async fn a_disabled_key_does_not_cost_others_their_cache() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (admin, user) = (limiter(&rig).await, limiter(&rig).await);
    admin.set_limits(&Level::System, limits("rpm:1000000").limits).await.unwrap();
    let others: Vec<String> = (0..600).map(|index| format!("other-{index}")).collect();
    assert!(ask(&user, "key").await);
    for other in &others {
        assert!(ask(&user, other).await);
    }
    admin.disable(&of_key()).await.unwrap();
    rig.clock.sleep(Duration::from_secs(2)).await;
    for _ in 0..50 {
        assert!(!ask(&user, "key").await);
    }
    let misses = user.cache_stats().misses;
    for other in &others {
        assert!(ask(&user, other).await);
    }
    assert_eq!(
        user.cache_stats().misses,
        misses,
        "600 keys, of which some share a slot with the disabled one"
    );
}

/// An index that lists a bucket long after it was made: `disable` says that it did not reach it,
/// buckets made afterwards are refused at once, and the one that was missed within the time that
/// the answer names.
#[tokio::test]
async fn what_the_index_does_not_list_is_refused_within_the_time_told() {
    let (mut missed, mut late_grants) = (0, 0);
    for seed in 0..120u64 {
        // Changes by which the index lags: none, some, more than there are.
        let lag = [0, 4, 10_000][usize::try_from(seed % 3).unwrap()];
        let rig = Rig::new(EvalOptions::new().lag_writes(lag)).await;
        let (admin, user) = (limiter(&rig).await, limiter(&rig).await);
        admin.set_limits(&Level::System, limits("rpm:1000000").limits).await.unwrap();
        assert!(ask(&user, "key").await && ask(&admin, "another").await);
        rig.clock.sleep(Duration::from_secs(seed % 50)).await;
        let reached = admin.disable(&Level::Resource("gpt-4".parse().unwrap())).await.unwrap();
        let disabled_at = rig.clock.monotonic();
        assert_eq!(
            reached.binds_within,
            Duration::from_secs(65),
            "the TTL, and the time for which expired limits are lent"
        );
        assert!(
            !ask(&admin, "another").await,
            "seed {seed}: the process of the administrator knows"
        );
        assert!(
            !ask(&user, &format!("new-{seed}")).await,
            "seed {seed}: a bucket that would be made now is refused"
        );
        missed += u32::from(reached.buckets < 2);
        for step in 0..8u64 {
            let since = rig.clock.monotonic().saturating_sub(disabled_at);
            let granted = ask(&user, "key").await;
            late_grants += u32::from(granted);
            assert!(
                !granted || reached.buckets < 2,
                "seed {seed}: reached, and granted {since:?} later"
            );
            assert!(
                !granted || since <= reached.binds_within,
                "seed {seed}: granted {since:?} later"
            );
            rig.clock.sleep(Duration::from_secs(1 + (seed + 3 * step) % 17)).await;
        }
        rig.clock.sleep(reached.binds_within).await;
        assert!(!ask(&user, "key").await, "seed {seed}: refused for good");
    }
    assert!(
        missed >= 30 && late_grants >= 30,
        "{missed} disables did not reach every bucket, {late_grants} grants came after one"
    );
}
