//! The registry of namespaces.

use std::sync::Arc;

use zae_limiter_core::{AuditAction, AuditSubject, NamespaceId, NamespaceName};

use super::config::{after, paged};
use super::directory::{Deed, Directory, Tenant};
use super::{MemoryStore, lazily, lock};
use crate::{
    BoxFuture, Change, Namespace, NamespaceStatus, NamespaceStore, Page, PageRequest, Purged,
    Store, StoreError, StoreErrorKind,
};

impl NamespaceStore for MemoryStore {
    fn register_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Namespace, StoreError>> {
        lazily(move || self.register_now(name, id, change))
    }

    fn namespaces<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<Namespace>, StoreError>> {
        lazily(move || {
            let directory = self.shared.read_directory();
            let active = directory
                .active
                .range::<str, _>(after(page))
                .map(|(_, number)| directory.tenant(*number));
            Ok(paged(active.filter_map(|tenant| tenant.namespace.clone()), page, |namespace| {
                namespace.name.to_string()
            }))
        })
    }

    fn namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
    ) -> BoxFuture<'a, Result<Option<Namespace>, StoreError>> {
        lazily(move || {
            let directory = self.shared.read_directory();
            Ok(directory
                .active
                .get(name)
                .and_then(|number| directory.tenant(*number).namespace.clone()))
        })
    }

    fn delete_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        lazily(move || Ok(self.delete_now(name, change)))
    }

    fn recover_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Namespace, StoreError>> {
        lazily(move || self.recover_now(id, change))
    }

    fn orphan_namespaces<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<Namespace>, StoreError>> {
        lazily(move || {
            let directory = self.shared.read_directory();
            let stored = directory
                .ids
                .range::<str, _>(after(page))
                .filter_map(|(_, number)| directory.tenant(*number).namespace.clone());
            Ok(paged(
                stored.filter(|namespace| namespace.status != NamespaceStatus::Active),
                page,
                |namespace| namespace.id.to_string(),
            ))
        })
    }

    fn purge_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Purged, StoreError>> {
        lazily(move || self.purge_now(id, change))
    }

    fn current_namespace(&self) -> NamespaceName {
        self.name.clone()
    }

    fn current_namespace_id(&self) -> Option<NamespaceId> {
        Some(self.id.clone())
    }

    fn scoped<'a>(
        &'a self,
        name: &'a NamespaceName,
    ) -> BoxFuture<'a, Result<Arc<dyn Store>, StoreError>> {
        lazily(move || {
            let directory = self.shared.read_directory();
            let number = directory.active.get(name).copied();
            let found = number
                .and_then(|number| Some((number, directory.tenant(number).namespace.as_ref()?)));
            let (number, namespace) = found.ok_or_else(|| {
                StoreError::new(
                    StoreErrorKind::NotFound,
                    "scoped",
                    format!("namespace \"{name}\" is not registered; register it first"),
                )
            })?;
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
        let active = directory
            .active
            .get(name)
            .and_then(|number| directory.tenant(*number).namespace.clone());
        if let Some(namespace) = active {
            return Ok(namespace);
        }
        if directory.ids.contains_key(id) {
            let message = format!(
                "namespace id {id} has been used; ids are never used again, choose another"
            );
            return Err(StoreError::new(
                StoreErrorKind::AlreadyExists,
                "register_namespace",
                message,
            ));
        }
        let status = NamespaceStatus::Active;
        let namespace = Namespace {
            id: id.clone(),
            name: name.clone(),
            status,
            created_at: change.at,
            deleted_at: None,
        };
        let number = directory.add(namespace.clone());
        self.record(
            directory.tenant_mut(number),
            AuditAction::NamespaceRegistered,
            &namespace,
            change,
        );
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
        const OPERATION: &str = "recover_namespace";
        let mut directory = self.shared.write_directory();
        let (number, mut namespace) = stored(&directory, id, OPERATION)?;
        let refusal = match namespace.status {
            NamespaceStatus::Active => {
                Some(format!("namespace {id} is active; there is nothing to recover"))
            }
            NamespaceStatus::Purging => {
                Some(format!("namespace {id} is being purged; it cannot be recovered any more"))
            }
            NamespaceStatus::Deleted if directory.active.contains_key(&namespace.name) => {
                Some(format!(
                    "the name \"{}\" of namespace {id} has been taken; delete its present holder first",
                    namespace.name
                ))
            }
            NamespaceStatus::Deleted => None,
        };
        if let Some(message) = refusal {
            return Err(StoreError::new(StoreErrorKind::State, OPERATION, message));
        }
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
        const OPERATION: &str = "purge_namespace";
        let mut directory = self.shared.write_directory();
        let (number, namespace) = stored(&directory, id, OPERATION)?;
        if namespace.status == NamespaceStatus::Active {
            let message = format!(
                "namespace {id} (\"{}\") is active; delete it before purging it",
                namespace.name
            );
            return Err(StoreError::new(StoreErrorKind::State, OPERATION, message));
        }
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
        let details = vec![
            ("namespace".to_owned(), namespace.name.to_string()),
            ("id".to_owned(), namespace.id.to_string()),
        ];
        let deed = Deed { action, subject: AuditSubject::System, resource: None, details };
        tenant.audit.record(change, deed, self.shared.options.audit_events_max);
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
    found.ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::NotFound,
            operation,
            format!("there is no namespace {id}; list the orphans to see those there are"),
        )
    })
}
