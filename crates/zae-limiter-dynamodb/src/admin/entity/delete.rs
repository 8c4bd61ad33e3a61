//! Deleting an entity: ordered, carried out, finished.
//!
//! The first transaction marks the record `deleting` and stores the audit event; a deletion that is
//! refused stops there and has changed nothing. The last transaction removes the record together
//! with the configuration. From the mark on, takes of the entity are refused as disabled, and
//! nobody changes its configuration or attaches children. After a crash, an outage or a deadline in
//! between, the mark is there, the entity stays refused, and the next deletion goes on.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{AuditAction, AuditSubject, EntityId};
use zae_limiter_store::{CHILDREN_NAMED_MAX, Change, DeletedEntity, StoreError, StoreErrorKind};

use super::event;
use crate::DynamoStore;
use crate::admin::change::{Outcome, check_active, is_active, too_busy};
use crate::bucket::write::{BucketWrite, Whole};
use crate::constants::{BATCH_WRITE_MAX, SHARDS_MAX};
use crate::records::attr;
use crate::records::item::{
    audit_item, deleted_of, details, is_deletion, key_of, stored_version, text_of, version_of,
};
use crate::records::keys;
use crate::table::retry::Refused;
use crate::table::{
    Action, Cancellation, Check, Comparison, Condition, Delete, Index, Item, Key, Put, Query, Sort,
    Update, Write, compare, compare_with, exists, number, text,
};

const OPERATION: &str = "delete_entity";

/// Configurations removed by one transaction. The last one also has the record, the registry, the
/// event and the namespace.
const CONFIGS_AT_ONCE_MAX: usize = 90;

/// An order to delete an entity.
enum Ordered {
    /// The record is marked: this one.
    Marked(Item),
    /// The order was carried out before, by an earlier attempt or by somebody else.
    Done(DeletedEntity),
}

/// A deletion under way.
struct Deletion<'a> {
    store: &'a DynamoStore,
    id: &'a EntityId,
    change: &'a Change,
    /// The condition that the record is still the marked one, not that of an entity created anew
    /// under its id.
    marked: Vec<Condition>,
}

/// What became of one transaction of a deletion.
#[derive(PartialEq, Eq)]
enum Part {
    Made,
    /// Another leg than the first stood in the way.
    Lost,
    /// Somebody else has finished the same deletion, so there is nothing left to do.
    Overtaken,
}

impl DynamoStore {
    pub(crate) async fn remove_entity(
        &self,
        id: &EntityId,
        change: &Change,
    ) -> Result<DeletedEntity, StoreError> {
        let record = match self.order_deletion(id, change).await? {
            Ordered::Marked(record) => record,
            Ordered::Done(deleted) => return Ok(deleted),
        };
        let marked = vec![Condition::Exists(attr::DELETING.into()), same(&record, attr::PINC)];
        let deletion = Deletion { store: self, id, change, marked };
        let deleted = deletion.carry_out().await.map_err(|error| unfinished(id, error))?;
        self.shared.caches.forget_owner(&self.id, id);
        Ok(deleted)
    }

    /// Marks the record and stores the event, or changes nothing.
    async fn order_deletion(&self, id: &EntityId, change: &Change) -> Result<Ordered, StoreError> {
        let versions = keys::entity_versions(&self.id);
        let wanted = [
            keys::namespace_by_id(&self.id),
            keys::entity(&self.id, id),
            keys::audit(&self.id, AuditSubject::Entity(id.clone()), change.event),
            versions.clone(),
        ];
        let attempt = || async {
            let [namespace, record, told, gone] = self.shared.read(OPERATION, &wanted).await?;
            check_active(OPERATION, namespace.as_ref())?;
            // An earlier attempt at this very order whose answer was lost: an entity created anew
            // since is none of its business.
            if let Some(told) = told.filter(is_deletion) {
                let marked = record.filter(|record| record.contains_key(attr::DELETING));
                let done = || Ordered::Done(deleted_of(&told));
                return Ok(Some(marked.map_or_else(done, Ordered::Marked)));
            }
            let record = record.ok_or_else(|| StoreError::entity_missing(OPERATION, id))?;
            // After the record was read: a child that comes later changes the record, and the mark
            // is not set.
            self.refuse_children(id).await?;
            // A registry that cannot be counted in would stop the deletion half way.
            self.count_out(&self.first_configs(id).await?.0, OPERATION).await?;
            let actions = vec![Action::Set(attr::DELETING.into(), text(change.event.to_string()))];
            let conditions = vec![
                exists(),
                same(&record, attr::PINC),
                same(&record, attr::CHILDREN_EVER),
                same(&record, attr::VERSION),
            ];
            let key = keys::entity(&self.id, id);
            let mut writes = vec![Write::Update(Update { key, actions, conditions })];
            // In the same step: an entity that is created anew begins behind the version of this
            // one. The highest is kept; a sum would double with every entity that comes and goes.
            let version = version_of(&record, attr::VERSION);
            if version > gone.map_or(0, |item| version_of(&item, attr::VERSION)) {
                let version = stored_version(version);
                let is_lower = compare(attr::VERSION, Comparison::Lt, version);
                let is_first = Condition::Absent(attr::VERSION.into());
                writes.push(Write::Update(Update {
                    key: versions.clone(),
                    actions: vec![Action::Set(attr::VERSION.into(), number(version))],
                    conditions: vec![Condition::Any(vec![is_first, is_lower])],
                }));
            }
            let told = event(id, AuditAction::EntityDeleted, details::deletion_ordered());
            let made = self.shared.change(OPERATION, &self.id, writes, (change, told)).await?;
            if matches!(made, Outcome::Made) {
                self.shared.caches.forget_owner(&self.id, id);
            }
            Ok(made.then_some(Ordered::Marked(record)))
        };
        self.shared.until_made(OPERATION, attempt).await
    }

    /// Fails while there are children. The index may still show some that are gone, so each one
    /// found is looked up.
    async fn refuse_children(&self, id: &EntityId) -> Result<(), StoreError> {
        let mut names = Vec::new();
        let mut walk = self.shared.walk(OPERATION, self.children_of(id).after(None));
        while let Some(items) = walk.next().await? {
            let keys: Vec<Key> = items.iter().filter_map(key_of).collect();
            for item in self.shared.read_all(OPERATION, &keys).await?.iter().flatten() {
                if text_of(item, attr::PARENT_ID) == Some(id.as_str()) {
                    names.push(text_of(item, attr::ENTITY_ID).unwrap_or("?").to_owned());
                }
            }
            if names.len() > CHILDREN_NAMED_MAX {
                break;
            }
        }
        if names.is_empty() { Ok(()) } else { Err(StoreError::has_children(id, names)) }
    }

    /// The configurations that one transaction removes, and whether those are all.
    async fn first_configs(&self, id: &EntityId) -> Result<(Vec<Key>, bool), StoreError> {
        let partition = keys::entity_partition(&self.id, id);
        let query = Query::of(None, partition, Sort::Prefix(keys::ENTITY_CONFIG.to_owned()));
        let mut configs = self.shared.all_keys(OPERATION, query).await?;
        let are_all = configs.len() <= CONFIGS_AT_ONCE_MAX;
        configs.truncate(CONFIGS_AT_ONCE_MAX);
        Ok((configs, are_all))
    }
}

fn unfinished(id: &EntityId, error: StoreError) -> StoreError {
    let message = format!(
        "the deletion of entity {id} has begun and is recorded, but did not come to its end ({error}); delete it again"
    );
    StoreError::new(error.kind(), OPERATION, message).with_source(error)
}

/// The condition that an attribute is as the record has it.
fn same(record: &Item, name: &'static str) -> Condition {
    match record.get(name) {
        Some(value) => compare_with(name, Comparison::Eq, value.clone()),
        None => Condition::Absent(name.into()),
    }
}

impl Deletion<'_> {
    /// Counts everything that this call removed, also when another call finished the deletion.
    async fn carry_out(&self) -> Result<DeletedEntity, StoreError> {
        let mut deleted = DeletedEntity::default();
        let mut is_over = self.remove_buckets(&mut deleted).await? == Part::Overtaken;
        // Each part of the rest has all attempts.
        while !is_over {
            let attempt = || self.remove_records(&deleted);
            let removed;
            (removed, is_over) = self.store.shared.until_made(OPERATION, attempt).await?;
            deleted.configs += removed;
        }
        Ok(deleted)
    }

    /// Makes writes of which the first demands that the record is still marked and, with `is_last`,
    /// the last that the namespace is active.
    async fn make(&self, writes: &[Write], is_last: bool) -> Result<Part, StoreError> {
        let reasons = match self.store.shared.transact(OPERATION, writes).await {
            Ok(()) => return Ok(Part::Made),
            Err(Refused::Canceled(reasons)) if !is_rejected(&reasons) => reasons,
            Err(refused) => return Err(refused.into_error(OPERATION)),
        };
        match (reasons.first(), reasons.last()) {
            (Some(Cancellation::Condition(_)), _) => Ok(Part::Overtaken),
            (_, Some(Cancellation::Condition(_))) if is_last => {
                Err(StoreError::namespace_gone(OPERATION))
            }
            _ => Ok(Part::Lost),
        }
    }

    async fn remove_buckets(&self, deleted: &mut DeletedEntity) -> Result<Part, StoreError> {
        let Deletion { store, id, marked, .. } = self;
        let check = Check { key: keys::entity(&store.id, id), conditions: marked.clone() };
        let check = Write::Check(check);
        let shards = self.shards().await?;
        // The index lags behind: a bucket that is gone already is not counted again.
        let first: Vec<Key> = shards.values().filter_map(|keys| keys.first().cloned()).collect();
        let present = store.shared.read_all(OPERATION, &first).await?.iter().flatten().count();
        // A bucket of which the index shows one item goes with others, if it has one item; all
        // shards of any other go at once. A shard that was left alone would grant beside a new
        // bucket.
        let (mut whole, mut single) = (Vec::new(), Vec::new());
        for (resource, keys) in shards {
            single.extend(self.leftovers(&resource).await?);
            let is_alone = |key: &&Key| *key == &self.shard(&resource, 0);
            match keys.first().filter(is_alone).filter(|_| keys.len() == 1) {
                Some(key) => single.push(key.clone()),
                None => whole.push((resource, keys)),
            }
        }
        single.sort_unstable();
        single.dedup();
        for keys in single.chunks(BATCH_WRITE_MAX) {
            match self.remove(&check, keys, Whole::Alone).await? {
                Part::Made => {}
                // One of them has been split.
                Part::Lost => whole.extend(self.buckets_of(keys)),
                Part::Overtaken => return Ok(Part::Overtaken),
            }
        }
        for (resource, keys) in whole {
            match self.remove(&check, &self.all_shards(&resource, keys), Whole::Shard).await? {
                Part::Made => {}
                Part::Lost => return Err(too_busy(OPERATION)),
                Part::Overtaken => return Ok(Part::Overtaken),
            }
        }
        deleted.buckets += u64::try_from(present).unwrap_or(u64::MAX);
        Ok(Part::Made)
    }

    /// Removes items in one transaction.
    async fn remove(&self, check: &Write, keys: &[Key], whole: Whole) -> Result<Part, StoreError> {
        let delete = |key: &Key| match &*key.sk {
            keys::STATE => Write::Bucket(Box::new(BucketWrite::delete(key.clone(), whole))),
            _ => Write::Delete(Delete { key: key.clone(), conditions: Vec::new() }),
        };
        let mut legs = vec![check.clone()];
        legs.extend(keys.iter().map(delete));
        let part = self.make(&legs, false).await?;
        keys.iter().for_each(|key| self.store.shared.caches.forget(&key.pk));
        Ok(part)
    }

    /// The buckets that keys belong to, one by one, with what lies beside them.
    fn buckets_of(&self, keys: &[Key]) -> BTreeMap<String, Vec<Key>> {
        let mut buckets: BTreeMap<String, Vec<Key>> = BTreeMap::new();
        for key in keys {
            if let Some((_, resource, _)) = keys::parse_bucket(&self.store.id, &key.pk) {
                buckets.entry(resource.to_owned()).or_default().push(key.clone());
            }
        }
        buckets
    }

    fn shard(&self, resource: &str, number: u32) -> Key {
        keys::bucket_of(&self.store.id, self.id.as_str(), resource, number)
    }

    /// The buckets of the entity, by resource, as far as the index has caught up.
    async fn shards(&self) -> Result<BTreeMap<String, Vec<Key>>, StoreError> {
        let Deletion { store, id, .. } = *self;
        let sort = Sort::Prefix(keys::index::BUCKET.to_owned());
        let query = Query::of(Some(Index::Gsi3), keys::index::entity(&store.id, id), sort);
        let mut shards: BTreeMap<String, Vec<Key>> = BTreeMap::new();
        for key in store.shared.all_keys(OPERATION, query).await? {
            if let Some((_, resource, _)) = keys::parse_bucket(&store.id, &key.pk) {
                shards.entry(resource.to_owned()).or_default().push(key);
            }
        }
        Ok(shards)
    }

    /// What the Python package keeps beside a bucket: records of resets and top-ups.
    async fn leftovers(&self, resource: &str) -> Result<Vec<Key>, StoreError> {
        let partition = keys::bucket_of(&self.store.id, self.id.as_str(), resource, 0).pk;
        let query = Query::of(None, partition, Sort::Prefix("#OP#".to_owned()));
        self.store.shared.all_keys(OPERATION, query).await
    }

    /// All shards of a bucket go at once, also those the index does not show: a shard that was left
    /// alone would grant beside a new bucket.
    fn all_shards(&self, resource: &str, known: Vec<Key>) -> Vec<Key> {
        let mut all: Vec<Key> =
            (0..SHARDS_MAX).map(|number| self.shard(resource, number)).collect();
        // Another writer may have made more than there should be.
        all.extend(known);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Removes the configuration and the record in one transaction, so that no limit is lifted
    /// before the entity is gone. What does not fit into it is removed before, while takes are
    /// refused. How many configurations were removed, and whether the deletion is finished; `None`
    /// when the transaction lost a race.
    async fn remove_records(
        &self,
        deleted: &DeletedEntity,
    ) -> Result<Option<(u64, bool)>, StoreError> {
        let Deletion { store, id, change, .. } = *self;
        let (configs, is_last) = store.first_configs(id).await?;
        let (removed, mut writes) = store.count_out(&configs, OPERATION).await?;
        let (key, conditions) = (keys::entity(&store.id, id), self.marked.clone());
        if is_last {
            let total = DeletedEntity { configs: deleted.configs + removed, ..*deleted };
            let told = event(id, AuditAction::EntityDeleted, details::entity_deletion(&total));
            let retention_s = store.shared.audit_retention_s().await;
            let item = audit_item(&store.id, change, told, retention_s);
            writes.insert(0, Write::Delete(Delete { key, conditions }));
            writes.push(Write::Put(Put { item, conditions: Vec::new() }));
            writes.push(Write::Check(is_active(&store.id)));
        } else {
            writes.insert(0, Write::Check(Check { key, conditions }));
        }
        let part = self.make(&writes, is_last).await?;
        if part == Part::Made && is_last {
            store.shared.caches.forget_buckets();
        }
        Ok(match part {
            Part::Made => Some((removed, is_last)),
            Part::Lost => None,
            Part::Overtaken => Some((0, true)),
        })
    }
}

/// True when another attempt would fail as well.
fn is_rejected(reasons: &[Cancellation]) -> bool {
    reasons.iter().any(|reason| matches!(reason, Cancellation::Rejected(_)))
}

/// The condition that an entity, if it has a record, is not being deleted. Part of every change of
/// its configuration.
pub(crate) fn is_staying(namespace: &str, id: &EntityId) -> Check {
    Check {
        key: keys::entity(namespace, id),
        conditions: vec![Condition::Absent(attr::DELETING.into())],
    }
}

/// Fails when the record says that the entity is being deleted.
pub(crate) fn check_staying(
    operation: &'static str,
    id: &EntityId,
    record: Option<&Item>,
) -> Result<(), StoreError> {
    match record.and_then(|record| record.get(attr::DELETING)) {
        None => Ok(()),
        Some(_) => {
            let message = format!(
                "entity {id} is being deleted, and that was interrupted or is under way; delete it again to finish"
            );
            Err(StoreError::new(StoreErrorKind::State, operation, message))
        }
    }
}

/// True for the mark of a deletion.
pub(crate) fn is_leaving(record: &Item) -> bool {
    !matches!(record.get(attr::DELETING), None | Some(AttributeValue::Null(_)))
}
