//! The shapes of writes that move tokens between shards.

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use smallvec::SmallVec;
use zae_limiter_core::{LimitName, LimitParams, Milli, TimeMs};

use super::{Pins, To};
use crate::bucket::shard::Standing;

/// What changes of the place of an item among the shards of its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeChange {
    /// The count from now on.
    pub count: i64,
    /// Names of the limits that are not divided.
    pub pinned: To<String>,
    /// The era from now on (rule S4a): the time of the first split, one more at the fold.
    pub era: To<i64>,
    /// Whether the bucket expires once it is folded.
    pub expires_later: To<()>,
    /// When it was split.
    pub split_at: To<TimeMs>,
}

/// How much of a bucket one removal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// One shard of several, or one that may be; the other legs remove the others.
    Shard,
    /// All of it: lands only if the bucket has one item.
    Alone,
}

/// A shard to remove.
#[derive(Clone, Debug, PartialEq)]
pub struct Withdrawn {
    /// What must hold of the item.
    pub pins: Pins,
    /// The balance that each limit must have.
    pub balances: SmallVec<[(LimitName, LimitParams, Milli); 3]>,
}

/// A shard to make: the child of a split.
#[derive(Clone, Debug, PartialEq)]
pub struct NewLeaf {
    /// The opaque id of the namespace.
    pub(crate) namespace: Arc<str>,
    /// Whose bucket, as it is stored: other writers accept names that we do not.
    pub(crate) entity: String,
    /// For which resource.
    pub(crate) resource: String,
    /// Attributes that are the same on all shards: names, and the stamp of the owner.
    pub(crate) copied: Vec<(&'static str, AttributeValue)>,
    /// Which shard.
    pub(crate) standing: Standing,
    pub(crate) refilled_at: TimeMs,
    pub(crate) config_read_at: Option<i64>,
    /// The limits that are no longer configured.
    pub(crate) retired: Vec<String>,
    /// Name, parameters, balance and gap of each limit.
    pub(crate) limits: SmallVec<[LeafLimit; 3]>,
}

/// A limit of a new shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafLimit {
    /// Which limit.
    pub name: LimitName,
    /// Its parameters, those of the whole bucket.
    pub stored: LimitParams,
    /// What it begins with.
    pub balance: Milli,
    /// What a lowered capacity hides.
    pub gap: Milli,
}
