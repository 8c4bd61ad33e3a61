//! A rate limiter for calls whose cost is known only afterwards: LLM tokens, bytes, money.
//!
//! Check several limits in one atomic step, charge a whole hierarchy, change centrally stored
//! limits while services run, and isolate tenants. Embedded on one machine (SQLite, nothing to
//! install), or on DynamoDB when one machine is no longer enough.
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
//! Tests of your code need no mock: [`MemoryStore`] keeps everything in memory, and [`ManualClock`]
//! moves only when told, and wakes the tasks that wait for it.
//!
//! ```
//! use std::time::Duration;
//! use zae_limiter::{Level, ManualClock, MemoryStore, RateLimiter, Request, TimeMs};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = ManualClock::new(TimeMs(0));
//! let limiter = RateLimiter::builder(MemoryStore::new()).clock(clock.clone()).build()?;
//! limiter.set_limits(&Level::System, ["rpm:1/min".parse()?]).await?;
//! let request = || Request::new("key-1", "gpt-4").take("rpm", 1);
//! limiter.acquire(request()).await?.commit().await?;
//! let refused = limiter.acquire(request()).await.unwrap_err();
//! assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
//! clock.advance(Duration::from_secs(60));
//! limiter.acquire(request()).await?.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The key decision: tokens are taken **before** the work, from every bucket of the chain or from
//! none, and settled after it. Only a settlement may lead into debt. Refill repays debt before
//! anything else is granted, so no caller gets past a limit twice.

#[cfg(feature = "axum")]
pub mod axum;
pub mod blocking;
mod deadline;
mod error;
pub mod headers;
mod lease;
mod limiter;
pub mod metrics;
pub mod usage;
#[cfg(feature = "serde")]
pub mod wire;

pub use error::{
    AcquireError, CommitError, Disabled, Error, ErrorKind, Invalid, NoLimits, OutageReason,
    Unavailable, UndeclaredLimit,
};
pub use lease::{Degraded, Lease, Settled, Source};
pub use limiter::{
    Availability, Builder, CacheStats, CapacityScope, Copied, CreatedEntity, EntityCapacity,
    EntityWarning, Migrated, Migration, MigrationProgress, OnDrop, Prepared, RateLimiter, Reached,
    Request, Resolved, ResolvedMember, ResourceCapacity,
};

pub use zae_limiter_core as domain;
pub use zae_limiter_core::{
    AuditAction, AuditEvent, AuditSubject, Entity, EntityId, EventId, Flag, IntoName, Limit,
    LimitError, LimitName, LimitSource, LimitStatus, Milli, NameError, NamespaceId, NamespaceName,
    Principal, RateLimitExceeded, ResourceName, TimeMs, UsageSnapshot, UsageSummary, UsageWindow,
    Wait, WaitMs,
};
#[cfg(feature = "dynamodb")]
pub use zae_limiter_dynamodb as dynamodb;
#[cfg(feature = "sqlite")]
pub use zae_limiter_sqlite as sqlite;
pub use zae_limiter_store as store;
pub use zae_limiter_store::{
    AuditQuery, BlockStats, BucketView, Capabilities, Change, Clock, Cursor, DeletedEntity,
    EntityDraft, EntityUpdate, Level, LevelConfig, LimitsChange, LocalBlocks, Managed,
    ManagedChange, ManualClock, MemoryStore, Namespace, NamespaceStatus, NewEntity, OnUnavailable,
    Page, PageRequest, Purged, Store, StoreError, StoreErrorKind, Swept, SystemClock, UsageQuery,
};

/// The programs that the documents print are compiled as printed, and run where they can be.
#[cfg(all(doctest, feature = "axum", feature = "sqlite"))]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Crate;
    #[doc = include_str!("../../../README.md")]
    struct Project;
    #[doc = include_str!("../../../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/guide/basic.md")]
    struct Basic;
    #[doc = include_str!("../../../docs/guide/hierarchy.md")]
    struct Hierarchy;
    #[doc = include_str!("../../../docs/guide/stored-limits.md")]
    struct StoredLimits;
    #[doc = include_str!("../../../docs/guide/llm.md")]
    struct Llm;
    #[doc = include_str!("../../../docs/guide/unavailability.md")]
    struct Unavailability;
    #[doc = include_str!("../../../docs/guide/usage.md")]
    struct Usage;
    #[doc = include_str!("../../../docs/local-blocks.md")]
    struct LocalBlocks;
    #[cfg(feature = "dynamodb")]
    #[doc = include_str!("../../../docs/dynamodb.md")]
    struct DynamoDb;
    #[cfg(feature = "dynamodb")]
    #[doc = include_str!("../../../docs/operator/terraform-cdk.md")]
    struct TerraformAndCdk;
}
