//! The usage of a bucket, hour by hour.

use super::{BucketState, LimitState};
use crate::time::HOUR_MS;
use crate::{LimitName, Milli, TimeMs, UsageWindow, WaitMs};

/// The usage of an hour that is over, to be added to the usage history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedHour {
    /// Start of the hour.
    pub start: TimeMs,
    /// Net consumption in that hour per limit; limits without any are left out.
    pub used: Vec<(LimitName, Milli)>,
    /// Number of grants in that hour.
    pub events: u32,
}

impl BucketState {
    /// Closes the open usage hour if `now` lies in a later one, and returns its usage for the
    /// history. A clock that went back a little keeps counting in the open hour. A clock that went
    /// back further closes the hour too, or all usage would be counted in a far future. Usage is
    /// thus filed under the hour that its user's clock showed, and an hour may be closed more than
    /// once.
    pub fn roll_hour(&mut self, now: TimeMs) -> Option<ClosedHour> {
        let hour = hour_of(now);
        if hour == self.hour || hour.saturating_add(1) == self.hour {
            return None;
        }
        let closed = self.open_hour();
        for limit in &mut self.limits {
            limit.hour_base = limit.consumed;
        }
        self.hour = hour;
        self.events = 0;
        (!closed.used.is_empty() || closed.events > 0).then_some(closed)
    }

    /// True when `now` lies in a later hour than the open one.
    pub(crate) fn is_later_hour(&self, now: TimeMs) -> bool {
        hour_of(now) > self.hour
    }

    /// The usage of the open hour so far.
    #[must_use]
    pub fn open_hour(&self) -> ClosedHour {
        let used = self
            .limits
            .iter()
            .map(|limit| (limit.name.clone(), Milli(super::saturated(limit.used_in_hour()))))
            .filter(|(_, used)| *used != Milli::ZERO)
            .collect();
        ClosedHour { start: TimeMs(i64::from(self.hour) * HOUR_MS), used, events: self.events }
    }

    /// How long until the usage of the open hour can count `amount` of a limit; `None` when it can
    /// now.
    pub(crate) fn wait_to_count(
        &self,
        limit: &LimitState,
        amount: Milli,
        now: TimeMs,
    ) -> Option<WaitMs> {
        if i64::try_from(limit.used_in_hour() + i128::from(amount.0)).is_ok()
            || hour_of(now) > self.hour
        {
            return None;
        }
        let next_hour = TimeMs((i64::from(self.hour) + 1).saturating_mul(HOUR_MS));
        Some(WaitMs::at_least_one(u64::try_from(next_hour.since(now)).unwrap_or(1)))
    }
}

/// Hours since the epoch; the first and the last hour there is stand for those beyond them.
pub(super) fn hour_of(now: TimeMs) -> u32 {
    let start = UsageWindow::Hourly.start_of(now);
    u32::try_from(start.0.div_euclid(HOUR_MS)).unwrap_or(if start.0 < 0 { 0 } else { u32::MAX })
}
