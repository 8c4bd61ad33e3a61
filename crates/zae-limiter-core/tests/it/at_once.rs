//! The usual take in one pass gives what a look and a take give, on any bucket.

use crate::support::*;
use proptest::prelude::*;
use zae_limiter_core::{
    BucketState, ClosedHour, ConfigStamp, Decision, Flag, Lent, LimitState, Milli, Reports, Take,
    TimeMs, Wait, assess,
};

/// The decision about one bucket in two steps: look, then take.
fn in_two_steps(bucket: &mut BucketState, takes: &[Take], now: i64) -> Decision {
    let mut reports: Reports = assess(std::iter::once((&*bucket, takes)), TimeMs(now));
    if reports.iter().any(|report| report.wait != Wait::None) {
        return Decision::Refused { reports };
    }
    let closed: Option<ClosedHour> = bucket.take(takes, TimeMs(now));
    for report in &mut reports {
        report.balance = report.balance.saturating_sub(report.requested);
    }
    Decision::Granted { reports, closed: closed.into_iter().map(|hour| (0, hour)).collect() }
}

fn check(bucket: &BucketState, takes: &[Take], now: i64) -> Result<(), TestCaseError> {
    let (mut in_one, mut in_two) = (bucket.clone(), bucket.clone());
    let expected = in_two_steps(&mut in_two, takes, now);
    let decided = ask(&mut in_one, takes, now);
    prop_assert_eq!(&decided, &expected, "{:?} by {:?} at {}", bucket, takes, now);
    prop_assert_eq!(&in_one, &in_two, "{:?} by {:?} at {}", bucket, takes, now);
    let mut reports = Reports::new();
    let mut at_once = bucket.clone();
    if !at_once.take_at_once(takes, TimeMs(now), &mut reports) {
        prop_assert!(at_once == *bucket && reports.is_empty(), "nothing was changed");
    }
    Ok(())
}

const START: i64 = 500_000 * HOUR_MS + HOUR_MS / 2;

/// One that the shortcut serves, so that the comparison says something.
#[test]
fn the_usual_take_is_made_in_one_pass() {
    let mut bucket =
        BucketState::full(&limits(&["rpm:60/min", "tpm:9/min"]), ConfigStamp(0), TimeMs(START));
    let takes = [take(1, 2_000), take(0, 60_000)];
    for (now, is_made) in [(START, true), (START, false), (START + 60_000, true)] {
        let mut reports = Reports::new();
        assert_eq!(bucket.take_at_once(&takes, TimeMs(now), &mut reports), is_made);
        assert_eq!(reports.len(), if is_made { 2 } else { 0 });
    }
}

#[derive(Clone, Debug)]
enum Event {
    Take(u8, i64),
    Adjust(u8, i64),
    /// Other limits, which leave gaps and retired limits.
    Sync(usize),
    Pass(i64),
    /// The lead of a clock that was ahead.
    Lead(i64, bool),
    Lend(u8, i64),
}

const SETS: [&[&str]; 4] = [
    &["a:60/min", "b:7/sec:20"],
    &["a:3/min", "b:7/sec:20"],
    &["b:7/sec:20"],
    &["a:60/min", "b:7/sec:20", "c:1/day:9", "d:100/hour", "e:50/min"],
];

fn event() -> impl Strategy<Value = Event> {
    let hour = HOUR_MS;
    prop_oneof![
        4 => (0..5_u8, 0..40_000_i64).prop_map(|(limit, milli)| Event::Take(limit, milli)),
        1 => (0..5_u8, -30_000..90_000_i64).prop_map(|(limit, milli)| Event::Adjust(limit, milli)),
        1 => (0..SETS.len()).prop_map(Event::Sync),
        4 => prop_oneof![0..5_000_i64, -200..0_i64, Just(hour), -hour..0_i64].prop_map(Event::Pass),
        1 => (0..200_000_i64, any::<bool>()).prop_map(|(ms, is_led)| Event::Lead(ms, is_led)),
        1 => (0..5_u8, 1..9_000_i64).prop_map(|(limit, milli)| Event::Lend(limit, milli)),
    ]
}

/// A limit in any state, with counters near their ends.
fn counted() -> impl Strategy<Value = LimitState> {
    let end = prop_oneof![Just(0_i64), Just(i64::MAX), Just(i64::MIN), any::<i64>()];
    let near = |end: i64, by: i64| end.saturating_add(if end > 0 { -by } else { by });
    (any_state(), end.clone(), end, up_to(MILLI_MAX)).prop_map(
        move |(state, consumed, base, by)| LimitState {
            consumed: Milli(near(consumed, by)),
            hour_base: Milli(base),
            ..state
        },
    )
}

proptest! {
    #[test]
    fn one_pass_is_two_steps_in_any_state(
        state in counted(),
        passed_ms in prop_oneof![Just(0_i64), -100_000..100_000_i64, up_to(DAY_MS)],
        amount in up_to(MILLI_MAX),
    ) {
        let mut bucket = bucket_of(state, START);
        bucket.hour = u32::try_from(START / HOUR_MS).expect("a small number");
        for amount in [0, amount] {
            check(&bucket, &[take(0, amount)], START + passed_ms)?;
        }
    }

    #[test]
    fn one_pass_is_two_steps_after_any_events(events in prop::collection::vec(event(), 1..40)) {
        let mut set = 0;
        let mut bucket = BucketState::full(&limits(SETS[set]), ConfigStamp(0), TimeMs(START));
        bucket.flag = Flag::Enabled;
        let mut now = START;
        for event in events {
            let index = |limit: u8| limit.min(u8::try_from(SETS[set].len() - 1).unwrap_or(0));
            match event {
                Event::Take(limit, milli) => {
                    let takes = [take(index(limit), milli)];
                    check(&bucket, &takes, now)?;
                    if index(0) != index(1) {
                        check(&bucket, &[take(1, 1_000), take(0, milli)], now)?;
                    }
                    ask(&mut bucket, &takes, now);
                }
                Event::Adjust(limit, milli) => {
                    let receipt = limits(SETS[set])[usize::from(index(limit))].clone();
                    bucket.adjust(&receipt, Milli(milli), TimeMs(now));
                }
                Event::Sync(other) => {
                    set = other;
                    bucket.sync(&limits(SETS[set]), ConfigStamp(0), TimeMs(now)).expect("few limits");
                }
                Event::Pass(ms) => now += ms,
                Event::Lead(ms, is_led) => bucket.restore_lead(ms, is_led),
                Event::Lend(limit, milli) => {
                    let name = limits(SETS[set])[usize::from(index(limit))].name().clone();
                    let until = TimeMs(bucket.refilled_at.0 + 2_500);
                    let slot = bucket.refilled_at.0 / 2_500;
                    let sums = vec![(name, [Milli(milli), Milli::ZERO])];
                    bucket.restore_loans(Some(Lent { until, slot, sums }));
                }
            }
        }
    }
}
