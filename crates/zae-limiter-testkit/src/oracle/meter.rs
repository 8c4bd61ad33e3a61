//! The leaky meter: admission over any window stays within capacity + rate·t.
//!
//! `level` rises with every grant and leaks at the limit's rate, never below zero. Its height above
//! zero is the most that was admitted beyond `rate·t` in any window that ends now, so one
//! comparison per grant checks every window there is.

use super::bucket::Params;

/// Parts of a millitoken: every period a simulated limit may have, on each of up to 32 shards,
/// divides this many milliseconds, so every leak is whole.
pub(crate) const UNITS: i128 = 32 * 604_800_000;

#[derive(Clone, Debug)]
pub(crate) struct Meter {
    /// What was admitted and has not leaked out, in units.
    level: i128,
    /// The largest capacity in force since the level was last zero, in millitokens.
    capacity_max: i128,
    capacity: i128,
}

impl Meter {
    pub(crate) fn new(capacity: i128) -> Meter {
        Meter { level: 0, capacity_max: capacity, capacity }
    }

    pub(crate) fn allow(&mut self, capacity: i128) {
        self.capacity = capacity;
        self.capacity_max =
            if self.level == 0 { capacity } else { self.capacity_max.max(capacity) };
    }

    /// The largest capacity in force since nothing was open.
    pub(crate) fn capacity_max(&self) -> i128 {
        self.capacity_max
    }

    pub(crate) fn leak(&mut self, elapsed_ms: i128, params: Params) {
        debug_assert_eq!(UNITS % params.period, 0, "the unit divides every period");
        self.lower(elapsed_ms * params.refill * (UNITS / params.period));
    }

    pub(crate) fn give_back(&mut self, milli: i128) {
        self.lower(milli * UNITS);
    }

    fn lower(&mut self, units: i128) {
        self.level = (self.level - units).max(0);
        if self.level == 0 {
            self.capacity_max = self.capacity;
        }
    }

    /// Counts a grant. The error says what was admitted and what would have been allowed.
    pub(crate) fn admit(&mut self, milli: i128) -> Result<(), String> {
        self.admit_within(milli, 0)
    }

    /// As [`Meter::admit`], where clocks that differ may let `allowance` millitokens more through.
    pub(crate) fn admit_within(&mut self, milli: i128, allowance: i128) -> Result<(), String> {
        self.level += milli * UNITS;
        if self.level > (self.capacity_max + allowance) * UNITS {
            let admitted = self.level.div_euclid(UNITS);
            return Err(format!(
                "{admitted} milli were admitted beyond rate·t, the largest capacity was {}",
                self.capacity_max
            ));
        }
        Ok(())
    }
}
