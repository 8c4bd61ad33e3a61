//! What this process remembers of the table: the last image of each bucket, and who owns it. Bounded, and never believed: an
//! image only chooses which write to send, whose condition then decides; the one thing it decides alone is a refusal, for
//! a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;
use zae_limiter_core::{EntityId, TimeMs};

use crate::constants::OWNERS_MAX;
use crate::entity::Owner;
use crate::image::Image;
use crate::options::DynamoOptions;

/// A look at a bucket and when it was.
#[derive(Debug)]
pub(crate) struct Seen {
    /// `None` when the bucket was not there.
    pub(crate) image: Option<Image>,
    /// By the clock of the caller.
    pub(crate) at: TimeMs,
    /// The tick at which this process first saw these parameters: a configuration read after it knows at least as much as
    /// whoever wrote them.
    pub(crate) parameters_since: u64,
}

/// The counters as they grow.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) debits_resent: AtomicU64,
    pub(crate) debits_confirmed: AtomicU64,
    pub(crate) debits_unknown: AtomicU64,
    pub(crate) credits_unknown: AtomicU64,
    pub(crate) credits_lost: AtomicU64,
    pub(crate) charges_lost: AtomicU64,
    pub(crate) compensations: AtomicU64,
    pub(crate) contended: AtomicU64,
    pub(crate) local_refusals: AtomicU64,
}

/// Outcomes this process could not be sure of, and what it decided alone, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Debits sent again because no answer came, each counted once. It may have landed more than once if other writers came in
    /// between.
    pub debits_resent: u64,
    /// Debits sent again that were found to have landed the first time: counted once.
    pub debits_confirmed: u64,
    /// Debits nobody knows the fate of: not granted, in error or in refusal, after an attempt that was not answered.
    pub debits_unknown: u64,
    /// Credits nobody knows the fate of; never sent again.
    pub credits_unknown: u64,
    /// Credits the store has given up, whatever their fate: what a refused chain had taken, or what was to be given back beside a
    /// charge that landed. What they held stays spent until it is refilled.
    pub credits_lost: u64,
    /// Limits that were not charged, in a charge that lost every race: their bucket had forgotten them, full, and only an exact
    /// write can bring them back.
    pub charges_lost: u64,
    /// Buckets given back to because another bucket of their chain refused.
    pub compensations: u64,
    /// Operations that lost too many races.
    pub contended: u64,
    /// Refusals without a write, from an image of the last second.
    pub local_refusals: u64,
}

impl Tally {
    pub(crate) fn read(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            debits_resent: read(&self.debits_resent),
            debits_confirmed: read(&self.debits_confirmed),
            debits_unknown: read(&self.debits_unknown),
            credits_unknown: read(&self.credits_unknown),
            credits_lost: read(&self.credits_lost),
            charges_lost: read(&self.charges_lost),
            compensations: read(&self.compensations),
            contended: read(&self.contended),
            local_refusals: read(&self.local_refusals),
        }
    }
}

/// Everything a store remembers; shared by the handles of all namespaces, because keys begin with the namespace.
pub(crate) struct Caches {
    images: Cache<String, Arc<Seen>>,
    owners: Cache<(Arc<str>, EntityId), Arc<Owner>>,
    ticks: AtomicU64,
    pub(crate) tally: Tally,
}

impl Caches {
    pub(crate) fn new(options: &DynamoOptions) -> Caches {
        Caches {
            images: Cache::new(options.images_max.max(1)),
            owners: Cache::new(OWNERS_MAX),
            ticks: AtomicU64::new(0),
            tally: Tally::default(),
        }
    }

    /// The next tick: microseconds of the wall clock, but always later than every tick before.
    pub(crate) fn tick(&self, now: TimeMs) -> u64 {
        let wall = u64::try_from(now.0).unwrap_or(0).saturating_mul(1000);
        let before = self.ticks.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(last.saturating_add(1).max(wall)));
        before.unwrap_or(0).saturating_add(1).max(wall)
    }

    /// The last image of a bucket.
    pub(crate) fn image(&self, pk: &str) -> Option<Arc<Seen>> {
        self.images.get(pk)
    }

    /// Keeps a look at a bucket that has just come; `before` is what was remembered.
    pub(crate) fn remember(&self, pk: &str, image: Option<Image>, before: Option<&Seen>, at: TimeMs, now: TimeMs) -> Arc<Seen> {
        let same = |before: &&Seen| matches!((&before.image, &image), (Some(before), Some(image)) if before.same_parameters(image));
        let parameters_since = before.filter(same).map_or_else(|| self.tick(now), |seen| seen.parameters_since);
        let seen = Arc::new(Seen { image, at, parameters_since });
        self.images.insert(pk.to_owned(), Arc::clone(&seen));
        seen
    }

    /// A look at a bucket of which nothing could be read; not kept.
    pub(crate) fn unread(&self, at: TimeMs, now: TimeMs) -> Arc<Seen> {
        Arc::new(Seen { image: None, at, parameters_since: self.tick(now) })
    }

    /// Forgets a bucket that is gone, or whose image must not refuse any more.
    pub(crate) fn forget(&self, pk: &str) {
        self.images.remove(pk);
    }

    /// Forgets every bucket: after a change by an administrator none of them may refuse from memory.
    pub(crate) fn forget_buckets(&self) {
        self.images.clear();
    }

    /// Who owns the buckets of an entity, if it was read.
    pub(crate) fn owner(&self, namespace: &Arc<str>, entity: &EntityId) -> Option<Arc<Owner>> {
        self.owners.get(&(Arc::clone(namespace), entity.clone()))
    }

    pub(crate) fn remember_owner(&self, namespace: &Arc<str>, entity: &EntityId, owner: Owner) {
        self.owners.insert((Arc::clone(namespace), entity.clone()), Arc::new(owner));
    }

    pub(crate) fn forget_owner(&self, namespace: &Arc<str>, entity: &EntityId) {
        self.owners.remove(&(Arc::clone(namespace), entity.clone()));
    }
}
