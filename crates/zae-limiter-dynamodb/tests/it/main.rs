//! All integration tests of this crate in one binary: one link instead of many.

mod admin;
mod blocks;
mod calls;
mod clocks;
mod cold;
mod conformance;
mod conformance_sharded;
mod crowds;
mod evaluated;
mod flags;
mod fresh;
mod interop;
mod lossy;
mod options;
mod pages;
mod processes;
mod records;
mod sdk;
mod shards;
mod skips;
mod stub;
mod swept;
mod units;
mod unseen;
mod upkeep;
mod verdicts;
