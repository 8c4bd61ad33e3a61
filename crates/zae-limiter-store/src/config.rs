//! Stored configuration: entities, limits at four levels, flags.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use zae_limiter_core::{
    AuditSubject, ConfigStamp, Entity, EntityId, EventId, Flag, IntoName, Limit, LimitSource,
    NameError, Principal, ResourceName, TimeMs,
};

use crate::{Managed, ManagedChange, Page, PageRequest, StoreError, StoreFuture};

/// The author and the time of a change. The backend appends the audit event atomically with the
/// change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The author; `None` when no principal was named.
    pub principal: Option<Principal>,
    /// Why, as the audit event tells it.
    pub reason: Option<Arc<str>>,
    /// When, by the caller's clock.
    pub at: TimeMs,
    /// The id of the audit event.
    pub event: EventId,
}

/// The policy for calls while the store is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnUnavailable {
    /// Refuse: no call gets past a limit.
    Block,
    /// Let the call pass, counted and visible as degraded.
    Allow,
}

impl OnUnavailable {
    /// The word used in output and in storage.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            OnUnavailable::Block => "block",
            OnUnavailable::Allow => "allow",
        }
    }
}

impl fmt::Display for OnUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Text that is neither `allow` nor `block`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("on_unavailable {0:?} is not known; use \"allow\" or \"block\"")]
pub struct UnknownPolicy(String);

impl FromStr for OnUnavailable {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "block" => Ok(OnUnavailable::Block),
            "allow" => Ok(OnUnavailable::Allow),
            other => Err(UnknownPolicy(other.chars().take(50).collect())),
        }
    }
}

/// Where limits and flags are stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// The whole namespace.
    System,
    /// One resource.
    Resource(ResourceName),
    /// One entity, all resources (`_default_`).
    Entity(EntityId),
    /// One entity and one resource.
    EntityResource(EntityId, ResourceName),
}

impl Level {
    /// The level of a resource, from its name.
    pub fn resource(resource: impl IntoName<ResourceName>) -> Result<Level, NameError> {
        Ok(Level::Resource(resource.into_name()?))
    }

    /// The level of an entity for all resources, from its id.
    ///
    /// ```
    /// # use zae_limiter_store::Level;
    /// assert_eq!(Level::entity("key-1")?.to_string(), "entity key-1");
    /// # Ok::<_, zae_limiter_core::NameError>(())
    /// ```
    pub fn entity(entity: impl IntoName<EntityId>) -> Result<Level, NameError> {
        Ok(Level::Entity(entity.into_name()?))
    }

    /// The level of an entity on one resource, from both names.
    pub fn entity_on(
        entity: impl IntoName<EntityId>,
        resource: impl IntoName<ResourceName>,
    ) -> Result<Level, NameError> {
        Ok(Level::EntityResource(entity.into_name()?, resource.into_name()?))
    }

    /// The source that limits from this level have.
    #[must_use]
    pub fn source(&self) -> LimitSource {
        match self {
            Level::System => LimitSource::System,
            Level::Resource(_) => LimitSource::Resource,
            Level::Entity(_) => LimitSource::Entity,
            Level::EntityResource(..) => LimitSource::EntityResource,
        }
    }

    /// Under whom changes of this level are audited.
    #[must_use]
    pub fn subject(&self) -> AuditSubject {
        match self {
            Level::System => AuditSubject::System,
            Level::Resource(resource) => AuditSubject::Resource(resource.clone()),
            Level::Entity(entity) | Level::EntityResource(entity, _) => {
                AuditSubject::Entity(entity.clone())
            }
        }
    }

    /// The resource this level is about, if it is about one.
    #[must_use]
    pub fn resource_name(&self) -> Option<&ResourceName> {
        match self {
            Level::Resource(resource) | Level::EntityResource(_, resource) => Some(resource),
            Level::System | Level::Entity(_) => None,
        }
    }

    /// The entity this level is about, if it is about one.
    #[must_use]
    pub fn entity_id(&self) -> Option<&EntityId> {
        match self {
            Level::Entity(entity) | Level::EntityResource(entity, _) => Some(entity),
            Level::System | Level::Resource(_) => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::System => f.write_str("system"),
            Level::Resource(resource) => write!(f, "resource {resource}"),
            Level::Entity(entity) => write!(f, "entity {entity}"),
            Level::EntityResource(entity, resource) => write!(f, "entity {entity} on {resource}"),
        }
    }
}

/// The configuration stored at one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelConfig {
    /// The limits; empty when only a flag is stored, and then the level does not take part in the
    /// choice of limits.
    pub limits: Arc<[Limit]>,
    /// The flag; `None` is inherited from weaker levels.
    pub flag: Option<Flag>,
    /// The outage policy; system level only.
    pub on_unavailable: Option<OnUnavailable>,
    /// Whether takes go on to parents, whatever the entities say: a policy that only the Python
    /// package sets, on a table that both share.
    pub cascade: Option<bool>,
    /// Grows with every change of this level.
    pub version: u64,
}

/// New limits for one level. They replace the old ones whole; flags stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsChange {
    /// The limits; not empty, no name twice.
    pub limits: Vec<Limit>,
    /// System level only: the outage policy. `None` keeps the stored one.
    pub on_unavailable: Option<OnUnavailable>,
    /// Only if the level still has this version (0: does not exist); otherwise `Conflict`. `None`
    /// does not look.
    pub expected_version: Option<u64>,
}

/// Limits alone: the outage policy stays as it is, and the version is not looked at.
impl<L: IntoIterator<Item = Limit>> From<L> for LimitsChange {
    fn from(limits: L) -> LimitsChange {
        let limits = limits.into_iter().collect();
        LimitsChange { limits, on_unavailable: None, expected_version: None }
    }
}

/// A description of an entity to create. The first name that breaks its rule surfaces when the
/// entity is created, so that describing one never fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a description does nothing until the entity is created"]
pub struct EntityDraft {
    entity: Result<NewEntity, NameError>,
}

impl EntityDraft {
    /// Its display name, instead of its id.
    pub fn name(self, name: impl Into<String>) -> EntityDraft {
        self.with(|entity| entity.name = name.into())
    }

    /// Its parent, which must exist.
    pub fn parent(self, parent: impl IntoName<EntityId>) -> EntityDraft {
        match parent.into_name() {
            Ok(parent) => self.with(|entity| entity.parent = Some(parent)),
            Err(error) => EntityDraft { entity: self.entity.and(Err(error)) },
        }
    }

    /// Its takes are taken from its parent too.
    pub fn cascade(self) -> EntityDraft {
        self.with(|entity| entity.cascade = true)
    }

    /// A pair of free texts to remember.
    pub fn metadata(self, key: impl Into<String>, value: impl Into<String>) -> EntityDraft {
        self.with(|entity| _ = entity.metadata.insert(key.into(), value.into()))
    }

    /// The entity as described, or the first name that breaks its rule.
    pub fn build(self) -> Result<NewEntity, NameError> {
        self.entity
    }

    fn with(mut self, change: impl FnOnce(&mut NewEntity)) -> EntityDraft {
        if let Ok(entity) = &mut self.entity {
            change(entity);
        }
        self
    }
}

impl From<NewEntity> for EntityDraft {
    fn from(entity: NewEntity) -> EntityDraft {
        EntityDraft { entity: Ok(entity) }
    }
}

/// An entity to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntity {
    /// Its id.
    pub id: EntityId,
    /// Its display name.
    pub name: String,
    /// Its parent, which must exist.
    pub parent: Option<EntityId>,
    /// Whether takes go on to the parent.
    pub cascade: bool,
    /// Free text pairs.
    pub metadata: BTreeMap<String, String>,
}

impl NewEntity {
    /// Describes an entity that is called by its id, has no parent and does not cascade.
    ///
    /// ```
    /// # use zae_limiter_store::NewEntity;
    /// let key = NewEntity::new("key-1").name("Key One").parent("org-1").cascade().build()?;
    /// assert_eq!((key.name.as_str(), key.cascade), ("Key One", true));
    /// # Ok::<_, zae_limiter_core::NameError>(())
    /// ```
    #[expect(
        clippy::new_ret_no_self,
        reason = "a name that breaks its rule surfaces when the entity is created"
    )]
    pub fn new(id: impl IntoName<EntityId>) -> EntityDraft {
        let draft = |id: EntityId| NewEntity {
            name: id.to_string(),
            id,
            parent: None,
            cascade: false,
            metadata: BTreeMap::new(),
        };
        EntityDraft { entity: id.into_name().map(draft) }
    }

    /// Refuses what no backend may store; for backends to call first.
    pub fn check(&self) -> Result<(), StoreError> {
        let invalid = |message: &dyn fmt::Display| StoreError::invalid("create_entity", message);
        Entity::check_text(&self.name, &self.metadata).map_err(|error| invalid(&error))?;
        if self.parent.as_ref() == Some(&self.id) {
            return Err(invalid(&format_args!(
                "entity {} cannot be its own parent; name another, or none",
                self.id
            )));
        }
        Ok(())
    }

    /// The entity as it is stored first. `version` is larger than that of every entity that was
    /// deleted before: a version that a caller has read of an entity under this id must never fit
    /// another one.
    #[must_use]
    pub fn created_at(&self, created_at: TimeMs, version: u64) -> Entity {
        let NewEntity { id, name, parent, cascade, metadata } = self.clone();
        Entity { id, name, parent, cascade, metadata, created_at, version }
    }
}

/// A change of an entity's name or metadata; `None` keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntityUpdate {
    /// New display name.
    pub name: Option<String>,
    /// New metadata, replacing the old whole.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// The records that deleting an entity removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletedEntity {
    /// Buckets.
    pub buckets: u64,
    /// Stored configurations.
    pub configs: u64,
}

/// One (entity, resource) to resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberKey<'a> {
    /// The entity; it need not exist.
    pub entity: &'a EntityId,
    /// The resource.
    pub resource: &'a ResourceName,
}

/// The stored configuration of one (entity, resource).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// The parent takes go on to: set only when the entity exists, has a parent and cascades.
    pub cascades_to: Option<EntityId>,
    /// The strongest level with limits, and those limits.
    pub limits: Option<(Arc<[Limit]>, LimitSource)>,
    /// The flag that blocks its takes, and the level that has this flag.
    pub blocked_by: Option<(Flag, Level)>,
}

impl MemberConfig {
    /// The flag in force.
    #[must_use]
    pub fn flag(&self) -> Flag {
        self.blocked_by.as_ref().map(|(flag, _)| *flag).unwrap_or_default()
    }
}

/// The answer to one configuration read, consistent in itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// One per key, in order.
    pub members: Vec<MemberConfig>,
    /// Ancestors the members cascade to, as far as the store has read them along; none need be
    /// here.
    pub ancestors: Vec<Ancestor>,
    /// The outage policy stored at system level.
    pub on_unavailable: Option<OnUnavailable>,
    /// Freshness of the members: that of their oldest part.
    pub stamp: ConfigStamp,
    /// How long before this call the oldest part of the members was read; zero when all of it was
    /// read now.
    pub age: Duration,
}

impl Resolution {
    /// An answer read at this moment, without ancestors.
    #[must_use]
    pub fn of_now(
        members: Vec<MemberConfig>,
        on_unavailable: Option<OnUnavailable>,
        stamp: ConfigStamp,
    ) -> Resolution {
        Resolution { members, ancestors: Vec::new(), on_unavailable, stamp, age: Duration::ZERO }
    }
}

/// A member that was not asked for, read along because takes go on to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// The ancestor.
    pub entity: EntityId,
    /// Its configuration, on the resource of the member that cascades to it.
    pub config: MemberConfig,
    /// As [`Resolution::stamp`].
    pub stamp: ConfigStamp,
    /// As [`Resolution::age`].
    pub age: Duration,
}

/// Entities, limits and flags.
///
/// Every write takes a [`Change`] and appends its audit event in the same transaction.
pub trait ConfigStore: Send + Sync {
    /// Creates an entity. `AlreadyExists`; `NotFound` for a missing parent; `Invalid` for an entity
    /// that is its own parent or a cascade longer than [`zae_limiter_core::CHAIN_MAX`].
    fn create_entity<'a>(
        &'a self,
        entity: &'a NewEntity,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity>;

    /// Looks an entity up.
    fn entity<'a>(&'a self, id: &'a EntityId) -> StoreFuture<'a, Option<Entity>>;

    /// Changes name or metadata if the entity still has `expected_version`; otherwise `Conflict`. A
    /// version never comes back, not even when the entity is deleted and created anew.
    fn update_entity<'a>(
        &'a self,
        id: &'a EntityId,
        expected_version: u64,
        update: &'a EntityUpdate,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity>;

    /// Deletes an entity with its buckets and configuration. `NotFound`; `State` while it has
    /// children, naming some. A deletion that is refused has changed nothing; one that fails half
    /// way is recorded, admits nothing by weaker limits than before, and is finished by the next
    /// one. Usage and audit history stay until their retention ends.
    fn delete_entity<'a>(
        &'a self,
        id: &'a EntityId,
        change: &'a Change,
    ) -> StoreFuture<'a, DeletedEntity>;

    /// Direct children, by id.
    fn children<'a>(
        &'a self,
        parent: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<Entity>>;

    /// All entities, by id.
    fn entities<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Entity>>;

    /// Stores limits at a level; returns the level's new version. `Conflict` when the version
    /// expected is not the one there is; `Capacity` when a registry of the backend can name no more
    /// resources.
    fn set_limits<'a>(
        &'a self,
        level: &'a Level,
        limits: &'a LimitsChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64>;

    /// Removes the limits of a level (and the system's outage policy); a flag stays. False when
    /// there were none.
    fn delete_limits<'a>(&'a self, level: &'a Level, change: &'a Change) -> StoreFuture<'a, bool>;

    /// Sets the flag of a level, or removes it (`None`: the level inherits again).
    /// From its return on no bucket it reached and no bucket made later grants anything while
    /// disabled; a remote store may miss a bucket that its index does not list yet, which then
    /// refuses when its takers read the configuration again. `Invalid` for the system level.
    /// Returns how many existing buckets it reached.
    fn set_flag<'a>(
        &'a self,
        level: &'a Level,
        flag: Option<Flag>,
        change: &'a Change,
    ) -> StoreFuture<'a, u64>;

    /// The configuration stored at a level.
    fn level<'a>(&'a self, level: &'a Level) -> StoreFuture<'a, Option<LevelConfig>>;

    /// Everything an acquire needs to know about these members, in one round trip. `NotFound` when
    /// the namespace is no longer active.
    fn resolve<'a>(&'a self, keys: &'a [MemberKey<'a>]) -> StoreFuture<'a, Resolution>;

    /// As [`ConfigStore::resolve`], for callers that keep the answer: parts of it may have been
    /// read before, but less than `age_max` ago, and ancestors may come along. A store that
    /// remembers no configuration reads.
    fn resolve_within<'a>(
        &'a self,
        keys: &'a [MemberKey<'a>],
        age_max: Duration,
    ) -> StoreFuture<'a, Resolution> {
        let _ = age_max;
        self.resolve(keys)
    }

    /// Forgets the configuration that the store itself remembers: the next
    /// [`ConfigStore::resolve_within`] reads.
    fn forget_config(&self) {}

    /// Resources with a stored configuration of their own, by name.
    fn resources_with_defaults<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<ResourceName>>;

    /// Entities with a stored configuration for `resource` (`None`: for all resources,
    /// `_default_`), by id.
    fn entities_with_limits<'a>(
        &'a self,
        resource: Option<&'a ResourceName>,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<EntityId>>;

    /// Resources for which some entity has a stored configuration, by name; `None` stands for all
    /// resources.
    fn resources_with_entity_limits<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<Option<ResourceName>>>;

    /// One part of what files of limits manage in this namespace, from 0; `None` for a part that
    /// was never stored.
    fn managed<'a>(&'a self, part: u32) -> StoreFuture<'a, Option<Managed>>;

    /// Stores one part of what files of limits manage; returns its new version. `Conflict` when the
    /// version expected is not the one there is: of two that apply files at once, one notices.
    fn set_managed<'a>(
        &'a self,
        part: u32,
        managed: &'a ManagedChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64>;
}
