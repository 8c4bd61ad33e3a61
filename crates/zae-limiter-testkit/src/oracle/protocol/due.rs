//! What the counters of a client must say, by what has landed and what it was told.

use std::ops::RangeInclusive;

use zae_limiter_dynamodb::Counters;

use crate::oracle::Broken;

/// A count that is known, but for calls that never came to an end and for buckets that could not be
/// read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    least: u64,
    most: u64,
}

impl Span {
    pub(crate) fn add(&mut self, count: RangeInclusive<u64>) {
        self.least += count.start();
        self.most += count.end();
    }

    fn holds(self, count: u64) -> bool {
        (self.least..=self.most).contains(&count)
    }
}

/// What is due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Due {
    /// Operations that landed more than once.
    pub(crate) doubled: u64,
    /// Takes that landed and that neither a lease nor a refund knows of.
    pub(crate) unheard: u64,
    /// Credits that were not answered.
    pub(crate) credits_unknown: Span,
    /// Credits that were given up without an error of their own.
    pub(crate) credits_lost: Span,
    /// Limits that a charge of the last resort has left out.
    pub(crate) charges_lost: Span,
}

impl Due {
    /// Debits are counted when they may have landed unheard, so there may be more of them than
    /// really have. What becomes of a credit is known: the count is exact.
    pub(crate) fn check(&self, counters: &Counters) -> Result<(), Broken> {
        let is_right = self.doubled <= counters.debits_resent
            && self.unheard <= counters.debits_unknown
            && self.credits_unknown.holds(counters.credits_unknown)
            && self.credits_lost.holds(counters.credits_lost)
            && self.charges_lost.holds(counters.charges_lost);
        if is_right {
            Ok(())
        } else {
            Err(format!("counted {counters:?}, the table says {self:?}"))
        }
    }
}
