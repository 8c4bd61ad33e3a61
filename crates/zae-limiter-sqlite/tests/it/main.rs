//! All integration tests of this crate in one binary: one link instead of many.

mod blocks;
mod bounded;
mod common;
mod conformance;
mod copies;
mod errors;
mod files;
mod kill9;
mod processes;
mod purge;
mod sharing;
mod steps;
mod sweeping;
