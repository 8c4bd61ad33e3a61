//! The arithmetic of refill: how much a span of time adds, and how long an amount takes. This is
//! the only file that multiplies times with rates.

use crate::Milli;

/// The three numbers a bucket keeps of a [`crate::Limit`], in the units it computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitParams {
    /// The most the balance can be.
    pub capacity_milli: i64,
    /// The amount added in one period.
    pub refill_milli: i64,
    /// The length of that period.
    pub period_ms: i64,
}

impl LimitParams {
    /// The most the balance can be.
    #[must_use]
    pub fn full(&self) -> Milli {
        Milli(self.capacity_milli)
    }

    /// The amount that `elapsed_ms` and the `remainder` of the refill before add to a balance, and
    /// the new remainder; without regard to the capacity. `None` when nothing accrues: a clock that
    /// went back adds nothing, and neither do parameters no limit can have (a damaged row must not
    /// panic).
    #[inline]
    pub(crate) fn gain(&self, elapsed_ms: i64, remainder: i64) -> Option<(i128, i64)> {
        let LimitParams { refill_milli, period_ms, .. } = *self;
        if elapsed_ms <= 0 || refill_milli <= 0 || period_ms <= 0 {
            return None;
        }
        // The product nearly always fits 64 bits, where division is several times cheaper.
        let product =
            elapsed_ms.checked_mul(refill_milli).and_then(|units| units.checked_add(remainder));
        Some(match product {
            Some(units) => (i128::from(units.div_euclid(period_ms)), units.rem_euclid(period_ms)),
            None => {
                let units =
                    i128::from(elapsed_ms) * i128::from(refill_milli) + i128::from(remainder);
                let period = i128::from(period_ms);
                // A remainder is below `period_ms`, so it always fits.
                (units.div_euclid(period), i64::try_from(units.rem_euclid(period)).unwrap_or(0))
            }
        })
    }

    /// Milliseconds in which `amount` accrues on top of `remainder`, rounded up. A rate of zero,
    /// which only a damaged row has, counts as one millitoken in a period.
    pub(crate) fn time_for_ms(&self, amount: i128, remainder: i64) -> i128 {
        let units = amount * i128::from(self.period_ms) - i128::from(remainder);
        let refill = i128::from(self.refill_milli.max(1));
        units.div_euclid(refill) + i128::from(units.rem_euclid(refill) != 0)
    }

    /// The amount that `elapsed_ms` and the `remainder` of the refill before add to a balance, and
    /// the new remainder; without regard to the capacity. A clock that went back adds nothing.
    #[must_use]
    pub fn accrual(&self, elapsed_ms: i64, remainder: i64) -> (i64, i64) {
        self.gain(elapsed_ms, remainder)
            .map_or((0, remainder), |(add, remainder)| (saturated(add), remainder))
    }

    /// The most that `elapsed_ms` can add to a balance, whatever the remainder was: rounded up.
    #[must_use]
    pub fn accrual_at_most(&self, elapsed_ms: i64) -> i64 {
        // A remainder is below one whole unit, so one more than the quotient rounded down is
        // enough.
        self.gain(elapsed_ms, 0).map_or(0, |(add, _)| saturated(add).saturating_add(1))
    }

    /// How long it takes to gain `amount`, in milliseconds, rounded up.
    #[must_use]
    pub fn time_to_gain_ms(&self, amount: i64) -> i64 {
        if amount <= 0 {
            return 0;
        }
        if self.refill_milli <= 0 {
            return i64::MAX;
        }
        saturated(self.time_for_ms(i128::from(amount), 0))
    }
}

pub(crate) fn saturated(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
