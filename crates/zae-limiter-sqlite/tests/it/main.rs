//! All integration tests of this crate in one binary: one link instead of many.

mod common;
mod conformance;
mod copies;
mod errors;
mod files;
mod kill9;
mod processes;
mod sharing;
mod sweeping;
