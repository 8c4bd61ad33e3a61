//! The integration tests, in one binary.

mod aggregator;
mod beside;
mod compare;
mod dynamodb;
mod shards;
