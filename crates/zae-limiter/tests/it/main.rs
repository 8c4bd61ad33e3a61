//! All integration tests of this crate in one binary: one link instead of many.

mod acquire;
mod admin;
mod blocking;
mod cache;
mod entities;
mod examples;
mod lease;
mod observability;
mod outage;
mod support;
