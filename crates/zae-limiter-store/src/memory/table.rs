//! Where buckets and their usage history live: a hash table in 64 parts, each behind its own lock.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, MutexGuard};

use hashbrown::HashTable;
use smallvec::SmallVec;
use zae_limiter_core::{BucketState, ClosedHour, EntityId, LimitName, Milli, ResourceName, TimeMs};

use super::{MemoryStore, Shared, lock};
use crate::{BucketView, Swept};

/// Parts of the table. Enough that threads seldom meet, few enough that visiting all is cheap.
pub(super) const SHARDS: usize = 64;

/// The most scopes kept for sharing. At the bound all are let go; buckets that use one keep it.
const SCOPES_MAX: usize = 4096;

/// Which bucket, by borrowed names: looking one up allocates nothing.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) hash: u64,
    pub(super) number: u32,
    pub(super) entity: &'a EntityId,
    pub(super) resource: &'a ResourceName,
}

impl Key<'_> {
    /// The table uses the lowest and the highest bits of the hash, the choice of the shard uses
    /// others.
    pub(super) fn shard(&self) -> usize {
        usize::from(u8::try_from((self.hash >> 40) & 0xFF).unwrap_or(0)) % SHARDS
    }
}

/// The half of a key that many buckets share.
pub(super) struct Scope {
    pub(super) number: u32,
    pub(super) resource: ResourceName,
}

/// One bucket. Kept small, there may be a million: 232 bytes are what fits a block of 240 bytes,
/// and the entity's text has a box of its own size.
pub(super) struct Entry {
    hash: u64,
    pub(super) scope: Arc<Scope>,
    entity: Box<str>,
    pub(super) state: BucketState,
}

impl Entry {
    pub(super) fn is(&self, key: &Key<'_>) -> bool {
        self.hash == key.hash
            && *self.entity == *key.entity.as_str()
            && self.scope.number == key.number
            && self.scope.resource == *key.resource
    }

    pub(super) fn entity(&self) -> &str {
        &self.entity
    }

    pub(super) fn entity_id(&self) -> EntityId {
        self.entity.parse().expect("the text was a valid entity id when the bucket was created")
    }

    pub(super) fn view(&self) -> BucketView {
        BucketView {
            entity: self.entity_id(),
            resource: self.scope.resource.clone(),
            state: self.state.clone(),
        }
    }

    fn usage_key(&self, start: TimeMs) -> UsageKey {
        UsageKey {
            start,
            number: self.scope.number,
            entity: self.entity_id(),
            resource: self.scope.resource.clone(),
        }
    }
}

/// One hour of one bucket. Ordered by time first, so that the oldest are at hand.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UsageKey {
    pub(super) start: TimeMs,
    pub(super) number: u32,
    pub(super) entity: EntityId,
    pub(super) resource: ResourceName,
}

/// The usage per limit, and the number of grants.
#[derive(Clone, Default)]
pub(super) struct UsageRow {
    pub(super) used: Vec<(LimitName, Milli)>,
    pub(super) events: u64,
}

impl UsageRow {
    pub(super) fn add(&mut self, used: &[(LimitName, Milli)], events: u64) {
        for (name, amount) in used {
            match self.used.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum = sum.saturating_add(*amount),
                None => self.used.push((name.clone(), *amount)),
            }
        }
        self.events = self.events.saturating_add(events);
    }
}

/// Hours that are over, of the buckets of one shard.
#[derive(Default)]
pub(super) struct UsageLog {
    pub(super) rows: BTreeMap<UsageKey, UsageRow>,
}

impl UsageLog {
    pub(super) fn add(&mut self, entry: &Entry, closed: &ClosedHour, rows_max: usize) {
        if closed.used.is_empty() && closed.events == 0 {
            return;
        }
        self.rows
            .entry(entry.usage_key(closed.start))
            .or_default()
            .add(&closed.used, closed.events.into());
        while self.rows.len() > rows_max.div_ceil(SHARDS).max(1) {
            self.rows.pop_first();
        }
    }
}

/// One part of the table, with the history of its buckets: one lock makes "history plus open hour"
/// a consistent sum.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) table: HashTable<Box<Entry>>,
    pub(super) usage: UsageLog,
    /// The slot where the next search for a bucket to evict begins.
    pub(super) evict_from: usize,
}

impl Shard {
    pub(super) fn find(&self, key: &Key<'_>) -> Option<&Entry> {
        self.table.find(key.hash, |entry| entry.is(key)).map(|entry| &**entry)
    }

    /// The bucket, and where its closed hours go.
    #[inline]
    pub(super) fn find_mut(&mut self, key: &Key<'_>) -> Option<(&mut Entry, &mut UsageLog)> {
        let Shard { table, usage, .. } = self;
        table.find_mut(key.hash, |entry| entry.is(key)).map(|entry| (&mut **entry, usage))
    }

    /// Adds a bucket that is known not to be there.
    pub(super) fn insert(&mut self, key: &Key<'_>, scope: Arc<Scope>, state: BucketState) {
        let entry = Box::new(Entry {
            hash: key.hash,
            scope,
            entity: Box::from(key.entity.as_str()),
            state,
        });
        self.table.insert_unique(key.hash, entry, |entry| entry.hash);
    }

    /// Removes the buckets that `doomed` picks, and keeps the counts of their open hours. Returns
    /// how many.
    pub(super) fn remove_where(
        &mut self,
        mut doomed: impl FnMut(&Entry) -> bool,
        rows_max: usize,
    ) -> usize {
        let Shard { table, usage, .. } = self;
        let before = table.len();
        table.retain(|entry| {
            let remove = doomed(entry);
            if remove {
                usage.add(entry, &entry.state.open_hour(), rows_max);
            }
            !remove
        });
        before - table.len()
    }
}

/// The shards of one chain, locked.
pub(super) struct Locked<'a> {
    /// With their indexes, ascending.
    pub(super) guards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl Locked<'_> {
    pub(super) fn shard(&self, key: &Key<'_>) -> &Shard {
        let wanted = key.shard();
        let found = self.guards.iter().find(|(index, _)| *index == wanted);
        &found.expect("the shard of every key was locked").1
    }

    pub(super) fn shard_mut(&mut self, key: &Key<'_>) -> &mut Shard {
        let wanted = key.shard();
        let found = self.guards.iter_mut().find(|(index, _)| *index == wanted);
        &mut found.expect("the shard of every key was locked").1
    }
}

/// Scopes in use, so that a million buckets of one resource share one.
#[derive(Default)]
pub(super) struct Scopes {
    table: HashTable<Arc<Scope>>,
}

impl Scopes {
    pub(super) fn clear(&mut self) {
        self.table.clear();
    }
}

impl MemoryStore {
    #[inline]
    pub(super) fn key<'a>(&self, entity: &'a EntityId, resource: &'a ResourceName) -> Key<'a> {
        let mut hasher = self.shared.hasher.build_hasher();
        hasher.write_u32(self.number);
        hasher.write(entity.as_str().as_bytes());
        hasher.write(resource.as_str().as_bytes());
        Key { hash: hasher.finish(), number: self.number, entity, resource }
    }
}

impl Shared {
    #[inline]
    pub(super) fn lock_of(&self, key: &Key<'_>) -> MutexGuard<'_, Shard> {
        self.lock_shard(key.shard())
    }

    /// Locks the shards of all keys, each once and in ascending order: two chains cannot wait for
    /// each other.
    pub(super) fn lock_all(&self, keys: &[Key<'_>]) -> Locked<'_> {
        let mut guards = SmallVec::new();
        let mut lock = |index| guards.push((index, self.lock_shard(index)));
        if let [key] = keys {
            lock(key.shard());
        } else {
            let mut wanted: SmallVec<[usize; 8]> = keys.iter().map(Key::shard).collect();
            wanted.sort_unstable();
            wanted.dedup();
            wanted.into_iter().for_each(lock);
        }
        Locked { guards }
    }

    pub(super) fn scope(&self, key: &Key<'_>) -> Arc<Scope> {
        let hash_of = |number: u32, resource: &ResourceName| {
            self.hasher.hash_one((number, resource.as_str()))
        };
        let hash = hash_of(key.number, key.resource);
        let mut scopes = lock(&self.scopes);
        let same =
            |scope: &Arc<Scope>| scope.number == key.number && scope.resource == *key.resource;
        if let Some(scope) = scopes.table.find(hash, same) {
            return Arc::clone(scope);
        }
        if scopes.table.len() >= SCOPES_MAX {
            scopes.clear();
        }
        let scope = Arc::new(Scope { number: key.number, resource: key.resource.clone() });
        scopes.table.insert_unique(hash, Arc::clone(&scope), |scope| {
            hash_of(scope.number, &scope.resource)
        });
        scope
    }

    /// Visits every shard, one at a time.
    pub(super) fn each_shard(&self, mut visit: impl FnMut(&mut Shard)) {
        for index in 0..SHARDS {
            visit(&mut self.lock_shard(index));
        }
    }

    pub(super) fn sweep_shard(&self, index: usize, now: TimeMs, swept: &mut Swept) {
        let mut shard = self.lock_shard(index);
        let removed =
            shard.remove_where(|entry| entry.state.is_expired_at(now), self.options.usage_rows_max);
        self.give_back_room(removed);
        swept.buckets += removed as u64;
        let oldest = now.plus_ms(self.options.usage_retention_ms.saturating_neg());
        while shard.usage.rows.first_key_value().is_some_and(|(key, _)| key.start < oldest) {
            shard.usage.rows.pop_first();
            swept.usage += 1;
        }
    }
}
