//! A store that fails on purpose: for tests of everything that stands above one.

use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use zae_limiter_core::TimeMs;

use crate::{Adjusted, BoxFuture, BucketDelta, ConsumeOutcome, Store, StoreError, StoreErrorKind};

/// What happens to one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the call goes through.
    #[default]
    None,
    /// It fails and was not applied, as when no connection could be made.
    FailBefore(StoreErrorKind),
    /// It is applied, and then its reply is lost: the caller sees the error.
    FailAfter(StoreErrorKind),
    /// It is never applied and never answered.
    Hang,
    /// It is applied and never answered.
    HangAfter,
    /// It is pending for that many polls (each wakes its task), then applied: so that a test can
    /// drop it in between.
    Yield(u32),
}

/// Decides what happens to each call. A closure is one:
/// `|operation| if operation == "consume" { .. }`.
pub trait FaultPlan: Send + Sync {
    /// Asked once per call, when it is first polled. `operation` is the name of the method.
    fn next(&self, operation: &'static str) -> Fault;
}

impl<F: Fn(&'static str) -> Fault + Send + Sync> FaultPlan for F {
    fn next(&self, operation: &'static str) -> Fault {
        self(operation)
    }
}

/// Wraps a store and lets a [`FaultPlan`] interfere with every call that does I/O.
///
/// ```
/// use std::sync::Arc;
/// use zae_limiter_store::{Fault, FaultStore, MemoryStore, Store, StoreErrorKind};
///
/// let down = FaultStore::new(Arc::new(MemoryStore::new()), |_operation: &'static str| {
///     Fault::FailBefore(StoreErrorKind::Unavailable)
/// });
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let error = runtime.block_on(down.ping()).map_err(|error| error.kind());
/// assert_eq!(error, Err(StoreErrorKind::Unavailable));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FaultStore<S: ?Sized> {
    inner: Arc<S>,
    plan: Arc<dyn FaultPlan>,
}

impl<S: Store + ?Sized> FaultStore<S> {
    /// `inner` under `plan`. Handles to other namespaces follow the same plan.
    pub fn new(inner: Arc<S>, plan: impl FaultPlan + 'static) -> FaultStore<S> {
        FaultStore { inner, plan: Arc::new(plan) }
    }

    /// The store inside, where nothing fails.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// `lost` makes the reply that stands for an error.
    fn disturb<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a S) -> BoxFuture<'a, T> + Send + 'a,
        lost: impl FnOnce(StoreErrorKind) -> T + Send + 'a,
    ) -> BoxFuture<'a, T> {
        let inner = &*self.inner;
        Box::pin(async move {
            match self.plan.next(operation) {
                Fault::None => call(inner).await,
                Fault::FailBefore(kind) => lost(kind),
                Fault::FailAfter(kind) => {
                    call(inner).await;
                    lost(kind)
                }
                Fault::Hang => pending().await,
                Fault::HangAfter => {
                    call(inner).await;
                    pending().await
                }
                Fault::Yield(times) => {
                    yield_times(times).await;
                    call(inner).await
                }
            }
        })
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a S) -> BoxFuture<'a, Result<T, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        self.disturb(operation, call, move |kind| Err(injected(kind, operation)))
    }

    fn around_decision<'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a S) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        self.around(operation, call)
    }

    fn around_adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        let lost = |kind| deltas.iter().map(|_| Err(injected(kind, "adjust"))).collect();
        self.disturb("adjust", move |inner| inner.adjust(deltas, now), lost)
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(FaultStore { inner: scoped, plan: Arc::clone(&self.plan) })
    }
}

impl<S: ?Sized> Clone for FaultStore<S> {
    fn clone(&self) -> Self {
        FaultStore { inner: Arc::clone(&self.inner), plan: Arc::clone(&self.plan) }
    }
}

impl<S: fmt::Debug + ?Sized> fmt::Debug for FaultStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

fn injected(kind: StoreErrorKind, operation: &'static str) -> StoreError {
    StoreError::new(kind, operation, "a fault was injected by the test's plan")
}

async fn yield_times(times: u32) {
    let mut left = times;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Writes the traits of a [`Store`] for a wrapper around one. The wrapper has a field
/// `inner: Arc<S>` and decides in four methods of its own: `around` (a call and its name),
/// `around_decision` (the same for `consume` and `peek`), `around_adjust`, and `wrap` (a handle to
/// another namespace).
macro_rules! forward_store {
    ($wrapper:ident) => {
        impl<S: $crate::Store + ?Sized> $crate::BucketStore for $wrapper<S> {
            fn adjust<'a>(
                &'a self,
                deltas: &'a [$crate::BucketDelta<'a>],
                now: zae_limiter_core::TimeMs,
            ) -> $crate::BoxFuture<'a, Vec<Result<$crate::Adjusted, $crate::StoreError>>> {
                self.around_adjust(deltas, now)
            }

            $crate::fault::forward! { around_decision:
                consume(request: &'a $crate::ConsumeRequest<'a>) -> $crate::ConsumeOutcome;
                peek(request: &'a $crate::ConsumeRequest<'a>) -> $crate::ConsumeOutcome;
            }
            $crate::fault::forward! { around:
                reset(request: &'a $crate::ResetRequest<'a>, change: &'a $crate::Change)
                    -> Option<Vec<(zae_limiter_core::LimitName, zae_limiter_core::Milli)>>;
                buckets(entity: &'a zae_limiter_core::EntityId, page: &'a $crate::PageRequest) -> $crate::Page<$crate::BucketView>;
                resource_buckets(resource: &'a zae_limiter_core::ResourceName, page: &'a $crate::PageRequest)
                    -> $crate::Page<$crate::BucketView>;
            }
        }

        impl<S: $crate::Store + ?Sized> $crate::ConfigStore for $wrapper<S> {
            fn resolve_within<'a>(
                &'a self,
                keys: &'a [$crate::MemberKey<'a>],
                age_max: std::time::Duration,
            ) -> $crate::BoxFuture<'a, Result<$crate::Resolution, $crate::StoreError>> {
                self.around("resolve", move |inner| inner.resolve_within(keys, age_max))
            }

            fn forget_config(&self) {
                self.inner.forget_config();
            }

            $crate::fault::forward! { around:
                create_entity(entity: &'a $crate::NewEntity, change: &'a $crate::Change) -> zae_limiter_core::Entity;
                entity(id: &'a zae_limiter_core::EntityId) -> Option<zae_limiter_core::Entity>;
                update_entity(
                    id: &'a zae_limiter_core::EntityId,
                    expected_version: u64,
                    update: &'a $crate::EntityUpdate,
                    change: &'a $crate::Change
                ) -> zae_limiter_core::Entity;
                delete_entity(id: &'a zae_limiter_core::EntityId, change: &'a $crate::Change) -> $crate::DeletedEntity;
                children(parent: &'a zae_limiter_core::EntityId, page: &'a $crate::PageRequest)
                    -> $crate::Page<zae_limiter_core::Entity>;
                entities(page: &'a $crate::PageRequest) -> $crate::Page<zae_limiter_core::Entity>;
                set_limits(level: &'a $crate::Level, limits: &'a $crate::LimitsChange, change: &'a $crate::Change) -> u64;
                delete_limits(level: &'a $crate::Level, change: &'a $crate::Change) -> bool;
                set_disabled(level: &'a $crate::Level, disabled: Option<bool>, change: &'a $crate::Change) -> u64;
                level(level: &'a $crate::Level) -> Option<$crate::LevelConfig>;
                resolve(keys: &'a [$crate::MemberKey<'a>]) -> $crate::Resolution;
                resources_with_defaults(page: &'a $crate::PageRequest) -> $crate::Page<zae_limiter_core::ResourceName>;
                entities_with_limits(resource: Option<&'a zae_limiter_core::ResourceName>, page: &'a $crate::PageRequest)
                    -> $crate::Page<zae_limiter_core::EntityId>;
                resources_with_entity_limits(page: &'a $crate::PageRequest) -> $crate::Page<Option<zae_limiter_core::ResourceName>>;
            }
        }

        impl<S: $crate::Store + ?Sized> $crate::HistoryStore for $wrapper<S> {
            $crate::fault::forward! { around:
                audit_events(query: &'a $crate::AuditQuery) -> $crate::Page<zae_limiter_core::AuditEvent>;
                audit_log(page: &'a $crate::PageRequest) -> $crate::Page<zae_limiter_core::AuditEvent>;
                usage(query: &'a $crate::UsageQuery) -> $crate::Page<zae_limiter_core::UsageSnapshot>;
            }
        }

        impl<S: $crate::Store + ?Sized> $crate::NamespaceStore for $wrapper<S> {
            $crate::fault::forward! { around:
                register_namespace(
                    name: &'a zae_limiter_core::NamespaceName,
                    id: &'a zae_limiter_core::NamespaceId,
                    change: &'a $crate::Change
                ) -> $crate::Namespace;
                namespaces(page: &'a $crate::PageRequest) -> $crate::Page<$crate::Namespace>;
                namespace(name: &'a zae_limiter_core::NamespaceName) -> Option<$crate::Namespace>;
                delete_namespace(name: &'a zae_limiter_core::NamespaceName, change: &'a $crate::Change) -> bool;
                recover_namespace(id: &'a zae_limiter_core::NamespaceId, change: &'a $crate::Change) -> $crate::Namespace;
                orphan_namespaces(page: &'a $crate::PageRequest) -> $crate::Page<$crate::Namespace>;
                purge_namespace(id: &'a zae_limiter_core::NamespaceId, change: &'a $crate::Change) -> $crate::Purged;
            }

            fn current_namespace(&self) -> zae_limiter_core::NamespaceName {
                self.inner.current_namespace()
            }

            fn current_namespace_id(&self) -> Option<zae_limiter_core::NamespaceId> {
                self.inner.current_namespace_id()
            }

            fn scoped<'a>(
                &'a self,
                name: &'a zae_limiter_core::NamespaceName,
            ) -> $crate::BoxFuture<'a, Result<std::sync::Arc<dyn $crate::Store>, $crate::StoreError>> {
                Box::pin(async move {
                    let scoped = self.around("scoped", move |inner| inner.scoped(name)).await?;
                    Ok(self.wrap(scoped))
                })
            }
        }

        impl<S: $crate::Store + ?Sized> $crate::Store for $wrapper<S> {
            fn capabilities(&self) -> $crate::Capabilities {
                self.inner.capabilities()
            }

            $crate::fault::forward! { around:
                ping() -> ();
                sweep(now: zae_limiter_core::TimeMs, steps_max: u32) -> $crate::Swept;
                sweep_horizon(now: zae_limiter_core::TimeMs) -> Option<zae_limiter_core::TimeMs>;
            }
        }
    };
}

/// Methods that hand their call to `self.$around`, with their name.
macro_rules! forward {
    ($around:ident: $($method:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(
            fn $method<'a>(&'a self, $($argument: $kind),*) -> $crate::BoxFuture<'a, Result<$answer, $crate::StoreError>> {
                self.$around(stringify!($method), move |inner| inner.$method($($argument),*))
            }
        )*
    };
}

pub(crate) use {forward, forward_store};

forward_store!(FaultStore);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::{Context, Waker};

    use zae_limiter_core::{Limit, LimitSource, Milli, Take};

    use super::*;
    use crate::{
        BucketStore, ConsumeRequest, Delta, LimitsInForce, MemberTake, MemoryStore, NamespaceStore,
        PageRequest,
    };

    /// Takes one token under a fault, polling at most `polls` times.
    struct Trial {
        answer: Poll<Result<ConsumeOutcome, StoreError>>,
        polls: u32,
        applied: bool,
    }

    fn trial(fault: Fault, polls_max: u32) -> Trial {
        let store = FaultStore::new(Arc::new(MemoryStore::new()), move |_: &'static str| fault);
        let limits = LimitsInForce::new(
            [Limit::per_minute("rpm", 60).expect("a valid limit")],
            LimitSource::Call,
        );
        let (entity, resource) =
            ("key".parse().expect("a valid id"), "gpt-4".parse().expect("a valid resource"));
        let takes = [Take { limit: 0, amount: Milli(1_000) }];
        let members = [MemberTake {
            entity: &entity,
            resource: &resource,
            limits: &limits,
            takes: &takes,
            absent: &[],
        }];
        let request = ConsumeRequest { members: &members, now: TimeMs(0) };
        let mut call = store.consume(&request);
        let mut context = Context::from_waker(Waker::noop());
        let (mut answer, mut polls) = (Poll::Pending, 0);
        while answer.is_pending() && polls < polls_max {
            answer = call.as_mut().poll(&mut context);
            polls += 1;
        }
        drop(call);
        let page = PageRequest::default();
        let mut listing = store.inner().buckets(&entity, &page);
        let Poll::Ready(Ok(page)) = listing.as_mut().poll(&mut context) else {
            panic!("the inner store answers at once")
        };
        Trial { answer, polls, applied: !page.items.is_empty() }
    }

    #[track_caller]
    fn check(fault: Fault, answer: Option<Result<(), StoreErrorKind>>, applied: bool) {
        let found = trial(fault, 5);
        let kind = match found.answer {
            Poll::Pending => None,
            Poll::Ready(Ok(_)) => Some(Ok(())),
            Poll::Ready(Err(error)) => Some(Err(error.kind())),
        };
        assert_eq!((kind, found.applied), (answer, applied), "{fault:?}");
    }

    #[test]
    fn each_fault_applies_and_answers_as_it_says() {
        check(Fault::None, Some(Ok(())), true);
        check(Fault::FailBefore(StoreErrorKind::Busy), Some(Err(StoreErrorKind::Busy)), false);
        check(
            Fault::FailAfter(StoreErrorKind::Unavailable),
            Some(Err(StoreErrorKind::Unavailable)),
            true,
        );
        check(Fault::Hang, None, false);
        check(Fault::HangAfter, None, true);
        check(Fault::Yield(2), Some(Ok(())), true);
        check(Fault::Yield(5), None, false);
    }

    #[test]
    fn a_call_that_yields_is_pending_that_often() {
        assert_eq!(trial(Fault::Yield(0), 5).polls, 1);
        assert_eq!(trial(Fault::Yield(3), 5).polls, 4);
    }

    #[tokio::test]
    async fn every_delta_of_a_lost_adjustment_fails() {
        let store = FaultStore::new(Arc::new(MemoryStore::new()), |_: &'static str| {
            Fault::FailAfter(StoreErrorKind::Unavailable)
        });
        let limits = LimitsInForce::new(
            [Limit::per_minute("rpm", 60).expect("a valid limit")],
            LimitSource::Call,
        );
        let (entity, resource) =
            ("key".parse().expect("a valid id"), "gpt-4".parse().expect("a valid resource"));
        let deltas = [Delta { limit: 0, amount: Milli(1_000) }];
        let delta = BucketDelta {
            entity: &entity,
            resource: &resource,
            limits: &limits,
            deltas: &deltas,
            operation: 0,
        };
        let answers = store.adjust(&[delta, delta], TimeMs(0)).await;
        let kinds: Vec<_> =
            answers.into_iter().map(|answer| answer.map_err(|error| error.kind())).collect();
        assert_eq!(kinds, [Err(StoreErrorKind::Unavailable); 2]);
        let view = store
            .inner()
            .buckets(&entity, &PageRequest::default())
            .await
            .expect("a listing")
            .items
            .remove(0);
        assert_eq!(view.state.limits()[0].balance, Milli(58_000), "both were applied");
    }

    #[tokio::test]
    async fn other_namespaces_follow_the_same_plan_and_calls_are_named() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let store =
            FaultStore::new(Arc::new(MemoryStore::new()), move |operation: &'static str| {
                log.lock().expect("no panic").push(operation);
                if operation == "sweep" {
                    Fault::FailBefore(StoreErrorKind::Busy)
                } else {
                    Fault::None
                }
            });
        let scoped = store.scoped(&store.current_namespace()).await.expect("the default namespace");
        assert_eq!(
            scoped.sweep(TimeMs(0), 1).await.map_err(|error| error.kind()),
            Err(StoreErrorKind::Busy)
        );
        scoped.ping().await.expect("no fault");
        assert_eq!(*asked.lock().expect("no panic"), ["scoped", "sweep", "ping"]);
        assert_eq!(scoped.capabilities(), store.inner().capabilities());
    }
}
