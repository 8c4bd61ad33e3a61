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

use super::{children_of, event};
use crate::DynamoStore;
use crate::admin::change::{Outcome, check_active, is_active, too_busy};
use crate::config::count_out;
use crate::constants::{ADMIN_ATTEMPTS_MAX, BATCH_WRITE_MAX};
use crate::records::attr;
use crate::records::item::{
    audit_item, deleted_of, details, is_deletion, key_of, stored_version, text_of, version_of,
};
use crate::records::keys;
use crate::table::page::{Listing, Walk};
use crate::table::retry::Refused;
use crate::table::{
    Action, Cancellation, Check, Comparison, Condition, Delete, Index, Item, Key, Put, Query, Sort,
    Update, Write, compare, compare_with, number, text,
};

const OPERATION: &str = "delete_entity";

/// The most shards a bucket can have.
const SHARDS_MAX: u32 = 32;

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

/// Somebody else has finished the same deletion, so there is nothing left to do.
struct Overtaken;

pub(crate) async fn delete(
    store: &DynamoStore,
    id: &EntityId,
    change: &Change,
) -> Result<DeletedEntity, StoreError> {
    let record = match order(store, id, change).await? {
        Ordered::Marked(record) => record,
        Ordered::Done(deleted) => return Ok(deleted),
    };
    let deletion = Deletion {
        store,
        id,
        change,
        marked: vec![Condition::Exists(attr::DELETING.into()), same(&record, attr::PINC)],
    };
    let deleted = deletion.carry_out().await.map_err(|error| unfinished(id, error))?;
    store.shared.caches.forget_owner(&store.id, id);
    Ok(deleted)
}

fn unfinished(id: &EntityId, error: StoreError) -> StoreError {
    let message = format!(
        "the deletion of entity {id} has begun and is recorded, but did not come to its end ({error}); delete it again"
    );
    StoreError::new(error.kind(), OPERATION, message).with_source(error)
}

/// Marks the record and stores the event, or changes nothing.
async fn order(store: &DynamoStore, id: &EntityId, change: &Change) -> Result<Ordered, StoreError> {
    let subject = AuditSubject::Entity(id.clone());
    let told = keys::audit(&store.id, &subject, &change.event.to_string());
    let versions = keys::entity_versions(&store.id);
    let wanted =
        [keys::namespace_by_id(&store.id), keys::entity(&store.id, id), told, versions.clone()];
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let mut found = store.shared.read_all(OPERATION, &wanted, true).await?.into_iter();
        let (namespace, record, told) =
            (found.next().flatten(), found.next().flatten(), found.next().flatten());
        let gone = found.next().flatten().map_or(0, |item| version_of(&item, attr::VERSION));
        check_active(OPERATION, namespace.as_ref())?;
        // An earlier attempt at this very order whose answer was lost: an entity created anew since
        // is none of its business.
        if let Some(told) = told.filter(is_deletion) {
            return Ok(match record.filter(|record| record.contains_key(attr::DELETING)) {
                Some(record) => Ordered::Marked(record),
                None => Ordered::Done(deleted_of(&told)),
            });
        }
        let record = record.ok_or_else(|| StoreError::entity_missing(OPERATION, id))?;
        // After the record was read: a child that comes later changes the record, and the mark is
        // not set.
        refuse_children(store, id).await?;
        // A registry that cannot be counted in would stop the deletion half way.
        count_out(store, &first_configs(store, id).await?.0, OPERATION).await?;
        let actions = vec![Action::Set(attr::DELETING.into(), text(change.event.to_string()))];
        let conditions = vec![
            Condition::Exists(attr::PK.into()),
            same(&record, attr::PINC),
            same(&record, attr::CHILDREN_EVER),
            same(&record, attr::VERSION),
        ];
        let mark = Write::Update(Update { key: keys::entity(&store.id, id), actions, conditions });
        let mut writes = vec![mark];
        // In the same step: an entity that is created anew begins behind the version of this one.
        // The highest is kept; a sum would double with every entity that comes and goes.
        let version = version_of(&record, attr::VERSION);
        if version > gone {
            let is_lower = compare(attr::VERSION, Comparison::Lt, stored_version(version));
            writes.push(Write::Update(Update {
                key: versions.clone(),
                actions: vec![Action::Set(attr::VERSION.into(), number(stored_version(version)))],
                conditions: vec![Condition::Any(vec![
                    Condition::Absent(attr::VERSION.into()),
                    is_lower,
                ])],
            }));
        }
        let told = event(id, AuditAction::EntityDeleted, details::deletion_ordered());
        match store.shared.change(OPERATION, &store.id, writes, (change, told)).await? {
            Outcome::Made => {
                store.shared.caches.forget_owner(&store.id, id);
                return Ok(Ordered::Marked(record));
            }
            Outcome::Lost(_) => store.shared.back_off(attempt).await,
        }
    }
    Err(too_busy(OPERATION))
}

/// The condition that an attribute is as the record has it.
fn same(record: &Item, name: &'static str) -> Condition {
    match record.get(name) {
        Some(value) => compare_with(name, Comparison::Eq, value.clone()),
        None => Condition::Absent(name.into()),
    }
}

/// Fails while there are children. The index may still show some that are gone, so each one found
/// is looked up.
async fn refuse_children(store: &DynamoStore, id: &EntityId) -> Result<(), StoreError> {
    let mut names = Vec::new();
    let mut walk = Walk::new(&store.shared, OPERATION, children_of(store, id).after(None));
    while let Some(items) = walk.next().await? {
        let keys: Vec<Key> = items.iter().filter_map(key_of).collect();
        for item in store.shared.read_all(OPERATION, &keys, true).await?.iter().flatten() {
            if text_of(item, attr::PARENT_ID) == Some(id.as_str()) {
                names.push(text_of(item, attr::ENTITY_ID).unwrap_or("?").to_owned());
            }
        }
        if names.len() > CHILDREN_NAMED_MAX {
            break;
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    Err(StoreError::has_children(id, names))
}

impl Deletion<'_> {
    /// What was removed before somebody else finished the deletion was removed by this call, and
    /// counts.
    async fn carry_out(&self) -> Result<DeletedEntity, StoreError> {
        let mut deleted = DeletedEntity::default();
        if let Ok(()) = self.remove_buckets(&mut deleted).await? {
            let _: Result<(), Overtaken> = self.finish(&mut deleted).await?;
        }
        Ok(deleted)
    }

    fn check(&self) -> Write {
        Write::Check(Check {
            key: keys::entity(&self.store.id, self.id),
            conditions: self.marked.clone(),
        })
    }

    /// Makes these writes if the record is still marked. `None` when another leg stood in the way.
    async fn while_marked(
        &self,
        writes: Vec<Write>,
    ) -> Result<Option<Result<(), Overtaken>>, StoreError> {
        let mut legs = vec![self.check()];
        legs.extend(writes);
        match self.store.shared.transact(OPERATION, &legs).await {
            Ok(()) => Ok(Some(Ok(()))),
            Err(Refused::Canceled(reasons))
                if matches!(reasons.first(), Some(Cancellation::Condition(_))) =>
            {
                Ok(Some(Err(Overtaken)))
            }
            Err(Refused::Canceled(reasons)) if !is_rejected(&reasons) => Ok(None),
            Err(refused) => Err(refused.into_error(OPERATION)),
        }
    }

    async fn remove_buckets(
        &self,
        deleted: &mut DeletedEntity,
    ) -> Result<Result<(), Overtaken>, StoreError> {
        let store = self.store;
        let shards = self.shards().await?;
        // The index lags behind: a bucket that is gone already is not counted again.
        let first: Vec<Key> = shards.values().filter_map(|keys| keys.first().cloned()).collect();
        let present =
            store.shared.read_all(OPERATION, &first, true).await?.iter().flatten().count();
        let mut batches: Vec<Vec<Key>> = Vec::new();
        let mut single = Vec::new();
        for (resource, keys) in shards {
            single.extend(self.leftovers(&resource).await?);
            match <[Key; 1]>::try_from(keys) {
                Ok([key]) => single.push(key),
                Err(keys) => batches.push(self.all_shards(&resource, keys)),
            }
        }
        single.sort_unstable();
        single.dedup();
        batches.extend(single.chunks(BATCH_WRITE_MAX).map(<[Key]>::to_vec));
        for keys in batches {
            let delete =
                |key: &Key| Write::Delete(Delete { key: key.clone(), conditions: Vec::new() });
            match self.while_marked(keys.iter().map(delete).collect()).await? {
                Some(Ok(())) => {}
                Some(Err(overtaken)) => return Ok(Err(overtaken)),
                None => return Err(too_busy(OPERATION)),
            }
            keys.iter().for_each(|key| store.shared.caches.forget(&key.pk));
        }
        deleted.buckets += u64::try_from(present).unwrap_or(u64::MAX);
        Ok(Ok(()))
    }

    /// The buckets of the entity, by resource, as far as the index has caught up.
    async fn shards(&self) -> Result<BTreeMap<String, Vec<Key>>, StoreError> {
        let Deletion { store, id, .. } = *self;
        let (partition, prefix) =
            (keys::index::entity(&store.id, id), keys::index::BUCKET.to_owned());
        let listing = Listing { index: Some(Index::Gsi3), partition, prefix };
        let mut shards: BTreeMap<String, Vec<Key>> = BTreeMap::new();
        for key in all_keys(store, listing.after(None)).await? {
            if let Some((_, resource, _)) = keys::parse_bucket(&store.id, &key.pk) {
                shards.entry(resource.to_owned()).or_default().push(key);
            }
        }
        Ok(shards)
    }

    /// What the Python product keeps beside a bucket: records of resets and top-ups.
    async fn leftovers(&self, resource: &str) -> Result<Vec<Key>, StoreError> {
        let partition = keys::bucket_of(&self.store.id, self.id.as_str(), resource, 0).pk;
        let sort = Sort::Prefix("#OP#".to_owned());
        let query = Query {
            index: None,
            partition,
            sort,
            start: None,
            limit: None,
            ascending: true,
            consistent: true,
        };
        all_keys(self.store, query).await
    }

    /// All shards of a bucket go at once: one that was left alone would grant beside a new bucket.
    /// Those the index does not show are among them.
    fn all_shards(&self, resource: &str, known: Vec<Key>) -> Vec<Key> {
        let shard = |number| keys::bucket_of(&self.store.id, self.id.as_str(), resource, number);
        let mut all: Vec<Key> = (0..SHARDS_MAX).map(shard).collect();
        // Another writer may have made more than there should be.
        all.extend(known);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Removes the configuration and the record in one transaction, so that no limit is lifted
    /// before the entity is gone. What does not fit into it is removed before, while takes are
    /// refused.
    async fn finish(
        &self,
        deleted: &mut DeletedEntity,
    ) -> Result<Result<(), Overtaken>, StoreError> {
        let Deletion { store, id, change, .. } = *self;
        let mut attempt = 1;
        while attempt <= ADMIN_ATTEMPTS_MAX {
            let (configs, is_last) = first_configs(store, id).await?;
            let (removed, mut writes) = count_out(store, &configs, OPERATION).await?;
            let made = if is_last {
                let total = DeletedEntity { configs: deleted.configs + removed, ..*deleted };
                let told = event(id, AuditAction::EntityDeleted, details::entity_deletion(&total));
                let told =
                    audit_item(&store.id, change, told, store.shared.options.audit_retention_s);
                writes.insert(
                    0,
                    Write::Delete(Delete {
                        key: keys::entity(&store.id, id),
                        conditions: self.marked.clone(),
                    }),
                );
                writes.push(Write::Put(Put { item: told, conditions: Vec::new() }));
                writes.push(Write::Check(is_active(&store.id)));
                self.last(&writes).await?
            } else {
                self.while_marked(writes).await?
            };
            match made {
                Some(Ok(())) => {
                    deleted.configs += removed;
                    if is_last {
                        return Ok(Ok(()));
                    }
                    // One more part is done: the next has all attempts.
                    attempt = 1;
                }
                Some(Err(overtaken)) => return Ok(Err(overtaken)),
                None => {
                    store.shared.back_off(attempt).await;
                    attempt += 1;
                }
            }
        }
        Err(too_busy(OPERATION))
    }

    /// The transaction whose first leg removes the record and whose last one wants an active
    /// namespace.
    async fn last(&self, writes: &[Write]) -> Result<Option<Result<(), Overtaken>>, StoreError> {
        let shared = &self.store.shared;
        let reasons = match shared.transact(OPERATION, writes).await {
            Ok(()) => {
                shared.caches.forget_buckets();
                return Ok(Some(Ok(())));
            }
            Err(Refused::Canceled(reasons)) if !is_rejected(&reasons) => reasons,
            Err(refused) => return Err(refused.into_error(OPERATION)),
        };
        match (reasons.first(), reasons.last()) {
            (Some(Cancellation::Condition(_)), _) => Ok(Some(Err(Overtaken))),
            (_, Some(Cancellation::Condition(_))) => Err(StoreError::namespace_gone(OPERATION)),
            _ => Ok(None),
        }
    }
}

/// True when another attempt would fail as well.
fn is_rejected(reasons: &[Cancellation]) -> bool {
    reasons.iter().any(|reason| matches!(reason, Cancellation::Rejected(_)))
}

/// The configurations that one transaction removes, and whether those are all.
async fn first_configs(store: &DynamoStore, id: &EntityId) -> Result<(Vec<Key>, bool), StoreError> {
    let listing = Listing {
        index: None,
        partition: keys::entity_partition(&store.id, id),
        prefix: keys::ENTITY_CONFIG.to_owned(),
    };
    let mut configs = all_keys(store, listing.after(None)).await?;
    let are_all = configs.len() <= CONFIGS_AT_ONCE_MAX;
    configs.truncate(CONFIGS_AT_ONCE_MAX);
    Ok((configs, are_all))
}

async fn all_keys(store: &DynamoStore, query: Query) -> Result<Vec<Key>, StoreError> {
    let mut walk = Walk::new(&store.shared, OPERATION, query);
    let mut keys = Vec::new();
    while let Some(items) = walk.next().await? {
        keys.extend(items.iter().filter_map(key_of));
    }
    Ok(keys)
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
