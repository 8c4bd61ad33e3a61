//! Wrappers around a store: a wrapper implements [`StoreWrapper`], overrides the methods it looks
//! into, and is a [`Store`]. The list of the methods of the contract is here once.

use std::sync::Arc;
use std::time::Duration;

use zae_limiter_core::{
    AuditEvent, Entity, EntityId, Flag, NamespaceId, NamespaceName, Report, ResourceName, TimeMs,
    UsageSnapshot, UsageSummary,
};

use crate::{
    Adjusted, Adopted, Adoption, AtOnce, AuditQuery, BoxFuture, BucketDelta, BucketStore,
    BucketView, Capabilities, Change, ConfigStore, ConsumeOutcome, ConsumeRequest, DeletedEntity,
    EntityUpdate, Grant, HistoryStore, Level, LevelConfig, LimitsChange, Managed, ManagedChange,
    MemberKey, Namespace, NamespaceStore, NewEntity, Order, Page, PageRequest, Provisioned, Purged,
    ResetRequest, Resolution, Restored, Store, StoreError, StoreFuture, Swept, UsageQuery,
};

/// Writes the trait of wrappers and the traits of a store in terms of it, from one list of methods.
/// The methods that are no call with one answer are written out below.
macro_rules! wrapper {
    ($($name:ident {
        $($method:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*
    } and { $($by_hand:tt)* })*) => {
        /// A store around a store. Every method goes through [`StoreWrapper::around`] unless the
        /// wrapper overrides it.
        #[doc(hidden)]
        pub trait StoreWrapper: Send + Sync {
            /// The store inside.
            type Inner: Store + ?Sized;

            fn inner(&self) -> &Self::Inner;

            /// Makes a call of the store inside. `operation` is the name of the method.
            fn around<'a, T: Send + 'a>(
                &'a self,
                operation: &'static str,
                call: impl FnOnce(&'a Self::Inner) -> StoreFuture<'a, T> + Send + 'a,
            ) -> StoreFuture<'a, T>;

            /// The same wrapper around a handle to another namespace.
            fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store>;

            fn adjust<'a>(
                &'a self,
                deltas: &'a [BucketDelta<'a>],
                now: TimeMs,
            ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>>;

            /// [`AtOnce::NotYet`]: the wrapper sees the take in `consume`.
            fn decide_at_once(&self, request: &ConsumeRequest<'_>, grant: &mut Grant) -> AtOnce {
                let _ = (request, grant);
                AtOnce::NotYet
            }

            fn resolve_within<'a>(
                &'a self,
                keys: &'a [MemberKey<'a>],
                age_max: Duration,
            ) -> StoreFuture<'a, Resolution> {
                self.around("resolve", move |inner| inner.resolve_within(keys, age_max))
            }

            fn forget_config(&self) {
                self.inner().forget_config();
            }

            fn capabilities(&self) -> Capabilities {
                self.inner().capabilities()
            }

            $($(
                fn $method<'a>(&'a self, $($argument: $kind),*) -> StoreFuture<'a, $answer> {
                    self.around(stringify!($method), move |inner| inner.$method($($argument),*))
                }
            )*)*
        }

        $(impl<W: StoreWrapper> $name for W {
            $(
                fn $method<'a>(&'a self, $($argument: $kind),*) -> StoreFuture<'a, $answer> {
                    StoreWrapper::$method(self, $($argument),*)
                }
            )*
            $($by_hand)*
        })*
    };
}

wrapper! {
    BucketStore {
        consume(request: &'a ConsumeRequest<'a>) -> ConsumeOutcome;
        peek(request: &'a ConsumeRequest<'a>) -> ConsumeOutcome;
        provision(order: &'a Order<'a>, now: TimeMs) -> Provisioned;
        settle(
            entity: &'a EntityId,
            resource: &'a ResourceName,
            report: &'a Report,
            now: TimeMs
        ) -> ();
        reset(request: &'a ResetRequest<'a>, change: &'a Change) -> Option<Restored>;
        buckets(entity: &'a EntityId, page: &'a PageRequest) -> Page<BucketView>;
        resource_buckets(resource: &'a ResourceName, page: &'a PageRequest) -> Page<BucketView>;
        namespace_buckets(page: &'a PageRequest) -> Page<BucketView>;
        adopt(adoption: &'a Adoption<'a>, change: &'a Change) -> Vec<Adopted>;
    } and {
        fn adjust<'a>(
            &'a self,
            deltas: &'a [BucketDelta<'a>],
            now: TimeMs,
        ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
            StoreWrapper::adjust(self, deltas, now)
        }

        fn decide_at_once(&self, request: &ConsumeRequest<'_>, grant: &mut Grant) -> AtOnce {
            StoreWrapper::decide_at_once(self, request, grant)
        }
    }
    ConfigStore {
        create_entity(entity: &'a NewEntity, change: &'a Change) -> Entity;
        entity(id: &'a EntityId) -> Option<Entity>;
        update_entity(
            id: &'a EntityId,
            expected_version: u64,
            update: &'a EntityUpdate,
            change: &'a Change
        ) -> Entity;
        delete_entity(id: &'a EntityId, change: &'a Change) -> DeletedEntity;
        children(parent: &'a EntityId, page: &'a PageRequest) -> Page<Entity>;
        entities(page: &'a PageRequest) -> Page<Entity>;
        set_limits(level: &'a Level, limits: &'a LimitsChange, change: &'a Change) -> u64;
        delete_limits(level: &'a Level, change: &'a Change) -> bool;
        set_flag(level: &'a Level, flag: Option<Flag>, change: &'a Change) -> u64;
        level(level: &'a Level) -> Option<LevelConfig>;
        resolve(keys: &'a [MemberKey<'a>]) -> Resolution;
        resources_with_defaults(page: &'a PageRequest) -> Page<ResourceName>;
        entities_with_limits(resource: Option<&'a ResourceName>, page: &'a PageRequest)
            -> Page<EntityId>;
        resources_with_entity_limits(page: &'a PageRequest) -> Page<Option<ResourceName>>;
        managed(part: u32) -> Option<Managed>;
        set_managed(part: u32, managed: &'a ManagedChange, change: &'a Change) -> u64;
    } and {
        fn resolve_within<'a>(
            &'a self,
            keys: &'a [MemberKey<'a>],
            age_max: Duration,
        ) -> StoreFuture<'a, Resolution> {
            StoreWrapper::resolve_within(self, keys, age_max)
        }

        fn forget_config(&self) {
            StoreWrapper::forget_config(self);
        }
    }
    HistoryStore {
        audit_events(query: &'a AuditQuery) -> Page<AuditEvent>;
        audit_log(page: &'a PageRequest) -> Page<AuditEvent>;
        usage(query: &'a UsageQuery) -> Page<UsageSnapshot>;
        usage_summary(query: &'a UsageQuery) -> Option<UsageSummary>;
    } and {}
    NamespaceStore {
        register_namespace(name: &'a NamespaceName, id: &'a NamespaceId, change: &'a Change)
            -> Namespace;
        namespaces(page: &'a PageRequest) -> Page<Namespace>;
        namespace(name: &'a NamespaceName) -> Option<Namespace>;
        delete_namespace(name: &'a NamespaceName, change: &'a Change) -> bool;
        recover_namespace(id: &'a NamespaceId, change: &'a Change) -> Namespace;
        orphan_namespaces(page: &'a PageRequest) -> Page<Namespace>;
        purge_namespace(id: &'a NamespaceId, change: &'a Change) -> Purged;
    } and {
        fn current_namespace(&self) -> NamespaceName {
            self.inner().current_namespace()
        }

        fn current_namespace_id(&self) -> Option<NamespaceId> {
            self.inner().current_namespace_id()
        }

        fn scoped<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Arc<dyn Store>> {
            Box::pin(async move {
                let scoped = self.around("scoped", move |inner| inner.scoped(name)).await?;
                Ok(self.wrap(scoped))
            })
        }
    }
    Store {
        ping() -> ();
        sweep(now: TimeMs, steps_max: u32) -> Swept;
        sweep_horizon(now: TimeMs) -> Option<TimeMs>;
        store_time(now: TimeMs) -> TimeMs;
        give_back(now: TimeMs) -> ();
    } and {
        fn capabilities(&self) -> Capabilities {
            StoreWrapper::capabilities(self)
        }
    }
}
