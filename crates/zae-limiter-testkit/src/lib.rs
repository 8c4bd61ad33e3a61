//! Test machinery of zae-limiter. Not published.
//!
//! [`sim`] runs the public [`zae_limiter::RateLimiter`] from one seed: several clients over one
//! store, operations that are polled and dropped at any point, faults, clocks that step, live
//! configuration. Beside it an oracle redoes every sum from what really landed in the store, by
//! code of its own, and compares after every write.
//!
//! ```
//! use zae_limiter_testkit::sim::{Backend, simulate};
//!
//! let report = simulate(1, Backend::Memory).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.coverage.compared > 0);
//! ```
//!
//! [`rig`] is the same machinery for a test that wants to choose every poll itself.
//!
//! [`evaluator`] is a DynamoDB table in memory with faults of its own, [`engine`] starts a real
//! engine to compare it with, [`clocks`] are for tests on one. [`crowd`] puts two hundred processes
//! on one bucket.
//!
//! The key decision: the library is not instrumented. Two wrappers around the store, one above and
//! one below the injected faults, see what was asked, what landed and what was answered; everything
//! else follows from that.

mod accounts;
mod books;
pub mod clocks;
mod compare;
pub mod crowd;
pub mod engine;
pub mod evaluator;
mod journal;
mod lease_model;
mod oracle;
pub mod protocol_sim;
pub mod proxy;
pub mod rig;
mod rng;
pub mod sim;

pub use books::Freshness;
pub use oracle::{Coverage, RealTime};
/// The library itself, for tests of a backend: a backend may not depend on it.
pub use zae_limiter;
