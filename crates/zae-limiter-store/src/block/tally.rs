//! What a cell counts: the requests since its last order, and the use that its bucket does not
//! know.

use smallvec::SmallVec;
use zae_limiter_core::{Milli, TimeMs};

use super::cell::CLOCK_BACK_MAX_MS;
use super::options::REQUESTS_MIN;
use crate::{Delta, MemberTake};

/// An amount per limit, as the limits in force number them.
pub(super) type Amounts = SmallVec<[Milli; 4]>;

/// The requests since the last order.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) since: TimeMs,
    pub(super) requests: u32,
    sums: Amounts,
    /// What was given back.
    refunds: Amounts,
    /// Which limits were declared.
    declared: u64,
}

/// Use that the bucket does not know yet.
#[derive(Default)]
pub(super) struct Unreported {
    pub(super) used: Amounts,
    pub(super) grants: i64,
    pub(super) used_at: TimeMs,
}

impl Watch {
    pub(super) fn since(now: TimeMs) -> Watch {
        Watch { since: now, ..Watch::default() }
    }

    pub(super) fn note(&mut self, member: &MemberTake<'_>, now: TimeMs) {
        // A clock that was set back says nothing about the time that has passed.
        if self.is_slow(now) || self.since.since(now) > CLOCK_BACK_MAX_MS {
            *self = Watch::since(now);
        }
        self.requests = self.requests.saturating_add(1);
        for take in member.takes {
            self.declared |= 1_u64.checked_shl(u32::from(take.limit)).unwrap_or(0);
            at(&mut self.sums, take.limit, |sum| *sum = sum.saturating_add(take.amount));
        }
    }

    pub(super) fn note_refunds(&mut self, deltas: &[Delta]) {
        for delta in deltas.iter().filter(|delta| delta.amount.is_negative()) {
            at(&mut self.refunds, delta.limit, |sum| *sum = sum.saturating_sub(delta.amount));
        }
    }

    /// The refunds that may come before the next requests have made room for them: as many as came
    /// since the last order.
    pub(super) fn refunds(&self, limit: u8) -> Milli {
        self.refunds.get(usize::from(limit)).copied().unwrap_or_default()
    }

    /// Fewer requests than a block is worth: what is watched starts anew.
    fn is_slow(&self, now: TimeMs) -> bool {
        let elapsed_s = now.since(self.since) / 1_000;
        i64::from(self.requests) < REQUESTS_MIN.saturating_mul(elapsed_s)
    }

    pub(super) fn has(&self, limit: u8) -> bool {
        self.declared & 1_u64.checked_shl(u32::from(limit)).unwrap_or(0) != 0
    }

    /// The mean amount of a request, rounded up.
    pub(super) fn mean(&self, limit: u8) -> Milli {
        let sum = self.sums.get(usize::from(limit)).copied().unwrap_or_default();
        let requests = i64::from(self.requests.max(1));
        Milli(sum.0 / requests + i64::from(sum.0 % requests != 0))
    }
}

impl Unreported {
    pub(super) fn is_empty(&self) -> bool {
        self.grants == 0 && self.used.iter().all(|used| *used == Milli::ZERO)
    }

    pub(super) fn is_older_than(&self, ms: i64, now: TimeMs) -> bool {
        !self.is_empty() && now.since(self.used_at) > ms
    }

    pub(super) fn add(&mut self, limit: u8, amount: Milli) {
        at(&mut self.used, limit, |used| *used = used.saturating_add(amount));
    }

    pub(super) fn merge(&mut self, other: Unreported) {
        for (limit, used) in (0_u8..).zip(other.used) {
            self.add(limit, used);
        }
        self.grants += other.grants;
        self.used_at = self.used_at.max(other.used_at);
    }
}

fn at(amounts: &mut Amounts, limit: u8, change: impl FnOnce(&mut Milli)) {
    let index = usize::from(limit);
    if amounts.len() <= index {
        amounts.resize(index + 1, Milli::ZERO);
    }
    change(&mut amounts[index]);
}

pub(super) fn sum(amounts: &[Milli]) -> Milli {
    amounts.iter().fold(Milli::ZERO, |sum, amount| sum.saturating_add(*amount))
}
