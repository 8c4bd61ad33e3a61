//! The parts that make the cases short: names and instants, a store under test, listings read to
//! their end. Requests to buckets are in `asks.rs`, everything else that is stored in `stored.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zae_limiter_core::{
    EntityId, EventId, Limit, LimitSource, NamespaceId, NamespaceName, ResourceName, TimeMs, Wait,
    WaitMs,
};

use super::Harness;
pub(super) use super::asks::{Ask, ask, rpm};
use super::shards::Spots;
pub(super) use super::stored::{
    about, entity_level, entity_on, hourly, new_entity, resource_level,
};
use crate::{Change, LimitsInForce, Page, PageRequest, Store, StoreError, StoreErrorKind};

pub(super) const SECOND: i64 = 1_000;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// The resource of every case that does not care which.
pub(super) const GPT: &str = "gpt-4";

/// How many pages or sweeps a case goes through before it calls the store endless.
const ROUNDS_MAX: u32 = 1_000;

/// The instant `ms` milliseconds after 2100-01-01T10:00:00Z, where every case begins: a full hour,
/// for the usage windows, and far ahead of the real clock, by which some stores forget expired
/// buckets on their own.
pub(super) fn at(ms: i64) -> TimeMs {
    TimeMs(4_102_480_800_000).plus_ms(ms)
}

pub(super) fn after(ms: u64) -> Wait {
    Wait::After(WaitMs::at_least_one(ms))
}

pub(super) fn entity(id: &str) -> EntityId {
    id.parse().expect("a valid entity id")
}

pub(super) fn resource(name: &str) -> ResourceName {
    name.parse().expect("a valid resource")
}

pub(super) fn namespace(name: &str) -> NamespaceName {
    name.parse().expect("a valid namespace")
}

pub(super) fn namespace_id(id: &str) -> NamespaceId {
    id.parse().expect("a valid namespace id")
}

/// Limits as the command line writes them, separated by blanks: `rpm:60/min tpm:1000/min:2000`.
pub(super) fn limit_list(text: &str) -> Vec<Limit> {
    text.split_whitespace().map(|limit| limit.parse().expect("a valid limit")).collect()
}

/// One word per number, separated by blanks: limits, or takes from them.
pub(super) fn words(
    numbers: impl IntoIterator<Item = usize>,
    word: impl Fn(usize) -> String,
) -> String {
    numbers.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Limits from the system level, as read before anything was ever configured.
pub(super) fn limits(text: &str) -> LimitsInForce {
    limits_from(text, LimitSource::System)
}

/// Limits that were not read from the store. Good for a bucket whose limits never change, and for
/// limits that are given with the call; a case that changes the limits of a bucket needs a stamp,
/// and stamps come from the store: [`Fixture::stored`].
pub(super) fn limits_from(text: &str, source: LimitSource) -> LimitsInForce {
    LimitsInForce::new(limit_list(text), source)
}

/// The operation failed, in this way.
#[track_caller]
pub(super) fn fails<T: std::fmt::Debug>(
    result: Result<T, StoreError>,
    kind: StoreErrorKind,
) -> StoreError {
    match result {
        Err(error) if error.kind() == kind => error,
        other => panic!("expected an error of kind {kind:?}, found {other:?}"),
    }
}

/// A store under test and what the cases do with it. Cheap to clone: races share one.
#[derive(Clone)]
pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    /// The handle that looks at what a grant left, where the grant only estimates it: another one,
    /// because a look of its own would tell the store under test what it should find out itself.
    pub(super) observer: Arc<dyn Store>,
    /// Where takes were made.
    pub(super) spots: Arc<Spots>,
    harness: Arc<dyn Harness>,
    events: Arc<AtomicU64>,
}

impl Fixture {
    pub(super) async fn new(store: Arc<dyn Store>, harness: Arc<dyn Harness>) -> Fixture {
        let other = match store.capabilities().whole_buckets {
            true => None,
            false => harness.reopen().await,
        };
        let observer = other.unwrap_or_else(|| Arc::clone(&store));
        Fixture { store, observer, spots: Arc::default(), harness, events: Arc::default() }
    }

    /// Whether a bucket is one item or row, or behaves like it.
    pub(super) fn is_whole(&self) -> bool {
        self.store.capabilities().whole_buckets
    }

    /// The same harness with a handle on another namespace, which is registered first.
    pub(super) async fn tenant(&self, name: &str) -> Fixture {
        self.register(name, &format!("id-{name}")).await;
        self.inside(name).await
    }

    /// The same harness with a handle on a namespace that is registered.
    pub(super) async fn inside(&self, name: &str) -> Fixture {
        let store = self.store.scoped(&namespace(name)).await;
        let store = store.expect("a registered namespace can be entered");
        let observer = match self.is_whole() {
            true => Arc::clone(&store),
            false => {
                let observer = self.observer.scoped(&namespace(name)).await;
                observer.expect("a registered namespace can be entered")
            }
        };
        Fixture { store, observer, spots: Arc::default(), ..self.clone() }
    }

    /// Another handle on the same data, beside this one.
    pub(super) async fn beside(&self) -> Fixture {
        let reopened = self.harness.reopen().await;
        let store = reopened.expect("the harness of a durable or shared store can reopen it");
        Fixture { store, ..self.clone() }
    }

    /// Closes the store and opens it again.
    pub(super) async fn reopened(self) -> Fixture {
        let Fixture { store, observer, spots, harness, events } = self;
        drop(store);
        drop(observer);
        let reopened = harness.reopen().await;
        let store = reopened.expect("the harness of a durable or shared store can reopen it");
        let fixture = Fixture::new(store, harness).await;
        Fixture { spots, events, ..fixture }
    }

    /// A change by `admin`; events made later have larger ids.
    pub(super) fn change(&self, at: TimeMs) -> Change {
        let number = self.events.fetch_add(1, Ordering::Relaxed);
        Change {
            principal: Some("admin".parse().expect("a valid principal")),
            reason: None,
            at,
            event: EventId::new(at, u128::from(number)),
        }
    }

    /// Sweeps until everything was gone over; how many buckets were forgotten.
    pub(super) async fn sweep(&self, now: TimeMs) -> u64 {
        let mut buckets = 0;
        for _ in 0..ROUNDS_MAX {
            let swept = self.store.sweep(now, 100).await.expect("a store can be swept");
            buckets += swept.buckets;
            if swept.complete {
                return buckets;
            }
        }
        panic!("expected a sweep to be complete after {ROUNDS_MAX} rounds");
    }

    /// Runs `count` tasks at once and waits for all of them; their results in order.
    #[expect(clippy::disallowed_methods, reason = "a race needs tasks that run at the same time")]
    pub(super) async fn together<T, F>(
        &self,
        count: usize,
        task: impl Fn(usize, Fixture) -> F,
    ) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let tasks: Vec<_> =
            (0..count).map(|index| tokio::spawn(task(index, self.clone()))).collect();
        let mut results = Vec::with_capacity(count);
        for task in tasks {
            results.push(task.await.expect("a task of the race ends without a panic"));
        }
        results
    }
}

/// Everything a listing has, read in pages of `limit` items.
pub(super) async fn in_pages_of<T>(
    limit: u32,
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, StoreError>,
) -> Vec<T> {
    let mut found = Vec::new();
    let mut request = PageRequest::first(limit);
    for _ in 0..ROUNDS_MAX {
        let page = list(request).await.expect("a page can be read");
        let count = page.items.len();
        assert!(count <= limit as usize, "a page of at most {limit} has {count} items");
        found.extend(page.items);
        match page.next {
            Some(cursor) => request = PageRequest::after(limit, cursor),
            None => return found,
        }
    }
    panic!("expected a listing to end after {ROUNDS_MAX} pages");
}

/// Everything a listing has, read in pages of two: the listing does not depend on where pages end.
pub(super) async fn all<T>(
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, StoreError>,
) -> Vec<T> {
    in_pages_of(2, list).await
}
