//! All integration tests of this crate in one binary: one link instead of many.

mod cancellation;
mod crowd;
mod documents;
mod engine;
mod evaluator;
mod evaluator_faults;
mod leases;
mod live_config;
mod namespaces;
mod protocol_model;
mod protocol_simulator;
mod simulator;
mod tidy;
mod wrong_clocks;
