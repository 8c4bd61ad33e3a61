//! All integration tests of this crate in one binary: one link instead of many.

mod at_once;
mod bucket;
mod clocks;
mod decide;
mod ledger;
mod provision;
mod provision_model;
mod refill;
mod renamed;
mod support;
