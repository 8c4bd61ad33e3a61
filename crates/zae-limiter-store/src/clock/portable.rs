//! The real clock, as the standard library has it.
#![expect(clippy::disallowed_methods, reason = "one of the two places that read the real clock")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use zae_limiter_core::TimeMs;

/// A moment of the clock that is never set.
pub(super) type Monotonic = Instant;

/// The wall clock. A clock before 1970 counts as 1970: nothing refills until it has been set right.
pub(super) fn now() -> TimeMs {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimeMs(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

pub(super) fn monotonic() -> Monotonic {
    Instant::now()
}

/// Not before [`monotonic`].
pub(super) fn monotonic_at_most() -> Monotonic {
    monotonic()
}

pub(super) fn since(started: Monotonic, at: Monotonic) -> Duration {
    at.saturating_duration_since(started)
}
