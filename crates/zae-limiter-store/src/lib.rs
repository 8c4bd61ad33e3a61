//! The storage contract of zae-limiter.
//!
//! A backend implements four small object-safe traits, [`BucketStore`], [`ConfigStore`],
//! [`HistoryStore`] and [`NamespaceStore`], and proves itself with the conformance suite (feature
//! `conformance`). Methods speak intent, never rows or items, and `now` is always an argument.
//! [`MemoryStore`] is the reference backend.
//!
//! The key decision: the backend owns atomicity and nothing else. It loads the buckets of a chain
//! under its own kind of lock, hands them to [`chain::consume`], the same decision for every
//! backend, and saves the result. The rules of the configuration, the texts of refusals and the
//! [`audit`] events are here too, once for all backends.
//!
//! ```
//! use zae_limiter_core::{Limit, LimitSource, Milli, Take, TimeMs};
//! use zae_limiter_store::{ConsumeOutcome, ConsumeRequest, LimitsInForce, MemberTake, MemoryStore};
//!
//! let store = MemoryStore::new();
//! let limits = LimitsInForce::new([Limit::per_minute("rpm", 60)?], LimitSource::Call);
//! let (entity, resource) = ("key-1".parse()?, "gpt-4".parse()?);
//! let takes = [Take { limit: 0, amount: Milli::from_tokens(1) }];
//! let member = MemberTake {
//!     entity: &entity,
//!     resource: &resource,
//!     limits: &limits,
//!     takes: &takes,
//!     absent: &[],
//! };
//! let outcome = store.consume_now(&ConsumeRequest::new(&[member], TimeMs(0)))?;
//! assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adoption;
pub mod audit;
mod block;
mod bucket;
mod capabilities;
pub mod chain;
mod clock;
mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
mod entropy;
mod error;
mod fault;
mod forward;
mod history;
mod in_force;
mod managed;
mod memory;
pub mod metric;
mod namespace;
mod page;
mod refusals;
mod rules;
mod usage;

use std::pin::Pin;

pub use adoption::{ADOPTED_MAX, Adopted, Adoption, COUNTED_BY_THE_HOUR};
pub use block::{BlockStats, BlockStore, LocalBlocks};
pub use bucket::{
    Adjusted, AtOnce, BucketDelta, BucketStore, BucketView, ConsumeOutcome, ConsumeRequest, Delta,
    Grant, MemberTake, Order, Place, Places, Provisioned, Readiness, ResetRequest, Restored,
    Stocked, bring_up_to_date,
};
pub use capabilities::Capabilities;
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{
    Ancestor, Change, ConfigStore, DeletedEntity, EntityDraft, EntityUpdate, Level, LevelConfig,
    LimitsChange, MemberConfig, MemberKey, NewEntity, OnUnavailable, Resolution,
};
pub use entropy::{Entropy, SeededEntropy, SystemEntropy};
pub use error::{StoreError, StoreErrorKind};
pub use fault::{Fault, FaultPlan, FaultStore};
#[doc(hidden)]
pub use forward::StoreWrapper;
pub use history::{AuditQuery, HistoryStore, RETENTION_MS, UsageQuery};
pub use in_force::LimitsInForce;
pub use managed::{MANAGED_BYTES_MAX, MANAGED_PARTS_MAX, Managed, ManagedChange};
pub use memory::{MemoryOptions, MemoryStore};
pub use namespace::{DEFAULT_NAMESPACE, Namespace, NamespaceStatus, NamespaceStore, Purged};
pub use page::{Cursor, PAGE_LIMIT_MAX, Page, PageRequest};
pub use refusals::CHILDREN_NAMED_MAX;
pub use rules::{Lineage, decisive_flag};
pub use usage::{UsageTotals, UsageWindows};

use zae_limiter_core::TimeMs;

/// A boxed future, so that the traits are object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The future of a call that may fail: of nearly every method of the traits.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The result of one call to [`Store::sweep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Buckets that were expired and full.
    pub buckets: u64,
    /// Usage rows past their retention.
    pub usage: u64,
    /// Audit events past their retention.
    pub audit: u64,
    /// True when the sweep has gone once over everything; false when its step budget ended first.
    pub complete: bool,
    /// True when the clock is not believed yet: nothing was forgotten that is old by this clock
    /// alone.
    pub held_back: bool,
}

/// A whole backend: the four traits together, bound to one namespace.
pub trait Store: BucketStore + ConfigStore + HistoryStore + NamespaceStore {
    /// The promises of this backend. Each promise switches on conformance cases.
    fn capabilities(&self) -> Capabilities;

    /// Answers when the backend is reachable. Cost: one trivial read.
    fn ping(&self) -> StoreFuture<'_, ()>;

    /// Forgets expired buckets that are full (never one that is drained or in debt), and usage and
    /// audit past their retention, in at most `steps_max` bounded steps. Backends also sweep by
    /// themselves; operators and tests can ask. Covers every namespace of the backend.
    fn sweep(&self, now: TimeMs, steps_max: u32) -> StoreFuture<'_, Swept>;

    /// Observes the clock for a sweep. Returns the time up to which a sweep may act, by all
    /// observations of the sweeps of this store; `None` when no time is confirmed yet. See
    /// [`SweepHorizon`](zae_limiter_core::SweepHorizon) for the rule. [`Store::sweep`] itself
    /// believes the time it is told.
    ///
    /// A store that forgets by a clock of its own needs no observation: the default is `now`.
    fn sweep_horizon(&self, now: TimeMs) -> StoreFuture<'_, Option<TimeMs>> {
        Box::pin(std::future::ready(Ok(Some(now))))
    }

    /// The store's own time when the caller's clock shows `now`: the clock that its refill instants
    /// are by. A store that goes by the clocks of its callers answers `now`, the default.
    fn store_time(&self, now: TimeMs) -> StoreFuture<'_, TimeMs> {
        Box::pin(std::future::ready(Ok(now)))
    }

    /// Gives back what this handle holds beyond its requests: a limiter that closes calls it. The
    /// default is nothing; see [`BlockStore`].
    fn give_back(&self, now: TimeMs) -> StoreFuture<'_, ()> {
        let _ = now;
        Box::pin(std::future::ready(Ok(())))
    }
}
