//! The cells of one namespace, by bucket.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};
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

#[derive(Clone, Copy)]
struct KeyRef<'a>(&'a EntityId, &'a ResourceName);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        KeyRef(&self.entity, &self.resource).hash(state);
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
        self.1.as_str().hash(state);
    }
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.0 == key.entity && *self.1 == key.resource
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

type Part = Mutex<HashMap<Key, Arc<Slot>, RandomState>>;

pub(super) struct Table {
    parts: Box<[Part]>,
    hasher: RandomState,
    slots_max: usize,
    /// Which part comes next when all are looked through.
    next: AtomicUsize,
}

impl Table {
    pub(super) fn new(slots_max: usize) -> Table {
        Table {
            parts: (0..PARTS).map(|_| Part::default()).collect(),
            hasher: RandomState::default(),
            slots_max: slots_max.div_ceil(PARTS),
            next: AtomicUsize::new(0),
        }
    }

    fn part(&self, key: KeyRef<'_>) -> MutexGuard<'_, HashMap<Key, Arc<Slot>, RandomState>> {
        let hash = self.hasher.hash_one(key);
        let index = usize::try_from(hash % PARTS as u64).unwrap_or(0);
        self.parts[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, entity: &EntityId, resource: &ResourceName) -> Option<Arc<Slot>> {
        let key = KeyRef(entity, resource);
        self.part(key).get(&key).cloned()
    }

    /// The slot of a bucket; `None` when there are too many already, all of them in use.
    pub(super) fn slot(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        now: TimeMs,
        stats: &Stats,
    ) -> Option<Arc<Slot>> {
        let key = KeyRef(entity, resource);
        let mut part = self.part(key);
        if let Some(slot) = part.get(&key) {
            return Some(Arc::clone(slot));
        }
        if part.len() >= self.slots_max {
            // Whoever has a slot in hand goes on with it; what that cell buys is then known to
            // nobody else, and fades.
            part.retain(|_, slot| {
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
        part.insert(key, Arc::clone(&slot));
        Some(slot)
    }

    /// The slots of all buckets that `is_meant` names.
    pub(super) fn slots(&self, is_meant: impl Fn(&Key) -> bool) -> Vec<(Key, Arc<Slot>)> {
        let mut slots = Vec::new();
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let meant = part.iter().filter(|(key, _)| is_meant(key));
            slots.extend(meant.map(|(key, slot)| (key.clone(), Arc::clone(slot))));
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
        let meant = part.iter().filter(|(_, slot)| is_meant(&slot.lock()));
        meant.map(|(key, slot)| (key.clone(), Arc::clone(slot))).collect()
    }

    pub(super) fn held(&self) -> Milli {
        let mut held = Milli::ZERO;
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            held = part.values().fold(held, |sum, slot| sum.saturating_add(slot.lock().held()));
        }
        held
    }
}
