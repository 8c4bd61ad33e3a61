//! How long an idle bucket is kept.
//!
//! A bucket is forgotten only when refill has made it full, because a new bucket is full too. The
//! times here say when that can be; [`crate::BucketState::is_expired_at`] checks it.

use crate::bucket::saturated;
use crate::{Limit, LimitParams};

/// Default number of fill times after which an idle bucket expires.
pub const BUCKET_TTL_MULTIPLIER: u32 = 7;

/// Milliseconds an empty bucket with these parameters needs to be full, rounded up.
#[must_use]
pub fn time_to_fill_ms(params: LimitParams) -> i64 {
    saturated(params.time_for_ms(i128::from(params.capacity_milli), 0))
}

/// How long an untouched bucket with these limits is kept: the slowest time to fill times
/// `multiplier`. `None` when `multiplier` is 0: such buckets are kept for ever.
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
