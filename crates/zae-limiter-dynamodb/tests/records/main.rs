//! Records beside the buckets, as others leave them: damaged ones, and buckets of several shards.

#![expect(clippy::unwrap_used, reason = "a test that can not go on says where")]

mod damaged;
#[expect(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../evaluated/mod.rs"]
mod evaluated;
mod reached;
