//! What it costs to learn about a key, a chain or a crowd of keys that a process has never seen:
//! calls, and read units as the engine counts them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use futures_util::future::join_all;
use zae_limiter_core::{CHAIN_MAX, Limit};
use zae_limiter_store::{Level, NewEntity};
use zae_limiter_testkit::zae_limiter::{RateLimiter, Request};

use crate::calls::Rig;

fn request(entity: &str) -> Request {
    Request::new(entity, "gpt-4").take("rpm", 1)
}

async fn take(limiter: &RateLimiter, entity: &str) {
    limiter.acquire(request(entity)).await.unwrap().commit().await.unwrap();
}

async fn limits(limiter: &RateLimiter) {
    limiter.set_limits(&Level::System, [Limit::custom("rpm", 100, 1, 1).unwrap()]).await.unwrap();
}

/// How many reads come first, and that none comes later. (A process that knows no image of a bucket
/// may need a second write.)
#[track_caller]
fn reads_first(calls: &[&str]) -> usize {
    let reads = calls.iter().take_while(|call| **call == "BatchGetItem").count();
    assert!(calls[reads..].iter().all(|call| *call == "UpdateItem"), "{calls:?}");
    reads
}

/// The record of the namespace, the system's limits and those of the resource are read once per
/// process and minute. A key that is new to the process costs three units: its record, its limits,
/// its limits on the resource.
#[tokio::test]
async fn what_keys_share_is_read_once_per_process_and_ttl() {
    let rig = Rig::new().await;
    let (maker, process) = (rig.process().await, rig.process().await);
    let keys: Vec<String> = (0..6).map(|index| format!("user-{index}")).collect();
    let (made, limiter) = (maker.limiter(), process.limiter());
    limits(&made).await;
    for key in &keys {
        take(&made, key).await;
    }
    process.log.take();
    for (index, key) in keys[..4].iter().enumerate() {
        take(&limiter, key).await;
        let cost = process.cost();
        assert_eq!(reads_first(&cost.calls), 1, "{key}");
        assert_eq!(cost.reads, if index == 0 { 6.0 } else { 3.0 }, "{key}");
        rig.clock.advance(10_000);
    }
    // Forty seconds later, still; after a minute, once more.
    take(&limiter, &keys[4]).await;
    assert_eq!(process.cost().reads, 3.0);
    rig.clock.advance(20_000);
    take(&limiter, &keys[5]).await;
    assert_eq!(process.cost().reads, 6.0);
    // What expired with the shared part is put together again from what is remembered: nothing is
    // read.
    take(&limiter, &keys[4]).await;
    assert_eq!(process.cost().reads, 0.0);
}

/// Making a bucket adds the read after it, five units: everything but the record of the namespace.
/// The read before it is only about what is older than an instant: here nothing, then what keys
/// share.
#[tokio::test]
async fn a_new_key_of_a_warm_process_is_three_units_and_what_making_its_bucket_takes() {
    let rig = Rig::new().await;
    let process = rig.process().await;
    let limiter = process.limiter();
    limits(&limiter).await;
    take(&limiter, "first").await;
    process.log.take();
    take(&limiter, "second").await;
    let cost = process.cost();
    assert_eq!(cost.calls, ["BatchGetItem", "UpdateItem", "PutItem", "BatchGetItem"]);
    assert_eq!(cost.reads, 3.0 + 5.0);

    rig.clock.advance(1_000);
    take(&limiter, "third").await;
    let cost = process.cost();
    assert_eq!(
        cost.calls,
        ["BatchGetItem", "UpdateItem", "BatchGetItem", "PutItem", "BatchGetItem"]
    );
    assert_eq!(cost.reads, 3.0 + 2.0 + 5.0);
}

/// A crowd of new keys at once: one of them reads what they share, the others wait for that.
#[tokio::test]
async fn a_crowd_of_new_keys_reads_what_they_share_once() {
    const KEYS: usize = 40;
    let rig = Rig::new().await;
    let (maker, process) = (rig.process().await, rig.process().await);
    let keys: Vec<String> = (0..KEYS).map(|index| format!("user-{index}")).collect();
    // The engine is real, and so is the time it takes for all of them.
    let patient = RateLimiter::builder(process.store.clone())
        .clock(rig.clock.clone())
        .deadline(Duration::from_secs(60));
    let (made, limiter) = (maker.limiter(), patient.build().unwrap());
    limits(&made).await;
    for key in &keys {
        take(&made, key).await;
    }
    process.log.take();
    join_all(keys.iter().map(|key| take(&limiter, key))).await;
    let cost = process.cost();
    assert_eq!(cost.reads, (3 * KEYS + 3) as f64);
    assert_eq!(cost.calls.iter().filter(|call| **call == "BatchGetItem").count(), KEYS);
}

/// Entities `level-0` (the caller) to `level-7`.
async fn chain_of_eight(limiter: &RateLimiter) {
    limits(limiter).await;
    let name = |level: usize| format!("level-{level}");
    for level in (0..CHAIN_MAX).rev() {
        let parent = (level + 1 < CHAIN_MAX).then(|| name(level + 1).parse().unwrap());
        let (id, cascade) = (name(level).parse().unwrap(), parent.is_some());
        limiter
            .create_entity(NewEntity {
                id,
                name: name(level),
                parent,
                cascade,
                metadata: Default::default(),
            })
            .await
            .unwrap();
    }
}

/// The record of the caller names its ancestors, so that all of them are read together: two trips
/// for eight levels, then one.
#[tokio::test]
async fn a_cold_chain_of_eight_is_read_in_two_trips() {
    let rig = Rig::new().await;
    let (maker, process) = (rig.process().await, rig.process().await);
    let (made, limiter) = (maker.limiter(), process.limiter());
    chain_of_eight(&made).await;
    take(&made, "level-0").await;
    for trips in [2, 1] {
        process.log.take();
        take(&limiter, "level-0").await;
        let cost = process.cost();
        assert_eq!(reads_first(&cost.calls), trips);
        assert_eq!(cost.reads, (3 + 3 * CHAIN_MAX) as f64);
        limiter.invalidate_config_cache();
    }

    // A sibling half way up needs only what is new.
    rig.clock.advance(1_000);
    take(&limiter, "level-0").await;
    process.log.take();
    let sibling = NewEntity {
        id: "sibling".parse().unwrap(),
        name: "sibling".to_owned(),
        parent: Some("level-1".parse().unwrap()),
        cascade: true,
        metadata: Default::default(),
    };
    made.create_entity(sibling).await.unwrap();
    take(&made, "sibling").await;
    take(&limiter, "sibling").await;
    let cost = process.cost();
    assert_eq!((reads_first(&cost.calls), cost.reads), (1, 3.0));
}

/// A cache that trusts nothing reads everything for every take, but not more often than that.
#[tokio::test]
async fn a_chain_is_read_in_two_trips_without_a_cache_as_well() {
    let rig = Rig::new().await;
    let (maker, process) = (rig.process().await, rig.process().await);
    let made = maker.limiter();
    chain_of_eight(&made).await;
    take(&made, "level-0").await;
    let builder = RateLimiter::builder(process.store.clone()).clock(rig.clock.clone());
    let limiter = builder.config_cache_ttl(Duration::ZERO).build().unwrap();
    for trips in [2, 1] {
        process.log.take();
        take(&limiter, "level-0").await;
        let cost = process.cost();
        assert_eq!(reads_first(&cost.calls), trips);
        assert_eq!(cost.reads, (3 + 3 * CHAIN_MAX) as f64);
    }
}
