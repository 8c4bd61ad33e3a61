//! The real clock of Linux. Asked directly it costs two thirds of what the standard library makes
//! of it, and the kernel keeps a reading of its last tick, which costs a seventh.
#![expect(clippy::disallowed_methods, reason = "one of the two places that read the real clock")]

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use zae_limiter_core::TimeMs;

/// A moment of the clock that is never set, since the machine was started.
pub(super) type Monotonic = Duration;

/// The longest tick of a kernel: 100 a second.
const TICK_MAX: Duration = Duration::from_millis(10);

/// The wall clock. A clock before 1970 counts as 1970: nothing refills until it has been set right.
#[inline]
pub(super) fn now() -> TimeMs {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
    TimeMs(tv_sec.saturating_mul(1_000).saturating_add(tv_nsec / 1_000_000).max(0))
}

pub(super) fn monotonic() -> Monotonic {
    duration(clock_gettime(ClockId::Monotonic))
}

/// Not before [`monotonic`]: the last tick, and the longest time until the next.
pub(super) fn monotonic_at_most() -> Monotonic {
    duration(clock_gettime(ClockId::MonotonicCoarse)) + TICK_MAX
}

pub(super) fn since(started: Monotonic, at: Monotonic) -> Duration {
    at.saturating_sub(started)
}

fn duration(Timespec { tv_sec, tv_nsec }: Timespec) -> Duration {
    // Neither is ever negative, nor are there a billion nanoseconds.
    Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
}
