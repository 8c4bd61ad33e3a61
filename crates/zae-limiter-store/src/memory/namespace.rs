//! The registry of namespaces.

use std::sync::Arc;

use zae_limiter_core::{AuditAction, NamespaceId, NamespaceName};

use super::directory::{Directory, Tenant};
use super::page::{after, paged};
use super::{MemoryStore, lazily, lock};
use crate::{
    Change, Namespace, NamespaceStatus, NamespaceStore, Page, PageRequest, Purged, Store,
    StoreError, StoreFuture, audit,
};

impl NamespaceStore for MemoryStore {
    fn register_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace> {
        lazily(move || self.register_now(name, id, change))
    }

    fn namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>> {
        lazily(move || {
            let directory = self.shared.read_directory();
            let active = directory.active.range::<str, _>(after(page));
            let found =
                active.filter_map(|(_, number)| directory.tenant(*number).namespace.clone());
            Ok(paged(found, page, |namespace| namespace.name.to_string()))
        })
    }

    fn namespace<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Option<Namespace>> {
        lazily(move || {
            let directory = self.shared.read_directory();
            Ok(directory.find(name).map(|(_, namespace)| namespace.clone()))
        })
    }

    fn delete_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        change: &'a Change,
    ) -> StoreFuture<'a, bool> {
        lazily(move || Ok(self.delete_now(name, change)))
    }

    fn recover_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace> {
        lazily(move || self.recover_now(id, change))
    }

    fn orphan_namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>> {
        lazily(move || {
            let directory = self.shared.read_directory();
            let known = directory.ids.range::<str, _>(after(page));
            let orphans = known
                .filter_map(|(_, number)| directory.tenant(*number).namespace.clone())
                .filter(|namespace| namespace.status != NamespaceStatus::Active);
            Ok(paged(orphans, page, |namespace| namespace.id.to_string()))
        })
    }

    fn purge_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Purged> {
        lazily(move || self.purge_now(id, change))
    }

    fn current_namespace(&self) -> NamespaceName {
        self.name.clone()
    }

    fn current_namespace_id(&self) -> Option<NamespaceId> {
        Some(self.id.clone())
    }

    fn scoped<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Arc<dyn Store>> {
        lazily(move || {
            let directory = self.shared.read_directory();
            let missing = || StoreError::namespace_not_registered("scoped", name);
            let (number, namespace) = directory.find(name).ok_or_else(missing)?;
            let handle: Arc<dyn Store> = Arc::new(self.bound_to(number, namespace));
            Ok(handle)
        })
    }
}

impl MemoryStore {
    fn register_now(
        &self,
        name: &NamespaceName,
        id: &NamespaceId,
        change: &Change,
    ) -> Result<Namespace, StoreError> {
        let mut directory = self.shared.write_directory();
        if let Some((_, namespace)) = directory.find(name) {
            return Ok(namespace.clone());
        }
        if directory.ids.contains_key(id) {
            return Err(StoreError::namespace_id_used(id));
        }
        let (id, name, status) = (id.clone(), name.clone(), NamespaceStatus::Active);
        let namespace = Namespace { id, name, status, created_at: change.at, deleted_at: None };
        let number = directory.add(namespace.clone());
        let tenant = directory.tenant_mut(number);
        self.record(tenant, AuditAction::NamespaceRegistered, &namespace, change);
        Ok(namespace)
    }

    fn delete_now(&self, name: &NamespaceName, change: &Change) -> bool {
        let mut directory = self.shared.write_directory();
        let Some(number) = directory.active.remove(name) else { return false };
        let tenant = directory.tenant_mut(number);
        let Some(namespace) = &mut tenant.namespace else { return false };
        namespace.status = NamespaceStatus::Deleted;
        namespace.deleted_at = Some(change.at);
        let namespace = namespace.clone();
        self.record(tenant, AuditAction::NamespaceDeleted, &namespace, change);
        true
    }

    fn recover_now(&self, id: &NamespaceId, change: &Change) -> Result<Namespace, StoreError> {
        let mut directory = self.shared.write_directory();
        let (number, mut namespace) = stored(&directory, id, "recover_namespace")?;
        namespace.check_recoverable(directory.active.contains_key(&namespace.name))?;
        namespace.status = NamespaceStatus::Active;
        namespace.deleted_at = None;
        directory.active.insert(namespace.name.clone(), number);
        let tenant = directory.tenant_mut(number);
        tenant.namespace = Some(namespace.clone());
        self.record(tenant, AuditAction::NamespaceRecovered, &namespace, change);
        Ok(namespace)
    }

    fn purge_now(&self, id: &NamespaceId, change: &Change) -> Result<Purged, StoreError> {
        let number = self.mark_purging(id, change)?;
        // From here on no bucket of it can come into being: every shard that has been visited stays
        // clean.
        let mut records = 0;
        self.shared.each_shard(|shard| {
            let before = shard.table.len();
            shard.table.retain(|entry| entry.scope.number != number);
            let removed = before - shard.table.len();
            self.shared.give_back_room(removed);
            let before = shard.usage.rows.len();
            shard.usage.rows.retain(|key, _| key.number != number);
            records += (removed + before - shard.usage.rows.len()) as u64;
        });
        lock(&self.shared.scopes).clear();
        let mut directory = self.shared.write_directory();
        let tenant = std::mem::take(directory.tenant_mut(number));
        records += tenant.config.records() + tenant.audit.events.len() as u64;
        Ok(Purged { records })
    }

    /// The order is recorded before anything is gone, and where it was given: its own log goes with
    /// the namespace.
    fn mark_purging(&self, id: &NamespaceId, change: &Change) -> Result<u32, StoreError> {
        let mut directory = self.shared.write_directory();
        let (number, namespace) = stored(&directory, id, "purge_namespace")?;
        namespace.check_purgeable()?;
        directory.tenant_mut(number).namespace =
            Some(Namespace { status: NamespaceStatus::Purging, ..namespace.clone() });
        let here = directory.tenant_mut(self.number);
        if here.is_active() {
            self.record(here, AuditAction::NamespacePurged, &namespace, change);
        }
        Ok(number)
    }

    fn record(
        &self,
        tenant: &mut Tenant,
        action: AuditAction,
        namespace: &Namespace,
        change: &Change,
    ) {
        let event = audit::of_namespace(change, action, namespace);
        tenant.audit.record(event, self.shared.options.audit_events_max);
    }
}

/// The namespace of that id, unless it was never registered or has been purged.
fn stored(
    directory: &Directory,
    id: &NamespaceId,
    operation: &'static str,
) -> Result<(u32, Namespace), StoreError> {
    let number = directory.ids.get(id).copied();
    let found =
        number.and_then(|number| Some((number, directory.tenant(number).namespace.clone()?)));
    found.ok_or_else(|| StoreError::namespace_missing(operation, id))
}
