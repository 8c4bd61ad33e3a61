//! The two wrappers that keep the books.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use zae_limiter_core::{Entity, EntityId, Flag, TimeMs};
use zae_limiter_store::{
    Adjusted, Ancestor, BoxFuture, BucketDelta, Change, Clock, ConsumeOutcome, ConsumeRequest,
    DeletedEntity, Level, LimitsChange, ManualClock, MemberKey, NewEntity, ResetRequest,
    Resolution, Restored, Store, StoreError, StoreFuture, StoreWrapper, Swept,
};

use crate::oracle::books::{Age, Books, CallId, Told, lent_max};
use crate::oracle::inspect::compare_all;

/// Who a wrapper writes for.
#[derive(Clone)]
pub(crate) struct Party {
    pub(crate) books: Books,
    pub(crate) client: usize,
    pub(crate) clock: ManualClock,
    /// How old a configuration may be when it is acted upon.
    pub(crate) config_age_max: Duration,
    /// For how many polls the answer to a write that was carried out is on its way.
    pub(crate) echo: Arc<dyn Fn() -> u32 + Send + Sync>,
}

/// Below the faults: carries every call out in the poll that brings it, checks it against the
/// oracle and compares all buckets.
///
/// A call that a backend hands to a thread of its own is waited for, so a run has one order of
/// events, whatever the backend.
pub(crate) struct JournalStore {
    inner: Arc<dyn Store>,
    namespace: String,
    party: Party,
    /// The last instant the backend was told: a new one may have made it sweep.
    told: Arc<Mutex<Option<TimeMs>>>,
}

/// Above the faults: writes down what is asked and what is answered.
pub(crate) struct CallLog {
    inner: Arc<dyn Store>,
    namespace: String,
    party: Party,
}

/// Blocks the thread until the future is done.
pub(crate) fn finish<T>(mut future: BoxFuture<'_, T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut context = Context::from_waker(Waker::noop());
    if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
        return value;
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

impl JournalStore {
    pub(crate) fn new(inner: Arc<dyn Store>, party: Party) -> JournalStore {
        let namespace = inner.current_namespace().to_string();
        JournalStore { inner, namespace, party, told: Arc::default() }
    }

    /// A call that landed: check it, then compare what is stored.
    fn landed(&self, now: TimeMs, note: impl FnOnce(&mut crate::oracle::books::State)) {
        {
            let mut state = self.party.books.lock();
            note(&mut state);
            state.remember_config(&self.namespace);
        }
        compare_all(&self.party.books, now);
    }

    /// Carried out, but the answer takes its time: a caller that gives up now does not know.
    async fn echo(&self) {
        let mut left = (self.party.echo)();
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

    /// Lets the backend do now what a new instant may make it do by itself beside the next call: an
    /// adjustment of nothing tells it the time, and a reset of nothing queues behind whatever that
    /// began.
    fn settle_background(&self, now: TimeMs) {
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.inner.capabilities().durable || *told == Some(now) {
            return;
        }
        *told = Some(now);
        finish(self.inner.adjust(&[], now));
        let (entity, resource) =
            ("nobody".parse().expect("a valid id"), "nothing".parse().expect("a valid name"));
        let change = Change {
            principal: None,
            reason: None,
            at: now,
            event: zae_limiter_core::EventId::new(now, 0),
        };
        let nothing = finish(
            self.inner
                .reset(&ResetRequest { entity: &entity, resource: &resource, only: None }, &change),
        );
        if !matches!(nothing, Ok(None)) {
            self.party.books.check(Err(format!("a reset of nothing said {nothing:?}")));
        }
        compare_all(&self.party.books, now);
    }
}

impl CallLog {
    pub(crate) fn new(inner: Arc<dyn Store>, party: Party) -> CallLog {
        let namespace = inner.current_namespace().to_string();
        CallLog { inner, namespace, party }
    }

    /// Polls the call with its number on the books, and writes down the answer.
    async fn logged<T>(
        &self,
        call: CallId,
        mut future: BoxFuture<'_, T>,
        told: impl FnOnce(&T) -> Told,
    ) -> T {
        let books = &self.party.books;
        let answer = poll_fn(|context| {
            let outer = books.lock().call.replace(call);
            let poll = future.as_mut().poll(context);
            books.lock().call = outer;
            poll
        })
        .await;
        books.lock().tell(call, told(&answer));
        answer
    }
}

impl StoreWrapper for CallLog {
    type Inner = dyn Store;

    fn inner(&self) -> &Self::Inner {
        &*self.inner
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a Self::Inner) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let id = self.party.books.lock().begin_other(self.party.client, operation);
            self.logged(id, call(&*self.inner), |answer| match answer {
                Ok(_) => Told::Fine,
                Err(error) => Told::Failed(error.kind()),
            })
            .await
        })
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(CallLog::new(scoped, self.party.clone()))
    }

    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        Box::pin(async move {
            let Party { books, client, clock, config_age_max, .. } = &self.party;
            let lends = self.inner.capabilities().remote;
            let (call, fresh, began) = {
                let mut state = books.lock();
                let fresh =
                    state.check_age(*client, &self.namespace, request, *config_age_max, lends);
                // When the operation began, which is before it looked anything up, by the time of
                // the run.
                let began =
                    state.elapsed.saturating_sub(clock.monotonic().saturating_sub(state.op_began));
                (state.begin_consume(*client, request, clock.monotonic()), fresh, began)
            };
            books.check(fresh);
            let answer = self.logged(call, self.inner.consume(request), |answer| match answer {
                Ok(outcome) => Told::Decision(outcome.clone()),
                Err(error) => Told::Failed(error.kind()),
            });
            let answer = answer.await;
            if let Ok(ConsumeOutcome::Granted(_)) = &answer {
                let lent = if lends { lent_max(*config_age_max) } else { Duration::ZERO };
                let age = Age { max: *config_age_max + lent, is_one: !lends };
                books.lock().granted((*client, &self.namespace), request, age, began);
            }
            answer
        })
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        Box::pin(async move {
            let began = self.party.clock.monotonic();
            let call =
                self.party.books.lock().begin_adjust(self.party.client, deltas, (now, began));
            let told = |answers: &Vec<Result<Adjusted, StoreError>>| {
                Told::Adjusted(
                    answers
                        .iter()
                        .map(|answer| answer.as_ref().map(|_| ()).map_err(StoreError::kind))
                        .collect(),
                )
            };
            self.logged(call, self.inner.adjust(deltas, now), told).await
        })
    }

    fn resolve<'a>(&'a self, keys: &'a [MemberKey<'a>]) -> StoreFuture<'a, Resolution> {
        self.resolve_within(keys, Duration::ZERO)
    }

    fn resolve_within<'a>(
        &'a self,
        keys: &'a [MemberKey<'a>],
        age_max: Duration,
    ) -> StoreFuture<'a, Resolution> {
        Box::pin(async move {
            let Party { books, client, clock, config_age_max, .. } = &self.party;
            let asked_at = clock.monotonic();
            let resolution =
                self.around("resolve", move |inner| inner.resolve_within(keys, age_max)).await?;
            let mut state = books.lock();
            for key in keys {
                state.note_idle(
                    *client,
                    &self.namespace,
                    (key.entity, key.resource),
                    asked_at,
                    *config_age_max,
                );
                let read_at = asked_at.saturating_sub(resolution.age);
                state.read(
                    *client,
                    &self.namespace,
                    (key.entity, key.resource),
                    resolution.stamp.0,
                    read_at,
                );
                for Ancestor { entity, stamp, age, .. } in &resolution.ancestors {
                    state.read(
                        *client,
                        &self.namespace,
                        (entity, key.resource),
                        stamp.0,
                        asked_at.saturating_sub(*age),
                    );
                }
            }
            drop(state);
            Ok(resolution)
        })
    }
}

impl StoreWrapper for JournalStore {
    type Inner = dyn Store;

    fn inner(&self) -> &Self::Inner {
        &*self.inner
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        _operation: &'static str,
        call: impl FnOnce(&'a Self::Inner) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move { finish(call(&*self.inner)) })
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(JournalStore::new(scoped, self.party.clone()))
    }

    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        Box::pin(async move {
            self.settle_background(request.now);
            let answer = finish(self.inner.consume(request));
            self.landed(request.now, |state| {
                let verdict = match &answer {
                    Ok(outcome) => {
                        state.landed_consume(outcome);
                        state.note_decision(&self.namespace, request, outcome);
                        state.oracle.consume(&self.namespace, request, outcome)
                    }
                    Err(error) => Err(format!("consume failed in the store itself: {error}")),
                };
                state.broken = state.broken.take().or(verdict.err());
            });
            self.echo().await;
            answer
        })
    }

    fn peek<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        Box::pin(async move {
            let answer = finish(self.inner.peek(request));
            self.landed(request.now, |state| {
                let verdict = match &answer {
                    Ok(outcome) => state.oracle.peek(&self.namespace, request, outcome),
                    Err(error) => Err(format!("peek failed in the store itself: {error}")),
                };
                state.broken = state.broken.take().or(verdict.err());
            });
            answer
        })
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        Box::pin(async move {
            self.settle_background(now);
            let answers = finish(self.inner.adjust(deltas, now));
            self.landed(now, |state| {
                for (index, (delta, answer)) in deltas.iter().zip(&answers).enumerate() {
                    state.landed_adjust(index);
                    let verdict = state.oracle.adjust(&self.namespace, delta, now, answer);
                    let (entity, resource, deltas) = (delta.entity, delta.resource, delta.deltas);
                    state.note(
                        now,
                        format!(
                            "{}/{resource} adjust {entity} {deltas:?} -> {answer:?}",
                            self.namespace
                        ),
                    );
                    state.broken = state.broken.take().or(verdict.err());
                }
            });
            self.echo().await;
            answers
        })
    }

    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Option<Restored>> {
        Box::pin(async move {
            let answer = finish(self.inner.reset(request, change))?;
            let said = answer.as_ref().map(|gained| {
                gained.iter().map(|(name, milli)| (name.to_string(), i128::from(milli.0))).collect()
            });
            self.landed(change.at, |state| {
                let verdict = state.oracle.reset(&self.namespace, request, change, &said);
                state.note(
                    change.at,
                    format!(
                        "{} reset {}/{} -> {said:?}",
                        self.namespace, request.entity, request.resource
                    ),
                );
                state.broken = state.broken.take().or(verdict.err());
            });
            Ok(answer)
        })
    }

    fn create_entity<'a>(
        &'a self,
        entity: &'a NewEntity,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity> {
        Box::pin(async move {
            let answer = finish(self.inner.create_entity(entity, change));
            let said = answer.as_ref().map(|_| ()).map_err(StoreError::kind);
            self.landed(change.at, |state| {
                state.note(
                    change.at,
                    format!(
                        "{} create {} under {:?} -> {said:?}",
                        self.namespace, entity.id, entity.parent
                    ),
                );
                let verdict = state.oracle.create_entity(&self.namespace, entity, said);
                state.broken = state.broken.take().or(verdict.err());
            });
            answer
        })
    }

    fn delete_entity<'a>(
        &'a self,
        id: &'a EntityId,
        change: &'a Change,
    ) -> StoreFuture<'a, DeletedEntity> {
        Box::pin(async move {
            let answer = finish(self.inner.delete_entity(id, change));
            let said = answer.as_ref().map(|deleted| *deleted).map_err(StoreError::kind);
            self.landed(change.at, |state| {
                state.note(change.at, format!("{} delete {id} -> {said:?}", self.namespace));
                let verdict = state.oracle.delete_entity(&self.namespace, id, said);
                state.broken = state.broken.take().or(verdict.err());
            });
            answer
        })
    }

    fn set_limits<'a>(
        &'a self,
        level: &'a Level,
        limits: &'a LimitsChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            let answer = finish(self.inner.set_limits(level, limits, change))?;
            self.landed(change.at, |state| {
                let texts: Vec<String> = limits.limits.iter().map(ToString::to_string).collect();
                state.note(
                    change.at,
                    format!("{} limits of {level} are now {texts:?}", self.namespace),
                );
                state.oracle.set_limits(&self.namespace, level, limits);
            });
            Ok(answer)
        })
    }

    fn delete_limits<'a>(&'a self, level: &'a Level, change: &'a Change) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let answer = finish(self.inner.delete_limits(level, change))?;
            self.landed(change.at, |state| {
                state.note(
                    change.at,
                    format!("{} limits of {level} deleted -> {answer}", self.namespace),
                );
                let verdict = state.oracle.delete_limits(&self.namespace, level, answer);
                state.broken = state.broken.take().or(verdict.err());
            });
            Ok(answer)
        })
    }

    fn set_flag<'a>(
        &'a self,
        level: &'a Level,
        flag: Option<Flag>,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            let answer = finish(self.inner.set_flag(level, flag, change))?;
            self.landed(change.at, |state| {
                state.note(
                    change.at,
                    format!("{} {level} flag: {flag:?}, {answer} buckets", self.namespace),
                );
                let verdict = state.oracle.set_flag(&self.namespace, level, flag, answer);
                state.broken = state.broken.take().or(verdict.err());
            });
            Ok(answer)
        })
    }

    fn resolve<'a>(&'a self, keys: &'a [MemberKey<'a>]) -> StoreFuture<'a, Resolution> {
        Box::pin(async move {
            let answer = finish(self.inner.resolve(keys))?;
            let verdict = self.party.books.lock().oracle.resolve(&self.namespace, keys, &answer);
            self.party.books.check(verdict);
            Ok(answer)
        })
    }

    fn resolve_within<'a>(
        &'a self,
        keys: &'a [MemberKey<'a>],
        _age_max: Duration,
    ) -> StoreFuture<'a, Resolution> {
        self.resolve(keys)
    }

    fn sweep<'a>(&'a self, now: TimeMs, steps_max: u32) -> StoreFuture<'a, Swept> {
        Box::pin(async move {
            let answer = finish(self.inner.sweep(now, steps_max))?;
            self.landed(now, |state| {
                state.oracle.sweep(now);
                state.note(now, format!("swept {answer:?}"));
            });
            Ok(answer)
        })
    }
}
