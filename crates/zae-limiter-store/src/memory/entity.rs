//! Entities.

use zae_limiter_core::{Entity, EntityId};

use super::MemoryStore;
use super::table::Entry;
use crate::{Change, DeletedEntity, EntityUpdate, Lineage, NewEntity, StoreError, audit};

impl MemoryStore {
    pub(super) fn create_entity_now(
        &self,
        new: &NewEntity,
        change: &Change,
    ) -> Result<Entity, StoreError> {
        new.check()?;
        self.write("create_entity", |config| {
            if config.entities.contains_key(&new.id) {
                return Err(StoreError::entity_exists(&new.id));
            }
            let mut lineage = Lineage::of(new);
            while let Some(id) = lineage.wanted() {
                let found = config.entities.get(id);
                lineage.found(found.map(|entity| entity.cascades_to().cloned()))?;
            }
            let entity = new.created_at(change.at, config.entity_versions_gone + 1);
            if let Some(parent) = &new.parent {
                config.children.entry(parent.clone()).or_default().insert(new.id.clone());
            }
            config.entities.insert(new.id.clone(), entity.clone());
            let event = audit::entity_created(change, &entity);
            Ok((entity, Some(event)))
        })
    }

    pub(super) fn update_entity_now(
        &self,
        id: &EntityId,
        expected_version: u64,
        update: &EntityUpdate,
        change: &Change,
    ) -> Result<Entity, StoreError> {
        const OPERATION: &str = "update_entity";
        self.write(OPERATION, |config| {
            let missing = || StoreError::entity_missing(OPERATION, id);
            let stored = config.entities.get_mut(id).ok_or_else(missing)?;
            let entity = update.apply(stored, expected_version)?;
            let event = audit::entity_updated(change, &entity, stored);
            stored.clone_from(&entity);
            Ok((entity, Some(event)))
        })
    }

    pub(super) fn delete_entity_now(
        &self,
        id: &EntityId,
        change: &Change,
    ) -> Result<DeletedEntity, StoreError> {
        const OPERATION: &str = "delete_entity";
        let configs = self.write(OPERATION, |config| {
            let missing = || StoreError::entity_missing(OPERATION, id);
            let entity = config.entities.get(id).ok_or_else(missing)?;
            if let Some(children) = config.children.get(id) {
                return Err(StoreError::has_children(id, children));
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
            Ok((configs, Some(audit::entity_deleted(change, id, &[("configs", configs)]))))
        })?;
        // The buckets come after the configuration: a bucket created in between follows the
        // configuration that is left.
        let mut buckets = 0;
        self.shared.each_shard(|shard| {
            let doomed =
                |entry: &Entry| entry.scope.number == self.number && entry.entity() == id.as_str();
            let removed = shard.remove_where(doomed, self.shared.options.usage_rows_max);
            self.shared.give_back_room(removed);
            buckets += removed as u64;
        });
        Ok(DeletedEntity { buckets, configs })
    }
}
