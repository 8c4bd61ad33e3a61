//! When a bucket may be forgotten.

use zae_limiter_core::{BUCKET_TTL_MULTIPLIER, LimitParams, Milli, TimeMs, time_to_fill_ms};

use crate::constants::BUCKET_TTL_MIN_MS;

/// How long a limit with this balance needs until it may be forgotten: seven fill times, of which
/// six are the debt that charges may add without touching the expiry, and the time to earn what it
/// owes and hides.
pub(crate) fn keep_ms(params: LimitParams, balance: Milli, gap: Milli) -> i64 {
    let owed = balance.min(Milli::ZERO).negated().saturating_add(gap);
    time_to_fill_ms(params)
        .saturating_mul(i64::from(BUCKET_TTL_MULTIPLIER))
        .saturating_add(params.time_to_gain_ms(owed.0))
}

/// The expiry in seconds of a bucket written now.
pub(crate) fn expiry_s(now: TimeMs, own_ttl_ms: i64, keep_ms: i64) -> i64 {
    let kept_ms = own_ttl_ms.max(keep_ms).max(BUCKET_TTL_MIN_MS);
    // The largest number that is certainly in the future; the exact one does not matter so far out.
    now.0.saturating_add(kept_ms).saturating_add(999).div_euclid(1000)
}
