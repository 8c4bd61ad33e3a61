//! The config cache: what is known about each (entity, resource), for a while.
//!
//! Bounded, one flight per key, no lock held over I/O, negative answers included. Entries are invalidated by epochs, not by
//! removal: a read that was in flight while somebody changed the configuration carries the old epoch and is never used.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::{Equivalent, sync::Cache};
use zae_limiter_core::{EntityId, ResourceName};
use zae_limiter_store::{Clock, LimitsInForce, MemberConfig};

use crate::metrics::{CacheNumbers, CacheReport};

/// Entities are spread over this many epochs, so that a change of one entity invalidates few others.
const ENTITY_EPOCHS: usize = 256;

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
    /// Which of the entity epochs is this entity's, so that a look-up need not hash its name once more.
    slot: usize,
    epochs: (u64, u64),
    expires_at: Duration,
    /// Used once beyond its time, while it is read again.
    lent: AtomicBool,
}

/// The cache of one namespace.
#[derive(Debug)]
pub(crate) struct ConfigCache {
    entries: Cache<Key, Arc<Known>>,
    ttl: Duration,
    epoch: AtomicU64,
    entity_epochs: Box<[AtomicU64]>,
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
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            report: CacheReport::default(),
        }
    }

    /// What is known and still trusted.
    pub(crate) fn get(&self, entity: &EntityId, resource: &ResourceName, clock: &dyn Clock) -> Option<Arc<Known>> {
        let known = self.entries.get(&KeyRef { entity, resource })?;
        if !self.trusts(&known, clock) {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(known)
    }

    /// What is known, trusted or just expired; true when it is expired. An expired entry is lent once: whoever gets it reads
    /// it again at the same time, and until that is done nobody else gets it.
    pub(crate) fn get_or_borrow(&self, entity: &EntityId, resource: &ResourceName, clock: &dyn Clock) -> Option<(Arc<Known>, bool)> {
        let known = self.entries.get(&KeyRef { entity, resource })?;
        if self.trusts(&known, clock) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Some((known, false));
        }
        let is_current = known.epochs == self.epochs(known.slot);
        (is_current && !known.lent.swap(true, Ordering::AcqRel)).then_some((known, true))
    }

    /// The epochs to pass to [`ConfigCache::insert`], taken before its read is sent.
    pub(crate) fn epochs_of(&self, entity: &EntityId) -> (u64, u64) {
        self.count_miss();
        self.epochs(slot_of(entity))
    }

    /// Keeps what a read found out.
    pub(crate) fn insert(
        &self,
        (entity, resource): (EntityId, ResourceName),
        (config, limits, stamp): (MemberConfig, Option<LimitsInForce>, zae_limiter_core::ConfigStamp),
        epochs: (u64, u64),
        clock: &dyn Clock,
    ) {
        let expires_at = clock.monotonic().saturating_add(self.ttl);
        let slot = slot_of(&entity);
        let known = Known { config, limits, stamp, slot, epochs, expires_at, lent: AtomicBool::new(false) };
        self.entries.insert(Key { entity, resource }, Arc::new(known));
    }

    /// What is known, else what `read` finds out. Callers of the same key wait for one read. `read` gets the epochs to put
    /// into its answer with [`ConfigCache::known`].
    pub(crate) async fn get_or_read<E, F>(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        clock: &dyn Clock,
        read: impl FnOnce() -> F,
    ) -> Result<Arc<Known>, E>
    where
        F: Future<Output = Result<(MemberConfig, Option<LimitsInForce>, zae_limiter_core::ConfigStamp), E>>,
    {
        let read = async {
            self.count_miss();
            // Before the read: a change that lands after this line makes the answer untrusted.
            let slot = slot_of(entity);
            let epochs = self.epochs(slot);
            let (config, limits, stamp) = read().await?;
            let expires_at = clock.monotonic().saturating_add(self.ttl);
            Ok(Arc::new(Known { config, limits, stamp, slot, epochs, expires_at, lent: AtomicBool::new(false) }))
        };
        if self.ttl.is_zero() {
            return read.await;
        }
        let key = Key { entity: entity.clone(), resource: resource.clone() };
        self.entries.remove_if(&key, |known| !self.trusts(known, clock));
        self.entries.get_or_insert_async(&key, read).await
    }

    /// Forgets what is known about one entity.
    pub(crate) fn evict_entity(&self, entity: &EntityId) {
        self.entity_epochs[slot_of(entity)].fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets everything.
    pub(crate) fn evict_all(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let CacheNumbers { hits, misses, entries } = self.numbers();
        self.report.publish(CacheNumbers { hits, misses, entries });
        CacheStats { hits, misses, entries, ttl: self.ttl }
    }

    fn numbers(&self) -> CacheNumbers {
        CacheNumbers { hits: self.hits.load(Ordering::Relaxed), misses: self.misses.load(Ordering::Relaxed), entries: self.entries.len() }
    }

    /// Also tells the metrics: a miss is a read, beside which that costs nothing, and a hit is not.
    fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.report.publish(self.numbers());
    }

    fn trusts(&self, known: &Known, clock: &dyn Clock) -> bool {
        known.epochs == self.epochs(known.slot) && clock.monotonic() < known.expires_at
    }

    fn epochs(&self, slot: usize) -> (u64, u64) {
        (self.epoch.load(Ordering::Acquire), self.entity_epochs[slot].load(Ordering::Acquire))
    }
}

/// Which of the entity epochs is an entity's.
fn slot_of(entity: &EntityId) -> usize {
    // FNV-1a: only a spread is needed, and the same one in every run, so that a seed replays exactly.
    let hash = entity.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    usize::try_from(hash % ENTITY_EPOCHS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use zae_limiter_core::{ConfigStamp, TimeMs};
    use zae_limiter_store::ManualClock;

    fn answer(stamp: u64) -> (MemberConfig, Option<LimitsInForce>, ConfigStamp) {
        (MemberConfig { cascades_to: None, limits: None, disabled_by: None }, None, ConfigStamp(stamp))
    }

    /// A change that lands while a read is on its way: the answer is used once by whoever asked before the change, and
    /// never again.
    #[tokio::test]
    async fn a_read_that_was_in_flight_during_a_change_is_not_kept() {
        let (cache, clock) = (ConfigCache::new(10, Duration::from_secs(60)), ManualClock::new(TimeMs(0)));
        let (key, other, gpt): (EntityId, EntityId, ResourceName) =
            ("key".parse().unwrap(), "other".parse().unwrap(), "gpt-4".parse().unwrap());
        type Evict<'a> = &'a dyn Fn(&ConfigCache);
        let evictions: [(Evict<'_>, bool); 3] =
            [(&|cache| cache.evict_entity(&"key".parse().unwrap()), false), (&|cache| cache.evict_all(), false), (&|_| {}, true)];
        for (evict, kept) in evictions {
            cache.evict_all();
            let read = cache.get_or_read(&key, &gpt, &clock, || async {
                evict(&cache);
                Ok::<_, Infallible>(answer(1))
            });
            read.await.unwrap();
            assert_eq!(cache.get(&key, &gpt, &clock).is_some(), kept);
        }
        assert!(cache.get(&other, &gpt, &clock).is_none());
    }

    #[tokio::test]
    async fn a_dropped_read_lets_the_next_caller_read() {
        let (cache, clock) = (ConfigCache::new(10, Duration::from_secs(60)), ManualClock::new(TimeMs(0)));
        let (key, gpt): (EntityId, ResourceName) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
        let hanging = || std::future::pending::<Result<(MemberConfig, Option<LimitsInForce>, ConfigStamp), Infallible>>();
        let mut hung = Box::pin(cache.get_or_read(&key, &gpt, &clock, hanging));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(hung.as_mut().poll(&mut context).is_pending());
        drop(hung);
        let known = cache.get_or_read(&key, &gpt, &clock, || async { Ok::<_, Infallible>(answer(2)) }).await.unwrap();
        assert_eq!(known.stamp, ConfigStamp(2));
    }
}
