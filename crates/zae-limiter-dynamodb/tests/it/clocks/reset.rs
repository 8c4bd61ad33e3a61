//! An administrator's reset: it repairs a bucket whose time is wrong, and it succeeds on one that
//! is written all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use zae_limiter_core::{EntityId, LimitName, Milli};
use zae_limiter_dynamodb::table::number;
use zae_limiter_store::{BucketStore, Clock, ResetRequest, Restored, StoreError};
use zae_limiter_testkit::table::{Operation, Point};

use super::{Process, World, gpt, unstored};

const MINUTE: Duration = Duration::from_secs(60);

async fn reset(
    world: &World,
    process: &Process,
    only: Option<&[LimitName]>,
    event: u128,
) -> Result<Option<Restored>, StoreError> {
    let (entity, resource): (EntityId, _) = ("key".parse().unwrap(), gpt());
    process
        .store
        .reset(&ResetRequest { entity: &entity, resource: &resource, only }, &world.change(event))
        .await
}

/// Somebody who does not ask the table for the time has written a refill instant years ahead:
/// nothing refills until then.
#[tokio::test]
async fn a_reset_brings_a_refill_instant_back_from_the_future() {
    for ahead_ms in [6_000, 240_000, 46_800_000, 315_360_000_000] {
        let world = World::new().await;
        let process = world.process(1, 0).await;
        let minutely = unstored("rpm:60/min tpm:60/min");
        assert_eq!(process.drain(&minutely).await, 60);
        let mut item = world.bucket();
        item.insert("rf".to_owned(), number(world.truth.now().0 + ahead_ms));
        world.table.insert(&item);
        let restored = reset(&world, &process, None, 1).await.unwrap().unwrap();
        assert_eq!(restored[0].1, Milli::from_tokens(60), "{ahead_ms} ms ahead");
        assert!(world.ahead_ms().abs() <= 1_000, "{} ms ahead after the reset", world.ahead_ms());
        assert_eq!(process.drain(&minutely).await, 60, "the reset itself, {ahead_ms} ms ahead");
        world.pass(MINUTE, &[&process]);
        let again = process.drain(&minutely).await;
        assert!((58..=60).contains(&again), "{again} a minute later, {ahead_ms} ms ahead");
    }
}

/// What a reset says it has restored is what the limit lacked, and what is not named keeps its
/// balance.
#[tokio::test]
async fn a_reset_of_one_limit_leaves_the_others_alone() {
    let world = World::new().await;
    let process = world.process(1, 0).await;
    let both = unstored("rpm:60/min tpm:600/hour");
    assert!(process.is_granted(&both, 40).await);
    let name: LimitName = "rpm".parse().unwrap();
    let restored =
        reset(&world, &process, Some(std::slice::from_ref(&name)), 1).await.unwrap().unwrap();
    assert_eq!(restored, [(name, Milli::from_tokens(40))]);
    assert_eq!((world.number("b_rpm_tk"), world.number("b_tpm_tk")), (60_000, 600_000));
    assert_eq!(process.drain(&both).await, 60);
    // Time that passed before the reset is not paid again after it.
    world.pass(MINUTE / 2, &[&process]);
    assert_eq!(
        reset(&world, &process, None, 2).await.unwrap().unwrap()[0].1,
        Milli::from_tokens(30)
    );
    let granted = process.drain(&both).await;
    assert_eq!(granted, 60, "full, and no more");
}

/// A thousand writes a second between every look of the reset and its write: others refill and take
/// all the time.
#[tokio::test]
async fn a_reset_succeeds_on_a_bucket_under_a_thousand_writes_a_second() {
    let world = World::new().await;
    let busy = unstored("rps:1000/sec:100");
    let other = world.process(1, 0).await;
    assert_eq!(other.drain(&busy).await, 100);
    let (truth, table, key) = (world.truth.clone(), world.table.clone(), world.key());
    // Every request of the reset takes ten milliseconds to arrive: ten others are faster.
    let gate = move |_: u32, point: Point| {
        if matches!(point, Point::Before(_)) {
            for _ in 0..10 {
                truth.advance(Duration::from_millis(1));
                let mut item = table.get(&key).unwrap();
                let left: i64 = item["b_rps_tk"].as_n().unwrap().parse().unwrap();
                item.insert("b_rps_tk".to_owned(), number((left + 999) % 5_000));
                item.insert("rf".to_owned(), number(truth.now().0));
                table.insert(&item);
            }
        }
        0
    };
    let admin = world.process_on(world.table.client(9).with_gate(Arc::new(gate)), 9, 0).await;
    for round in 0..10 {
        world.table.take_counters();
        let restored = reset(&world, &admin, None, round + 1).await.unwrap().unwrap();
        let transactions = world.table.take_counters().calls(Operation::Transact);
        assert!((1..=3).contains(&transactions), "{transactions} attempts");
        assert!(restored[0].1 > Milli::ZERO, "round {round}");
        assert_eq!(world.number("b_rps_tk"), 100_000, "round {round}: full");
        let mut item = world.bucket();
        item.insert("b_rps_tk".to_owned(), number(0));
        world.table.insert(&item);
    }
}

/// An administrator before whose first transactions somebody else changes the bucket: each change
/// is one transaction's.
async fn raced_admin(world: &World, changes: &[&[(&'static str, i64)]]) -> Process {
    let changes: Vec<Vec<(&'static str, i64)>> =
        changes.iter().map(|change| change.to_vec()).collect();
    let (table, key, turn) = (world.table.clone(), world.key(), AtomicU32::new(0));
    let gate = move |_: u32, point: Point| {
        if point == Point::Before(Operation::Transact) {
            let turn = usize::try_from(turn.fetch_add(1, Ordering::Relaxed)).unwrap();
            if let Some(change) = changes.get(turn) {
                let mut item = table.get(&key).unwrap();
                item.extend(
                    change.iter().map(|(name, value)| ((*name).to_owned(), number(*value))),
                );
                table.insert(&item);
            }
        }
        0
    };
    world.process_on(world.table.client(9).with_gate(Arc::new(gate)), 9, 0).await
}

/// What is told as restored is what was restored, also when somebody takes or refills between the
/// look and the write.
#[tokio::test]
async fn a_reset_tells_what_it_restored_beside_others() {
    let minutely = unstored("rpm:60/min");
    // Twenty are left and thirty are due by now; another one takes fifteen of them, or refills and
    // takes thirty.
    for (refills, expected) in [(false, 25), (true, 40)] {
        let world = World::new().await;
        let process = world.process(1, 0).await;
        assert!(process.is_granted(&minutely, 40).await);
        world.pass(MINUTE / 2, &[&process]);
        let now = world.truth.now().0;
        let change: &[(&str, i64)] =
            if refills { &[("b_rpm_tk", 20_000), ("rf", now)] } else { &[("b_rpm_tk", 5_000)] };
        let admin = raced_admin(&world, &[change]).await;
        let restored = reset(&world, &admin, None, 1).await.unwrap().unwrap();
        // The pause before the second look refills a few millitokens.
        assert!(
            (expected * 1_000 - 500..=expected * 1_000).contains(&restored[0].1.0),
            "{restored:?}, refills: {refills}"
        );
    }
}

/// A refill instant that somebody else has set right meanwhile is not moved once more: time would
/// be paid twice.
#[tokio::test]
async fn a_reset_leaves_a_refill_instant_that_is_right_again() {
    let world = World::new().await;
    let process = world.process(1, 0).await;
    assert_eq!(process.drain(&unstored("rpm:60/min")).await, 60);
    let right = world.truth.now().0 + 700;
    let mut item = world.bucket();
    item.insert("rf".to_owned(), number(right + 240_000));
    world.table.insert(&item);
    let admin = raced_admin(&world, &[&[("rf", right)]]).await;
    assert!(reset(&world, &admin, None, 1).await.unwrap().is_some());
    assert_eq!((world.number("rf"), world.number("b_rpm_tk")), (right, 60_000));
}

/// Nor is one left alone that went to the future meanwhile, on a bucket too busy to be pinned.
#[tokio::test]
async fn a_reset_of_a_busy_bucket_sees_an_instant_that_went_to_the_future() {
    let world = World::new().await;
    let process = world.process(1, 0).await;
    assert_eq!(process.drain(&unstored("rpm:60/min")).await, 60);
    let far = world.truth.now().0 + 240_000;
    let changes: [&[(&str, i64)]; 3] = [&[("b_rpm_tk", 1)], &[("b_rpm_tk", 2)], &[("rf", far)]];
    let admin = raced_admin(&world, &changes).await;
    assert!(reset(&world, &admin, None, 1).await.unwrap().is_some());
    assert!(world.ahead_ms().abs() <= 1_000, "{} ms ahead after the reset", world.ahead_ms());
}

/// What a removed limit has left behind is taken away; not so a limit that came back meanwhile, of
/// which parameters without a balance would stay.
#[tokio::test]
async fn a_reset_takes_nothing_away_from_a_limit_that_came_back() {
    let world = World::new().await;
    let process = world.process(1, 0).await;
    assert_eq!(process.drain(&unstored("rpm:60/min")).await, 60);
    let mut item = world.bucket();
    item.extend([("b_tpm_tk".to_owned(), number(-5_000)), ("b_tpm_tc".to_owned(), number(5_000))]);
    world.table.insert(&item);
    let back: &[(&str, i64)] = &[("b_tpm_cp", 9_000), ("b_tpm_ra", 9_000), ("b_tpm_rp", 60_000)];
    // The first two attempts pin all balances, the third one does not.
    let changes = [&[("b_rpm_tk", 1)][..], &[("b_rpm_tk", 2)], back];
    let admin = raced_admin(&world, &changes).await;
    assert!(reset(&world, &admin, None, 1).await.unwrap().is_some());
    assert_eq!((world.number("b_rpm_tk"), world.number("b_tpm_tk")), (60_000, 9_000));
}
