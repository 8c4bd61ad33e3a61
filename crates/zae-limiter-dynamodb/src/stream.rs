//! What the aggregator needs of this crate: the table, and the items its stream tells of. Hidden
//! from the documentation: the aggregator is the only caller, and both are released together.
//!
//! The formats stay where they are read: snapshots of usage in `records/item/usage.rs`, keys in
//! `records/keys.rs`. This module only names them.

use zae_limiter_core::EventId;

use crate::records::item::{instant_of, text_of};
use crate::records::{attr, keys};

pub use aws_config::SdkConfig;

pub use crate::bucket::upkeep::{BucketName, REFILL_IMAGE_AGE_MAX_S, Upkeep};
pub use crate::constants::{FOLD_RATE, HOT_RATE, HOT_RECORDS_MIN, SHARDS_MAX, WCU_PER_WRITE_MILLI};
pub use crate::records::checkpoint::{Checkpoint, LEASE_MS, checkpoints};
pub use crate::records::item::usage::{Mark, Snapshot, SnapshotWrite, counted_up_to};
pub use crate::records::keys::{AUDIT, STATE, parse_bucket};
pub use crate::table::{BatchPage, Item, Key, Query, QueryPage, Table, TableError, Update};

/// The item with what is set for the table as a whole.
#[must_use]
pub fn settings_key() -> Key {
    keys::version()
}

/// How many days a snapshot of usage is kept, if the table says it.
#[must_use]
pub fn usage_retention_days(found: &[Item]) -> Option<u32> {
    let is_settings = |item: &&Item| text_of(item, attr::SK) == Some(keys::VERSION);
    let settings = found.iter().find(is_settings)?;
    crate::Versions::of(settings).retention.usage_days
}

/// Whose removals are those of expired items.
pub const EXPIRER: &str = "dynamodb.amazonaws.com";

/// What the hidden limit that counts writes is called.
pub const WCU: &str = attr::WCU;

/// When a bucket was last refilled, in ms.
pub const REFILLED_AT: &str = attr::REFILLED_AT;

/// How many shards a bucket has.
pub const SHARD_COUNT: &str = attr::SHARD_COUNT;

/// When a shard was split last, in ms.
pub const SPLIT_AT: &str = attr::SPLIT_AT;

/// Marks the last credit that has undone a take, by the instant of the take in microseconds. Every
/// such credit leaves another mark.
pub const UNDONE: &str = attr::UNDONE;

/// The namespace that a partition key belongs to.
#[must_use]
pub fn namespace_of(pk: &str) -> Option<&str> {
    pk.split_once('/').map(|(namespace, _)| namespace)
}

/// The limit whose use an attribute of a bucket counts.
#[must_use]
pub fn limit_of_used(attribute: &str) -> Option<&str> {
    attribute.strip_prefix("b_")?.strip_suffix("_tc")
}

/// The attribute of a bucket that counts the use of a limit.
#[must_use]
pub fn used_of(limit: &str) -> String {
    format!("b_{limit}_{}", attr::USED)
}

/// A number of an item, if it is a whole one of 64 bits.
#[must_use]
pub fn whole_number(digits: &str) -> Option<i64> {
    crate::records::item::whole_number(digits)
}

/// The partition key of an audit event belongs to this subject.
#[must_use]
pub fn audit_subject(pk: &str) -> Option<&str> {
    let namespace = namespace_of(pk)?;
    pk.strip_prefix(namespace)?.strip_prefix("/AUDIT#")
}

/// When an audit event happened, in ms: by its own time, else by its id.
#[must_use]
pub fn audit_time(event: &Item) -> Option<i64> {
    let by_id = || text_of(event, "event_id")?.parse::<EventId>().ok().map(|id| id.time());
    instant_of(event, "timestamp").or_else(by_id).map(|at| at.0)
}

/// The records that say what became of a namespace: its own, and the mark a purge leaves.
#[must_use]
pub fn namespace_keys(id: &str) -> [Key; 2] {
    [keys::namespace_by_id(id), keys::purged_namespace(id)]
}

/// Whether a namespace is there, by those of its records that were found. A namespace that is being
/// purged, has been, or was never registered is not; one that was deleted can be recovered.
#[must_use]
pub fn is_namespace_there(id: &str, found: &[Item]) -> bool {
    let [record, purged] = namespace_keys(id);
    let with = |key: &Key| {
        found.iter().find(|item| text_of(item, attr::SK).is_some_and(|sort| sort == key.sk))
    };
    let is_purging = |item: &Item| text_of(item, attr::STATUS) == Some("purging");
    with(&purged).is_none() && with(&record).is_some_and(|record| !is_purging(record))
}
