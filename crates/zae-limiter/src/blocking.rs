//! The same limiter for code that is not async.
//!
//! Every verb of [`crate::RateLimiter`] and [`crate::Lease`] has the same name here, and no logic
//! of its own. The work happens on one runtime thread; the caller's thread waits. A blocking
//! limiter works in plain threads and in `spawn_blocking`. A call on an async worker thread panics,
//! because waiting there would stall every other task: use [`crate::RateLimiter`] there.
//!
//! ```
//! use zae_limiter::{Level, Request, blocking::RateLimiter};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("limits.db");
//! let limiter = RateLimiter::open(path)?;
//! limiter.set_limits(&Level::System, ["rpm:60/min".parse()?])?;
//! let lease = limiter.acquire(Request::new("key-1", "gpt-4").take("rpm", 1))?;
//! lease.commit()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use zae_limiter_core::{
    AuditEvent, Entity, EntityId, Flag, LimitName, NamespaceId, NamespaceName, Principal,
    ResourceName, UsageSnapshot, UsageSummary,
};
use zae_limiter_store::{
    AuditQuery, BlockStats, BucketView, Capabilities, DeletedEntity, EntityDraft, EntityUpdate,
    Level, LevelConfig, LimitsChange, Managed, ManagedChange, Namespace, Page, PageRequest, Purged,
    Swept, UsageQuery,
};

mod lease;
mod prepared;
mod runtime;

pub use lease::Lease;
pub use prepared::Prepared;
use runtime::Runtime;

use crate::{
    AcquireError, Availability, Builder, CacheStats, CapacityScope, CreatedEntity, Error, IntoName,
    Invalid, Migrated, Migration, Reached, Request, Resolved, ResourceCapacity, Settled,
};

/// A [`crate::RateLimiter`] whose verbs wait.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    limiter: crate::RateLimiter,
    runtime: Arc<Runtime>,
}

impl RateLimiter {
    /// Builds a blocking limiter.
    pub fn build(builder: Builder) -> Result<RateLimiter, Error> {
        RateLimiter::made_by(async move { builder.build() })
    }

    /// Builds a blocking limiter on a store that has to be connected first, and waits for that.
    ///
    /// ```no_run
    /// # #[cfg(feature = "dynamodb")]
    /// # fn example() -> Result<(), zae_limiter::Error> {
    /// use zae_limiter::{RateLimiter, blocking, dynamodb::DynamoStore};
    ///
    /// let limiter = blocking::RateLimiter::build_from(async {
    ///     let builder = DynamoStore::builder("my-app", "eu-west-1").namespace("tenant-1");
    ///     let store = builder.connect().await?;
    ///     Ok(RateLimiter::builder(store))
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn build_from(
        builder: impl Future<Output = Result<Builder, Error>> + Send + 'static,
    ) -> Result<RateLimiter, Error> {
        RateLimiter::made_by(async move { builder.await?.build() })
    }

    /// A limiter that is made on the runtime it will run on.
    fn made_by(
        make: impl Future<Output = Result<crate::RateLimiter, Error>> + Send + 'static,
    ) -> Result<RateLimiter, Error> {
        let runtime = Arc::new(Runtime::start()?);
        let limiter = runtime.wait(make)?;
        runtime.limiter.get_or_init(|| limiter.clone());
        Ok(RateLimiter { limiter, runtime })
    }

    /// The embedded limiter in one line.
    #[cfg(feature = "sqlite")]
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<RateLimiter, Error> {
        RateLimiter::build(crate::RateLimiter::builder(zae_limiter_sqlite::SqliteStore::open(
            path,
        )?))
    }

    /// See [`crate::RateLimiter::open_with`].
    #[cfg(feature = "sqlite")]
    pub fn open_with(
        path: impl AsRef<std::path::Path>,
        options: zae_limiter_sqlite::SqliteOptions,
    ) -> Result<RateLimiter, Error> {
        RateLimiter::build(crate::RateLimiter::builder(zae_limiter_sqlite::SqliteStore::open_with(
            path, options,
        )?))
    }

    /// See [`crate::RateLimiter::connect`].
    #[cfg(feature = "dynamodb")]
    pub fn connect(stack: &str, region: &str) -> Result<RateLimiter, Error> {
        let (stack, region) = (stack.to_owned(), region.to_owned());
        RateLimiter::made_by(async move { crate::RateLimiter::connect(&stack, &region).await })
    }

    /// Runs a verb of the asynchronous limiter and waits for it.
    fn wait<T, F>(&self, verb: impl FnOnce(crate::RateLimiter) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.runtime.wait(verb(self.limiter.clone()))
    }

    /// See [`crate::RateLimiter::acquire`].
    pub fn acquire(&self, request: Request) -> Result<Lease, AcquireError> {
        let lease = self.wait(|limiter| async move { limiter.acquire(request).await })?;
        Ok(Lease { lease: Arc::new(lease), runtime: Arc::clone(&self.runtime) })
    }

    /// See [`crate::RateLimiter::prepare`].
    pub fn prepare(&self, request: Request) -> Result<Prepared, Invalid> {
        let prepared = self.limiter.prepare(request)?;
        Ok(Prepared { prepared, runtime: Arc::clone(&self.runtime) })
    }

    /// See [`crate::RateLimiter::with_lease`].
    pub fn with_lease<T, E: From<AcquireError>>(
        &self,
        request: Request,
        work: impl FnOnce(&Lease) -> Result<T, E>,
    ) -> Result<T, E> {
        let lease = self.acquire(request)?;
        let result = work(&lease);
        let settled = if result.is_ok() { lease.commit() } else { lease.rollback() };
        if let Err(error) = settled {
            tracing::debug!(%error, "the settler takes over");
        }
        result
    }

    /// See [`crate::RateLimiter::availability`].
    pub fn availability(&self, request: &Request) -> Result<Availability, AcquireError> {
        let request = request.clone();
        self.wait(|limiter| async move { limiter.availability(&request).await })
    }

    /// See [`crate::RateLimiter::resolve`].
    pub fn resolve(
        &self,
        entity: impl IntoName<EntityId>,
        resource: impl IntoName<ResourceName>,
    ) -> Result<Resolved, Error> {
        let (entity, resource) = (entity.into_name()?, resource.into_name()?);
        self.wait(|limiter| async move { limiter.resolve(entity, resource).await })
    }

    /// See [`crate::RateLimiter::namespace`].
    pub fn namespace(&self, name: impl IntoName<NamespaceName>) -> Result<RateLimiter, Error> {
        let name = name.into_name()?;
        let limiter = self.wait(|limiter| async move { limiter.namespace(name).await })?;
        Ok(RateLimiter { limiter, runtime: Arc::clone(&self.runtime) })
    }

    /// See [`crate::RateLimiter::with_principal`].
    #[must_use]
    pub fn with_principal(&self, principal: Principal) -> RateLimiter {
        RateLimiter {
            limiter: self.limiter.with_principal(principal),
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// See [`crate::RateLimiter::with_reason`].
    #[must_use]
    pub fn with_reason(&self, reason: &str) -> RateLimiter {
        RateLimiter {
            limiter: self.limiter.with_reason(reason),
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// See [`crate::RateLimiter::namespace_name`].
    #[must_use]
    pub fn namespace_name(&self) -> &NamespaceName {
        self.limiter.namespace_name()
    }

    /// See [`crate::RateLimiter::capabilities`].
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.limiter.capabilities()
    }

    /// See [`crate::RateLimiter::cache_stats`].
    #[must_use]
    pub fn cache_stats(&self) -> CacheStats {
        self.limiter.cache_stats()
    }

    /// See [`crate::RateLimiter::blocks`].
    #[must_use]
    pub fn blocks(&self) -> Option<BlockStats> {
        self.limiter.blocks()
    }

    /// See [`crate::RateLimiter::invalidate_config_cache`].
    pub fn invalidate_config_cache(&self) {
        self.limiter.invalidate_config_cache();
    }

    /// See [`crate::RateLimiter::settled`].
    #[must_use]
    pub fn settled(&self) -> Settled {
        self.limiter.settled()
    }

    /// See [`crate::RateLimiter::drain`].
    pub fn drain(&self) -> Settled {
        self.wait(|limiter| async move { limiter.drain().await })
    }

    /// See [`crate::RateLimiter::close`].
    pub fn close(&self) -> Settled {
        self.wait(|limiter| async move { limiter.close().await })
    }

    /// See [`crate::RateLimiter::create_entity`].
    pub fn create_entity(&self, entity: impl Into<EntityDraft>) -> Result<CreatedEntity, Error> {
        let entity = entity.into();
        self.wait(|limiter| async move { limiter.create_entity(entity).await })
    }

    /// See [`crate::RateLimiter::ensure_entity`].
    pub fn ensure_entity(&self, entity: impl Into<EntityDraft>) -> Result<CreatedEntity, Error> {
        let entity = entity.into();
        self.wait(|limiter| async move { limiter.ensure_entity(entity).await })
    }

    /// See [`crate::RateLimiter::entity`].
    pub fn entity(&self, id: impl IntoName<EntityId>) -> Result<Option<Entity>, Error> {
        let id = id.into_name()?;
        self.wait(|limiter| async move { limiter.entity(id).await })
    }

    /// See [`crate::RateLimiter::update_entity`].
    pub fn update_entity(
        &self,
        id: impl IntoName<EntityId>,
        expected_version: u64,
        update: EntityUpdate,
    ) -> Result<Entity, Error> {
        let id = id.into_name()?;
        self.wait(
            |limiter| async move { limiter.update_entity(id, expected_version, update).await },
        )
    }

    /// See [`crate::RateLimiter::delete_entity`].
    pub fn delete_entity(&self, id: impl IntoName<EntityId>) -> Result<DeletedEntity, Error> {
        let id = id.into_name()?;
        self.wait(|limiter| async move { limiter.delete_entity(id).await })
    }

    /// See [`crate::RateLimiter::children`].
    pub fn children(
        &self,
        parent: impl IntoName<EntityId>,
        page: &PageRequest,
    ) -> Result<Page<Entity>, Error> {
        let (parent, page) = (parent.into_name()?, page.clone());
        self.wait(|limiter| async move { limiter.children(parent, &page).await })
    }

    /// See [`crate::RateLimiter::entities`].
    pub fn entities(&self, page: &PageRequest) -> Result<Page<Entity>, Error> {
        let page = page.clone();
        self.wait(|limiter| async move { limiter.entities(&page).await })
    }

    /// See [`crate::RateLimiter::set_limits`].
    pub fn set_limits(&self, level: &Level, change: impl Into<LimitsChange>) -> Result<u64, Error> {
        let (level, change) = (level.clone(), change.into());
        self.wait(|limiter| async move { limiter.set_limits(&level, change).await })
    }

    /// See [`crate::RateLimiter::level`].
    pub fn level(&self, level: &Level) -> Result<Option<LevelConfig>, Error> {
        let level = level.clone();
        self.wait(|limiter| async move { limiter.level(&level).await })
    }

    /// See [`crate::RateLimiter::delete_limits`].
    pub fn delete_limits(&self, level: &Level) -> Result<bool, Error> {
        let level = level.clone();
        self.wait(|limiter| async move { limiter.delete_limits(&level).await })
    }

    /// See [`crate::RateLimiter::managed`].
    pub fn managed(&self, part: u32) -> Result<Option<Managed>, Error> {
        self.wait(|limiter| async move { limiter.managed(part).await })
    }

    /// See [`crate::RateLimiter::set_managed`].
    pub fn set_managed(&self, part: u32, change: &ManagedChange) -> Result<u64, Error> {
        let change = change.clone();
        self.wait(|limiter| async move { limiter.set_managed(part, &change).await })
    }

    /// See [`crate::RateLimiter::disable`].
    pub fn disable(&self, level: &Level) -> Result<Reached, Error> {
        let level = level.clone();
        self.wait(|limiter| async move { limiter.disable(&level).await })
    }

    /// See [`crate::RateLimiter::enable`].
    pub fn enable(&self, level: &Level) -> Result<Reached, Error> {
        let level = level.clone();
        self.wait(|limiter| async move { limiter.enable(&level).await })
    }

    /// See [`crate::RateLimiter::clear_disabled`].
    pub fn clear_disabled(&self, level: &Level) -> Result<Reached, Error> {
        let level = level.clone();
        self.wait(|limiter| async move { limiter.clear_disabled(&level).await })
    }

    /// See [`crate::RateLimiter::set_flag`].
    pub fn set_flag(&self, level: &Level, flag: Option<Flag>) -> Result<Reached, Error> {
        let level = level.clone();
        self.wait(|limiter| async move { limiter.set_flag(&level, flag).await })
    }

    /// See [`crate::RateLimiter::reset`].
    pub fn reset(
        &self,
        entity: impl IntoName<EntityId>,
        resource: impl IntoName<ResourceName>,
        only: Option<&[LimitName]>,
    ) -> Result<Option<Vec<(LimitName, i64)>>, Error> {
        let (entity, resource, only) =
            (entity.into_name()?, resource.into_name()?, only.map(<[LimitName]>::to_vec));
        self.wait(|limiter| async move { limiter.reset(entity, resource, only.as_deref()).await })
    }

    /// See [`crate::RateLimiter::resources_with_defaults`].
    pub fn resources_with_defaults(&self, page: &PageRequest) -> Result<Page<ResourceName>, Error> {
        let page = page.clone();
        self.wait(|limiter| async move { limiter.resources_with_defaults(&page).await })
    }

    /// See [`crate::RateLimiter::entities_with_limits`].
    pub fn entities_with_limits(
        &self,
        resource: Option<&ResourceName>,
        page: &PageRequest,
    ) -> Result<Page<EntityId>, Error> {
        let (resource, page) = (resource.cloned(), page.clone());
        self.wait(
            |limiter| async move { limiter.entities_with_limits(resource.as_ref(), &page).await },
        )
    }

    /// See [`crate::RateLimiter::resources_with_entity_limits`].
    pub fn resources_with_entity_limits(
        &self,
        page: &PageRequest,
    ) -> Result<Page<Option<ResourceName>>, Error> {
        let page = page.clone();
        self.wait(|limiter| async move { limiter.resources_with_entity_limits(&page).await })
    }

    /// See [`crate::RateLimiter::register_namespace`].
    pub fn register_namespace(
        &self,
        name: impl IntoName<NamespaceName>,
    ) -> Result<Namespace, Error> {
        let name = name.into_name()?;
        self.wait(|limiter| async move { limiter.register_namespace(name).await })
    }

    /// See [`crate::RateLimiter::register_namespaces`].
    pub fn register_namespaces<N: IntoName<NamespaceName>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<Namespace>, Error> {
        let names = names
            .into_iter()
            .map(IntoName::into_name)
            .collect::<Result<Vec<NamespaceName>, _>>()?;
        self.wait(|limiter| async move { limiter.register_namespaces(names).await })
    }

    /// See [`crate::RateLimiter::namespaces`].
    pub fn namespaces(&self, page: &PageRequest) -> Result<Page<Namespace>, Error> {
        let page = page.clone();
        self.wait(|limiter| async move { limiter.namespaces(&page).await })
    }

    /// See [`crate::RateLimiter::namespace_info`].
    pub fn namespace_info(
        &self,
        name: impl IntoName<NamespaceName>,
    ) -> Result<Option<Namespace>, Error> {
        let name = name.into_name()?;
        self.wait(|limiter| async move { limiter.namespace_info(name).await })
    }

    /// See [`crate::RateLimiter::delete_namespace`].
    pub fn delete_namespace(&self, name: impl IntoName<NamespaceName>) -> Result<bool, Error> {
        let name = name.into_name()?;
        self.wait(|limiter| async move { limiter.delete_namespace(name).await })
    }

    /// See [`crate::RateLimiter::recover_namespace`].
    pub fn recover_namespace(&self, id: impl IntoName<NamespaceId>) -> Result<Namespace, Error> {
        let id = id.into_name()?;
        self.wait(|limiter| async move { limiter.recover_namespace(id).await })
    }

    /// See [`crate::RateLimiter::orphan_namespaces`].
    pub fn orphan_namespaces(&self, page: &PageRequest) -> Result<Page<Namespace>, Error> {
        let page = page.clone();
        self.wait(|limiter| async move { limiter.orphan_namespaces(&page).await })
    }

    /// See [`crate::RateLimiter::purge_namespace`].
    pub fn purge_namespace(&self, id: impl IntoName<NamespaceId>) -> Result<Purged, Error> {
        let id = id.into_name()?;
        self.wait(|limiter| async move { limiter.purge_namespace(id).await })
    }

    /// See [`crate::RateLimiter::buckets`].
    pub fn buckets(
        &self,
        entity: impl IntoName<EntityId>,
        page: &PageRequest,
    ) -> Result<Page<BucketView>, Error> {
        let (entity, page) = (entity.into_name()?, page.clone());
        self.wait(|limiter| async move { limiter.buckets(entity, &page).await })
    }

    /// See [`crate::RateLimiter::resource_capacity`].
    pub fn resource_capacity(
        &self,
        resource: impl IntoName<ResourceName>,
        limit: impl IntoName<LimitName>,
        scope: CapacityScope,
    ) -> Result<ResourceCapacity, Error> {
        let (resource, limit) = (resource.into_name()?, limit.into_name()?);
        self.wait(|limiter| async move { limiter.resource_capacity(resource, limit, scope).await })
    }

    /// See [`crate::RateLimiter::audit_log`].
    pub fn audit_log(&self, page: &PageRequest) -> Result<Page<AuditEvent>, Error> {
        let page = page.clone();
        self.wait(|limiter| async move { limiter.audit_log(&page).await })
    }

    /// See [`crate::RateLimiter::audit_events`].
    pub fn audit_events(&self, query: &AuditQuery) -> Result<Page<AuditEvent>, Error> {
        let query = query.clone();
        self.wait(|limiter| async move { limiter.audit_events(&query).await })
    }

    /// See [`crate::RateLimiter::usage`].
    pub fn usage(&self, query: &UsageQuery) -> Result<Page<UsageSnapshot>, Error> {
        let query = query.clone();
        self.wait(|limiter| async move { limiter.usage(&query).await })
    }

    /// See [`crate::RateLimiter::usage_summary`].
    pub fn usage_summary(&self, query: &UsageQuery) -> Result<UsageSummary, Error> {
        let query = query.clone();
        self.wait(|limiter| async move { limiter.usage_summary(&query).await })
    }

    /// See [`crate::RateLimiter::migrate_to`].
    pub fn migrate_to(&self, target: &RateLimiter, how: &Migration) -> Result<Migrated, Error> {
        let (target, how) = (target.limiter.clone(), how.clone());
        self.wait(|limiter| async move { limiter.migrate_to(&target, &how).await })
    }

    /// See [`crate::RateLimiter::is_available`].
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.wait(|limiter| async move { limiter.is_available().await })
    }

    /// See [`crate::RateLimiter::sweep`].
    pub fn sweep(&self, steps_max: u32) -> Result<Swept, Error> {
        self.wait(|limiter| async move { limiter.sweep(steps_max).await })
    }
}
