//! One limit of a bucket: its balance, and what time does to it.

use super::LimitParams;
use crate::{Limit, LimitName, Milli};

/// One limit of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// The limit's name.
    pub name: LimitName,
    /// The parameters that refill and cap the balance.
    pub params: LimitParams,
    /// The amount left; negative is debt.
    pub balance: Milli,
    /// The part that the last refill could not pay out, in 1/`period_ms` of a millitoken:
    /// `0 <= remainder < period_ms`.
    pub remainder: i64,
    /// Net consumption since the bucket exists: takes plus adjustments minus refunds. The counter
    /// starts anew from the usage of the open hour before it would leave the range of a number,
    /// after about 9.2 · 10^15 tokens.
    pub consumed: Milli,
    /// `consumed` as it was when the open usage hour began.
    pub hour_base: Milli,
}

impl LimitState {
    /// A limit that was not used yet: full.
    #[must_use]
    pub fn full(name: LimitName, params: LimitParams) -> LimitState {
        LimitState {
            name,
            params,
            balance: Milli(params.capacity_milli),
            remainder: 0,
            consumed: Milli::ZERO,
            hour_base: Milli::ZERO,
        }
    }

    /// A limit that the bucket does not carry. It starts empty while folded limits are not full,
    /// because it may be one of them, and full otherwise.
    pub(super) fn first_seen(limit: &Limit, is_folding: bool) -> LimitState {
        let mut state = LimitState::full(limit.name().clone(), limit.params());
        if is_folding {
            state.balance = Milli::ZERO;
        }
        state
    }

    /// The same limit under other parameters, without more than it had.
    pub(super) fn with_params(mut self, params: LimitParams) -> LimitState {
        // A balance is never above its old capacity, so this is the smaller of both.
        self.balance = self.balance.min(Milli(params.capacity_milli));
        // The remainder counts in units of the old rate; under another rate it means something
        // else.
        if (self.params.refill_milli, self.params.period_ms)
            != (params.refill_milli, params.period_ms)
            || self.balance.0 >= params.capacity_milli
        {
            self.remainder = 0;
        }
        self.params = params;
        self
    }

    /// Balance and remainder after `elapsed_ms` more milliseconds.
    pub(crate) fn accrued(&self, elapsed_ms: i64) -> (Milli, i64) {
        let full = (Milli(self.params.capacity_milli), 0);
        if self.balance >= full.0 {
            return full;
        }
        let Some((add, remainder)) = self.params.gain(elapsed_ms, self.remainder) else {
            return (self.balance, self.remainder);
        };
        match i64::try_from(i128::from(self.balance.0) + add) {
            Ok(balance) if Milli(balance) < full.0 => (Milli(balance), remainder),
            // A full limit drops what overflows, and the fraction with it.
            _ => full,
        }
    }

    /// The amount that `elapsed_ms` more milliseconds would add beyond the capacity.
    pub(super) fn overflow(&self, elapsed_ms: i64) -> Milli {
        let Some((add, _)) = self.params.gain(elapsed_ms, self.remainder) else {
            return Milli::ZERO;
        };
        Milli(super::saturated((add - self.lack()).max(0)))
    }

    /// The amount that the balance lacks to be full.
    pub(super) fn lack(&self) -> i128 {
        i128::from(self.params.capacity_milli) - i128::from(self.balance.0)
    }

    /// The usage of the open hour.
    pub(super) fn used_in_hour(&self) -> i128 {
        i128::from(self.consumed.0) - i128::from(self.hour_base.0)
    }

    /// Counts an amount that was used, or given back. The counter of a bucket that has lived long
    /// starts anew; the usage of the open hour stays exact. False, and nothing is counted, when the
    /// usage of the hour alone would not fit.
    pub(crate) fn count(&mut self, delta: Milli) -> bool {
        let Ok(used) = i64::try_from(self.used_in_hour() + i128::from(delta.0)) else {
            return false;
        };
        match self.consumed.0.checked_add(delta.0) {
            Some(consumed) => self.consumed = Milli(consumed),
            None => (self.consumed, self.hour_base) = (Milli(used), Milli::ZERO),
        }
        true
    }
}
