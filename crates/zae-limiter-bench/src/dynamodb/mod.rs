//! Rows of the limiter on DynamoDB: what an acquire costs beside the requests it sends.
//!
//! The endpoint is a process of its own that gives every `UpdateItem` the same answer, so CPU is
//! the client's. The image in that answer is of a bucket half full and refilled a moment ago: what
//! a warm bucket looks like, and the limiter stays on its one-write path. Every row counts the
//! requests it caused.

mod bare;
mod blocking;
mod canned;
mod ours;
mod python;
mod warm;
mod watch;

use anyhow::{Result, anyhow};
use zae_limiter::{EntityId, Limit};
use zae_limiter_dynamodb::records::keys as schema;
use zae_limiter_dynamodb::{DynamoStore, sdk::Builder};

use crate::keys::{KEYS, resource};
use crate::rows::{Context, Entry};

pub(crate) use canned::{Endpoint, serve as serve_canned};

/// Callers of the rows with many.
const CALLERS: usize = 64;
const STACK: &str = "bench";
const REGION: &str = "us-east-1";
/// The namespace `default` of the canned endpoint.
const NAMESPACE_ID: &str = "bench-ns_01";
/// The parent of every child.
const PARENT: &str = "parent-of-all-children-00001";
const CHILDREN_MAX: usize = KEYS;
/// A resource whose buckets are in debt.
const REFUSING: &str = "refusing";

/// In the order in which they run: rows that are compared stand together. Every other round runs
/// backwards.
pub(crate) fn rows() -> Vec<Entry> {
    let mut rows = vec![bare::ONE, ours::ACQUIRE, bare::WRITTEN, python::ASYNC, python::SYNC];
    rows.extend([ours::TABLE, ours::STORE, ours::REFUSED]);
    rows.extend([ours::BLOCKS, crate::rows::BLOCK_ACQUIRE]);
    rows.extend([bare::TWO, ours::ADJUST, bare::PAIR, ours::CASCADE]);
    rows.extend([blocking::BARE, blocking::ACQUIRE]);
    rows.extend([bare::CROWD, ours::CROWD, python::CROWD]);
    rows.extend([bare::THREADS, ours::THREADS, bare::THREADS_CROWD, ours::THREADS_CROWD]);
    rows
}

/// The endpoint that all rows share; it ends with the command.
fn canned(context: &Context) -> Result<&Endpoint> {
    let started =
        context.canned.get_or_init(|| Endpoint::start().map_err(|error| format!("{error:#}")));
    started.as_ref().map_err(|error| anyhow!("{error}"))
}

/// How many buckets a row takes from; each is warmed first.
fn keys_of(context: &Context) -> usize {
    if context.quick { KEYS / 20 } else { KEYS }
}

/// Two limits that need half a day to fill a half empty bucket: no row runs long enough to leave
/// the fast path.
fn limits() -> [Limit; 2] {
    ["rpm:10000000/day", "tpm:5000000000/day"].map(|text| text.parse().expect("a valid limit"))
}

/// An entity that cascades to the parent, as long as the other keys.
fn child(number: usize) -> String {
    format!("child-of-the-parent-{number:08}")
}

/// Reaches the table of an endpoint, configured as users have it.
fn reach(endpoint: &str) -> Builder {
    DynamoStore::builder(STACK, REGION).endpoint_url(endpoint)
}

/// The partition key of the bucket that rows take from.
fn partition_key(entity: &EntityId) -> String {
    schema::bucket(NAMESPACE_ID, entity, &resource(), 0).pk
}
