//! A store that tells what it does.

use std::fmt;
use std::sync::Arc;

use tracing::field::Empty;
use tracing::{Instrument, debug_span};
use zae_limiter_core::TimeMs;

use crate::fault::forward_store;
use crate::{Adjusted, BoxFuture, BucketDelta, ConsumeOutcome, Store, StoreError};

/// Wraps a store in one `tracing` span per call, at debug level. Its fields are few and have few
/// values, so that they can be grouped by: `operation` (the method) and `outcome` (`ok`, `granted`,
/// `refused`, .. or the kind of the error). Names of entities and resources never appear.
pub struct TracedStore<S: ?Sized> {
    inner: Arc<S>,
}

impl<S: Store + ?Sized> TracedStore<S> {
    /// `inner`, traced. Handles to other namespaces are traced too.
    pub fn new(inner: Arc<S>) -> TracedStore<S> {
        TracedStore { inner }
    }

    /// The store inside.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// `outcome` finds the word for an answer.
    fn trace<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a S) -> BoxFuture<'a, T> + Send + 'a,
        outcome: impl FnOnce(&T) -> &'static str + Send + 'a,
    ) -> BoxFuture<'a, T> {
        let span = debug_span!("store", operation, outcome = Empty);
        let told = span.clone();
        let inner = &*self.inner;
        let traced = async move {
            let answer = call(inner).await;
            told.record("outcome", outcome(&answer));
            answer
        };
        Box::pin(traced.instrument(span))
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a S) -> BoxFuture<'a, Result<T, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        self.trace(operation, call, |answer| word(answer, |_| "ok"))
    }

    fn around_decision<'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a S) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        self.trace(operation, call, |answer| word(answer, decision_word))
    }

    fn around_adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        // Several answers, one word: the first error's, if there is one.
        let outcome = |answers: &Vec<Result<Adjusted, StoreError>>| {
            answers
                .iter()
                .find(|answer| answer.is_err())
                .map_or("ok", |failed| word(failed, |_| "ok"))
        };
        self.trace("adjust", move |inner| inner.adjust(deltas, now), outcome)
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(TracedStore { inner: scoped })
    }
}

impl<S: ?Sized> Clone for TracedStore<S> {
    fn clone(&self) -> Self {
        TracedStore { inner: Arc::clone(&self.inner) }
    }
}

impl<S: fmt::Debug + ?Sized> fmt::Debug for TracedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracedStore").field("inner", &self.inner).finish()
    }
}

fn word<T>(
    answer: &Result<T, StoreError>,
    of_success: impl FnOnce(&T) -> &'static str,
) -> &'static str {
    match answer {
        Ok(value) => of_success(value),
        Err(error) => error.kind().as_str(),
    }
}

fn decision_word(outcome: &ConsumeOutcome) -> &'static str {
    match outcome {
        ConsumeOutcome::Granted(_) => "granted",
        ConsumeOutcome::Refused(_) => "refused",
        ConsumeOutcome::Stale { .. } => "stale",
        ConsumeOutcome::Disabled { .. } => "disabled",
        ConsumeOutcome::Contended { .. } => "contended",
    }
}

forward_store!(TracedStore);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};
    use zae_limiter_core::{EntityId, Limit, LimitSource, Milli, Take};

    use super::*;
    use crate::{
        BucketStore, ConfigStore, ConsumeRequest, Delta, Fault, FaultStore, LimitsInForce,
        MemberTake, MemoryStore, NamespaceStore, StoreErrorKind,
    };

    /// Writes down every field of every span, as `name=value`.
    #[derive(Clone, Default)]
    struct Notes {
        lines: Arc<Mutex<Vec<String>>>,
        spans: Arc<AtomicU64>,
    }

    impl Visit for Notes {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.lines.lock().expect("no panic").push(format!("{field}={value:?}"));
        }
    }

    impl Subscriber for Notes {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::DEBUG && metadata.is_span()
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            span.record(&mut self.clone());
            Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
        }

        fn record(&self, _: &Id, values: &Record<'_>) {
            values.record(&mut self.clone());
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {}

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// What is noted while `work` runs.
    fn noted(work: impl Future<Output = ()>) -> Vec<String> {
        let notes = Notes::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        tracing::subscriber::with_default(notes.clone(), || runtime.block_on(work));
        let lines = notes.lines.lock().expect("no panic");
        lines.clone()
    }

    #[test]
    fn a_span_tells_the_operation_and_its_outcome() {
        let lines = noted(async {
            let store = TracedStore::new(Arc::new(MemoryStore::new()));
            let limits = LimitsInForce::new(
                [Limit::per_minute("rpm", 1).expect("a valid limit")],
                LimitSource::Call,
            );
            let (entity, resource) = (
                "key".parse::<EntityId>().expect("a valid id"),
                "gpt-4".parse().expect("a valid resource"),
            );
            let takes = [Take { limit: 0, amount: Milli(1_000) }];
            let members = [MemberTake {
                entity: &entity,
                resource: &resource,
                limits: &limits,
                takes: &takes,
                absent: &[],
            }];
            let request = ConsumeRequest { members: &members, now: TimeMs(0) };
            assert!(matches!(store.consume(&request).await, Ok(ConsumeOutcome::Granted(_))));
            assert!(matches!(store.peek(&request).await, Ok(ConsumeOutcome::Refused(_))));
            assert_eq!(store.entity(&entity).await.expect("a read"), None);
        });
        let told = [
            "operation=\"consume\"",
            "outcome=\"granted\"",
            "operation=\"peek\"",
            "outcome=\"refused\"",
        ];
        assert_eq!(lines[..4], told);
        assert_eq!(
            lines[4..],
            ["operation=\"entity\"", "outcome=\"ok\""],
            "and no name of anybody"
        );
    }

    #[test]
    fn an_error_is_told_by_its_kind_and_other_namespaces_are_traced_too() {
        let lines = noted(async {
            let plan = |operation: &'static str| match operation {
                "scoped" => Fault::None,
                _ => Fault::FailBefore(StoreErrorKind::Unavailable),
            };
            let store =
                TracedStore::new(Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), plan)));
            let scoped =
                store.scoped(&store.current_namespace()).await.expect("the default namespace");
            let limits = LimitsInForce::new(
                [Limit::per_minute("rpm", 1).expect("a valid limit")],
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
            assert!(scoped.adjust(&[delta], TimeMs(0)).await[0].is_err());
            scoped.ping().await.expect_err("a fault");
        });
        assert_eq!(lines[..2], ["operation=\"scoped\"", "outcome=\"ok\""]);
        let adjusted = [
            "operation=\"adjust\"",
            "outcome=\"unavailable\"",
            "operation=\"ping\"",
            "outcome=\"unavailable\"",
        ];
        assert_eq!(lines[2..], adjusted);
    }
}
