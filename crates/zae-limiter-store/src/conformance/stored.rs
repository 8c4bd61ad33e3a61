//! The part of the fixture for limits and flags, entities, namespaces and history.

use std::collections::BTreeMap;

use zae_limiter_core::{
    AuditEvent, AuditSubject, BUCKET_TTL_MULTIPLIER, Entity, EntityId, Flag, Limit, LimitSource,
    ResourceName, TimeMs, UsageWindow,
};

use super::fixture::{
    Fixture, GPT, all, at, entity, limit_list, limits_from, namespace, namespace_id, resource,
};
use crate::{
    AuditQuery, DeletedEntity, EntityUpdate, Level, LevelConfig, LimitsChange, LimitsInForce,
    MemberConfig, MemberKey, Namespace, NewEntity, PageRequest, Purged, Resolution, StoreError,
    UsageQuery,
};

pub(super) fn entity_level(id: &str) -> Level {
    Level::Entity(entity(id))
}

pub(super) fn resource_level(name: &str) -> Level {
    Level::Resource(resource(name))
}

pub(super) fn entity_on(id: &str, name: &str) -> Level {
    Level::EntityResource(entity(id), resource(name))
}

/// An entity with a name and nothing else.
pub(super) fn new_entity(id: &str) -> NewEntity {
    NewEntity {
        id: entity(id),
        name: format!("The {id}"),
        parent: None,
        cascade: false,
        metadata: BTreeMap::new(),
    }
}

/// The subject of what happens to an entity.
pub(super) fn about(id: &str) -> AuditSubject {
    AuditSubject::Entity(entity(id))
}

/// The usage by the hour of an entity, of a resource, of both, or of the whole namespace.
pub(super) fn hourly(id: Option<&str>, name: Option<&str>) -> UsageQuery {
    UsageQuery {
        entity: id.map(entity),
        resource: name.map(resource),
        window: UsageWindow::Hourly,
        from: None,
        until: None,
        page: PageRequest::default(),
    }
}

/// Limits and flags.
impl Fixture {
    pub(super) async fn try_change(
        &self,
        level: &Level,
        limits: &LimitsChange,
        now: TimeMs,
    ) -> Result<u64, StoreError> {
        self.store.set_limits(level, limits, &self.change(now)).await
    }

    pub(super) async fn try_set(
        &self,
        level: &Level,
        limits: &str,
        expected_version: Option<u64>,
    ) -> Result<u64, StoreError> {
        let change = LimitsChange { expected_version, ..limit_list(limits).into() };
        self.try_change(level, &change, at(0)).await
    }

    /// Stores limits at a level; the level's new version.
    pub(super) async fn set(&self, level: &Level, limits: &str) -> u64 {
        self.set_at(level, limits, at(0)).await
    }

    pub(super) async fn set_at(&self, level: &Level, limits: &str, now: TimeMs) -> u64 {
        let change = limit_list(limits).into();
        self.try_change(level, &change, now).await.expect("limits can be set")
    }

    pub(super) async fn unset(&self, level: &Level) -> bool {
        self.store.delete_limits(level, &self.change(at(0))).await.expect("limits can be deleted")
    }

    pub(super) async fn try_flag(
        &self,
        level: &Level,
        flag: Option<Flag>,
        now: TimeMs,
    ) -> Result<u64, StoreError> {
        self.store.set_flag(level, flag, &self.change(now)).await
    }

    pub(super) async fn flag(&self, level: &Level, flag: Option<Flag>) -> u64 {
        self.try_flag(level, flag, at(0)).await.expect("a level can be flagged")
    }

    pub(super) async fn level(&self, level: &Level) -> Option<LevelConfig> {
        self.store.level(level).await.expect("a read")
    }

    async fn resolution(&self, entity: &EntityId, resource: &ResourceName) -> Resolution {
        let keys = [MemberKey { entity, resource }];
        let resolution = self.store.resolve(&keys).await.expect("configuration can be resolved");
        assert_eq!(resolution.members.len(), 1, "one member per key");
        resolution
    }

    /// The stored configuration of an entity for a resource.
    pub(super) async fn resolve(&self, id: &str, name: &str) -> MemberConfig {
        self.resolution(&entity(id), &resource(name)).await.members.remove(0)
    }

    /// The stored limits in force of an entity for [`GPT`], with the stamp of this read.
    pub(super) async fn in_force(&self, id: &str) -> LimitsInForce {
        self.read(&entity(id), &resource(GPT)).await
    }

    /// Stores limits at a level and reads them, as a limiter does that asks now. The answer is an
    /// older read once the level has changed again. At the system and resource levels the reader is
    /// `key`.
    pub(super) async fn stored(&self, level: &Level, limits: &str) -> LimitsInForce {
        self.stored_at(level, limits, at(0)).await
    }

    /// The same by an administrator at some instant: a store may bring the limits to buckets at
    /// once, or with their next take.
    pub(super) async fn stored_at(
        &self,
        level: &Level,
        limits: &str,
        now: TimeMs,
    ) -> LimitsInForce {
        self.set_at(level, limits, now).await;
        let reader = level.entity_id().cloned().unwrap_or_else(|| entity("key"));
        let name = level.resource_name().cloned().unwrap_or_else(|| resource(GPT));
        let read = self.read(&reader, &name).await;
        let by_name = |mut limits: Vec<Limit>| {
            limits.sort_by(|a, b| a.name().cmp(b.name()));
            limits
        };
        let (found, expected) = (by_name(read.limits.to_vec()), by_name(limit_list(limits)));
        assert_eq!(found, expected, "what was stored is in force");
        assert_eq!(read.source, level.source(), "nothing stronger is stored");
        read
    }

    /// Limits that are not stored, in the hands of a caller who has read the configuration and
    /// found none for `key`.
    pub(super) async fn unstored(&self, limits: &str, source: LimitSource) -> LimitsInForce {
        let resolution = self.resolution(&entity("key"), &resource(GPT)).await;
        assert_eq!(resolution.members[0].limits, None, "nothing is stored");
        LimitsInForce { stamp: resolution.stamp, ..limits_from(limits, source) }
    }

    async fn read(&self, entity: &EntityId, resource: &ResourceName) -> LimitsInForce {
        let mut resolution = self.resolution(entity, resource).await;
        let (limits, source) = resolution.members.remove(0).limits.expect("limits are stored");
        LimitsInForce::resolved(limits, source, resolution.stamp, BUCKET_TTL_MULTIPLIER)
    }
}

/// Entities.
impl Fixture {
    pub(super) async fn try_create(
        &self,
        id: &str,
        parent: Option<&str>,
        cascade: bool,
    ) -> Result<Entity, StoreError> {
        let entity = NewEntity { parent: parent.map(entity), cascade, ..new_entity(id) };
        self.store.create_entity(&entity, &self.change(at(0))).await
    }

    pub(super) async fn create(&self, id: &str) -> Entity {
        self.try_create(id, None, false).await.expect("an entity can be created")
    }

    pub(super) async fn entity(&self, id: &str) -> Option<Entity> {
        self.store.entity(&entity(id)).await.expect("a read")
    }

    pub(super) async fn try_update(
        &self,
        id: &str,
        version: u64,
        update: &EntityUpdate,
    ) -> Result<Entity, StoreError> {
        self.store.update_entity(&entity(id), version, update, &self.change(at(0))).await
    }

    pub(super) async fn rename(
        &self,
        id: &str,
        version: u64,
        name: &str,
    ) -> Result<Entity, StoreError> {
        let update = EntityUpdate { name: Some(name.to_owned()), metadata: None };
        self.try_update(id, version, &update).await
    }

    pub(super) async fn try_delete(&self, id: &str) -> Result<DeletedEntity, StoreError> {
        self.store.delete_entity(&entity(id), &self.change(at(0))).await
    }

    pub(super) async fn delete(&self, id: &str) -> DeletedEntity {
        self.try_delete(id).await.expect("an entity can be deleted")
    }
}

/// Namespaces.
impl Fixture {
    pub(super) async fn try_register(&self, name: &str, id: &str) -> Result<Namespace, StoreError> {
        let change = self.change(at(5));
        self.store.register_namespace(&namespace(name), &namespace_id(id), &change).await
    }

    pub(super) async fn register(&self, name: &str, id: &str) -> Namespace {
        self.try_register(name, id).await.expect("a namespace can be registered")
    }

    pub(super) async fn namespace(&self, name: &str) -> Option<Namespace> {
        self.store.namespace(&namespace(name)).await.expect("a read")
    }

    /// False when no namespace of that name is active.
    pub(super) async fn delete_namespace(&self, name: &str, now: TimeMs) -> bool {
        let deleted = self.store.delete_namespace(&namespace(name), &self.change(now)).await;
        deleted.expect("a namespace can be deleted")
    }

    pub(super) async fn recover(&self, id: &str, now: TimeMs) -> Result<Namespace, StoreError> {
        self.store.recover_namespace(&namespace_id(id), &self.change(now)).await
    }

    pub(super) async fn purge(&self, id: &str, now: TimeMs) -> Result<Purged, StoreError> {
        self.store.purge_namespace(&namespace_id(id), &self.change(now)).await
    }
}

/// History.
impl Fixture {
    /// All audit events of a subject, newest first.
    pub(super) async fn events(&self, subject: &AuditSubject) -> Vec<AuditEvent> {
        let query = |page| AuditQuery { subject: subject.clone(), page };
        all(async |page| self.store.audit_events(&query(page)).await).await
    }
}
