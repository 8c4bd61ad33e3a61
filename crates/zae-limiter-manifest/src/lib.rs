//! Limits and entities as files.
//!
//! A [`Manifest`] is the desired state of a namespace, read from YAML with every mistake named by
//! its line. [`Live::read`] asks a store what there is of it, [`Plan::new`] compares the two
//! without any I/O, and [`apply`] makes the changes: first it writes down what it is about to
//! manage, then it changes, then it says that it is done. One apply at a time: while it is at work
//! it keeps a [`Mark`] and gives signs of life, and another one is refused. An apply that is killed
//! in between is finished by the next one. [`export`] writes what a store has as a manifest.
//!
//! A crate of its own, because a service that takes from limits needs no YAML, and a service that
//! brings its limits along needs no command line.
//!
//! ```
//! use zae_limiter::{MemoryStore, RateLimiter};
//! use zae_limiter_manifest::{Apply, Live, Manifest, Plan, apply};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder(MemoryStore::new()).build()?;
//! let manifest = Manifest::read("namespace: default\nsystem: {limits: {rpm: 60/min}}")?.manifest;
//! let plan = Plan::new(&manifest, &Live::read(&limiter, &manifest).await?, false)?;
//! assert_eq!(plan.changes.len(), 1);
//! apply(&limiter, &plan, &Apply::because("the first limits")).await?;
//! let plan = Plan::new(&manifest, &Live::read(&limiter, &manifest).await?, false)?;
//! assert!(plan.changes.is_empty());
//! # Ok(())
//! # }
//! ```

mod apply;
mod hold;
mod live;
mod managed;
mod manifest;
mod mark;
mod plan;
mod read;
mod words;
mod write;
mod yaml;

pub use apply::{Applied, Apply, ApplyError, Over, apply};
pub use live::{Export, Live, export, export_all};
pub use managed::{Managed, Marks};
pub use manifest::{EntitySpec, LevelSpec, Manifest, Place};
pub use mark::{BEAT, GONE_AFTER, Mark, Watched, watch};
pub use plan::{Change, Plan, PlanError, Sign};
pub use read::{Problem, Read, ReadError};

/// The JSON schema of the file, for editors and for checks in CI.
pub const SCHEMA: &str = include_str!("limits.schema.json");
