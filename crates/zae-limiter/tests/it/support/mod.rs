//! What the tests share: a limiter on a memory store with a clock that stands still and faults on
//! demand.
#![allow(clippy::unwrap_used, reason = "each test file uses its own part")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use zae_limiter::store::{Fault, FaultStore, SeededEntropy};
use zae_limiter::{Builder, Level, Limit, ManualClock, MemoryStore, RateLimiter, TimeMs};

/// 2026-01-01T10:00:00Z
pub(crate) const START: TimeMs = TimeMs(1_767_261_600_000);

/// Faults to come, by operation; everything else passes. Counts the calls.
#[derive(Clone, Default)]
pub(crate) struct Script {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    queued: VecDeque<(&'static str, Fault)>,
    always: Vec<(&'static str, Fault)>,
    calls: Vec<&'static str>,
}

impl Script {
    /// The next call of `operation` meets `fault`.
    pub(crate) fn once(&self, operation: &'static str, fault: Fault) {
        self.state.lock().unwrap().queued.push_back((operation, fault));
    }

    /// Every call of `operation` meets `fault`.
    pub(crate) fn always(&self, operation: &'static str, fault: Fault) {
        self.state.lock().unwrap().always.push((operation, fault));
    }

    /// No more faults.
    pub(crate) fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        state.queued.clear();
        state.always.clear();
    }

    /// How often `operation` was called.
    pub(crate) fn calls(&self, operation: &str) -> usize {
        self.state.lock().unwrap().calls.iter().filter(|call| **call == operation).count()
    }

    pub(crate) fn next(&self, operation: &'static str) -> Fault {
        let mut state = self.state.lock().unwrap();
        state.calls.push(operation);
        if let Some(index) = state.queued.iter().position(|(queued, _)| *queued == operation) {
            return state.queued.remove(index).map_or(Fault::None, |(_, fault)| fault);
        }
        state
            .always
            .iter()
            .find(|(always, _)| *always == operation)
            .map_or(Fault::None, |(_, fault)| *fault)
    }
}

/// A limiter under test.
pub(crate) struct Bench {
    pub(crate) limiter: RateLimiter,
    pub(crate) clock: ManualClock,
    pub(crate) script: Script,
    pub(crate) store: MemoryStore,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench::with(|builder| builder)
    }

    pub(crate) fn with(options: impl FnOnce(Builder) -> Builder) -> Bench {
        let (clock, script, store) =
            (ManualClock::new(START), Script::default(), MemoryStore::new());
        let plan = script.clone();
        let faulty = FaultStore::new(Arc::new(store.clone()), move |operation: &'static str| {
            plan.next(operation)
        });
        let builder =
            RateLimiter::builder(faulty).clock(clock.clone()).entropy(SeededEntropy::new(7));
        Bench { limiter: options(builder).build().expect("limiter"), clock, script, store }
    }

    /// Another process: its own caches over the same store.
    pub(crate) fn second(&self) -> RateLimiter {
        RateLimiter::builder(self.store.clone())
            .clock(self.clock.clone())
            .entropy(SeededEntropy::new(8))
            .build()
            .expect("limiter")
    }

    pub(crate) async fn system(&self, texts: &[&str]) {
        self.limiter.set_limits(&Level::System, limits(texts)).await.expect("system limits");
    }

    /// Whole tokens left of the first limit of a bucket.
    pub(crate) async fn left(&self, entity: &str, resource: &str, limit: &str) -> i64 {
        let request = zae_limiter::Request::new(entity, resource).take(limit, 0);
        let availability = self.second().availability(&request).await.expect("availability");
        availability.available(limit).expect("limit")
    }
}

pub(crate) fn limits(texts: &[&str]) -> Vec<Limit> {
    texts.iter().map(|text| text.parse().expect("limit")).collect()
}
