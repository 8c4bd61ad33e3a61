//! What a shard has of a limit, reckoned anew: the product's sums are what is being tested.

use std::collections::BTreeSet;

use crate::oracle::bucket::Params;

/// The most shards a bucket has.
pub(crate) const SHARDS_MAX: i64 = 32;

/// Where an item stands among the shards of its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: i64,
    /// How many shards there are if all have split as often as this one.
    pub(crate) count: i64,
    /// How often the bucket was folded.
    pub(crate) era: i64,
    /// Limits that are all on shard 0.
    pub(crate) pinned: BTreeSet<String>,
}

impl Place {
    pub(crate) fn is_alone(&self) -> bool {
        self.count == 1
    }

    pub(crate) fn is_possible(&self) -> bool {
        matches!(self.count, 1 | 2 | 4 | 8 | 16 | 32) && (0..self.count).contains(&self.shard)
    }

    /// What this shard has of a limit of the whole bucket.
    pub(crate) fn effective(&self, name: &str, whole: Params) -> Params {
        match (self.is_alone(), self.pinned.contains(name), self.shard) {
            (true, ..) | (false, true, 0) => whole,
            (false, true, _) => Params { capacity: 0, refill: 0, period: whole.period },
            (false, false, _) => Params {
                capacity: part_of(whole.capacity, self.shard, self.count),
                refill: whole.refill,
                period: whole.period * i128::from(self.count),
            },
        }
    }

    /// The shard that a split of this one makes.
    pub(crate) fn child(&self) -> Place {
        Place { shard: self.shard + self.count, count: 2 * self.count, ..self.clone() }
    }

    /// What is left of this one.
    pub(crate) fn after_split(&self) -> Place {
        Place { count: 2 * self.count, ..self.clone() }
    }
}

/// Halves again and again, the larger half to the smaller number.
fn part_of(whole: i128, shard: i64, count: i64) -> i128 {
    if count == 1 {
        return whole;
    }
    let above = part_of(whole, shard % (count / 2), count / 2);
    if shard < count / 2 { above - above / 2 } else { above / 2 }
}
