//! What this process remembers of the table: the last image of each bucket, and who owns it. The
//! memory is bounded and never believed: an image chooses which write to send, and the condition of
//! the write decides. The only decision made from an image without a write is a refusal, and for
//! one second unless the options say otherwise.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use quick_cache::sync::Cache;
use smallvec::SmallVec;
use zae_limiter_core::{EntityId, LimitName, Milli, TimeMs};
use zae_limiter_store::metric;

use crate::admin::entity::Owner;
use crate::bucket::debit::Debit;
use crate::bucket::image::Image;
use crate::bucket::tree::Tree;
use crate::config::Records;
use crate::constants::{CROWD_GAP_MS, OWNERS_MAX, TREES_MAX, UNREPORTED_MAX, WCU_PER_WRITE_MILLI};
use crate::options::DynamoOptions;

/// A look at a bucket and when it was.
#[derive(Debug)]
pub(crate) struct Seen {
    /// `None` when the bucket was not there.
    pub(crate) image: Option<Image>,
    /// By the clock of the caller.
    pub(crate) at: TimeMs,
    /// The tick at which this process first saw these parameters: a configuration read after it
    /// knows at least as much as the writer of the parameters.
    pub(crate) parameters_since: u64,
    /// Whether others write the bucket so often that this image is soon outdated.
    pub(crate) is_crowded: bool,
    /// Whether the last answer of this process about the bucket was that it is short.
    has_refused: AtomicBool,
    /// Whether the bucket was short at two looks in a row, far enough apart to see past a chain
    /// that was refused elsewhere.
    is_confirmed: AtomicBool,
    /// Set when a refusal was told to wait longer than the refill alone takes.
    quiet: OnceLock<Quiet>,
    /// What the writes of this process have cost the bucket; shared by all looks at it.
    pub(crate) own: Arc<OwnWrites>,
    /// `own.counted_milli` when this image came.
    own_then_milli: i64,
}

/// What the writes of this process have cost a bucket.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites {
    /// Failed conditions that no landed write has added to `wcu` yet: the second of the last one,
    /// and how many there were. Only those of the last second or two, which is as long as the item
    /// needs to regain what they cost. Older ones would be counted twice: by the item then, and in
    /// a lump now.
    unreported: Mutex<(i64, u32)>,
    /// What landed writes have counted.
    counted_milli: AtomicI64,
    /// Whether a caller of this process is splitting the item.
    pub(crate) is_parting: AtomicBool,
}

impl OwnWrites {
    /// Leaves failed conditions to the next write that lands.
    pub(crate) fn leave(&self, conditions: u32, now: TimeMs) {
        let mut unreported = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if is_lately(unreported.0, now) { unreported.1 } else { 0 };
        *unreported =
            (now.0.div_euclid(1_000), before.saturating_add(conditions).min(UNREPORTED_MAX));
    }

    /// The failed conditions that were left; the next call finds none.
    pub(crate) fn collect(&self, now: TimeMs) -> u32 {
        let (second, conditions) =
            std::mem::take(&mut *self.unreported.lock().unwrap_or_else(PoisonError::into_inner));
        if is_lately(second, now) { conditions } else { 0 }
    }

    /// A write has landed that counts so much.
    pub(crate) fn landed(&self, counted_milli: i64) {
        self.counted_milli.fetch_add(counted_milli, Ordering::Relaxed);
    }
}

fn is_lately(second: i64, now: TimeMs) -> bool {
    now.0.div_euclid(1_000).saturating_sub(second) <= 1
}

/// A refusal that holds for a while, because a crowd takes what the bucket regains.
#[derive(Debug)]
pub(crate) struct Quiet {
    pub(crate) until: TimeMs,
    /// The limits that were short, and the least amounts that are refused.
    pub(crate) short: SmallVec<[(LimitName, Milli); 1]>,
}

impl Seen {
    fn new(image: Option<Image>, at: TimeMs, parameters_since: u64, own: Arc<OwnWrites>) -> Seen {
        Seen {
            image,
            at,
            parameters_since,
            is_crowded: false,
            has_refused: AtomicBool::new(false),
            is_confirmed: AtomicBool::new(false),
            quiet: OnceLock::new(),
            own_then_milli: own.counted_milli.load(Ordering::Relaxed),
            own,
        }
    }

    pub(crate) fn has_refused(&self) -> bool {
        self.has_refused.load(Ordering::Relaxed)
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed.load(Ordering::Relaxed)
    }

    /// The bucket was short at this look.
    pub(crate) fn refuse(&self, is_confirmed: bool) {
        self.has_refused.store(true, Ordering::Relaxed);
        self.is_confirmed.fetch_or(is_confirmed, Ordering::Relaxed);
    }

    /// Refuses until then, unless it does already.
    pub(crate) fn keep_quiet(&self, quiet: Quiet) {
        let _ = self.quiet.set(quiet);
    }

    /// The refusal that still holds, if one does.
    pub(crate) fn quiet(&self, now: TimeMs) -> Option<&Quiet> {
        self.quiet.get().filter(|quiet| now < quiet.until)
    }

    /// Whether a refusal still holds for a request like this.
    pub(crate) fn is_quiet(&self, debit: &Debit<'_>, now: TimeMs) -> bool {
        let Some(quiet) = self.quiet(now) else { return false };
        debit.wanted().any(|(limit, milli)| {
            quiet.short.iter().any(|(short, least)| short == limit.name() && milli >= *least)
        })
    }
}

/// How often others wrote a bucket between two looks at it, as `wcu` counts. One write may be our
/// own and not heard of yet.
pub(crate) fn writes_between(before: &Seen, after: &Seen) -> i64 {
    let (Some(old), Some(new)) = (&before.image, &after.image) else { return 0 };
    let own_milli =
        after.own_then_milli.saturating_sub(before.own_then_milli).max(WCU_PER_WRITE_MILLI);
    new.writes_milli.saturating_sub(old.writes_milli).saturating_sub(own_milli)
        / WCU_PER_WRITE_MILLI
}

/// Whether others wrote a bucket often between two looks at it.
fn is_crowded(before: &Seen, after: &Seen) -> bool {
    if before.image.is_none() || after.image.is_none() {
        return false;
    }
    let (others, at) = (writes_between(before, after), after.at);
    if others <= 0 {
        // Within moments there is nothing to count.
        return before.is_crowded && at.0.saturating_sub(before.at.0) <= CROWD_GAP_MS;
    }
    at.0.saturating_sub(before.at.0) / others <= CROWD_GAP_MS
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
    pub(crate) splits: AtomicU64,
    pub(crate) folds: AtomicU64,
    pub(crate) gathers: AtomicU64,
    pub(crate) repairs: AtomicU64,
    pub(crate) orphans: AtomicU64,
}

/// Outcomes this process could not be sure of, and what it decided alone, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Debits sent again because no answer came, each counted once. It may have landed more than
    /// once if other writers came in between.
    pub debits_resent: u64,
    /// Debits sent again that were found to have landed the first time: counted once.
    pub debits_confirmed: u64,
    /// Debits of unknown fate: not granted, in error or in refusal, after an attempt that was not
    /// answered.
    pub debits_unknown: u64,
    /// Credits of unknown fate; never sent again.
    pub credits_unknown: u64,
    /// Credits the store has given up, whatever their fate: what a refused chain had taken, or what
    /// was to be given back beside a charge that landed. What they held stays spent until it is
    /// refilled.
    pub credits_lost: u64,
    /// Limits that were not charged, in a charge that lost every race: their bucket had forgotten
    /// them, full, and only an exact write can bring them back.
    pub charges_lost: u64,
    /// Buckets given back to because another bucket of their chain refused.
    pub compensations: u64,
    /// Operations that lost too many races.
    pub contended: u64,
    /// Refusals without a write, from an image of the last second.
    pub local_refusals: u64,
    /// Shards that were split because they took more writes than one item can.
    pub splits: u64,
    /// Buckets whose shards were folded into one item.
    pub folds: u64,
    /// Reads of all shards of a bucket, to take from several or to refuse.
    pub gathers: u64,
    /// Shards that were made because a foreign writer had left them out.
    pub repairs: u64,
    /// Shards that belonged to no bucket and were removed.
    pub orphans: u64,
}

/// What happened to the shards of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShardEvent {
    Split,
    Fold,
    Gather,
    Repair,
    Orphan,
}

impl Tally {
    /// Counts what happened to shards, here and as a metric.
    pub(crate) fn shards(&self, event: ShardEvent) {
        let (counter, name) = match event {
            ShardEvent::Split => (&self.splits, metric::SPLITS),
            ShardEvent::Fold => (&self.folds, metric::FOLDS),
            ShardEvent::Gather => (&self.gathers, metric::GATHERS),
            ShardEvent::Repair => (&self.repairs, metric::REPAIRS),
            ShardEvent::Orphan => (&self.orphans, metric::ORPHANS),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(name).increment(1);
    }

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
            splits: read(&self.splits),
            folds: read(&self.folds),
            gathers: read(&self.gathers),
            repairs: read(&self.repairs),
            orphans: read(&self.orphans),
        }
    }
}

/// Everything a store remembers; shared by the handles of all namespaces, because keys begin with
/// the namespace.
pub(crate) struct Caches {
    images: Cache<String, Arc<Seen>>,
    /// Shards of buckets that have several, by the key of shard 0.
    trees: Cache<String, Arc<Tree>>,
    owners: Cache<(Arc<str>, EntityId), Arc<Owner>>,
    /// Configuration, as it was read.
    pub(crate) records: Records,
    ticks: AtomicU64,
    pub(crate) tally: Tally,
}

impl Caches {
    pub(crate) fn new(options: &DynamoOptions) -> Caches {
        Caches {
            images: Cache::new(options.images_max.max(1)),
            trees: Cache::new(TREES_MAX),
            owners: Cache::new(OWNERS_MAX),
            records: Records::new(),
            ticks: AtomicU64::new(0),
            tally: Tally::default(),
        }
    }

    /// The next tick: microseconds of the wall clock, but always later than every tick before.
    pub(crate) fn tick(&self, now: TimeMs) -> u64 {
        let wall = u64::try_from(now.0).unwrap_or(0).saturating_mul(1000);
        let before = self.ticks.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
            Some(last.saturating_add(1).max(wall))
        });
        before.unwrap_or(0).saturating_add(1).max(wall)
    }

    /// The last image of a bucket.
    pub(crate) fn image(&self, pk: &str) -> Option<Arc<Seen>> {
        self.images.get(pk)
    }

    /// Keeps a look at a bucket that has just come; `before` is what was remembered.
    pub(crate) fn remember(
        &self,
        pk: &str,
        image: Option<Image>,
        before: Option<&Seen>,
        at: TimeMs,
        now: TimeMs,
    ) -> Arc<Seen> {
        let same = |before: &&Seen| matches!((&before.image, &image), (Some(before), Some(image)) if before.same_parameters(image));
        let parameters_since =
            before.filter(same).map_or_else(|| self.tick(now), |seen| seen.parameters_since);
        let own = before.map_or_else(Arc::default, |before| Arc::clone(&before.own));
        let mut seen = Seen::new(image, at, parameters_since, own);
        seen.is_crowded = before.is_some_and(|before| is_crowded(before, &seen));
        let seen = Arc::new(seen);
        self.images.insert(pk.to_owned(), Arc::clone(&seen));
        seen
    }

    /// What is remembered of the shards of a bucket, by the key of shard 0.
    pub(crate) fn tree(&self, root: &str) -> Arc<Tree> {
        let made: Result<_, std::convert::Infallible> =
            self.trees.get_or_insert_with(root, || Ok(Arc::new(Tree::new(root))));
        let Ok(tree) = made;
        tree
    }

    /// A look at all shards of a bucket together; not kept.
    pub(crate) fn together(&self, image: Image, at: TimeMs, now: TimeMs) -> Arc<Seen> {
        Arc::new(Seen::new(Some(image), at, self.tick(now), Arc::default()))
    }

    /// A look at a bucket of which nothing could be read; not kept.
    pub(crate) fn unread(&self, at: TimeMs, now: TimeMs) -> Arc<Seen> {
        Arc::new(Seen::new(None, at, self.tick(now), Arc::default()))
    }

    /// Forgets a bucket that is gone, or whose image must not refuse any more.
    pub(crate) fn forget(&self, pk: &str) {
        self.images.remove(pk);
    }

    /// Forgets every bucket: after a change by an administrator none of them may refuse from
    /// memory.
    pub(crate) fn forget_buckets(&self) {
        self.images.clear();
        self.trees.clear();
    }

    /// Who owns the buckets of an entity, if it was read.
    pub(crate) fn owner(&self, namespace: &Arc<str>, entity: &EntityId) -> Option<Arc<Owner>> {
        self.owners.get(&(Arc::clone(namespace), entity.clone()))
    }

    pub(crate) fn remember_owner(
        &self,
        namespace: &Arc<str>,
        entity: &EntityId,
        owner: Arc<Owner>,
    ) {
        self.owners.insert((Arc::clone(namespace), entity.clone()), owner);
    }

    pub(crate) fn forget_owner(&self, namespace: &Arc<str>, entity: &EntityId) {
        self.owners.remove(&(Arc::clone(namespace), entity.clone()));
    }
}
