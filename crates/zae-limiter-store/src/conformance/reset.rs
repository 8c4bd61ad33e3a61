//! Filling a bucket by hand.

use zae_limiter_core::{AuditAction, LimitName, Milli};

use super::fixture::{
    Fixture, GPT, SECOND, about, after, ask, at, entity_on, limits, resource, rpm,
};
use crate::{Level, Restored};

fn gains(pairs: &[(&str, i64)]) -> Option<Restored> {
    let gain = |(name, milli): &(&str, i64)| (name.parse().expect("a valid name"), Milli(*milli));
    Some(pairs.iter().map(gain).collect())
}

pub(super) async fn a_reset_fills_every_limit_and_says_what_each_gained(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    f.take(&ask("key", &both, "rpm=60 tpm=100"), at(0)).await.granted(&[0, 900_000]);
    assert_eq!(f.reset("key", None, at(0)).await, gains(&[("rpm", 60_000), ("tpm", 100_000)]));
    f.take(&ask("key", &both, "rpm=60 tpm=1000"), at(0)).await.granted(&[0, 0]);
}

pub(super) async fn a_reset_forgives_debt(f: Fixture) {
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.adjust(&rpm("key", 40), at(0)).await;
    let gained = f.reset("key", None, at(10 * SECOND)).await;
    assert_eq!(gained, gains(&[("rpm", 90_000)]), "what refill brought back is not gained");
    f.take(&rpm("key", 60), at(10 * SECOND)).await.granted(&[0]);
    f.take(&rpm("key", 1), at(10 * SECOND)).await.refused(&[(0, after(1_000))]);
}

pub(super) async fn a_reset_can_be_for_some_limits_only(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    f.take(&ask("key", &both, "rpm=60 tpm=1000"), at(0)).await.granted(&[0, 0]);
    let only: [LimitName; 1] = ["tpm".parse().expect("a valid name")];
    assert_eq!(f.reset("key", Some(&only), at(0)).await, gains(&[("tpm", 1_000_000)]));
    assert_eq!(f.balances("key", at(0)).await, [0, 1_000_000], "the other one is as it was");
}

pub(super) async fn a_reset_is_not_consumption(f: Fixture) {
    f.take(&rpm("key", 20), at(0)).await.granted(&[40_000]);
    f.reset("key", None, at(0)).await;
    assert_eq!(f.consumed("key").await, [20_000], "what was used stays used");
}

pub(super) async fn a_reset_keeps_the_limits_in_force(f: Fixture) {
    let everybodys = f.stored(&Level::System, "rpm:1/min").await;
    let own = f.stored(&entity_on("key", GPT), "rpm:60/min:120").await;
    f.take(&ask("key", &own, "rpm=100"), at(0)).await.granted(&[20_000]);
    f.reset("key", None, at(0)).await;
    f.take(&ask("key", &own, "rpm=120"), at(0)).await.granted(&[0]);
    f.take(&ask("key", &everybodys, "rpm=1"), at(0)).await.stale(0);
}

pub(super) async fn a_missing_bucket_is_not_reset_and_not_created(f: Fixture) {
    assert_eq!(f.reset("key", None, at(0)).await, None, "an absent bucket is full");
    assert_eq!(f.bucket("key").await, None, "nothing was written");
    assert_eq!(f.events(&about("key")).await, [], "what did not happen is not recorded");
}

pub(super) async fn a_reset_is_recorded(f: Fixture) {
    f.take(&rpm("key", 20), at(0)).await.granted(&[40_000]);
    f.reset("key", None, at(5 * SECOND)).await;
    let events = f.events(&about("key")).await;
    let found: Vec<_> =
        events.into_iter().map(|event| (event.action, event.at, event.resource)).collect();
    assert_eq!(found, [(AuditAction::BucketReset, at(5 * SECOND), Some(resource(GPT)))]);
}
