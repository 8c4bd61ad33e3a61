//! Limits that are renamed over and over, and counters that get to their end.

use crate::support::*;
use zae_limiter_core::{
    BucketState, ClosedHour, ConfigStamp, CounterFull, FOLDED, LIMITS_MAX, Limit, Milli,
    TOKENS_MAX, TimeMs, TooManyLimits, Wait, assess, fold_params,
};

fn names(bucket: &BucketState) -> Vec<&str> {
    bucket.all_limits().iter().map(|limit| limit.name.as_str()).collect()
}

/// Limits named by numbers, of a capacity of 60 that takes a day to fill.
fn numbered(from: usize, count: usize) -> Vec<Limit> {
    (from..from + count).map(|i| limit(&format!("l{i}:60/day"))).collect()
}

fn drained(from: usize, now: i64, bucket: &mut BucketState) {
    bucket.sync(&numbered(from, LIMITS_MAX), ConfigStamp(1), TimeMs(now)).expect("never too many");
    let all: Vec<_> =
        (0u8..16).map(|i| take(i, bucket.limits()[usize::from(i)].balance.0)).collect();
    grant(bucket, &all, now);
}

#[test]
fn renamed_limits_are_kept_until_there_are_too_many_and_then_folded() {
    let mut bucket = BucketState::full(&numbered(0, LIMITS_MAX), ConfigStamp(0), TimeMs(0));
    for round in 0..4 {
        drained(100 * round, 0, &mut bucket);
    }
    assert_eq!(bucket.all_limits().len(), 64, "as many as are kept");
    // Within the hour their use is not counted yet, so none can go; an hour later the nearest to
    // full do.
    bucket.roll_hour(TimeMs(HOUR_MS));
    let before: Vec<i64> = bucket.limits().iter().map(|limit| limit.balance.0).collect();
    assert_eq!(before, [0; 16]);
    drained(400, HOUR_MS, &mut bucket);
    assert_eq!(
        bucket.all_limits().len(),
        64,
        "sixteen new ones, and one in the place of seventeen"
    );
    assert!(names(&bucket).contains(&FOLDED));
    // One that was folded starts empty, where it would have had two and a half tokens; so does any
    // other.
    for back in [0, 900] {
        let mut copy = bucket.clone();
        copy.sync(&numbered(back, 1), ConfigStamp(2), TimeMs(2 * HOUR_MS)).expect("never too many");
        assert!(
            copy.limits()[0].balance.0 <= 5_000,
            "l{back} comes back with {}",
            copy.limits()[0].balance.0
        );
    }
    // One that was kept goes on from its balance, and a charge of a folded one does not start full
    // either.
    let charge = limit("l0:60/day");
    bucket.adjust(&charge, Milli(1_000), TimeMs(2 * HOUR_MS));
    let charged =
        bucket.all_limits().iter().find(|limit| limit.name.as_str() == "l0").expect("it is back");
    assert!(charged.balance.0 <= 4_000, "{}", charged.balance.0);
    // When all of them are full, time has filled what remembers them, too.
    assert!(!bucket.is_full_at(TimeMs(3 * HOUR_MS)), "a bucket that remembers is not forgotten");
    bucket.roll_hour(TimeMs(60 * HOUR_MS));
    bucket.sync(&numbered(900, 1), ConfigStamp(3), TimeMs(60 * HOUR_MS)).expect("never too many");
    assert_eq!(balances(&bucket), [60_000], "a name nobody has seen starts full again");
}

/// Folding begins with one limit too many, not before.
#[test]
fn as_many_limits_as_are_kept_are_not_folded() {
    let mut bucket = BucketState::full(&numbered(0, LIMITS_MAX), ConfigStamp(0), TimeMs(0));
    for round in 0..4 {
        drained(100 * round, HOUR_MS * i64::try_from(round).expect("a few"), &mut bucket);
    }
    assert_eq!((bucket.all_limits().len(), names(&bucket).contains(&FOLDED)), (64, false));
    drained(400, 4 * HOUR_MS, &mut bucket);
    assert!(names(&bucket).contains(&FOLDED));
}

/// 224 limits in debt, one that can be folded and sixteen new ones: the one takes its place in what
/// remembers it, so nothing is gained by folding it.
#[test]
fn what_remembers_folded_limits_counts_as_a_limit() {
    let mut bucket = BucketState::full(&numbered(0, LIMITS_MAX), ConfigStamp(0), TimeMs(0));
    for round in 0..14 {
        let limits = numbered(100 * round, LIMITS_MAX);
        bucket.sync(&limits, ConfigStamp(1), TimeMs(0)).expect("at most 224");
        for limit in &limits {
            bucket.adjust(limit, Milli(90_000), TimeMs(0));
        }
    }
    bucket.sync(&numbered(9_000, 1), ConfigStamp(1), TimeMs(0)).expect("at most 225");
    grant(&mut bucket, &[take(0, 30_000)], 0);
    bucket.roll_hour(TimeMs(HOUR_MS));
    let change = bucket.sync(&numbered(9_100, LIMITS_MAX), ConfigStamp(1), TimeMs(HOUR_MS));
    assert_eq!(change, Err(TooManyLimits { count: 241 }));
}

/// A drained limit of 60 a day that was lowered to 10 a day lacks 10 and hides 50: it is full in
/// six days, and goes after limits that are full tomorrow.
#[test]
fn a_gap_counts_for_who_is_folded_first() {
    let mut bucket = full(&["g:60/day"]);
    grant(&mut bucket, &[take(0, 60_000)], 0);
    bucket.sync(&[limit("g:10/day")], ConfigStamp(1), TimeMs(0)).expect("one limit");
    for round in 0..5 {
        drained(100 * round, HOUR_MS * i64::try_from(round).expect("a few"), &mut bucket);
    }
    assert!(names(&bucket).contains(&FOLDED), "others have gone");
    assert!(names(&bucket).contains(&"g"));
}

#[test]
fn the_longest_time_to_remember_is_that_of_the_largest_limit() {
    assert_eq!(fold_params(i64::MAX).capacity_milli, MILLI_MAX);
    assert_eq!(fold_params(0).capacity_milli, 1);
}

/// The nearest to full go first; one that owes does not go, however near it is.
#[test]
fn a_limit_in_debt_is_not_folded() {
    let debtor = limit("debtor:1/hour");
    let mut bucket = full(&["debtor:1/hour"]);
    bucket.adjust(&debtor, Milli(2_500), TimeMs(0));
    for round in 0..4 {
        drained(100 * round, 0, &mut bucket);
    }
    bucket.roll_hour(TimeMs(HOUR_MS));
    drained(400, HOUR_MS, &mut bucket);
    assert!(names(&bucket).contains(&FOLDED), "others have gone");
    let owing =
        bucket.all_limits().iter().find(|limit| limit.name.as_str() == "debtor").expect("it stays");
    assert_eq!(owing.balance, Milli(-500), "two and a half used of one, and one regained");
}

/// What an open hour has used of a limit is in no history yet: the limit stays until it is.
#[test]
fn a_limit_that_was_used_within_the_hour_is_not_folded() {
    let mut bucket = BucketState::full(&numbered(0, LIMITS_MAX), ConfigStamp(0), TimeMs(0));
    for round in 0..5 {
        drained(100 * round, 0, &mut bucket);
    }
    assert_eq!((bucket.all_limits().len(), names(&bucket).contains(&FOLDED)), (80, false));
    let closed = bucket.roll_hour(TimeMs(HOUR_MS)).expect("an hour with usage");
    assert_eq!(
        (closed.used.len(), used(&closed)),
        (80, 80 * 60_000),
        "every one of them is counted"
    );
}

#[test]
fn a_reset_fills_what_remembers_others_and_does_not_speak_of_it() {
    let mut bucket = BucketState::full(&numbered(0, LIMITS_MAX), ConfigStamp(0), TimeMs(0));
    for round in 0..6 {
        drained(100 * round, HOUR_MS * i64::try_from(round).expect("a few"), &mut bucket);
    }
    assert!(names(&bucket).contains(&FOLDED));
    let restored = bucket.reset(None, TimeMs(6 * HOUR_MS));
    assert!(restored.iter().all(|(name, _)| name.as_str() != FOLDED));
    bucket.sync(&numbered(0, 1), ConfigStamp(9), TimeMs(6 * HOUR_MS)).expect("never too many");
    assert_eq!(bucket.limits()[0].balance, Milli(60_000), "forgiven is forgiven");
}

#[test]
fn only_limits_in_debt_can_be_too_many_and_a_refused_change_changes_nothing() {
    let mut bucket = BucketState::full(&numbered(0, LIMITS_MAX), ConfigStamp(0), TimeMs(0));
    let mut refused = None;
    for round in 0..20 {
        let before = bucket.clone();
        match bucket.sync(&numbered(100 * round, LIMITS_MAX), ConfigStamp(1), TimeMs(0)) {
            Ok(()) => numbered(100 * round, LIMITS_MAX)
                .iter()
                .for_each(|limit| drop(bucket.adjust(limit, Milli(90_000), TimeMs(0)))),
            Err(TooManyLimits { count }) => {
                assert_eq!(bucket, before);
                refused = Some((round, count));
                break;
            }
        }
    }
    assert_eq!(refused, Some((15, 256)), "240 are carried, and no more");
}

/// What one hour has used of the limit `x`.
fn used(hour: &ClosedHour) -> i64 {
    hour.used.iter().map(|(_, used)| used.0).sum()
}

#[test]
fn a_counter_starts_anew_before_it_overflows_and_every_hour_is_exact() {
    let most = Milli::from_tokens(TOKENS_MAX);
    let x = limit("x:60/min");
    let mut bucket = full(&["x:60/min"]);
    for hour in 1..30 {
        let now = TimeMs(hour * HOUR_MS);
        bucket.reset(None, now);
        bucket.check_adjust(&x, most, now).expect("once an hour always fits");
        let closed = bucket.adjust(&x, most, now);
        assert_eq!(closed.map(|hour| used(&hour)), (hour > 1).then_some(most.0), "the hour before");
        assert_eq!(used(&bucket.open_hour()), most.0);
        assert_eq!(
            bucket.check_adjust(&x, Milli(-most.0), now),
            Ok(()),
            "what was charged can be given back"
        );
    }
    assert!(bucket.limits()[0].consumed.0 > 0, "a counter, not the end of the numbers");
}

#[test]
fn a_counter_that_was_stored_at_its_end_counts_again() {
    let mut stored = state(limit("x:60/min").params(), 60_000, 0);
    (stored.consumed, stored.hour_base) = (Milli(i64::MAX), Milli(i64::MAX));
    let mut bucket = bucket_of(stored, 0);
    grant(&mut bucket, &[take(0, 7_000)], 0);
    assert_eq!(used(&bucket.open_hour()), 7_000);
}

#[test]
fn a_charge_beyond_the_end_of_an_hour_or_a_debt_is_told_and_changes_nothing() {
    let (x, now) = (limit("x:60/min"), TimeMs(0));
    let full_counter = || Err(CounterFull { limit: "x".parse().expect("a valid name") });
    let mut bucket = full(&["x:60/min"]);
    bucket.adjust(&x, Milli(i64::MAX), now);
    assert_eq!(
        bucket.check_adjust(&x, Milli(1), now),
        full_counter(),
        "the hour has counted all it can"
    );
    assert_eq!(
        bucket.check_adjust(&x, Milli(1), TimeMs(HOUR_MS)),
        Ok(()),
        "the next one counts from zero, and refill paid a little"
    );
    assert_eq!(
        bucket.check_adjust(&x, Milli(i64::MAX), TimeMs(HOUR_MS)),
        full_counter(),
        "which could count that, but no debt is as deep"
    );
    bucket.adjust(&x, Milli(200_000), TimeMs(HOUR_MS));
    assert_eq!(
        bucket.check_adjust(&x, Milli(i64::MAX), TimeMs(HOUR_MS)),
        full_counter(),
        "a deeper debt than there is"
    );
    bucket.reset(None, TimeMs(HOUR_MS));
    assert_eq!(
        bucket.check_adjust(&x, Milli(i64::MAX - 200_000), TimeMs(HOUR_MS)),
        Ok(()),
        "a reset makes room"
    );
}

#[test]
fn a_take_that_an_hour_cannot_count_waits_for_the_next() {
    let x = limit("x:1000000000000000/sec");
    let mut bucket = BucketState::full(std::slice::from_ref(&x), ConfigStamp(0), TimeMs(0));
    let most = Milli::from_tokens(TOKENS_MAX).0;
    for second in 0..9 {
        grant(&mut bucket, &[take(0, most)], second * 1_000);
    }
    let wait =
        |now: i64| assess([(&bucket, &[take(0, most)][..])].into_iter(), TimeMs(now))[0].wait;
    let Wait::After(told) = wait(10_000) else {
        panic!("the hour has counted 9 · 10^15, and cannot count one more")
    };
    assert_eq!(told.get(), 3_590_000);
    assert_eq!(wait(HOUR_MS - 1), Wait::After(zae_limiter_core::WaitMs::MIN), "refused until then");
    assert_eq!(wait(HOUR_MS), Wait::None, "granted then");
}
