//! The way back of stock and use to the bucket that they are of, in whatever namespace.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use zae_limiter_core::{Milli, Report, TimeMs};

use super::Shared;
use super::order::Ending;
use super::stats::Stats;
use super::table::{Key, Slot, Table};
use crate::{Store, StoreFuture};

/// How many returns and reports are under way at once.
const AT_ONCE_MAX: usize = 64;

/// The store of one namespace, whatever its type.
pub(super) trait Home: Send + Sync {
    fn settle<'a>(&'a self, key: &'a Key, report: &'a Report, now: TimeMs) -> StoreFuture<'a, ()>;
}

pub(super) struct HomeIn<S: ?Sized>(pub(super) Arc<S>);

impl<S: Store + ?Sized> Home for HomeIn<S> {
    fn settle<'a>(&'a self, key: &'a Key, report: &'a Report, now: TimeMs) -> StoreFuture<'a, ()> {
        self.0.settle(&key.entity, &key.resource, report, now)
    }
}

/// The buckets of one namespace, and where they are.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) table: Arc<Table>,
    pub(super) home: Arc<dyn Home>,
}

/// A return or an order that is under way. Dropped early, its stock and its report are lost: nobody
/// knows whether the store has them.
pub(super) struct Trip<'a> {
    slot: &'a Slot,
    stats: &'a Stats,
    /// The stock that is on its way.
    travelling: Milli,
    /// The requests that it reports.
    grants: u32,
    is_over: bool,
}

impl<'a> Trip<'a> {
    pub(super) fn begin(
        slot: &'a Slot,
        stats: &'a Stats,
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

impl Shared {
    /// Ends the block of a bucket; false when there is none. What cannot be given back is lost, and
    /// counted.
    pub(super) async fn settle(
        &self,
        home: &dyn Home,
        key: &Key,
        slot: &Slot,
        now: TimeMs,
    ) -> bool {
        self.idle(slot).await;
        let now = self.at_least(now);
        let ending = {
            let mut cell = slot.lock();
            if cell.is_busy() || !cell.has_loan() {
                return false;
            }
            cell.end(&self.terms(now))
        };
        self.bring_back(home, key, slot, ending, now).await;
        true
    }

    /// Gives back and reports; the cell is busy until then.
    pub(super) async fn bring_back(
        &self,
        home: &dyn Home,
        key: &Key,
        slot: &Slot,
        ending: Ending,
        now: TimeMs,
    ) {
        let stats = &self.stats;
        let trip = Trip::begin(slot, stats, ending.back, ending.report.grants);
        if !ending.report.is_empty() {
            match home.settle(key, &ending.report, now).await {
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
}

/// Does all of it, so much at once; whether any of it did something. One after the other would
/// take a round trip each.
pub(super) async fn side_by_side<F: Future<Output = bool>>(work: impl Iterator<Item = F>) -> bool {
    let mut work = work.fuse();
    let (mut running, mut is_any) = (Vec::<Pin<Box<F>>>::new(), false);
    poll_fn(|context| {
        loop {
            let room = AT_ONCE_MAX - running.len();
            running.extend(work.by_ref().take(room).map(Box::pin));
            let before = running.len();
            running.retain_mut(|it| match it.as_mut().poll(context) {
                Poll::Ready(did) => {
                    is_any |= did;
                    false
                }
                Poll::Pending => true,
            });
            if before == 0 {
                return Poll::Ready(());
            }
            if running.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
    is_any
}
