//! What a warm take costs by the size of its bucket: one write unit per begun KB, with everything
//! that is stored in it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use zae_limiter_core::{Limit, LimitSource, Milli, Take};
use zae_limiter_store::{
    BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Level, LimitsInForce,
    MemberTake,
};
use zae_limiter_testkit::table::{EvalOptions, Operation};
use zae_limiter_testkit::zae_limiter::{RateLimiter, Request};

use crate::evaluated::{Rig, limits};

/// Write units of the second take from a bucket, indexes included.
async fn units(id_bytes: usize, limits: u8, name_bytes: usize) -> u64 {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let limit = |index: u8| format!("{}{index}", "n".repeat(name_bytes - index.to_string().len()));
    let limits: Vec<Limit> = (0..limits)
        .map(|index| Limit::custom(&limit(index), 999_983, 999_979, 60).unwrap())
        .collect();
    let in_force = LimitsInForce::new(limits, LimitSource::System);
    let (entity, resource) =
        ("u".repeat(id_bytes).parse().unwrap(), "r".repeat(16).parse().unwrap());
    let takes = [Take { limit: 0, amount: Milli(1_000) }];
    let members = [MemberTake {
        entity: &entity,
        resource: &resource,
        limits: &in_force,
        takes: &takes,
        absent: &[],
    }];
    for _ in 0..2 {
        rig.table.take_counters();
        let outcome = store.consume(&ConsumeRequest::new(&members, rig.clock.now())).await.unwrap();
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
    }
    rig.table.take_counters().units.writes()
}

/// `docs/dynamodb.md` says when a take is one unit, and what it is otherwise.
#[tokio::test]
async fn a_take_is_one_unit_up_to_64_bytes_of_id_and_three_short_limits() {
    assert_eq!(units(64, 3, 3).await, 1);
    assert_eq!(units(11, 5, 3).await, 1, "short ids leave room for more limits");
    assert_eq!(units(256, 1, 3).await, 2, "an id is stored five times");
    assert_eq!(units(256, 3, 3).await, 2);
    assert_eq!(units(64, 16, 3).await, 2, "sixteen limits with short names");
    let largest = units(256, 16, 32).await;
    assert!((4..=6).contains(&largest), "long ids and long names: {largest}");
}

/// `docs/dynamodb.md` lists the permissions of each path: what only takes, peeks and settles needs
/// three actions.
#[tokio::test]
async fn takes_and_settlements_write_items_and_read_batches_and_nothing_else() {
    let rig = Rig::new(EvalOptions::new()).await;
    let admin = rig.store().await;
    admin.set_limits(&Level::System, &limits("rpm:10"), &rig.change()).await.unwrap();
    let limiter = RateLimiter::builder(rig.store().await).clock(rig.clock.clone()).build().unwrap();
    rig.table.take_counters();
    for round in 0..30 {
        if let Ok(lease) = limiter.acquire(Request::new("key", "gpt-4").take("rpm", 2)).await {
            lease.record("rpm", round % 5).unwrap();
            if round % 2 == 0 {
                lease.commit().await.unwrap()
            } else {
                lease.rollback().await.unwrap()
            }
        }
        limiter.availability(&Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
        rig.clock.sleep(std::time::Duration::from_secs(round % 7 * 10)).await;
    }
    let counters = rig.table.take_counters();
    let needed: u64 = [Operation::Update, Operation::Put, Operation::BatchGet]
        .map(|operation| counters.calls(operation))
        .iter()
        .sum();
    assert!(needed > 60);
    assert_eq!(counters.all_calls(), needed);
}
