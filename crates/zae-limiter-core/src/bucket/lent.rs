//! What a bucket has lent: tokens that holders have debited ahead of need and may not have spent
//! yet, see [`crate::Stock`].
//!
//! A bucket must know how much that is, because of refunds. Say a bucket of 100 has lent 20, so it
//! holds 80; to all callers together it is full. A refund of 20 fits the bucket, and a moment later
//! the bucket and the holder grant 120. An exact bucket would have dropped the refund. So a credit
//! stops below the capacity by what is lent, and by what refills until the last of it is dead.
//!
//! The count must not leak, although holders crash. Each loan is counted in the slot of time that
//! it was made in, a slot is as long as a loan can last, and only the last two slots count.

use super::BucketState;
use crate::{LimitName, Milli, TimeMs};

/// How long a holder may spend a loan at most, in milliseconds by its own clock.
pub const LENT_MAX_MS: i64 = 2_000;

/// How far the clocks of processes may differ without a loan being counted for too short a time.
pub(crate) const CLOCKS_MS: i64 = 500;

/// The length of a slot of time: as long as a loan counts at most.
pub const LENT_SLOT_MS: i64 = LENT_MAX_MS + CLOCKS_MS;

/// The part of a capacity that is lent at most.
pub const LENT_PART: i64 = 4;

/// The loans of a bucket, as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// When the last loan ends, by the bucket's time.
    pub until: TimeMs,
    /// The slot of the newer sums: the bucket's time in units of [`LENT_SLOT_MS`].
    pub slot: i64,
    /// What was lent of each limit in that slot, and in the slot before.
    pub sums: Vec<(LimitName, [Milli; 2])>,
}

/// What is lent, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lending(Option<Box<Lent>>);

impl Lending {
    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// What may be unspent at `time`.
    fn of(&self, limit: &LimitName, time: TimeMs) -> Milli {
        let Some(lent) = self.0.as_ref().filter(|lent| lent.until > time) else {
            return Milli::ZERO;
        };
        let counted = match slot_of(time).saturating_sub(lent.slot) {
            ..=0 => 2,
            1 => 1,
            _ => 0,
        };
        let sums = lent.sums.iter().find(|(name, _)| name == limit);
        sums.map_or(Milli::ZERO, |(_, sums)| {
            sums[..counted].iter().fold(Milli::ZERO, |sum, part| sum.saturating_add(*part))
        })
    }

    /// How long the last loan lasts from `time` on.
    fn lasts_ms(&self, time: TimeMs) -> i64 {
        self.0.as_ref().map_or(0, |lent| lent.until.since(time).clamp(0, LENT_SLOT_MS))
    }

    /// Counts a loan.
    fn add(&mut self, limit: &LimitName, amount: Milli, time: TimeMs, ends: TimeMs) {
        self.roll(time);
        let slot = slot_of(time);
        let lent =
            self.0.get_or_insert_with(|| Box::new(Lent { until: ends, slot, sums: Vec::new() }));
        lent.until = lent.until.max(ends);
        match lent.sums.iter_mut().find(|(name, _)| name == limit) {
            Some((_, sums)) => sums[0] = sums[0].saturating_add(amount),
            None => lent.sums.push((limit.clone(), [amount, Milli::ZERO])),
        }
    }

    /// Takes off a loan that was counted in `slot` and of which nothing is left to be spent. How
    /// much of it was still counted.
    fn release(&mut self, limit: &LimitName, amount: Milli, slot: i64, time: TimeMs) -> Milli {
        self.roll(time);
        let Some(lent) = self.0.as_mut().filter(|lent| lent.until > time) else {
            return Milli::ZERO;
        };
        let age = lent.slot.checked_sub(slot).and_then(|age| usize::try_from(age).ok());
        let mut released = Milli::ZERO;
        if let Some((_, sums)) = lent.sums.iter_mut().find(|(name, _)| name == limit)
            && let Some(sum) = age.and_then(|age| sums.get_mut(age))
        {
            released = amount.min(*sum).max(Milli::ZERO);
            *sum = sum.saturating_sub(released);
        }
        self.tidy();
        released
    }

    /// Forgets all loans once the last one has ended.
    pub(super) fn forget_ended(&mut self, time: TimeMs) {
        if self.0.as_ref().is_some_and(|lent| lent.until <= time) {
            self.0 = None;
        }
    }

    /// Forgets what has ended at `time`. A bucket whose time went back keeps all it knows: its
    /// loans last no longer from there than any loan.
    pub(super) fn roll(&mut self, time: TimeMs) {
        let Some(lent) = &mut self.0 else { return };
        let slot = slot_of(time);
        let passed = slot.saturating_sub(lent.slot);
        for (_, sums) in &mut lent.sums {
            match passed {
                ..=0 => {}
                1 => *sums = [Milli::ZERO, sums[0]],
                _ => *sums = [Milli::ZERO; 2],
            }
        }
        if passed < 0 {
            lent.until = lent.until.min(time.plus_ms(LENT_SLOT_MS));
        }
        lent.slot = slot;
        self.tidy();
    }

    fn tidy(&mut self) {
        if let Some(lent) = &mut self.0 {
            lent.sums.retain(|(_, sums)| *sums != [Milli::ZERO; 2]);
            if lent.sums.is_empty() {
                self.0 = None;
            }
        }
    }
}

impl BucketState {
    /// The loans, to be stored with the bucket; `None` for a bucket that lends nothing.
    #[must_use]
    pub fn loans(&self) -> Option<&Lent> {
        self.gaps.lending()?.0.as_deref()
    }

    /// Puts back loans read from storage.
    pub fn restore_loans(&mut self, loans: Option<Lent>) {
        self.gaps.lend(|lending| {
            *lending = Lending(loans.map(Box::new));
            lending.tidy();
        });
    }

    /// How much of a limit holders may have and not have spent, as of the bucket's time.
    #[must_use]
    pub fn lent(&self, limit: &LimitName) -> Milli {
        self.gaps.lending().map_or(Milli::ZERO, |lending| lending.of(limit, self.refilled_at))
    }

    /// Adds the stock of a holder to what is shown of its bucket. Nothing is given back.
    pub fn show_stock(&mut self, limit: &LimitName, stock: Milli) {
        if let Some(state) = self.limits.iter_mut().find(|state| state.name == *limit) {
            let shown = state.balance.saturating_add(stock);
            state.balance = shown.min(state.params.full());
        }
    }

    /// Counts a loan of a limit that ends at `ends`.
    pub(crate) fn lend(&mut self, index: usize, amount: Milli, ends: TimeMs) {
        let (name, time) = (&self.limits[index].name, self.refilled_at);
        self.gaps.lend(|lending| lending.add(name, amount, time, ends));
    }

    /// Takes off a loan that was counted in `slot`. How much of it was still counted.
    pub(crate) fn release(&mut self, limit: &LimitName, amount: Milli, slot: i64) -> Milli {
        let (time, mut released) = (self.refilled_at, Milli::ZERO);
        if self.loans().is_some() {
            self.gaps.lend(|lending| released = lending.release(limit, amount, slot, time));
        }
        released
    }

    /// How long the last loan lasts, from the bucket's time on.
    pub(crate) fn lasts_ms(&self) -> i64 {
        self.gaps.lending().map_or(0, |lending| lending.lasts_ms(self.refilled_at))
    }

    /// How far a credit may lift the balance of a limit, as of the bucket's time.
    pub(super) fn credit_ceiling(&self, index: usize) -> Milli {
        let limit = &self.limits[index];
        let lent = self.lent(&limit.name);
        if lent <= Milli::ZERO {
            return limit.params.full();
        }
        let refill = limit.params.accrual_at_most(self.lasts_ms());
        limit.params.full().saturating_sub(lent).saturating_sub(Milli(refill))
    }
}

/// The slot of an instant.
pub(crate) fn slot_of(time: TimeMs) -> i64 {
    time.0.div_euclid(LENT_SLOT_MS)
}
