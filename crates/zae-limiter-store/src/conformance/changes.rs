//! How changed limits reach a bucket that is already there: at once, and without minting.

use zae_limiter_core::{FOLDED, LimitSource, Milli, Wait};

use super::fixture::{
    Ask, DAY, Fixture, HOUR, SECOND, after, ask, at, entity_level, fails, limits_from, words,
};
use crate::StoreErrorKind::Invalid;
use crate::{Level, LimitsInForce};

// A case that asserts a wait, or a balance later on, changes the limits at a later instant than
// that of the last take: a store may let every change of limits move the refill instant, by a
// millisecond if time has not.

/// System limits, stored and read just now.
async fn system(f: &Fixture, text: &str) -> LimitsInForce {
    f.stored(&Level::System, text).await
}

/// Limits given with the call.
fn call(text: &str) -> LimitsInForce {
    limits_from(text, LimitSource::Call)
}

pub(super) async fn a_lowered_limit_cuts_the_balance_and_binds(f: Fixture) {
    f.take(&ask("key", &system(&f, "rpm:100/min").await, "rpm=10"), at(0)).await.granted(&[90_000]);
    let lower = system(&f, "rpm:50/min").await;
    f.take(&ask("key", &lower, "rpm=1"), at(SECOND)).await.granted(&[49_000]);
    f.take(&ask("key", &lower, "rpm=51"), at(HOUR)).await.refused(&[(50_000, Wait::Never)]);
    f.take(&ask("key", &lower, "rpm=50"), at(SECOND)).await.refused(&[(49_000, after(1_200))]);
}

pub(super) async fn a_raised_limit_mints_nothing(f: Fixture) {
    f.take(&ask("key", &system(&f, "rpm:60/min").await, "rpm=50"), at(0)).await.granted(&[10_000]);
    let higher = system(&f, "rpm:600/min").await;
    f.take(&ask("key", &higher, "rpm=12"), at(SECOND)).await.refused(&[(11_000, after(100))]);
    f.take(&ask("key", &higher, "rpm=11"), at(SECOND)).await.granted(&[0]);
}

pub(super) async fn a_full_bucket_gains_nothing_from_a_raised_limit(f: Fixture) {
    f.take(&ask("key", &system(&f, "rpm:60/min").await, "rpm=0"), at(0)).await.granted(&[60_000]);
    let higher = system(&f, "rpm:600/min").await;
    f.take(&ask("key", &higher, "rpm=61"), at(SECOND)).await.refused(&[(60_000, after(100))]);
    f.take(&ask("key", &higher, "rpm=61"), at(SECOND + 100)).await.granted(&[0]);
}

/// The trap: a refused request that does not store the new rate lets the old one go on for as long
/// as all are refused.
pub(super) async fn a_raised_rate_counts_from_the_change_although_all_requests_are_refused(
    f: Fixture,
) {
    f.take(&ask("key", &system(&f, "rpm:60/min").await, "rpm=60"), at(0)).await.granted(&[0]);
    let want = ask("key", &system(&f, "rpm:600/min").await, "rpm=500");
    f.take(&want, at(10 * SECOND)).await.refused(&[(10_000, after(49_000))]);
    f.take(&want, at(20 * SECOND)).await.refused(&[(110_000, after(39_000))]);
    f.take(&want, at(59 * SECOND - 1)).await.refused(&[(499_990, after(1))]);
    f.take(&want, at(59 * SECOND)).await.granted(&[0]);
}

pub(super) async fn a_lowered_rate_counts_from_the_change_although_all_requests_are_refused(
    f: Fixture,
) {
    f.take(&ask("key", &system(&f, "rpm:600/min").await, "rpm=600"), at(0)).await.granted(&[0]);
    let want = ask("key", &system(&f, "rpm:60/min:600").await, "rpm=150");
    f.take(&want, at(10 * SECOND)).await.refused(&[(100_000, after(50_000))]);
    f.take(&want, at(20 * SECOND)).await.refused(&[(110_000, after(40_000))]);
    f.take(&want, at(60 * SECOND)).await.granted(&[0]);
}

pub(super) async fn a_peek_reckons_with_new_limits_and_does_not_store_them(f: Fixture) {
    let old = system(&f, "rpm:100/min").await;
    f.take(&ask("key", &old, "rpm=10"), at(0)).await.granted(&[90_000]);
    let before = f.bucket("key").await;
    let lower = ask("key", &system(&f, "rpm:50/min").await, "rpm=51");
    f.peek_fresh(&lower, at(0)).await.refused(&[(50_000, Wait::Never)]);
    assert_eq!(f.bucket("key").await, before, "a peek leaves the stored bucket as it was");
    f.take(&ask("key", &old, "rpm=90"), at(0)).await.granted(&[0]);
}

pub(super) async fn an_older_read_with_other_limits_is_stale(f: Fixture) {
    let old = ask("key", &system(&f, "rpm:100/min").await, "rpm=1");
    f.take(&ask("key", &system(&f, "rpm:10/min").await, "rpm=1"), at(0)).await.granted(&[9_000]);
    let before = f.bucket("key").await;
    f.take(&old, at(SECOND)).await.stale(0);
    assert_eq!(f.bucket("key").await, before, "old limits cannot be pushed back");
    // It stays so for every further take: the configuration has not changed since.
    f.take(&old, at(SECOND + 500)).await.stale(0);
    assert_eq!(f.bucket("key").await, before, "old limits cannot be pushed back");
}

pub(super) async fn a_peek_with_an_older_read_is_stale(f: Fixture) {
    let old = ask("key", &system(&f, "rpm:100/min").await, "rpm=1");
    f.take(&ask("key", &system(&f, "rpm:10/min").await, "rpm=1"), at(0)).await.granted(&[9_000]);
    let before = f.bucket("key").await;
    f.peek(&[old], at(SECOND)).await.stale(0);
    assert_eq!(f.bucket("key").await, before, "a peek leaves the stored bucket as it was");
}

pub(super) async fn an_older_read_with_the_same_limits_is_good_enough(f: Fixture) {
    let old = system(&f, "rpm:10/min").await;
    f.take(&ask("key", &system(&f, "rpm:10/min").await, "rpm=1"), at(0)).await.granted(&[9_000]);
    f.take(&ask("key", &old, "rpm=1"), at(0)).await.granted(&[8_000]);
}

pub(super) async fn a_read_as_fresh_with_other_limits_changes_the_bucket(f: Fixture) {
    // Two callers with defaults of their own who have read the same configuration: neither is older
    // than the other.
    let ten = ask("key", &f.unstored("rpm:10/min", LimitSource::Builder).await, "rpm=1");
    let five = ask("key", &f.unstored("rpm:5/min", LimitSource::Builder).await, "rpm=1");
    f.take_fresh(&ten, at(0)).await.granted(&[9_000]);
    f.take_fresh(&five, at(0)).await.granted(&[4_000]);
    f.take_fresh(&ten, at(0)).await.granted(&[3_000]);
    let left = f.balances("key", at(HOUR)).await;
    assert_eq!(left, [10_000], "the limits of the last one are in force");
}

pub(super) async fn the_stamps_a_store_hands_out_order_its_reads(f: Fixture) {
    f.set(&Level::System, "rpm:100/min").await;
    let old = f.in_force("key").await;
    f.take(&ask("key", &old, "rpm=1"), at(0)).await.granted(&[99_000]);
    f.set(&Level::System, "rpm:10/min").await;
    let new = f.in_force("key").await;
    f.take(&ask("key", &old, "rpm=1"), at(0)).await.granted(&[98_000]);
    f.take(&ask("key", &new, "rpm=1"), at(0)).await.granted(&[9_000]);
    f.take(&ask("key", &old, "rpm=1"), at(0)).await.stale(0);
}

pub(super) async fn a_stamp_is_fresh_for_every_level(f: Fixture) {
    // The bucket learnt from the system level; a level set later must be able to rewrite it, and a
    // deleted one too.
    f.set(&Level::System, "rpm:100/min").await;
    f.take(&ask("key", &f.in_force("key").await, "rpm=1"), at(0)).await.granted(&[99_000]);
    let own = entity_level("key");
    f.set(&own, "rpm:20/min").await;
    f.take(&ask("key", &f.in_force("key").await, "rpm=1"), at(0)).await.granted(&[19_000]);
    f.unset(&own).await;
    f.take(&ask("key", &f.in_force("key").await, "rpm=1"), at(0)).await.granted(&[18_000]);
    let left = f.balances("key", at(HOUR)).await;
    assert_eq!(left, [100_000], "the system's limit is in force again");
}

pub(super) async fn limits_given_with_the_call_always_count(f: Fixture) {
    let read = system(&f, "rpm:100/min").await;
    f.take(&ask("key", &read, "rpm=1"), at(0)).await.granted(&[99_000]);
    f.take(&ask("key", &call("rpm:10/min"), "rpm=1"), at(0)).await.granted(&[9_000]);
    f.take(&ask("key", &read, "rpm=1"), at(0)).await.granted(&[8_000]);
}

pub(super) async fn alternating_overrides_never_gain(f: Fixture) {
    // By the day, so that the milliseconds between the takes bring nothing back.
    let (large, small) = (call("rpd:100/day"), call("rpd:10/day"));
    f.take(&ask("key", &large, "rpd=1"), at(0)).await.granted(&[99_000]);
    f.take(&ask("key", &small, "rpd=1"), at(1)).await.granted(&[9_000]);
    f.take(&ask("key", &large, "rpd=1"), at(2)).await.granted(&[8_000]);
    for left in (0..8).rev() {
        let limits = if left % 2 == 0 { &small } else { &large };
        f.take(&ask("key", limits, "rpd=1"), at(10 - left)).await.granted(&[left * 1_000]);
    }
    f.take(&ask("key", &large, "rpd=1"), at(11)).await.refused(&[(0, after(864_000))]);
}

pub(super) async fn a_removed_limit_resumes_when_it_comes_back(f: Fixture) {
    f.take(&ask("key", &system(&f, "rpm:60/min tpm:100/min").await, "rpm=60"), at(0))
        .await
        .granted(&[0]);
    let tpm = ask("key", &system(&f, "tpm:100/min").await, "tpm=1");
    f.take(&tpm, at(SECOND)).await.granted(&[99_000]);
    f.take(&tpm, at(5 * SECOND)).await.granted(&[99_000]);
    // Dropping a limit and adding it again mints nothing; the refill of the time between is there.
    let both = system(&f, "rpm:60/min tpm:100/min").await;
    f.take(&ask("key", &both, "rpm=11"), at(10 * SECOND)).await.refused(&[(10_000, after(1_000))]);
}

pub(super) async fn a_removed_limit_in_debt_no_longer_refuses(f: Fixture) {
    let both = system(&f, "rpm:60/min tpm:100/min").await;
    f.take(&ask("key", &both, "rpm=60"), at(0)).await.granted(&[0]);
    f.adjust(&ask("key", &both, "rpm=60"), at(0)).await;
    f.take(&ask("key", &system(&f, "tpm:100/min").await, "tpm=100"), at(0)).await.granted(&[0]);
}

pub(super) async fn a_removed_limit_is_forgotten_once_it_is_full(f: Fixture) {
    f.take(&ask("key", &system(&f, "rpm:60/min tpm:100/min").await, "rpm=60"), at(0))
        .await
        .granted(&[0]);
    let tpm = system(&f, "tpm:100/min").await;
    f.take(&ask("key", &tpm, "tpm=1"), at(0)).await.granted(&[99_000]);
    assert_eq!(f.balances("key", at(0)).await.len(), 2, "the empty one is kept");
    f.take(&ask("key", &tpm, "tpm=1"), at(2 * HOUR)).await.granted(&[99_000]);
    assert_eq!(f.balances("key", at(2 * HOUR)).await, [99_000], "the full one is not");
    f.take(&ask("key", &system(&f, "rpm:60/min tpm:100/min").await, "rpm=60"), at(2 * HOUR))
        .await
        .granted(&[0]);
}

pub(super) async fn a_limit_never_seen_before_starts_full(f: Fixture) {
    f.take(&ask("key", &system(&f, "rpm:60/min").await, "rpm=60"), at(0)).await.granted(&[0]);
    let both = system(&f, "rpm:60/min tpm:100/min").await;
    f.take(&ask("key", &both, "tpm=10"), at(SECOND)).await.granted(&[90_000]);
    f.take(&ask("key", &both, "rpm=2 tpm=10"), at(SECOND))
        .await
        .refused(&[(1_000, after(1_000)), (90_000, Wait::None)]);
}

pub(super) async fn limits_in_another_order_keep_their_balances(f: Fixture) {
    f.take(&ask("key", &system(&f, "rpm:60/min tpm:100/min").await, "rpm=10 tpm=20"), at(0))
        .await
        .granted(&[50_000, 80_000]);
    let turned = system(&f, "tpm:100/min rpm:60/min").await;
    f.take(&ask("key", &turned, "tpm=1 rpm=1"), at(0)).await.granted(&[79_000, 49_000]);
}

pub(super) async fn a_remainder_does_not_pay_at_another_rate(f: Fixture) {
    // One token in 7000 seconds, then one in 7: the old remainder, read at the new rate, would be
    // worth 999 millitokens.
    f.take(&ask("key", &system(&f, "x:1/7000sec").await, "x=1"), at(0)).await.granted(&[0]);
    let fast = ask("key", &system(&f, "x:1/7sec").await, "x=0");
    f.take(&fast, at(6_999)).await.granted(&[0]);
    f.take(&fast, at(7_005)).await.granted(&[0]);
    f.take(&fast, at(7_006)).await.granted(&[1]);
}

pub(super) async fn a_remainder_outlives_a_change_of_capacity(f: Fixture) {
    f.take(&ask("key", &system(&f, "x:1/7sec:1").await, "x=1"), at(0)).await.granted(&[0]);
    let larger = ask("key", &system(&f, "x:1/7sec:5").await, "x=0");
    f.take(&larger, at(6)).await.granted(&[0]);
    f.take(&larger, at(7)).await.granted(&[1]);
}

/// `count` limits of ten a day, named from the number `first` on, and a take of one from each.
async fn renamed(f: &Fixture, first: usize, count: usize) -> Ask {
    let names = first..first + count;
    let limits = system(f, &words(names.clone(), |number| format!("l{number}:10/day"))).await;
    ask("key", &limits, &words(names, |number| format!("l{number}=1")))
}

pub(super) async fn renaming_every_limit_locks_nobody_out(f: Fixture) {
    f.take(&renamed(&f, 0, 9).await, at(0)).await.granted(&[9_000; 9]);
    // Nine more that are not full would make eighteen.
    f.take(&renamed(&f, 100, 9).await, at(0)).await.granted(&[9_000; 9]);
    f.take(&renamed(&f, 100, 9).await, at(1_000)).await.granted(&[8_000; 9]);
}

pub(super) async fn renaming_over_and_over_is_never_an_error_and_mints_nothing(f: Fixture) {
    let mut granted = 0;
    for round in 0..8 {
        for _ in 0..12 {
            let answer = f.take(&renamed(&f, 100 * round, 16).await, at(0)).await;
            granted += i64::from(answer.is_granted());
        }
    }
    assert!(granted >= 10, "the first names are granted what they have, {granted}");
    // The names that come back have no more than they had.
    for round in 0..8 {
        let back = renamed(&f, 100 * round, 16).await;
        assert!(
            !f.take(&back, at(1_000)).await.is_granted(),
            "names {round} had taken all they had"
        );
    }
    // A day later everything is as if it were new.
    f.take(&renamed(&f, 0, 16).await, at(2 * DAY)).await.granted(&[9_000; 16]);
    f.take(&renamed(&f, 5_000, 16).await, at(4 * DAY)).await.granted(&[9_000; 16]);
}

pub(super) async fn a_limit_in_debt_keeps_it_however_often_others_are_renamed(f: Fixture) {
    // It will be full before all others, and is not given up for that.
    let debtor = system(&f, "debtor:10/min").await;
    f.take(&ask("key", &debtor, "debtor=10"), at(0)).await.granted(&[0]);
    f.adjust(&ask("key", &debtor, "debtor=15"), at(0)).await;
    for round in 0..8 {
        f.take(&renamed(&f, 100 * round, 12).await, at(0)).await;
    }
    let debtor = system(&f, "debtor:10/min").await;
    let owing = f.take(&ask("key", &debtor, "debtor=1"), at(0)).await;
    assert_eq!(owing.reports()[0].balance, Milli(-15_000), "what it owes is not forgotten");
}

pub(super) async fn the_name_of_what_is_folded_is_refused(f: Fixture) {
    fails(f.try_set(&Level::System, &format!("{FOLDED}:5/min"), None).await, Invalid);
}

pub(super) async fn names_that_are_full_again_make_room(f: Fixture) {
    let sixteen = system(&f, &words(1..=16, |number| format!("l{number}:5/min"))).await;
    let one_each = ask("key", &sixteen, &words(1..=16, |number| format!("l{number}=1")));
    f.take(&one_each, at(0)).await.granted(&[4_000; 16]);
    // Full an hour later: a bucket must not be stuck with names that are no longer in use.
    f.take(&ask("key", &system(&f, "other:5/min").await, "other=1"), at(2 * HOUR))
        .await
        .granted(&[4_000]);
}

pub(super) async fn a_change_never_gains_over_time(f: Fixture) {
    // Limits that change every second, and a caller who takes all there is: never more than the
    // largest capacity and rate.
    let mut granted = 0;
    for step in 0..120 {
        let limits =
            system(&f, if step % 2 == 0 { "rpm:60/min:30" } else { "rpm:30/min:60" }).await;
        let now = at(step * SECOND);
        for _ in 0..60 {
            granted += i64::from(f.take(&ask("key", &limits, "rpm=1"), now).await.is_granted());
        }
    }
    // Thirty to begin with (the first capacity), then 60 and 30 a minute in turns.
    assert_eq!(granted, 30 + 60 + 29, "two minutes of changes");
}

pub(super) async fn limits_with_and_without_a_name_share_nothing(f: Fixture) {
    // Two callers with different overrides: the names only one of them has are not charged by the
    // other.
    f.take(&ask("key", &call("a:10/min"), "a=4"), at(0)).await.granted(&[6_000]);
    f.take(&ask("key", &call("b:10/min"), "b=3"), at(0)).await.granted(&[7_000]);
    f.take(&ask("key", &call("a:10/min"), "a=1"), at(0)).await.granted(&[5_000]);
    f.take(&ask("key", &call("b:10/min a:10/min"), "a=0 b=0"), at(0))
        .await
        .granted(&[5_000, 7_000]);
}
