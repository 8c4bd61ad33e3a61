//! What others see: use is reported before somebody looks at it, and stock of this process counts
//! as part of its bucket.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use zae_limiter_core::TimeMs;

use super::BlockStore;
use super::home::side_by_side;
use super::order::Ending;
use super::table::{Key, Slot};
use crate::{BucketView, MemberTake, Page, PageRequest, Store, UsageQuery};

impl<S: Store + ?Sized + 'static> BlockStore<S> {
    /// Ends the blocks of these buckets, so many at most.
    pub(super) async fn settle_up_to(
        &self,
        most: usize,
        is_meant: impl Fn(&Key) -> bool,
        now: TimeMs,
    ) {
        self.settle_slots(self.table.slots(is_meant).into_iter().take(most), now).await;
    }

    /// Ends the blocks of these members; false when there are none.
    pub(super) async fn settle_members(&self, members: &[MemberTake<'_>], now: TimeMs) -> bool {
        let slot = |member: &MemberTake<'_>| {
            let slot = self.table.find(member.entity, member.resource)?;
            Some((Key { entity: member.entity.clone(), resource: member.resource.clone() }, slot))
        };
        self.settle_slots(members.iter().filter_map(slot), now).await
    }

    async fn settle_slots(
        &self,
        slots: impl Iterator<Item = (Key, Arc<Slot>)>,
        now: TimeMs,
    ) -> bool {
        let settle = async |(key, slot): (Key, Arc<Slot>)| {
            self.shared.settle(&*self.home, &key, &slot, now).await
        };
        side_by_side(slots.map(settle)).await
    }

    /// Reports the use of these buckets, and keeps the blocks. A listing does so for its first page
    /// alone: all its pages are of one time, as far as this process knows.
    pub(super) async fn report_for(&self, page: &PageRequest, is_meant: impl Fn(&Key) -> bool) {
        if page.cursor().is_none() {
            self.report_all(is_meant).await;
        }
    }

    async fn report_all(&self, is_meant: impl Fn(&Key) -> bool) {
        let report = async |(key, slot): (Key, Arc<Slot>)| {
            self.shared.idle(&slot).await;
            let now = self.time();
            let ending = {
                let mut cell = slot.lock();
                if cell.is_busy() {
                    return false;
                }
                cell.end_use(&self.terms(now))
            };
            self.shared.bring_back(&*self.home, &key, &slot, ending, now).await;
            true
        };
        side_by_side(self.table.slots(is_meant).into_iter().map(report)).await;
    }

    pub(super) async fn bring_back(&self, key: &Key, slot: &Slot, ending: Ending, now: TimeMs) {
        self.shared.bring_back(&*self.home, key, slot, ending, now).await;
    }

    pub(super) async fn report_asked(&self, page: &PageRequest, query: &UsageQuery) {
        let is_meant = |key: &Key| {
            query.entity.as_ref().is_none_or(|entity| *entity == key.entity)
                && query.resource.as_ref().is_none_or(|resource| *resource == key.resource)
        };
        self.report_for(page, is_meant).await;
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
