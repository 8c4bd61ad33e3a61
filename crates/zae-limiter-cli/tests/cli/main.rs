//! The real binary on a temporary file: what it prints, where, and how it ends.
//!
//! Limits are per day, so that nothing refills while a test runs; waits are rounded up to minutes
//! or filtered.

mod acquire;
mod book;
mod completion;
mod demo;
#[cfg(feature = "deploy")]
mod deploy;
mod documents;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod entities;
mod entity;
mod explain;
mod file;
mod files;
mod first_hour;
mod flags;
mod hints;
mod history;
#[cfg(all(unix, feature = "dynamodb"))]
mod lambda;
mod limits;
#[cfg(feature = "loadtest")]
mod loadtest;
#[cfg(feature = "dynamodb")]
mod local;
mod looks;
mod migrate;
mod namespaces;
#[cfg(feature = "dynamodb")]
#[cfg(feature = "deploy")]
mod package;
mod promised;
mod reference;
mod resources;
mod silences;
mod store;
mod support;
mod usage;
