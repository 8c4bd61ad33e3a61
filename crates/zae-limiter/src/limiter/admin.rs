//! Administration: entities, limits, flags, resets. Every change is audited, and evicts what it
//! changed from the cache of this process; other processes see it within their config-cache TTL.

use std::time::Duration;

use tracing::{Instrument, Span};
use zae_limiter_core::{Entity, EntityId, Flag, IntoName, LimitName, ResourceName, check_limits};
use zae_limiter_store::{
    DeletedEntity, EntityDraft, EntityUpdate, Level, LevelConfig, LimitsChange, Managed,
    ManagedChange, NewEntity, Page, PageRequest, ResetRequest, StoreError, StoreErrorKind,
};

use super::RateLimiter;
use super::cache::LEND_MAX;
use crate::deadline::timeout;
use crate::error::{Error, ErrorKind, Invalid};
use crate::metrics;

/// An entity as created, with warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedEntity {
    /// The entity.
    pub entity: Entity,
    /// Properties that are allowed and probably not meant.
    pub warnings: Vec<EntityWarning>,
}

/// How many buckets a flag has reached when the call that stores it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reached {
    /// Existing buckets that carry the flag now.
    pub buckets: u64,
    /// The time within which the flag binds a bucket that was not found: zero on a store that finds
    /// all of them. On DynamoDB it is the config-cache TTL plus the time for which expired limits
    /// still decide a take while they are read again (five seconds, or one more TTL if that is
    /// shorter): 65 s by default.
    pub binds_within: Duration,
}

/// A property of an entity that is allowed and probably not meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum EntityWarning {
    /// The entity has a parent, but its takes do not go on to the parent.
    #[error(
        "the entity has a parent but does not cascade: the parent's limits will not be checked"
    )]
    ParentWithoutCascade,
    /// The entity cascades but has no parent.
    #[error("the entity cascades but has no parent: there is nothing to cascade to")]
    CascadeWithoutParent,
}

impl RateLimiter {
    /// Creates an entity. Its parent must exist; parent and cascade cannot be changed later.
    ///
    /// ```
    /// # use zae_limiter::{MemoryStore, NewEntity, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::builder(MemoryStore::new()).build()?;
    /// limiter.create_entity(NewEntity::new("org-1").name("The Org")).await?;
    /// limiter.create_entity(NewEntity::new("key-1").parent("org-1").cascade()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_entity(
        &self,
        entity: impl Into<EntityDraft>,
    ) -> Result<CreatedEntity, Error> {
        let entity = entity.into().build()?;
        self.create(&entity).await
    }

    /// Creates an entity unless it is there: what a service calls at every start. An entity that is
    /// there keeps its name and metadata, because an administrator may have changed them meanwhile.
    /// If its parent or its cascade is another than described, the call fails with `AlreadyExists`:
    /// neither can be changed, and the limits of another entity would apply.
    ///
    /// Cost: one read when it is there.
    pub async fn ensure_entity(
        &self,
        entity: impl Into<EntityDraft>,
    ) -> Result<CreatedEntity, Error> {
        let entity = entity.into().build()?;
        if let Some(found) = self.entity(entity.id.clone()).await? {
            return as_described(found, &entity);
        }
        match self.create(&entity).await {
            // Another process was faster. If the entity is deleted in this very moment, the answer
            // is that it existed.
            Err(error) if error.kind() == ErrorKind::Store(StoreErrorKind::AlreadyExists) => {
                match self.entity(entity.id.clone()).await? {
                    Some(found) => as_described(found, &entity),
                    None => Err(error),
                }
            }
            answer => answer,
        }
    }

    async fn create(&self, entity: &NewEntity) -> Result<CreatedEntity, Error> {
        Entity::check_text(&entity.name, &entity.metadata)?;
        let warnings = warnings_about(entity);
        let _evict = Evict { limiter: self, entity: Some(&entity.id) };
        let created =
            self.admin("create_entity", self.store().create_entity(entity, &self.change())).await?;
        Ok(CreatedEntity { entity: created, warnings })
    }

    /// Looks an entity up.
    pub async fn entity(&self, id: impl IntoName<EntityId>) -> Result<Option<Entity>, Error> {
        let id = id.into_name()?;
        self.admin("entity", self.store().entity(&id)).await
    }

    /// Changes name or metadata, if the entity still has `expected_version`.
    pub async fn update_entity(
        &self,
        id: impl IntoName<EntityId>,
        expected_version: u64,
        update: EntityUpdate,
    ) -> Result<Entity, Error> {
        let id = id.into_name()?;
        Entity::check_text(
            update.name.as_deref().unwrap_or("-"),
            update.metadata.as_ref().unwrap_or(&Default::default()),
        )?;
        self.admin(
            "update_entity",
            self.store().update_entity(&id, expected_version, &update, &self.change()),
        )
        .await
    }

    /// Deletes an entity with its buckets and configuration; refused while it has children.
    pub async fn delete_entity(&self, id: impl IntoName<EntityId>) -> Result<DeletedEntity, Error> {
        let id = id.into_name()?;
        let _evict = Evict { limiter: self, entity: Some(&id) };
        self.admin("delete_entity", self.store().delete_entity(&id, &self.change())).await
    }

    /// Direct children of an entity, by id.
    pub async fn children(
        &self,
        parent: impl IntoName<EntityId>,
        page: &PageRequest,
    ) -> Result<Page<Entity>, Error> {
        let parent = parent.into_name()?;
        self.admin("children", self.store().children(&parent, page)).await
    }

    /// All entities, by id.
    pub async fn entities(&self, page: &PageRequest) -> Result<Page<Entity>, Error> {
        self.admin("entities", self.store().entities(page)).await
    }

    /// Stores limits at a level in place of those it had; returns the level's new version.
    ///
    /// A list of limits is enough. A [`LimitsChange`] also stores the outage policy, at system
    /// level, and can expect a version: then the call fails with `Conflict` instead of overwriting
    /// a change that came in between.
    ///
    /// ```
    /// # use zae_limiter::{Level, LimitsChange, MemoryStore, OnUnavailable, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::builder(MemoryStore::new()).build()?;
    /// let version = limiter.set_limits(&Level::System, ["rpm:60/min".parse()?]).await?;
    /// let change = LimitsChange {
    ///     on_unavailable: Some(OnUnavailable::Allow),
    ///     expected_version: Some(version),
    ///     ..["rpm:90/min".parse()?].into()
    /// };
    /// limiter.set_limits(&Level::System, change).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_limits(
        &self,
        level: &Level,
        change: impl Into<LimitsChange>,
    ) -> Result<u64, Error> {
        let change = change.into();
        check_limits(&change.limits)?;
        if change.limits.is_empty() {
            return Err(Invalid::Refused(
                "at least one limit is needed; use delete_limits to remove them".into(),
            )
            .into());
        }
        let _evict = Evict { limiter: self, entity: level.entity_id() };
        let version =
            self.admin("set_limits", self.store().set_limits(level, &change, &self.change())).await;
        if *level == Level::System && version.is_ok() && change.on_unavailable.is_some() {
            self.scope.remember_policy(change.on_unavailable);
        }
        version
    }

    /// The configuration stored at a level.
    pub async fn level(&self, level: &Level) -> Result<Option<LevelConfig>, Error> {
        self.admin("level", self.store().level(level)).await
    }

    /// Removes the limits of a level; false when it had none.
    pub async fn delete_limits(&self, level: &Level) -> Result<bool, Error> {
        let _evict = Evict { limiter: self, entity: level.entity_id() };
        let deleted =
            self.admin("delete_limits", self.store().delete_limits(level, &self.change())).await;
        if *level == Level::System && deleted.is_ok() {
            self.scope.remember_policy(None);
        }
        deleted
    }

    /// Disables a resource, an entity, or an entity on a resource.
    ///
    /// On a store of one machine nothing that the level covers is admitted from now on, in any
    /// process. On DynamoDB that holds for every bucket that was reached, and for every bucket that
    /// is made from now on. DynamoDB finds buckets through an index that lags behind, usually by
    /// less than the two seconds this call waits for it. A bucket that is missing in the index
    /// refuses as soon as its takers read the configuration again, within
    /// [`Reached::binds_within`]. A member of a chain without limits has no bucket there, and its
    /// flag binds within the same time.
    pub async fn disable(&self, level: &Level) -> Result<Reached, Error> {
        self.set_flag(level, Some(Flag::Disabled)).await
    }

    /// Enables a level explicitly, even if a weaker level is disabled. Other processes that have
    /// the level cached as disabled notice within their config-cache TTL.
    pub async fn enable(&self, level: &Level) -> Result<Reached, Error> {
        self.set_flag(level, Some(Flag::Enabled)).await
    }

    /// Removes the flag of a level, which then inherits again.
    pub async fn clear_disabled(&self, level: &Level) -> Result<Reached, Error> {
        self.set_flag(level, None).await
    }

    /// Sets the flag of a level, or removes it: what [`RateLimiter::disable`],
    /// [`RateLimiter::enable`] and [`RateLimiter::clear_disabled`] do. Without a deadline: a store
    /// may have to reach every bucket, and half of them is no answer.
    pub async fn set_flag(&self, level: &Level, flag: Option<Flag>) -> Result<Reached, Error> {
        let _evict = Evict { limiter: self, entity: level.entity_id() };
        let change = self.change();
        let spread = self.store().set_flag(level, flag, &change);
        let buckets = spread.instrument(admin_span("set_flag")).await?;
        let ttl = self.scope.cache.ttl();
        let binds_within = if self.store().capabilities().remote {
            ttl.saturating_add(ttl.min(LEND_MAX))
        } else {
            Duration::ZERO
        };
        Ok(Reached { buckets, binds_within })
    }

    /// Fills a bucket, or the named limits of it, and forgives its debt. Returns the whole tokens
    /// that each limit gained; `None` when there is no such bucket, which is as good as full.
    pub async fn reset(
        &self,
        entity: impl IntoName<EntityId>,
        resource: impl IntoName<ResourceName>,
        only: Option<&[LimitName]>,
    ) -> Result<Option<Vec<(LimitName, i64)>>, Error> {
        let entity = entity.into_name()?;
        let resource = resource.into_name()?;
        let request = ResetRequest { entity: &entity, resource: &resource, only };
        let restored = self.admin("reset", self.store().reset(&request, &self.change())).await?;
        Ok(restored.map(|limits| {
            limits.into_iter().map(|(name, gained)| (name, gained.floor_tokens())).collect()
        }))
    }

    /// Resources with a stored configuration of their own, by name.
    pub async fn resources_with_defaults(
        &self,
        page: &PageRequest,
    ) -> Result<Page<ResourceName>, Error> {
        self.admin("resources_with_defaults", self.store().resources_with_defaults(page)).await
    }

    /// Entities with a configuration of their own for `resource`, or for all resources (`None`), by
    /// id.
    pub async fn entities_with_limits(
        &self,
        resource: Option<&ResourceName>,
        page: &PageRequest,
    ) -> Result<Page<EntityId>, Error> {
        self.admin("entities_with_limits", self.store().entities_with_limits(resource, page)).await
    }

    /// Resources for which some entity has a configuration of its own; `None` stands for all
    /// resources.
    pub async fn resources_with_entity_limits(
        &self,
        page: &PageRequest,
    ) -> Result<Page<Option<ResourceName>>, Error> {
        self.admin("resources_with_entity_limits", self.store().resources_with_entity_limits(page))
            .await
    }

    /// One part of what files of limits manage in this namespace, from 0. For tools that apply
    /// such files; `limits apply` of the command line is one.
    pub async fn managed(&self, part: u32) -> Result<Option<Managed>, Error> {
        self.admin("managed", self.store().managed(part)).await
    }

    /// Stores one part of what files of limits manage; returns its new version. Fails with
    /// `Conflict` when the part no longer has the expected version.
    pub async fn set_managed(&self, part: u32, change: &ManagedChange) -> Result<u64, Error> {
        self.admin("set_managed", self.store().set_managed(part, change, &self.change())).await
    }

    /// One administrative call within its deadline.
    pub(super) async fn admin<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Error> {
        let deadline = self.scope.shared.settings.admin_deadline;
        let stopwatch = self.stopwatch();
        let answer = timeout(self.clock(), deadline, call).instrument(admin_span(operation)).await;
        stopwatch.stop(self.clock(), metrics::admin_took);
        match answer {
            Some(result) => Ok(result?),
            None => Err(Error::Deadline { operation, after: deadline }),
        }
    }
}

/// The span of an administrative call.
pub(super) fn admin_span(operation: &'static str) -> Span {
    tracing::debug_span!("admin", operation)
}

fn warnings_about(entity: &NewEntity) -> Vec<EntityWarning> {
    match (&entity.parent, entity.cascade) {
        (Some(_), false) => vec![EntityWarning::ParentWithoutCascade],
        (None, true) => vec![EntityWarning::CascadeWithoutParent],
        _ => Vec::new(),
    }
}

/// The stored entity, if its parent and its cascade are those of the description.
fn as_described(found: Entity, described: &NewEntity) -> Result<CreatedEntity, Error> {
    if (&found.parent, found.cascade) == (&described.parent, described.cascade) {
        return Ok(CreatedEntity { entity: found, warnings: warnings_about(described) });
    }
    let lineage = |parent: &Option<EntityId>, cascade: bool| {
        let parent = parent
            .as_ref()
            .map_or_else(|| "no parent".to_owned(), |parent| format!("parent {parent}"));
        format!("{parent} and cascade {}", if cascade { "on" } else { "off" })
    };
    let message = format!(
        "entity {} exists with {}, not with {}; neither can be changed: delete it first, or describe it as it is",
        found.id,
        lineage(&found.parent, found.cascade),
        lineage(&described.parent, described.cascade)
    );
    Err(StoreError::new(StoreErrorKind::AlreadyExists, "ensure_entity", message).into())
}

/// Empties the cache for a change once the change is over, also when its caller went away: the
/// change may have landed all the same.
struct Evict<'a> {
    limiter: &'a RateLimiter,
    /// `None` for a change that concerns every entity.
    entity: Option<&'a EntityId>,
}

impl Drop for Evict<'_> {
    fn drop(&mut self) {
        match self.entity {
            Some(entity) => self.limiter.scope.cache.evict_entity(entity),
            None => self.limiter.scope.cache.evict_all(),
        }
    }
}
