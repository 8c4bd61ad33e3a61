//! What may become of the buckets of a DynamoDB table, write by write, by code that knows nothing
//! of how a write was built.
//!
//! `ledger` holds each landed write against the item that it met, `ideal` against a bucket in true
//! time; `slots` compares what landed for each call with what its caller was told, `due` the
//! counters of a client, `configured` the limits with those stored at the time, `admin` the deeds
//! of administrators. `moves` holds splits and folds to what they may move, and `whole` all shards
//! of a bucket to one ideal bucket; `refusals` asks whether what was refused was really not there,
//! `usage` whether the history has everything once. `stored`, `share`, `instant`, `expiry` and
//! `writer` read items and writes for them.

pub(crate) mod admin;
pub(crate) mod configured;
mod due;
pub(crate) mod expiry;
pub(crate) mod ideal;
pub(crate) mod instant;
pub(crate) mod ledger;
pub(crate) mod moves;
pub(crate) mod refusals;
pub(crate) mod share;
pub(crate) mod slots;
pub(crate) mod stored;
pub(crate) mod usage;
pub(crate) mod whole;
pub(crate) mod writer;

use zae_limiter_dynamodb::bucket::writers::REGISTRY;
use zae_limiter_dynamodb::table::Key;

pub use admin::Deeds;

/// How often what happened on the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Writes that landed, by the order of the registry of writers.
    pub writers: [u64; REGISTRY.len()],
    /// Writes held to an ideal bucket that allowed no difference at all.
    pub exact: u64,
    /// Writes that landed after their sender had given up.
    pub late: u64,
    /// Copies of writes that the network delivered once more.
    pub copies: u64,
    /// Those of them that landed.
    pub copies_landed: u64,
    /// Operations that landed twice because another write came between: the safe direction, and
    /// counted.
    pub doubled: u64,
    /// Buckets left in debt by a write.
    pub in_debt: u64,
    /// Buckets that had expired and were swept.
    pub swept: u64,
    /// Buckets deleted by an administrator.
    pub deleted: u64,
    /// Writes on a bucket in which a lowered limit hides a gap.
    pub gaps: u64,
    /// Writes by somebody who does not keep our rules.
    pub foreign: u64,
    /// Items made unreadable.
    pub damaged: u64,
    /// Clocks that stepped.
    pub stepped: u64,
    /// Those of them that stepped further than any instant that is written may be off.
    pub stepped_far: u64,
    /// Takes that landed too late to be granted, found to have landed, and given back.
    pub overdue: u64,
    /// Chains that were refused after some of their buckets had been taken from.
    pub compensated: u64,
    /// Grants to a chain in which some member has no limits, and so no bucket.
    pub unlimited: u64,
    /// Takes that landed for somebody who was not told so.
    pub unheard: u64,
    /// Credits the store gave up, and counted.
    pub credits_lost: u64,
    /// Credits that found nothing to give back to: what is gone was full.
    pub credits_gone: u64,
    /// What administrators did.
    pub deeds: Deeds,
    /// Listings that an index answered without changes of more than two seconds ago.
    pub far_behind: u64,
    /// Buckets made by a take, and held against the history of the configuration.
    pub made: u64,
    /// What happened to buckets of several shards.
    pub shards: Shards,
    /// What happened to the stream of the table.
    pub stream: Stream,
}

/// How often what happened to buckets of several shards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shards {
    /// Shards that were split.
    pub splits: u64,
    /// Splits of a bucket with a limit that is too small to be divided.
    pub pinned: u64,
    /// Splits of a shard that hides a gap, or owes.
    pub burdened: u64,
    /// Buckets that were folded.
    pub folds: u64,
    /// Shards given back that a foreign writer had left out.
    pub repairs: u64,
    /// Shards removed that belonged to no bucket.
    pub prunes: u64,
    /// Takes from several shards at once.
    pub gathers: u64,
    /// Refusals after all shards were read.
    pub refusals: u64,
    /// Limits of such refusals that were held to what the shards had together.
    pub proven: u64,
    /// Splits by a take that found no room for its write.
    pub pressed: u64,
    /// Charges and credits that landed at a donor of the shard they were meant for.
    pub walks: u64,
    /// Takes from one of several shards.
    pub takes: u64,
    /// Changes of limits on one of several shards.
    pub syncs: u64,
    /// Flags on one of several shards.
    pub flags: u64,
    /// Shards that were deleted with their bucket.
    pub deleted: u64,
    /// Counts that a foreign writer has raised.
    pub raised: u64,
    /// Writes that lost, and took one of several shards for the only one: their sender knew the
    /// bucket from before its split, or not at all.
    pub taken_for_one: u64,
    /// Writes that lost, and had pinned another count of several shards than there was.
    pub other_count: u64,
    /// Writes that lost, and had pinned the count that there was, but an earlier era.
    pub other_era: u64,
    /// Writes that lost because a fold had taken their shard away.
    pub taken_away: u64,
}

/// How often what happened to the stream of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    /// Batches that were delivered.
    pub batches: u64,
    /// Records that were delivered and had been counted before, once per snapshot.
    pub repeated: u64,
    /// Batches that were not completed: the process stopped, or writes failed.
    pub cut: u64,
    /// Records that were lost before anybody read them.
    pub lost: u64,
    /// Snapshots held to what was counted.
    pub snapshots: u64,
    /// Buckets refilled ahead of their takes.
    pub refills: u64,
    /// Shards split ahead of their takes.
    pub splits: u64,
    /// Shards made so that all have the same count.
    pub levelled: u64,
    /// Quiet buckets that were folded.
    pub folds: u64,
}

/// Whether a key is that of a bucket, and whose.
pub(crate) fn bucket_of(key: &Key) -> Option<(&str, &str)> {
    let (_, rest) = key.pk.split_once("/BUCKET#")?;
    let (rest, _) = rest.rsplit_once('#')?;
    rest.split_once('#')
}
