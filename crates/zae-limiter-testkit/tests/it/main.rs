//! All integration tests of this crate in one binary: one link instead of many.

mod cancellation;
mod crowd;
mod documents;
mod engine;
mod evaluator;
mod evaluator_faults;
mod fleet;
mod hot_buckets;
mod leases;
mod live_config;
mod local_blocks;
mod namespaces;
mod protocol_model;
mod protocol_simulator;
mod sections;
mod shard_model;
mod simulator;
mod tidy;
mod usage_model;
mod wrong_clocks;
