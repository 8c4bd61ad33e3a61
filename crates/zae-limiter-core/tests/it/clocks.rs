//! Clocks that are wrong: a bucket is not frozen by one that was ahead, and pays for no time twice.

use zae_limiter_core::{
    BucketState, CLOCK_BACK_MAX_MS, ConfigStamp, Decision, Limit, Member, Milli, Take, TimeMs,
    Wait, decide,
};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const YEAR: i64 = 8_766 * HOUR;
const START: i64 = 1_767_261_600_000;

fn limits() -> Vec<Limit> {
    vec!["rpm:60/min".parse().expect("a limit")]
}

fn full() -> BucketState {
    BucketState::full(&limits(), ConfigStamp(1), at(0))
}

fn at(ms: i64) -> TimeMs {
    TimeMs(START + ms)
}

/// As a store does: a bucket whose time is far ahead is set right before the decision, whatever
/// that is.
fn take(bucket: &mut BucketState, tokens: u64, now: TimeMs) -> Result<(), Wait> {
    if bucket.is_far_ahead_of(now) {
        bucket.refill(now);
    }
    let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
    match decide(&mut [Member { bucket, takes: &takes }], now) {
        Decision::Granted { .. } => Ok(()),
        Decision::Refused { reports } => Err(reports[0].wait),
    }
}

fn drain(bucket: &mut BucketState, now: TimeMs) -> u64 {
    (0..10_000).find(|_| take(bucket, 1, now).is_err()).expect("an end")
}

#[test]
fn one_take_by_a_clock_that_is_ahead_freezes_nothing() {
    for ahead in [30 * MINUTE, 13 * HOUR, 10 * YEAR] {
        let mut bucket = full();
        assert_eq!(drain(&mut bucket, at(0)), 60);
        assert_eq!(drain(&mut bucket, at(ahead)), 60, "the lead is paid once");
        // The clock is right again. Nothing is there, and it comes at the usual rate.
        assert_eq!(
            take(&mut bucket, 1, at(1_000)),
            Err(Wait::After(zae_limiter_core::WaitMs::at_least_one(1_000))),
            "{ahead} ahead"
        );
        assert_eq!(drain(&mut bucket, at(31_000)), 30, "{ahead} ahead");
        assert_eq!(drain(&mut bucket, at(91_000)), 60, "{ahead} ahead");
    }
}

/// A clock ten years ahead, then one an hour behind, then the first again: the first was paid for
/// its ten years, and the hour comes on top of its lead instead of in its place.
#[test]
fn a_lead_is_kept_when_a_clock_that_is_behind_follows() {
    let ahead = 10 * YEAR;
    let mut bucket = full();
    assert_eq!(drain(&mut bucket, at(0)), 60);
    assert_eq!(drain(&mut bucket, at(ahead)), 60, "the lead is paid once");
    take(&mut bucket, 1, at(0)).expect_err("nothing is there");
    assert_eq!(drain(&mut bucket, at(ahead + 10_000)), 10);
    assert!(bucket.is_led(), "the clock ahead came last");
    take(&mut bucket, 1, at(-HOUR)).expect_err("nothing is there");
    assert!(!bucket.is_led());
    assert_eq!(drain(&mut bucket, at(ahead + 20_000)), 10);
}

#[test]
fn a_lead_that_was_stored_is_there_again() {
    let mut bucket = full();
    assert_eq!((bucket.lead_ms(), bucket.is_led()), (0, false));
    bucket.restore_lead(HOUR, true);
    assert_eq!((bucket.lead_ms(), bucket.is_led()), (HOUR, true));
}

#[test]
fn a_clock_that_comes_back_to_the_future_is_not_paid_again() {
    for ahead in [3 * MINUTE, 13 * HOUR, 10 * YEAR] {
        let mut bucket = full();
        let mut granted = drain(&mut bucket, at(0)) + drain(&mut bucket, at(ahead));
        // Two processes take turns, one of them ahead, for two minutes: time passes once, not once
        // for each of them.
        for second in 1..=120 {
            let lead = if second % 2 == 0 { ahead } else { 0 };
            granted += drain(&mut bucket, at(lead + second * 1_000));
        }
        assert!(granted <= 120 + 120, "{granted} granted, {ahead} ms ahead");
        assert!(
            granted >= 120 + 120 - 61,
            "{granted} granted, {ahead} ms ahead: nobody starves for more than a minute"
        );
    }
}

#[test]
fn a_clock_that_is_a_little_behind_waits() {
    let mut bucket = full();
    assert_eq!(drain(&mut bucket, at(0)), 60);
    let behind = at(-CLOCK_BACK_MAX_MS);
    let wait = CLOCK_BACK_MAX_MS.unsigned_abs() + 1_000;
    assert_eq!(
        take(&mut bucket, 1, behind),
        Err(Wait::After(zae_limiter_core::WaitMs::at_least_one(wait)))
    );
    assert_eq!((bucket.refilled_at, bucket.lead_ms()), (at(0), 0), "nothing has moved");
    assert!(take(&mut bucket, 1, at(1_000)).is_ok());
}

#[test]
fn a_clock_that_is_far_behind_gains_nothing() {
    let mut bucket = full();
    assert_eq!(drain(&mut bucket, at(0)), 60);
    // One process is ten years behind; the others go on.
    let mut granted = 0;
    for second in 1..=30 {
        granted += drain(&mut bucket, at(-10 * YEAR + second * 1_000))
            + drain(&mut bucket, at(second * 1_000));
    }
    assert!((29..=30).contains(&granted), "{granted} in thirty seconds");
}

#[test]
fn a_reset_sets_the_time_right() {
    for ahead in [1_000, 2 * MINUTE, 10 * YEAR] {
        let mut bucket = full();
        assert_eq!(drain(&mut bucket, at(ahead)), 60);
        assert_eq!(
            bucket.reset(None, at(0)),
            [("rpm".parse().expect("a name"), Milli::from_tokens(60))]
        );
        assert_eq!((bucket.refilled_at, bucket.lead_ms()), (at(0), 0));
        assert_eq!(drain(&mut bucket, at(0)), 60);
        assert_eq!(drain(&mut bucket, at(MINUTE)), 60, "{ahead} ahead");
    }
}

#[test]
fn usage_is_not_counted_in_a_far_future() {
    let mut bucket = full();
    assert!(take(&mut bucket, 1, at(10 * YEAR)).is_ok());
    let far = bucket.hour;
    assert!(take(&mut bucket, 2, at(0)).is_ok());
    let now = u32::try_from(START / HOUR).expect("an hour");
    assert_eq!((bucket.hour, bucket.open_hour().used[0].1), (now, Milli::from_tokens(2)));
    // The clock that is ahead comes again: what is used by it is filed where it says, what is used
    // by others is not.
    assert!(take(&mut bucket, 4, at(10 * YEAR)).is_ok());
    assert_eq!((bucket.hour, bucket.open_hour().used[0].1), (far, Milli::from_tokens(4)));
    assert!(take(&mut bucket, 8, at(1_000)).is_ok());
    assert_eq!((bucket.hour, bucket.open_hour().used[0].1), (now, Milli::from_tokens(8)));
}

/// A clock was twenty minutes ahead once. Then two others take turns, a minute and a half apart:
/// that is paid once, too.
#[test]
fn an_older_lead_does_not_hide_a_later_one() {
    let mut bucket = full();
    let mut granted = drain(&mut bucket, at(0)) + drain(&mut bucket, at(20 * MINUTE));
    for second in 1..=120 {
        let lead = if second % 2 == 0 { 90_000 } else { 0 };
        granted += drain(&mut bucket, at(lead + second * 1_000));
    }
    assert!(
        granted <= 60 + 60 + 60 + 120,
        "{granted} granted: the capacity, once for each of two leads, and two minutes"
    );
}

#[test]
fn a_lead_is_forgotten_with_nothing_left_to_pay() {
    let mut bucket = full();
    assert_eq!(drain(&mut bucket, at(13 * HOUR)), 60);
    bucket.refill(at(0));
    assert_eq!(bucket.lead_ms(), 13 * HOUR);
    // Time itself reaches what was paid ahead: from there on it counts again.
    bucket.refill(at(13 * HOUR + 30_000));
    assert_eq!(
        bucket.all_limits()[0].balance,
        Milli::from_tokens(30),
        "thirty seconds beyond what was paid"
    );
}
