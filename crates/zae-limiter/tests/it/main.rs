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
mod observability;
mod outage;
mod problems;
mod runtimes;
mod slow_disk;
mod support;
