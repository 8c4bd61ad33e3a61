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
use crate::admin::version;
use crate::constants::ADMIN_ATTEMPTS_MAX;
use crate::records::attr;
use crate::records::item::{self, Event, details, index_actions, key_of, new_item, text_of};
use crate::records::keys;
use crate::table::page::{Listing, Walk};
use crate::table::retry::Refused;
use crate::table::{
    Action, Cancellation, Check, Comparison, Condition, Delete, Index, Item, Key, Put, Update,
    Write, compare_with, text,
};
use crate::{DynamoStore, Shared};

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
        Box::pin(register(&self.shared, name, id, change))
    }

    fn namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>> {
        Box::pin(list(self, "namespaces", keys::NAMESPACE, page, |_| true))
    }

    fn namespace<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Option<Namespace>> {
        Box::pin(async move {
            let found =
                read(&self.shared, "namespace", keys::namespace_by_name(name.as_str())).await?;
            found
                .as_ref()
                .map(item::namespace)
                .transpose()
                .map_err(|error| error.during("namespace"))
        })
    }

    fn delete_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        change: &'a Change,
    ) -> StoreFuture<'a, bool> {
        Box::pin(delete(&self.shared, name, change))
    }

    fn recover_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace> {
        Box::pin(recover(&self.shared, id, change))
    }

    fn orphan_namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>> {
        let is_orphan = |namespace: &Namespace| namespace.status != NamespaceStatus::Active;
        Box::pin(list(self, "orphan_namespaces", keys::NAMESPACE_ID, page, is_orphan))
    }

    fn purge_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Purged> {
        Box::pin(purge(self, id, change))
    }

    fn current_namespace(&self) -> NamespaceName {
        self.name.clone()
    }

    fn current_namespace_id(&self) -> Option<NamespaceId> {
        // Read from a record that was checked, or the mark of a handle that is bound to none.
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
        let id = version::check_and_find(&self.shared, name)
            .await
            .map_err(|error| error.during("scoped"))?;
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
    let id = text_of(record, attr::NAMESPACE_ID)
        .ok_or_else(|| item::corrupt(record, attr::NAMESPACE_ID, "is missing"))?;
    let id: NamespaceId = item::name_in(record, attr::NAMESPACE_ID, id)?;
    Ok(Some(Arc::from(id.as_str())))
}

async fn read(
    shared: &Shared,
    operation: &'static str,
    key: Key,
) -> Result<Option<Item>, StoreError> {
    Ok(shared.read_all(operation, &[key], true).await?.pop().flatten())
}

async fn list(
    store: &DynamoStore,
    operation: &'static str,
    prefix: &'static str,
    page: &PageRequest,
    wanted: impl Fn(&Namespace) -> bool,
) -> Result<Page<Namespace>, StoreError> {
    let listing = Listing {
        index: None,
        partition: keys::system_partition(keys::REGISTRY),
        prefix: prefix.to_owned(),
    };
    let read = |item: &Item| {
        let name =
            text_of(item, attr::SK).and_then(|sort| sort.strip_prefix(prefix)).unwrap_or_default();
        let namespace = item::namespace(item);
        let namespace = namespace.inspect_err(
            |error| tracing::warn!(operation, %error, "a namespace is left out of the listing"),
        );
        Ok((name.to_owned(), namespace.ok().filter(&wanted)))
    };
    store.shared.list(operation, &listing, page, read).await
}

fn absent() -> Vec<Condition> {
    vec![Condition::Absent(attr::PK.into())]
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

/// Registers a namespace under an id that was never used. An active one of that name is returned as
/// it is.
pub(crate) async fn register(
    shared: &Shared,
    name: &NamespaceName,
    id: &NamespaceId,
    change: &Change,
) -> Result<Namespace, StoreError> {
    const OPERATION: &str = "register_namespace";
    let by_name = keys::namespace_by_name(name.as_str());
    let (by_id, purged) = (keys::namespace_by_id(id.as_str()), keys::purged_namespace(id.as_str()));
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let found = shared
            .read_all(OPERATION, &[by_name.clone(), by_id.clone(), purged.clone()], true)
            .await?;
        if let Some(record) = &found[0] {
            return item::namespace(record).map_err(|error| error.during(OPERATION));
        }
        if found[1..].iter().any(Option::is_some) {
            return Err(StoreError::namespace_id_used(id));
        }
        let status = NamespaceStatus::Active;
        let namespace = Namespace {
            id: id.clone(),
            name: name.clone(),
            status,
            created_at: change.at,
            deleted_at: None,
        };
        let record = |key: &Key| {
            Write::Put(Put { item: item::namespace_item(key, &namespace), conditions: absent() })
        };
        let unused = Write::Check(Check { key: purged.clone(), conditions: absent() });
        let recorded = (change, event(AuditAction::NamespaceRegistered, &namespace));
        match shared
            .change_anywhere(
                OPERATION,
                id.as_str(),
                vec![record(&by_name), record(&by_id), unused],
                recorded,
            )
            .await?
        {
            Outcome::Made => return Ok(namespace),
            Outcome::Lost(_) => shared.back_off(attempt).await,
        }
    }
    Err(too_busy(OPERATION))
}

/// Soft-deletes: the name is free again, the data stays.
async fn delete(
    shared: &Shared,
    name: &NamespaceName,
    change: &Change,
) -> Result<bool, StoreError> {
    const OPERATION: &str = "delete_namespace";
    let by_name = keys::namespace_by_name(name.as_str());
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let Some(record) = read(shared, OPERATION, by_name.clone()).await? else {
            return Ok(false);
        };
        let namespace = item::namespace(&record).map_err(|error| error.during(OPERATION))?;
        let same = compare_with(attr::NAMESPACE_ID, Comparison::Eq, text(namespace.id.as_str()));
        let by_id = keys::namespace_by_id(namespace.id.as_str());
        let mut actions = vec![
            Action::Set(attr::STATUS.into(), text(NamespaceStatus::Deleted.as_str())),
            Action::Set(attr::DELETED_AT.into(), text(rfc3339(change.at))),
            // Written again, in case another writer lost the record halfway.
            Action::Set(attr::NAMESPACE_ID.into(), text(namespace.id.as_str())),
            Action::Set(attr::NAMESPACE_NAME.into(), text(namespace.name.as_str())),
            Action::SetIfAbsent(attr::CREATED_AT.into(), text(rfc3339(namespace.created_at))),
        ];
        actions.extend(index_actions(keys::REGISTRY, &by_id));
        let was_active =
            Condition::Any(vec![Condition::Absent(attr::PK.into()), has_status("active")]);
        let writes = vec![
            Write::Delete(Delete { key: by_name.clone(), conditions: vec![same] }),
            Write::Update(Update { key: by_id, actions, conditions: vec![was_active] }),
        ];
        let recorded = (change, event(AuditAction::NamespaceDeleted, &namespace));
        match shared.change_anywhere(OPERATION, namespace.id.as_str(), writes, recorded).await? {
            Outcome::Made => return Ok(true),
            Outcome::Lost(_) => shared.back_off(attempt).await,
        }
    }
    Err(too_busy(OPERATION))
}

async fn by_id(
    shared: &Shared,
    operation: &'static str,
    id: &NamespaceId,
) -> Result<Namespace, StoreError> {
    let record = read(shared, operation, keys::namespace_by_id(id.as_str()))
        .await?
        .ok_or_else(|| StoreError::namespace_missing(operation, id))?;
    item::namespace(&record).map_err(|error| error.during(operation))
}

async fn recover(
    shared: &Shared,
    id: &NamespaceId,
    change: &Change,
) -> Result<Namespace, StoreError> {
    const OPERATION: &str = "recover_namespace";
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let namespace = by_id(shared, OPERATION, id).await?;
        // Before its name is looked up: whether that is taken matters to a deleted one only.
        namespace.check_recoverable(false)?;
        let name_key = keys::namespace_by_name(namespace.name.as_str());
        let is_taken = read(shared, OPERATION, name_key.clone()).await?.is_some();
        namespace.check_recoverable(is_taken)?;
        let namespace =
            Namespace { status: NamespaceStatus::Active, deleted_at: None, ..namespace };
        let actions = vec![
            Action::Set(attr::STATUS.into(), text(NamespaceStatus::Active.as_str())),
            Action::Remove(attr::DELETED_AT.into()),
        ];
        let writes = vec![
            Write::Put(Put {
                item: item::namespace_item(&name_key, &namespace),
                conditions: absent(),
            }),
            Write::Update(Update {
                key: keys::namespace_by_id(id.as_str()),
                actions,
                conditions: vec![has_status("deleted")],
            }),
        ];
        let recorded = (change, event(AuditAction::NamespaceRecovered, &namespace));
        match shared.change_anywhere(OPERATION, id.as_str(), writes, recorded).await? {
            Outcome::Made => return Ok(namespace),
            Outcome::Lost(_) => shared.back_off(attempt).await,
        }
    }
    Err(too_busy(OPERATION))
}

/// Removes the data of a deleted namespace and then its record. The order is recorded before
/// anything is removed. After a crash in between the namespace is `purging`, and the next purge
/// goes on.
async fn purge(
    store: &DynamoStore,
    id: &NamespaceId,
    change: &Change,
) -> Result<Purged, StoreError> {
    const OPERATION: &str = "purge_namespace";
    let order = match order_purge(store, OPERATION, id, change).await? {
        Ordered::Marked(order) => order,
        Ordered::Done(purged) => return Ok(purged),
    };
    let records = remove_all(&store.shared, OPERATION, id).await?;
    finish_purge(&store.shared, OPERATION, order, records).await?;
    Ok(Purged { records })
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
    /// Who ordered it and when: kept on the record of the namespace, and on what stays of it.
    signature: Vec<(&'static str, AttributeValue)>,
}

/// Marks the record and stores the event, or changes nothing.
async fn order_purge(
    store: &DynamoStore,
    operation: &'static str,
    id: &NamespaceId,
    change: &Change,
) -> Result<Ordered, StoreError> {
    let shared = &*store.shared;
    let told_at = keys::audit(&store.id, &AuditSubject::System, &change.event.to_string());
    let mut wanted = vec![keys::namespace_by_id(id.as_str()), told_at];
    // A namespace that is purged from within has no log to tell it in.
    wanted.extend((*store.id != *id.as_str()).then(|| keys::namespace_by_id(&store.id)));
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let mut found = shared.read_all(operation, &wanted, true).await?.into_iter();
        let (record, told, here) =
            (found.next().flatten(), found.next().flatten(), found.next().flatten());
        let told = told.filter(|told| item::is_purge_of(told, id));
        let Some(record) = record else {
            // An earlier attempt at this very order whose answer was lost.
            let done = told.map(|told| Ordered::Done(Purged { records: item::purged_of(&told) }));
            return done.ok_or_else(|| StoreError::namespace_missing(operation, id));
        };
        let namespace = item::namespace(&record).map_err(|error| error.during(operation))?;
        namespace.check_purgeable()?;
        let signature = vec![
            ("purge_event", text(change.event.to_string())),
            (
                "purged_by",
                item::optional_text(change.principal.as_ref().map(|principal| principal.as_str())),
            ),
            ("purged_at", text(rfc3339(change.at))),
        ];
        if told.is_some() {
            return Ok(Ordered::Marked(PurgeOrder { namespace, told, signature }));
        }
        let mut actions =
            vec![Action::Set(attr::STATUS.into(), text(NamespaceStatus::Purging.as_str()))];
        actions.extend(
            signature.iter().map(|(name, value)| Action::Set((*name).into(), value.clone())),
        );
        let conditions = vec![Condition::Any(vec![has_status("deleted"), has_status("purging")])];
        let purging =
            Write::Update(Update { key: keys::namespace_by_id(id.as_str()), actions, conditions });
        // Its own log goes with it, so the deed is told where the order was given, if that is a
        // namespace.
        let is_told =
            here.as_ref().and_then(|record| text_of(record, attr::STATUS)) == Some("active");
        let lost = if is_told {
            let event = event(AuditAction::NamespacePurged, &namespace);
            let writes = vec![purging, Write::Check(is_active(&store.id))];
            matches!(
                shared.change_anywhere(operation, &store.id, writes, (change, event)).await?,
                Outcome::Lost(_)
            )
        } else {
            match shared.transact(operation, &[purging]).await {
                Ok(()) => false,
                Err(Refused::Canceled(_)) => true,
                Err(refused) => return Err(refused.into_error(operation)),
            }
        };
        if !lost {
            let event = || event(AuditAction::NamespacePurged, &namespace);
            let told = is_told.then(|| {
                item::audit_item(&store.id, change, event(), shared.options.audit_retention_s)
            });
            return Ok(Ordered::Marked(PurgeOrder { namespace, told, signature }));
        }
        shared.back_off(attempt).await;
    }
    Err(too_busy(operation))
}

async fn remove_all(
    shared: &Shared,
    operation: &'static str,
    id: &NamespaceId,
) -> Result<u64, StoreError> {
    let listed =
        Listing { index: Some(Index::Gsi4), partition: id.to_string(), prefix: String::new() };
    // The Python product writes a record here that no index lists.
    let system = Listing {
        index: None,
        partition: keys::system_partition(id.as_str()),
        prefix: String::new(),
    };
    let mut records = 0;
    for pass in 0..PURGE_PASSES_MAX {
        let mut found = 0;
        for listing in [&listed, &system] {
            let mut query = listing.after(None);
            query.limit = Some(PURGE_PAGE);
            let mut walk = Walk::new(shared, operation, query);
            while let Some(items) = walk.next().await? {
                let keys: Vec<Key> = items.iter().filter_map(key_of).collect();
                // An index shows for a while what is gone already.
                let present = shared.read_all(operation, &keys, true).await?;
                let keys: Vec<Key> = keys
                    .into_iter()
                    .zip(present)
                    .filter_map(|(key, item)| item.map(|_| key))
                    .collect();
                shared.delete_all(operation, &keys).await?;
                keys.iter().for_each(|key| shared.caches.forget(&key.pk));
                found += u64::try_from(keys.len()).unwrap_or(u64::MAX);
            }
        }
        if found == 0 {
            return Ok(records);
        }
        records += found;
        shared.back_off(pass + 1).await;
    }
    let message = format!(
        "somebody keeps writing to namespace {id} ({records} records were removed); stop its users, then purge it again"
    );
    Err(StoreError::new(StoreErrorKind::Busy, operation, message))
}

/// Removes the record, keeps its id from being used again, and tells in the event how much there
/// was.
async fn finish_purge(
    shared: &Shared,
    operation: &'static str,
    order: PurgeOrder,
    records: u64,
) -> Result<(), StoreError> {
    let id = order.namespace.id.as_str();
    let mut purged = new_item(keys::REGISTRY, &keys::purged_namespace(id));
    purged.extend(order.signature.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let mut writes = vec![
        Write::Delete(Delete {
            key: keys::namespace_by_id(id),
            conditions: vec![has_status("purging")],
        }),
        Write::Put(Put { item: purged, conditions: Vec::new() }),
    ];
    if let Some(told) = order.told {
        // Only where it still is: the log it was told in may be gone by now.
        let there = vec![Condition::Exists(attr::PK.into())];
        writes.push(Write::Put(Put { item: item::purge_told(told, records), conditions: there }));
    }
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let reasons = match shared.transact(operation, &writes).await {
            Ok(()) => return Ok(()),
            Err(Refused::Canceled(reasons)) => reasons,
            Err(refused) => return Err(refused.into_error(operation)),
        };
        // Lost to another purge of the same namespace: done is done.
        if matches!(reasons.first(), Some(Cancellation::Condition(_)))
            && read(shared, operation, keys::namespace_by_id(id)).await?.is_none()
        {
            return Ok(());
        }
        if matches!(reasons.get(2), Some(Cancellation::Condition(_))) {
            writes.truncate(2);
        }
        shared.back_off(attempt).await;
    }
    Err(too_busy(operation))
}
