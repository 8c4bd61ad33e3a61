//! Counts and histograms.

use std::time::Duration;

use zae_limiter_loadtest::{Outcome, Tally};

/// Latencies over five orders of magnitude, always the same ones.
pub(crate) fn nanos(count: u64) -> Vec<u64> {
    (0..count).map(|n| 1_000 + (n * 2_654_435_761) % 97 * (1 + n % 1_000_003 * 7)).collect()
}

pub(crate) fn tally(values: &[u64]) -> Tally {
    let mut tally = Tally::default();
    for value in values {
        let time = Duration::from_nanos(*value);
        tally.record(&Outcome::Granted, time, time);
    }
    tally
}

#[test]
fn percentiles_are_those_of_a_sorted_list() {
    let mut values = nanos(20_000);
    let tally = tally(&values);
    values.sort_unstable();
    for (part, rank) in [(0.5, 10_000), (0.95, 19_000), (0.99, 19_800), (0.999, 19_980)] {
        let exact = values[rank - 1] as f64 / 1_000.0;
        let found = tally.granted.quantile_us(part);
        assert!((found - exact).abs() <= exact / 500.0 + 0.1, "{part}: {found} is not {exact}");
    }
}

#[test]
fn merged_histograms_are_that_of_all_calls_also_after_they_were_sent() {
    let values = nanos(9_000);
    let whole = tally(&values);
    let mut merged = Tally::default();
    for part in values.chunks(1_234) {
        let sent = serde_json::to_string(&tally(part)).unwrap();
        merged.merge(&serde_json::from_str(&sent).unwrap());
    }
    assert_eq!(merged.granted.count(), 9_000);
    assert_eq!(merged.granted.summary(), whole.granted.summary());
    assert!(merged.granted.slots().eq(whole.granted.slots()));
}

#[test]
fn refusals_and_errors_are_counted_apart() {
    let mut tally = tally(&[1_000]);
    let time = Duration::from_micros(5);
    tally.record(&Outcome::Refused, time, time);
    tally.record(&Outcome::Failed("unavailable".to_owned()), time, time);
    let counts = (tally.granted.count(), tally.refused.count(), tally.failed.count());
    assert_eq!(counts, (1, 1, 1));
    assert_eq!(tally.errors["unavailable"], 1);
}
