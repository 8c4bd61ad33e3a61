//! All integration tests of this crate in one binary: one link instead of many.

mod bucket;
mod decide;
mod ledger;
mod support;
