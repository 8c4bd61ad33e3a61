//! The config cache: the configuration of each (entity, resource), for a while.
//!
//! The cache is bounded, reads each key once at a time, holds no lock over I/O and keeps negative
//! answers too. Entries are invalidated by epochs, not by removal: a read that was in flight while
//! the configuration changed carries the old epoch and is never used.
//!
//! The age of an entry counts from the moment before its read was sent, plus the age that the store
//! gave its answer. So an entry is never used longer than the TTL after it was true, and
//! [`LEND_MAX`] more when it is lent.

use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quick_cache::{Equivalent, sync::Cache};
use smallvec::SmallVec;
use zae_limiter_core::{EntityId, ResourceName};
use zae_limiter_store::{Clock, LimitsInForce, MemberConfig};

use super::chain::Chain;
use super::plan::Plan;
use crate::metrics::{CacheNumbers, CacheReport};

/// Plans that are kept with an entry: callers of one entity seldom declare their limits in more
/// ways. Further ways work, and are planned for every request.
const PLANS_MAX: usize = 2;

/// Entities are spread over this many epochs, so that a change of one entity invalidates few
/// others.
const ENTITY_EPOCHS: usize = 256;

/// An expired entry decides one more take at most this long after its time: long enough that a key
/// in use never waits for the read, and short enough for an operator who has lowered a limit. An
/// entry that was idle for longer is read again first.
pub(crate) const LEND_MAX: Duration = Duration::from_secs(5);

/// Times a caller waits for another caller's read of the same key; then it reads for itself.
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

/// The configuration of one member of a chain, as it was read.
#[derive(Debug)]
pub(crate) struct CachedConfig {
    /// The answer of the store.
    pub(crate) config: MemberConfig,
    /// The stored limits, ready to use; `None` when no level has any.
    pub(crate) limits: Option<LimitsInForce>,
    /// The freshness of the read, also when it found nothing.
    pub(crate) stamp: zae_limiter_core::ConfigStamp,
    /// The index of this entity's epoch, so that a look-up need not hash the name once more.
    slot: usize,
    epochs: Epochs,
    expires_at: Duration,
    /// True once the entry was used beyond its time; it is being read again.
    lent: AtomicBool,
    /// True once the entry was forgotten by itself, without a change of its epochs: plans may still
    /// refer to it.
    is_forgotten: AtomicBool,
    /// What requests of this entity take from, as made from this entry and those of its ancestors.
    plans: [OnceLock<KeptPlan>; PLANS_MAX],
}

/// A plan, and the other entries that it was made from.
#[derive(Debug)]
struct KeptPlan {
    plan: Arc<Plan>,
    ancestors: SmallVec<[Arc<CachedConfig>; 1]>,
}

/// Where a plan is kept: found without a look-up by names for as long as it is trusted.
#[derive(Debug)]
pub(crate) struct PlanPlace {
    entry: Arc<CachedConfig>,
    index: usize,
}

impl CachedConfig {
    /// The same answer of the store, without plans.
    fn without_plans(&self) -> CachedConfig {
        CachedConfig {
            config: self.config.clone(),
            limits: self.limits.clone(),
            stamp: self.stamp,
            slot: self.slot,
            epochs: self.epochs,
            expires_at: self.expires_at,
            lent: AtomicBool::new(self.lent.load(Ordering::Acquire)),
            is_forgotten: AtomicBool::new(self.is_forgotten.load(Ordering::Acquire)),
            plans: Default::default(),
        }
    }
}

/// The epoch of everything, and that of an entity.
type Epochs = (u64, u64);

/// The result of a read of the store.
#[derive(Debug)]
pub(crate) struct FreshConfig {
    pub(crate) config: MemberConfig,
    pub(crate) limits: Option<LimitsInForce>,
    pub(crate) stamp: zae_limiter_core::ConfigStamp,
    /// The age of the answer, as the store says.
    pub(crate) age: Duration,
}

/// A read that is about to be sent: a change that lands after this makes its answer untrusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    slot: usize,
    epochs: Epochs,
    began: Duration,
}

/// The same for a read that may bring other members along.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadingAlong {
    evictions: u64,
    began: Duration,
}

/// The cache of one namespace.
#[derive(Debug)]
pub(crate) struct ConfigCache {
    entries: Cache<Key, Arc<CachedConfig>>,
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

    /// An entry that is still trusted.
    pub(crate) fn get(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        clock: &dyn Clock,
    ) -> Option<Arc<CachedConfig>> {
        let entry = self.entries.get(&KeyRef { entity, resource })?;
        if !self.trusts(&entry, clock.monotonic()) {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(entry)
    }

    /// The plan of an entry that `serves` the caller, if every entry it was made from is still
    /// trusted.
    pub(crate) fn kept_plan(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        clock: &dyn Clock,
        serves: impl Fn(&Plan) -> bool,
    ) -> Option<Arc<Plan>> {
        let entry = self.entries.get(&KeyRef { entity, resource })?;
        let kept = entry.plans.iter().map_while(OnceLock::get).find(|kept| serves(&kept.plan))?;
        self.trusted_plan(&entry, kept, clock)
    }

    /// Where the plan of an entry is that `serves` the caller, for [`ConfigCache::plan_at`].
    pub(crate) fn find_plan(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        serves: impl Fn(&Plan) -> bool,
    ) -> Option<PlanPlace> {
        let entry = self.entries.get(&KeyRef { entity, resource })?;
        let mut kept = entry.plans.iter().map_while(OnceLock::get);
        let index = kept.position(|kept| serves(&kept.plan))?;
        Some(PlanPlace { entry, index })
    }

    /// The plan at a place, on the terms of [`ConfigCache::kept_plan`].
    pub(crate) fn plan_at(&self, place: &PlanPlace, clock: &dyn Clock) -> Option<Arc<Plan>> {
        let PlanPlace { entry, index } = place;
        self.trusted_plan(entry, entry.plans[*index].get()?, clock)
    }

    fn trusted_plan(
        &self,
        entry: &CachedConfig,
        kept: &KeptPlan,
        clock: &dyn Clock,
    ) -> Option<Arc<Plan>> {
        let at = clock.monotonic_at_most();
        if !self.trusts(entry, at) || !kept.ancestors.iter().all(|entry| self.trusts(entry, at)) {
            return None;
        }
        self.hits.fetch_add(1 + kept.ancestors.len() as u64, Ordering::Relaxed);
        Some(Arc::clone(&kept.plan))
    }

    /// Keeps a plan with the entries that it was made from, the caller's first.
    pub(crate) fn keep_plan(&self, chain: &Chain, plan: &Arc<Plan>) {
        let Some(((entity, entry), ancestors)) = chain.split_first() else { return };
        let kept = KeptPlan {
            plan: Arc::clone(plan),
            ancestors: ancestors.iter().map(|(_, entry)| Arc::clone(entry)).collect(),
        };
        let is_alike = |slot: &OnceLock<KeptPlan>| {
            slot.get().is_some_and(|kept| kept.plan.declares_the_same(plan))
        };
        if !entry.plans.iter().any(is_alike) {
            let empty = entry.plans.iter().find(|slot| slot.get().is_none());
            if let Some(empty) = empty {
                // Another caller may have been first, which is as good.
                let _ = empty.set(kept);
            }
            return;
        }
        // The plan that is there was made from an ancestor's entry that has expired since.
        let key = KeyRef { entity, resource: &plan.resource };
        if self.entries.get(&key).is_some_and(|current| Arc::ptr_eq(&current, entry)) {
            let fresh = entry.without_plans();
            fresh.plans[0].get_or_init(|| kept);
            let key = Key { entity: entity.clone(), resource: plan.resource.clone() };
            self.entries.insert(key, Arc::new(fresh));
        }
    }

    /// An entry that is trusted or has just expired; true when it has expired. An expired entry is
    /// lent to one caller, within [`LEND_MAX`]. That caller reads the entry again at the same time,
    /// and until the read is done no other caller gets the entry.
    pub(crate) fn get_or_borrow(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        clock: &dyn Clock,
    ) -> Option<(Arc<CachedConfig>, bool)> {
        let entry = self.entries.get(&KeyRef { entity, resource })?;
        if self.trusts(&entry, clock.monotonic()) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Some((entry, false));
        }
        let is_current =
            entry.epochs == self.epochs(entry.slot) && !entry.is_forgotten.load(Ordering::Acquire);
        let is_recent = clock.monotonic() < entry.expires_at.saturating_add(self.ttl.min(LEND_MAX));
        (is_current && is_recent && !entry.lent.swap(true, Ordering::AcqRel))
            .then_some((entry, true))
    }

    /// Begins a read for [`ConfigCache::insert`]; to be called before the read is sent.
    pub(crate) fn begin(&self, entity: &EntityId, clock: &dyn Clock) -> Reading {
        self.count_miss();
        let slot = slot_of(entity);
        Reading { slot, epochs: self.epochs(slot), began: clock.monotonic() }
    }

    /// Keeps the result of a read.
    pub(crate) fn insert(
        &self,
        (entity, resource): (EntityId, ResourceName),
        answer: FreshConfig,
        reading: Reading,
    ) {
        self.entries.insert(Key { entity, resource }, Arc::new(self.entry(answer, reading)));
    }

    /// Begins a read that may bring more members than it asks for; to be called before it is sent.
    pub(crate) fn begin_along(&self, clock: &dyn Clock) -> ReadingAlong {
        ReadingAlong { evictions: self.evictions.load(Ordering::Acquire), began: clock.monotonic() }
    }

    /// Keeps a member that a read brought along, unless anything was evicted meanwhile.
    pub(crate) fn insert_along(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        answer: FreshConfig,
        reading: ReadingAlong,
    ) -> Arc<CachedConfig> {
        let slot = slot_of(entity);
        // The epochs are read first. An eviction counts itself before it changes an epoch, so a
        // reader that sees the new epoch sees the new count.
        let epochs = self.epochs(slot);
        let entry = Arc::new(self.entry(answer, Reading { slot, epochs, began: reading.began }));
        if self.evictions.load(Ordering::Acquire) == reading.evictions && !self.ttl.is_zero() {
            self.entries.insert(
                Key { entity: entity.clone(), resource: resource.clone() },
                Arc::clone(&entry),
            );
        }
        entry
    }

    /// The trusted entry, else the result of `read`. Callers of the same key wait for one read. An
    /// answer that is outdated by the time it comes serves the caller that asked for it, and no
    /// caller that came later.
    pub(crate) async fn get_or_read<E, F>(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        clock: &dyn Clock,
        read: impl FnOnce() -> F,
    ) -> Result<Arc<CachedConfig>, E>
    where
        F: Future<Output = Result<FreshConfig, E>>,
    {
        let reads = async {
            let reading = self.begin(entity, clock);
            let answer = read().await?;
            Ok(Arc::new(self.entry(answer, reading)))
        };
        if self.ttl.is_zero() {
            return reads.await;
        }
        let key = Key { entity: entity.clone(), resource: resource.clone() };
        for _ in 0..FOLLOWED_MAX {
            self.entries.remove_if(&key, |entry| !self.trusts(entry, clock.monotonic()));
            match self.entries.get_value_or_guard_async(&key).await {
                Ok(entry) if self.trusts(&entry, clock.monotonic()) => return Ok(entry),
                Ok(_) => {}
                Err(guard) => {
                    let entry = reads.await?;
                    // Another caller may have inserted an answer meanwhile, which is as good.
                    let _ = guard.insert(Arc::clone(&entry));
                    return Ok(entry);
                }
            }
        }
        let entry = reads.await?;
        self.entries.insert(key, Arc::clone(&entry));
        Ok(entry)
    }

    fn entry(&self, answer: FreshConfig, reading: Reading) -> CachedConfig {
        let FreshConfig { config, limits, stamp, age } = answer;
        let Reading { slot, epochs, began } = reading;
        let expires_at = began.saturating_add(self.ttl).saturating_sub(age);
        CachedConfig {
            config,
            limits,
            stamp,
            slot,
            epochs,
            expires_at,
            lent: AtomicBool::new(false),
            is_forgotten: AtomicBool::new(false),
            plans: Default::default(),
        }
    }

    /// Forgets one key, unless it was read less than `age` ago. A caller whose store disagrees with
    /// the cache again and again thus reads at that pace, and no other entry is lost.
    pub(crate) fn evict_older(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        age: Duration,
        clock: &dyn Clock,
    ) {
        let key = Key { entity: entity.clone(), resource: resource.clone() };
        let read_at = |entry: &CachedConfig| entry.expires_at.saturating_sub(self.ttl);
        self.entries.remove_if(&key, |entry| {
            let is_due = clock.monotonic() >= read_at(entry).saturating_add(age);
            entry.is_forgotten.fetch_or(is_due, Ordering::AcqRel);
            is_due
        });
    }

    /// Forgets one entity.
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

    /// Counts a miss, and publishes all numbers: beside the read of a miss that costs nothing,
    /// which is not true of a hit.
    fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.report.publish(self.numbers());
    }

    fn trusts(&self, entry: &CachedConfig, at: Duration) -> bool {
        entry.epochs == self.epochs(entry.slot)
            && at < entry.expires_at
            && !entry.is_forgotten.load(Ordering::Acquire)
    }

    fn epochs(&self, slot: usize) -> Epochs {
        (self.epoch.load(Ordering::Acquire), self.entity_epochs[slot].load(Ordering::Acquire))
    }
}

/// The index of an entity's epoch.
fn slot_of(entity: &EntityId) -> usize {
    // FNV-1a: a spread is enough, and it is the same in every run, so that a seed replays exactly.
    let hash = entity.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    usize::try_from(hash % ENTITY_EPOCHS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests;
