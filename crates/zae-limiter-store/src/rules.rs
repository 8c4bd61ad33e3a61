//! The rules of the stored configuration, once for all backends: which level decides, what a valid
//! change is, how long a chain may get. A backend reads and writes; whether a change is right is
//! decided here.

use std::sync::Arc;

use zae_limiter_core::{CHAIN_MAX, Entity, EntityId, Flag, Limit, LimitSource, check_limits};

use crate::{
    EntityUpdate, Level, LevelConfig, LimitsChange, MemberConfig, MemberKey, Namespace,
    NamespaceStatus, NewEntity, StoreError, StoreErrorKind,
};

/// The sources of [`MemberKey::levels`].
const SOURCES: [LimitSource; 4] =
    [LimitSource::EntityResource, LimitSource::Entity, LimitSource::Resource, LimitSource::System];

impl MemberKey<'_> {
    /// The levels that say something about this member, strongest first.
    #[must_use]
    pub fn levels(&self) -> [Level; 4] {
        let (entity, resource) = (self.entity, self.resource);
        [
            Level::EntityResource(entity.clone(), resource.clone()),
            Level::Entity(entity.clone()),
            Level::Resource(resource.clone()),
            Level::System,
        ]
    }
}

impl MemberConfig {
    /// What the levels of a member come to. `levels` are those of [`MemberKey::levels`], as the
    /// backend has them stored; `limits` and `flag` read one of them. The strongest level with
    /// limits supplies them, the strongest with a flag decides whether the member is disabled. A
    /// level that a stronger one outweighs is not read, so nothing in it can fail.
    ///
    /// Example: the system allows 100 a minute, the resource is disabled, and the entity has a flag
    /// "enabled" and no limits of its own: the member is enabled, under the system's limits.
    pub fn resolve<L, E>(
        key: &MemberKey<'_>,
        cascades_to: Option<EntityId>,
        levels: &[Option<L>; 4],
        limits: impl Fn(&L) -> Result<Option<Arc<[Limit]>>, E>,
        flag: impl Fn(&L) -> Result<Option<Flag>, E>,
    ) -> Result<MemberConfig, E> {
        let mut in_force = None;
        for (stored, source) in levels.iter().zip(SOURCES) {
            let found = stored.as_ref().map(&limits).transpose()?.flatten();
            if let Some(limits) = found {
                in_force = Some((limits, source));
                break;
            }
        }
        let decisive = decisive_flag(levels[..3].iter().map(Option::as_ref), flag)?;
        let blocked_by = decisive
            .filter(|(flag, _)| flag.blocks())
            .and_then(|(flag, place)| Some((flag, key.levels().into_iter().nth(place)?)));
        Ok(MemberConfig { cascades_to, limits: in_force, blocked_by })
    }
}

/// The flag of the strongest level that has one, and the place of that level. `levels` are the
/// first three of [`MemberKey::levels`]: the system has no flag.
pub fn decisive_flag<'a, L: 'a, E>(
    levels: impl IntoIterator<Item = Option<&'a L>>,
    flag: impl Fn(&'a L) -> Result<Option<Flag>, E>,
) -> Result<Option<(Flag, usize)>, E> {
    for (place, level) in levels.into_iter().enumerate() {
        if let Some(flag) = level.map(&flag).transpose()?.flatten() {
            return Ok(Some((flag, place)));
        }
    }
    Ok(None)
}

impl LimitsChange {
    /// Refuses limits that no backend may store at `level`; for backends to call first.
    pub fn check(&self, level: &Level) -> Result<(), StoreError> {
        let invalid = |message: String| StoreError::invalid("set_limits", message);
        if self.limits.is_empty() {
            return Err(invalid(
                "no limits are given; give at least one, or delete the limits of the level".into(),
            ));
        }
        check_limits(&self.limits).map_err(|error| invalid(error.to_string()))?;
        if self.on_unavailable.is_some() && *level != Level::System {
            return Err(invalid(format!(
                "on_unavailable is stored at system level only, not for {level}"
            )));
        }
        Ok(())
    }

    /// `Conflict` unless `found` is the version the caller expects, if it expects one.
    pub fn check_version(&self, level: &Level, found: u64) -> Result<(), StoreError> {
        match self.expected_version {
            Some(expected) if expected != found => Err(StoreError::conflict(
                "set_limits",
                format_args!("the configuration of {level}"),
                expected,
                found,
            )),
            _ => Ok(()),
        }
    }
}

impl Level {
    /// Refuses a flag for the system level; for backends to call first.
    pub fn check_flag(&self) -> Result<(), StoreError> {
        match self {
            Level::System => Err(StoreError::invalid(
                "set_flag",
                "the system level cannot be disabled; disable a resource or an entity",
            )),
            Level::Resource(_) | Level::Entity(_) | Level::EntityResource(..) => Ok(()),
        }
    }
}

impl LevelConfig {
    /// The limits, unless there are none: a level without takes no part in the choice.
    #[must_use]
    pub fn own_limits(&self) -> Option<Arc<[Limit]>> {
        (!self.limits.is_empty()).then(|| Arc::clone(&self.limits))
    }

    /// True when nothing is left to store.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.flag.is_none()
    }

    /// Replaces the limits whole. The flag stays, and so does an outage policy that the change does
    /// not name.
    pub fn replace_limits(&mut self, new: &LimitsChange) {
        self.limits = new.limits.as_slice().into();
        self.on_unavailable = new.on_unavailable.or(self.on_unavailable);
    }

    /// Removes the limits and the outage policy. The flag stays.
    pub fn clear_limits(&mut self) {
        self.limits = Arc::default();
        self.on_unavailable = None;
    }
}

impl EntityUpdate {
    /// The entity as it is stored next. `Conflict` when it no longer has the expected version,
    /// `Invalid` for a text no backend may store. What the update keeps is not checked: another
    /// writer may have stored it by other rules.
    pub fn apply(&self, before: &Entity, expected_version: u64) -> Result<Entity, StoreError> {
        const OPERATION: &str = "update_entity";
        if before.version != expected_version {
            let what = format_args!("entity {}", before.id);
            return Err(StoreError::conflict(OPERATION, what, expected_version, before.version));
        }
        let none = Default::default();
        let (name, metadata) =
            (self.name.as_deref().unwrap_or("kept"), self.metadata.as_ref().unwrap_or(&none));
        Entity::check_text(name, metadata)
            .map_err(|error| StoreError::invalid(OPERATION, error))?;
        Ok(Entity {
            name: self.name.clone().unwrap_or_else(|| before.name.clone()),
            metadata: self.metadata.clone().unwrap_or_else(|| before.metadata.clone()),
            version: before.version + 1,
            ..before.clone()
        })
    }
}

/// The ancestors of an entity that is about to be created, read one by one by a backend: the parent
/// must exist, and takes must not go on further than [`CHAIN_MAX`] allows.
///
/// ```
/// # use zae_limiter_store::{Lineage, NewEntity};
/// let key = NewEntity::new("key-1").parent("org-1").cascade().build()?;
/// let mut lineage = Lineage::of(&key);
/// while let Some(id) = lineage.wanted() {
///     // Read the record of `id`. Here org-1 exists, and its takes go on to nobody.
///     assert_eq!(id.as_str(), "org-1");
///     lineage.found(Some(None))?;
/// }
/// assert_eq!(lineage.into_ancestors().len(), 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Lineage<'a> {
    new: &'a NewEntity,
    wanted: Option<EntityId>,
    ancestors: Vec<EntityId>,
}

impl<'a> Lineage<'a> {
    /// Begins with the parent of `new`.
    #[must_use]
    pub fn of(new: &'a NewEntity) -> Lineage<'a> {
        Lineage { new, wanted: new.parent.clone(), ancestors: Vec::new() }
    }

    /// Whose record is to be read next; `None` at the end.
    #[must_use]
    pub fn wanted(&self) -> Option<&EntityId> {
        self.wanted.as_ref()
    }

    /// What the record of [`Lineage::wanted`] says: the parent its takes go on to, if they do.
    /// `None` when there is no record: an ancestor that is missing ends the chain, a missing parent
    /// begins none.
    pub fn found(&mut self, record: Option<Option<EntityId>>) -> Result<(), StoreError> {
        const OPERATION: &str = "create_entity";
        let Some(id) = self.wanted.take() else { return Ok(()) };
        match record {
            None if self.ancestors.is_empty() => {
                return Err(StoreError::entity_missing(OPERATION, &id));
            }
            Some(next) if self.new.cascade => {
                self.ancestors.push(id);
                self.wanted = next;
            }
            None | Some(_) => {}
        }
        if self.ancestors.len() >= CHAIN_MAX {
            let message = format!(
                "entity {} would cascade to more than {} ancestors; attach it higher up",
                self.new.id,
                CHAIN_MAX - 1
            );
            return Err(StoreError::invalid(OPERATION, message));
        }
        Ok(())
    }

    /// The ancestors that takes of the new entity go on to, the parent first.
    #[must_use]
    pub fn into_ancestors(self) -> Vec<EntityId> {
        self.ancestors
    }
}

impl Namespace {
    /// `State` unless the namespace can be recovered. `is_name_taken` says whether an active
    /// namespace has its name by now.
    pub fn check_recoverable(&self, is_name_taken: bool) -> Result<(), StoreError> {
        let Namespace { id, name, .. } = self;
        let message = match self.status {
            NamespaceStatus::Active => {
                format!("namespace {id} is active; there is nothing to recover")
            }
            NamespaceStatus::Purging => {
                format!("namespace {id} is being purged; it cannot be recovered any more")
            }
            NamespaceStatus::Deleted if is_name_taken => format!(
                "the name \"{name}\" of namespace {id} has been taken; delete its present holder first"
            ),
            NamespaceStatus::Deleted => return Ok(()),
        };
        Err(StoreError::new(StoreErrorKind::State, "recover_namespace", message))
    }

    /// `State` for an active namespace: only a deleted one is purged.
    pub fn check_purgeable(&self) -> Result<(), StoreError> {
        let Namespace { id, name, .. } = self;
        if self.status != NamespaceStatus::Active {
            return Ok(());
        }
        let message = format!("namespace {id} (\"{name}\") is active; delete it before purging it");
        Err(StoreError::new(StoreErrorKind::State, "purge_namespace", message))
    }
}
