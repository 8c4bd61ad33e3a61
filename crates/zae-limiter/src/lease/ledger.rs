//! The ledger of a lease: what was taken, what was used, and the writes that make both the same.

use std::sync::Arc;

use smallvec::SmallVec;
use zae_limiter_core::Milli;
use zae_limiter_store::Places;

use super::settlement::Settlement;
use crate::limiter::{Amounts, Plan, copied};

/// The amounts that a lease has taken and used.
#[derive(Debug)]
pub(super) struct Ledger {
    /// One receipt per plan. There is more than one only when the chain changed under a long lease.
    receipts: SmallVec<[Receipt; 1]>,
    /// The amounts really used, per declared limit.
    pub(super) used: Amounts,
    pub(super) finished: bool,
}

/// The amounts written to the buckets of one plan.
#[derive(Debug)]
struct Receipt {
    plan: Arc<Plan>,
    /// The number of the take.
    operation: u64,
    /// The amounts written. A charge counts although it may not have landed yet, a credit as soon
    /// as it is sent.
    written: Amounts,
    /// Charges that were sent and not confirmed; the settler may still be retrying them. They are
    /// never given back: if 100 were charged and given back, and the credit landed first, the
    /// bucket would have 100 tokens out of nothing until the charge lands. Empty until then.
    doubtful: Amounts,
    /// Where the amounts are; see [`Places`].
    places: Places,
}

impl Receipt {
    fn new(plan: Arc<Plan>, operation: u64, written: Amounts, places: Places) -> Receipt {
        let doubtful = Amounts::new();
        Receipt { plan, operation, written, doubtful, places }
    }

    /// The amount of one limit that may be given back: taken for certain, and not given back yet.
    fn returnable(&self, declared: usize) -> Milli {
        let doubtful = self.doubtful.get(declared).copied().unwrap_or_default();
        self.written[declared].saturating_sub(doubtful).max(Milli::ZERO)
    }

    /// Notes a charge that is sent.
    fn charge(&mut self, declared: usize, amount: Milli) {
        self.doubtful.resize(self.written.len(), Milli::ZERO);
        self.written[declared] = self.written[declared].saturating_add(amount);
        self.doubtful[declared] = self.doubtful[declared].saturating_add(amount);
    }
}

/// The writes that settle the use of a lease, and the charges among them, per receipt.
pub(super) struct Settling {
    pub(super) settlement: Settlement,
    pub(super) charged: SmallVec<[Amounts; 1]>,
}

impl Ledger {
    /// The ledger of a grant: all of it counts as used until something else is recorded.
    #[inline]
    pub(super) fn granted(
        plan: Arc<Plan>,
        operation: u64,
        amounts: Amounts,
        places: Places,
    ) -> Ledger {
        let receipt = Receipt::new(plan, operation, copied(&amounts), places);
        Ledger { receipts: SmallVec::from_buf([receipt]), used: amounts, finished: false }
    }

    /// The ledger of a lease that took nothing.
    pub(super) fn without_receipt(used: Amounts) -> Ledger {
        Ledger { receipts: SmallVec::new(), used, finished: false }
    }

    /// The plan of the grant.
    pub(super) fn plan(&self) -> Option<&Plan> {
        self.receipts.first().map(|receipt| &*receipt.plan)
    }

    /// Takes over the receipts of another lease with the same declared limits.
    pub(super) fn absorb(&mut self, more: &mut Ledger) {
        more.finished = true;
        for receipt in more.receipts.drain(..) {
            add_to(&mut self.used, &receipt.written);
            match self.receipts.last_mut() {
                // A receipt with places is about its own take.
                Some(last)
                    if last.places.is_empty()
                        && receipt.places.is_empty()
                        && last.plan.takes_the_same(&receipt.plan) =>
                {
                    add_to(&mut last.written, &receipt.written)
                }
                _ => self.receipts.push(receipt),
            }
        }
    }

    /// The writes for the difference between the amounts used and the amounts written. A charge
    /// goes to the last plan that has the limit. A credit goes back to the plans that tokens
    /// certainly came from, and never exceeds what they gave.
    pub(super) fn settle_use(&mut self) -> Settling {
        let mut changes: SmallVec<[Amounts; 1]> =
            self.receipts.iter().map(|receipt| zeroes(&receipt.written)).collect();
        let mut charged = changes.clone();
        let mut settlement = Settlement::default();
        for declared in 0..self.used.len() {
            let written = self
                .receipts
                .iter()
                .fold(Milli::ZERO, |sum, receipt| sum.saturating_add(receipt.written[declared]));
            let difference = self.used[declared].saturating_sub(written);
            if difference > Milli::ZERO {
                if let Some(place) =
                    self.receipts.iter().rposition(|receipt| receipt.plan.has(declared))
                {
                    self.receipts[place].charge(declared, difference);
                    (changes[place][declared], charged[place][declared]) = (difference, difference);
                }
                continue;
            }
            let mut surplus = difference.negated();
            for (receipt, changes) in self.receipts.iter_mut().zip(&mut changes).rev() {
                let given = surplus.min(receipt.returnable(declared));
                receipt.written[declared] = receipt.written[declared].saturating_sub(given);
                changes[declared] = given.negated();
                surplus = surplus.saturating_sub(given);
            }
            settlement.withheld += usize::from(surplus > Milli::ZERO);
        }
        for (receipt, changes) in self.receipts.iter_mut().zip(&changes) {
            settlement.add((&receipt.plan, receipt.operation), changes, &mut receipt.places);
        }
        Settling { settlement, charged }
    }

    /// Notes that the charges of a flush have landed: from now on they may be given back.
    pub(super) fn confirm(&mut self, charged: &[Amounts]) {
        for (receipt, charged) in self.receipts.iter_mut().zip(charged) {
            for (doubtful, charged) in receipt.doubtful.iter_mut().zip(charged) {
                *doubtful = doubtful.saturating_sub(*charged);
            }
        }
    }

    /// Ends the lease with the amounts used; `None` when nothing is left to write.
    pub(super) fn commit(&mut self) -> Option<Settlement> {
        self.finished = true;
        // The usual case, made cheap: the amounts taken were used.
        if let [receipt] = &self.receipts[..]
            && receipt.written == self.used
        {
            return None;
        }
        let settlement = self.settle_use().settlement;
        (!settlement.is_empty() || settlement.withheld != 0).then_some(settlement)
    }

    pub(super) fn rollback(&mut self) -> Settlement {
        self.finished = true;
        let mut settlement = Settlement::default();
        for mut receipt in self.receipts.drain(..) {
            let back: Amounts = (0..receipt.written.len())
                .map(|declared| receipt.returnable(declared).negated())
                .collect();
            settlement.add((&receipt.plan, receipt.operation), &back, &mut receipt.places);
            settlement.withheld +=
                receipt.doubtful.iter().filter(|doubtful| **doubtful > Milli::ZERO).count();
        }
        settlement
    }
}

fn zeroes(like: &Amounts) -> Amounts {
    Amounts::from_elem(Milli::ZERO, like.len())
}

fn add_to(totals: &mut Amounts, amounts: &Amounts) {
    for (total, amount) in totals.iter_mut().zip(amounts) {
        *total = total.saturating_add(*amount);
    }
}
