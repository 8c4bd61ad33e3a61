//! Room for new buckets: a bound over all shards that no race can exceed, and eviction when it is
//! reached.

use std::sync::atomic::Ordering;

use zae_limiter_core::TimeMs;

use super::Shared;
use super::table::{SHARDS, Shard};
use crate::{StoreError, StoreErrorKind};

/// Slots of the table that one search for buckets to evict looks at. Buckets that are full again
/// are plenty in any store that is not under attack: if one in a hundred is, this many slots all
/// but surely show one.
const EVICT_PROBES_MAX: usize = 1024;

/// How often a take makes room and looks again before it gives up. Each round but the first needs
/// another thread to have removed a bucket of the same chain in between.
pub(super) const ROOM_ATTEMPTS_MAX: usize = 4;

/// Room reserved for buckets about to be created. Unused room is given back.
pub(super) struct Room<'a> {
    shared: &'a Shared,
    slots: usize,
}

impl<'a> Room<'a> {
    pub(super) fn none(shared: &'a Shared) -> Room<'a> {
        Room { shared, slots: 0 }
    }

    /// Reserves until there are `wanted` slots, unless that would exceed the bound. Safe under any
    /// lock.
    pub(super) fn reserve(&mut self, wanted: usize) -> bool {
        let Some(more) = wanted.checked_sub(self.slots).filter(|more| *more > 0) else {
            return true;
        };
        let max = self.shared.options.buckets_max;
        let grow = |buckets: usize| buckets.checked_add(more).filter(|sum| *sum <= max);
        let reserved =
            self.shared.buckets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok();
        if reserved {
            self.slots = wanted;
        }
        reserved
    }

    /// One slot is taken by a bucket now.
    pub(super) fn spend(&mut self) {
        debug_assert!(self.slots > 0, "room is reserved before a bucket is inserted");
        self.slots = self.slots.saturating_sub(1);
    }

    /// Evicts buckets that are full at `now` until there are `wanted` slots. No lock may be held.
    pub(super) fn evict(
        &mut self,
        wanted: usize,
        now: TimeMs,
        operation: &'static str,
    ) -> Result<(), StoreError> {
        let rows_max = self.shared.options.usage_rows_max;
        let first = self.shared.evict_from.load(Ordering::Relaxed);
        let mut probes = EVICT_PROBES_MAX;
        for step in 0..SHARDS {
            if self.reserve(wanted) {
                return Ok(());
            }
            let index = (first + step) % SHARDS;
            self.shared.evict_from.store(index, Ordering::Relaxed);
            // A slot freed here stays counted for this caller: no other caller can take it.
            self.slots += self.shared.lock_shard(index).evict_full(
                wanted - self.slots,
                now,
                &mut probes,
                rows_max,
            );
            if probes == 0 {
                break;
            }
        }
        if self.reserve(wanted) {
            Ok(())
        } else {
            Err(no_room(self.shared.options.buckets_max, operation))
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.shared.give_back_room(self.slots);
    }
}

impl Shared {
    pub(super) fn give_back_room(&self, slots: usize) {
        if slots > 0 {
            self.buckets.fetch_sub(slots, Ordering::Relaxed);
        }
    }
}

impl Shard {
    /// Forgets at most `wanted` buckets that are full at `now`: creating one anew gives the same
    /// bucket. Never one that is drained or in debt.
    fn evict_full(
        &mut self,
        wanted: usize,
        now: TimeMs,
        probes: &mut usize,
        rows_max: usize,
    ) -> usize {
        let slots = self.table.num_buckets();
        let mut evicted = 0;
        for _ in 0..slots.min(*probes) {
            if evicted == wanted {
                break;
            }
            *probes -= 1;
            self.evict_from = (self.evict_from + 1) % slots;
            let Ok(found) = self.table.get_bucket_entry(self.evict_from) else { continue };
            if found.get().state.is_full_at(now) {
                let (entry, _) = found.remove();
                self.usage.add(&entry, &entry.state.open_hour(), rows_max);
                evicted += 1;
            }
        }
        evicted
    }
}

fn no_room(buckets_max: usize, operation: &'static str) -> StoreError {
    let message = format!(
        "there are {buckets_max} buckets, the most this store may hold, and none was found that is full again and could make \
         room; raise MemoryOptions::buckets_max, or retry when buckets have refilled"
    );
    StoreError::new(StoreErrorKind::Capacity, operation, message)
}

/// The race is the problem, not the bound: nothing was applied, and a retry may succeed.
pub(super) fn too_contended(operation: &'static str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Busy,
        operation,
        "buckets of this chain were evicted while others were created; retry",
    )
}
