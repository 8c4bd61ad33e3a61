//! The usual take in one pass: where nothing but the balances, the refill instant and the counters
//! of the open hour can change, what was computed to decide is what is written.

use super::hours::hour_of;
use super::{BucketState, LimitState};
use crate::{LimitReport, Milli, Reports, Take, TimeMs, Wait};

/// Limits whose new balances are kept between the look and the write. A bucket with more is decided
/// as ever.
const LIMITS_AT_ONCE_MAX: usize = 4;

impl BucketState {
    /// Takes, and adds a report per take to `reports`, which is empty. False, and neither was
    /// changed, when a take is short, or when more than the usual would change: gaps, a lead,
    /// loans, retired limits, another hour, a clock that went back. [`decide`](crate::decide) then
    /// decides.
    #[inline]
    pub fn take_at_once(&mut self, takes: &[Take], now: TimeMs, reports: &mut Reports) -> bool {
        let elapsed_ms = now.since(self.refilled_at);
        let is_usual = elapsed_ms >= 0
            && self.gaps.is_nothing()
            && self.limits.len() == self.active()
            && self.limits.len() <= LIMITS_AT_ONCE_MAX
            && self.is_open_hour(now);
        if !is_usual {
            return false;
        }
        debug_assert!(
            takes.iter().all(|take| !take.amount.is_negative()),
            "amounts are never negative: that would mint"
        );
        let limits = &mut self.limits[..];
        let mut refilled = [(Milli::ZERO, 0); LIMITS_AT_ONCE_MAX];
        for (limit, refilled) in limits.iter().zip(&mut refilled) {
            *refilled = limit.accrued(elapsed_ms);
        }
        let passes = |take: &Take| {
            let index = usize::from(take.limit);
            refilled[index].0 >= take.amount && limits[index].counts_on(take.amount)
        };
        if !takes.iter().all(passes) {
            return false;
        }
        self.refilled_at = now;
        for (limit, refilled) in limits.iter_mut().zip(refilled) {
            (limit.balance, limit.remainder) = refilled;
        }
        for take in takes {
            let limit = &mut limits[usize::from(take.limit)];
            limit.balance = limit.balance.saturating_sub(take.amount);
            limit.consumed = limit.consumed.saturating_add(take.amount);
            reports.push(LimitReport {
                member: 0,
                limit: take.limit,
                balance: limit.balance,
                requested: take.amount,
                wait: Wait::None,
            });
        }
        self.events = self.events.saturating_add(1);
        true
    }

    /// True when `now` lies in the open hour itself.
    fn is_open_hour(&self, now: TimeMs) -> bool {
        hour_of(now) == self.hour
    }
}

impl LimitState {
    /// Whether the counters just go on when `amount` is counted: neither the sum of the hour nor
    /// the counter leaves its range.
    fn counts_on(&self, amount: Milli) -> bool {
        let used = self.consumed.0.checked_sub(self.hour_base.0);
        used.and_then(|used| used.checked_add(amount.0)).is_some()
            && self.consumed.0.checked_add(amount.0).is_some()
    }
}
