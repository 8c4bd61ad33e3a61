//! The integration tests, in one binary.

mod beside;
mod compare;
mod dynamodb;
mod shards;
