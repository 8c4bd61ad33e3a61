//! Entities: one record each, and everything that hangs on it.

mod delete;

use std::collections::BTreeSet;

use zae_limiter_core::{AuditAction, AuditSubject, Entity, EntityId};
use zae_limiter_store::{Change, EntityUpdate, Lineage, NewEntity, Page, PageRequest, StoreError};

use crate::DynamoStore;
use crate::admin::change::{Outcome, is_same_event, too_busy};
use crate::config::accepted;
use crate::constants::ADMIN_ATTEMPTS_MAX;
use crate::records::attr;
use crate::records::item::{
    self, Event, details, metadata_value, stored_version, text_of, version_of,
};
use crate::records::keys;
use crate::table::page::{Listing, position, size_of};
use crate::table::{
    Action, Cancellation, Check, Comparison, Condition, Index, Item, Put, Update, Write, compare,
    number, text,
};

pub(crate) use delete::{check_staying, delete, is_leaving, is_staying};

/// Requests one page of the list of entities makes at most.
const LIST_QUERIES_MAX: u32 = 64;

/// Whose buckets they are: what is stamped on a new one, so that others can tell whether it is
/// stale. Empty for an entity without a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) parent: Option<EntityId>,
    pub(crate) cascade: bool,
    pub(crate) pgen: Option<i64>,
    pub(crate) pinc: Option<String>,
    /// The entity is being deleted: its limits may be half gone, so nothing is taken by them.
    pub(crate) is_leaving: bool,
    /// Who its takes went on to when it was created, the parent first: what to read along. Only a
    /// hint; the records of the ancestors decide.
    pub(crate) ancestors: Vec<EntityId>,
}

fn event<'a>(id: &EntityId, action: AuditAction, details: item::Details) -> Event<'a> {
    Event {
        subject: AuditSubject::Entity(id.clone()),
        action,
        resource: None,
        details,
        version: None,
    }
}

pub(crate) async fn create(
    store: &DynamoStore,
    new: &NewEntity,
    change: &Change,
) -> Result<Entity, StoreError> {
    const OPERATION: &str = "create_entity";
    new.check()?;
    let ancestors = read_lineage(store, new, OPERATION).await?;
    let incarnation = format!("{:016x}", store.shared.options.entropy.next_u64());
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let (gone, unchanged) = versions_gone(store, OPERATION).await?;
        let entity = new.created_at(change.at, gone.saturating_add(1));
        let record = item::entity_item(&store.id, &entity, &incarnation, &ancestors);
        let mut writes = vec![Write::Put(Put {
            item: record,
            conditions: vec![Condition::Absent(attr::PK.into())],
        })];
        // The parent counts its children: whoever is deleting it at this moment loses.
        writes.extend(new.parent.as_ref().map(|parent| {
            let key = keys::entity(&store.id, parent);
            let actions = vec![Action::Add(attr::CHILDREN_EVER.into(), 1)];
            let stays = Condition::Absent(attr::DELETING.into());
            Write::Update(Update {
                key,
                actions,
                conditions: vec![Condition::Exists(attr::PK.into()), stays],
            })
        }));
        writes.push(unchanged);
        let recorded =
            (change, event(&new.id, AuditAction::EntityCreated, details::entity(&entity)));
        let reasons = match store.shared.change(OPERATION, &store.id, writes, recorded).await? {
            Outcome::Made => {
                store.shared.caches.forget_owner(&store.id, &new.id);
                return Ok(entity);
            }
            Outcome::Lost(reasons) => reasons,
        };
        if let Some(Cancellation::Condition(found)) = reasons.first() {
            check_staying(OPERATION, &new.id, found.as_ref())?;
            return Err(StoreError::entity_exists(&new.id));
        }
        if let (Some(Cancellation::Condition(found)), Some(parent)) = (reasons.get(1), &new.parent)
        {
            check_staying(OPERATION, parent, found.as_ref())?;
            return Err(StoreError::entity_missing(OPERATION, parent));
        }
        store.shared.back_off(attempt).await;
    }
    Err(too_busy(OPERATION))
}

/// The highest version of all deleted entities, and the condition that none was deleted since: an
/// entity that is created anew begins behind every version that somebody may have read of the one
/// before. Deletions by the Python product, which has no versions, are not counted.
async fn versions_gone(
    store: &DynamoStore,
    operation: &'static str,
) -> Result<(u64, Write), StoreError> {
    let key = keys::entity_versions(&store.id);
    let found =
        store.shared.read_all(operation, std::slice::from_ref(&key), true).await?.pop().flatten();
    let gone = found.as_ref().map_or(0, |item| version_of(item, attr::VERSION));
    let same = match &found {
        Some(_) => compare(attr::VERSION, Comparison::Eq, stored_version(gone)),
        None => Condition::Absent(attr::VERSION.into()),
    };
    Ok((gone, Write::Check(Check { key, conditions: vec![same] })))
}

/// Reads the ancestors of a new entity, and checks that there are not too many.
async fn read_lineage(
    store: &DynamoStore,
    new: &NewEntity,
    operation: &'static str,
) -> Result<Vec<EntityId>, StoreError> {
    let mut lineage = Lineage::of(new);
    while let Some(id) = lineage.wanted() {
        let record = store.read_active(operation, keys::entity(&store.id, id)).await?;
        let cascades_to = |item: Item| match new.cascade {
            true => Owner::read(&item).map(|owner| owner.parent.filter(|_| owner.cascade)),
            false => Ok(None),
        };
        let found = record.map(cascades_to).transpose();
        lineage.found(found.map_err(|error| error.during(operation))?)?;
    }
    Ok(lineage.into_ancestors())
}

pub(crate) async fn update(
    store: &DynamoStore,
    (id, expected_version): (&EntityId, u64),
    update: &EntityUpdate,
    change: &Change,
) -> Result<Entity, StoreError> {
    const OPERATION: &str = "update_entity";
    let key = keys::entity(&store.id, id);
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let item = store
            .read_active(OPERATION, key.clone())
            .await?
            .ok_or_else(|| StoreError::entity_missing(OPERATION, id))?;
        // Its version was counted when the deletion was ordered: a later one could come back.
        check_staying(OPERATION, id, Some(&item))?;
        let before = item::entity(&item).map_err(|error| error.during(OPERATION))?;
        if before.version != expected_version && is_told(store, id, change, OPERATION).await? {
            // An earlier attempt of this caller has landed, and its answer was lost.
            return Ok(before);
        }
        let entity = update.apply(&before, expected_version)?;
        let version = number(stored_version(entity.version));
        let mut actions = vec![Action::Set(attr::VERSION.into(), version)];
        // Only what is changed is written: values of others that are no text stay as they are.
        let name = update.name.as_deref().map(text);
        actions.extend(name.map(|name| Action::Set(attr::NAME.into(), name)));
        let metadata = update.metadata.as_ref().map(metadata_value);
        actions.extend(metadata.map(|pairs| Action::Set(attr::METADATA.into(), pairs)));
        let same_version = match item.get(attr::VERSION) {
            Some(_) => compare(attr::VERSION, Comparison::Eq, stored_version(expected_version)),
            None => Condition::Absent(attr::VERSION.into()),
        };
        let stays = Condition::Absent(attr::DELETING.into());
        let conditions = vec![Condition::Exists(attr::PK.into()), same_version, stays];
        let writes = vec![Write::Update(Update { key: key.clone(), actions, conditions })];
        let recorded = (
            change,
            event(id, AuditAction::EntityUpdated, details::entity_update(&entity, &before)),
        );
        match store.shared.change(OPERATION, &store.id, writes, recorded).await? {
            Outcome::Made => return Ok(entity),
            Outcome::Lost(_) => store.shared.back_off(attempt).await,
        }
    }
    Err(too_busy(OPERATION))
}

/// True when the event of an update is stored already.
async fn is_told(
    store: &DynamoStore,
    id: &EntityId,
    change: &Change,
    operation: &'static str,
) -> Result<bool, StoreError> {
    let key = keys::audit(&store.id, &AuditSubject::Entity(id.clone()), &change.event.to_string());
    let found = store.shared.read_all(operation, &[key], true).await?.pop().flatten();
    let Some((found, details)) =
        found.as_ref().and_then(|found| Some((found, item::details_of(found)?)))
    else {
        return Ok(false);
    };
    Ok(is_same_event(
        found,
        &item::audit_item(&store.id, change, event(id, AuditAction::EntityUpdated, details), 0),
    ))
}

/// Direct children, by id.
pub(crate) async fn children(
    store: &DynamoStore,
    parent: &EntityId,
    page: &PageRequest,
) -> Result<Page<Entity>, StoreError> {
    const OPERATION: &str = "children";
    store.check_namespace(OPERATION).await?;
    store
        .shared
        .list(OPERATION, &children_of(store, parent), page, |item| Ok(read_child(item, OPERATION)))
        .await
}

fn children_of(store: &DynamoStore, parent: &EntityId) -> Listing {
    let partition = keys::index::children(&store.id, parent);
    Listing { index: Some(Index::Gsi1), partition, prefix: keys::index::CHILD.to_owned() }
}

fn read_child(item: &Item, operation: &'static str) -> (String, Option<Entity>) {
    let name = text_of(item, attr::GSI1SK).and_then(keys::index::parse_child).unwrap_or_default();
    (name.to_owned(), readable(item, operation))
}

/// The entity, or `None` with a warning when another writer made it in a way this version does not
/// accept.
fn readable(item: &Item, operation: &'static str) -> Option<Entity> {
    let read = item::entity(item);
    read.inspect_err(
        |error| tracing::warn!(operation, %error, "an entity is left out of the listing"),
    )
    .ok()
}

/// All entities, by id. The index has one entry per record of an entity (its configuration, its
/// usage); after each request the next one begins behind the last entity seen, so that a long
/// history costs one request, not many.
pub(crate) async fn list(
    store: &DynamoStore,
    page: &PageRequest,
) -> Result<Page<Entity>, StoreError> {
    const OPERATION: &str = "entities";
    let prefix = keys::index::entities(&store.id);
    let listing = Listing {
        index: Some(Index::Gsi4),
        partition: store.id.to_string(),
        prefix: prefix.clone(),
    };
    let mut after = position(page, OPERATION)?.map(ToOwned::to_owned);
    let size = size_of(page);
    let mut entities: Vec<Entity> = Vec::new();
    let mut start = None;
    store.check_namespace(OPERATION).await?;
    for _ in 0..LIST_QUERIES_MAX {
        let mut query = listing.after(after.as_deref());
        query.start = start.take();
        query.limit = i32::try_from((size + 1).saturating_sub(entities.len())).ok();
        let found = store.shared.query(OPERATION, &query).await?;
        let sorts = found
            .items
            .iter()
            .filter_map(|item| text_of(item, attr::GSI4SK)?.strip_prefix(&prefix));
        let names: BTreeSet<&str> = sorts.collect();
        let ids: Vec<EntityId> =
            names.iter().filter_map(|name| accepted(OPERATION, name)).collect();
        let keys: Vec<_> = ids.iter().map(|id| keys::entity(&store.id, id)).collect();
        // Records without an entity are those of callers nobody registered, or of a deleted one.
        let items = store.shared.read_all(OPERATION, &keys, true).await?;
        entities.extend(items.iter().flatten().filter_map(|item| readable(item, OPERATION)));
        let last = names.last().map(|name| (*name).to_owned());
        let is_over = found.last.is_none();
        // A page without a name has nothing else to go on from.
        start = found.last.filter(|_| last.is_none());
        after = last.or(after);
        if is_over || entities.len() > size {
            return Ok(Page::cut(entities, page, |entity| entity.id.to_string()));
        }
    }
    // Not one entity in all these records: a short page, and the caller asks on.
    Ok(Page { items: entities, next: after.map(zae_limiter_store::Cursor) })
}
