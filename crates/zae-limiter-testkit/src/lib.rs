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
//! [`sim::rig`] is the same machinery for a test that wants to choose every poll itself, and
//! [`sim::crowd`] puts two hundred processes on one bucket.
//!
//! The key decision: the library is not instrumented. Two wrappers around the store, one above and
//! one below the injected faults, see what was asked, what landed and what was answered; everything
//! else follows from that.

// Lambda and S3 on this machine.
pub mod aws;
// Executables for other machines.
pub mod elf;
// A real DynamoDB engine for tests: its starter, a proxy that loses answers, clocks.
pub mod engine;
// Judges: books of what was asked and landed, exact sums, ideal buckets.
mod oracle;
// Numbers that a seed gives.
mod rng;
// Simulators: worlds, clients, steps; a test that polls by hand; crowds.
pub mod sim;
// A DynamoDB table in memory that evaluates expressions, with faults of its own.
pub mod table;
// Everything that is asked of a table, with who asks.
pub mod traffic;

pub use oracle::{Coverage, Freshness, RealTime};
/// The library itself, for tests of a backend: a backend may not depend on it.
pub use zae_limiter;
/// The aggregator, for tests of the table that it looks after.
pub use zae_limiter_aggregator;
