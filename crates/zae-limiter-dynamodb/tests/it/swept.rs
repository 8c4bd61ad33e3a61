//! Charges that find no bucket: what was used was used, however the bucket went.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use zae_limiter_core::{Milli, Take};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Delta,
    Level, LimitsInForce, MemberKey, MemberTake, NewEntity,
};
use zae_limiter_testkit::table::EvalOptions;

use crate::evaluated::{Rig, limits};

async fn known(store: &DynamoStore) -> LimitsInForce {
    let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let found = store.resolve(&[MemberKey { entity: &entity, resource: &resource }]).await.unwrap();
    let (limits, source) = found.members[0].limits.clone().unwrap();
    LimitsInForce::resolved(limits, source, found.stamp, 7)
}

async fn take(
    rig: &Rig,
    store: &DynamoStore,
    limits: &LimitsInForce,
    tokens: i64,
) -> ConsumeOutcome {
    let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let takes = [Take { limit: 0, amount: Milli(tokens * 1_000) }];
    let members =
        [MemberTake { entity: &entity, resource: &resource, limits, takes: &takes, absent: &[] }];
    store.consume(&ConsumeRequest::new(&members, rig.clock.now())).await.unwrap()
}

async fn charge(rig: &Rig, store: &DynamoStore, receipt: &LimitsInForce, tokens: i64) -> Adjusted {
    let deltas = [Delta { limit: 0, amount: Milli(tokens * 1_000) }];
    let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let delta = BucketDelta {
        entity: &entity,
        resource: &resource,
        limits: receipt,
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    store.adjust(&[delta], rig.clock.now()).await.remove(0).unwrap()
}

/// A lease under limits of the entity, which are deleted meanwhile; the bucket gets an expiry, is
/// full, and is swept. The charge of the lease comes then.
#[tokio::test]
async fn a_charge_for_a_bucket_that_lost_its_own_limits_and_was_swept_is_made() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let own = Level::Entity("key".parse().unwrap());
    store.set_limits(&Level::System, &limits("rpm:60"), &rig.change()).await.unwrap();
    store.set_limits(&own, &limits("rpm:60"), &rig.change()).await.unwrap();
    let receipt = known(&store).await;
    assert_eq!(receipt.ttl_ms, None, "limits of the entity keep the bucket");
    assert!(matches!(take(&rig, &store, &receipt, 1).await, ConsumeOutcome::Granted(_)));
    store.delete_limits(&own, &rig.change()).await.unwrap();
    rig.clock.sleep(Duration::from_secs(3 * 86_400)).await;
    let swept = rig.table.sweep(rig.clock.now().0 / 1_000);
    assert_eq!(swept.len(), 1, "the bucket has expired");
    assert_eq!(charge(&rig, &store, &receipt, 70).await, Adjusted::Recreated);
    let item = rig.table.get(&rig.bucket("key", "gpt-4")).unwrap();
    assert_eq!(item["b_rpm_tk"].as_n().unwrap(), "-10000", "60 less 70");
    assert!(item.contains_key("ttl"), "a bucket without limits of its own is forgotten in time");
    assert!(matches!(
        take(&rig, &store, &known(&store).await, 1).await,
        ConsumeOutcome::Refused(_)
    ));
}

/// The same after an administrator has deleted the entity: charged, as by the other stores, and
/// forgotten in time.
#[tokio::test]
async fn a_charge_after_the_entity_was_deleted_does_not_stay_for_good() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let (id, own) = ("key".parse().unwrap(), Level::Entity("key".parse().unwrap()));
    let new = NewEntity {
        id,
        name: "key".into(),
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    store.create_entity(&new, &rig.change()).await.unwrap();
    store.set_limits(&own, &limits("rpm:60"), &rig.change()).await.unwrap();
    let receipt = known(&store).await;
    assert!(matches!(take(&rig, &store, &receipt, 1).await, ConsumeOutcome::Granted(_)));
    store.delete_entity(&new.id, &rig.change()).await.unwrap();
    assert_eq!(charge(&rig, &store, &receipt, 5).await, Adjusted::Recreated);
    assert!(rig.table.get(&rig.bucket("key", "gpt-4")).unwrap().contains_key("ttl"));
    // With limits of its own again, the bucket is kept as any other.
    store.set_limits(&own, &limits("rpm:60"), &rig.change()).await.unwrap();
    rig.table.remove(&rig.bucket("key", "gpt-4"));
    assert_eq!(charge(&rig, &rig.store().await, &receipt, 5).await, Adjusted::Recreated);
    assert!(!rig.table.get(&rig.bucket("key", "gpt-4")).unwrap().contains_key("ttl"));
}

/// The limits were lowered since the receipt: what is charged is owed under those in force.
#[tokio::test]
async fn a_charge_that_makes_a_bucket_goes_by_the_limits_in_force() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    store.set_limits(&Level::System, &limits("rpm:1000000"), &rig.change()).await.unwrap();
    let receipt = known(&store).await;
    assert!(matches!(take(&rig, &store, &receipt, 1).await, ConsumeOutcome::Granted(_)));
    store.set_limits(&Level::System, &limits("rpm:10"), &rig.change()).await.unwrap();
    rig.clock.sleep(Duration::from_secs(8 * 3_600)).await;
    rig.table.remove(&rig.bucket("key", "gpt-4"));
    let late = rig.store().await;
    assert_eq!(charge(&rig, &late, &receipt, 500).await, Adjusted::Recreated);
    assert_eq!(
        rig.table.get(&rig.bucket("key", "gpt-4")).unwrap()["b_rpm_tk"].as_n().unwrap(),
        "-490000",
        "10 less 500"
    );
    assert!(matches!(take(&rig, &late, &known(&late).await, 1).await, ConsumeOutcome::Refused(_)));
}
