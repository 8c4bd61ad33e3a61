//! What time adds to a bucket: exactly, at every size of number, and never more than the capacity.

use crate::support::*;
use proptest::prelude::*;
use zae_limiter_core::{
    BucketState, CLOCK_BACK_MAX_MS, ConfigStamp, LimitParams, LimitState, Milli, TimeMs,
};

/// One row of the golden vectors of the Python package 0.17: balance, refill instant, now,
/// capacity, amount, period; then the balance both products agree on, its refill instant, and our
/// remainder.
struct Golden {
    before: (i64, i64, i64),
    params: (i64, i64, i64),
    balance: i64,
    python_refilled_at: i64,
    remainder: i64,
}

fn check_golden(row: &Golden) {
    let (balance, refilled_at, now) = row.before;
    let (capacity_milli, refill_milli, period_ms) = row.params;
    let params = LimitParams { capacity_milli, refill_milli, period_ms };
    let mut bucket = bucket_of(state(params, balance, 0), refilled_at);
    bucket.refill(TimeMs(now));
    let limit = &bucket.limits()[0];
    assert_eq!(
        (limit.balance.0, limit.remainder),
        (row.balance, row.remainder),
        "{:?}",
        row.before
    );
    // Where the Python product leaves its refill instant behind to remember a fraction, ours moves
    // and keeps the remainder. Both mean the same point in time: what is left of the remainder is
    // what the instants differ by.
    assert_eq!(bucket.refilled_at.0, now.max(refilled_at), "{:?}", row.before);
    let behind_ms = bucket.refilled_at.0 - row.python_refilled_at;
    assert_eq!(
        i128::from(behind_ms) * i128::from(refill_milli),
        i128::from(row.remainder),
        "{:?}",
        row.before
    );
}

#[test]
fn golden_refills_of_the_python_product() {
    let (minute, day, odd) =
        ((60_000, 60_000, 60_000), (10_000, 10_000, DAY_MS), (1_000_000, 333_000, 1_000));
    for (before, params, balance, python_refilled_at, remainder) in [
        ((0, 0, 1_000), minute, 1_000, 1_000, 0),
        ((0, 0, 999), minute, 999, 999, 0),
        ((0, 0, 1), day, 0, 0, 10_000),
        ((0, 0, 8_640), day, 1, 8_640, 0),
        ((0, 0, 17_279), day, 1, 8_640, 86_390_000),
        ((59_000, 0, 60_000), minute, 60_000, 60_000, 0),
        ((-5_000, 0, 3_000), minute, -2_000, 3_000, 0),
        ((70_000, 0, 0), minute, 60_000, 0, 0),
        ((70_000, 5_000, 1_000), minute, 60_000, 5_000, 0),
        ((0, 0, 100), odd, 33_300, 100, 0),
    ] {
        check_golden(&Golden { before, params, balance, python_refilled_at, remainder });
    }
}

#[test]
fn a_slow_limit_beside_a_fast_one_touched_every_second_refills_exactly() {
    let mut bucket = full(&["rpd:10/day", "rps:100/sec"]);
    grant(&mut bucket, &[take(0, 10_000), take(1, 100_000)], 0);
    for second in 1..=86_400 {
        grant(&mut bucket, &[take(1, 100_000)], second * 1_000);
        assert_eq!(balances(&bucket), [second * 10_000 / 86_400, 0], "after {second} s");
    }
    assert_eq!(balances(&bucket)[0], 10_000);
}

#[test]
fn the_remainder_survives_a_touch_too_short_to_pay_anything() {
    // A third of a millitoken per millisecond.
    let params = LimitParams { capacity_milli: 1_000, refill_milli: 1, period_ms: 3 };
    let mut bucket = bucket_of(state(params, 0, 0), 0);
    for (now, expected) in [
        (1, (0, 1)),
        (2, (0, 2)),
        (3, (1, 0)),
        (4, (1, 1)),
        (3_000, (1_000, 0)),
        (3_001, (1_000, 0)),
    ] {
        bucket.refill(TimeMs(now));
        assert_eq!(
            (bucket.limits()[0].balance.0, bucket.limits()[0].remainder),
            expected,
            "at {now} ms"
        );
    }
}

#[test]
fn a_full_limit_keeps_no_fraction() {
    let params = LimitParams { capacity_milli: 10, refill_milli: 7, period_ms: 10 };
    let mut bucket = bucket_of(state(params, 9, 0), 0);
    // 1.4 due and room for 1: full, and the rest is gone.
    bucket.refill(TimeMs(2));
    assert_eq!((bucket.limits()[0].balance.0, bucket.limits()[0].remainder), (10, 0));
    grant(&mut bucket, &[take(0, 10)], 2);
    bucket.refill(TimeMs(3));
    assert_eq!((bucket.limits()[0].balance.0, bucket.limits()[0].remainder), (0, 7));
}

#[test]
fn a_damaged_row_neither_panics_nor_grants() {
    let sane = LimitParams { capacity_milli: 10, refill_milli: 10, period_ms: 10 };
    for (params, balance, remainder) in [
        (LimitParams { period_ms: 0, ..sane }, 0, 0),
        (LimitParams { period_ms: -10, ..sane }, 0, 0),
        (LimitParams { refill_milli: 0, ..sane }, 0, 0),
        (LimitParams { refill_milli: -10, ..sane }, 0, 0),
        (LimitParams { refill_milli: i64::MIN, period_ms: i64::MIN, ..sane }, i64::MIN, i64::MIN),
    ] {
        let mut bucket = bucket_of(state(params, balance, remainder), 0);
        bucket.refill(TimeMs(1_000));
        assert_eq!(bucket.limits()[0].balance.0, balance, "{params:?}");
        assert!(!bucket.is_full_at(TimeMs(i64::MAX)));
    }
    for (balance, remainder, expected) in
        [(11, 0, (10, 0)), (10, 5, (10, 0)), (9, 10, (9, 0)), (9, -1, (9, 0)), (9, 9, (9, 9))]
    {
        let bucket = bucket_of(state(sane, balance, remainder), 0);
        assert_eq!(
            (bucket.limits()[0].balance.0, bucket.limits()[0].remainder),
            expected,
            "{balance} {remainder}"
        );
    }
}

/// What refill adds may be more than an `i64` holds although the balance is not yet full: the
/// deepest debt there is.
#[test]
fn the_deepest_debt_is_paid_back_exactly() {
    let params = LimitParams { capacity_milli: MILLI_MAX, refill_milli: MILLI_MAX, period_ms: 1 };
    let mut bucket = bucket_of(state(params, i64::MIN, 0), 0);
    for (now, balance) in [
        (9, i64::MIN + 9 * MILLI_MAX),
        (10, (i64::MIN + 9 * MILLI_MAX) + MILLI_MAX),
        (11, MILLI_MAX),
    ] {
        bucket.refill(TimeMs(now));
        assert_eq!(balances(&bucket), [balance], "touched all along, at {now} ms");
        let mut at_once = bucket_of(state(params, i64::MIN, 0), 0);
        at_once.refill(TimeMs(now));
        assert_eq!(balances(&at_once), [balance], "at once, at {now} ms");
    }
}

proptest! {
    /// Invariant 4: however often and whenever a bucket is touched, it gains what one refill at the
    /// end would.
    #[test]
    fn no_refill_is_lost(states in prop::collection::vec(any_state(), 1..4), gaps in prop::collection::vec(up_to(DAY_MS), 1..20)) {
        let start = 1_700_000_000_000;
        let mut once = BucketState::restore(states.into(), 1, TimeMs(start), ConfigStamp(0));
        let mut ideals: Vec<Ideal> = once.all_limits().iter().map(|limit| Ideal::of(limit, start)).collect();
        let mut often = once.clone();
        let mut now = start;
        for gap in gaps {
            now += gap;
            often.refill(TimeMs(now));
        }
        once.refill(TimeMs(now));
        // A bucket that filled up on the way is the same too: overflow is gone either way.
        prop_assert_eq!(&often, &once);
        for (limit, ideal) in once.all_limits().iter().zip(&mut ideals) {
            ideal.advance(now);
            prop_assert_eq!((limit.balance.0, limit.remainder), ideal.parts());
        }
    }

    #[test]
    fn never_above_capacity_and_never_down(limit in any_state(), elapsed in prop_oneof![up_to(i64::MAX), Just(i64::MAX)]) {
        let mut bucket = bucket_of(limit, 0);
        let before = bucket.limits()[0].balance;
        bucket.refill(TimeMs(elapsed));
        let LimitState { params, balance, remainder, .. } = bucket.limits()[0];
        prop_assert!(before <= balance && balance.0 <= params.capacity_milli);
        prop_assert!((0..params.period_ms).contains(&remainder));
        prop_assert!(remainder == 0 || balance.0 < params.capacity_milli);
        prop_assert_eq!(bucket.is_full_at(TimeMs(elapsed)), balance.0 == params.capacity_milli);
    }

    #[test]
    fn a_clock_that_goes_back_adds_nothing_and_moves_nothing(limit in any_state(), at in any::<i64>(), back in 0..=CLOCK_BACK_MAX_MS) {
        let mut bucket = bucket_of(limit, at);
        let before = bucket.clone();
        bucket.refill(TimeMs(at.saturating_sub(back)));
        prop_assert_eq!(&bucket, &before);
        // A charge by the slow clock counts, and still moves nothing.
        bucket.adjust(&crate::support::limit("x:1"), Milli(1), TimeMs(at.saturating_sub(back)));
        prop_assert_eq!(bucket.refilled_at, before.refilled_at);
        prop_assert_eq!(bucket.limits()[0].balance, before.limits()[0].balance.saturating_sub(Milli(1)));
    }

    /// Every number at and around its bounds, through every verb, against sums in 128 bits.
    #[test]
    fn extreme_values_never_panic_or_wrap(
        params in any_extreme_params(), balance in extreme(), at in extreme(), now in extreme(), delta in extreme(),
    ) {
        let mut bucket = bucket_of(state(params, balance, params.period_ms - 1), at);
        let mut ideal = Ideal::of(&bucket.limits()[0], at);
        // The elapsed time saturates as well: beyond 2^63 ms no more is credited, which is the safe
        // side.
        ideal.advance(now.min(at.saturating_add(i64::MAX)));
        bucket.refill(TimeMs(now));
        prop_assert_eq!((bucket.limits()[0].balance.0, bucket.limits()[0].remainder), ideal.parts());
        let is_far_back = at.saturating_sub(now) > CLOCK_BACK_MAX_MS;
        prop_assert_eq!(bucket.refilled_at.0, if is_far_back { now } else { at.max(now) });

        let receipt = crate::support::limit("x:1");
        bucket.adjust(&receipt, Milli(delta), TimeMs(now));
        let exact = i128::from(ideal.parts().0) - i128::from(delta);
        let expected = exact.clamp(i128::from(i64::MIN), i128::from(params.capacity_milli));
        prop_assert_eq!(i128::from(bucket.limits()[0].balance.0), expected);
        prop_assert_eq!(bucket.limits()[0].consumed, Milli(delta));

        prop_assert_eq!(bucket.in_debt_at(TimeMs(now)), expected < 0);
        bucket.sync(&[crate::support::limit("x:1000000000000000/1000000000sec")], ConfigStamp(u64::MAX), TimeMs(now)).expect("one limit");
        prop_assert!(bucket.limits()[0].balance.0 <= params.capacity_milli.min(MILLI_MAX));
        bucket.reset(None, TimeMs(i64::MAX));
        prop_assert_eq!(bucket.limits()[0].balance.0, MILLI_MAX);
    }
}

fn extreme() -> impl Strategy<Value = i64> {
    let bounds = [
        i64::MIN,
        i64::MIN + 1,
        -MILLI_MAX,
        -1,
        0,
        1,
        999,
        PERIOD_MS_MAX,
        MILLI_MAX,
        i64::MAX - 1,
        i64::MAX,
    ];
    prop_oneof![prop::sample::select(bounds.to_vec()), any::<i64>()]
}

fn any_extreme_params() -> impl Strategy<Value = LimitParams> {
    let value = || {
        prop::sample::select(vec![
            1,
            2,
            999,
            1_000,
            PERIOD_MS_MAX,
            MILLI_MAX - 1,
            MILLI_MAX,
            i64::MAX,
        ])
    };
    (value(), value(), value()).prop_map(|(capacity_milli, refill_milli, period_ms)| LimitParams {
        capacity_milli,
        refill_milli,
        period_ms,
    })
}

/// 10 a day: a token every 8 640 000 ms, a millitoken every 8 640.
#[test]
fn an_accrual_is_exact_and_its_bound_is_never_less() {
    let slow = limit("x:10/day").params();
    assert_eq!(slow.accrual(8_639, 0), (0, 8_639 * 10_000));
    assert_eq!(slow.accrual(1, 8_639 * 10_000), (1, 0));
    assert_eq!(slow.accrual(-1, 77), (0, 77), "a clock that went back");
    assert_eq!(slow.accrual(DAY_MS, 0), (10_000, 0), "without regard to what is there");
    assert_eq!(slow.accrual_at_most(8_639), 1);
    assert_eq!(slow.accrual_at_most(DAY_MS), 10_001);
    assert_eq!(slow.accrual_at_most(-1), 0);
    for remainder in [0, 1, DAY_MS - 1] {
        assert!(slow.accrual(86_400, remainder).0 <= slow.accrual_at_most(86_400));
    }
}
