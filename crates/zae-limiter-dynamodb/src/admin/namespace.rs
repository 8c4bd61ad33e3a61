//! The registry of namespaces: one record by name, while it is active, and one by id, until it is
//! purged.

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{AuditAction, AuditSubject, NamespaceId, NamespaceName, rfc3339};
use zae_limiter_store::{
    Change, Namespace, NamespaceStatus, NamespaceStore, Page, PageRequest, Purged, Store,
    StoreError, StoreErrorKind, StoreFuture,
};

use crate::admin::change::{Outcome, is_active, too_busy};
use crate::constants::ADMIN_ATTEMPTS_MAX;
use crate::records::attr;
use crate::records::item::{self, Event, details, index_actions, key_of, new_item, text_of};
use crate::records::keys;
use crate::table::page::{Listing, readable};
use crate::table::retry::Refused;
use crate::table::{
    Action, Cancellation, Check, Comparison, Condition, Delete, Index, Item, Key, Put, Query, Sort,
    Update, Write, absent, compare_with, exists, text,
};
use crate::{DynamoStore, Shared};

const PURGE: &str = "purge_namespace";

/// How often a purge goes over a namespace. The index lags behind, so the last pass must find
/// nothing.
const PURGE_PASSES_MAX: u32 = 10;

/// Records that one step of a purge looks at.
const PURGE_PAGE: i32 = 100;

impl NamespaceStore for DynamoStore {
    fn register_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace> {
        Box::pin(self.shared.register(name, id, change))
    }

    fn namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>> {
        Box::pin(self.shared.list_namespaces("namespaces", keys::NAMESPACE, page, |_| true))
    }

    fn namespace<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Option<Namespace>> {
        Box::pin(self.shared.read_namespace("namespace", keys::namespace_by_name(name.as_str())))
    }

    fn delete_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        change: &'a Change,
    ) -> StoreFuture<'a, bool> {
        Box::pin(self.shared.delete_softly(name, change))
    }

    fn recover_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace> {
        Box::pin(self.shared.recover(id, change))
    }

    fn orphan_namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>> {
        let is_orphan = |namespace: &Namespace| namespace.status != NamespaceStatus::Active;
        Box::pin(self.shared.list_namespaces(
            "orphan_namespaces",
            keys::NAMESPACE_ID,
            page,
            is_orphan,
        ))
    }

    fn purge_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Purged> {
        Box::pin(self.purge(id, change))
    }

    fn current_namespace(&self) -> NamespaceName {
        self.name.clone()
    }

    fn current_namespace_id(&self) -> Option<NamespaceId> {
        // `id` is either from a checked record or `NO_NAMESPACE`.
        (*self.id != *keys::NO_NAMESPACE).then(|| self.id.parse().ok()).flatten()
    }

    fn scoped<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Arc<dyn Store>> {
        Box::pin(async move {
            let handle: Arc<dyn Store> = Arc::new(self.in_namespace(name).await?);
            Ok(handle)
        })
    }
}

impl DynamoStore {
    /// A handle bound to another namespace, as [`NamespaceStore::scoped`], with its own type.
    ///
    /// Cost: one `BatchGetItem`.
    pub async fn in_namespace(&self, name: &NamespaceName) -> Result<DynamoStore, StoreError> {
        let found = self.shared.check_and_find(name).await;
        let id = found.map_err(|error| error.during("scoped"))?;
        Ok(DynamoStore { shared: Arc::clone(&self.shared), name: name.clone(), id })
    }
}

/// The id in a record by name; `None` when there is no active namespace of that name.
pub(crate) fn id_of(record: Option<&Item>) -> Result<Option<Arc<str>>, StoreError> {
    let Some(record) = record.filter(|record| text_of(record, attr::STATUS) == Some("active"))
    else {
        return Ok(None);
    };
    // Checked like our own: it goes into every key.
    let id = item::required_text(record, attr::NAMESPACE_ID)?;
    let id: NamespaceId = item::name_in(record, attr::NAMESPACE_ID, id)?;
    Ok(Some(Arc::from(id.as_str())))
}

fn has_status(status: &str) -> Condition {
    compare_with(attr::STATUS, Comparison::Eq, text(status))
}

fn event<'a>(action: AuditAction, namespace: &Namespace) -> Event<'a> {
    Event {
        subject: AuditSubject::System,
        action,
        resource: None,
        details: details::namespace(namespace),
        version: None,
    }
}

impl Shared {
    async fn read_namespace(
        &self,
        operation: &'static str,
        key: Key,
    ) -> Result<Option<Namespace>, StoreError> {
        let [record] = self.read(operation, &[key]).await?;
        let namespace = record.as_ref().map(item::namespace).transpose();
        namespace.map_err(|error| error.during(operation))
    }

    async fn list_namespaces(
        &self,
        operation: &'static str,
        prefix: &'static str,
        page: &PageRequest,
        wanted: impl Fn(&Namespace) -> bool,
    ) -> Result<Page<Namespace>, StoreError> {
        let partition = keys::system_partition(keys::REGISTRY);
        let listing = Listing { index: None, partition, prefix: prefix.to_owned() };
        let read = |item: &Item| {
            let name = text_of(item, attr::SK).and_then(|sort| sort.strip_prefix(prefix));
            let namespace = readable(operation, "a namespace", item::namespace(item));
            Ok((name.unwrap_or_default().to_owned(), namespace.filter(&wanted)))
        };
        self.list(operation, &listing, page, read).await
    }

    /// Registers a namespace under an id that was never used. An active one of that name is
    /// returned as it is.
    pub(crate) async fn register(
        &self,
        name: &NamespaceName,
        id: &NamespaceId,
        change: &Change,
    ) -> Result<Namespace, StoreError> {
        const OPERATION: &str = "register_namespace";
        let keys = [
            keys::namespace_by_name(name.as_str()),
            keys::namespace_by_id(id.as_str()),
            keys::purged_namespace(id.as_str()),
        ];
        let [by_name, by_id, purged] = &keys;
        let namespace = Namespace {
            id: id.clone(),
            name: name.clone(),
            status: NamespaceStatus::Active,
            created_at: change.at,
            deleted_at: None,
        };
        let attempt = || async {
            let [named, used, erased] = self.read(OPERATION, &keys).await?;
            if let Some(record) = &named {
                return item::namespace(record).map(Some).map_err(|error| error.during(OPERATION));
            }
            if used.is_some() || erased.is_some() {
                return Err(StoreError::namespace_id_used(id));
            }
            let record = |key| Write::create(item::namespace_item(key, &namespace));
            let unused = Write::Check(Check { key: purged.clone(), conditions: vec![absent()] });
            let writes = vec![record(by_name), record(by_id), unused];
            let recorded = (change, event(AuditAction::NamespaceRegistered, &namespace));
            let made = self.change_anywhere(OPERATION, id.as_str(), writes, recorded).await?;
            Ok(made.then_some(namespace.clone()))
        };
        self.until_made(OPERATION, attempt).await
    }

    /// Soft-deletes: the name is free again, the data stays.
    async fn delete_softly(
        &self,
        name: &NamespaceName,
        change: &Change,
    ) -> Result<bool, StoreError> {
        const OPERATION: &str = "delete_namespace";
        let by_name = keys::namespace_by_name(name.as_str());
        let attempt = || async {
            let Some(namespace) = self.read_namespace(OPERATION, by_name.clone()).await? else {
                return Ok(Some(false));
            };
            let (id, created_at) = (namespace.id.as_str(), rfc3339(namespace.created_at));
            let same = compare_with(attr::NAMESPACE_ID, Comparison::Eq, text(id));
            let by_id = keys::namespace_by_id(id);
            let mut actions = vec![
                Action::Set(attr::STATUS.into(), text(NamespaceStatus::Deleted.as_str())),
                Action::Set(attr::DELETED_AT.into(), text(rfc3339(change.at))),
                // Written again, in case another writer lost the record halfway.
                Action::Set(attr::NAMESPACE_ID.into(), text(id)),
                Action::Set(attr::NAMESPACE_NAME.into(), text(namespace.name.as_str())),
                Action::SetIfAbsent(attr::CREATED_AT.into(), text(created_at)),
            ];
            actions.extend(index_actions(keys::REGISTRY, &by_id));
            let was_active = vec![Condition::Any(vec![absent(), has_status("active")])];
            let writes = vec![
                Write::Delete(Delete { key: by_name.clone(), conditions: vec![same] }),
                Write::Update(Update { key: by_id, actions, conditions: was_active }),
            ];
            let recorded = (change, event(AuditAction::NamespaceDeleted, &namespace));
            let made = self.change_anywhere(OPERATION, id, writes, recorded).await?;
            Ok(made.then_some(true))
        };
        self.until_made(OPERATION, attempt).await
    }

    async fn recover(&self, id: &NamespaceId, change: &Change) -> Result<Namespace, StoreError> {
        const OPERATION: &str = "recover_namespace";
        let key = keys::namespace_by_id(id.as_str());
        let attempt = || async {
            let namespace = self
                .read_namespace(OPERATION, key.clone())
                .await?
                .ok_or_else(|| StoreError::namespace_missing(OPERATION, id))?;
            // Before the name is looked up: a taken name matters to a deleted namespace only.
            namespace.check_recoverable(false)?;
            let name_key = keys::namespace_by_name(namespace.name.as_str());
            let [named] = self.read(OPERATION, std::array::from_ref(&name_key)).await?;
            namespace.check_recoverable(named.is_some())?;
            let namespace =
                Namespace { status: NamespaceStatus::Active, deleted_at: None, ..namespace };
            let actions = vec![
                Action::Set(attr::STATUS.into(), text(NamespaceStatus::Active.as_str())),
                Action::Remove(attr::DELETED_AT.into()),
            ];
            let conditions = vec![has_status("deleted")];
            let writes = vec![
                Write::create(item::namespace_item(&name_key, &namespace)),
                Write::Update(Update { key: key.clone(), actions, conditions }),
            ];
            let recorded = (change, event(AuditAction::NamespaceRecovered, &namespace));
            let made = self.change_anywhere(OPERATION, id.as_str(), writes, recorded).await?;
            Ok(made.then_some(namespace))
        };
        self.until_made(OPERATION, attempt).await
    }
}

/// An order to purge a namespace.
enum Ordered {
    Marked(PurgeOrder),
    /// The order was carried out before, by an earlier attempt or by somebody else.
    Done(Purged),
}

/// What the end of a purge needs to know of its beginning.
struct PurgeOrder {
    namespace: Namespace,
    /// The event as it was stored; `None` when there is no log to tell it in.
    told: Option<Item>,
    /// The principal and the time of the order: kept on the record of the namespace, and on the
    /// mark that stays of it.
    signature: Vec<(&'static str, AttributeValue)>,
}

impl DynamoStore {
    /// Removes the data of a deleted namespace and then its record. The order is recorded before
    /// anything is removed. After a crash in between the namespace is `purging`, and the next purge
    /// goes on.
    async fn purge(&self, id: &NamespaceId, change: &Change) -> Result<Purged, StoreError> {
        let order = match self.order_purge(id, change).await? {
            Ordered::Marked(order) => order,
            Ordered::Done(purged) => return Ok(purged),
        };
        let records = self.shared.remove_all(id).await?;
        self.shared.finish_purge(order, records).await?;
        Ok(Purged { records })
    }

    /// Marks the record and stores the event, or changes nothing.
    async fn order_purge(&self, id: &NamespaceId, change: &Change) -> Result<Ordered, StoreError> {
        let key = keys::namespace_by_id(id.as_str());
        let told_at = keys::audit(&self.id, AuditSubject::System, change.event);
        let mut wanted = vec![key.clone(), told_at];
        // A namespace that is purged from within has no log to tell it in.
        wanted.extend((*self.id != *id.as_str()).then(|| keys::namespace_by_id(&self.id)));
        let by = change.principal.as_ref().map(|principal| principal.as_str());
        let signature = vec![
            ("purge_event", text(change.event.to_string())),
            ("purged_by", item::optional_text(by)),
            ("purged_at", text(rfc3339(change.at))),
        ];
        let attempt = || async {
            let mut found = self.shared.read_all(PURGE, &wanted).await?.into_iter();
            let mut next = || found.next().flatten();
            let (record, told, here) = (next(), next(), next());
            let told = told.filter(|told| item::is_purge_of(told, id));
            let Some(record) = record else {
                // An earlier attempt at this very order whose answer was lost.
                let told = told.ok_or_else(|| StoreError::namespace_missing(PURGE, id))?;
                return Ok(Some(Ordered::Done(Purged { records: item::purged_of(&told) })));
            };
            let namespace = item::namespace(&record).map_err(|error| error.during(PURGE))?;
            namespace.check_purgeable()?;
            let signature = signature.clone();
            if told.is_some() {
                return Ok(Some(Ordered::Marked(PurgeOrder { namespace, told, signature })));
            }
            let mut actions =
                vec![Action::Set(attr::STATUS.into(), text(NamespaceStatus::Purging.as_str()))];
            let signed = signature.iter().cloned();
            actions.extend(signed.map(|(name, value)| Action::Set(name.into(), value)));
            let conditions =
                vec![Condition::Any(vec![has_status("deleted"), has_status("purging")])];
            let purging = Write::Update(Update { key: key.clone(), actions, conditions });
            // The log of the namespace is purged with it, so the event is stored where the order
            // was given, if that is a namespace.
            let is_told =
                here.as_ref().and_then(|record| text_of(record, attr::STATUS)) == Some("active");
            let event = || event(AuditAction::NamespacePurged, &namespace);
            let made = if is_told {
                let writes = vec![purging, Write::Check(is_active(&self.id))];
                let recorded = (change, event());
                self.shared.change_anywhere(PURGE, &self.id, writes, recorded).await?
            } else {
                match self.shared.transact(PURGE, &[purging]).await {
                    Ok(()) => Outcome::Made,
                    Err(Refused::Canceled(reasons)) => Outcome::Lost(reasons),
                    Err(refused) => return Err(refused.into_error(PURGE)),
                }
            };
            let retention_s = self.shared.audit_retention_s().await;
            let told = is_told.then(|| item::audit_item(&self.id, change, event(), retention_s));
            Ok(made.then_some(Ordered::Marked(PurgeOrder { namespace, told, signature })))
        };
        self.shared.until_made(PURGE, attempt).await
    }
}

impl Shared {
    async fn remove_all(&self, id: &NamespaceId) -> Result<u64, StoreError> {
        let listed = Query::of(Some(Index::Gsi4), id.to_string(), Sort::All);
        // The Python package writes a record here that no index lists.
        let system = Query::of(None, keys::system_partition(id.as_str()), Sort::All);
        let mut records = 0;
        for pass in 1..=PURGE_PASSES_MAX {
            let mut found = 0;
            for query in [&listed, &system] {
                let query = Query { limit: Some(PURGE_PAGE), ..query.clone() };
                let mut walk = self.walk(PURGE, query);
                while let Some(items) = walk.next().await? {
                    let mut keys: Vec<Key> = items.iter().filter_map(key_of).collect();
                    // An index shows for a while what is gone already.
                    let mut present = self.read_all(PURGE, &keys).await?.into_iter();
                    keys.retain(|_| present.next().flatten().is_some());
                    self.delete_all(PURGE, &keys).await?;
                    keys.iter().for_each(|key| self.caches.forget(&key.pk));
                    found += u64::try_from(keys.len()).unwrap_or(u64::MAX);
                }
            }
            if found == 0 {
                return Ok(records);
            }
            records += found;
            self.back_off(pass).await;
        }
        let message = format!(
            "somebody keeps writing to namespace {id} ({records} records were removed); stop its users, then purge it again"
        );
        Err(StoreError::new(StoreErrorKind::Busy, PURGE, message))
    }

    /// Removes the record, keeps its id from being used again, and tells in the event how much
    /// there was.
    async fn finish_purge(&self, order: PurgeOrder, records: u64) -> Result<(), StoreError> {
        let key = keys::namespace_by_id(order.namespace.id.as_str());
        let purged_key = keys::purged_namespace(order.namespace.id.as_str());
        let mut purged = new_item(keys::REGISTRY, &purged_key);
        purged.extend(order.signature.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let conditions = vec![has_status("purging")];
        let mut writes = vec![
            Write::Delete(Delete { key: key.clone(), conditions }),
            Write::Put(Put { item: purged, conditions: Vec::new() }),
        ];
        if let Some(told) = order.told {
            // Only if the event is still there: its log may be gone by now.
            let (item, conditions) = (item::purge_told(told, records), vec![exists()]);
            writes.push(Write::Put(Put { item, conditions }));
        }
        for attempt in 1..=ADMIN_ATTEMPTS_MAX {
            let reasons = match self.transact(PURGE, &writes).await {
                Ok(()) => return Ok(()),
                Err(Refused::Canceled(reasons)) => reasons,
                Err(refused) => return Err(refused.into_error(PURGE)),
            };
            // Another purge of the same namespace has finished it.
            if matches!(reasons.first(), Some(Cancellation::Condition(_)))
                && self.read(PURGE, std::array::from_ref(&key)).await? == [None]
            {
                return Ok(());
            }
            if matches!(reasons.get(2), Some(Cancellation::Condition(_))) {
                writes.truncate(2);
            }
            self.back_off(attempt).await;
        }
        Err(too_busy(PURGE))
    }
}
