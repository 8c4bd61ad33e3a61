//! Entities, limits and flags.

use std::collections::BTreeSet;
use std::convert::Infallible;

use zae_limiter_core::{AuditEvent, ConfigStamp, Entity, EntityId, Flag, ResourceName};

use super::directory::{Config, OwnerConfig};
use super::page::{after, paged};
use super::{MemoryStore, lazily};
use crate::audit;
use crate::{
    Change, ConfigStore, DeletedEntity, EntityUpdate, Level, LevelConfig, LimitsChange, Managed,
    ManagedChange, MemberConfig, MemberKey, NewEntity, Page, PageRequest, Resolution, StoreError,
    StoreFuture,
};

impl ConfigStore for MemoryStore {
    fn create_entity<'a>(
        &'a self,
        entity: &'a NewEntity,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity> {
        lazily(move || self.create_entity_now(entity, change))
    }

    fn entity<'a>(&'a self, id: &'a EntityId) -> StoreFuture<'a, Option<Entity>> {
        self.reading("entity", |config| config.entities.get(id).cloned())
    }

    fn update_entity<'a>(
        &'a self,
        id: &'a EntityId,
        expected_version: u64,
        update: &'a EntityUpdate,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity> {
        lazily(move || self.update_entity_now(id, expected_version, update, change))
    }

    fn delete_entity<'a>(
        &'a self,
        id: &'a EntityId,
        change: &'a Change,
    ) -> StoreFuture<'a, DeletedEntity> {
        lazily(move || self.delete_entity_now(id, change))
    }

    fn children<'a>(
        &'a self,
        parent: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<Entity>> {
        self.reading("children", |config| {
            let ids = config.children.get(parent).into_iter();
            let rest = ids.flat_map(|ids| ids.range::<str, _>(after(page)));
            let found = rest.filter_map(|id| config.entities.get(id).cloned());
            paged(found, page, |entity| entity.id.to_string())
        })
    }

    fn entities<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Entity>> {
        self.reading("entities", |config| {
            let rest = config.entities.range::<str, _>(after(page));
            paged(rest.map(|(_, entity)| entity.clone()), page, |entity| entity.id.to_string())
        })
    }

    fn set_limits<'a>(
        &'a self,
        level: &'a Level,
        limits: &'a LimitsChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        lazily(move || self.set_limits_now(level, limits, change))
    }

    fn delete_limits<'a>(&'a self, level: &'a Level, change: &'a Change) -> StoreFuture<'a, bool> {
        lazily(move || self.delete_limits_now(level, change))
    }

    fn set_flag<'a>(
        &'a self,
        level: &'a Level,
        flag: Option<Flag>,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        lazily(move || self.set_flag_now(level, flag, change))
    }

    fn level<'a>(&'a self, level: &'a Level) -> StoreFuture<'a, Option<LevelConfig>> {
        self.reading("level", |config| config.get(level).cloned())
    }

    fn resolve<'a>(&'a self, keys: &'a [MemberKey<'a>]) -> StoreFuture<'a, Resolution> {
        self.reading("resolve", |config| {
            let members = keys.iter().map(|key| resolve_member(config, key)).collect();
            let on_unavailable = config.system.as_ref().and_then(|stored| stored.on_unavailable);
            Resolution::of_now(members, on_unavailable, ConfigStamp(config.generation))
        })
    }

    fn resources_with_defaults<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<ResourceName>> {
        self.reading("resources_with_defaults", |config| {
            let rest = config.resources.range::<str, _>(after(page));
            paged(rest.map(|(name, _)| name.clone()), page, ToString::to_string)
        })
    }

    fn entities_with_limits<'a>(
        &'a self,
        resource: Option<&'a ResourceName>,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<EntityId>> {
        self.reading("entities_with_limits", move |config| {
            let has_limits = |owner: &OwnerConfig| match resource {
                Some(resource) => owner.resources.contains_key(resource),
                None => owner.all.is_some(),
            };
            let rest = config.owners.range::<str, _>(after(page));
            let found = rest.filter(|(_, owner)| has_limits(owner)).map(|(id, _)| id.clone());
            paged(found, page, ToString::to_string)
        })
    }

    fn resources_with_entity_limits<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<Option<ResourceName>>> {
        self.reading("resources_with_entity_limits", |config| {
            // "All resources" comes first, and its cursor is the empty text.
            let text = |resource: &Option<ResourceName>| {
                resource.as_ref().map_or(String::new(), ToString::to_string)
            };
            let mut found: BTreeSet<Option<ResourceName>> = BTreeSet::new();
            for owner in config.owners.values() {
                found.extend(owner.all.iter().map(|_| None));
                found.extend(owner.resources.keys().cloned().map(Some));
            }
            found.retain(|resource| page.cursor().is_none_or(|cursor| text(resource) > cursor.0));
            paged(found.into_iter(), page, text)
        })
    }

    fn managed<'a>(&'a self, part: u32) -> StoreFuture<'a, Option<Managed>> {
        self.reading("managed", move |config| config.managed.get(&part).cloned())
    }

    fn set_managed<'a>(
        &'a self,
        part: u32,
        managed: &'a ManagedChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        lazily(move || self.set_managed_now(part, managed, change))
    }
}

impl MemoryStore {
    fn set_limits_now(
        &self,
        level: &Level,
        new: &LimitsChange,
        change: &Change,
    ) -> Result<u64, StoreError> {
        new.check(level)?;
        self.write("set_limits", |config| {
            let before = config.get(level).cloned().unwrap_or_default();
            new.check_version(level, before.version)?;
            let version = config.edit(level, |stored| stored.replace_limits(new));
            Ok((version, Some(audit::limits_set(change, level, new, &before))))
        })
    }

    fn delete_limits_now(&self, level: &Level, change: &Change) -> Result<bool, StoreError> {
        self.write("delete_limits", |config| {
            let stored = config.get(level).filter(|stored| !stored.limits.is_empty());
            let Some(event) = stored.map(|stored| audit::limits_deleted(change, level, stored))
            else {
                return Ok((false, None));
            };
            config.edit(level, LevelConfig::clear_limits);
            Ok((true, Some(event)))
        })
    }

    fn set_flag_now(
        &self,
        level: &Level,
        flag: Option<Flag>,
        change: &Change,
    ) -> Result<u64, StoreError> {
        level.check_flag()?;
        self.write("set_flag", |config| {
            let before = config.get(level).and_then(|stored| stored.flag);
            config.edit(level, |stored| stored.flag = flag);
            Ok(((), Some(audit::flag_set(change, level, flag, before))))
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
                    entry.state.flag = config.flag(entry.entity(), &entry.scope.resource);
                    reached += 1;
                }
            }
        });
        Ok(reached)
    }

    fn set_managed_now(
        &self,
        part: u32,
        new: &ManagedChange,
        change: &Change,
    ) -> Result<u64, StoreError> {
        new.check(part)?;
        self.write("set_managed", |config| {
            new.check_version(config.managed.get(&part).map_or(0, |found| found.version))?;
            // As the generation after this write: it never comes back.
            let version = config.generation + 1;
            config.managed.insert(part, Managed { text: new.text.clone(), version });
            Ok((version, Some(audit::limits_applied(change, new))))
        })
    }

    /// A consistent read of an active namespace.
    fn reading<'a, T: 'a>(
        &'a self,
        operation: &'static str,
        look: impl FnOnce(&Config) -> T + Send + 'a,
    ) -> StoreFuture<'a, T> {
        lazily(move || {
            let directory = self.shared.read_directory();
            let tenant = directory.tenant(self.number);
            let gone = || StoreError::namespace_gone(operation);
            tenant.is_active().then(|| look(&tenant.config)).ok_or_else(gone)
        })
    }

    /// A change of an active namespace and its audit event, as one step. Without an event nothing
    /// was changed.
    pub(super) fn write<T>(
        &self,
        operation: &'static str,
        make: impl FnOnce(&mut Config) -> Result<(T, Option<AuditEvent>), StoreError>,
    ) -> Result<T, StoreError> {
        let mut directory = self.shared.write_directory();
        let tenant = directory.tenant_mut(self.number);
        if !tenant.is_active() {
            return Err(StoreError::namespace_gone(operation));
        }
        let (answer, event) = make(&mut tenant.config)?;
        if let Some(event) = event {
            tenant.config.generation += 1;
            tenant.audit.record(event, self.shared.options.audit_events_max);
        }
        Ok(answer)
    }
}

pub(super) fn resolve_member(config: &Config, key: &MemberKey<'_>) -> MemberConfig {
    let entity = config.entities.get(key.entity);
    let cascades_to = entity.and_then(|entity| entity.cascades_to().cloned());
    let levels = config.levels(key.entity.as_str(), key.resource);
    let Ok(member) = MemberConfig::resolve(
        key,
        cascades_to,
        &levels,
        |level| Ok::<_, Infallible>(level.own_limits()),
        |level| Ok(level.flag),
    );
    member
}
