//! The clock of one process is stepped, or was wrong from the start.

use std::time::Duration;

use zae_limiter_dynamodb::constants::{BUCKET_TTL_MIN_MS, CLOCK_OFF_MAX_MS};
use zae_limiter_store::Clock;

use super::{STEPS_MS, World, unstored};

const MINUTE: Duration = Duration::from_secs(60);

/// The first write after a step used to land by the clock as it was before the step was noticed.
#[tokio::test]
async fn the_first_write_after_a_step_is_by_the_tables_clock() {
    for step_ms in STEPS_MS {
        let world = World::new().await;
        let (right, stepped) = (world.process(1, 0).await, world.process(2, 0).await);
        let minutely = unstored("rpm:60/min");
        assert!(right.is_granted(&minutely, 30).await && stepped.is_granted(&minutely, 10).await);
        world.pass(MINUTE, &[&right, &stepped]);
        stepped.step(step_ms);
        assert!(stepped.is_granted(&minutely, 10).await, "stepped by {step_ms} ms");
        assert!(
            world.ahead_ms().abs() <= CLOCK_OFF_MAX_MS,
            "{} ms ahead after a step of {step_ms}",
            world.ahead_ms()
        );
        // Nobody else notices: what is left is there, and a minute later everything is.
        let left = right.drain(&minutely).await;
        assert!((45..=53).contains(&left), "{left} left after a step of {step_ms}");
        world.pass(MINUTE, &[&right, &stepped]);
        let (one, other) = (right.drain(&minutely).await, stepped.drain(&minutely).await);
        assert!(
            (57..=63).contains(&(one + other)),
            "{one} and {other} a minute after a step of {step_ms}"
        );
    }
}

/// A process that begins with a wrong clock.
#[tokio::test]
async fn a_bucket_made_by_a_wrong_clock_is_as_good_as_any() {
    for off_ms in STEPS_MS {
        let world = World::new().await;
        let (wrong, right) = (world.process(1, off_ms).await, world.process(2, 0).await);
        let minutely = unstored("rpm:60/min");
        assert_eq!(wrong.drain(&minutely).await, 60, "{off_ms} ms off");
        assert!(
            world.ahead_ms().abs() <= CLOCK_OFF_MAX_MS,
            "{} ms ahead, {off_ms} ms off",
            world.ahead_ms()
        );
        // Kept for an hour at least, by the clock of who will forget it.
        let kept_ms = world.number("ttl") * 1_000 - world.truth.now().0;
        assert!(
            (BUCKET_TTL_MIN_MS - CLOCK_OFF_MAX_MS..=BUCKET_TTL_MIN_MS + 60_000 + CLOCK_OFF_MAX_MS)
                .contains(&kept_ms),
            "{kept_ms}"
        );
        let early = right.drain(&minutely).await;
        assert!(early <= 6, "{early} out of nothing, {off_ms} ms off");
        world.pass(MINUTE, &[&wrong, &right]);
        let again = right.drain(&minutely).await;
        assert!((54..=60).contains(&again), "{again} after a minute, {off_ms} ms off");
    }
}

/// A clock that was known to be ahead is set right while the process is idle: its next `now` must
/// not be minutes in the past.
#[tokio::test]
async fn a_clock_that_is_set_right_is_not_corrected_any_more() {
    for off_ms in [240_000, -240_000] {
        let world = World::new().await;
        let (wrong, right) = (world.process(1, off_ms).await, world.process(2, 0).await);
        let minutely = unstored("rpm:60/min");
        assert!(wrong.is_granted(&minutely, 1).await);
        world.pass(4 * MINUTE, &[&wrong, &right]);
        wrong.step(-off_ms);
        assert!(wrong.is_granted(&minutely, 30).await);
        let granted = 30 + right.drain(&minutely).await + wrong.drain(&minutely).await;
        assert!(granted <= 66, "{granted} of 60 at one moment, {off_ms} ms off before");
    }
}

/// A clock that flaps gains what it is off by once, and that is no more than the documents say.
#[tokio::test]
async fn a_clock_that_flaps_refills_nothing_twice() {
    let world = World::new().await;
    let (flapping, right) = (world.process(1, 0).await, world.process(2, 0).await);
    let minutely = unstored("rpm:60/min");
    let mut granted = 0;
    for round in 0..20 {
        flapping.step(if round % 2 == 0 { 46_800_000 } else { -46_800_000 });
        granted += flapping.drain(&minutely).await + right.drain(&minutely).await;
    }
    let most = 60 + u64::try_from(CLOCK_OFF_MAX_MS).unwrap() / 1_000;
    assert!(granted <= most, "{granted} of {most}");
}

/// Asking costs one read, and only when there is reason to.
#[tokio::test]
async fn the_time_is_asked_for_only_when_it_is_doubtful() {
    use zae_limiter_testkit::table::Operation;
    let world = World::new().await;
    let process = world.process(1, 0).await;
    let minutely = unstored("rpm:60/min");
    assert!(process.is_granted(&minutely, 1).await);
    let reads = |world: &World| world.table.take_counters().calls(Operation::BatchGet);
    reads(&world);
    for (passes, step_ms, wanted) in [
        (1, 0, 0),
        (600, 0, 0),
        (3_601, 0, 1),
        (1, 900, 0),
        (1, 5_000, 1),
        (1, 0, 0),
        (1, -86_400_000, 1),
    ] {
        world.pass(Duration::from_secs(passes), &[&process]);
        process.step(step_ms);
        assert!(process.is_granted(&minutely, 1).await);
        assert_eq!(reads(&world), wanted, "after {passes} s and a step of {step_ms} ms");
    }
}
