//! The cells of one namespace, by bucket.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use tokio::sync::Notify;
use zae_limiter_core::{EntityId, Milli, ResourceName, TimeMs};

use super::cell::Cell;
use super::stats::Stats;

const PARTS: usize = 64;

/// Which bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) entity: EntityId,
    pub(super) resource: ResourceName,
}

impl Key {
    fn is(&self, entity: &EntityId, resource: &ResourceName) -> bool {
        self.entity == *entity && self.resource == *resource
    }
}

/// A cell, and who waits for its order.
#[derive(Default)]
pub(super) struct Slot {
    cell: Mutex<Cell>,
    pub(super) done: Notify,
}

impl Slot {
    pub(super) fn lock(&self) -> MutexGuard<'_, Cell> {
        self.cell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Part = HashTable<(Key, Arc<Slot>)>;

/// Locks are taken in this order: a part, then a slot of it.
pub(super) struct Table {
    parts: Box<[Mutex<Part>]>,
    hasher: RandomState,
    slots_max: usize,
    /// Which part comes next when all are looked through.
    next: AtomicUsize,
}

impl Table {
    pub(super) fn new(slots_max: usize) -> Table {
        Table {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            slots_max: slots_max.div_ceil(PARTS),
            next: AtomicUsize::new(0),
        }
    }

    /// Where a bucket belongs.
    fn hash(&self, entity: &EntityId, resource: &ResourceName) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(entity.as_str().as_bytes());
        hasher.write(resource.as_str().as_bytes());
        hasher.finish()
    }

    /// The table uses the lowest and the highest bits of the hash, the choice of the part uses
    /// others.
    fn part(&self, hash: u64) -> MutexGuard<'_, Part> {
        let index = usize::try_from((hash >> 40) % PARTS as u64).unwrap_or(0);
        self.parts[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, entity: &EntityId, resource: &ResourceName) -> Option<Arc<Slot>> {
        self.at(entity, resource, Arc::clone)
    }

    /// Looks at the slot of a bucket while its part is locked: that costs less than a copy of the
    /// slot's pointer.
    #[inline]
    pub(super) fn at<T>(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        look: impl FnOnce(&Arc<Slot>) -> T,
    ) -> Option<T> {
        let hash = self.hash(entity, resource);
        let part = self.part(hash);
        part.find(hash, |(key, _)| key.is(entity, resource)).map(|(_, slot)| look(slot))
    }

    /// The slot of a bucket; `None` when there are too many already, all of them in use.
    pub(super) fn slot(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        now: TimeMs,
        stats: &Stats,
    ) -> Option<Arc<Slot>> {
        let hash = self.hash(entity, resource);
        let mut part = self.part(hash);
        if let Some((_, slot)) = part.find(hash, |(key, _)| key.is(entity, resource)) {
            return Some(Arc::clone(slot));
        }
        if part.len() >= self.slots_max {
            // Whoever has a slot in hand goes on with it; what that cell buys is then known to
            // nobody else, and fades.
            part.retain(|(_, slot)| {
                let cell = slot.lock();
                let stays = Arc::strong_count(slot) > 1 || !cell.is_idle(now);
                if !stays {
                    stats.faded(cell.held());
                }
                stays
            });
            if part.len() >= self.slots_max {
                return None;
            }
        }
        let slot = Arc::<Slot>::default();
        let key = Key { entity: entity.clone(), resource: resource.clone() };
        part.insert_unique(hash, (key, Arc::clone(&slot)), |(key, _)| {
            self.hash(&key.entity, &key.resource)
        });
        Some(slot)
    }

    /// The slots of all buckets that `is_meant` names.
    pub(super) fn slots(&self, is_meant: impl Fn(&Key) -> bool) -> Vec<(Key, Arc<Slot>)> {
        let mut slots = Vec::new();
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            slots.extend(part.iter().filter(|(key, _)| is_meant(key)).cloned());
        }
        slots.sort_by(|(a, _), (b, _)| {
            (a.entity.as_str(), a.resource.as_str()).cmp(&(b.entity.as_str(), b.resource.as_str()))
        });
        slots
    }

    /// What is meant of the next part of the table.
    pub(super) fn next_part(&self, is_meant: impl Fn(&Cell) -> bool) -> Vec<(Key, Arc<Slot>)> {
        let part = &self.parts[self.next.fetch_add(1, Relaxed) % PARTS];
        let part = part.lock().unwrap_or_else(PoisonError::into_inner);
        part.iter().filter(|(_, slot)| is_meant(&slot.lock())).cloned().collect()
    }

    pub(super) fn held(&self) -> Milli {
        let mut held = Milli::ZERO;
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            held = part.iter().fold(held, |sum, (_, slot)| sum.saturating_add(slot.lock().held()));
        }
        held
    }
}
