//! The block of one bucket in one process, without I/O: what it serves, what it takes back, and the
//! order that replaces it.
//!
//! An order ends the loan before it: unspent stock goes back and is bought anew. So a block is one
//! layer, all of it as old as its last order.

use std::sync::Arc;

use smallvec::SmallVec;
use zae_limiter_core::{
    Limit, LimitReport, LimitSource, Milli, OrderLine, Report, Reports, Return, Stock, StockLook,
    Take, TimeMs, Wait,
};

use super::layer::{Block, covers};
use super::order::{Ending, Next, Purchase, Taken, Terms};
use super::pace::Pace;
use super::stats::Stats;
use super::tally::{Amounts, Unreported, Watch};
use crate::{Delta, LimitsInForce, MemberTake, Stocked};

/// A clock that goes back further than callers of one process differ ends a block: its age is
/// not known any more.
pub(super) const CLOCK_BACK_MAX_MS: i64 = 100;

/// What a process knows of one bucket.
#[derive(Default)]
pub(super) struct Cell {
    /// The limits that all of this is about.
    limits: Option<LimitsInForce>,
    block: Option<Block>,
    /// How many there were.
    blocks: u64,
    /// The last order was granted, and requests have come often enough since: a block that has
    /// ended for another reason is bought anew without watching first.
    is_worth_it: bool,
    /// An order or a return is under way; the block is with it.
    is_busy: bool,
    /// Administration has overtaken what is under way: the block does not come back.
    is_overtaken: bool,
    pub(super) watch: Watch,
    unreported: Unreported,
    /// Until then, requests for what is scarce are refused. Boxed, so that what every request looks
    /// at lies closer together.
    pub(super) pace: Option<Box<Pace>>,
}

impl Cell {
    /// Everything held, whether or not it may be spent.
    pub(super) fn held(&self) -> Milli {
        self.block.as_ref().map_or(Milli::ZERO, Block::held)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// True when forgetting the cell loses nothing, unless somebody is at work on it.
    pub(super) fn is_idle(&self, now: TimeMs) -> bool {
        // Longer than any block lasts, and what is watched begins anew with each block.
        const IDLE_MS: i64 = 10_000;
        self.unreported.is_empty() && now.since(self.watch.since) > IDLE_MS
    }

    /// Serves a request from stock, or says what it needs.
    pub(super) fn next(&mut self, member: &MemberTake<'_>, terms: &Terms<'_>) -> Next {
        if self.is_busy {
            return Next::Busy;
        }
        if let Some(ending) = self.end_for(member.limits, terms) {
            return Next::Settle(Box::new(ending));
        }
        if member.limits.source == LimitSource::Call {
            return Next::Exact;
        }
        if !self.is_about(member.limits) {
            if self.has_loan() {
                // An older read of other limits: the store says that it is stale.
                return Next::Exact;
            }
            self.limits = Some(member.limits.clone());
            self.watch = Watch::since(terms.now);
            self.pace = None;
        }
        let mut reports = Reports::new();
        if let Some(number) = self.take((0, member), terms, &mut reports) {
            return Next::Taken(Taken { reports, number });
        }
        if let Some(paced) = self.paced(member, terms) {
            return Next::Refused(paced);
        }
        if terms.is_new {
            self.watch.note(member, terms.now);
        }
        let size = self.size(member, terms);
        self.is_worth_it &= size.is_some();
        match size {
            Some((requests, age_ms)) if terms.may_order => {
                Next::Order(Box::new(self.order(member, requests, age_ms, terms)))
            }
            // What is left of a block serves no request any more: the store counts it again.
            _ if self.has_loan() && terms.is_alone => Next::Settle(Box::new(self.end(terms))),
            _ => Next::Exact,
        }
    }

    /// Takes the block out if it was bought under other limits than a request has that is not
    /// older. [`Cell::ended`] must follow.
    pub(super) fn end_for(&mut self, limits: &LimitsInForce, terms: &Terms<'_>) -> Option<Ending> {
        let own = self.limits.as_ref().filter(|_| self.has_loan() && !self.is_busy)?;
        let is_call = limits.source == LimitSource::Call;
        let is_other = is_call || !are_same(own, limits) && limits.stamp >= own.stamp;
        is_other.then(|| self.end(terms))
    }

    /// Buys a block for the next requests like one that the store has just granted.
    pub(super) fn restock(&mut self, member: &MemberTake<'_>, terms: &Terms<'_>) -> Next {
        if !self.may_restock(member, terms) {
            return Next::Exact;
        }
        match self.size(member, terms) {
            Some((requests, age_ms)) => {
                Next::Order(Box::new(self.order(member, requests, age_ms, terms)))
            }
            None if self.has_loan() => Next::Settle(Box::new(self.end(terms))),
            None => Next::Exact,
        }
    }

    /// Whether [`Cell::restock`] would do something.
    pub(super) fn wants_stock(&self, member: &MemberTake<'_>, terms: &Terms<'_>) -> bool {
        let would = || self.has_loan() || self.size(member, terms).is_some();
        self.may_restock(member, terms) && would()
    }

    /// A block that would serve the next request is as good as what could be bought: chains that
    /// were under way when it was bought have not been counted since.
    fn may_restock(&self, member: &MemberTake<'_>, terms: &Terms<'_>) -> bool {
        let serves = |block: &Block| {
            block.may_serve(terms) && member.takes.iter().all(|take| block.covers(take, terms))
        };
        !self.is_busy
            && self.is_about(member.limits)
            && !self.is_paced(terms)
            && !self.block.as_ref().is_some_and(serves)
    }

    /// Whether it has use to report of so long ago that nobody asks for the bucket any more.
    pub(super) fn is_silent_for(&self, ms: i64, now: TimeMs) -> bool {
        !self.is_busy && self.unreported.is_older_than(ms, now)
    }

    pub(super) fn is_about(&self, limits: &LimitsInForce) -> bool {
        self.limits.as_ref().is_some_and(|own| are_same(own, limits))
    }

    /// Serves a request from stock if every limit has enough. Adds a report per take to `reports`,
    /// for the member of this number, and says which block it is from. `None`, and nothing was
    /// changed, when stock does not cover it.
    pub(super) fn take(
        &mut self,
        (member_number, member): (u8, &MemberTake<'_>),
        terms: &Terms<'_>,
        reports: &mut Reports,
    ) -> Option<u64> {
        if member.limits.source == LimitSource::Call || !self.is_about(member.limits) {
            return None;
        }
        // Also for a member that takes nothing: whoever has disabled its bucket would not be heard.
        let block = self.block.as_ref()?;
        if !block.may_serve(terms) && !(block.is_good(terms) && self.is_paced(terms)) {
            return None;
        }
        let (block, now) = (self.block.as_mut()?, terms.now);
        let (elapsed_ms, number) = (block.elapsed_ms(now), block.number);
        // Each stock is looked at once: what it holds is a division away.
        let mut looks = SmallVec::<[(usize, StockLook); 4]>::new();
        for take in member.takes {
            let place = block.place(take.limit)?;
            let look = block.stocks[place].1.look(elapsed_ms);
            if !covers(look, take) {
                return None;
            }
            looks.push((place, look));
        }
        block.seen_at = block.seen_at.max(now);
        let (mut spent, mut faded) = (Milli::ZERO, Milli::ZERO);
        for (take, &(place, look)) in member.takes.iter().zip(&looks) {
            faded = faded.saturating_add(block.stocks[place].1.spend(take.amount, look));
            spent = spent.saturating_add(take.amount);
            reports.push(LimitReport {
                member: member_number,
                limit: take.limit,
                balance: look.balance.saturating_sub(take.amount),
                requested: take.amount,
                wait: Wait::None,
            });
            self.unreported.add(take.limit, take.amount);
        }
        terms.stats.spent(spent, faded);
        self.unreported.grants += 1;
        self.unreported.used_at = self.unreported.used_at.max(now);
        if terms.is_new {
            self.watch.note(member, now);
        }
        Some(number)
    }

    /// Undoes a take that its chain refused.
    ///
    /// What was taken goes back into the block that it was taken from, or nowhere. That block may
    /// have been replaced meanwhile: it is counted as lent no more, refunds of others may have
    /// filled its place, and in the stock of the next one the tokens would be there twice.
    pub(super) fn put_back(&mut self, member: &MemberTake<'_>, number: u64, terms: &Terms<'_>) {
        if !self.is_about(member.limits) {
            return;
        }
        self.unreported.grants -= 1;
        self.unreported.used_at = self.unreported.used_at.max(terms.now);
        for take in member.takes {
            self.unreported.add(take.limit, take.amount.negated());
            let block = self.block.as_mut().filter(|block| block.number == number);
            let is_back = block.is_some_and(|block| {
                let elapsed_ms = block.elapsed_ms(terms.now);
                let refund = |stock: &mut Stock| refund(stock, take.amount, elapsed_ms, terms);
                block.stock_mut(take.limit).is_some_and(refund)
            });
            if !is_back {
                terms.stats.refunded(take.amount);
                terms.stats.lost(take.amount);
            }
        }
    }

    /// Charges and gives back, if all of it fits the stock.
    pub(super) fn adjust(
        &mut self,
        limits: &LimitsInForce,
        deltas: &[Delta],
        terms: &Terms<'_>,
    ) -> bool {
        let is_same = self.is_about(limits);
        self.watch.note_refunds(if is_same { deltas } else { &[] });
        let block = self.block.as_mut().filter(|block| is_same && block.is_good(terms));
        let Some(block) = block else { return false };
        let elapsed_ms = block.elapsed_ms(terms.now);
        let fits = |delta: &Delta| {
            block.stock(delta.limit).is_some_and(|stock| {
                delta.amount <= stock.usable(elapsed_ms)
                    && delta.amount.negated() <= stock.room(elapsed_ms)
            })
        };
        if !deltas.iter().all(fits) {
            return false;
        }
        block.seen_at = block.seen_at.max(terms.now);
        for delta in deltas {
            let Some(stock) = block.stock_mut(delta.limit) else { continue };
            if delta.amount.is_negative() {
                refund(stock, delta.amount.negated(), elapsed_ms, terms);
            } else {
                let held = stock.held();
                let taken = stock.change(delta.amount, elapsed_ms);
                debug_assert!(taken, "the stock was found to have enough");
                let faded = held.saturating_sub(delta.amount).saturating_sub(stock.held());
                terms.stats.spent(delta.amount, faded);
            }
            self.unreported.add(delta.limit, delta.amount);
        }
        self.unreported.used_at = self.unreported.used_at.max(terms.now);
        true
    }

    /// Whether a take can be served from the block, be it time for another one or not.
    pub(super) fn covers(&self, take: &Take, terms: &Terms<'_>) -> bool {
        self.block.as_ref().is_some_and(|block| block.covers(take, terms))
    }

    /// The stock of a limit that may be spent.
    pub(super) fn usable(&self, limit: u8, terms: &Terms<'_>) -> Milli {
        let block = self.block.as_ref().filter(|block| block.is_good(terms));
        let stock = block.and_then(|block| Some((block, block.stock(limit)?)));
        stock.map_or(Milli::ZERO, |(block, stock)| stock.usable(block.elapsed_ms(terms.now)))
    }

    /// The stock that counts for each take: what is given back counts as well.
    pub(super) fn stock_for(&self, member: &MemberTake<'_>, terms: &Terms<'_>) -> Option<Amounts> {
        let is_same = self.is_about(member.limits);
        let block = self.block.as_ref().filter(|block| is_same && block.is_alive(terms))?;
        let elapsed_ms = block.elapsed_ms(terms.now);
        let usable = |take: &zae_limiter_core::Take| {
            block.stock(take.limit).map_or(Milli::ZERO, |stock| stock.usable(elapsed_ms))
        };
        Some(member.takes.iter().map(usable).collect())
    }

    /// The stock that may be spent, by limit.
    pub(super) fn shown(&self, terms: &Terms<'_>) -> Vec<(Limit, Milli)> {
        let block = self.block.as_ref().filter(|block| block.is_alive(terms));
        let (Some(limits), Some(block)) = (&self.limits, block) else { return Vec::new() };
        let elapsed_ms = block.elapsed_ms(terms.now);
        let shown = |(limit, stock): &(u8, Stock)| {
            let limit = limits.limits.get(usize::from(*limit))?;
            Some((limit.clone(), stock.usable(elapsed_ms)))
        };
        block.stocks.iter().filter_map(shown).collect()
    }

    pub(super) fn has_loan(&self) -> bool {
        self.block.is_some() || !self.unreported.is_empty()
    }

    /// Takes the block out, to be brought back. [`Cell::ended`] must follow.
    pub(super) fn end(&mut self, terms: &Terms<'_>) -> Ending {
        self.is_busy = true;
        let block = self.block.take();
        let unreported = std::mem::take(&mut self.unreported);
        let ending = self.ending(block.as_ref(), &unreported, &[], terms);
        Ending { before: block, unreported, ..ending }
    }

    /// Takes out the use that is not reported, and leaves the block. [`Cell::ended`] must follow.
    pub(super) fn end_use(&mut self, terms: &Terms<'_>) -> Ending {
        self.is_busy = true;
        let unreported = std::mem::take(&mut self.unreported);
        let ending = self.ending(None, &unreported, &[], terms);
        Ending { unreported, ..ending }
    }

    /// Drops the block, also one that is on its way: its bucket is another one now. How much was
    /// here.
    pub(super) fn forfeit(&mut self) -> Milli {
        self.is_overtaken = self.is_busy;
        self.block.take().map_or(Milli::ZERO, |block| block.held())
    }

    /// The return was not written: everything is as before.
    pub(super) fn restore(&mut self, ending: Ending, stats: &Stats) {
        if ending.before.is_some() {
            self.comes_back(ending.before, ending.back, stats);
        }
        self.ended();
        let since = std::mem::replace(&mut self.unreported, ending.unreported);
        self.unreported.merge(since);
    }

    /// A block of which `alive` was there to be spent has not been brought anywhere. What had faded
    /// counts as faded when it is gone, and not before.
    fn comes_back(&mut self, block: Option<Block>, alive: Milli, stats: &Stats) {
        if self.is_overtaken {
            return stats.lost(alive);
        }
        let held = block.as_ref().map_or(Milli::ZERO, Block::held);
        stats.faded(alive.saturating_sub(held));
        self.block = block;
    }

    /// The return or the order is over.
    pub(super) fn ended(&mut self) {
        (self.is_busy, self.is_overtaken) = (false, false);
    }

    /// What to report of a block of which `own` is spent by a request that is under way.
    fn ending(
        &self,
        block: Option<&Block>,
        unreported: &Unreported,
        own: &[(u8, Milli)],
        terms: &Terms<'_>,
    ) -> Ending {
        let Some(limits) = &self.limits else {
            return Ending::default();
        };
        let (mut back_sum, mut faded) = (Milli::ZERO, Milli::ZERO);
        let mut lines = SmallVec::new();
        for (index, limit) in (0_u8..).zip(limits.limits.iter()) {
            let stock = block.and_then(|block| block.stock(index));
            let used = unreported.used.get(usize::from(index)).copied().unwrap_or_default();
            let mut back = Milli::ZERO;
            if let (Some(block), Some(stock)) = (block, stock) {
                let own = own.iter().find(|(limit, _)| *limit == index);
                let own = own.map_or(Milli::ZERO, |(_, amount)| *amount);
                if block.is_alive(terms) {
                    back = stock.usable(block.elapsed_ms(terms.now)).saturating_sub(own);
                }
                faded = faded.saturating_add(stock.held().saturating_sub(own).saturating_sub(back));
            }
            if stock.is_some() || used != Milli::ZERO {
                back_sum = back_sum.saturating_add(back);
                let booked = stock.map_or(Milli::ZERO, Stock::booked);
                lines.push(Return { limit: limit.name().clone(), back, used, booked });
            }
        }
        let report = Report {
            lines,
            grants: u32::try_from(unreported.grants).unwrap_or(0),
            used_at: unreported.used_at.min(terms.now),
            slot: block.map_or(0, |block| block.slot),
        };
        terms.stats.faded(faded);
        Ending { report, back: back_sum, ..Ending::default() }
    }

    /// How many requests to buy for, and for how long the stock may be spent.
    fn size(&self, member: &MemberTake<'_>, terms: &Terms<'_>) -> Option<(i64, i64)> {
        let limits = &member.limits.limits;
        let declared = (0_u8..).zip(limits.iter()).filter(|(index, _)| self.watch.has(*index));
        let horizon_ms = terms.options.horizon_ms(declared.map(|(_, limit)| limit))?;
        let elapsed_ms = terms.now.since(self.watch.since);
        let size =
            terms.options.size(self.watch.requests, elapsed_ms, horizon_ms, self.is_worth_it)?;
        Some((size, horizon_ms * 2))
    }

    fn order(
        &mut self,
        member: &MemberTake<'_>,
        requests: i64,
        age_ms: i64,
        terms: &Terms<'_>,
    ) -> Purchase {
        let before = self.block.take();
        let usable = before.as_ref().filter(|block| block.is_good(terms));
        // For as long as the block is for: half of the time that it may be spent.
        let depth = |limit: &Limit| Milli(limit.params().accrual_at_most(age_ms / 2));
        let (mut lines, mut own) = (SmallVec::new(), Amounts::new());
        let mut own_by_limit: SmallVec<[(u8, Milli); 4]> = SmallVec::new();
        for index in (0_u8..).take(member.limits.limits.len()) {
            if !self.watch.has(index) {
                continue;
            }
            let amount = member.takes.iter().find(|take| take.limit == index);
            let amount = amount.map_or(Milli::ZERO, |take| take.amount);
            let mean = self.watch.mean(index);
            let mut line = OrderLine {
                limit: index,
                want: Milli(mean.0.saturating_mul(requests)),
                unit: mean,
                depth: depth(&member.limits.limits[usize::from(index)]),
                room: self.watch.refunds(index),
                ..OrderLine::default()
            };
            let mut from_stock = Milli::ZERO;
            if terms.is_alone {
                let held = usable.and_then(|block| {
                    Some(block.stock(index)?.usable(block.elapsed_ms(terms.now)))
                });
                from_stock = held.unwrap_or_default().min(amount);
                line.least = amount.saturating_sub(from_stock);
                line.takes = amount;
            } else {
                line.want = line.want.max(amount);
                line.unit = line.unit.max(amount);
            }
            own.push(from_stock);
            own_by_limit.push((index, from_stock));
            lines.push(line);
        }
        let unreported = std::mem::take(&mut self.unreported);
        let ending = self.ending(before.as_ref(), &unreported, &own_by_limit, terms);
        self.is_busy = true;
        Purchase {
            limits: member.limits.clone(),
            lines,
            ending,
            age_ms,
            serves: terms.is_alone,
            own,
            before,
            unreported,
            epoch: terms.epoch,
            ordered: terms.moment,
        }
    }

    /// The order was made: its stock is the block. False when administration has made it unusable.
    pub(super) fn stocked(
        &mut self,
        purchase: &Purchase,
        stocked: &Stocked,
        terms: &Terms<'_>,
    ) -> bool {
        self.ended();
        self.watch = Watch::since(terms.now);
        self.pace_after(purchase, stocked, terms);
        if purchase.epoch != terms.epoch || stocked.provision.lots.is_empty() {
            return stocked.provision.lots.is_empty();
        }
        self.is_worth_it = true;
        self.blocks += 1;
        let lots = stocked.provision.lots.iter();
        self.block = Some(Block {
            stocks: lots.map(|lot| (lot.limit, Stock::new(lot, &stocked.bucket))).collect(),
            number: self.blocks,
            bought_at: terms.now,
            ordered: purchase.ordered,
            seen_at: terms.now,
            age_ms: purchase.age_ms,
            slot: stocked.provision.slot,
            epoch: purchase.epoch,
        });
        true
    }

    /// Nothing of the order was written: the block goes on.
    pub(super) fn refused(&mut self, purchase: Purchase, stats: &Stats) {
        let alive = purchase.own_sum().saturating_add(purchase.ending.back);
        self.comes_back(purchase.before, alive, stats);
        self.ended();
        let since = std::mem::replace(&mut self.unreported, purchase.unreported);
        self.unreported.merge(since);
    }
}

fn refund(stock: &mut Stock, amount: Milli, elapsed_ms: i64, terms: &Terms<'_>) -> bool {
    let held = stock.held();
    if !stock.change(amount.negated(), elapsed_ms) {
        return false;
    }
    terms.stats.refunded(amount);
    terms.stats.faded(held.saturating_add(amount).saturating_sub(stock.held()));
    true
}

/// The same limits, whoever read them.
fn are_same(a: &LimitsInForce, b: &LimitsInForce) -> bool {
    Arc::ptr_eq(&a.limits, &b.limits) || a.limits == b.limits
}
