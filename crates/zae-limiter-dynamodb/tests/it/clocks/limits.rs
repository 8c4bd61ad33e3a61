//! Old limits are not pushed back, whatever the clocks of those say who wrote the new ones.

use std::time::Duration;

use zae_limiter_core::LimitSource;
use zae_limiter_store::{
    ConfigStore, ConsumeOutcome, Level, LimitsChange, LimitsInForce, MemberKey,
};

use super::{Process, World, gpt};

async fn set(world: &World, process: &Process, text: &str, number: u128) {
    let change = LimitsChange {
        limits: vec![text.parse().unwrap()],
        on_unavailable: None,
        expected_version: None,
    };
    process.store.set_limits(&Level::System, &change, &world.change(number)).await.unwrap();
}

/// What a process knows that reads the configuration now.
async fn known(process: &Process) -> LimitsInForce {
    let (entity, resource) = ("key".parse().unwrap(), gpt());
    let found =
        process.store.resolve(&[MemberKey { entity: &entity, resource: &resource }]).await.unwrap();
    let (limits, source) = found.members[0].limits.clone().unwrap();
    assert_eq!(source, LimitSource::System);
    LimitsInForce::resolved(limits, source, found.stamp, 7)
}

/// The bucket's parameters are stamped with the time of the read that justified them. A syncing
/// process whose clock is behind would stamp them too early, and one with the limits before would
/// take its own for newer.
#[tokio::test]
async fn a_stale_process_does_not_win_against_a_clock_that_is_off() {
    for off_ms in [-86_400_000, -240_000, -15_000, -5_000, 0, 5_000, 15_000, 240_000, 86_400_000] {
        let world = World::new().await;
        let (syncer, stale) = (world.process(1, off_ms).await, world.process(2, 0).await);
        set(&world, &stale, "rpm:100/min", 1).await;
        let old = known(&stale).await;
        assert!(stale.is_granted(&old, 1).await);
        world.pass(Duration::from_secs(20), &[&syncer, &stale]);
        let old = known(&stale).await;
        world.pass(Duration::from_secs(3), &[&syncer, &stale]);
        set(&world, &syncer, "rpm:10/min", 2).await;
        let new = known(&syncer).await;
        assert!(syncer.is_granted(&new, 1).await, "{off_ms} ms off");
        assert_eq!(world.number("b_rpm_cp"), 10_000, "{off_ms} ms off");
        let told = stale.take(&old, 1).await.unwrap();
        assert_eq!(world.number("b_rpm_cp"), 10_000, "pushed back, {off_ms} ms off");
        assert!(matches!(told, ConsumeOutcome::Stale { member: 0 }), "{told:?}, {off_ms} ms off");
    }
}

/// The other way round: a clock that was ahead must not lock everybody else's newer limits out.
#[tokio::test]
async fn limits_written_by_a_clock_that_is_ahead_can_be_replaced() {
    let world = World::new().await;
    let (ahead, right) = (world.process(1, 86_400_000).await, world.process(2, 0).await);
    set(&world, &ahead, "rpm:100/min", 1).await;
    let first = known(&ahead).await;
    assert!(ahead.is_granted(&first, 1).await);
    world.pass(Duration::from_secs(30), &[&ahead, &right]);
    set(&world, &right, "rpm:10/min", 2).await;
    let second = known(&right).await;
    assert!(right.is_granted(&second, 1).await);
    assert_eq!(world.number("b_rpm_cp"), 10_000);
}
