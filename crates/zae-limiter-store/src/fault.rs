//! A store that fails on purpose, for tests of the code above a store.

use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use zae_limiter_core::TimeMs;

use crate::{Adjusted, BoxFuture, BucketDelta, Store, StoreError, StoreErrorKind, StoreFuture};

/// The fault of one call.
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

/// Decides the fault of each call. A closure is a plan: `|operation| if operation == "consume" { ..
/// }`.
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
}

impl<S: Store + ?Sized> crate::StoreWrapper for FaultStore<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a S) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.disturb(operation, call, move |kind| Err(injected(kind, operation)))
    }

    fn adjust<'a>(
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::{Context, Waker};

    use zae_limiter_core::{Limit, LimitSource, Milli, Take, UsageWindow};

    use super::*;
    use crate::{
        BucketStore, ConsumeOutcome, ConsumeRequest, Delta, HistoryStore, LimitsInForce,
        MemberTake, MemoryStore, NamespaceStore, PageRequest, UsageQuery,
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
        let request = ConsumeRequest::new(&members, TimeMs(0));
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
            take: 0,
            place: 0,
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

    /// A wrapper must not fall back to the sums of all pages where the store inside is quicker.
    #[tokio::test]
    async fn the_summary_is_that_of_the_store_inside() {
        let query = UsageQuery {
            entity: None,
            resource: None,
            window: UsageWindow::Hourly,
            from: None,
            until: None,
            page: PageRequest::default(),
        };
        let store = FaultStore::new(Arc::new(MemoryStore::new()), |_: &'static str| Fault::None);
        let expected = store.inner().usage_summary(&query).await.expect("a summary");
        assert!(expected.is_some(), "the memory store has a way of its own");
        assert_eq!(store.usage_summary(&query).await.expect("a summary"), expected);
        let busy = FaultStore::new(Arc::new(MemoryStore::new()), |operation: &'static str| {
            assert_eq!(operation, "usage_summary");
            Fault::FailBefore(StoreErrorKind::Busy)
        });
        let failed = busy.usage_summary(&query).await.map_err(|error| error.kind());
        assert_eq!(failed, Err(StoreErrorKind::Busy), "the call goes through the wrapper");
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
