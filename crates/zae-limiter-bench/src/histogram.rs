//! Latencies in nanoseconds, to about 1 %.

use hdrhistogram::Histogram;

/// Longer latencies count as this: a minute.
const NANOS_MAX: u64 = 60_000_000_000;
const DIGITS: u8 = 2;

/// An empty histogram. Its size is fixed, so that recording never allocates.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOS_MAX, DIGITS).expect("the bounds are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_within_three_per_cent() {
        for value in
            (1..200).chain([1_000, 12_345, 1 << 20, (1 << 20) + 1, 987_654_321, NANOS_MAX / 3])
        {
            let mut histogram = histogram();
            histogram.saturating_record(value);
            let found = histogram.value_at_quantile(0.5);
            assert!(found.abs_diff(value) <= value / 32, "{value} is counted as {found}");
        }
    }

    #[test]
    fn quantiles_are_ranks() {
        let mut one = histogram();
        assert_eq!(one.value_at_quantile(0.5), 0);
        (1..=20).for_each(|value| one.saturating_record(value));
        let quantiles = [0.5, 0.99, 1.0].map(|part| one.value_at_quantile(part));
        assert_eq!(quantiles, [10, 20, 20]);
        let mut both = histogram();
        both.add(&one).unwrap();
        both.saturating_record(31);
        assert_eq!(both.value_at_quantile(1.0), 31);
        both.saturating_record(u64::MAX);
        assert!(both.value_at_quantile(1.0) >= NANOS_MAX, "longer than a minute is a minute");
    }
}
