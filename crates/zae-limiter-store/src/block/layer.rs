//! A block: one layer of stock, and until when it may be spent.

use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{Milli, Stock, StockLook, Take, TimeMs};

use super::cell::CLOCK_BACK_MAX_MS;
use super::order::Terms;

/// Stock, and until when it may be spent.
#[derive(Clone)]
pub(super) struct Block {
    /// By limit, in the order of the lots.
    pub(super) stocks: SmallVec<[(u8, Stock); 2]>,
    /// Which one of its bucket, in this process.
    pub(super) number: u64,
    pub(super) bought_at: TimeMs,
    /// When the order was made, by a clock that is never set.
    pub(super) ordered: Option<Duration>,
    /// The latest time that it was shown.
    pub(super) seen_at: TimeMs,
    pub(super) age_ms: i64,
    /// Where the bucket has counted the loan.
    pub(super) slot: i64,
    /// Administration of this process since then makes the block unusable.
    pub(super) epoch: u64,
}

impl Block {
    pub(super) fn elapsed_ms(&self, now: TimeMs) -> i64 {
        now.max(self.seen_at).since(self.bought_at)
    }

    /// Whether stock may be spent, taken back and given back. Stock that has aged may not even be
    /// given back: refunds of others may have taken its place.
    pub(super) fn is_alive(&self, terms: &Terms<'_>) -> bool {
        // A clock that was set back and has come this far again would bring a dead block to life.
        let passed = terms.moment.zip(self.ordered).map(|(now, since)| now.saturating_sub(since));
        let is_young =
            passed.is_none_or(|passed| passed.as_millis() < self.age_ms.unsigned_abs().into());
        is_young
            && self.elapsed_ms(terms.now) < self.age_ms
            && self.seen_at.since(terms.now) <= CLOCK_BACK_MAX_MS
    }

    /// Whether the stock may be spent and brought back: not after this process has changed what it
    /// was bought under.
    pub(super) fn is_good(&self, terms: &Terms<'_>) -> bool {
        self.epoch == terms.epoch && self.is_alive(terms)
    }

    /// Whether it is time for another one, so that what is left goes back while it may.
    pub(super) fn is_due(&self, now: TimeMs) -> bool {
        self.elapsed_ms(now) >= self.age_ms - self.age_ms / 4
    }

    pub(super) fn stock(&self, limit: u8) -> Option<&Stock> {
        self.stocks.iter().find(|(index, _)| *index == limit).map(|(_, stock)| stock)
    }

    pub(super) fn stock_mut(&mut self, limit: u8) -> Option<&mut Stock> {
        self.stocks.iter_mut().find(|(index, _)| *index == limit).map(|(_, stock)| stock)
    }

    /// Where the stock of a limit is.
    pub(super) fn place(&self, limit: u8) -> Option<usize> {
        self.stocks.iter().position(|(index, _)| *index == limit)
    }

    /// Whether requests may be served from it. In a pause they are as long as it is good: there is
    /// no other one.
    pub(super) fn may_serve(&self, terms: &Terms<'_>) -> bool {
        self.is_good(terms) && !self.is_due(terms.now)
    }

    /// Whether a take can be served from it, be it time for another one or not.
    pub(super) fn covers(&self, take: &Take, terms: &Terms<'_>) -> bool {
        let has = |stock: &Stock| covers(stock.look(self.elapsed_ms(terms.now)), take);
        self.is_good(terms) && self.stock(take.limit).is_some_and(has)
    }

    pub(super) fn held(&self) -> Milli {
        self.stocks.iter().fold(Milli::ZERO, |sum, (_, stock)| sum.saturating_add(stock.held()))
    }
}

/// Whether a stock at one moment covers a take.
pub(super) fn covers(look: StockLook, take: &Take) -> bool {
    !take.amount.is_negative() && look.usable >= take.amount && look.balance >= take.amount
}
