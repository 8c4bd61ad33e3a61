//! All integration tests of this crate in one binary: one link instead of many.

mod blocks;
mod conformance_blocks;
mod conformance_memory;
mod contract;
mod memory_bound;
mod memory_races;
mod pacing;
