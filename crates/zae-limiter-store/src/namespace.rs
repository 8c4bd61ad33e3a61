//! Namespaces: isolated tenants in one backend.

use std::sync::Arc;

use zae_limiter_core::{NamespaceId, NamespaceName, TimeMs};

use crate::{Change, Page, PageRequest, Store, StoreFuture};

/// The name of the namespace that every store begins with.
pub const DEFAULT_NAMESPACE: &str = "default";

/// The life of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NamespaceStatus {
    /// In use.
    Active,
    /// Soft-deleted: its name is free again, its data is kept until purged or recovered.
    Deleted,
    /// Being purged: it cannot be recovered any more.
    Purging,
}

impl NamespaceStatus {
    /// The word used in output and in storage.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NamespaceStatus::Active => "active",
            NamespaceStatus::Deleted => "deleted",
            NamespaceStatus::Purging => "purging",
        }
    }
}

/// One tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The opaque id its data is stored under; never reused.
    pub id: NamespaceId,
    /// The name people use.
    pub name: NamespaceName,
    /// Where in its life it is.
    pub status: NamespaceStatus,
    /// When it was registered.
    pub created_at: TimeMs,
    /// When it was deleted.
    pub deleted_at: Option<TimeMs>,
}

/// What a purge removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Records of any kind.
    pub records: u64,
}

/// The registry of namespaces, and the way into one.
///
/// The registry is common to all handles of a backend; everything else a handle does stays inside
/// its own namespace.
pub trait NamespaceStore: Send + Sync {
    /// Registers `name` under the opaque `id`. A name that is active already is returned as it is:
    /// registering twice is not an error.
    fn register_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace>;

    /// Active namespaces by name.
    fn namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>>;

    /// The active namespace of that name.
    fn namespace<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Option<Namespace>>;

    /// Soft-deletes; false when there is no active namespace of that name.
    fn delete_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        change: &'a Change,
    ) -> StoreFuture<'a, bool>;

    /// Brings a deleted namespace back under its name. Fails with `NotFound`, or with `State` when
    /// it is active, being purged, or its name has been taken meanwhile.
    fn recover_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace>;

    /// Deleted namespaces whose data is still there, by id.
    fn orphan_namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>>;

    /// Removes all data of a deleted namespace, in bounded steps, and then its record. The order is
    /// recorded before anything is gone. Can be repeated after a crash. Fails with `State` for an
    /// active one.
    fn purge_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Purged>;

    /// The namespace this handle is bound to.
    fn current_namespace(&self) -> NamespaceName;

    /// The id of that namespace; `None` for a handle that is bound to none. A name can be
    /// registered anew after it was deleted, by anybody; the id tells the two apart.
    fn current_namespace_id(&self) -> Option<NamespaceId>;

    /// A handle bound to another namespace; shares connections with this one. `NotFound` when it is
    /// not registered.
    fn scoped<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Arc<dyn Store>>;
}
