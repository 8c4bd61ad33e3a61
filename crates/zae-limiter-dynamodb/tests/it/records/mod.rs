//! Records beside the buckets, as others leave them: damaged ones, and buckets of several shards.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod damaged;
mod reached;
