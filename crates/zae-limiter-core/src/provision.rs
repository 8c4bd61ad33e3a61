//! Stock: tokens that a holder debits from a bucket ahead of need, for its next requests.
//!
//! [`BucketState::provision`] is the bucket's side: it debits what a request lacks and some more,
//! and counts the loan. [`Stock`] is the holder's side: how much of it may be spent, and until
//! when.
//!
//! A debit ahead of need alone grants too much. A bucket of 10 with one token a second lends 5 and
//! is full again 5 seconds later: bucket and holder grant 15 at once, an exact bucket 10. The
//! **layer rule** repairs that. The tokens lent are the uppermost part of what the bucket lacks
//! when they are debited; refill fills from below, and what it reaches is no longer there to be
//! spent. So whatever all holders have fits what the bucket lacks, without any of them knowing of
//! the others:
//!
//! - layers of all holders are disjoint parts of what the bucket lacks, and refill moves them down
//!   together;
//! - a credit moves the top down without the holders' knowledge. It stops so far below the capacity
//!   ([`BucketState::lent`]) that all loans of before are dead when refill reaches what is lent.

use smallvec::SmallVec;

use crate::bucket::{CLOCKS_MS, LENT_PART, slot_of};
use crate::{BucketState, ClosedHour, LENT_MAX_MS, LimitName, LimitParams, Milli, TimeMs};

/// One limit of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderLine {
    /// Index into the limits in force of the bucket.
    pub limit: u8,
    /// What the request lacks of this limit beyond the holder's own stock: debited, or nothing is.
    pub least: Milli,
    /// What the request takes of this limit, its part from stock included: counted as used.
    pub takes: Milli,
    /// The stock that the holder would like to have after the request.
    pub want: Milli,
    /// The stock without which a loan is of no use: what one request needs.
    pub unit: Milli,
    /// How much the bucket should lack afterwards, so that refill does not reach the stock before
    /// it is spent: what refills in that time.
    pub depth: Milli,
    /// The room that the stock should have for refunds from the start: what was taken before this
    /// order may come back to it.
    pub room: Milli,
}

/// What the holder has got from the bucket and brings back or reports, by the name of the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    /// Which limit.
    pub limit: LimitName,
    /// Stock that can still be spent and will not be.
    pub back: Milli,
    /// Net use from stock since the last report.
    pub used: Milli,
    /// The size of the loan that ends, as it was counted.
    pub booked: Milli,
}

/// What a holder reports about its last loan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By limit.
    pub lines: SmallVec<[Return; 2]>,
    /// Requests that were served from stock.
    pub grants: u32,
    /// When the last of them was.
    pub used_at: TimeMs,
    /// The slot that the loan was counted in: [`Provision::slot`].
    pub slot: i64,
}

impl Report {
    /// True when there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.grants == 0
            && self.lines.iter().all(|line| {
                line.back == Milli::ZERO && line.used == Milli::ZERO && line.booked == Milli::ZERO
            })
    }
}

/// What was lent of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lot {
    /// Index into the limits in force of the bucket.
    pub limit: u8,
    /// Debited beyond what the request lacked: the holder's stock.
    pub given: Milli,
    /// The whole debit, and the room for refunds beside it. Refunds fill the stock up to it.
    pub span: Milli,
}

/// The result of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provision {
    /// By line of the order; empty when nothing was lent.
    pub lots: SmallVec<[Lot; 2]>,
    /// The slot that the loan is counted in.
    pub slot: i64,
    /// Usage hours that have ended.
    pub closed: SmallVec<[ClosedHour; 2]>,
}

impl BucketState {
    /// Serves a request that [`assess`](crate::assess) has found every `least` for, if there is one
    /// (`serves`), and lends stock for `age_ms` from now on. The loan before it ends first:
    /// `report`.
    ///
    /// Nothing is lent for longer than [`LENT_MAX_MS`], or than it takes to refill a quarter of a
    /// limit; all loans of a limit together are at most a quarter of its capacity; and one loan is
    /// at most a quarter of the balance, so that others find something as well.
    pub fn provision(
        &mut self,
        lines: &[OrderLine],
        report: &Report,
        serves: bool,
        age_ms: i64,
        now: TimeMs,
    ) -> Provision {
        let mut closed = self.settle(report, now);
        closed.extend(self.roll_hour(now));
        self.forget_full_retired();
        for line in lines {
            let limit = &mut self.limits[usize::from(line.limit)];
            limit.balance = limit.balance.saturating_sub(line.least);
            // A counter that is full keeps what it has.
            limit.count(line.takes);
        }
        self.events = self.events.saturating_add(u32::from(serves));
        let lots = self.lots(lines, age_ms).unwrap_or_default();
        for lot in &lots {
            let index = usize::from(lot.limit);
            let limit = &mut self.limits[index];
            limit.balance = limit.balance.saturating_sub(lot.given);
            let ends = self.refilled_at.plus_ms(age_ms.saturating_add(CLOCKS_MS));
            self.lend(index, lot.span, ends);
        }
        Provision { lots, slot: slot_of(self.refilled_at), closed }
    }

    /// Ends a loan: counts what was used and takes back what was not. Never refused.
    pub fn settle(&mut self, report: &Report, now: TimeMs) -> SmallVec<[ClosedHour; 2]> {
        let mut closed = SmallVec::new();
        // Use counts in its own hour, if that is still open; never in one before it.
        if report.used_at <= now && self.is_later_hour(report.used_at) {
            closed.extend(self.roll_hour(report.used_at));
        }
        self.refill(now);
        self.events = self.events.saturating_add(report.grants);
        for line in &report.lines {
            let released = self.release(&line.limit, line.booked, report.slot);
            let Some(index) = self.limits.iter().position(|state| state.name == line.limit) else {
                continue;
            };
            // A counter that is full keeps what it has.
            self.limits[index].count(line.used);
            // What is no longer counted does not come back: a return that is late, or made twice,
            // would fill a place that others have filled since.
            self.credit(index, line.back.min(released).negated());
        }
        closed
    }

    /// What to lend; `None` when it is not enough for one more request of the same kind.
    fn lots(&self, lines: &[OrderLine], age_ms: i64) -> Option<SmallVec<[Lot; 2]>> {
        if !(1..=LENT_MAX_MS).contains(&age_ms) {
            return None;
        }
        let mut lots = SmallVec::<[Lot; 2]>::new();
        for line in lines {
            let limit = &self.limits[usize::from(line.limit)];
            let most = limit.params.capacity_milli / LENT_PART;
            if limit.params.accrual(age_ms, 0).0 > most {
                return None;
            }
            let lent = self.lent(&limit.name);
            let room = Milli(most).saturating_sub(lent).saturating_sub(line.least);
            let part = Milli(limit.balance.0 / LENT_PART);
            // A bucket that is nearly full lacks next to nothing: refill would be at the stock at
            // once. Decided here, where it is known what others have taken already.
            let lacks = limit.params.full().saturating_sub(limit.balance);
            let deep = line.depth.saturating_sub(lacks);
            let wanted = if line.want > Milli::ZERO { line.want.max(deep) } else { line.want };
            let given = wanted.min(part).min(room);
            // No unit is negative, so nothing is lent of a limit that has no room, or is in debt.
            if given < line.unit {
                return None;
            }
            // Room beside the debit is a debit that comes back at once: it stays below what is lent
            // and what refills until the last loan has ended, as every credit.
            let ends_ms = self.lasts_ms().max(age_ms.saturating_add(CLOCKS_MS));
            let refill = Milli(limit.params.accrual_at_most(ends_ms));
            let spare =
                lacks.saturating_sub(lent).saturating_sub(line.least).saturating_sub(refill);
            let beside = line.room.saturating_sub(line.least).min(spare);
            let beside = beside.min(room.saturating_sub(given)).max(Milli::ZERO);
            let span = line.least.saturating_add(given).saturating_add(beside);
            lots.push(Lot { limit: line.limit, given, span });
        }
        lots.iter().any(|lot| lot.given > Milli::ZERO).then_some(lots)
    }
}

/// The stock of one limit that a holder has: a layer of what the bucket lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stock {
    params: LimitParams,
    /// The balance that the debit left, and its remainder.
    balance: Milli,
    remainder: i64,
    /// Unspent.
    held: Milli,
    /// The height of the layer, and its upper end above the full bucket, when it was debited.
    span: Milli,
    top: Milli,
}

/// A stock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockLook {
    /// What may be spent.
    pub usable: Milli,
    /// The balance of the bucket, and this stock.
    pub balance: Milli,
}

impl Stock {
    /// The stock of a loan, from the bucket as the loan left it.
    #[must_use]
    pub fn new(lot: &Lot, bucket: &BucketState) -> Stock {
        let limit = &bucket.limits()[usize::from(lot.limit)];
        Stock {
            params: limit.params,
            balance: limit.balance,
            remainder: limit.remainder,
            held: lot.given,
            span: lot.span,
            top: limit.params.full().saturating_sub(limit.balance),
        }
    }

    /// What may be spent and what the bucket has after `elapsed_ms`, by one look at the refill:
    /// [`Stock::usable`] and [`Stock::balance`].
    #[must_use]
    #[inline]
    pub fn look(&self, elapsed_ms: i64) -> StockLook {
        let gained = Milli(self.params.accrual(elapsed_ms, self.remainder).0);
        let usable = self.held.min(self.layer_after(gained));
        let stored = self.balance.saturating_add(gained).min(self.params.full());
        StockLook { usable, balance: stored.saturating_add(usable) }
    }

    /// Spends what a look has found, in place of [`Stock::change`]: at most what was usable. How
    /// much of the stock has faded.
    #[inline]
    pub fn spend(&mut self, amount: Milli, look: StockLook) -> Milli {
        debug_assert!(!amount.is_negative() && amount <= look.usable, "a look found enough");
        let faded = self.held.saturating_sub(look.usable);
        self.held = look.usable.saturating_sub(amount);
        faded
    }

    /// What is left of the layer after `elapsed_ms`.
    fn layer(&self, elapsed_ms: i64) -> Milli {
        self.layer_after(Milli(self.params.accrual(elapsed_ms, self.remainder).0))
    }

    fn layer_after(&self, gained: Milli) -> Milli {
        self.span.min(self.top.saturating_sub(gained)).max(Milli::ZERO)
    }

    /// What may be spent after `elapsed_ms`. What refill has reached is lost for good: the bucket
    /// has it.
    #[must_use]
    pub fn usable(&self, elapsed_ms: i64) -> Milli {
        self.held.min(self.layer(elapsed_ms))
    }

    /// Room for a refund after `elapsed_ms`. More would be stock that was never bought. What refill
    /// has reached of the layer is room as well, and what fills it is the bucket's: to this
    /// holder's knowledge the bucket is full, and a refund to it would change nothing.
    #[must_use]
    pub fn room(&self, elapsed_ms: i64) -> Milli {
        self.span.saturating_sub(self.usable(elapsed_ms))
    }

    /// Spends (positive) or takes back (negative). False, and nothing is changed, when that is more
    /// than there is, or more than there is room for.
    #[must_use]
    pub fn change(&mut self, amount: Milli, elapsed_ms: i64) -> bool {
        let usable = self.usable(elapsed_ms);
        if amount > usable || amount.negated() > self.room(elapsed_ms) {
            return false;
        }
        self.held = usable.saturating_sub(amount).min(self.layer(elapsed_ms));
        true
    }

    /// The balance of the bucket after `elapsed_ms`, if nobody else has changed it, and this stock.
    #[must_use]
    pub fn balance(&self, elapsed_ms: i64) -> Milli {
        let (gained, _) = self.params.accrual(elapsed_ms, self.remainder);
        let stored = self.balance.saturating_add(Milli(gained)).min(self.params.full());
        stored.saturating_add(self.usable(elapsed_ms))
    }

    /// The size of the loan, as the bucket counts it.
    #[must_use]
    pub fn booked(&self) -> Milli {
        self.span
    }

    /// Unspent, whether or not it may still be spent.
    #[must_use]
    pub fn held(&self) -> Milli {
        self.held
    }
}
