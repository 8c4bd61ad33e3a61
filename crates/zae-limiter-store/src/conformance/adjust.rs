//! Charging and giving back after the fact.

use zae_limiter_core::{LimitSource, Milli, Wait};

use super::fixture::{Fixture, HOUR, SECOND, after, ask, at, fails, limits, rpm};
use crate::Adjusted::{Applied, Dropped, Recreated};
use crate::StoreErrorKind::Invalid;
use crate::{Level, LimitsInForce};

pub(super) async fn a_charge_goes_into_debt(f: Fixture) {
    f.take(&rpm("key", 10), at(0)).await.granted(&[50_000]);
    assert_eq!(f.adjust(&rpm("key", 100), at(0)).await, Applied);
    assert_eq!(f.balances("key", at(0)).await, [-50_000], "a charge is never refused");
}

pub(super) async fn debt_blocks_until_it_is_refilled(f: Fixture) {
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.adjust(&rpm("key", 50), at(0)).await;
    let one = rpm("key", 1);
    f.take(&one, at(0)).await.refused(&[(-50_000, after(51_000))]);
    f.take(&one, at(51 * SECOND - 1)).await.refused(&[(999, after(1))]);
    f.take(&one, at(51 * SECOND)).await.granted(&[0]);
}

pub(super) async fn a_declared_limit_in_debt_refuses(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    f.take(&ask("key", &both, "rpm=1 tpm=0"), at(0)).await.granted(&[59_000, 1_000_000]);
    f.adjust(&ask("key", &both, "tpm=1005"), at(0)).await;
    let declares = ask("key", &both, "rpm=1 tpm=0");
    f.take(&declares, at(0)).await.refused(&[(59_000, Wait::None), (-5_000, after(300))]);
    f.take(&declares, at(300)).await.granted(&[58_300, 0]);
}

pub(super) async fn a_limit_in_debt_that_is_not_declared_does_not_refuse(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    f.take(&ask("key", &both, "rpm=1"), at(0)).await.granted(&[59_000]);
    f.adjust(&ask("key", &both, "tpm=5000"), at(0)).await;
    f.take(&ask("key", &both, "rpm=1"), at(0)).await.granted(&[58_000]);
}

pub(super) async fn a_late_charge_really_charges(f: Fixture) {
    f.take(&rpm("key", 1), at(0)).await.granted(&[59_000]);
    // The bucket was full long before the charge came: it is charged from full, and no idle time
    // pays for it.
    assert_eq!(f.adjust(&rpm("key", 30), at(HOUR)).await, Applied);
    assert_eq!(f.balances("key", at(HOUR)).await, [30_000], "capacity less the charge");
    f.take(&rpm("key", 31), at(HOUR)).await.refused(&[(30_000, after(1_000))]);
}

pub(super) async fn a_charge_is_made_on_what_has_been_refilled(f: Fixture) {
    let both = limits("rpm:60/min tpm:60/min");
    f.take(&ask("key", &both, "rpm=60 tpm=60"), at(0)).await.granted(&[0, 0]);
    f.adjust(&ask("key", &both, "rpm=4"), at(10 * SECOND)).await;
    let left = f.balances("key", at(10 * SECOND)).await;
    assert_eq!(left, [6_000, 10_000], "both limits were refilled, one was charged");
    assert_eq!(f.balances("key", at(20 * SECOND)).await, [16_000, 20_000], "and go on from there");
}

pub(super) async fn a_refund_gives_back_exactly(f: Fixture) {
    f.take(&rpm("key", 10), at(0)).await.granted(&[50_000]);
    assert_eq!(f.adjust(&rpm("key", -4), at(0)).await, Applied);
    f.take(&rpm("key", 54), at(0)).await.granted(&[0]);
}

pub(super) async fn a_refund_never_lifts_above_capacity(f: Fixture) {
    f.take(&rpm("key", 10), at(0)).await.granted(&[50_000]);
    f.adjust(&rpm("key", -20), at(0)).await;
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.take(&rpm("key", 1), at(0)).await.refused(&[(0, after(1_000))]);
}

pub(super) async fn a_refund_above_a_lowered_capacity_is_cut(f: Fixture) {
    let old = f.stored(&Level::System, "rpm:60/min").await;
    f.take(&ask("key", &old, "rpm=60"), at(0)).await.granted(&[0]);
    let new = f.stored(&Level::System, "rpm:10/min").await;
    f.take(&ask("key", &new, "rpm=1"), at(10 * SECOND)).await.granted(&[9_000]);
    f.adjust(&ask("key", &old, "rpm=-60"), at(10 * SECOND)).await;
    let left = f.balances("key", at(10 * SECOND)).await;
    assert_eq!(left, [10_000], "the capacity in force is the ceiling, not that of the receipt");
}

pub(super) async fn a_receipt_does_not_bring_old_limits_back(f: Fixture) {
    let old = f.stored(&Level::System, "rpm:60/min").await;
    f.take(&ask("key", &old, "rpm=1"), at(0)).await.granted(&[59_000]);
    let new = f.stored(&Level::System, "rpm:10/min").await;
    f.take(&ask("key", &new, "rpm=1"), at(SECOND)).await.granted(&[9_000]);
    assert_eq!(f.adjust(&ask("key", &old, "rpm=2"), at(SECOND)).await, Applied);
    assert_eq!(f.balances("key", at(HOUR)).await, [10_000], "still the new capacity");
    f.take(&ask("key", &new, "rpm=8"), at(SECOND)).await.refused(&[(7_000, after(6_000))]);
}

pub(super) async fn a_refund_to_a_missing_bucket_is_dropped(f: Fixture) {
    assert_eq!(f.adjust(&rpm("key", -5), at(0)).await, Dropped);
    assert_eq!(f.bucket("key").await, None, "a refund creates no bucket");
}

pub(super) async fn a_charge_on_a_missing_bucket_creates_it_with_the_debt(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    assert_eq!(f.adjust(&ask("key", &both, "rpm=70"), at(0)).await, Recreated);
    f.take(&ask("key", &both, "rpm=0 tpm=0"), at(0))
        .await
        .refused(&[(-10_000, after(10_000)), (1_000_000, Wait::None)]);
    assert_eq!(f.consumed("key").await, [70_000, 0], "the charge is counted");
}

pub(super) async fn a_charge_on_a_missing_bucket_goes_by_the_limits_in_force(f: Fixture) {
    let old = f.stored(&Level::System, "rpm:1000/min").await;
    f.stored(&Level::System, "rpm:10/min tpm:5/min").await;
    assert_eq!(f.adjust(&ask("key", &old, "rpm=500"), at(0)).await, Recreated);
    assert_eq!(
        f.balances("key", at(0)).await,
        [-490_000, 5_000],
        "10 less 500: under the limits of the receipt nothing would be owed"
    );
    let called = LimitsInForce::new(old.limits.to_vec(), LimitSource::Call);
    assert_eq!(f.adjust(&ask("own", &called, "rpm=500"), at(0)).await, Recreated);
    let left = f.balances("own", at(0)).await;
    assert_eq!(left, [500_000], "who brings limits along is charged under them");
    f.stored(&Level::System, "tpm:5/min").await;
    assert_eq!(f.adjust(&ask("renamed", &old, "rpm=500"), at(0)).await, Recreated);
    let left = f.balances("renamed", at(0)).await;
    assert_eq!(left, [500_000], "nor is a charge forgotten because its limit is");
}

pub(super) async fn a_refund_beside_a_charge_on_a_missing_bucket_mints_nothing(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    assert_eq!(f.adjust(&ask("key", &both, "tpm=-100 rpm=20"), at(0)).await, Recreated);
    let left = f.balances("key", at(0)).await;
    assert_eq!(left, [40_000, 1_000_000], "charged from full, and full is the most there is");
}

pub(super) async fn a_charge_reaches_a_limit_that_is_no_longer_configured(f: Fixture) {
    let both = f.stored(&Level::System, "rpm:60/min tpm:1000/min").await;
    f.take(&ask("key", &both, "rpm=10"), at(0)).await.granted(&[50_000]);
    let tpm = f.stored(&Level::System, "tpm:1000/min").await;
    f.take(&ask("key", &tpm, "tpm=1"), at(0)).await.granted(&[999_000]);
    assert_eq!(f.adjust(&ask("key", &both, "rpm=20 tpm=9"), at(0)).await, Applied);
    // Configured again, it goes on with the charge.
    let again = f.stored(&Level::System, "rpm:60/min tpm:1000/min").await;
    f.take(&ask("key", &again, "rpm=1 tpm=0"), at(0)).await.granted(&[29_000, 990_000]);
}

pub(super) async fn a_charge_reaches_a_limit_the_bucket_never_had(f: Fixture) {
    let tpm = f.stored(&Level::System, "tpm:1000/min").await;
    f.take(&ask("key", &tpm, "tpm=1"), at(0)).await.granted(&[999_000]);
    let both = f.stored(&Level::System, "rpm:60/min tpm:1000/min").await;
    assert_eq!(f.adjust(&ask("key", &both, "rpm=20"), at(0)).await, Applied);
    f.take(&ask("key", &tpm, "tpm=1"), at(0)).await.granted(&[998_000]);
    f.take(&ask("key", &both, "rpm=1"), at(0)).await.granted(&[39_000]);
}

pub(super) async fn deltas_are_independent_and_answered_in_order(f: Fixture) {
    f.take(&rpm("known", 10), at(0)).await.granted(&[50_000]);
    let corrections = [rpm("gone", -1), rpm("known", 5), rpm("new", 5), rpm("known", -2)];
    let results = f.adjust_all(&corrections, at(0)).await.into_iter();
    let found: Vec<_> = results.map(|result| result.expect("never refused")).collect();
    assert_eq!(found, [Dropped, Applied, Recreated, Applied], "one result each, in order");
    assert_eq!(f.balances("known", at(0)).await, [47_000], "two changes of one bucket both count");
    assert_eq!(f.balances("new", at(0)).await, [55_000], "the charge made the bucket");
}

pub(super) async fn a_wrong_delta_does_not_stop_the_others(f: Fixture) {
    f.take(&rpm("key", 10), at(0)).await.granted(&[50_000]);
    let mut wrong = rpm("key", 1);
    wrong.takes[0].limit = 1;
    let mut results = f.adjust_all(&[wrong, rpm("key", 5)], at(0)).await;
    assert_eq!(results.len(), 2, "one result per delta");
    assert_eq!(results.remove(1).expect("never refused"), Applied, "the second is right");
    fails(results.remove(0), Invalid);
    assert_eq!(f.balances("key", at(0)).await, [45_000], "only the right one was applied");
}

pub(super) async fn no_deltas_change_nothing(f: Fixture) {
    assert!(f.adjust_all(&[], at(0)).await.is_empty(), "no deltas, no results");
    f.take(&rpm("key", 10), at(0)).await.granted(&[50_000]);
    f.adjust(&rpm("key", 0), at(0)).await;
    f.adjust(&rpm("missing", 0), at(0)).await;
    assert_eq!(f.balances("key", at(0)).await, [50_000], "a delta of zero changes no balance");
    assert_eq!(f.consumed("key").await, [10_000], "and no counter");
    assert_eq!(f.bucket("missing").await, None, "and creates no bucket");
}

pub(super) async fn consumption_is_takes_plus_adjustments(f: Fixture) {
    f.take(&rpm("key", 10), at(0)).await.granted(&[50_000]);
    f.adjust(&rpm("key", 25), at(0)).await;
    f.take(&rpm("key", 60), at(0)).await.refused(&[(25_000, after(35_000))]);
    f.take(&rpm("key", 6), at(0)).await.granted(&[19_000]);
    f.adjust(&rpm("key", -100), at(2 * SECOND)).await;
    // The refund is cut at the capacity, the counter is not: it counts the real use.
    assert_eq!(f.consumed("key").await, [10_000 + 25_000 + 6_000 - 100_000], "the net consumption");
    assert_eq!(f.balances("key", at(2 * SECOND)).await, [60_000], "the balance");
}

pub(super) async fn an_adjustment_behind_the_clock_moves_nothing(f: Fixture) {
    f.take(&rpm("key", 60), at(10 * SECOND)).await.granted(&[0]);
    f.adjust(&rpm("key", -5), at(0)).await;
    let left = f.balances("key", at(10 * SECOND)).await;
    assert_eq!(left, [5_000], "the refund counts, the ten seconds do not count twice");
}

pub(super) async fn a_charge_that_no_counter_can_hold_is_refused_and_changes_nothing(f: Fixture) {
    let both = limits("rpm:60/min tpm:60/min");
    f.take(&ask("key", &both, "rpm=60 tpm=60"), at(0)).await.granted(&[0, 0]);
    let mut huge = ask("key", &both, "tpm=1 rpm=1");
    huge.takes[1].amount = Milli(i64::MAX - 100_000);
    let adjusted = f.adjust(&huge, at(0)).await;
    assert_eq!(adjusted, Applied, "a debt of nine thousand million million tokens");
    let before = f.bucket("key").await;
    let error = fails(f.try_adjust(&huge, at(0)).await, Invalid);
    let reason = "rpm cannot count that much more";
    assert!(error.message().contains(reason), "it says what and why: {error}");
    f.is_as_it_was("key", before.as_ref(), at(0)).await;
    let answer = f.take(&ask("key", &both, "rpm=1"), at(0)).await;
    assert!(!answer.is_granted(), "the deepest debt refuses, found {answer:?}");
    let mut largest = ask("key", &both, "rpm=1");
    largest.takes[0].amount = Milli(i64::MIN);
    // A refund that no counter can hold is refused as well; one that it can is cut to the capacity.
    let _ = f.try_adjust(&largest, at(0)).await;
    let left = f.balances("key", at(0)).await[0];
    assert!(left <= 60_000, "the largest refund lifts no balance above its capacity, found {left}");
}
