//! Data that outlives its handle, and handles that share data.

use super::fixture::{
    Fixture, GPT, HOUR, SECOND, about, after, ask, at, entity, hourly, limits, resource_level, rpm,
};
use crate::Level;
use zae_limiter_core::Flag::Disabled;

pub(super) async fn buckets_outlive_the_handle(f: Fixture) {
    // A balance, a debt, a remainder and a limit that is no longer configured.
    let x = limits("x:1/3sec:9 y:60/min");
    f.take(&ask("key", &x, "x=9 y=10"), at(0)).await.granted(&[0, 50_000]);
    f.take(&ask("key", &x, "x=0"), at(500)).await.granted(&[166]);
    f.adjust(&ask("debtor", &x, "x=10"), at(0)).await;
    let fewer = f.stored(&Level::System, "x:1/3sec:9").await;
    assert!(f.take(&ask("key", &fewer, "x=0"), at(501)).await.is_granted(), "x is not in debt");
    let before = (f.bucket("key").await, f.bucket("debtor").await);
    let f = f.reopened().await;
    let bucket = (f.bucket("key").await, f.bucket("debtor").await);
    assert_eq!(bucket, before, "buckets are as they were, to the last field");
    f.take(&ask("debtor", &x, "x=0"), at(0)).await.refused(&[(-1_000, after(3_000))]);
}

pub(super) async fn configuration_outlives_the_handle(f: Fixture) {
    f.create("org").await;
    f.try_create("key", Some("org"), true).await.expect("an entity can be created");
    let version = f.set(&Level::System, "rpm:60/min tpm:1000/min").await;
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    f.take(&ask("other", &f.in_force("other").await, "rpm=1").on("gpt-5"), at(0))
        .await
        .granted(&[59_000]);
    let (entity_before, level_before) = (f.entity("key").await, f.level(&Level::System).await);
    let f = f.reopened().await;
    assert_eq!(f.entity("key").await, entity_before);
    assert_eq!(f.level(&Level::System).await, level_before);
    assert_eq!(f.resolve("key", GPT).await.cascades_to, Some(entity("org")));
    f.take(&rpm("key", 1), at(0)).await.disabled(0);
    f.try_set(&Level::System, "rpm:1", Some(version)).await.expect("the version is the same");
    // A bucket that learnt its limits from the first handle takes those the second one has read:
    // stamps go on growing.
    f.take(&ask("other", &f.in_force("other").await, "rpm=1").on("gpt-5"), at(0))
        .await
        .granted(&[0]);
}

pub(super) async fn history_outlives_the_handle(f: Fixture) {
    f.create("key").await;
    f.take(&rpm("key", 2), at(0)).await.granted(&[58_000]);
    f.take(&rpm("key", 3), at(HOUR)).await.granted(&[57_000]);
    let usage = hourly(Some("key"), None);
    let events = f.events(&about("key")).await;
    let hours = f.store.usage(&usage).await.expect("a query");
    assert_eq!(events.len(), 1, "what was created");
    let f = f.reopened().await;
    assert_eq!(f.events(&about("key")).await, events);
    assert_eq!(f.store.usage(&usage).await.expect("a query"), hours);
}

pub(super) async fn namespaces_outlive_the_handle(f: Fixture) {
    let tenant = f.tenant("tenant").await;
    tenant.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    drop(tenant);
    let before = f.namespace("tenant").await;
    let f = f.reopened().await;
    assert_eq!(f.namespace("tenant").await, before);
    let tenant = f.inside("tenant").await;
    assert_eq!(tenant.balances("key", at(0)).await, [0]);
    assert_eq!(f.bucket("key").await, None, "still apart");
}

pub(super) async fn two_handles_share_one_bucket(f: Fixture) {
    let (rpm, other) = (limits("rpm:60/min"), f.beside().await);
    f.take(&ask("key", &rpm, "rpm=1"), at(0)).await.granted(&[59_000]);
    other.take(&ask("key", &rpm, "rpm=2"), at(0)).await.granted(&[57_000]);
    f.adjust(&ask("key", &rpm, "rpm=5"), at(0)).await;
    other.take(&ask("key", &rpm, "rpm=52"), at(0)).await.granted(&[0]);
    f.take(&ask("key", &rpm, "rpm=1"), at(SECOND - 1)).await.refused(&[(999, after(1))]);
    other.take(&ask("key", &rpm, "rpm=1"), at(SECOND - 1)).await.refused(&[(999, after(1))]);
}

pub(super) async fn two_handles_share_one_configuration(f: Fixture) {
    let other = f.beside().await;
    let one = rpm("key", 1);
    other.take(&one, at(0)).await.granted(&[59_000]);
    f.set(&Level::System, "rpm:5").await;
    let (read, set) = (other.in_force("key").await, f.in_force("key").await);
    assert_eq!(read.limits, set.limits, "what one sets the other reads");
    assert_eq!(read.source, set.source, "what one sets the other reads");
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    other.take(&one, at(0)).await.disabled(0);
    other.flag(&resource_level(GPT), None).await;
    f.take(&one, at(0)).await.granted(&[58_000]);
}
