//! Namespaces: isolated tenants in one store.

use tracing::Instrument;
use zae_limiter_core::{IntoName, NamespaceId, NamespaceName};
use zae_limiter_store::{Namespace, Page, PageRequest, Purged};

use super::RateLimiter;
use super::admin::admin_span;
use crate::error::Error;

impl RateLimiter {
    /// A handle for another namespace. It shares connections, breaker and settler with this one,
    /// and its cache with every other handle for the same namespace.
    ///
    /// A handle stays with the namespace it was made for. Once that namespace is deleted, by any
    /// process, every call through the handle is an error (a take within the config-cache TTL).
    /// When the name has been registered again, `namespace` enters the new one, also through the
    /// old handle.
    pub async fn namespace(
        &self,
        name: impl IntoName<NamespaceName>,
    ) -> Result<RateLimiter, Error> {
        let name = name.into_name()?;
        let store = self.admin("namespace", self.store().scoped(&name)).await?;
        let scope = RateLimiter::scope(&self.scope.shared, store);
        Ok(RateLimiter { scope, author: self.author.clone() })
    }

    /// Registers a namespace; registering twice returns the one there is.
    pub async fn register_namespace(
        &self,
        name: impl IntoName<NamespaceName>,
    ) -> Result<Namespace, Error> {
        let name = name.into_name()?;
        let id = NamespaceId::from_entropy(self.scope.shared.entropy.next_u64());
        self.admin(
            "register_namespace",
            self.store().register_namespace(&name, &id, &self.change()),
        )
        .await
    }

    /// Registers several namespaces, in order. A name that breaks its rule is found before any is
    /// registered; if the store fails half way, those before stay registered, and repeating the
    /// call registers the rest.
    ///
    /// Cost: that of `register_namespace` for each.
    pub async fn register_namespaces<N: IntoName<NamespaceName>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<Namespace>, Error> {
        let names = names
            .into_iter()
            .map(IntoName::into_name)
            .collect::<Result<Vec<NamespaceName>, _>>()?;
        let mut registered = Vec::with_capacity(names.len());
        for name in names {
            registered.push(self.register_namespace(name).await?);
        }
        Ok(registered)
    }

    /// Active namespaces, by name.
    pub async fn namespaces(&self, page: &PageRequest) -> Result<Page<Namespace>, Error> {
        self.admin("namespaces", self.store().namespaces(page)).await
    }

    /// The active namespace of that name, as registered; `None` when there is none.
    pub async fn namespace_info(
        &self,
        name: impl IntoName<NamespaceName>,
    ) -> Result<Option<Namespace>, Error> {
        let name = name.into_name()?;
        self.admin("namespace_info", self.store().namespace(&name)).await
    }

    /// Soft-deletes a namespace: its name is free again, its data can be recovered until it is
    /// purged. Handles to it stop admitting within their config-cache TTL. False when there is none
    /// of that name.
    pub async fn delete_namespace(
        &self,
        name: impl IntoName<NamespaceName>,
    ) -> Result<bool, Error> {
        let name = name.into_name()?;
        let deleted = self
            .admin("delete_namespace", self.store().delete_namespace(&name, &self.change()))
            .await;
        self.forget_scope(&name);
        deleted
    }

    /// Brings a deleted namespace back.
    pub async fn recover_namespace(
        &self,
        id: impl IntoName<NamespaceId>,
    ) -> Result<Namespace, Error> {
        let id = id.into_name()?;
        self.admin("recover_namespace", self.store().recover_namespace(&id, &self.change())).await
    }

    /// Deleted namespaces whose data is still there, by id.
    pub async fn orphan_namespaces(&self, page: &PageRequest) -> Result<Page<Namespace>, Error> {
        self.admin("orphan_namespaces", self.store().orphan_namespaces(page)).await
    }

    /// Removes all data of a deleted namespace for good. This call has no deadline.
    pub async fn purge_namespace(&self, id: impl IntoName<NamespaceId>) -> Result<Purged, Error> {
        let id = id.into_name()?;
        let change = self.change();
        let purge = self.store().purge_namespace(&id, &change);
        Ok(purge.instrument(admin_span("purge_namespace")).await?)
    }

    /// Empties the cache of every handle of this process to a namespace of that name.
    fn forget_scope(&self, name: &NamespaceName) {
        let scopes =
            self.scope.shared.scopes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for scope in
            scopes.iter().filter(|((of, _), _)| of == name).filter_map(|(_, scope)| scope.upgrade())
        {
            scope.cache.evict_all();
        }
    }
}
