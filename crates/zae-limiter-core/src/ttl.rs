//! When a bucket may be forgotten.
//!
//! Only ever a bucket that refill has made full: then forgetting it and creating it anew is the
//! same thing.

use crate::{Limit, LimitParams};

/// Default number of fill times after which an idle bucket expires.
pub const BUCKET_TTL_MULTIPLIER: u32 = 7;

/// Milliseconds an empty bucket with these parameters needs to be full, rounded up.
#[must_use]
pub fn time_to_fill_ms(params: LimitParams) -> i64 {
    let numerator = i128::from(params.capacity_milli) * i128::from(params.period_ms);
    let refill = i128::from(params.refill_milli.max(1));
    i64::try_from(numerator.div_euclid(refill) + i128::from(numerator.rem_euclid(refill) != 0))
        .unwrap_or(i64::MAX)
}

/// How long an untouched bucket with these limits is kept: the slowest time to fill times
/// `multiplier`. `None` when `multiplier` is 0, which keeps buckets for ever.
#[must_use]
pub fn bucket_ttl_ms(limits: &[Limit], multiplier: u32) -> Option<i64> {
    if multiplier == 0 {
        return None;
    }
    limits
        .iter()
        .map(|limit| time_to_fill_ms(limit.params()).saturating_mul(i64::from(multiplier)))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(limits: &[&str], multiplier: u32, ttl_s: Option<i64>) {
        let limits: Vec<Limit> = limits.iter().map(|text| text.parse().expect("limit")).collect();
        assert_eq!(
            bucket_ttl_ms(&limits, multiplier),
            ttl_s.map(|s| s * 1000),
            "{limits:?} x {multiplier}"
        );
    }

    #[test]
    fn golden_ttls() {
        check(&["rpm:60/min"], 7, Some(420));
        check(&["rpm:60/min:600"], 7, Some(4200));
        check(&["rpm:100/min", "slow:10/min:1000"], 7, Some(42_000));
        check(&["rpm:60/min"], 14, Some(840));
        check(&["rpm:60/min"], 0, None);
        check(&[], 7, None);
    }

    #[test]
    fn fill_time_rounds_up_and_saturates() {
        assert_eq!(
            time_to_fill_ms(LimitParams {
                capacity_milli: 1000,
                refill_milli: 3000,
                period_ms: 1000
            }),
            334
        );
        let slowest = LimitParams {
            capacity_milli: 1_000_000_000_000_000_000,
            refill_milli: 1000,
            period_ms: 1_000_000_000_000,
        };
        assert_eq!(time_to_fill_ms(slowest), i64::MAX);
    }
}
