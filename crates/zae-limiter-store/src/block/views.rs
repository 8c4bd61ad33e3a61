//! What others see: use is reported before somebody looks at it, and stock of this process counts
//! as part of its bucket.

use std::sync::atomic::Ordering::SeqCst;

use zae_limiter_core::{Milli, TimeMs};

use super::BlockStore;
use super::order::Ending;
use super::table::{Key, Slot};
use crate::{BucketView, Page, Store, UsageQuery};

/// A return or an order that is under way. Dropped early, its stock and its report are lost: nobody
/// knows whether the store has them.
pub(super) struct Trip<'a> {
    pub(super) slot: &'a Slot,
    pub(super) stats: &'a super::stats::Stats,
    /// The stock that is on its way.
    pub(super) travelling: Milli,
    /// The requests that it reports.
    grants: u32,
    is_over: bool,
}

impl<'a> Trip<'a> {
    pub(super) fn begin(
        slot: &'a Slot,
        stats: &'a super::stats::Stats,
        travelling: Milli,
        grants: u32,
    ) -> Trip<'a> {
        stats.travels(travelling);
        Trip { slot, stats, travelling, grants, is_over: false }
    }

    /// Says what became of the stock, and lets others go on.
    pub(super) fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Trip<'_> {
    fn drop(&mut self) {
        self.stats.travels(self.travelling.negated());
        if !self.is_over {
            self.stats.lost(self.travelling);
            self.stats.use_lost(self.grants);
            self.slot.lock().ended();
        }
        self.slot.done.notify_waiters();
    }
}

impl<S: Store + ?Sized + 'static> BlockStore<S> {
    /// Ends the blocks of these buckets; false when there are none. What cannot be given back is
    /// lost, and counted.
    pub(super) async fn settle_all(&self, is_meant: impl Fn(&Key) -> bool, now: TimeMs) -> bool {
        self.settle_up_to(usize::MAX, is_meant, now).await
    }

    /// The same for so many buckets at most.
    pub(super) async fn settle_up_to(
        &self,
        most: usize,
        is_meant: impl Fn(&Key) -> bool,
        now: TimeMs,
    ) -> bool {
        let mut is_any = false;
        for (key, slot) in self.table.slots(is_meant).into_iter().take(most) {
            self.idle(&slot).await;
            let now = self.at_least(now);
            let ending = {
                let mut cell = slot.lock();
                if cell.is_busy() || !cell.has_loan() {
                    continue;
                }
                cell.end(&self.terms(now))
            };
            is_any = true;
            self.bring_back(&key, &slot, ending, now).await;
        }
        is_any
    }

    /// Reports the use of these buckets, and keeps the blocks.
    pub(super) async fn report_all(&self, is_meant: impl Fn(&Key) -> bool) {
        for (key, slot) in self.table.slots(is_meant) {
            self.idle(&slot).await;
            let now = self.time();
            let ending = {
                let mut cell = slot.lock();
                if cell.is_busy() {
                    continue;
                }
                cell.end_use(&self.terms(now))
            };
            self.bring_back(&key, &slot, ending, now).await;
        }
    }

    pub(super) async fn report_asked(&self, query: &UsageQuery) {
        let is_meant = |key: &Key| {
            query.entity.as_ref().is_none_or(|entity| *entity == key.entity)
                && query.resource.as_ref().is_none_or(|resource| *resource == key.resource)
        };
        self.report_all(is_meant).await;
    }

    /// Gives back and reports; the cell is busy until then.
    pub(super) async fn bring_back(&self, key: &Key, slot: &Slot, ending: Ending, now: TimeMs) {
        let stats = &self.shared.stats;
        let trip = Trip::begin(slot, stats, ending.back, ending.report.grants);
        if !ending.report.is_empty() {
            let settled = self.inner.settle(&key.entity, &key.resource, &ending.report, now).await;
            match settled {
                Ok(()) => {}
                Err(error) if !error.fate_unknown() => {
                    slot.lock().restore(ending, stats);
                    return trip.end();
                }
                Err(_) => return,
            }
        }
        stats.returned(ending.back);
        slot.lock().ended();
        trip.end();
    }

    /// What time it is; without a clock, by the last request.
    fn time(&self) -> TimeMs {
        let seen_at = || TimeMs(self.shared.seen_at.load(SeqCst));
        self.shared.clock.as_ref().map_or_else(seen_at, |clock| clock.now())
    }

    /// The same page, with the stock of this process in its buckets, as if it had never been lent.
    pub(super) fn with_stock(&self, mut page: Page<BucketView>) -> Page<BucketView> {
        for view in &mut page.items {
            let Some(slot) = self.table.find(&view.entity, &view.resource) else { continue };
            view.state.restore_loans(None);
            for (limit, stock) in slot.lock().shown(&self.terms(self.time())) {
                view.state.show_stock(limit.name(), stock);
            }
        }
        page
    }
}
