//! Local blocks: a store that buys tokens for the next requests of its process and serves them from
//! memory, without ever granting more than the store inside would.
//!
//! What may be lent and spent is decided by `zae_limiter_core` (`Stock`, `BucketState::provision`).
//! Here: `options` how much to buy, `layer` a block, `cell` what is known of its bucket with its
//! `tally`, `order` what goes in and out of it, `table` all of them, `take` the way of a request,
//! `home` the way back, `pace` its pauses, `later` what no caller waits for, `views` what others
//! see, `stats` what became of the stock.
//!
//! A request that stock does not cover goes to the store with an order for the next requests. Where
//! that finds a limit scarce, requests for it are refused here until the next visit (`pace`). One
//! order per bucket is under way at a time, and requests that need one too wait for it.

mod cell;
mod home;
mod later;
mod layer;
mod options;
mod order;
mod pace;
mod stats;
mod table;
mod take;
mod tally;
#[cfg(test)]
mod tests;
mod views;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use zae_limiter_core::{EntityId, Flag, NamespaceId, Report, ResourceName, TimeMs};

pub use options::LocalBlocks;
pub use stats::BlockStats;

use crate::{
    Adjusted, AtOnce, BoxFuture, BucketDelta, BucketView, Change, Clock, ConsumeOutcome,
    ConsumeRequest, DeletedEntity, Entropy, Grant, Level, LimitsChange, Page, PageRequest, Purged,
    ResetRequest, Restored, Store, StoreError, StoreErrorKind, StoreFuture, StoreWrapper, Swept,
    SystemEntropy, UsageQuery,
};
use home::{Home, HomeIn, Place};
use order::Terms;
use stats::Stats;
use table::Table;

/// A store with local blocks: tokens that it debits ahead of need and serves from memory.
///
/// Admission is as exact as that of the store inside, for all processes together. The price: what
/// another process disables, lowers or resets is noticed within two seconds, and a process that
/// ends without [`BlockStore::give_back`] leaves its blocks to refill. See
/// `docs/local-blocks.md`.
///
/// A store that does not lend ([`Capabilities::lends`](crate::Capabilities::lends)) is refused.
pub struct BlockStore<S: ?Sized> {
    inner: Arc<S>,
    table: Arc<Table>,
    home: Arc<dyn Home>,
    shared: Arc<Shared>,
}

/// What the handles to all namespaces share.
struct Shared {
    options: LocalBlocks,
    stats: Stats,
    /// Counts administration by this process: blocks of before are not spent.
    epoch: AtomicU64,
    /// The time of the last request. Not the latest one: a clock that was ahead for a moment would
    /// have every bucket that is looked at refilled for the time in between, each time.
    seen_at: AtomicI64,
    /// The namespaces in use.
    places: Mutex<HashMap<Option<NamespaceId>, Place>>,
    /// Ages blocks by a time that is never set.
    clock: Option<Arc<dyn Clock>>,
    /// Keeps processes from coming together.
    entropy: Arc<dyn Entropy>,
    /// Who does what no caller waits for.
    behind: OnceLock<later::Behind>,
    /// When this process last looked for buckets that fell silent.
    looked_at: AtomicI64,
}

impl<S: Store + ?Sized + 'static> BlockStore<S> {
    /// `inner` with blocks of these sizes. Handles to other namespaces have blocks as well.
    ///
    /// Blocks age by the times of the requests alone; [`BlockStore::with_clock`] is safe against a
    /// clock that is set back, too.
    pub fn new(inner: Arc<S>, options: LocalBlocks) -> Result<BlockStore<S>, StoreError> {
        BlockStore::made(inner, options, None, Arc::new(SystemEntropy))
    }

    /// The same, whose blocks also age by this clock, which must not be set
    /// ([`Clock::monotonic`]).
    pub fn with_clock(
        inner: Arc<S>,
        options: LocalBlocks,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<BlockStore<S>, StoreError> {
        BlockStore::made(inner, options, Some(clock), entropy)
    }

    fn made(
        inner: Arc<S>,
        options: LocalBlocks,
        clock: Option<Arc<dyn Clock>>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<BlockStore<S>, StoreError> {
        options.check()?;
        let capabilities = inner.capabilities();
        if !capabilities.lends {
            let message = format!(
                "store {} does not lend, so it cannot have local blocks: leave them out",
                capabilities.name
            );
            return Err(StoreError::new(StoreErrorKind::State, "local_blocks", message));
        }
        let shared = Shared {
            options,
            stats: Stats::default(),
            epoch: AtomicU64::new(0),
            seen_at: AtomicI64::new(i64::MIN),
            places: Mutex::default(),
            clock,
            entropy,
            behind: OnceLock::new(),
            looked_at: AtomicI64::new(0),
        };
        Ok(BlockStore::within(inner, Arc::new(shared)))
    }

    fn within(inner: Arc<S>, shared: Arc<Shared>) -> BlockStore<S> {
        let id = inner.current_namespace_id();
        let mut places = shared.places.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Place {
            table: Arc::new(Table::new(shared.options.blocks())),
            home: Arc::new(HomeIn(Arc::clone(&inner))),
        };
        let Place { table, home } = places.entry(id).or_insert_with(new).clone();
        drop(places);
        BlockStore { inner, table, home, shared }
    }

    /// The store inside.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// What became of the stock, in every namespace.
    #[must_use]
    pub fn stats(&self) -> BlockStats {
        let held = self.shared.places().iter().fold(zae_limiter_core::Milli::ZERO, |sum, place| {
            sum.saturating_add(place.table.held())
        });
        self.shared.stats.read(held)
    }

    /// The same as far as it is known without looking at every block: `held` is what is on its way.
    #[doc(hidden)]
    #[must_use]
    pub fn counted(&self) -> BlockStats {
        self.shared.stats.read(zae_limiter_core::Milli::ZERO)
    }

    /// Gives all stock of this namespace back and reports its use: before a process ends. Blocks
    /// that are bought later are given back by another call.
    pub async fn give_back(&self, now: TimeMs) {
        self.settle_up_to(usize::MAX, |_| true, now).await;
    }

    fn terms(&self, now: TimeMs) -> Terms<'_> {
        self.shared.terms(now)
    }

    /// The same for a request that is served from stock or asks again: by a clock that costs less,
    /// under which a block ends up to 20 ms early.
    fn hasty_terms(&self, now: TimeMs) -> Terms<'_> {
        self.shared.terms_at(now, |clock| clock.monotonic_at_most())
    }

    /// Makes a change of the configuration. No stock that was bought before its end is spent after
    /// it. What the change is about gives its stock back before, as far as that is not too much
    /// work, and not after: the bucket is another one then.
    fn administer<'a, T: Send + 'a>(
        &'a self,
        concerns: impl Fn(&table::Key) -> bool + Send + Sync + 'a,
        now: TimeMs,
        call: impl FnOnce(&'a S) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            self.settle_up_to(SETTLED_FIRST_MAX, &concerns, now).await;
            let _epoch = NextEpoch { store: self, concerns };
            call(&self.inner).await
        })
    }
}

impl Shared {
    fn terms(&self, now: TimeMs) -> Terms<'_> {
        self.terms_at(now, |clock| clock.monotonic())
    }

    fn terms_at(&self, now: TimeMs, read: impl FnOnce(&dyn Clock) -> Duration) -> Terms<'_> {
        Terms {
            options: &self.options,
            stats: &self.stats,
            entropy: &*self.entropy,
            epoch: self.epoch.load(SeqCst),
            now,
            moment: self.clock.as_deref().map(read),
            is_alone: true,
            may_order: true,
            is_new: true,
        }
    }
}

/// How many blocks are given back before a change that is about all of them.
const SETTLED_FIRST_MAX: usize = 256;

/// Ends an epoch when a change ends, however it ends: it may have been made.
struct NextEpoch<'a, S: ?Sized, F: Fn(&table::Key) -> bool> {
    store: &'a BlockStore<S>,
    concerns: F,
}

impl<S: ?Sized, F: Fn(&table::Key) -> bool> Drop for NextEpoch<'_, S, F> {
    fn drop(&mut self) {
        let shared = &self.store.shared;
        shared.epoch.fetch_add(1, SeqCst);
        for (_, slot) in self.store.table.slots(&self.concerns) {
            shared.stats.lost(slot.lock().forfeit());
        }
    }
}

/// Whether limits or a flag of this level may be those of a bucket.
fn covers(level: &Level, key: &table::Key) -> bool {
    level.entity_id().is_none_or(|entity| *entity == key.entity)
        && level.resource_name().is_none_or(|resource| *resource == key.resource)
}

impl<S: Store + ?Sized + 'static> StoreWrapper for BlockStore<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        _: &'static str,
        call: impl FnOnce(&'a S) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        call(&self.inner)
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(BlockStore::within(scoped, Arc::clone(&self.shared)))
    }

    fn decide_at_once(&self, request: &ConsumeRequest<'_>, grant: &mut Grant) -> AtOnce {
        self.take_at_once(request, grant)
    }

    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        Box::pin(self.take(request))
    }

    fn peek<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        Box::pin(self.look(request))
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        Box::pin(self.adjust_all(deltas, now))
    }

    fn buckets<'a>(
        &'a self,
        entity: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>> {
        Box::pin(async move {
            self.report_for(page, |key| key.entity == *entity).await;
            let page = self.inner.buckets(entity, page).await?;
            Ok(self.with_stock(page))
        })
    }

    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>> {
        Box::pin(async move {
            self.report_for(page, |key| key.resource == *resource).await;
            let page = self.inner.resource_buckets(resource, page).await?;
            Ok(self.with_stock(page))
        })
    }

    fn namespace_buckets<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<BucketView>> {
        Box::pin(async move {
            self.report_for(page, |_| true).await;
            let page = self.inner.namespace_buckets(page).await?;
            Ok(self.with_stock(page))
        })
    }

    fn usage<'a>(
        &'a self,
        query: &'a UsageQuery,
    ) -> StoreFuture<'a, Page<zae_limiter_core::UsageSnapshot>> {
        Box::pin(async move {
            self.report_asked(&query.page, query).await;
            self.inner.usage(query).await
        })
    }

    fn usage_summary<'a>(
        &'a self,
        query: &'a UsageQuery,
    ) -> StoreFuture<'a, Option<zae_limiter_core::UsageSummary>> {
        Box::pin(async move {
            self.report_asked(&PageRequest::default(), query).await;
            self.inner.usage_summary(query).await
        })
    }

    fn sweep(&self, now: TimeMs, steps_max: u32) -> StoreFuture<'_, Swept> {
        Box::pin(async move {
            self.settle_up_to(usize::MAX, |_| true, now).await;
            self.inner.sweep(now, steps_max).await
        })
    }

    fn give_back(&self, now: TimeMs) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.settle_up_to(usize::MAX, |_| true, now).await;
            self.inner.give_back(now).await
        })
    }

    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Option<Restored>> {
        Box::pin(async move {
            let is_meant = |key: &table::Key| {
                key.entity == *request.entity && key.resource == *request.resource
            };
            self.administer(is_meant, change.at, move |inner| inner.reset(request, change)).await
        })
    }

    fn delete_entity<'a>(
        &'a self,
        id: &'a EntityId,
        change: &'a Change,
    ) -> StoreFuture<'a, DeletedEntity> {
        let concerns = |key: &table::Key| key.entity == *id;
        self.administer(concerns, change.at, move |inner| inner.delete_entity(id, change))
    }

    fn set_limits<'a>(
        &'a self,
        level: &'a Level,
        limits: &'a LimitsChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        let concerns = |key: &table::Key| covers(level, key);
        self.administer(concerns, change.at, move |inner| inner.set_limits(level, limits, change))
    }

    fn delete_limits<'a>(&'a self, level: &'a Level, change: &'a Change) -> StoreFuture<'a, bool> {
        let concerns = |key: &table::Key| covers(level, key);
        self.administer(concerns, change.at, move |inner| inner.delete_limits(level, change))
    }

    fn set_flag<'a>(
        &'a self,
        level: &'a Level,
        flag: Option<Flag>,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        // A flag changes no balance: what it is about may be given back afterwards.
        self.administer(|_| false, change.at, move |inner| inner.set_flag(level, flag, change))
    }

    fn delete_namespace<'a>(
        &'a self,
        name: &'a zae_limiter_core::NamespaceName,
        change: &'a Change,
    ) -> StoreFuture<'a, bool> {
        self.administer(|_| false, change.at, move |inner| inner.delete_namespace(name, change))
    }

    fn purge_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Purged> {
        self.administer(|_| false, change.at, move |inner| inner.purge_namespace(id, change))
    }

    fn settle<'a>(
        &'a self,
        entity: &'a EntityId,
        resource: &'a ResourceName,
        report: &'a Report,
        now: TimeMs,
    ) -> StoreFuture<'a, ()> {
        self.inner.settle(entity, resource, report, now)
    }
}

impl<S: ?Sized> Clone for BlockStore<S> {
    fn clone(&self) -> Self {
        BlockStore {
            inner: Arc::clone(&self.inner),
            table: Arc::clone(&self.table),
            home: Arc::clone(&self.home),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: ?Sized> fmt::Debug for BlockStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockStore").field("options", &self.shared.options).finish_non_exhaustive()
    }
}
