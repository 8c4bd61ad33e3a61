//! All integration tests of this crate in one binary: one link instead of many.

mod acquire;
mod admin;
mod blocking;
mod cache;
mod chains;
mod entities;
mod examples;
mod file;
mod lease;
mod local_blocks;
mod migrate;
mod observability;
mod outage;
mod prepared;
mod problems;
mod runtimes;
mod slow_disk;
mod support;
