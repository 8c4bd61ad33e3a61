//! A lossy wire between the real SDK and a real engine: one scripted case per fault, and seeded
//! random runs under all of them. The proxy knows what really landed; the tests compare that with
//! what clients believed and counted.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod books;
mod chains;
mod client;
mod debits;
mod rig;
mod seeds;
mod settling;
