//! Entities: one record each, and everything that hangs on it.

mod delete;

use std::collections::BTreeSet;

use zae_limiter_core::{AuditAction, AuditSubject, Entity, EntityId};
use zae_limiter_store::{
    Change, Cursor, EntityUpdate, Lineage, NewEntity, Page, PageRequest, StoreError,
};

use crate::DynamoStore;
use crate::admin::change::{Outcome, is_same_event};
use crate::config::accepted;
use crate::records::attr;
use crate::records::item::{
    self, Event, details, metadata_value, stored_version, text_of, version_of,
};
use crate::records::keys;
use crate::table::page::{Listing, position, readable, size_of};
use crate::table::{
    Action, Cancellation, Check, Comparison, Condition, Index, Item, Update, Write, compare,
    exists, number, text,
};

pub(crate) use delete::{check_staying, is_leaving, is_staying};

/// Requests one page of the list of entities makes at most.
const LIST_QUERIES_MAX: u32 = 64;

/// The owner of a bucket. Each new bucket is stamped with its owner, so that other processes can
/// tell whether the bucket is stale. Empty for an entity without a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) parent: Option<EntityId>,
    pub(crate) cascade: bool,
    pub(crate) pgen: Option<i64>,
    pub(crate) pinc: Option<String>,
    /// The entity is being deleted: its limits may be half gone, so nothing is taken by them.
    pub(crate) is_leaving: bool,
    /// The entities its takes went on to when it was created, the parent first: a hint what to read
    /// along. The records of the ancestors decide.
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

impl DynamoStore {
    pub(crate) async fn make_entity(
        &self,
        new: &NewEntity,
        change: &Change,
    ) -> Result<Entity, StoreError> {
        const OPERATION: &str = "create_entity";
        new.check()?;
        let ancestors = self.read_lineage(new, OPERATION).await?;
        let incarnation = format!("{:016x}", self.shared.options.entropy.next_u64());
        let attempt = || async {
            let (gone, unchanged) = self.versions_gone(OPERATION).await?;
            let entity = new.created_at(change.at, gone.saturating_add(1));
            let record = item::entity_item(&self.id, &entity, &incarnation, &ancestors);
            let mut writes = vec![Write::create(record)];
            // The parent counts its children: a deletion of the parent at this moment loses.
            writes.extend(new.parent.as_ref().map(|parent| {
                let key = keys::entity(&self.id, parent);
                let actions = vec![Action::Add(attr::CHILDREN_EVER.into(), 1)];
                let conditions = vec![exists(), Condition::Absent(attr::DELETING.into())];
                Write::Update(Update { key, actions, conditions })
            }));
            writes.push(unchanged);
            let told = event(&new.id, AuditAction::EntityCreated, details::entity(&entity));
            match self.shared.change(OPERATION, &self.id, writes, (change, told)).await? {
                Outcome::Made => {
                    self.shared.caches.forget_owner(&self.id, &new.id);
                    Ok(Some(entity))
                }
                Outcome::Lost(reasons) => refuse_creation(OPERATION, new, &reasons).map(|()| None),
            }
        };
        self.shared.until_made(OPERATION, attempt).await
    }

    /// The highest version of all deleted entities, and the condition that none was deleted since:
    /// an entity that is created anew begins behind every version that a caller may have read of
    /// the one before. Deletions by the Python package, which has no versions, are not counted.
    async fn versions_gone(&self, operation: &'static str) -> Result<(u64, Write), StoreError> {
        let key = keys::entity_versions(&self.id);
        let [found] = self.shared.read(operation, std::array::from_ref(&key)).await?;
        let gone = found.as_ref().map_or(0, |item| version_of(item, attr::VERSION));
        let same = match &found {
            Some(_) => compare(attr::VERSION, Comparison::Eq, stored_version(gone)),
            None => Condition::Absent(attr::VERSION.into()),
        };
        Ok((gone, Write::Check(Check { key, conditions: vec![same] })))
    }

    /// Reads the ancestors of a new entity, and checks that there are not too many.
    async fn read_lineage(
        &self,
        new: &NewEntity,
        operation: &'static str,
    ) -> Result<Vec<EntityId>, StoreError> {
        let mut lineage = Lineage::of(new);
        while let Some(id) = lineage.wanted() {
            let record = self.read_active(operation, keys::entity(&self.id, id)).await?;
            let cascades_to = |item: Item| match new.cascade {
                true => Owner::read(&item).map(|owner| owner.parent.filter(|_| owner.cascade)),
                false => Ok(None),
            };
            let found = record.map(cascades_to).transpose();
            lineage.found(found.map_err(|error| error.during(operation))?)?;
        }
        Ok(lineage.into_ancestors())
    }

    pub(crate) async fn change_entity(
        &self,
        (id, expected_version): (&EntityId, u64),
        update: &EntityUpdate,
        change: &Change,
    ) -> Result<Entity, StoreError> {
        const OPERATION: &str = "update_entity";
        let key = keys::entity(&self.id, id);
        let attempt = || async {
            let item = self
                .read_active(OPERATION, key.clone())
                .await?
                .ok_or_else(|| StoreError::entity_missing(OPERATION, id))?;
            // Its version was counted when the deletion was ordered: a later one could come back.
            check_staying(OPERATION, id, Some(&item))?;
            let before = item::entity(&item).map_err(|error| error.during(OPERATION))?;
            if before.version != expected_version && self.is_told(id, change, OPERATION).await? {
                // An earlier attempt of this caller has landed, and its answer was lost.
                return Ok(Some(before));
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
            let conditions = vec![exists(), same_version, stays];
            let writes = vec![Write::Update(Update { key: key.clone(), actions, conditions })];
            let details = details::entity_update(&entity, &before);
            let recorded = (change, event(id, AuditAction::EntityUpdated, details));
            let made = self.shared.change(OPERATION, &self.id, writes, recorded).await?;
            Ok(made.then_some(entity))
        };
        self.shared.until_made(OPERATION, attempt).await
    }

    /// True when the event of an update is stored already.
    async fn is_told(
        &self,
        id: &EntityId,
        change: &Change,
        operation: &'static str,
    ) -> Result<bool, StoreError> {
        let key = keys::audit(&self.id, AuditSubject::Entity(id.clone()), change.event);
        let [found] = self.shared.read(operation, &[key]).await?;
        let is_same = |found: Item| {
            let told = event(id, AuditAction::EntityUpdated, item::details_of(&found)?);
            Some(is_same_event(&found, &item::audit_item(&self.id, change, told, 0)))
        };
        Ok(found.and_then(is_same).unwrap_or(false))
    }

    /// Direct children, by id.
    pub(crate) async fn list_children(
        &self,
        parent: &EntityId,
        page: &PageRequest,
    ) -> Result<Page<Entity>, StoreError> {
        const OPERATION: &str = "children";
        self.check_namespace(OPERATION).await?;
        let read = |item: &Item| {
            let name = text_of(item, attr::GSI1SK).and_then(keys::index::parse_child);
            let entity = readable(OPERATION, "an entity", item::entity(item));
            Ok((name.unwrap_or_default().to_owned(), entity))
        };
        self.shared.list(OPERATION, &self.children_of(parent), page, read).await
    }

    fn children_of(&self, parent: &EntityId) -> Listing {
        let partition = keys::index::children(&self.id, parent);
        Listing { index: Some(Index::Gsi1), partition, prefix: keys::index::CHILD.to_owned() }
    }

    /// All entities, by id. The index has one entry per record of an entity (its configuration, its
    /// usage); after each request the next one begins behind the last entity seen, so that a long
    /// history costs one request, not many.
    pub(crate) async fn list_entities(
        &self,
        page: &PageRequest,
    ) -> Result<Page<Entity>, StoreError> {
        const OPERATION: &str = "entities";
        let (partition, prefix) = (self.id.to_string(), keys::index::entities(&self.id));
        let listing = Listing { index: Some(Index::Gsi4), partition, prefix };
        let mut after = position(page, OPERATION)?.map(ToOwned::to_owned);
        let size = size_of(page);
        let (mut entities, mut start) = (Vec::new(), None);
        self.check_namespace(OPERATION).await?;
        for _ in 0..LIST_QUERIES_MAX {
            let mut query = listing.after(after.as_deref());
            query.start = start.take();
            query.limit = i32::try_from((size + 1).saturating_sub(entities.len())).ok();
            let found = self.shared.query(OPERATION, &query).await?;
            let name = |item| text_of(item, attr::GSI4SK)?.strip_prefix(&listing.prefix);
            let names: BTreeSet<&str> = found.items.iter().filter_map(name).collect();
            let ids = names.iter().filter_map(|name| accepted::<EntityId>(OPERATION, name));
            let keys: Vec<_> = ids.map(|id| keys::entity(&self.id, &id)).collect();
            // Records without an entity are those of callers nobody registered, or of a deleted
            // one.
            let items = self.shared.read_all(OPERATION, &keys).await?;
            let read = |item| readable(OPERATION, "an entity", item::entity(item));
            entities.extend(items.iter().flatten().filter_map(read));
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
        Ok(Page { items: entities, next: after.map(Cursor) })
    }
}

/// Says why an entity cannot be created; a race that was lost is no reason.
fn refuse_creation(
    operation: &'static str,
    new: &NewEntity,
    reasons: &[Cancellation],
) -> Result<(), StoreError> {
    if let Some(Cancellation::Condition(found)) = reasons.first() {
        check_staying(operation, &new.id, found.as_ref())?;
        return Err(StoreError::entity_exists(&new.id));
    }
    if let (Some(Cancellation::Condition(found)), Some(parent)) = (reasons.get(1), &new.parent) {
        check_staying(operation, parent, found.as_ref())?;
        return Err(StoreError::entity_missing(operation, parent));
    }
    Ok(())
}
