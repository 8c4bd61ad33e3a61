//! The sweep: it forgets only what no caller can miss.

use zae_limiter_core::LimitSource;

use super::fixture::{
    DAY, Fixture, GPT, HOUR, SECOND, about, after, ask, at, entity_level, hourly, limits,
    limits_from, rpm,
};
use crate::Adjusted::{Dropped, Recreated};
use crate::{Level, LimitsInForce};
use zae_limiter_core::Flag::Disabled;

/// An idle bucket of `rpm:60/min` is kept for seven times the minute it needs to fill.
const TTL: i64 = 420 * SECOND;

const YEAR: i64 = 366 * DAY;

pub(super) async fn a_full_idle_bucket_is_forgotten_when_it_expires(f: Fixture) {
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    assert_eq!(f.sweep(at(TTL - 1)).await, 0, "not yet");
    assert!(f.bucket("key").await.is_some(), "not yet");
    assert_eq!(f.sweep(at(TTL)).await, 1, "now");
    assert_eq!(f.bucket("key").await, None);
    f.take(&rpm("key", 1), at(TTL)).await.granted(&[59_000]);
}

pub(super) async fn every_take_puts_the_expiry_off(f: Fixture) {
    let one = rpm("key", 1);
    f.take(&one, at(0)).await.granted(&[59_000]);
    f.take(&one, at(TTL - SECOND)).await.granted(&[59_000]);
    assert_eq!(f.sweep(at(2 * TTL - SECOND - 1)).await, 0, "the second take counts");
    assert_eq!(f.sweep(at(2 * TTL - SECOND)).await, 1);
}

pub(super) async fn a_drained_bucket_is_kept_until_it_is_full(f: Fixture) {
    // Expired after a second, full after a minute.
    let hasty = LimitsInForce { ttl_ms: Some(SECOND), ..limits("rpm:60/min") };
    f.take(&ask("key", &hasty, "rpm=60"), at(0)).await.granted(&[0]);
    assert_eq!(f.sweep(at(60 * SECOND - 1)).await, 0, "forgetting it would give a token away");
    f.take(&ask("key", &hasty, "rpm=60"), at(60 * SECOND - 1)).await.refused(&[(59_999, after(1))]);
    assert_eq!(f.sweep(at(60 * SECOND)).await, 1, "full: forgetting it changes nothing");
}

pub(super) async fn debt_is_never_forgiven(f: Fixture) {
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.adjust(&rpm("key", 10_000), at(0)).await;
    for ms in [TTL, 2 * TTL, HOUR, 10_060 * SECOND - 1] {
        assert_eq!(f.sweep(at(ms)).await, 0, "after {ms} ms it is not full yet");
    }
    assert_eq!(f.balances("key", at(HOUR)).await, [-6_400_000], "the debt is still there");
    assert_eq!(f.sweep(at(10_060 * SECOND)).await, 1, "refilled");
}

/// A limit that is drained, lowered, and full again at its lower capacity.
async fn lowered(f: &Fixture) {
    let daily = f.stored(&Level::System, "rpd:100/day").await;
    f.take(&ask("key", &daily, "rpd=100"), at(0)).await.granted(&[0]);
    let lowered = f.stored(&Level::System, "rpd:1/sec:1").await;
    f.take(&ask("key", &lowered, "rpd=1"), at(SECOND)).await.refused(&[(1, after(999))]);
    f.take(&ask("key", &lowered, "rpd=1"), at(2 * SECOND)).await.granted(&[0]);
}

/// Set back to 100 it must not start with 100 out of nothing.
async fn set_back(f: &Fixture) {
    let again = f.stored(&Level::System, "rpd:100/day").await;
    f.take(&ask("key", &again, "rpd=100"), at(100 * SECOND))
        .await
        .refused(&[(1_000, after(85_536_000))]);
    assert_eq!(f.balances("key", at(100 * SECOND)).await, [1_000]);
}

pub(super) async fn a_lowered_limit_set_back_mints_nothing(f: Fixture) {
    lowered(&f).await;
    set_back(&f).await;
}

pub(super) async fn a_lowered_limit_is_kept_until_its_old_capacity_would_be_full(f: Fixture) {
    lowered(&f).await;
    // Full a second later and expired after seven.
    assert_eq!(f.sweep(at(100 * SECOND)).await, 0, "its old capacity still lacks tokens");
    set_back(&f).await;
}

pub(super) async fn a_lowered_limit_is_forgotten_once_refill_has_made_it_up(f: Fixture) {
    lowered(&f).await;
    assert_eq!(f.sweep(at(100 * SECOND)).await, 0, "not yet");
    assert_eq!(f.sweep(at(DAY)).await, 1, "a hundred tokens at one a second were enough");
}

pub(super) async fn buckets_with_limits_of_their_own_are_never_forgotten(f: Fixture) {
    for (id, source) in [
        ("a", LimitSource::Entity),
        ("b", LimitSource::EntityResource),
        ("c", LimitSource::Call),
        ("d", LimitSource::Resource),
        ("e", LimitSource::System),
        ("f", LimitSource::Builder),
    ] {
        let one = ask(id, &limits_from("rpm:60/min", source), "rpm=1");
        f.take(&one, at(0)).await.granted(&[59_000]);
    }
    assert_eq!(f.sweep(at(YEAR)).await, 4, "those whose limits come from elsewhere");
    for id in ["a", "b"] {
        assert!(f.bucket(id).await.is_some(), "{id} is configured, so somebody looks at it");
    }
}

pub(super) async fn the_source_of_the_last_take_decides(f: Fixture) {
    let take = async |id: &str, source: LimitSource| {
        let limits = f.in_force(id).await;
        assert_eq!(limits.source, source, "where {id} has its limits from");
        let answer = f.take(&ask(id, &limits, "rpm=1"), at(0)).await;
        assert!(answer.is_granted(), "there is enough for {id}");
    };
    let (gained, lost) = (entity_level("gained"), entity_level("lost"));
    f.set(&Level::System, "rpm:60/min").await;
    take("gained", LimitSource::System).await;
    f.set(&gained, "rpm:60/min").await;
    take("gained", LimitSource::Entity).await;
    f.set(&lost, "rpm:60/min").await;
    take("lost", LimitSource::Entity).await;
    f.unset(&lost).await;
    take("lost", LimitSource::System).await;
    assert_eq!(f.sweep(at(YEAR)).await, 1);
    assert!(f.bucket("gained").await.is_some(), "it has limits of its own by now");
    assert_eq!(f.bucket("lost").await, None, "it has none any more");
}

pub(super) async fn a_removed_limit_that_is_not_full_keeps_its_bucket(f: Fixture) {
    f.take(&ask("key", &f.stored(&Level::System, "slow:24/day").await, "slow=2"), at(0))
        .await
        .granted(&[22_000]);
    f.take(&ask("key", &f.stored(&Level::System, "rpm:60/min").await, "rpm=1"), at(0))
        .await
        .granted(&[59_000]);
    assert_eq!(f.sweep(at(2 * HOUR - 1)).await, 0, "dropping and re-adding a limit would mint");
    assert_eq!(f.sweep(at(2 * HOUR)).await, 1, "all limits are full");
}

pub(super) async fn a_forgotten_bucket_is_settled_as_if_full(f: Fixture) {
    for id in ["charged", "refunded"] {
        f.take(&rpm(id, 10), at(0)).await.granted(&[50_000]);
    }
    assert_eq!(f.sweep(at(TTL)).await, 2);
    assert_eq!(f.adjust(&rpm("charged", 70), at(TTL)).await, Recreated);
    assert_eq!(f.adjust(&rpm("refunded", -5), at(TTL)).await, Dropped);
    assert_eq!(f.balances("charged", at(TTL)).await, [-10_000], "charged from full");
    assert_eq!(f.bucket("refunded").await, None);
    assert_eq!(f.sweep(at(TTL + 70 * SECOND - 1)).await, 0, "the new debt is kept, too");
    assert_eq!(f.sweep(at(2 * TTL)).await, 1, "and expires like any other bucket");
}

pub(super) async fn a_forgotten_bucket_stays_disabled(f: Fixture) {
    let one = rpm("key", 1);
    f.take(&one, at(0)).await.granted(&[59_000]);
    f.flag(&entity_level("key"), Some(Disabled)).await;
    assert_eq!(f.sweep(at(TTL)).await, 1);
    f.take(&one, at(TTL)).await.disabled(0);
}

pub(super) async fn a_sweep_goes_on_where_it_stopped(f: Fixture) {
    const ROUNDS_MAX: u32 = 10_000;
    for number in 0..50 {
        f.take(&rpm(&format!("key-{number}"), 1), at(0)).await.granted(&[59_000]);
    }
    let mut forgotten = 0;
    for round in 1..=ROUNDS_MAX {
        let swept = f.store.sweep(at(TTL), 1).await.expect("a store can be swept");
        forgotten += swept.buckets;
        if swept.complete {
            assert_eq!(forgotten, 50, "complete after {round} rounds of one step");
            return;
        }
    }
    panic!(
        "expected a sweep in single steps to be complete after {ROUNDS_MAX} rounds, {forgotten} of 50 buckets are gone"
    );
}

pub(super) async fn history_is_forgotten_after_its_retention(f: Fixture) {
    f.set(&entity_level("key"), "rpm:60/min").await;
    f.take(&rpm("key", 1), at(0)).await.granted(&[59_000]);
    f.take(&rpm("key", 1), at(HOUR)).await.granted(&[59_000]);
    let count = async || {
        let usage = f.store.usage(&hourly(None, Some(GPT))).await.expect("a query");
        (usage.items.len(), f.events(&about("key")).await.len())
    };
    f.sweep(at(DAY)).await;
    assert_eq!(count().await, (2, 1), "a day later everything is still there");
    f.sweep(at(20 * YEAR)).await;
    f.sweep(at(20 * YEAR)).await;
    assert_eq!(count().await, (0, 0), "twenty years later nothing is");
}
