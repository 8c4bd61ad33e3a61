//! What became of the stock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use zae_limiter_core::Milli;

/// What became of the stock of a [`BlockStore`](crate::BlockStore), over all limits. Whatever was
/// bought is spent, given back, faded, lost or still held:
/// `bought = spent − refunded + returned + faded + lost + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockStats {
    /// Requests that were served from stock alone.
    pub grants: u64,
    /// Requests that were refused without the store, because a limit was scarce a moment ago.
    pub paced: u64,
    /// Orders: each is a write.
    pub orders: u64,
    /// Stock that was bought.
    pub bought: Milli,
    /// Stock that requests and charges have spent.
    pub spent: Milli,
    /// What callers gave back into stock.
    pub refunded: Milli,
    /// Stock that went back to its bucket.
    pub returned: Milli,
    /// Stock that the refill of its bucket reached, or that became too old.
    pub faded: Milli,
    /// Stock whose order or return failed, or that an administrator overtook.
    pub lost: Milli,
    /// Stock that is held now.
    pub held: Milli,
    /// Requests served from stock whose report was not answered: nobody knows whether usage has
    /// them.
    pub use_lost: u64,
}

impl BlockStats {
    /// What `bought` does not account for: zero, always.
    #[must_use]
    pub fn missing(&self) -> Milli {
        let gone = [self.spent, self.refunded.negated(), self.returned, self.faded, self.lost];
        gone.iter()
            .fold(self.bought, |left, part| left.saturating_sub(*part))
            .saturating_sub(self.held)
    }
}

#[derive(Default)]
pub(super) struct Stats {
    grants: AtomicU64,
    paced: AtomicU64,
    orders: AtomicU64,
    use_lost: AtomicU64,
    bought: AtomicI64,
    spent: AtomicI64,
    refunded: AtomicI64,
    returned: AtomicI64,
    faded: AtomicI64,
    lost: AtomicI64,
    /// Stock of orders and returns that are under way.
    travelling: AtomicI64,
}

impl Stats {
    pub(super) fn granted(&self) {
        self.grants.fetch_add(1, Relaxed);
    }

    pub(super) fn paced(&self) {
        self.paced.fetch_add(1, Relaxed);
    }

    pub(super) fn ordered(&self) {
        self.orders.fetch_add(1, Relaxed);
    }

    pub(super) fn bought(&self, amount: Milli) {
        self.bought.fetch_add(amount.0, Relaxed);
    }

    pub(super) fn spent(&self, amount: Milli, faded: Milli) {
        self.spent.fetch_add(amount.0, Relaxed);
        self.faded(faded);
    }

    pub(super) fn refunded(&self, amount: Milli) {
        self.refunded.fetch_add(amount.0, Relaxed);
    }

    pub(super) fn returned(&self, amount: Milli) {
        self.returned.fetch_add(amount.0, Relaxed);
    }

    pub(super) fn faded(&self, amount: Milli) {
        if amount != Milli::ZERO {
            self.faded.fetch_add(amount.0, Relaxed);
        }
    }

    pub(super) fn lost(&self, amount: Milli) {
        self.lost.fetch_add(amount.0, Relaxed);
    }

    pub(super) fn use_lost(&self, grants: u32) {
        self.use_lost.fetch_add(grants.into(), Relaxed);
    }

    pub(super) fn travels(&self, amount: Milli) {
        self.travelling.fetch_add(amount.0, Relaxed);
    }

    pub(super) fn read(&self, held: Milli) -> BlockStats {
        let milli = |number: &AtomicI64| Milli(number.load(Relaxed));
        BlockStats {
            grants: self.grants.load(Relaxed),
            paced: self.paced.load(Relaxed),
            orders: self.orders.load(Relaxed),
            bought: milli(&self.bought),
            spent: milli(&self.spent),
            refunded: milli(&self.refunded),
            returned: milli(&self.returned),
            faded: milli(&self.faded),
            lost: milli(&self.lost),
            held: held.saturating_add(milli(&self.travelling)),
            use_lost: self.use_lost.load(Relaxed),
        }
    }
}
