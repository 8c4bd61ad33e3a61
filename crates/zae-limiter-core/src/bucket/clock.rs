//! The time of a bucket, and clocks that disagree with it.
//!
//! A bucket has one refill instant, and several processes move it, each by its own clock. A clock
//! that is a little behind waits until it has caught up. A clock that is far behind shows that one
//! of the two was wrong: the bucket goes on by the clock that is behind, and remembers the other's
//! **lead**, so that the time it has paid for is not paid again.

use super::BucketState;
use crate::TimeMs;

/// How far behind the time of a bucket a clock may be and still wait until it has caught up. The
/// bucket goes on by a clock that is further behind.
pub const CLOCK_BACK_MAX_MS: i64 = 60_000;

impl BucketState {
    /// How far ahead of the bucket's time a clock was that has been paid already; 0 when clocks
    /// have agreed so far.
    ///
    /// Say one process takes at 10:00 by a clock that shows 10:00 in ten years: the bucket is
    /// refilled for ten years. For the next process it is 10:00 today: the bucket goes on from
    /// there, and remembers ten years of lead. When the first process comes back a minute later by
    /// its own clock, it is paid that minute, not ten years again.
    #[must_use]
    pub fn lead_ms(&self) -> i64 {
        self.gaps.lead_ms()
    }

    /// True when the refill instant was set by the clock that is ahead, less its lead, and not by
    /// one of the others.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.gaps.is_led()
    }

    /// Puts back a lead read from storage.
    pub fn restore_lead(&mut self, lead_ms: i64, is_led: bool) {
        self.gaps.set_lead(lead_ms, is_led);
    }

    /// True when the bucket's time is so far ahead of a clock that one of the two was wrong.
    /// [`BucketState::refill`] goes on by the clock then. The store writes that even when a request
    /// is refused, or the request would be refused for ever.
    #[must_use]
    pub fn is_far_ahead_of(&self, now: TimeMs) -> bool {
        self.refilled_at.since(now) > CLOCK_BACK_MAX_MS
    }

    /// The bucket's own time when a clock shows `now`. The lead is taken off a clock that was ahead
    /// and is ahead again.
    pub(super) fn own_time(&self, now: TimeMs) -> TimeMs {
        let lead_ms = self.lead_ms();
        let led = now.plus_ms(lead_ms.saturating_neg());
        if lead_ms > 0 && led.since(self.refilled_at) >= -CLOCK_BACK_MAX_MS { led } else { now }
    }

    /// Milliseconds since the last refill, by a clock that shows `now`. Nothing accrues unless the
    /// number is positive; a negative number says how long the clock needs to catch up.
    pub(crate) fn elapsed_at(&self, now: TimeMs) -> i64 {
        if self.is_far_ahead_of(now) { 0 } else { self.own_time(now).since(self.refilled_at) }
    }

    /// Goes on by a clock that is behind. The time up to the refill instant is paid, and stays paid
    /// as lead. One lead is remembered, that of the clock that came last: if leads were added up,
    /// two clocks that take turns would be paid every time.
    pub(super) fn go_back_to(&mut self, now: TimeMs) {
        let ahead_ms = self.refilled_at.since(now);
        let lead_ms = if self.is_led() { self.lead_ms() } else { 0 };
        self.gaps.set_lead(lead_ms.saturating_add(ahead_ms), false);
        self.refilled_at = now;
        self.gaps.roll_loans(now);
    }
}
