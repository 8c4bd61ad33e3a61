//! Moving buckets and usage of a namespace to another store.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use tracing::Instrument;
use zae_limiter_core::{EntityId, ResourceName, UsageSnapshot, UsageWindow};
use zae_limiter_store::{
    ADOPTED_MAX, Adopted, Adoption, BucketView, COUNTED_BY_THE_HOUR, PAGE_LIMIT_MAX, Page,
    PageRequest, UsageQuery,
};

use super::RateLimiter;
use super::admin::admin_span;
use crate::error::Error;

const HOURLY: UsageWindow = UsageWindow::Hourly;

/// Is told what a migration has done so far.
pub type MigrationProgress = Arc<dyn Fn(&Migrated) + Send + Sync>;

/// How to migrate.
#[derive(Clone, Default)]
pub struct Migration {
    /// Why, for the audit log of the target.
    pub reason: Option<String>,
    /// Only says what would be copied. What the target's retention would leave out is not looked
    /// at.
    pub dry_run: bool,
    /// For a dry run before the namespace of the target is there: the target is another namespace
    /// of the same store then, and is asked only what the store can do.
    pub into_nothing: bool,
    /// Called after each step with what was done so far.
    pub progress: Option<MigrationProgress>,
}

impl fmt::Debug for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Migration")
            .field("reason", &self.reason)
            .field("dry_run", &self.dry_run)
            .field("into_nothing", &self.into_nothing)
            .finish_non_exhaustive()
    }
}

impl Migration {
    /// Whether what the target has is read: else its store says what it makes.
    fn has_to_look(&self) -> bool {
        self.dry_run && !self.into_nothing
    }
}

/// What a migration has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Buckets.
    pub buckets: Copied,
    /// Windows of usage: an hour, a day or a month of one bucket.
    pub usage: Copied,
}

/// What became of one kind of things.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Those that the target has now, or would have after a dry run.
    pub copied: u64,
    /// Those that the target had before, and has as it had them.
    pub kept: u64,
    /// Those that the target has no place for, by the reason.
    pub skipped: BTreeMap<&'static str, u64>,
}

impl Copied {
    fn count(&mut self, answers: &[Adopted]) {
        for answer in answers {
            match answer {
                Adopted::Made => self.copied += 1,
                Adopted::Kept => self.kept += 1,
                Adopted::Skipped(why) => *self.skipped.entry(why).or_default() += 1,
            }
        }
    }

    /// How many there are in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.copied + self.kept + self.skipped.values().sum::<u64>()
    }
}

impl RateLimiter {
    /// Copies every bucket of this namespace, with its balances and debts, and its whole usage
    /// history to the namespace of another limiter, which may be on any store. Limits, flags and
    /// entities are not copied: they come first, with the crate `zae-limiter-manifest`, so that the
    /// buckets find their limits and owners.
    ///
    /// Only what the target does not have is made; a bucket or a window that is there stays as it
    /// is. So a migration that was cut off is finished by the next one, and one that is repeated
    /// copies nothing. What callers take from this store after a bucket was copied is not carried:
    /// let them use the target only, once the migration has ended.
    ///
    /// Cost: reads every bucket and every window of usage; up to 80 are written at once, in one
    /// transaction with an audit event.
    pub async fn migrate_to(
        &self,
        target: &RateLimiter,
        how: &Migration,
    ) -> Result<Migrated, Error> {
        let mut migrated = Migrated::default();
        let span = admin_span("migrate_to");
        async {
            self.migrate_buckets(target, how, &mut migrated).await?;
            self.migrate_usage(target, how, &mut migrated).await?;
            Ok(migrated)
        }
        .instrument(span)
        .await
    }

    async fn migrate_buckets(
        &self,
        target: &RateLimiter,
        how: &Migration,
        migrated: &mut Migrated,
    ) -> Result<(), Error> {
        let is_there =
            if how.has_to_look() { target.bucket_names().await? } else { HashSet::new() };
        let size = u32::try_from(ADOPTED_MAX).unwrap_or(PAGE_LIMIT_MAX);
        let mut request = Some(PageRequest::first(size));
        while let Some(page) = request.take() {
            let Page { mut items, next } =
                self.admin("namespace_buckets", self.store().namespace_buckets(&page)).await?;
            let answers = if how.dry_run {
                items.iter().map(|view| answer(is_there.contains(&name_of(view)))).collect()
            } else {
                let by_ms = self.clock_difference(target).await?;
                items.iter_mut().for_each(|view| view.state.change_clock(by_ms));
                self.hand_over(target, how, &items, &[]).await?
            };
            migrated.buckets.count(&answers);
            tell(how, migrated);
            request = next.map(|cursor| PageRequest::after(size, cursor));
        }
        Ok(())
    }

    /// How much more the clock of the target's store shows than that of this store.
    async fn clock_difference(&self, target: &RateLimiter) -> Result<i64, Error> {
        let now = self.clock().now();
        let left = self.admin("store_time", self.store().store_time(now)).await?;
        let now = target.clock().now();
        let arrived = target.admin("store_time", target.store().store_time(now)).await?;
        Ok(arrived.since(left))
    }

    async fn migrate_usage(
        &self,
        target: &RateLimiter,
        how: &Migration,
        migrated: &mut Migrated,
    ) -> Result<(), Error> {
        // Where days and months are sums of hours on both sides, the hours are everything.
        let sums = |limiter: &RateLimiter| limiter.capabilities().immediate_usage;
        let (here, there) = (sums(self), sums(target));
        let windows =
            UsageWindow::ALL.into_iter().filter(|window| !here || !there || *window == HOURLY);
        for window in windows {
            let is_placed = !there || window == HOURLY;
            let is_there =
                if how.has_to_look() { target.usage_names(window).await? } else { HashSet::new() };
            let mut query = all_usage(window);
            loop {
                let page = self.usage(&query).await?;
                for part in page.items.chunks(ADOPTED_MAX) {
                    let answers = if how.dry_run {
                        let answer = |one| match is_placed {
                            true => answer(is_there.contains(&window_of(one))),
                            false => COUNTED_BY_THE_HOUR,
                        };
                        part.iter().map(answer).collect()
                    } else {
                        self.hand_over(target, how, &[], part).await?
                    };
                    migrated.usage.count(&answers);
                    tell(how, migrated);
                }
                let Some(cursor) = page.next else { break };
                query.page = PageRequest::after(PAGE_LIMIT_MAX, cursor);
            }
        }
        Ok(())
    }

    async fn hand_over(
        &self,
        target: &RateLimiter,
        how: &Migration,
        buckets: &[BucketView],
        usage: &[UsageSnapshot],
    ) -> Result<Vec<Adopted>, Error> {
        if buckets.is_empty() && usage.is_empty() {
            return Ok(Vec::new());
        }
        let mut details = vec![("from".to_owned(), self.store().capabilities().name.to_owned())];
        details.extend(how.reason.iter().map(|reason| ("reason".to_owned(), reason.clone())));
        let adoption = Adoption { buckets, usage, details: &details };
        target.admin("adopt", target.store().adopt(&adoption, &target.change())).await
    }

    async fn bucket_names(&self) -> Result<HashSet<(EntityId, ResourceName)>, Error> {
        let mut names = HashSet::new();
        let mut request = Some(PageRequest::first(PAGE_LIMIT_MAX));
        while let Some(page) = request.take() {
            let page =
                self.admin("namespace_buckets", self.store().namespace_buckets(&page)).await?;
            names.extend(page.items.iter().map(name_of));
            request = page.next.map(|cursor| PageRequest::after(PAGE_LIMIT_MAX, cursor));
        }
        Ok(names)
    }

    async fn usage_names(&self, window: UsageWindow) -> Result<HashSet<WindowName>, Error> {
        let (mut names, mut query) = (HashSet::new(), all_usage(window));
        loop {
            let page = self.usage(&query).await?;
            names.extend(page.items.iter().map(window_of));
            let Some(cursor) = page.next else { break };
            query.page = PageRequest::after(PAGE_LIMIT_MAX, cursor);
        }
        Ok(names)
    }
}

/// A window of usage of one bucket.
type WindowName = (EntityId, ResourceName, i64);

fn answer(is_there: bool) -> Adopted {
    if is_there { Adopted::Kept } else { Adopted::Made }
}

fn name_of(view: &BucketView) -> (EntityId, ResourceName) {
    (view.entity.clone(), view.resource.clone())
}

fn window_of(usage: &UsageSnapshot) -> WindowName {
    (usage.entity.clone(), usage.resource.clone(), usage.start.0)
}

fn all_usage(window: UsageWindow) -> UsageQuery {
    let page = PageRequest::first(PAGE_LIMIT_MAX);
    UsageQuery { entity: None, resource: None, window, from: None, until: None, page }
}

fn tell(how: &Migration, migrated: &Migrated) {
    if let Some(progress) = &how.progress {
        progress(migrated);
    }
}
