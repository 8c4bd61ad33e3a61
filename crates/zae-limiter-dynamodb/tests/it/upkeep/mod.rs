//! What becomes of buckets without anybody taking: the table forgets them, administrators change
//! their limits.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod spread;
mod ttl;
mod world;
