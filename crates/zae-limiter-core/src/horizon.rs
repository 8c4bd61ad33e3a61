//! The time up to which a sweep may act.
//!
//! A sweep deletes, and a deletion cannot be undone. By a clock that is thirteen hours ahead every
//! drained bucket is full; by a clock that is three months ahead every audit event is old. So a
//! sweep acts on a time that more than one look at the clock confirms. A small step is believed: a
//! sweep every minute sees time pass. A leap is believed once another sweep, an hour to eight days
//! later, sees that time has gone on from there, and no sweep in between has seen an earlier time.

use crate::TimeMs;

/// A sweep believes its clock when it comes no later than this after the sweep before.
pub const SWEEP_STEP_MAX_MS: i64 = 120_000;

/// A clock that has leapt is believed after this long.
pub const SWEEP_LEAP_CONFIRMED_MS: i64 = 3_600_000;

/// A clock that is seen this much later has leapt again. Longer than the week between two sweeps of
/// a careful operator.
pub const SWEEP_LEAP_CONFIRMED_MAX_MS: i64 = 8 * 24 * 3_600_000;

/// The observations of the clock by sweeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepHorizon {
    /// The latest time that is believed.
    pub proven: Option<TimeMs>,
    /// When the clock was first seen after a leap that is not believed yet.
    pub leapt_to: Option<TimeMs>,
}

impl SweepHorizon {
    /// Looks at the clock. Returns the time up to which a sweep may act; `None` when no time is
    /// confirmed yet.
    ///
    /// ```
    /// use zae_limiter_core::{SweepHorizon, TimeMs};
    ///
    /// let mut horizon = SweepHorizon { proven: Some(TimeMs(0)), leapt_to: None };
    /// assert_eq!(horizon.observe(TimeMs(60_000)), Some(TimeMs(60_000)), "a minute later");
    /// let day = TimeMs(86_400_000);
    /// assert_eq!(horizon.observe(day), Some(TimeMs(60_000)), "a day later: not yet");
    /// let hour_later = day.plus_ms(3_600_000);
    /// assert_eq!(horizon.observe(hour_later), Some(hour_later), "an hour after that");
    /// ```
    pub fn observe(&mut self, now: TimeMs) -> Option<TimeMs> {
        let is_step = self.proven.is_some_and(|proven| now.since(proven) <= SWEEP_STEP_MAX_MS);
        let since_leap_ms = self.leapt_to.map(|leapt_to| now.since(leapt_to));
        let confirmed = SWEEP_LEAP_CONFIRMED_MS..=SWEEP_LEAP_CONFIRMED_MAX_MS;
        let is_confirmed = since_leap_ms.is_some_and(|ms| confirmed.contains(&ms));
        if is_step || is_confirmed {
            // A step back is believed at once: it deletes nothing.
            *self = SweepHorizon { proven: Some(now), leapt_to: None };
        } else {
            let is_same_leap =
                since_leap_ms.is_some_and(|ms| (0..SWEEP_LEAP_CONFIRMED_MS).contains(&ms));
            self.leapt_to = if is_same_leap { self.leapt_to } else { Some(now) };
        }
        self.proven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;

    fn begun() -> SweepHorizon {
        SweepHorizon { proven: Some(TimeMs(0)), leapt_to: None }
    }

    #[test]
    fn a_clock_that_flaps_is_never_believed() {
        let mut horizon = begun();
        // A sweep every minute by a right clock, and one at thirteen hours ahead, for a day.
        for minute in 1..=1_440 {
            let now = TimeMs(minute * MINUTE);
            assert_eq!(horizon.observe(now), Some(now), "the right clock");
            assert_eq!(
                horizon.observe(now.plus_ms(13 * HOUR)),
                Some(now),
                "the one ahead, minute {minute}"
            );
        }
    }

    #[test]
    fn a_leap_is_believed_after_an_hour_without_contradiction() {
        let mut horizon = begun();
        assert_eq!(horizon.observe(TimeMs(13 * HOUR)), Some(TimeMs(0)));
        assert_eq!(horizon.observe(TimeMs(14 * HOUR - 1)), Some(TimeMs(0)));
        assert_eq!(horizon.observe(TimeMs(14 * HOUR)), Some(TimeMs(14 * HOUR)));
    }

    /// An operator who sweeps once a week is a week late each time, and is believed all the same.
    #[test]
    fn a_leap_is_confirmed_by_the_sweep_of_the_next_week() {
        let (week, day) = (7 * 24 * HOUR, 24 * HOUR);
        let mut horizon = begun();
        assert_eq!(horizon.observe(TimeMs(week)), Some(TimeMs(0)), "a leap");
        assert_eq!(horizon.observe(TimeMs(2 * week + day)), Some(TimeMs(2 * week + day)));
        let mut horizon = begun();
        assert_eq!(horizon.observe(TimeMs(week)), Some(TimeMs(0)), "a leap");
        assert_eq!(horizon.observe(TimeMs(2 * week + day + 1)), Some(TimeMs(0)), "one more leap");
    }

    #[test]
    fn a_clock_that_leaps_again_and_again_is_not_believed() {
        let mut horizon = begun();
        for _ in 0..20 {
            assert_eq!(horizon.observe(TimeMs(13 * HOUR)), Some(TimeMs(0)));
            assert_eq!(horizon.observe(TimeMs(91 * 24 * HOUR)), Some(TimeMs(0)));
        }
    }

    #[test]
    fn an_earlier_time_begins_the_hour_anew() {
        let mut horizon = begun();
        horizon.observe(TimeMs(13 * HOUR));
        assert_eq!(
            horizon.observe(TimeMs(2 * HOUR)),
            Some(TimeMs(0)),
            "a leap too, to an earlier time"
        );
        assert_eq!(
            horizon.observe(TimeMs(3 * HOUR)),
            Some(TimeMs(3 * HOUR)),
            "an hour of that clock"
        );
    }

    #[test]
    fn the_first_look_proves_nothing() {
        let mut horizon = SweepHorizon::default();
        assert_eq!(horizon.observe(TimeMs(0)), None);
        assert_eq!(horizon.observe(TimeMs(HOUR)), Some(TimeMs(HOUR)));
    }

    #[test]
    fn going_back_is_believed_at_once() {
        let mut horizon = begun();
        horizon.observe(TimeMs(MINUTE));
        assert_eq!(horizon.observe(TimeMs(-9 * HOUR)), Some(TimeMs(-9 * HOUR)));
    }
}
