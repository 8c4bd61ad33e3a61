//! A rate limiter for calls whose cost is known only afterwards: LLM tokens, bytes, money.
//!
//! Several limits per call decided together, callers in hierarchies, limits stored centrally and changed live, many tenants.
//! Embedded on one machine (SQLite, nothing to install), or on DynamoDB when one machine is not enough.
//!
//! ```
//! use zae_limiter::{AcquireError, Level, RateLimiter, Request};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("limits.db");
//! let limiter = RateLimiter::open(path).await?;
//! limiter.set_limits(&Level::System, ["rpm:60/min".parse()?, "tpm:10000/min".parse()?]).await?;
//!
//! let request = Request::new("key-1", "gpt-4").take("rpm", 1).take("tpm", 900);
//! let answer = limiter
//!     .with_lease(request, async |lease| {
//!         let (text, tokens_used) = ("Hello!", 1200); // call the model here
//!         lease.record("tpm", tokens_used).expect("tpm is declared above");
//!         Ok::<_, AcquireError>(text)
//!     })
//!     .await?;
//! # assert_eq!(answer, "Hello!");
//! # limiter.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! The key decision: tokens are taken **before** the work, from every bucket of the chain or from none, and reconciled
//! after it. Debt is allowed only in the reconciliation and repaid by refill, so nobody gets past a limit twice.

pub mod blocking;
mod breaker;
mod cache;
mod error;
pub mod headers;
mod inflight;
mod lease;
mod limiter;
pub mod metrics;
mod name;
mod plan;
mod request;
mod settler;
#[cfg(feature = "serde")]
pub mod wire;

pub use cache::CacheStats;
pub use error::{AcquireError, CommitError, Disabled, Error, Invalid, NoLimits, OutageReason, Unavailable, UndeclaredLimit};
pub use lease::{Degraded, Lease};
pub use limiter::{
    Availability, Builder, CapacityScope, CreatedEntity, EntityCapacity, EntityWarning, RateLimiter, Resolved, ResolvedMember,
    ResourceCapacity,
};
pub use name::IntoName;
pub use request::{OnDrop, Request};
pub use settler::Settled;

pub use zae_limiter_core as core;
pub use zae_limiter_core::{
    AuditAction, AuditEvent, AuditSubject, Entity, EntityId, EventId, Limit, LimitError, LimitName, LimitSource, LimitStatus, Milli,
    NameError, NamespaceId, NamespaceName, Principal, RateLimitExceeded, ResourceName, TimeMs, UsageSnapshot, UsageSummary, UsageWindow,
    Wait, WaitMs,
};
#[cfg(feature = "dynamodb")]
pub use zae_limiter_dynamodb as dynamodb;
#[cfg(feature = "sqlite")]
pub use zae_limiter_sqlite as sqlite;
pub use zae_limiter_store as store;
pub use zae_limiter_store::{
    AuditQuery, BucketView, Change, Clock, Cursor, DeletedEntity, EntityUpdate, Level, LevelConfig, LimitsChange, ManualClock, MemoryStore,
    Namespace, NamespaceStatus, NewEntity, OnUnavailable, Page, PageRequest, Purged, Store, StoreError, StoreErrorKind, Swept, SystemClock,
    UsageQuery,
};
