//! Deleting an entity: buckets first, then configurations, its own record last. After a crash in between the record is
//! still there, and deleting it again goes on.

use std::collections::BTreeMap;

use zae_limiter_core::{AuditAction, EntityId};
use zae_limiter_store::{Change, DeletedEntity, StoreError, StoreErrorKind};

use super::{children_of, event, missing, refused};
use crate::change::{Outcome, too_busy};
use crate::config::remove_entity_config;
use crate::constants::ADMIN_ATTEMPTS_MAX;
use crate::item::{Event, attr, details, key_of, text_of};
use crate::page::{Listing, Walk};
use crate::retry::Refused;
use crate::table::{Comparison, Condition, Delete, Index, Item, Key, Query, Sort, Write, compare_with};
use crate::{DynamoStore, keys};

const OPERATION: &str = "delete_entity";

/// How many children the refusal to delete their parent names.
const CHILDREN_NAMED_MAX: usize = 10;

/// The most shards a bucket can have.
const SHARDS_MAX: u32 = 32;

pub(crate) async fn delete(store: &DynamoStore, id: &EntityId, change: &Change) -> Result<DeletedEntity, StoreError> {
    let mut deleted = DeletedEntity::default();
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let found = store.read_active(OPERATION, keys::entity(&store.id, id)).await?;
        let record = found.ok_or_else(|| missing(OPERATION, id))?;
        // After the record was read: a child that comes later changes the record, and the last step fails.
        refuse_children(store, id).await?;
        deleted.buckets += delete_buckets(store, id).await?;
        deleted.configs += delete_configs(store, id).await?;
        let told: Event<'_> = event(id, AuditAction::EntityDeleted, details::entity_deletion(&deleted));
        let writes = vec![Write::Delete(Delete { key: keys::entity(&store.id, id), conditions: same_entity(&record) })];
        match store.shared.change(OPERATION, &store.id, writes, (change, told)).await? {
            Outcome::Made => {
                store.shared.caches.forget_owner(&store.id, id);
                return Ok(deleted);
            }
            Outcome::Lost(_) => store.shared.back_off(attempt).await,
        }
    }
    Err(too_busy(OPERATION))
}

/// The same entity, not one created anew under its id, and without a new child.
fn same_entity(record: &Item) -> Vec<Condition> {
    let same = |name: &'static str| match record.get(name) {
        Some(value) => compare_with(name, Comparison::Eq, value.clone()),
        None => Condition::Absent(name.into()),
    };
    vec![Condition::Exists(attr::PK.into()), same(attr::PINC), same(attr::CHILDREN_EVER)]
}

/// Fails while there are children. The index may still show some that are gone, so each one found is looked up.
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
    let more = if names.len() > CHILDREN_NAMED_MAX { " and more" } else { "" };
    names.truncate(CHILDREN_NAMED_MAX);
    let message = format!("entity {id} has children ({}{more}); delete them first", names.join(", "));
    Err(refused(StoreErrorKind::State, OPERATION, message))
}

async fn delete_buckets(store: &DynamoStore, id: &EntityId) -> Result<u64, StoreError> {
    let listing =
        Listing { index: Some(Index::Gsi3), partition: keys::index::entity(&store.id, id), prefix: keys::index::BUCKET.to_owned() };
    let mut shards: BTreeMap<String, Vec<Key>> = BTreeMap::new();
    let mut walk = Walk::new(&store.shared, OPERATION, listing.after(None));
    while let Some(items) = walk.next().await? {
        for key in items.iter().filter_map(key_of) {
            if let Some((_, resource, _)) = keys::parse_bucket(&store.id, &key.pk) {
                shards.entry(resource.to_owned()).or_default().push(key);
            }
        }
    }
    // The index lags behind: one that is gone already is not counted again.
    let first: Vec<Key> = shards.values().filter_map(|keys| keys.first().cloned()).collect();
    let present = store.shared.read_all(OPERATION, &first, true).await?.iter().flatten().count();
    let mut single = Vec::new();
    for (resource, keys) in shards {
        single.extend(leftovers(store, id, &resource).await?);
        match <[Key; 1]>::try_from(keys) {
            Ok([key]) => single.push(key),
            Err(keys) => delete_shards(store, id, &resource, &keys).await?,
        }
    }
    single.sort_unstable();
    single.dedup();
    store.shared.delete_all(OPERATION, &single).await?;
    for key in &single {
        store.shared.caches.forget(&key.pk);
    }
    Ok(u64::try_from(present).unwrap_or(u64::MAX))
}

/// What the Python product keeps beside a bucket: records of resets and top-ups.
async fn leftovers(store: &DynamoStore, id: &EntityId, resource: &str) -> Result<Vec<Key>, StoreError> {
    let partition = keys::bucket_of(&store.id, id.as_str(), resource, 0).pk;
    let sort = Sort::Prefix("#OP#".to_owned());
    let query = Query { index: None, partition, sort, start: None, limit: None, ascending: true, consistent: true };
    all_keys(store, query).await
}

/// All shards of a bucket at once: were one left alone, it would grant beside a new bucket. Those the index does not show
/// are among them.
async fn delete_shards(store: &DynamoStore, id: &EntityId, resource: &str, known: &[Key]) -> Result<(), StoreError> {
    let shard = |shard| keys::bucket_of(&store.id, id.as_str(), resource, shard);
    let delete = |shard_number| Write::Delete(Delete { key: shard(shard_number), conditions: Vec::new() });
    let writes: Vec<Write> = (0..SHARDS_MAX).map(delete).collect();
    store.shared.transact(OPERATION, &writes).await.map_err(|refused: Refused| refused.into_error(OPERATION))?;
    // Another writer may have made more than there should be.
    let more: Vec<Key> = known.iter().filter(|key| !(0..SHARDS_MAX).any(|number| shard(number) == **key)).cloned().collect();
    store.shared.delete_all(OPERATION, &more).await?;
    for key in (0..SHARDS_MAX).map(shard) {
        store.shared.caches.forget(&key.pk);
    }
    Ok(())
}

async fn delete_configs(store: &DynamoStore, id: &EntityId) -> Result<u64, StoreError> {
    let listing = Listing { index: None, partition: keys::entity_partition(&store.id, id), prefix: keys::ENTITY_CONFIG.to_owned() };
    let mut deleted = 0;
    for key in &all_keys(store, listing.after(None)).await? {
        deleted += u64::from(remove_entity_config(store, key, OPERATION).await?);
    }
    Ok(deleted)
}

async fn all_keys(store: &DynamoStore, query: Query) -> Result<Vec<Key>, StoreError> {
    let mut walk = Walk::new(&store.shared, OPERATION, query);
    let mut keys = Vec::new();
    while let Some(items) = walk.next().await? {
        keys.extend(items.iter().filter_map(key_of));
    }
    Ok(keys)
}
