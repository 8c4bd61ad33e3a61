//! The ideal bucket over all shards: nothing is minted by splitting, folding, repairing or
//! gathering.
//!
//! It has the capacity and the rate of all shards together, is fed with every write that landed on
//! any of them, and knows nothing of shares. What the shards have together is never more. It may be
//! less: a full shard overflows beside a short one. It lives from the first split to the fold; one
//! item alone is held to its own ideal bucket. Amounts are counted in billionths of a millitoken,
//! in favour of the product where they do not come out even.

use std::collections::BTreeMap;

use zae_limiter_dynamodb::bucket::writers::Writer;

use super::ideal::IdealBucket;
use super::ledger::Amounts;
use super::share::{Place, SHARDS_MAX};
use super::stored::Stored;
use super::writer::takes;
use crate::oracle::Broken;
use crate::oracle::bucket::Params;
use crate::oracle::meter::Meter;

/// Parts of a millitoken.
const PARTS: i128 = 1_000_000_000;

/// The shards of a bucket, by number.
pub(crate) type Leaves = BTreeMap<i64, Stored>;

/// One limit of the whole bucket.
#[derive(Clone, Debug)]
struct Pool {
    fine: i128,
    meter: Meter,
}

/// A bucket of several shards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whole {
    at: i64,
    pools: BTreeMap<String, Pool>,
}

/// The tree of a bucket: every place that a shard has or should have, and the shard whose limits it
/// has. A shard that no donor knows of is no part of it.
pub(crate) fn tree(leaves: &Leaves) -> Vec<(Place, &Stored)> {
    let mut found = Vec::new();
    if let Some(root) = leaves.get(&0) {
        grow(leaves, 0, 1, root, &mut found);
    }
    found
}

fn grow<'a>(
    leaves: &'a Leaves,
    shard: i64,
    count: i64,
    donor: &'a Stored,
    found: &mut Vec<(Place, &'a Stored)>,
) {
    let own = leaves.get(&shard);
    if let Some(own) = own.filter(|own| own.place.count > count && count < SHARDS_MAX) {
        grow(leaves, shard, 2 * count, own, found);
        grow(leaves, shard + count, 2 * count, own, found);
        return;
    }
    let like = own.unwrap_or(donor);
    found.push((Place { shard, count, ..like.place.clone() }, like));
}

/// What the shards of the tree have together at an instant, each cut at its share and to whole
/// millitokens. A shard that lacks a limit has all of its share.
pub(crate) fn together(leaves: &Leaves, at: i64) -> Amounts {
    let tree = tree(leaves);
    let mut sums = Amounts::new();
    for (name, limit) in tree.iter().flat_map(|(_, of)| &of.limits) {
        if !sums.contains_key(name) {
            let has = |(place, like): &(Place, &Stored)| match like.limits.get(name) {
                _ if *place != like.place => 0,
                None => place.effective(name, limit.stored).capacity,
                Some(own) => {
                    let elapsed = i128::from(at) - i128::from(like.refilled_at);
                    own.fine_after(elapsed).div_euclid(own.params.period)
                }
            };
            sums.insert(name.clone(), tree.iter().map(has).sum());
        }
    }
    sums
}

fn up(dividend: i128, divisor: i128) -> i128 {
    -(-dividend).div_euclid(divisor)
}

impl Whole {
    /// A bucket that was one item until now, from its ideal bucket.
    pub(crate) fn new(ideal: &IdealBucket, truth: i64) -> Whole {
        let mut ideal = ideal.clone();
        ideal.wait(truth);
        let pools = ideal.accounts().map(|account| {
            let fine = up(account.fine * PARTS, account.params.period);
            (account.name.clone(), Pool { fine, meter: account.meter.clone() })
        });
        Whole { at: truth, pools: pools.collect() }
    }

    /// The parameters that the places of the tree have of a limit.
    fn params<'a>(leaves: &'a Leaves, name: &'a str) -> impl Iterator<Item = Params> + 'a {
        tree(leaves).into_iter().filter_map(move |(place, like)| {
            like.limits.get(name).map(|limit| place.effective(name, limit.stored))
        })
    }

    /// Time passes, over these shards.
    pub(crate) fn wait(&mut self, leaves: &Leaves, truth: i64) {
        let elapsed = i128::from(truth) - i128::from(self.at);
        if elapsed <= 0 {
            return;
        }
        self.at = truth;
        for (name, pool) in &mut self.pools {
            for params in Whole::params(leaves, name) {
                pool.fine += up(elapsed * params.refill * PARTS, params.period);
                pool.meter.leak(elapsed, params);
            }
        }
        self.cut(leaves);
    }

    /// Never more than the capacity.
    fn cut(&mut self, leaves: &Leaves) {
        self.pools.retain(|name, pool| {
            let mut has = false;
            let capacity = Whole::params(leaves, name)
                .inspect(|_| has = true)
                .map(|params| params.capacity)
                .sum::<i128>();
            pool.fine = pool.fine.min(capacity * PARTS);
            pool.meter.allow(capacity);
            has
        });
    }

    /// A write has landed on one shard of the tree; `leaves` are the shards after it.
    pub(crate) fn landed(
        &mut self,
        (writer, amounts): (Writer, &Amounts),
        (before, after): (&Stored, &Stored),
        leaves: &Leaves,
        allowance: impl Fn(&str) -> i128,
    ) -> Result<(), Broken> {
        let mut verdict = Ok(());
        for (name, was) in &before.limits {
            if let (None, Some(pool)) = (after.limits.get(name), self.pools.get_mut(name)) {
                // By a clock that is ahead the limit was full a little early.
                let left = Whole::sum(leaves, name, self.at);
                pool.fine = (pool.fine - was.params.capacity * PARTS).max(left);
            }
        }
        for (name, found) in &after.limits {
            let capacity = found.params.capacity;
            let pool = self
                .pools
                .entry(name.clone())
                .or_insert_with(|| Pool { fine: 0, meter: Meter::new(capacity) });
            let was = before.limits.get(name);
            if was.is_none() {
                pool.fine += capacity * PARTS;
                pool.meter.allow(Whole::params(leaves, name).map(|params| params.capacity).sum());
            }
            if let (Writer::Reset, Some(was)) = (writer, was) {
                let has = was.fine_after(i128::from(self.at) - i128::from(before.refilled_at));
                let gain = capacity - has.div_euclid(was.params.period);
                if found.balance == capacity && gain > 0 {
                    pool.fine += gain * PARTS;
                    pool.meter.give_back(gain);
                }
            }
            let milli = amounts.get(name).copied().unwrap_or(0);
            pool.fine -= milli * PARTS;
            if milli < 0 {
                pool.meter.give_back(-milli);
            } else if takes(writer) {
                let allowed = up(allowance(name), PARTS) + i128::from(milli > 0);
                let admitted = pool.meter.admit_within(milli, allowed);
                verdict = verdict.and(admitted.map_err(|excess| {
                    format!("{name} over all shards: {excess}, allowed are {allowed} more")
                }));
            }
        }
        self.cut(leaves);
        verdict
    }

    /// Somebody has written who does not keep our rules: what is there is there.
    pub(crate) fn foreign(&mut self, leaves: &Leaves) {
        for name in leaves.values().flat_map(|leaf| leaf.limits.keys()) {
            let sum = Whole::sum(leaves, name, self.at);
            let pool = self
                .pools
                .entry(name.clone())
                .or_insert_with(|| Pool { fine: sum, meter: Meter::new(0) });
            pool.fine = pool.fine.max(sum);
        }
        self.cut(leaves);
    }

    /// What the shards of the tree have together.
    fn sum(leaves: &Leaves, name: &str, truth: i64) -> i128 {
        let of = |(place, like): (Place, &Stored)| {
            let limit = like.limits.get(name).filter(|_| place == like.place)?;
            let elapsed = i128::from(truth) - i128::from(like.refilled_at);
            Some((limit.fine_after(elapsed) * PARTS).div_euclid(limit.params.period))
        };
        tree(leaves).into_iter().filter_map(of).sum()
    }

    /// Nothing is minted: the shards have no more together than the whole bucket would have.
    pub(crate) fn check(
        &self,
        leaves: &Leaves,
        allowance: impl Fn(&str) -> i128,
    ) -> Result<(), Broken> {
        for (name, pool) in &self.pools {
            let (sum, allowed) = (Whole::sum(leaves, name, self.at), allowance(name));
            if sum > pool.fine + allowed {
                let shards: Vec<_> = leaves
                    .values()
                    .map(|leaf| (leaf.place.shard, leaf.refilled_at, leaf.limits.get(name)))
                    .collect();
                return Err(format!(
                    "minted: all shards have {sum} of {name}, in parts of a milli, the whole bucket {} at {}, allowed are {allowed}: {shards:?}",
                    pool.fine, self.at
                ));
            }
        }
        Ok(())
    }

    /// What was admitted of each limit, for the one item that is left.
    pub(crate) fn meters(&self) -> impl Iterator<Item = (&String, &Meter)> {
        self.pools.iter().map(|(name, pool)| (name, &pool.meter))
    }
}

/// In parts of a millitoken, rounded up.
pub(crate) fn parts(fine: i128, period: i128) -> i128 {
    up(fine * PARTS, period)
}
