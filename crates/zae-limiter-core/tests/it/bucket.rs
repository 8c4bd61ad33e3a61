//! The promises of a bucket: how charges and changed limits move its balances, what it counts and
//! when it may be forgotten.

use crate::support::*;
use proptest::prelude::*;
use smallvec::smallvec;
use zae_limiter_core::{
    BucketState, ClosedHour, ConfigStamp, LimitName, Milli, TimeMs, bucket_ttl_ms,
};

fn milli_sum(closed: &[ClosedHour], name: &str) -> i64 {
    closed
        .iter()
        .flat_map(|hour| &hour.used)
        .filter(|(limit, _)| limit.as_str() == name)
        .map(|(_, used)| used.0)
        .sum()
}

fn names(bucket: &BucketState) -> Vec<&str> {
    bucket.all_limits().iter().map(|limit| limit.name.as_str()).collect()
}

// ---------------------------------------------------------------------------------- changed limits

/// A bucket with `before`, of which `taken` millitokens are gone, made to carry `after` one second
/// later.
fn check_sync(before: &str, taken: i64, after: &str, balance: i64, remainder: i64) {
    let mut bucket = full(&[before]);
    grant(&mut bucket, &[take(0, taken)], 0);
    bucket.sync(&[limit(after)], ConfigStamp(1), TimeMs(1_000)).expect("one limit");
    let found = &bucket.limits()[0];
    assert_eq!((found.balance.0, found.remainder), (balance, remainder), "{before} -> {after}");
    assert_eq!(found.params, limit(after).params());
    assert_eq!(bucket.refilled_at, TimeMs(1_000));
}

#[test]
fn lowering_cuts_and_raising_does_not_mint() {
    // Refilled at the old rate up to the change: one token a second here.
    check_sync("x:60/min", 0, "x:10/min", 10_000, 0);
    check_sync("x:60/min", 30_000, "x:10/min", 10_000, 0);
    check_sync("x:60/min", 55_000, "x:10/min", 6_000, 0);
    check_sync("x:60/min", 60_000, "x:600/min", 1_000, 0);
    check_sync("x:60/min", 0, "x:600/min", 60_000, 0);
    check_sync("x:60/min:6000", 6_000_000, "x:60000/min:6000", 1_000, 0);
    // A fraction belongs to its rate: kept with it, dropped with it, and dropped when full.
    check_sync("x:10/day", 10_000, "x:10/day:20", 0, 10_000_000);
    check_sync("x:10/day", 10_000, "x:11/day:10", 0, 0);
    check_sync("x:10/day", 10_000, "x:10/2day:10", 0, 0);
    check_sync("x:10/day:20", 10_000, "x:10/day:10", 10_000, 0);
}

#[test]
fn a_limit_never_seen_before_starts_full() {
    let mut bucket = full(&["a:60/min"]);
    grant(&mut bucket, &[take(0, 60_000)], 0);
    bucket.sync(&limits(&["b:5/min", "a:60/min"]), ConfigStamp(1), TimeMs(0)).expect("two limits");
    assert_eq!((names(&bucket), balances(&bucket)), (vec!["b", "a"], vec![5_000, 0]));
    assert!(bucket.matches(&limits(&["b:5/min", "a:60/min"])));
    assert!(!bucket.matches(&limits(&["a:60/min", "b:5/min"])));
    assert!(!bucket.matches(&limits(&["b:5/min"])));
    assert!(!bucket.matches(&limits(&["b:6/min", "a:60/min"])));
    assert!(!bucket.matches(&limits(&["c:5/min", "a:60/min"])));
}

#[test]
fn the_stamp_of_a_bucket_never_goes_back() {
    let mut bucket = full(&["a:60/min"]);
    bucket.sync(&limits(&["a:10/min"]), ConfigStamp(7), TimeMs(0)).expect("one limit");
    bucket.sync(&limits(&["a:20/min"]), ConfigStamp(3), TimeMs(0)).expect("one limit");
    assert_eq!(bucket.stamp, ConfigStamp(7));
}

#[test]
fn dropping_and_re_adding_a_limit_never_mints() {
    let both = limits(&["rpm:60/min", "tpm:60/min"]);
    let mut bucket = full(&["rpm:60/min", "tpm:60/min"]);
    grant(&mut bucket, &[take(1, 60_000)], 0);
    // Its usage is in the history already, so only its balance keeps it.
    bucket.roll_hour(TimeMs(HOUR_MS));
    bucket.sync(&both[..1], ConfigStamp(1), TimeMs(1_000)).expect("one limit");
    assert_eq!(
        (bucket.active(), bucket.limits().len(), names(&bucket)),
        (1, 1, vec!["rpm", "tpm"])
    );
    bucket.sync(&both, ConfigStamp(2), TimeMs(2_000)).expect("two limits");
    // Refilled for two seconds, retired or not.
    assert_eq!(balances(&bucket), [60_000, 2_000]);
}

/// 100/day drained, lowered to 1/sec:1, full after a second, forgotten, back as 100/day: once, 200
/// were granted in a second.
#[test]
fn a_lowered_limit_is_not_forgotten_before_its_old_capacity_would_be_full() {
    let mut bucket = full(&["rpd:100/day"]);
    grant(&mut bucket, &[take(0, 100_000)], 0);
    bucket.roll_hour(TimeMs(HOUR_MS));
    bucket.sync(&limits(&["rpd:1/sec:1"]), ConfigStamp(1), TimeMs(0)).expect("lowered");
    assert_eq!(bucket.gap(&"rpd".parse().expect("name")), Milli(99_000));
    assert!(
        !bucket.is_full_at(TimeMs(1_000)),
        "full at the lower capacity, but it would come back with 100"
    );
    bucket.sync(&limits(&["other:1/sec"]), ConfigStamp(2), TimeMs(1_000)).expect("dropped");
    assert_eq!(names(&bucket), ["other", "rpd"], "kept although full");
    bucket.sync(&limits(&["rpd:100/day"]), ConfigStamp(3), TimeMs(2_000)).expect("raised again");
    assert_eq!(
        (balances(&bucket)[0], bucket.gap(&"rpd".parse().expect("name"))),
        (1_000, Milli::ZERO),
        "it goes on from its balance"
    );
}

#[test]
fn refill_beyond_the_lower_capacity_repays_the_gap() {
    let mut bucket = full(&["rpd:100/day"]);
    grant(&mut bucket, &[take(0, 100_000)], 0);
    bucket.roll_hour(TimeMs(HOUR_MS));
    bucket.sync(&limits(&["rpd:1/sec:1"]), ConfigStamp(1), TimeMs(0)).expect("lowered");
    assert!(!bucket.is_full_at(TimeMs(99_999)));
    assert!(bucket.is_full_at(TimeMs(100_000)), "100 tokens at one a second");
    // Takes in between use up what would have repaid it.
    grant(&mut bucket, &[take(0, 1_000)], 50_000);
    assert!(!bucket.is_full_at(TimeMs(100_999)));
    assert!(bucket.is_full_at(TimeMs(101_000)));
    // What is given back beyond the capacity counts as well.
    bucket.adjust(&limit("rpd:100/day"), Milli(-31_000), TimeMs(50_000));
    assert!(bucket.is_full_at(TimeMs(70_000)));
}

#[test]
fn a_retired_limit_goes_only_when_full_and_its_usage_is_in_the_history() {
    let mut bucket = full(&["rpm:60/min", "tpm:60/min"]);
    grant(&mut bucket, &[take(1, 1_000)], 0);
    bucket.sync(&limits(&["rpm:60/min"]), ConfigStamp(1), TimeMs(0)).expect("one limit");
    grant(&mut bucket, &[take(0, 0)], 999);
    assert_eq!(names(&bucket), ["rpm", "tpm"], "not full yet");
    grant(&mut bucket, &[take(0, 0)], 1_000);
    bucket.sync(&limits(&["rpm:50/min"]), ConfigStamp(2), TimeMs(1_000)).expect("one limit");
    assert_eq!(names(&bucket), ["rpm", "tpm"], "full, but its usage is still in the open hour");
    let closed = bucket.roll_hour(TimeMs(HOUR_MS)).expect("the hour had usage");
    assert_eq!(milli_sum(&[closed], "tpm"), 1_000);
    grant(&mut bucket, &[take(0, 0)], HOUR_MS);
    assert_eq!(names(&bucket), ["rpm"]);
}

#[test]
fn a_retired_full_limit_is_forgotten_by_a_change_too_and_starts_full_again() {
    let mut bucket = full(&["rpm:60/min", "tpm:60/min"]);
    bucket.sync(&limits(&["rpm:60/min"]), ConfigStamp(1), TimeMs(0)).expect("one limit");
    assert_eq!(names(&bucket), ["rpm"]);
    bucket
        .sync(&limits(&["rpm:60/min", "tpm:60/min"]), ConfigStamp(2), TimeMs(0))
        .expect("two limits");
    assert_eq!(balances(&bucket), [60_000, 60_000]);
}

proptest! {
    /// Callers with different `.limits(..)` on one bucket: what they can take together is what the
    /// largest of them could take alone.
    #[test]
    fn alternating_overrides_never_gain(
        overrides in prop::collection::vec((1..50_i64, 1..50_i64), 2..4), steps in prop::collection::vec((0..3_usize, 0..400_i64), 1..60),
    ) {
        let overrides: Vec<_> = overrides.iter().map(|(rate, burst)| limit(&format!("x:{rate}/sec:{burst}"))).collect();
        let capacity_max = overrides.iter().map(|limit| limit.params().capacity_milli).max().expect("some");
        let rate_max = overrides.iter().map(|limit| limit.params().refill_milli).max().expect("some");
        let mut bucket = BucketState::full(&overrides[..1], ConfigStamp(0), TimeMs(0));
        // Everyone takes all there is, whenever there is some.
        let (mut now, mut taken) = (0, 0);
        for (caller, gap) in steps {
            now += gap;
            bucket.sync(&overrides[caller % overrides.len()..][..1], ConfigStamp(0), TimeMs(now)).expect("one limit");
            let all = bucket.limits()[0].balance.0;
            grant(&mut bucket, &[take(0, all)], now);
            taken += all;
            prop_assert!(taken * 1_000 <= capacity_max * 1_000 + rate_max * now, "{} taken by {}", taken, now);
        }
    }
}

// ------------------------------------------------------------------------------- charges and gifts

/// A bucket of 60/min with `balance`, adjusted by `delta` after `elapsed_ms`.
fn check_adjust(balance: i64, elapsed_ms: i64, delta: i64, expected: i64) {
    let mut bucket = bucket_of(state(limit("x:60/min").params(), balance, 0), 0);
    assert_eq!(bucket.adjust(&limit("x:60/min"), Milli(delta), TimeMs(elapsed_ms)), None);
    assert_eq!(
        (balances(&bucket), bucket.limits()[0].consumed),
        (vec![expected], Milli(delta)),
        "{balance} {delta}"
    );
}

#[test]
fn charges_may_lead_into_debt_and_credits_stop_at_capacity() {
    check_adjust(60_000, 0, 1, 59_999);
    check_adjust(1_000, 0, 5_000, -4_000);
    check_adjust(-4_000, 0, 1_000_000, -1_004_000);
    check_adjust(1_000, 0, -5_000, 6_000);
    check_adjust(59_999, 0, -1, 60_000);
    check_adjust(59_000, 0, -5_000, 60_000);
    check_adjust(-4_000, 0, i64::MIN, 60_000);
    // Refill first: the tokens that overflow while idle are gone before the charge, not paid by it
    // afterwards.
    check_adjust(60_000, 600_000, 100_000, -40_000);
    check_adjust(59_000, 1_000, 10_000, 50_000);
    check_adjust(0, 1_000, 0, 1_000);
}

/// A credit that no counter could hold is cut at the capacity; a charge that none could hold is
/// refused before anything changes.
#[test]
fn a_credit_beyond_every_counter_is_no_error() {
    let full = full(&["x:60/min"]);
    let check = |delta| full.check_adjust(&limit("x:60/min"), Milli(delta), TimeMs(0));
    assert_eq!(check(i64::MIN), Ok(()), "60 tokens and 2^63 more");
    assert_eq!(check(i64::MAX), Ok(()), "the balance is cut to a debt that a counter holds");
    let mut indebted = full.clone();
    indebted.adjust(&limit("x:60/min"), Milli(i64::MAX), TimeMs(0));
    assert!(indebted.check_adjust(&limit("x:60/min"), Milli(i64::MAX), TimeMs(0)).is_err());
}

#[test]
fn an_expiry_is_an_instant_or_none() {
    let mut bucket = full(&["x:60/min"]);
    assert_eq!(bucket.expires_at(), None);
    bucket.set_expires_at(Some(TimeMs(5)));
    assert_eq!(bucket.expires_at(), Some(TimeMs(5)));
    bucket.set_expires_at(None);
    assert_eq!(bucket.expires_at(), None);
}

#[test]
fn a_gap_that_was_stored_is_there_again() {
    let name: LimitName = "x".parse().expect("a name");
    let mut bucket = full(&["x:60/min"]);
    assert_eq!(bucket.gap(&name), Milli::ZERO);
    bucket.restore_gap(&name, Milli(40_000));
    assert_eq!(bucket.gap(&name), Milli(40_000));
}

#[test]
fn a_credit_that_fills_a_limit_drops_its_fraction() {
    let mut bucket = full(&["x:10/day"]);
    grant(&mut bucket, &[take(0, 1_000)], 0);
    bucket.adjust(&limit("x:10/day"), Milli(-1_000), TimeMs(1));
    assert_eq!((bucket.limits()[0].balance.0, bucket.limits()[0].remainder), (10_000, 0));
}

#[test]
fn a_late_charge_brings_a_forgotten_limit_back_and_a_late_credit_does_not() {
    let mut bucket = full(&["rpm:60/min"]);
    let receipt = limit("tpm:100/min");
    bucket.adjust(&receipt, Milli(-5_000), TimeMs(0));
    bucket.adjust(&receipt, Milli::ZERO, TimeMs(0));
    assert_eq!(names(&bucket), ["rpm"]);
    bucket.adjust(&receipt, Milli(130_000), TimeMs(0));
    assert_eq!(
        (names(&bucket), balances(&bucket), bucket.active()),
        (vec!["rpm", "tpm"], vec![60_000, -30_000], 1)
    );
    assert!(bucket.in_debt_at(TimeMs(0)) && !bucket.is_full_at(TimeMs(0)));
    bucket
        .sync(&limits(&["rpm:60/min", "tpm:100/min"]), ConfigStamp(1), TimeMs(0))
        .expect("two limits");
    assert_eq!(balances(&bucket), [60_000, -30_000]);
}

#[test]
fn a_reset_fills_what_it_names_and_says_what_that_gave() {
    let name = |text: &str| text.parse::<LimitName>().expect("a valid name");
    let mut bucket = full(&["rpm:60/min", "rpd:10/day"]);
    let receipts = limits(&["rpm:60/min", "rpd:10/day"]);
    bucket.adjust(&receipts[0], Milli(70_000), TimeMs(0));
    bucket.adjust(&receipts[1], Milli(10_000), TimeMs(0));
    assert_eq!(bucket.reset(Some(&[name("rpd")]), TimeMs(1_000)), [(name("rpd"), Milli(10_000))]);
    assert_eq!((balances(&bucket), bucket.limits()[1].remainder), (vec![-9_000, 10_000], 0));
    // Forgiven, not unspent: usage stays.
    assert_eq!(bucket.limits()[1].consumed, Milli(10_000));
    let all = bucket.reset(None, TimeMs(2_000));
    assert_eq!(all, [(name("rpm"), Milli(68_000)), (name("rpd"), Milli(0))]);
    assert_eq!(balances(&bucket), [60_000, 10_000]);
    assert_eq!(bucket.reset(Some(&[name("other")]), TimeMs(2_000)), []);
}

// ------------------------------------------------------------------------------------- usage hours

#[test]
fn the_hour_closes_once_with_all_its_usage() {
    let mut bucket = full(&["rpm:60/min", "tpm:60/min"]);
    grant(&mut bucket, &[take(0, 1_000)], 0);
    grant(&mut bucket, &[take(0, 2_000)], HOUR_MS - 1);
    let receipt = limit("rpm:60/min");
    assert_eq!(bucket.adjust(&receipt, Milli(-500), TimeMs(HOUR_MS - 1)), None);
    let name = receipt.name().clone();
    let first =
        ClosedHour { start: TimeMs(0), used: vec![(name.clone(), Milli(2_500))], events: 2 };
    assert_eq!(bucket.open_hour(), first);
    // The adjustment that turns the hour belongs to the new one.
    assert_eq!(bucket.adjust(&receipt, Milli(7), TimeMs(HOUR_MS)), Some(first));
    assert_eq!(
        bucket.open_hour(),
        ClosedHour { start: TimeMs(HOUR_MS), used: vec![(name, Milli(7))], events: 0 }
    );
    assert_eq!(bucket.limits()[0].consumed, Milli(2_507));
}

#[test]
fn an_hour_does_not_open_again_for_a_clock_that_is_a_little_behind() {
    let mut bucket = full(&["rpm:60/min"]);
    grant(&mut bucket, &[take(0, 1_000)], 5 * HOUR_MS);
    grant(&mut bucket, &[take(0, 1_000)], 5 * HOUR_MS - 30_000);
    assert_eq!(bucket.roll_hour(TimeMs(4 * HOUR_MS)), None);
    let open = bucket.open_hour();
    assert_eq!(
        (open.start, open.events, milli_sum(std::slice::from_ref(&open), "rpm")),
        (TimeMs(5 * HOUR_MS), 2, 2_000)
    );
}

#[test]
fn an_hour_without_usage_is_no_history() {
    let mut bucket = full(&["rpm:60/min"]);
    assert_eq!(bucket.roll_hour(TimeMs(HOUR_MS)), None);
    assert_eq!(bucket.hour, 1);
    // An event of nothing is still an event, and what was taken and given back is too.
    grant(&mut bucket, &[take(0, 0)], HOUR_MS);
    let closed = bucket.roll_hour(TimeMs(2 * HOUR_MS)).expect("there was an event");
    assert_eq!((closed.used, closed.events), (vec![], 1));
    assert_eq!(bucket.events, 0);
}

#[test]
fn hours_before_the_epoch_and_after_all_hours_are_the_first_and_the_last() {
    for (now, hour) in [(i64::MIN, 0), (-1, 0), (0, 0), (HOUR_MS, 1), (i64::MAX, u32::MAX)] {
        assert_eq!(BucketState::full(&[], ConfigStamp(0), TimeMs(now)).hour, hour, "{now}");
    }
}

// -------------------------------------------------------------------------------------- forgetting

#[test]
fn only_a_full_bucket_past_its_expiry_may_be_forgotten() {
    let mut bucket = full(&["rpm:60/min", "rpd:10/day"]);
    grant(&mut bucket, &[take(0, 60_000)], 0);
    assert!(!bucket.is_expired_at(TimeMs(i64::MAX)), "no expiry means never");
    bucket.set_expires_at(Some(TimeMs(50_000)));
    for (now, expired) in
        [(49_999, false), (50_000, false), (59_999, false), (60_000, true), (i64::MAX, true)]
    {
        assert_eq!(bucket.is_expired_at(TimeMs(now)), expired, "{now}");
    }
    // A retired limit in debt counts like one in force.
    bucket.adjust(&limit("tpm:60/min"), Milli(120_000), TimeMs(0));
    for (now, expired) in [(60_000, false), (119_999, false), (120_000, true)] {
        assert_eq!(bucket.is_expired_at(TimeMs(now)), expired, "{now}");
    }
    bucket.set_expires_at(Some(TimeMs(120_001)));
    assert!(!bucket.is_expired_at(TimeMs(120_000)));
}

#[test]
fn debt_is_told_to_the_millisecond() {
    let mut bucket = full(&["rpm:60/min"]);
    bucket.adjust(&limit("rpm:60/min"), Milli(61_000), TimeMs(0));
    for (now, debt) in [(-5, true), (0, true), (999, true), (1_000, false)] {
        assert_eq!(bucket.in_debt_at(TimeMs(now)), debt, "{now}");
    }
}

proptest! {
    /// Forgetting a bucket when the sweep may, and creating it anew, is the same as never
    /// forgetting it.
    #[test]
    fn a_forgotten_bucket_comes_back_as_it_was(limit in any_state(), wait in up_to(i64::MAX / 2)) {
        let params = limit.params;
        let mut bucket = bucket_of(limit, 0);
        bucket.set_expires_at(Some(TimeMs(0)));
        if bucket.is_expired_at(TimeMs(wait)) {
            bucket.refill(TimeMs(wait));
            let anew = bucket_of(state(params, params.capacity_milli, 0), wait);
            prop_assert_eq!(bucket.limits(), anew.limits());
        } else {
            bucket.refill(TimeMs(wait));
            prop_assert!(bucket.limits()[0].balance.0 < params.capacity_milli);
        }
    }

    /// One fill time after its last touch a bucket without debt is full, so the default expiry
    /// never waits for the refill.
    #[test]
    fn a_bucket_without_debt_is_full_by_its_expiry(rate in 1..1_000_u64, period in 1..100_000_u64, burst in 1..1_000_u64) {
        let limit = limit(&format!("x:{rate}/{period}sec:{burst}"));
        let mut bucket = BucketState::full(std::slice::from_ref(&limit), ConfigStamp(0), TimeMs(0));
        grant(&mut bucket, &[take(0, limit.params().capacity_milli)], 0);
        let fill_ms = bucket_ttl_ms(&[limit], 1).expect("a time to live");
        prop_assert!(bucket.is_full_at(TimeMs(fill_ms)));
        prop_assert!(!bucket.is_full_at(TimeMs(fill_ms - 1)));
    }
}

#[test]
fn a_restored_bucket_is_what_was_stored() {
    let one = state(limit("x:60/min").params(), 5, 3);
    let bucket = BucketState::restore(smallvec![one.clone()], 5, TimeMs(7), ConfigStamp(9));
    assert_eq!(
        (bucket.active(), bucket.limits(), bucket.refilled_at, bucket.stamp),
        (1, &[one][..], TimeMs(7), ConfigStamp(9))
    );
}
