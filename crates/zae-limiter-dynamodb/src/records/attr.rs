//! Names of attributes. The only place where those of two and three letters are spelled.

use smol_str::SmolStrBuilder;
use zae_limiter_core::LimitName;

use crate::table::Attr;

pub(crate) const PK: &str = "PK";
pub(crate) const SK: &str = "SK";
pub(crate) const GSI1PK: &str = "GSI1PK";
pub(crate) const GSI1SK: &str = "GSI1SK";
pub(crate) const GSI2PK: &str = "GSI2PK";
pub(crate) const GSI2SK: &str = "GSI2SK";
pub(crate) const GSI3PK: &str = "GSI3PK";
pub(crate) const GSI3SK: &str = "GSI3SK";
pub(crate) const GSI4PK: &str = "GSI4PK";
pub(crate) const GSI4SK: &str = "GSI4SK";
/// When an item may be forgotten, in s.
pub(crate) const TTL: &str = "ttl";

// ---------------------------------------------------------------------------------------- records

pub(crate) const ENTITY_ID: &str = "entity_id";
pub(crate) const RESOURCE: &str = "resource";
pub(crate) const RESOURCES: &str = "resources";
pub(crate) const NAME: &str = "name";
pub(crate) const PARENT_ID: &str = "parent_id";
pub(crate) const CASCADE: &str = "cascade";
pub(crate) const METADATA: &str = "metadata";
pub(crate) const CREATED_AT: &str = "created_at";
/// Counts the moves of an entity; copied onto its buckets, so that a stale parent shows.
pub(crate) const PGEN: &str = "pgen";
/// Which of the entities that ever had this id it is.
pub(crate) const PINC: &str = "pinc";
/// The version updates of an entity are conditional on. Ours; an entity without it is at version 1.
pub(crate) const VERSION: &str = "version";
/// Counts the children an entity ever got, so that it is not deleted under a new one. Ours.
pub(crate) const CHILDREN_EVER: &str = "cv";
/// The deletion of the entity has been ordered: the event that says so. Ours.
pub(crate) const DELETING: &str = "deleting";
/// The ancestors an entity cascaded to when it was created, the parent first. Ours; a hint for
/// reading ahead.
pub(crate) const ANCESTORS: &str = "anc";
/// What files of limits manage, as text. Ours.
pub(crate) const MANAGED: &str = "managed";
pub(crate) const NAMESPACE_ID: &str = "namespace_id";
pub(crate) const NAMESPACE_NAME: &str = "namespace_name";
pub(crate) const STATUS: &str = "status";
pub(crate) const DELETED_AT: &str = "deleted_at";
pub(crate) const SCHEMA_VERSION: &str = "schema_version";
pub(crate) const LAMBDA_VERSION: &str = "lambda_version";
pub(crate) const CLIENT_MIN_VERSION: &str = "client_min_version";
pub(crate) const UPDATED_AT: &str = "updated_at";
pub(crate) const UPDATED_BY: &str = "updated_by";
/// Our function that serves the table. Ours, as all below.
pub(crate) const FUNCTION_VERSION: &str = "function_version";
/// What clients of ours must be able to read, and the first release that can.
pub(crate) const MIN_READER: &str = "min_reader";
pub(crate) const MIN_READER_RELEASE: &str = "min_reader_release";
/// Migrations that were finished.
pub(crate) const MIGRATED: &str = "migrated";
/// Days that history is kept.
pub(crate) const USAGE_RETENTION: &str = "usage_retention_days";
pub(crate) const AUDIT_RETENTION: &str = "audit_retention_days";

// ------------------------------------------------------------------------------------ checkpoints

/// The last stream record whose effects are all in the table. Ours, as all below.
pub(crate) const SEQUENCE: &str = "seq";
/// Who reads a stream shard.
pub(crate) const OWNER: &str = "owner";
/// Until when nobody else does, in ms.
pub(crate) const UNTIL: &str = "until";
pub(crate) const SEEN: &str = "seen";
/// True when a stream shard was read to its end.
pub(crate) const DONE: &str = "done";
/// How far behind the reader was, in ms.
pub(crate) const LATE: &str = "late";
/// How often records were gone before they were read.
pub(crate) const GAPS: &str = "gaps";

// ----------------------------------------------------------------------------------------- bucket

/// True while a bucket, or what a level of the configuration covers, is disabled.
pub(crate) const DISABLED: &str = "disabled";
/// Counts the writes of `disabled` on a bucket, so that a delayed one cannot undo a later one.
/// Ours.
pub(crate) const FLAG_COUNT: &str = "fv";
/// The refill instant shared by all limits of a bucket, in ms.
pub(crate) const REFILLED_AT: &str = "rf";
/// The refill instant that the remainders of the limits belong to. Ours.
pub(crate) const REMAINDERS_AT: &str = "rmf";
/// How many shards the bucket has, as this shard knows it.
pub(crate) const SHARD_COUNT: &str = "shard_count";
/// "Valid until", in ms: set by the Python package when the parameters must be looked at again.
pub(crate) const MARK: &str = "vu";
/// The nonce of the last take or charge. Ours.
pub(crate) const LAST_NONCE: &str = "lw";
/// When the configuration behind the parameters was read, in ms. Ours.
pub(crate) const CONFIG_READ_AT: &str = "ca";
/// Names of limits that are no longer configured. Ours.
pub(crate) const RETIRED: &str = "ret";
/// The name of the hidden limit that measures writes.
pub(crate) const WCU: &str = "wcu";
/// What the hidden limit has: room for writes.
pub(crate) const ROOM: &str = "b_wcu_tk";
/// What was taken of the hidden limit: takes that have landed, 1 000 each. The usage of an hour
/// counts its events by it.
pub(crate) const TAKES: &str = "b_wcu_tc";
/// Failed conditions that have reached the item, 1 000 each. Ours; only on buckets that a crowd
/// writes.
pub(crate) const FAILED: &str = "wx";
/// Marks the last credit that has undone a take, by the instant of the take in microseconds. Ours.
pub(crate) const UNDONE: &str = "un";
/// Names of the limits that are not divided among the shards, sorted. Ours.
pub(crate) const PINNED: &str = "pin";
/// How often the shards of the bucket were folded. Ours.
pub(crate) const ERA: &str = "er";
/// The bucket expired before it was split, and expires again once it is folded. Ours.
pub(crate) const EXPIRES_LATER: &str = "tx";
/// When the item was split last, in ms. Ours.
pub(crate) const SPLIT_AT: &str = "sp";
/// What the bucket has lent to local blocks, as text ([`crate::bucket::loans`]). Ours.
pub(crate) const LENT: &str = "ln";

// ------------------------------------------------------------------------------- limits of buckets

/// In millitokens; negative is debt.
pub(crate) const BALANCE: &str = "tk";
/// All that was ever taken and not given back, in millitokens.
pub(crate) const USED: &str = "tc";
/// In millitokens.
pub(crate) const CAPACITY: &str = "cp";
/// Millitokens per period.
pub(crate) const REFILL: &str = "ra";
/// In ms.
pub(crate) const PERIOD: &str = "rp";
/// What is left of the last refill after division. Ours.
pub(crate) const REMAINDER: &str = "rm";
/// What a lowered capacity hides, in millitokens. Ours.
pub(crate) const GAP: &str = "gp";
/// What the shards had taken that folds have removed, in millitokens. Ours; only shown.
pub(crate) const FOLDED_USED: &str = "fu";

/// All attributes of a limit.
pub(crate) const LIMIT: [&str; 8] =
    [BALANCE, USED, CAPACITY, REFILL, PERIOD, REMAINDER, GAP, FOLDED_USED];

/// The attribute of one limit.
pub(crate) fn of_limit(name: &LimitName, field: &'static str) -> Attr {
    let mut attr = SmolStrBuilder::new();
    attr.push_str("b_");
    attr.push_str(name.as_str());
    attr.push('_');
    attr.push_str(field);
    attr.finish()
}
