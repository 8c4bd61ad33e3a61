//! What the table forgets on its own: a bucket may go only when nobody could tell it from a new
//! one. The sweep of expired items runs when the engine is told to, at the instant it is told.

use std::collections::BTreeSet;

use zae_limiter_dynamodb::table::{Index, Query, Sort, Table};
use zae_limiter_store::{Clock, Entropy, Level, NewEntity, PageRequest, SeededEntropy};
use zae_limiter_testkit::zae_limiter::AcquireError;

use crate::upkeep::world::{DAY_MS, HOUR_MS, World, number, own};

/// Seven times what it takes to fill, and an hour at least.
#[tokio::test]
async fn an_idle_bucket_is_forgotten_when_it_has_long_been_full() {
    let world = World::with(&["rpm:100/hour"]).await;
    world.take(60).await;
    let expiry = world.expiry().await.unwrap();
    assert_eq!(expiry, (world.clock.now().0 + 7 * HOUR_MS + 999).div_euclid(1000));
    assert_eq!(world.sweep_at(expiry - 1), 0);
    world.clock.advance(7 * HOUR_MS + 2_000);
    assert_eq!(world.sweep(), 1);
    assert!(world.bucket().await.is_none());
    // Whoever still remembers it starts a new one, as full as the old one had become.
    world.take(100).await;
    assert!(matches!(world.acquire(1).await, Err(AcquireError::Exceeded(_))));
}

#[tokio::test]
async fn a_fast_limit_is_kept_an_hour() {
    let world = World::with(&["rpm:100/sec"]).await;
    world.take(60).await;
    assert_eq!(
        world.expiry().await.unwrap(),
        (world.clock.now().0 + HOUR_MS + 999).div_euclid(1000)
    );
}

/// The debt of a week on a limit of an hour: the bucket outlives its usual time by what it owes.
#[tokio::test]
async fn debt_outlives_the_usual_expiry() {
    let world = World::with(&["rpm:100/hour"]).await;
    world.take(100).await;
    world.overuse(100 * 24 * 7).await;
    // Usual expiry: long past. Debt: still there.
    world.clock.advance(6 * DAY_MS);
    assert_eq!(world.sweep(), 0, "it owes another day");
    assert!(world.available().await < 0);
    assert!(matches!(world.acquire(1).await, Err(AcquireError::Exceeded(_))));
    world.clock.advance(2 * DAY_MS);
    assert_eq!(world.sweep(), 1, "paid and full again");
}

/// Charges that are too small to touch the expiry one by one must not add up to a forgotten debt.
#[tokio::test]
async fn many_small_charges_do_not_outrun_the_expiry() {
    let world = World::with(&["rpm:100/hour"]).await;
    let mut leases = Vec::new();
    for _ in 0..30 {
        leases.push(world.acquire(0).await.unwrap());
    }
    world.take(100).await;
    for lease in leases {
        lease.record("rpm", 90).unwrap();
        lease.commit().await.unwrap();
    }
    world.clock.advance(26 * HOUR_MS);
    assert_eq!(world.sweep(), 0);
    assert!(world.available().await <= -100);
    world.clock.advance(10 * HOUR_MS);
    world.sweep();
    world.take(100).await;
    assert!(world.acquire(1).await.is_err());
}

/// A sweep that is late is not worse than one in time: what has expired but is still there is used
/// and lives on.
#[tokio::test]
async fn what_has_expired_but_is_there_is_used_and_lives_on() {
    let world = World::with(&["rpm:100/hour"]).await;
    world.take(100).await;
    world.clock.advance(10 * HOUR_MS);
    assert!(world.expiry().await.unwrap() < world.now_s());
    world.take(70).await;
    assert!(world.expiry().await.unwrap() > world.now_s());
    assert_eq!(world.sweep(), 0);
    assert_eq!(world.available().await, 30);

    world.clock.advance(10 * HOUR_MS);
    let lease = world.acquire(40).await.unwrap();
    world.clock.advance(10 * HOUR_MS);
    assert!(world.expiry().await.unwrap() < world.now_s());
    lease.record("rpm", 150).unwrap();
    lease.commit().await.unwrap();
    assert_eq!(world.sweep(), 0, "a charge keeps it");
    assert_eq!(world.available().await, -10, "full again, and then 110 more than was taken");
}

/// The lease outlived its bucket: what was used is charged to a new one, what was not is dropped
/// with the old one.
#[tokio::test]
async fn a_lease_that_outlives_its_bucket() {
    for (used, left) in [(140, 60), (10, 100)] {
        let world = World::with(&["rpm:100/hour"]).await;
        let lease = world.acquire(100).await.unwrap();
        world.clock.advance(8 * HOUR_MS);
        assert_eq!(world.sweep(), 1);
        lease.record("rpm", used).unwrap();
        lease.commit().await.unwrap();
        world.limiter.drain().await;
        assert_eq!(world.available().await, left, "{used} used of 100");
    }
}

/// Lowered while it was empty, and raised again after the table had its chance to forget: the cut
/// must not turn into tokens.
#[tokio::test]
async fn a_lowered_limit_is_not_a_way_to_be_forgotten_early() {
    let world = World::with(&["rpm:1000/day"]).await;
    world.take(1000).await;
    world.set(&Level::System, &["rpm:1/day"]).await;
    world.limiter.invalidate_config_cache();
    assert!(world.acquire(1).await.is_err());
    // 1 per day: a capacity of one is full after a day, a hole of a thousand is not.
    world.clock.advance(8 * DAY_MS);
    world.sweep();
    world.set(&Level::System, &["rpm:1000/day"]).await;
    world.limiter.invalidate_config_cache();
    assert!(world.acquire(500).await.is_err(), "eight tokens have come back since, not a thousand");
}

/// The limits of one's own are for ever, and so is their bucket; the expiry comes and goes with
/// them.
#[tokio::test]
async fn limits_of_ones_own_keep_their_bucket() {
    let world = World::with(&["rpm:100/hour"]).await;
    world.take(10).await;
    assert!(world.expiry().await.is_some());
    world.set(&own(), &["rpm:50/hour"]).await;
    assert_eq!(world.expiry().await, None);
    world.take(10).await;
    world.clock.advance(400 * DAY_MS);
    assert!(world.sweep() > 0, "history goes");
    assert!(world.bucket().await.is_some());

    world.limiter.delete_limits(&own()).await.unwrap();
    assert!(world.expiry().await.is_some());
    world.clock.advance(8 * HOUR_MS);
    assert_eq!(world.sweep(), 1);
    assert!(world.bucket().await.is_none());
}

/// Everything else stays: entities, limits, namespaces, registries, the version.
#[tokio::test]
async fn only_buckets_and_history_are_forgotten() {
    let world = World::with(&["rpm:100/hour"]).await;
    let entity = NewEntity {
        id: "user".parse().unwrap(),
        name: "User".to_owned(),
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    world.limiter.create_entity(entity).await.unwrap();
    world.set(&own(), &["rpm:50/hour"]).await;
    world.set(&Level::Resource("gpt-4".parse().unwrap()), &["rpm:70/hour"]).await;
    let kinds = async || -> BTreeSet<String> {
        let mut kinds = BTreeSet::new();
        for partition in [world.namespace.as_str(), "_"] {
            let query = Query {
                index: Some(Index::Gsi4),
                partition: partition.to_owned(),
                sort: Sort::All,
                start: None,
                limit: None,
                ascending: true,
                consistent: false,
            };
            let items = world.table.query(&query).await.unwrap().items;
            kinds.extend(items.iter().map(|item| {
                format!("{} {}", item["PK"].as_s().unwrap(), item["SK"].as_s().unwrap())
            }));
        }
        kinds
    };
    let before = kinds().await;
    world.clock.advance(400 * DAY_MS);
    world.sweep();
    let gone: Vec<String> = before.difference(&kinds().await).cloned().collect();
    assert!(!gone.is_empty() && gone.iter().all(|key| key.contains("/AUDIT#")), "{gone:?}");
    assert_eq!(world.limiter.entities(&PageRequest::first(9)).await.unwrap().items.len(), 1);
    assert!(world.limiter.level(&own()).await.unwrap().is_some());
}

/// Whatever happens to a bucket, when the table forgets it nobody can tell it from a new one: full,
/// and nothing hidden.
#[tokio::test]
async fn nothing_is_gained_by_being_forgotten() {
    let world = World::with(&["rpm:100/hour"]).await;
    let entropy = SeededEntropy::new(7);
    let pick = |below: u64| entropy.next_u64() % below;
    let mut forgotten = 0;
    for _ in 0..400 {
        match pick(10) {
            0..=3 => {
                if let Ok(lease) = world.acquire(pick(60)).await {
                    lease.commit().await.unwrap();
                }
            }
            4 | 5 => {
                if let Ok(lease) = world.acquire(0).await {
                    let used = if pick(4) == 0 { pick(3_000) } else { pick(80) };
                    lease.record("rpm", used).unwrap();
                    lease.commit().await.unwrap();
                }
            }
            6 => {
                let text = ["rpm:100/hour", "rpm:10/hour", "rpm:7/day", "rpm:300/hour:50"]
                    [usize::try_from(pick(4)).unwrap()];
                world.set(&Level::System, &[text]).await;
            }
            _ => world.clock.advance(i64::try_from(pick(72 * 3_600_000)).unwrap()),
        }
        let before = world.bucket().await;
        world.sweep();
        if let (Some(before), None) = (before, world.bucket().await) {
            forgotten += 1;
            let field = |name: &str| i128::from(number(&before[name]));
            let earned = (i128::from(world.clock.now().0) - field("rf")) * field("b_rpm_ra")
                / field("b_rpm_rp");
            assert!(field("b_rpm_tk") + earned >= field("b_rpm_cp"), "not full: {before:?}");
            assert!(!before.contains_key("b_rpm_gp"), "something is hidden: {before:?}");
        }
    }
    assert!(forgotten > 20, "only {forgotten} times");
}
