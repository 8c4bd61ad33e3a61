//! The promises of a decision: all or nothing, and a wait that is exact.

use crate::support::*;
use proptest::prelude::*;
use zae_limiter_core::{
    BucketState, CLOCK_BACK_MAX_MS, ConfigStamp, Decision, LimitParams, LimitReport, LimitState,
    Member, Milli, Reports, Take, TimeMs, Wait, WaitMs, assess, decide, wait_for,
};

fn after(ms: u64) -> Wait {
    Wait::After(WaitMs::at_least_one(ms))
}

fn reports_of(decision: &Decision) -> &Reports {
    match decision {
        Decision::Granted { reports, .. } | Decision::Refused { reports } => reports,
    }
}

/// What a bucket with one limit `x`, last refilled at 10 s, answers at `now`.
fn check(text: &str, balance: i64, now: i64, amount: i64, expected: Wait) {
    let mut bucket = bucket_of(state(limit(text).params(), balance, 0), 10_000);
    let before = bucket.clone();
    let decision = ask(&mut bucket, &[take(0, amount)], now);
    assert_eq!(
        reports_of(&decision)[0].wait,
        expected,
        "{text} with {balance} asked for {amount} at {now}"
    );
    assert_eq!(matches!(decision, Decision::Granted { .. }), expected == Wait::None);
    assert_eq!(
        bucket == before,
        expected != Wait::None,
        "a grant changes the bucket, a refusal does not"
    );
}

#[test]
fn waits_of_one_limit() {
    check("x:60/min", 60_000, 10_000, 60_000, Wait::None);
    check("x:60/min", 59_999, 10_000, 60_000, after(1));
    check("x:60/min", 0, 10_000, 1_000, after(1_000));
    check("x:60/min", 0, 10_999, 1_000, after(1));
    check("x:60/min", 0, 11_000, 1_000, Wait::None);
    check("x:60/min", -5_000, 10_000, 1_000, after(6_000));
    // Rounded up: a third of a second and two thirds.
    check("x:3/sec", 0, 10_000, 1_000, after(334));
    check("x:3/sec", 0, 10_000, 2_000, after(667));
    check("x:3/sec", 0, 10_000, 3_000, after(1_000));
    // With part of a millitoken already there: 8.64 s for each of them, 8 s of which have passed.
    check("x:10/day", 0, 18_000, 1, after(640));
    // A clock behind the refill instant has to catch up first.
    check("x:60/min", 0, 4_000, 1_000, after(7_000));
    check("x:60/min", 1_000, 4_000, 1_000, Wait::None);
    // As much as there is room for, and one more.
    check("x:60/min", 0, 10_000, 60_000, after(60_000));
    check("x:60/min", 60_000, 10_000, 60_001, Wait::Never);
    check("x:60/min", -1, 10_000, i64::MAX, Wait::Never);
}

#[test]
fn zero_declares_a_limit_and_only_debt_refuses_it() {
    check("x:60/min", 0, 10_000, 0, Wait::None);
    check("x:60/min", -1, 10_000, 0, after(1));
    check("x:60/min", -60_000, 10_000, 0, after(60_000));
    check("x:60/min", -60_000, 70_000, 0, Wait::None);
}

/// The waits of the Python package 0.17 are one millisecond longer than needed, in seconds; ours
/// are exact. Where nothing ever refills it says 0.0, "retry now"; ours says never.
#[test]
fn golden_waits_of_the_python_product() {
    for (deficit, refill_milli, period_ms, python_ms) in
        [(1_000, 60_000, 60_000, 1_001), (1, 60_000, 60_000, 2), (500, 1_000, 3_000, 1_501)]
    {
        let limit = state(LimitParams { capacity_milli: 60_000, refill_milli, period_ms }, 0, 0);
        assert_eq!(
            wait_for(&limit, Milli(0), 0, Milli(deficit), 0),
            after(python_ms - 1),
            "{deficit} at {refill_milli}/{period_ms}"
        );
    }
    for (refill_milli, period_ms) in [(0, 1_000), (-1, 1_000), (1_000, 0), (1_000, -1)] {
        let limit = state(LimitParams { capacity_milli: 60_000, refill_milli, period_ms }, 0, 0);
        assert_eq!(
            wait_for(&limit, Milli(0), 0, Milli(1_000), 0),
            Wait::Never,
            "{refill_milli}/{period_ms}"
        );
    }
}

#[test]
fn a_wait_is_never_zero() {
    let limit = state(limit("x:60/min").params(), 0, 0);
    assert_eq!(wait_for(&limit, Milli(5_000), 0, Milli(1_000), 0), after(1));
    assert_eq!(wait_for(&limit, Milli(0), 59_999, Milli(1), 0), after(1));
}

#[test]
fn a_limit_not_named_is_refilled_but_not_checked() {
    let mut bucket = full(&["rpm:60/min", "tpm:60/min"]);
    bucket.adjust(&limit("tpm:60/min"), Milli(90_000), TimeMs(0));
    grant(&mut bucket, &[take(0, 1_000)], 1_000);
    assert_eq!(balances(&bucket), [59_000, -29_000]);
    assert_eq!(bucket.refilled_at, TimeMs(1_000));
    // Naming it, even for nothing, checks it.
    assert_eq!(
        wait_of(&ask(&mut bucket, &[take(0, 1_000), take(1, 0)], 1_000)),
        Some(after(29_000))
    );
}

#[test]
fn a_request_for_nothing_at_all_is_granted_and_counted() {
    let mut bucket = full(&["rpm:60/min"]);
    grant(&mut bucket, &[], 1_000);
    assert_eq!((bucket.events, bucket.refilled_at), (1, TimeMs(1_000)));
    assert!(matches!(decide(&mut [], TimeMs(0)), Decision::Granted { .. }));
}

#[test]
fn a_chain_takes_from_all_or_from_none() {
    let (mut key, mut org) = (full(&["rpm:60/min", "tpm:100/min"]), full(&["rpm:10/min"]));
    let (own, shared) = ([take(0, 1_000), take(1, 50_000)], [take(0, 1_000)]);
    let mut chain = |now: i64| {
        let decision = decide(
            &mut [
                Member { bucket: &mut key, takes: &own },
                Member { bucket: &mut org, takes: &shared },
            ],
            TimeMs(now),
        );
        (decision, key.clone(), org.clone())
    };
    chain(0);
    let (decision, key_before, org_before) = chain(0);
    let report = |member, limit, balance, requested| LimitReport {
        member,
        limit,
        balance: Milli(balance),
        requested: Milli(requested),
        wait: Wait::None,
    };
    let expected =
        [report(0, 0, 58_000, 1_000), report(0, 1, 0, 50_000), report(1, 0, 8_000, 1_000)];
    assert_eq!(
        decision,
        Decision::Granted { reports: expected.into_iter().collect(), closed: vec![] }
    );
    assert_eq!((balances(&key_before), balances(&org_before)), (vec![58_000, 0], vec![8_000]));

    // The second limit of the first member is short: nobody loses anything, and every limit is
    // reported as refilled to now.
    let (decision, key_after, org_after) = chain(6_000);
    let short = LimitReport { wait: after(24_000), ..report(0, 1, 10_000, 50_000) };
    let expected = [report(0, 0, 60_000, 1_000), short, report(1, 0, 9_000, 1_000)];
    assert_eq!(decision, Decision::Refused { reports: expected.into_iter().collect() });
    assert_eq!((key_after, org_after), (key_before, org_before));
}

#[test]
fn a_short_ancestor_refuses_as_well() {
    let (mut key, mut org) = (full(&["rpm:60/min"]), full(&["rpm:1/min"]));
    grant(&mut org, &[take(0, 1_000)], 0);
    let (key_before, org_before) = (key.clone(), org.clone());
    let takes = [take(0, 1_000)];
    let decision = decide(
        &mut [
            Member { bucket: &mut key, takes: &takes },
            Member { bucket: &mut org, takes: &takes },
        ],
        TimeMs(1),
    );
    assert_eq!(wait_of(&decision), Some(after(59_999)));
    assert_eq!((key, org), (key_before, org_before));
}

#[test]
fn an_hour_that_ends_is_handed_over_with_its_member() {
    let (mut key, mut org) = (full(&["rpm:60/min"]), full(&["rpm:60/min"]));
    grant(&mut org, &[take(0, 3_000)], 0);
    let takes = [take(0, 1_000)];
    let decision = decide(
        &mut [
            Member { bucket: &mut key, takes: &takes },
            Member { bucket: &mut org, takes: &takes },
        ],
        TimeMs(HOUR_MS),
    );
    let Decision::Granted { closed, .. } = decision else { panic!("{decision:?}") };
    let closed: Vec<_> = closed
        .iter()
        .map(|(member, hour)| (*member, hour.start.0, hour.used[0].1.0, hour.events))
        .collect();
    // The first member's hour was empty, so only the second's is history; this take is in the new
    // hour.
    assert_eq!(closed, [(1, 0, 3_000, 1)]);
    assert_eq!((org.open_hour().used[0].1, org.open_hour().events), (Milli(1_000), 1));
}

#[test]
fn a_refusal_does_not_turn_the_hour() {
    let mut bucket = full(&["rpm:60/min"]);
    grant(&mut bucket, &[take(0, 60_000)], HOUR_MS - 1);
    let before = bucket.clone();
    assert_eq!(wait_of(&ask(&mut bucket, &[take(0, 60_000)], HOUR_MS)), Some(after(59_999)));
    assert_eq!(bucket, before);
}

#[test]
#[should_panic(expected = "amounts are never negative")]
#[cfg(debug_assertions)]
fn a_negative_amount_is_a_bug_of_the_caller() {
    ask(&mut full(&["rpm:60/min"]), &[take(0, -1)], 0);
}

/// A bucket in any state, its refill instant, and a clock before or after it.
fn any_moment() -> impl Strategy<Value = (LimitState, i64, i64)> {
    let at = 1_700_000_000_000;
    (any_state(), prop_oneof![up_to(DAY_MS), up_to(DAY_MS).prop_map(|ms| -ms), Just(0)])
        .prop_map(move |(state, ms)| (state, at, at + ms))
}

proptest! {
    /// The wait is sufficient and necessary, with any remainder and any clock.
    #[test]
    fn refused_until_t_granted_at_t((state, at, now) in any_moment(), amount in up_to(MILLI_MAX), nearly_all in any::<bool>()) {
        let capacity = state.params.capacity_milli;
        let amount = if nearly_all { (capacity - amount).max(0) } else { amount.min(capacity) };
        let mut bucket = bucket_of(state, at);
        // As a store does: a clock that is far behind is gone on by, whatever the answer.
        if bucket.is_far_ahead_of(TimeMs(now)) {
            bucket.refill(TimeMs(now));
        }
        let lead = bucket.lead_ms();
        let takes = [take(0, amount)];
        let Decision::Refused { reports } = ask(&mut bucket.clone(), &takes, now) else {
            return Ok(());
        };
        let wait = reports[0].wait.ms().expect("within capacity it passes some day");
        // A clock that gets to where the other one was counts from there.
        if lead > 0 && i64::try_from(wait).is_ok_and(|wait| wait >= lead - CLOCK_BACK_MAX_MS) {
            return Ok(());
        }
        if let Some(then) = i64::try_from(wait).ok().and_then(|wait| now.checked_add(wait)) {
            prop_assert_eq!(wait_of(&ask(&mut bucket.clone(), &takes, then)), None);
            prop_assert_eq!(wait_of(&ask(&mut bucket.clone(), &takes, then - 1)), Some(after(1)));
        }
    }

    /// The same of a whole chain: its wait is the longest of all, and then it passes.
    #[test]
    fn a_refused_chain_is_granted_after_its_longest_wait(
        members in prop::collection::vec(prop::collection::vec((any_state(), 0..1_000_i64), 1..3), 1..4), elapsed in 0..DAY_MS,
    ) {
        let now = elapsed;
        let takes: Vec<Vec<Take>> = members
            .iter()
            .map(|limits| (0u8..).zip(limits).map(|(index, (state, part))| take(index, state.params.capacity_milli / 1_000 * part)).collect())
            .collect();
        let restore = |limits: &Vec<(LimitState, i64)>| {
            let states = limits.iter().map(|(state, _)| state.clone()).collect();
            BucketState::restore(states, limits.len(), TimeMs(0), ConfigStamp(0))
        };
        let mut buckets: Vec<BucketState> = members.iter().map(restore).collect();
        let mut ask_all = |now: i64| {
            let mut chain: Vec<Member<'_>> =
                buckets.iter_mut().zip(&takes).map(|(bucket, takes)| Member { bucket, takes }).collect();
            let before: Vec<BucketState> = chain.iter().map(|member| member.bucket.clone()).collect();
            let decision = decide(&mut chain, TimeMs(now));
            if matches!(decision, Decision::Refused { .. }) {
                // Bit by bit what it was: remainders, hours, counters and all.
                assert_eq!(chain.iter().map(|member| member.bucket.clone()).collect::<Vec<_>>(), before);
            }
            decision
        };
        let first = ask_all(now);
        if let Some(wait) = wait_of(&first) {
            let then = wait.ms().and_then(|ms| i64::try_from(ms).ok()).and_then(|ms| now.checked_add(ms));
            if let Some(then) = then {
                prop_assert!(wait_of(&ask_all(then - 1)).is_some());
                prop_assert_eq!(wait_of(&ask_all(then)), None);
            }
        }
    }

    #[test]
    fn never_exactly_when_the_amount_is_above_capacity((state, at, now) in any_moment(), over in up_to(1_000), below in any::<bool>()) {
        let capacity = state.params.capacity_milli;
        let amount = if below { (capacity - over + 1).max(0) } else { capacity + over };
        let wait = wait_of(&ask(&mut bucket_of(state, at), &[take(0, amount)], now));
        prop_assert_eq!(wait == Some(Wait::Never), amount > capacity);
    }

    #[test]
    fn a_refusal_changes_nothing_and_a_grant_takes_exactly_what_was_asked((state, at, now) in any_moment(), amount in up_to(MILLI_MAX)) {
        let mut bucket = bucket_of(state, at);
        let before = bucket.clone();
        let mut refilled = bucket.clone();
        refilled.refill(TimeMs(now));
        let takes = [take(0, amount)];
        let peeked = assess([(&bucket, &takes[..])].into_iter(), TimeMs(now));
        prop_assert_eq!(peeked[0].balance, refilled.limits()[0].balance);
        match ask(&mut bucket, &takes, now) {
            Decision::Refused { reports } => {
                prop_assert_eq!(&bucket, &before);
                prop_assert_eq!(reports, peeked);
            }
            Decision::Granted { reports, .. } => {
                prop_assert!(amount <= before.limits()[0].params.capacity_milli);
                let (found, expected) = (&bucket.limits()[0], &refilled.limits()[0]);
                prop_assert_eq!(found.balance.0, expected.balance.0 - amount);
                // A hard limit never leaves debt.
                prop_assert!(!found.balance.is_negative());
                prop_assert_eq!((found.balance, found.remainder), (reports[0].balance, expected.remainder));
                prop_assert_eq!((found.consumed, bucket.events), (Milli(amount), 1));
                prop_assert_eq!(bucket.refilled_at, refilled.refilled_at);
            }
        }
    }

    /// Waits saturate, they do not wrap: at the bounds of every number the answer is a wait or
    /// never, and is never zero.
    #[test]
    fn extreme_waits_never_panic_or_wrap(
        balance in prop::sample::select(vec![i64::MIN, -MILLI_MAX, -1, 0]), amount in prop::sample::select(vec![0, 1, MILLI_MAX, i64::MAX]),
        behind_ms in prop::sample::select(vec![0, 1, i64::MAX]), params in prop::sample::select(vec![
            (i64::MAX, 1, i64::MAX), (i64::MAX, i64::MAX, 1), (MILLI_MAX, 1_000, PERIOD_MS_MAX), (1, 1, 1),
        ]),
    ) {
        let (capacity_milli, refill_milli, period_ms) = params;
        let limit = state(LimitParams { capacity_milli, refill_milli, period_ms }, balance, 0);
        let deficit = i128::from(amount) - i128::from(balance);
        match wait_for(&limit, Milli(balance), 0, Milli(amount), behind_ms) {
            Wait::Never => prop_assert!(amount > capacity_milli),
            Wait::After(wait) => {
                let exact = (deficit * i128::from(period_ms)).div_euclid(i128::from(refill_milli));
                let shortest = (exact + i128::from(behind_ms)).clamp(1, i128::from(u64::MAX));
                prop_assert!((shortest..=shortest + 1).contains(&i128::from(wait.get())), "{} for {}", wait.get(), shortest);
            }
            Wait::None => prop_assert!(false, "a wait is asked for only when short"),
        }
        // And through the whole decision, with clocks as far apart as they can be.
        for (at, now) in [(i64::MAX, i64::MIN), (i64::MIN, i64::MAX), (0, i64::MAX), (i64::MAX, 0)] {
            let decision = ask(&mut bucket_of(limit.clone(), at), &[take(0, amount)], now);
            prop_assert_eq!(wait_of(&decision) == Some(Wait::Never), amount > capacity_milli);
        }
    }
}
