//! What no caller waits for, and how long a caller waits for others.
//!
//! A library does not spawn unasked: whoever has a task of its own lends it
//! ([`BlockStore::work_behind`]). Without one a chain waits for the blocks that it buys, and use of
//! buckets that fell silent is reported when somebody asks for them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::futures::Notified;
use zae_limiter_core::{EntityId, ResourceName, Take, TimeMs};

use super::home::{Home, Place, side_by_side};
use super::order::Terms;
use super::table::{Key, Slot};
use super::{BlockStore, Shared};
use crate::{BoxFuture, LimitsInForce, MemberTake, Store};

/// The longest wait for an order or a return of another request: an order that hangs must not hold
/// up the bucket. After that a request asks the store as if there were no blocks.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How long a bucket is silent before its use is reported: longer than any block lasts.
const SILENT_MS: i64 = 5_000;
/// How often this process looks for such buckets, in one part of its table at a time.
const LOOK_EVERY_MS: i64 = 100;

/// Takes work and does it, or drops it.
pub(super) type Behind = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// A member of a chain, for after its request.
struct Member {
    entity: EntityId,
    resource: ResourceName,
    limits: LimitsInForce,
    takes: SmallVec<[Take; 4]>,
}

impl<S: Store + ?Sized + 'static> BlockStore<S> {
    /// Has what no caller needs to wait for done elsewhere: the blocks that are bought after a
    /// chain was granted, and the report of buckets that fell silent. `behind` takes work and does
    /// it, or drops it; the first one stays. It holds for all namespaces.
    pub fn work_behind(&self, behind: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) {
        // Whoever comes second has the same.
        let _ = self.shared.behind.set(Arc::new(behind));
    }

    /// Buys blocks for the next requests like one that the store has just granted.
    pub(super) async fn restock_all(&self, members: &[MemberTake<'_>], now: TimeMs) {
        let Some(behind) = self.shared.behind.get() else {
            for member in members {
                self.restock(member, now).await;
            }
            return;
        };
        let terms = Terms { is_alone: false, ..self.terms(now) };
        let wants = |member: &&MemberTake<'_>| {
            let slot = self.table.find(member.entity, member.resource);
            slot.is_some_and(|slot| slot.lock().wants_stock(member, &terms))
        };
        let owned = |member: &MemberTake<'_>| Member {
            entity: member.entity.clone(),
            resource: member.resource.clone(),
            limits: member.limits.clone(),
            takes: member.takes.into(),
        };
        let members: Vec<Member> = members.iter().filter(wants).map(owned).collect();
        if members.is_empty() {
            return;
        }
        let store = self.clone();
        behind(Box::pin(async move {
            for Member { entity, resource, limits, takes } in &members {
                let member = MemberTake { entity, resource, limits, takes, absent: &[] };
                store.restock(&member, now).await;
            }
        }));
    }

    /// Reports the use of buckets that nobody asks for any more, some at a time, in all namespaces:
    /// a request that asks the store passes by.
    pub(super) fn report_silent(&self, now: TimeMs) {
        let Some(behind) = self.shared.behind.get() else { return };
        let last = self.shared.looked_at.load(SeqCst);
        // A clock that was set back must not end this until it has come so far again.
        if (0..LOOK_EVERY_MS).contains(&now.since(TimeMs(last)))
            || self.shared.looked_at.compare_exchange(last, now.0, SeqCst, SeqCst).is_err()
        {
            return;
        }
        let mut silent = Vec::new();
        for Place { table, home } in self.shared.places() {
            let found = table.next_part(|cell| cell.is_silent_for(SILENT_MS, now));
            silent.extend(found.into_iter().map(|(key, slot)| (Arc::clone(&home), key, slot)));
        }
        if silent.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        behind(Box::pin(async move {
            let end = async |(home, key, slot): (Arc<dyn Home>, Key, Arc<Slot>)| {
                let now = shared.at_least(now);
                let ending = {
                    let mut cell = slot.lock();
                    if !cell.is_silent_for(SILENT_MS, now) {
                        return false;
                    }
                    cell.end(&shared.terms(now))
                };
                shared.bring_back(&*home, &key, &slot, ending, now).await;
                true
            };
            side_by_side(silent.into_iter().map(end)).await;
        }));
    }
}

impl Shared {
    pub(super) fn places(&self) -> Vec<Place> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.values().cloned().collect()
    }

    /// The time by now, for what had to wait: what refill has reached meanwhile is neither spent
    /// nor given back.
    pub(super) fn at_least(&self, then: TimeMs) -> TimeMs {
        self.clock.as_ref().map_or(then, |clock| clock.now().max(then))
    }

    /// Waits for the order that is under way, if there is one; false when it takes too long.
    pub(super) async fn idle(&self, slot: &Slot) -> bool {
        // Made before the cell is looked at: so it hears of everything that ends after that.
        let done = std::pin::pin!(slot.done.notified());
        !slot.lock().is_busy() || self.ends(done).await
    }

    /// Waits for what is under way; false when it takes too long. Without a clock there is no
    /// bound.
    pub(super) async fn ends(&self, mut done: Pin<&mut Notified<'_>>) -> bool {
        let Some(clock) = &self.clock else {
            done.await;
            return true;
        };
        let mut timer = clock.sleep(WAIT_MAX);
        poll_fn(|context| match done.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => timer.as_mut().poll(context).map(|()| false),
        })
        .await
    }
}
