//! Changed limits of an entity are written into its buckets, so that those who go by the bucket
//! hold to them too.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{Action, Table, Update};
use zae_limiter_store::Level;
use zae_limiter_testkit::zae_limiter::{AcquireError, Request};

use crate::upkeep::world::{World, number, own};

fn everywhere() -> Level {
    Level::Entity("user".parse().unwrap())
}

impl World {
    /// Capacities in the bucket of a resource, in tokens.
    async fn capacities(&self, resource: &str) -> BTreeMap<String, i64> {
        let item = self.bucket_of(resource).await.unwrap();
        let capacity = |(name, value): (&String, &AttributeValue)| {
            let limit = name.strip_prefix("b_")?.strip_suffix("_cp")?;
            (limit != "wcu").then(|| (limit.to_owned(), number(value) / 1000))
        };
        item.iter().filter_map(capacity).collect()
    }

    async fn capacity(&self, resource: &str) -> i64 {
        self.capacities(resource).await["rpm"]
    }

    async fn touch(&self, resource: &str) {
        self.limiter
            .acquire(Request::new("user", resource).take("rpm", 1))
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_lowered_limit_of_an_entity_binds_other_processes_at_once() {
    let world = World::with(&["rpm:100/hour"]).await;
    let other = world.another().await;
    let request = |tokens| Request::new("user", "gpt-4").take("rpm", tokens);
    other.acquire(request(1)).await.unwrap().commit().await.unwrap();
    world.set(&own(), &["rpm:5/hour"]).await;
    assert_eq!(world.capacity("gpt-4").await, 5);
    // The other one remembers the old limits for another minute; the bucket tells it better.
    let mut granted = 0;
    while let Ok(lease) = other.acquire(request(1)).await {
        lease.commit().await.unwrap();
        granted += 1;
    }
    assert_eq!(granted, 5);
}

#[tokio::test]
async fn limits_of_all_resources_reach_every_bucket_that_has_none_of_its_own() {
    let world = World::with(&["rpm:100/hour"]).await;
    let resources: Vec<String> = (0..40).map(|index| format!("model-{index}")).collect();
    for resource in &resources {
        world.touch(resource).await;
    }
    world.touch("gpt-4").await;
    world.set(&own(), &["rpm:7/hour"]).await;
    world.set(&everywhere(), &["rpm:50/hour", "tpm:10/min"]).await;
    for resource in &resources {
        assert_eq!(
            world.capacities(resource).await,
            BTreeMap::from([("rpm".to_owned(), 50), ("tpm".to_owned(), 10)])
        );
    }
    assert_eq!(world.capacities("gpt-4").await, BTreeMap::from([("rpm".to_owned(), 7)]));

    // Deleted: each falls back to what is next, and what was taken stays taken.
    world.limiter.delete_limits(&everywhere()).await.unwrap();
    assert_eq!(world.capacity("model-39").await, 100);
    assert_eq!(number(&world.bucket_of("model-39").await.unwrap()["b_rpm_tk"]), 50_000);
    assert_eq!(world.capacity("gpt-4").await, 7);
}

/// A change for everybody must not write everybody's buckets.
#[tokio::test]
async fn limits_of_a_resource_or_the_system_wait_for_the_next_take() {
    let world = World::with(&["rpm:100/hour"]).await;
    world.touch("gpt-4").await;
    let before = world.bucket().await;
    world.set(&Level::Resource("gpt-4".parse().unwrap()), &["rpm:9/hour"]).await;
    world.set(&Level::System, &["rpm:8/hour"]).await;
    assert_eq!(world.bucket().await, before);
    world.limiter.invalidate_config_cache();
    world.touch("gpt-4").await;
    assert_eq!(world.capacity("gpt-4").await, 9);
}

#[tokio::test]
async fn what_is_up_to_date_is_not_written() {
    let world = World::with(&["rpm:100/hour"]).await;
    world.set(&own(), &["rpm:9/hour"]).await;
    world.touch("gpt-4").await;
    let before = world.bucket().await;
    world.set(&own(), &["rpm:9/hour"]).await;
    assert_eq!(world.bucket().await, before);
}

#[tokio::test]
async fn a_disabled_bucket_gets_its_limits_when_it_is_used_again() {
    let world = World::with(&["rpm:100/hour"]).await;
    world.touch("gpt-4").await;
    world.limiter.disable(&own()).await.unwrap();
    world.set(&own(), &["rpm:9/hour"]).await;
    assert!(matches!(world.acquire(1).await, Err(AcquireError::Disabled { .. })));
    world.limiter.enable(&own()).await.unwrap();
    world.touch("gpt-4").await;
    assert_eq!(world.capacity("gpt-4").await, 9);
}

/// One bucket that this version cannot read is no reason to leave the others behind, nor to fail a
/// change that is made.
#[tokio::test]
async fn one_bucket_that_can_not_be_read_does_not_stop_the_others() {
    let world = World::with(&["rpm:100/hour"]).await;
    for resource in ["a", "b", "c"] {
        world.touch(resource).await;
    }
    let key = keys::bucket(&world.namespace, &"user".parse().unwrap(), &"b".parse().unwrap(), 0);
    let spoil = Update {
        key,
        actions: vec![Action::Set("b_rpm_cp".into(), AttributeValue::S("many".to_owned()))],
        conditions: vec![],
    };
    world.table.update(&spoil).await.unwrap();
    world.set(&everywhere(), &["rpm:9/hour"]).await;
    assert_eq!((world.capacity("a").await, world.capacity("c").await), (9, 9));
}

/// Limits are cut while sixteen tasks take: nobody gets past what the two limits allow together,
/// and the new one stands.
#[tokio::test]
async fn limits_change_under_those_who_take() {
    let world = World::with(&["rpm:200/day"]).await;
    let other = world.another().await;
    let taker = || async {
        let mut granted = 0_i64;
        for _ in 0..20 {
            match other.acquire(Request::new("user", "gpt-4").take("rpm", 1)).await {
                Ok(lease) => {
                    lease.commit().await.unwrap();
                    granted += 1;
                }
                Err(AcquireError::Exceeded(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        granted
    };
    let changes = async {
        for limit in ["rpm:150/day", "rpm:40/day", "rpm:60/day", "rpm:30/day"] {
            world.set(&own(), &[limit]).await;
        }
    };
    let (granted, ()) =
        futures_util::future::join(join_all((0..16).map(|_| taker())), changes).await;
    let granted: i64 = granted.into_iter().sum();
    let item = world.bucket().await.unwrap();
    assert!(granted <= 200, "{granted} of 200");
    assert_eq!((number(&item["b_rpm_cp"]), number(&item["b_rpm_tc"])), (30_000, granted * 1000));
}
