//! The aggregator over tables in memory, and over a real engine.

#![allow(clippy::unwrap_used)]

mod archive;
mod cost;
mod engine;
mod engines;
mod failures;
mod filters;
mod fold;
#[cfg(feature = "lambda")]
mod lambda;
mod log;
mod namespaces;
mod once;
mod retention;
mod rig;
#[cfg(feature = "s3")]
mod s3;
mod settings;
mod upkeep;
mod whole;
mod worker;
