//! The limiter: one handle for admission, administration and queries.
//!
//! Admission is a path through `request`, `acquire`, `chain` with `cache`, `limits`, `plan`, and
//! `outage` with `breaker`; `admin`, `namespaces`, `queries` and `migrate` are administration.

mod acquire;
mod admin;
mod availability;
mod blocks;
mod breaker;
mod builder;
mod cache;
mod chain;
mod limits;
mod migrate;
mod namespaces;
mod outage;
mod plan;
mod prepared;
mod queries;
mod request;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

pub use admin::{CreatedEntity, EntityWarning, Reached};
pub use availability::Availability;
pub use builder::Builder;
pub use cache::CacheStats;
pub use limits::{Resolved, ResolvedMember};
pub use migrate::{Copied, Migrated, Migration, MigrationProgress};
pub(crate) use plan::{Amounts, ConsumeInFlight, Plan, Share, copied, next_operation};
pub use prepared::Prepared;
pub use queries::{CapacityScope, EntityCapacity, ResourceCapacity};
pub(crate) use request::Terms;
pub use request::{OnDrop, Request};
use zae_limiter_core::{EventId, Limit, NamespaceId, NamespaceName, Principal, TimeMs};
use zae_limiter_store::{Capabilities, Change, Clock, Entropy, OnUnavailable, Store};

#[cfg(any(feature = "sqlite", feature = "dynamodb"))]
use crate::error::Error;
use crate::lease::{Settled, Settler};
use blocks::Blocks;
use breaker::Breaker;
use cache::ConfigCache;

/// A rate limiter. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct RateLimiter {
    scope: Arc<Scope>,
    author: Option<Arc<Author>>,
}

/// Who makes changes, and why.
#[derive(Clone, Debug, Default)]
struct Author {
    principal: Option<Principal>,
    reason: Option<Arc<str>>,
}

/// The longest reason, in bytes.
const REASON_BYTES_MAX: usize = 1024;

/// The state that all namespaces of a limiter share.
struct Shared {
    settings: Settings,
    /// True when a read of the configuration is a round trip.
    reads_are_slow: bool,
    /// True when the store is outside of this process's memory, and its time worth measuring.
    is_measured: bool,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    breaker: Breaker,
    settler: Settler,
    /// `None` without local blocks.
    blocks: Option<Blocks>,
    /// Time and randomness of the last audit event: the ids of one process sort in the order of
    /// their events.
    last_event: Mutex<(i64, u128)>,
    /// The namespaces in use, so that two handles to one namespace share one cache.
    scopes: Mutex<Scopes>,
}

/// Namespaces by name and id: one that was deleted and registered again, here or elsewhere, is
/// another namespace.
type Scopes = HashMap<(NamespaceName, Option<NamespaceId>), Weak<Scope>>;

/// The options of a limiter.
#[derive(Clone, Debug)]
struct Settings {
    config_cache_ttl: Duration,
    config_cache_entries_max: usize,
    bucket_ttl_multiplier: u32,
    default_limits: Option<Arc<[Limit]>>,
    on_unavailable: Option<OnUnavailable>,
    deadline: Duration,
    admin_deadline: Duration,
    settle_deadline: Duration,
    drain_deadline: Duration,
}

/// One namespace, and the way to all that namespaces share: a handle is one pointer to it.
struct Scope {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    namespace: NamespaceName,
    cache: ConfigCache,
    /// The stored outage policy as last read: 0 never read or not set, 1 block, 2 allow.
    policy: AtomicU8,
}

/// The time of one call to the store. Nothing is measured before `metrics::describe` is called, nor
/// for a store in this process's memory, where reading the clock costs a twentieth of the call.
#[must_use = "a stopwatch measures nothing until it is stopped"]
pub(crate) struct Stopwatch {
    started: Option<Duration>,
}

impl Stopwatch {
    pub(crate) fn stop(self, clock: &dyn Clock, record: fn(Duration)) {
        if let Some(started) = self.started {
            record(clock.monotonic().saturating_sub(started));
        }
    }
}

impl RateLimiter {
    /// Starts building a limiter over a store.
    pub fn builder(store: impl Store + 'static) -> Builder {
        Builder::new(Arc::new(store))
    }

    /// The embedded limiter in one line: one SQLite file, created when missing, shared with any
    /// other process that opens it.
    #[cfg(feature = "sqlite")]
    #[expect(
        clippy::unused_async,
        reason = "opening does I/O and may become asynchronous without breaking callers"
    )]
    pub async fn open(path: impl AsRef<std::path::Path>) -> Result<RateLimiter, Error> {
        RateLimiter::builder(zae_limiter_sqlite::SqliteStore::open(path)?).build()
    }

    /// As [`RateLimiter::open`], with options of the file: how large it may get, how long history
    /// is kept, when a commit counts as done.
    ///
    /// ```
    /// use zae_limiter::{RateLimiter, sqlite::SqliteOptions};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("limits.db");
    /// // A gigabyte at most, whatever ids callers invent.
    /// let limiter = RateLimiter::open_with(path, SqliteOptions::new().pages_max(1 << 18)).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sqlite")]
    #[expect(
        clippy::unused_async,
        reason = "opening does I/O and may become asynchronous without breaking callers"
    )]
    pub async fn open_with(
        path: impl AsRef<std::path::Path>,
        options: zae_limiter_sqlite::SqliteOptions,
    ) -> Result<RateLimiter, Error> {
        RateLimiter::builder(zae_limiter_sqlite::SqliteStore::open_with(path, options)?).build()
    }

    /// Connects to the DynamoDB table of a stack, in the namespace `default`; credentials come from
    /// the standard chain. Never creates anything: `NotFound` when the table or the namespace is
    /// missing.
    ///
    /// Cost: one read.
    #[cfg(feature = "dynamodb")]
    pub async fn connect(stack: &str, region: &str) -> Result<RateLimiter, Error> {
        RateLimiter::builder(
            zae_limiter_dynamodb::DynamoStore::builder(stack, region).connect().await?,
        )
        .build()
    }

    /// The same limiter with another author: administrative changes are audited under this name.
    #[must_use]
    pub fn with_principal(&self, principal: Principal) -> RateLimiter {
        let reason = self.author.as_ref().and_then(|author| author.reason.clone());
        self.by(Author { principal: Some(principal), reason })
    }

    /// A handle that names why changes are made, beside their author. A text of more than 1 024
    /// bytes is cut.
    #[must_use]
    pub fn with_reason(&self, reason: &str) -> RateLimiter {
        let principal = self.author.as_ref().and_then(|author| author.principal.clone());
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        self.by(Author { principal, reason: Some(reason[..end].into()) })
    }

    fn by(&self, author: Author) -> RateLimiter {
        RateLimiter { author: Some(Arc::new(author)), ..self.clone() }
    }

    /// The namespace this handle works in.
    #[must_use]
    pub fn namespace_name(&self) -> &NamespaceName {
        &self.scope.namespace
    }

    /// What the store promises.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.store().capabilities()
    }

    /// Numbers about the config cache.
    #[must_use]
    pub fn cache_stats(&self) -> CacheStats {
        self.scope.cache.stats()
    }

    /// Forgets cached configuration of this namespace, in this process.
    pub fn invalidate_config_cache(&self) {
        self.scope.store.forget_config();
        self.scope.cache.evict_all();
    }

    /// The work of the settler so far.
    #[must_use]
    pub fn settled(&self) -> Settled {
        self.scope.shared.settler.settled()
    }

    /// Waits until the settler has nothing left to do, at most the drain deadline.
    /// [`Settled::pending`] says how much was left then; the rest goes on in the background.
    ///
    /// The settler works on the runtime that the limiter was built on. When that runtime ends, the
    /// jobs in work are counted as abandoned; the jobs that wait go on with the next job, drain or
    /// close on another runtime.
    pub async fn drain(&self) -> Settled {
        self.scope.shared.settler.drain(self.scope.shared.settings.drain_deadline).await
    }

    /// Refuses new requests, drains the settler as [`RateLimiter::drain`] does, gives back what
    /// local blocks still hold, and reports what the settler could not settle. Clones may close
    /// too: all of them wait for the same drain. Leases still held settle as usual.
    pub async fn close(&self) -> Settled {
        if self.scope.shared.settler.close() {
            tracing::debug!("limiter closed");
        }
        let settled = self.drain().await;
        self.give_blocks_back().await;
        settled
    }

    /// The handle that a lease keeps: it settles, and never administers.
    pub(crate) fn for_lease(&self) -> RateLimiter {
        RateLimiter { scope: Arc::clone(&self.scope), author: None }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.scope.store
    }

    pub(crate) fn settler(&self) -> &Settler {
        &self.scope.shared.settler
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.scope.shared.clock
    }

    /// A stopwatch for one call to the store.
    pub(crate) fn stopwatch(&self) -> Stopwatch {
        Stopwatch {
            started: (self.scope.shared.is_measured && crate::metrics::is_timed())
                .then(|| self.scope.shared.clock.monotonic()),
        }
    }

    pub(crate) fn settle_deadline(&self) -> Duration {
        self.scope.shared.settings.settle_deadline
    }

    /// The author and the time of a change made now.
    fn change(&self) -> Change {
        let at = self.scope.shared.clock.now();
        let Author { principal, reason } = self.author.as_deref().cloned().unwrap_or_default();
        Change { principal, reason, at, event: self.scope.shared.next_event(at) }
    }

    fn scope(shared: &Arc<Shared>, store: Arc<dyn Store>) -> Arc<Scope> {
        let key = (store.current_namespace(), store.current_namespace_id());
        if let Some(blocks) = &shared.blocks {
            blocks.opened(key.1.clone(), &store);
        }
        let mut scopes = shared.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scope) = scopes.get(&key).and_then(Weak::upgrade) {
            return scope;
        }
        scopes.retain(|_, scope| scope.strong_count() > 0);
        let cache = ConfigCache::new(
            shared.settings.config_cache_entries_max,
            shared.settings.config_cache_ttl,
        );
        let scope = Arc::new(Scope {
            shared: Arc::clone(shared),
            store,
            namespace: key.0.clone(),
            cache,
            policy: AtomicU8::new(0),
        });
        scopes.insert(key, Arc::downgrade(&scope));
        scope
    }
}

impl Shared {
    fn next_event(&self, at: TimeMs) -> EventId {
        let mut last = self.last_event.lock().unwrap_or_else(PoisonError::into_inner);
        let random =
            u128::from(self.entropy.next_u64()) << 8 | u128::from(self.entropy.next_u64() & 0xff);
        // The top bit stays free, so that counting up within a millisecond never overflows the 80
        // bits.
        *last = if at.0 > last.0 { (at.0, random >> 1) } else { (last.0, last.1 + 1) };
        EventId::new(TimeMs(last.0), last.1)
    }
}

impl Scope {
    fn remember_policy(&self, policy: Option<OnUnavailable>) {
        let code = match policy {
            None => 0,
            Some(OnUnavailable::Block) => 1,
            Some(OnUnavailable::Allow) => 2,
        };
        self.policy.store(code, Ordering::Release);
    }

    fn stored_policy(&self) -> Option<OnUnavailable> {
        match self.policy.load(Ordering::Acquire) {
            1 => Some(OnUnavailable::Block),
            2 => Some(OnUnavailable::Allow),
            _ => None,
        }
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("namespace", &self.scope.namespace)
            .field("settings", &self.scope.shared.settings)
            .finish_non_exhaustive()
    }
}
