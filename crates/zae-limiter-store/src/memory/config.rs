//! Entities, limits and flags.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use zae_limiter_core::{
    AuditAction, AuditSubject, CHAIN_MAX, ConfigStamp, Entity, EntityId, Limit, LimitSource,
    ResourceName, check_limits,
};

use super::directory::{Config, Deed, Directory, Source, Stored, Tenant, not_active};
use super::{MemoryStore, invalid, lazily};
use crate::details;
use crate::{
    BoxFuture, Change, ConfigStore, Cursor, DeletedEntity, EntityUpdate, Level, LevelConfig,
    LimitsChange, MemberConfig, MemberKey, NewEntity, Page, PageRequest, Resolution, StoreError,
    StoreErrorKind,
};

/// How many children the refusal to delete their parent names.
const CHILDREN_NAMED_MAX: usize = 10;

impl ConfigStore for MemoryStore {
    fn create_entity<'a>(
        &'a self,
        entity: &'a NewEntity,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Entity, StoreError>> {
        lazily(move || self.create_entity_now(entity, change))
    }

    fn entity<'a>(&'a self, id: &'a EntityId) -> BoxFuture<'a, Result<Option<Entity>, StoreError>> {
        lazily(move || self.read("entity", |config| config.entities.get(id).cloned()))
    }

    fn update_entity<'a>(
        &'a self,
        id: &'a EntityId,
        expected_version: u64,
        update: &'a EntityUpdate,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Entity, StoreError>> {
        lazily(move || self.update_entity_now(id, expected_version, update, change))
    }

    fn delete_entity<'a>(
        &'a self,
        id: &'a EntityId,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<DeletedEntity, StoreError>> {
        lazily(move || self.delete_entity_now(id, change))
    }

    fn children<'a>(
        &'a self,
        parent: &'a EntityId,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<Entity>, StoreError>> {
        lazily(move || {
            self.read("children", |config| {
                let ids = config
                    .children
                    .get(parent)
                    .into_iter()
                    .flat_map(|ids| ids.range::<str, _>(after(page)));
                paged(ids.filter_map(|id| config.entities.get(id).cloned()), page, |entity| {
                    entity.id.to_string()
                })
            })
        })
    }

    fn entities<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<Entity>, StoreError>> {
        lazily(move || {
            self.read("entities", |config| {
                let entities =
                    config.entities.range::<str, _>(after(page)).map(|(_, entity)| entity.clone());
                paged(entities, page, |entity| entity.id.to_string())
            })
        })
    }

    fn set_limits<'a>(
        &'a self,
        level: &'a Level,
        limits: &'a LimitsChange,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        lazily(move || self.set_limits_now(level, limits, change))
    }

    fn delete_limits<'a>(
        &'a self,
        level: &'a Level,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        lazily(move || self.delete_limits_now(level, change))
    }

    fn set_disabled<'a>(
        &'a self,
        level: &'a Level,
        disabled: Option<bool>,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        lazily(move || self.set_disabled_now(level, disabled, change))
    }

    fn level<'a>(
        &'a self,
        level: &'a Level,
    ) -> BoxFuture<'a, Result<Option<LevelConfig>, StoreError>> {
        lazily(move || self.read("level", |config| config.get(level).map(Stored::to_level_config)))
    }

    fn resolve<'a>(
        &'a self,
        keys: &'a [MemberKey<'a>],
    ) -> BoxFuture<'a, Result<Resolution, StoreError>> {
        lazily(move || {
            self.read("resolve", |config| {
                let members = keys.iter().map(|key| resolve_member(config, key)).collect();
                let on_unavailable =
                    config.system.as_ref().and_then(|stored| stored.on_unavailable);
                Resolution::of_now(members, on_unavailable, ConfigStamp(config.generation))
            })
        })
    }

    fn resources_with_defaults<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<ResourceName>, StoreError>> {
        lazily(move || {
            self.read("resources_with_defaults", |config| {
                paged(
                    config.resources.range::<str, _>(after(page)).map(|(name, _)| name.clone()),
                    page,
                    ToString::to_string,
                )
            })
        })
    }

    fn entities_with_limits<'a>(
        &'a self,
        resource: Option<&'a ResourceName>,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<EntityId>, StoreError>> {
        lazily(move || {
            self.read("entities_with_limits", |config| {
                let with_config = config.owners.range::<str, _>(after(page)).filter(
                    |(_, owner)| match resource {
                        Some(resource) => owner.resources.contains_key(resource),
                        None => owner.all.is_some(),
                    },
                );
                paged(with_config.map(|(id, _)| id.clone()), page, ToString::to_string)
            })
        })
    }

    fn resources_with_entity_limits<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<Option<ResourceName>>, StoreError>> {
        lazily(move || {
            self.read("resources_with_entity_limits", |config| {
                // "All resources" comes first, and its cursor is the empty text.
                let text = |resource: &Option<ResourceName>| {
                    resource.as_ref().map_or(String::new(), ToString::to_string)
                };
                let mut found: BTreeSet<Option<ResourceName>> = BTreeSet::new();
                for owner in config.owners.values() {
                    found.extend(owner.all.iter().map(|_| None));
                    found.extend(owner.resources.keys().cloned().map(Some));
                }
                let rest = found.into_iter().filter(|resource| {
                    page.cursor().is_none_or(|cursor| text(resource) > cursor.0)
                });
                paged(rest, page, text)
            })
        })
    }
}

impl MemoryStore {
    fn create_entity_now(&self, new: &NewEntity, change: &Change) -> Result<Entity, StoreError> {
        const OPERATION: &str = "create_entity";
        new.check()?;
        self.write(OPERATION, change, |config| {
            if config.entities.contains_key(&new.id) {
                let message =
                    format!("entity {} exists already; update it, or choose another id", new.id);
                return Err(StoreError::new(StoreErrorKind::AlreadyExists, OPERATION, message));
            }
            check_chain(config, new)?;
            let entity = new.created_at(change.at, config.entity_versions_gone + 1);
            if let Some(parent) = &new.parent {
                config.children.entry(parent.clone()).or_default().insert(new.id.clone());
            }
            config.entities.insert(new.id.clone(), entity.clone());
            let mut details = details::entity(&entity);
            details
                .extend(new.parent.iter().map(|parent| ("parent".to_owned(), parent.to_string())));
            details.push(("cascade".to_owned(), new.cascade.to_string()));
            Ok((entity, Some(entity_deed(AuditAction::EntityCreated, &new.id, details))))
        })
    }

    fn update_entity_now(
        &self,
        id: &EntityId,
        expected_version: u64,
        update: &EntityUpdate,
        change: &Change,
    ) -> Result<Entity, StoreError> {
        const OPERATION: &str = "update_entity";
        self.write(OPERATION, change, |config| {
            let entity = config.entities.get_mut(id).ok_or_else(|| no_entity(OPERATION, id))?;
            if entity.version != expected_version {
                return Err(conflict(
                    OPERATION,
                    &format!("entity {id}"),
                    expected_version,
                    entity.version,
                ));
            }
            let name = update.name.as_ref().unwrap_or(&entity.name);
            let metadata = update.metadata.as_ref().unwrap_or(&entity.metadata);
            check_text(OPERATION, name, metadata)?;
            let changed = Entity {
                name: name.clone(),
                metadata: metadata.clone(),
                version: entity.version + 1,
                ..entity.clone()
            };
            let details = details::entity_updated(&changed, entity);
            entity.clone_from(&changed);
            Ok((changed, Some(entity_deed(AuditAction::EntityUpdated, id, details))))
        })
    }

    fn delete_entity_now(
        &self,
        id: &EntityId,
        change: &Change,
    ) -> Result<DeletedEntity, StoreError> {
        const OPERATION: &str = "delete_entity";
        let configs = self.write(OPERATION, change, |config| {
            let entity = config.entities.get(id).ok_or_else(|| no_entity(OPERATION, id))?;
            if let Some(children) = config.children.get(id) {
                return Err(has_children(id, children));
            }
            if let Some(parent) = entity.parent.clone()
                && let Some(siblings) = config.children.get_mut(&parent)
            {
                siblings.remove(id);
                if siblings.is_empty() {
                    config.children.remove(&parent);
                }
            }
            if let Some(entity) = config.entities.remove(id) {
                config.entity_versions_gone = config.entity_versions_gone.max(entity.version);
            }
            let configs = config.remove_owner(id);
            Ok((
                configs,
                Some(entity_deed(
                    AuditAction::EntityDeleted,
                    id,
                    vec![("configs".to_owned(), configs.to_string())],
                )),
            ))
        })?;
        // After the configuration: a bucket created in between already follows what is left of it.
        let mut buckets = 0;
        self.shared.each_shard(|shard| {
            let doomed = |entry: &super::table::Entry| {
                entry.scope.number == self.number && entry.entity() == id.as_str()
            };
            let removed = shard.remove_where(doomed, self.shared.options.usage_rows_max);
            self.shared.give_back_room(removed);
            buckets += removed as u64;
        });
        Ok(DeletedEntity { buckets, configs })
    }

    fn set_limits_now(
        &self,
        level: &Level,
        new: &LimitsChange,
        change: &Change,
    ) -> Result<u64, StoreError> {
        const OPERATION: &str = "set_limits";
        if new.limits.is_empty() {
            return Err(invalid(
                OPERATION,
                "no limits are given; give at least one, or delete the limits of the level",
            ));
        }
        check_limits(&new.limits).map_err(|error| invalid(OPERATION, error.to_string()))?;
        if new.on_unavailable.is_some() && *level != Level::System {
            let message = format!("on_unavailable is stored at system level only, not for {level}");
            return Err(invalid(OPERATION, message));
        }
        self.write(OPERATION, change, |config| {
            let version = config.get(level).map_or(0, |stored| stored.version);
            if let Some(expected) = new.expected_version.filter(|expected| *expected != version) {
                return Err(conflict(
                    OPERATION,
                    &format!("the configuration of {level}"),
                    expected,
                    version,
                ));
            }
            let limits: Arc<[Limit]> = new.limits.clone().into();
            let details = details::limits_set(
                new,
                &config.get(level).map(Stored::to_level_config).unwrap_or_default(),
            );
            let version = config.edit(level, |stored| {
                stored.limits = limits;
                stored.on_unavailable = new.on_unavailable.or(stored.on_unavailable);
            });
            Ok((version, Some(level_deed(AuditAction::LimitsSet, level, details))))
        })
    }

    fn delete_limits_now(&self, level: &Level, change: &Change) -> Result<bool, StoreError> {
        self.write("delete_limits", change, |config| {
            let stored = config
                .get(level)
                .filter(|stored| !stored.limits.is_empty() || stored.on_unavailable.is_some());
            let Some(stored) = stored else { return Ok((false, None)) };
            let details = details::limits(&stored.limits);
            config.edit(level, |stored| {
                stored.limits = Arc::default();
                stored.on_unavailable = None;
            });
            Ok((true, Some(level_deed(AuditAction::LimitsDeleted, level, details))))
        })
    }

    fn set_disabled_now(
        &self,
        level: &Level,
        disabled: Option<bool>,
        change: &Change,
    ) -> Result<u64, StoreError> {
        const OPERATION: &str = "set_disabled";
        if *level == Level::System {
            return Err(invalid(
                OPERATION,
                "the system level cannot be disabled; disable a resource or an entity",
            ));
        }
        self.write(OPERATION, change, |config| {
            let details =
                details::flag(disabled, config.get(level).and_then(|stored| stored.disabled));
            config.edit(level, |stored| stored.disabled = disabled);
            Ok(((), Some(level_deed(AuditAction::FlagsSet, level, details))))
        })?;
        // The flag is stored first and the buckets come second. A bucket that is being created
        // meanwhile has either read the flag, or is there before its shard is visited.
        let mut reached = 0;
        self.shared.each_shard(|shard| {
            let directory = self.shared.read_directory();
            let config = &directory.tenant(self.number).config;
            let entity = level.entity_id().map(EntityId::as_str);
            for entry in shard.table.iter_mut().filter(|entry| entry.scope.number == self.number) {
                let covered = entity.is_none_or(|entity| entry.entity() == entity)
                    && level
                        .resource_name()
                        .is_none_or(|resource| entry.scope.resource == *resource);
                if covered {
                    entry.state.disabled =
                        config.disabled_by(entry.entity(), &entry.scope.resource).is_some();
                    reached += 1;
                }
            }
        });
        Ok(reached)
    }

    /// A consistent read of an active namespace.
    fn read<T>(
        &self,
        operation: &'static str,
        look: impl FnOnce(&Config) -> T,
    ) -> Result<T, StoreError> {
        let directory = self.shared.read_directory();
        let tenant = directory.tenant(self.number);
        if tenant.is_active() {
            Ok(look(&tenant.config))
        } else {
            Err(not_active(&self.name, operation))
        }
    }

    /// A change of an active namespace and its audit event, as one step. Without a deed nothing was
    /// changed.
    fn write<T>(
        &self,
        operation: &'static str,
        change: &Change,
        make: impl FnOnce(&mut Config) -> Result<(T, Option<Deed>), StoreError>,
    ) -> Result<T, StoreError> {
        let mut directory: std::sync::RwLockWriteGuard<'_, Directory> =
            self.shared.write_directory();
        let tenant: &mut Tenant = directory.tenant_mut(self.number);
        if !tenant.is_active() {
            return Err(not_active(&self.name, operation));
        }
        let generation = tenant.config.generation;
        let (answer, deed) = make(&mut tenant.config)?;
        if let Some(deed) = deed {
            tenant.config.generation = generation + 1;
            tenant.audit.record(change, deed, self.shared.options.audit_events_max);
        }
        Ok(answer)
    }
}

pub(super) fn resolve_member(config: &Config, key: &MemberKey<'_>) -> MemberConfig {
    let owner = config.owners.get(key.entity);
    let levels = [
        (LimitSource::EntityResource, owner.and_then(|owner| owner.resources.get(key.resource))),
        (LimitSource::Entity, owner.and_then(|owner| owner.all.as_ref())),
        (LimitSource::Resource, config.resources.get(key.resource)),
        (LimitSource::System, config.system.as_ref()),
    ];
    let with_limits = levels.into_iter().find_map(|(source, stored)| {
        Some((source, stored.filter(|stored| !stored.limits.is_empty())?))
    });
    let entity = config.entities.get(key.entity).filter(|entity| entity.cascade);
    MemberConfig {
        cascades_to: entity.and_then(|entity| entity.parent.clone()),
        limits: with_limits.map(|(source, stored)| (Arc::clone(&stored.limits), source)),
        disabled_by: config.disabled_by(key.entity.as_str(), key.resource).map(
            |source| match source {
                Source::EntityResource => {
                    Level::EntityResource(key.entity.clone(), key.resource.clone())
                }
                Source::Entity => Level::Entity(key.entity.clone()),
                Source::Resource => Level::Resource(key.resource.clone()),
            },
        ),
    }
}

/// The parent must exist, and a take must not go on further than a chain may be long.
fn check_chain(config: &Config, new: &NewEntity) -> Result<(), StoreError> {
    let Some(parent) = &new.parent else { return Ok(()) };
    let mut ancestor =
        config.entities.get(parent).ok_or_else(|| no_entity("create_entity", parent))?;
    let mut length = 2;
    while new.cascade && length <= CHAIN_MAX {
        let next = ancestor
            .parent
            .as_ref()
            .filter(|_| ancestor.cascade)
            .and_then(|id| config.entities.get(id));
        let Some(next) = next else { return Ok(()) };
        ancestor = next;
        length += 1;
    }
    if length > CHAIN_MAX {
        let message = format!(
            "entity {} would cascade to more than {} ancestors; attach it higher up",
            new.id,
            CHAIN_MAX - 1
        );
        return Err(invalid("create_entity", message));
    }
    Ok(())
}

fn check_text(
    operation: &'static str,
    name: &str,
    metadata: &BTreeMap<String, String>,
) -> Result<(), StoreError> {
    Entity::check_text(name, metadata).map_err(|error| invalid(operation, error.to_string()))
}

fn no_entity(operation: &'static str, id: &EntityId) -> StoreError {
    StoreError::new(
        StoreErrorKind::NotFound,
        operation,
        format!("entity {id} does not exist; create it first"),
    )
}

fn conflict(operation: &'static str, what: &str, expected: u64, found: u64) -> StoreError {
    let message = format!(
        "{what} is at version {found}, not {expected}: somebody changed it; read it again, then decide again"
    );
    StoreError::new(StoreErrorKind::Conflict, operation, message)
}

fn has_children(id: &EntityId, children: &BTreeSet<EntityId>) -> StoreError {
    let named: Vec<&str> = children.iter().take(CHILDREN_NAMED_MAX).map(EntityId::as_str).collect();
    let more = match children.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message =
        format!("entity {id} has children ({}{more}); delete them first", named.join(", "));
    StoreError::new(StoreErrorKind::State, "delete_entity", message)
}

fn entity_deed(action: AuditAction, id: &EntityId, details: Vec<(String, String)>) -> Deed {
    Deed { action, subject: AuditSubject::Entity(id.clone()), resource: None, details }
}

fn level_deed(action: AuditAction, level: &Level, details: Vec<(String, String)>) -> Deed {
    Deed { action, subject: level.subject(), resource: level.resource_name().cloned(), details }
}

/// What comes after the cursor of a page, for keys that are texts.
pub(super) fn after(page: &PageRequest) -> (Bound<&str>, Bound<&str>) {
    (
        page.cursor().map_or(Bound::Unbounded, |cursor| Bound::Excluded(cursor.0.as_str())),
        Bound::Unbounded,
    )
}

/// The first items of a sequence that begins after the page's cursor.
pub(super) fn paged<T>(
    items: impl Iterator<Item = T>,
    page: &PageRequest,
    cursor: impl Fn(&T) -> String,
) -> Page<T> {
    let size = usize::try_from(page.limit()).unwrap_or(usize::MAX);
    let mut items = items;
    let taken: Vec<T> = items.by_ref().take(size).collect();
    let more = items.next().is_some();
    let next = taken.last().filter(|_| more).map(|last| Cursor(cursor(last)));
    Page { items: taken, next }
}
