//! The config cache: what is known about each (entity, resource), for a while.
//!
//! Bounded, one flight per key, no lock held over I/O, negative answers included. Entries are
//! invalidated by epochs, not by removal: a read that was in flight while somebody changed the
//! configuration carries the old epoch and is never used.
//!
//! The age of an entry counts from the moment before its read was sent, less how old the store said
//! its answer was. So an entry never outlives what it says by more than the TTL, and by
//! [`LEND_MAX`] more when it is lent.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::{Equivalent, sync::Cache};
use zae_limiter_core::{EntityId, ResourceName};
use zae_limiter_store::{Clock, LimitsInForce, MemberConfig};

use crate::metrics::{CacheNumbers, CacheReport};

/// Entities are spread over this many epochs, so that a change of one entity invalidates few
/// others.
const ENTITY_EPOCHS: usize = 256;

/// An expired entry decides one more take at most this long after its time: long enough that a key
/// in use never waits for the read, too short to matter to who lowered a limit. An entry that was
/// idle for longer is read again first.
pub(crate) const LEND_MAX: Duration = Duration::from_secs(5);

/// Times a caller waits for somebody else's read of the same key; then it reads for itself.
const FOLLOWED_MAX: u32 = 3;

/// Numbers about the config cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups answered from the cache.
    pub hits: u64,
    /// Lookups that read the store.
    pub misses: u64,
    /// Entries held, expired ones that were not looked up since included.
    pub entries: usize,
    /// How long an entry is trusted.
    pub ttl: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    entity: EntityId,
    resource: ResourceName,
}

/// A key made of borrowed names: looking up allocates nothing.
#[derive(Hash)]
struct KeyRef<'a> {
    entity: &'a EntityId,
    resource: &'a ResourceName,
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.entity == key.entity && *self.resource == key.resource
    }
}

/// What is known about one member of a chain.
#[derive(Debug)]
pub(crate) struct Known {
    /// As the store answered.
    pub(crate) config: MemberConfig,
    /// The stored limits, ready to use; `None` when no level has any.
    pub(crate) limits: Option<LimitsInForce>,
    /// The freshness of the read, also when it found nothing.
    pub(crate) stamp: zae_limiter_core::ConfigStamp,
    /// Which of the entity epochs is this entity's, so that a look-up need not hash its name once
    /// more.
    slot: usize,
    epochs: Epochs,
    expires_at: Duration,
    /// Used once beyond its time, while it is read again.
    lent: AtomicBool,
}

/// The epoch of everything, and that of an entity.
type Epochs = (u64, u64);

/// What a read of the store found out.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) config: MemberConfig,
    pub(crate) limits: Option<LimitsInForce>,
    pub(crate) stamp: zae_limiter_core::ConfigStamp,
    /// How old the store says the answer is.
    pub(crate) age: Duration,
}

/// A read that is about to be sent: a change that lands after this makes its answer untrusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    slot: usize,
    epochs: Epochs,
    began: Duration,
}

/// The same for members that may come along, whoever they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadingAlong {
    evictions: u64,
    began: Duration,
}

/// The cache of one namespace.
#[derive(Debug)]
pub(crate) struct ConfigCache {
    entries: Cache<Key, Arc<Known>>,
    ttl: Duration,
    epoch: AtomicU64,
    entity_epochs: Box<[AtomicU64]>,
    /// Counts every change of an epoch, before it is changed.
    evictions: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    report: CacheReport,
}

impl ConfigCache {
    /// A cache of at most `entries_max` entries, trusted for `ttl`; zero disables it.
    pub(crate) fn new(entries_max: usize, ttl: Duration) -> ConfigCache {
        ConfigCache {
            entries: Cache::new(entries_max.max(1)),
            ttl,
            epoch: AtomicU64::new(0),
            entity_epochs: (0..ENTITY_EPOCHS).map(|_| AtomicU64::new(0)).collect(),
            evictions: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            report: CacheReport::default(),
        }
    }

    /// What is known and still trusted.
    pub(crate) fn get(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        clock: &dyn Clock,
    ) -> Option<Arc<Known>> {
        let known = self.entries.get(&KeyRef { entity, resource })?;
        if !self.trusts(&known, clock) {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(known)
    }

    /// What is known, trusted or just expired; true when it is expired. An expired entry is lent
    /// once, and for at most
    /// [`LEND_MAX`]: whoever gets it reads it again at the same time, and until that is done nobody else gets it.
    pub(crate) fn get_or_borrow(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        clock: &dyn Clock,
    ) -> Option<(Arc<Known>, bool)> {
        let known = self.entries.get(&KeyRef { entity, resource })?;
        if self.trusts(&known, clock) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Some((known, false));
        }
        let is_current = known.epochs == self.epochs(known.slot);
        let is_recent = clock.monotonic() < known.expires_at.saturating_add(self.ttl.min(LEND_MAX));
        (is_current && is_recent && !known.lent.swap(true, Ordering::AcqRel))
            .then_some((known, true))
    }

    /// To be called before a read is sent; for [`ConfigCache::insert`].
    pub(crate) fn begin(&self, entity: &EntityId, clock: &dyn Clock) -> Reading {
        self.count_miss();
        let slot = slot_of(entity);
        Reading { slot, epochs: self.epochs(slot), began: clock.monotonic() }
    }

    /// Keeps what a read found out.
    pub(crate) fn insert(
        &self,
        (entity, resource): (EntityId, ResourceName),
        answer: Answer,
        reading: Reading,
    ) {
        self.entries.insert(Key { entity, resource }, Arc::new(self.known(answer, reading)));
    }

    /// To be called before a read is sent that may bring more members than it asks for.
    pub(crate) fn begin_along(&self, clock: &dyn Clock) -> ReadingAlong {
        ReadingAlong { evictions: self.evictions.load(Ordering::Acquire), began: clock.monotonic() }
    }

    /// What a read brought along, kept unless anything was evicted meanwhile.
    pub(crate) fn insert_along(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        answer: Answer,
        reading: ReadingAlong,
    ) -> Arc<Known> {
        let slot = slot_of(entity);
        // The epochs first: an eviction counts itself before it changes them, so that whoever sees
        // its epoch sees its count.
        let epochs = self.epochs(slot);
        let known = Arc::new(self.known(answer, Reading { slot, epochs, began: reading.began }));
        if self.evictions.load(Ordering::Acquire) == reading.evictions && !self.ttl.is_zero() {
            self.entries.insert(
                Key { entity: entity.clone(), resource: resource.clone() },
                Arc::clone(&known),
            );
        }
        known
    }

    /// What is known, else what `read` finds out. Callers of the same key wait for one read. An
    /// answer that is not to be trusted by the time it comes is used by who asked for it, and by
    /// nobody who came later.
    pub(crate) async fn get_or_read<E, F>(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        clock: &dyn Clock,
        read: impl FnOnce() -> F,
    ) -> Result<Arc<Known>, E>
    where
        F: Future<Output = Result<Answer, E>>,
    {
        let reads = async {
            let reading = self.begin(entity, clock);
            let answer = read().await?;
            Ok(Arc::new(self.known(answer, reading)))
        };
        if self.ttl.is_zero() {
            return reads.await;
        }
        let key = Key { entity: entity.clone(), resource: resource.clone() };
        for _ in 0..FOLLOWED_MAX {
            self.entries.remove_if(&key, |known| !self.trusts(known, clock));
            match self.entries.get_value_or_guard_async(&key).await {
                Ok(known) if self.trusts(&known, clock) => return Ok(known),
                Ok(_) => {}
                Err(guard) => {
                    let known = reads.await?;
                    // Somebody may have put another answer there meanwhile, which is as good.
                    let _ = guard.insert(Arc::clone(&known));
                    return Ok(known);
                }
            }
        }
        let known = reads.await?;
        self.entries.insert(key, Arc::clone(&known));
        Ok(known)
    }

    fn known(&self, answer: Answer, reading: Reading) -> Known {
        let Answer { config, limits, stamp, age } = answer;
        let Reading { slot, epochs, began } = reading;
        let expires_at = began.saturating_add(self.ttl).saturating_sub(age);
        Known { config, limits, stamp, slot, epochs, expires_at, lent: AtomicBool::new(false) }
    }

    /// Forgets what is known about one key, unless it was read less than `age` ago: whoever hears
    /// something else again and again reads again at that pace, and nobody else's entry goes with
    /// it.
    pub(crate) fn evict_older(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        age: Duration,
        clock: &dyn Clock,
    ) {
        let key = Key { entity: entity.clone(), resource: resource.clone() };
        let read_at = |known: &Known| known.expires_at.saturating_sub(self.ttl);
        self.entries
            .remove_if(&key, |known| clock.monotonic() >= read_at(known).saturating_add(age));
    }

    /// Forgets what is known about one entity.
    pub(crate) fn evict_entity(&self, entity: &EntityId) {
        self.evictions.fetch_add(1, Ordering::AcqRel);
        self.entity_epochs[slot_of(entity)].fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets everything.
    pub(crate) fn evict_all(&self) {
        self.evictions.fetch_add(1, Ordering::AcqRel);
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// How long an entry is trusted.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let CacheNumbers { hits, misses, entries } = self.numbers();
        self.report.publish(CacheNumbers { hits, misses, entries });
        CacheStats { hits, misses, entries, ttl: self.ttl }
    }

    fn numbers(&self) -> CacheNumbers {
        CacheNumbers {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            entries: self.entries.len(),
        }
    }

    /// Also tells the metrics: a miss is a read, beside which that costs nothing, and a hit is not.
    fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.report.publish(self.numbers());
    }

    fn trusts(&self, known: &Known, clock: &dyn Clock) -> bool {
        known.epochs == self.epochs(known.slot) && clock.monotonic() < known.expires_at
    }

    fn epochs(&self, slot: usize) -> Epochs {
        (self.epoch.load(Ordering::Acquire), self.entity_epochs[slot].load(Ordering::Acquire))
    }
}

/// Which of the entity epochs is an entity's.
fn slot_of(entity: &EntityId) -> usize {
    // FNV-1a: only a spread is needed, and the same one in every run, so that a seed replays
    // exactly.
    let hash = entity.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    usize::try_from(hash % ENTITY_EPOCHS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests;
