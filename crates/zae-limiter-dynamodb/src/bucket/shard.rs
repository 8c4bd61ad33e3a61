//! The arithmetic of shards. Pure.
//!
//! A bucket that takes more writes than one item can is spread over several items, its *shards*.
//! The shards are the leaves of a binary tree: shard `d` of count `n` splits into `d` and `d + n`,
//! both of count `2n`. Every shard knows its own count, so any hot shard splits without touching
//! the others. Example: shard 0 splits into 0 and 1; shard 1 alone splits into 1 and 3. The counts
//! are then 2, 4 and 4.
//!
//! Of a limit that is divided, a shard has a share by halves, and it refills at the rate over its
//! count. A limit that is too small to be divided is *pinned*: all of it is on shard 0.

use smallvec::SmallVec;
use smol_str::SmolStr;
use zae_limiter_core::{LimitName, LimitParams};

use crate::bucket::write::Pin;
use crate::constants::SHARDS_MAX;

/// Where an item stands among the shards of its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Its number.
    pub(crate) shard: u32,
    /// How many shards there are if all have split as often as this one.
    pub(crate) count: i64,
    /// Tells apart the times that the bucket had shards (rule S4a): set by the first split, raised
    /// by the fold. Within one era the same count and parameters mean the same share.
    pub(crate) era: Option<i64>,
    /// Names of pinned limits, sorted, with commas between them.
    pub(crate) pinned: Option<SmolStr>,
}

impl Standing {
    /// A bucket of one item.
    pub(crate) const ALONE: Standing = Standing { shard: 0, count: 1, era: None, pinned: None };

    /// Whether the bucket has one item.
    pub(crate) fn is_alone(&self) -> bool {
        self.count == 1
    }

    /// Whether a count and a number can belong to a shard.
    pub(crate) fn is_possible(&self) -> bool {
        let count = u32::try_from(self.count).unwrap_or(0);
        count.is_power_of_two() && count <= SHARDS_MAX && self.shard < count
    }

    /// Whether all of a limit is on shard 0.
    pub(crate) fn is_pinned(&self, name: &LimitName) -> bool {
        let mut names = self.pinned.iter().flat_map(|names| names.split(','));
        names.any(|pinned| pinned == name.as_str())
    }

    /// What this shard has of the parameters of a limit.
    pub(crate) fn effective(&self, name: &LimitName, stored: LimitParams) -> LimitParams {
        if self.is_alone() || !self.is_possible() {
            return stored;
        }
        if !self.is_pinned(name) {
            return LimitParams {
                capacity_milli: share(stored.capacity_milli, self.shard, self.count),
                refill_milli: stored.refill_milli,
                period_ms: stored.period_ms.saturating_mul(self.count),
            };
        }
        match self.shard {
            0 => stored,
            _ => LimitParams { capacity_milli: 0, refill_milli: 0, ..stored },
        }
    }

    /// Pins the era as it was seen. A bucket that was never split has nothing to confuse.
    pub(crate) fn era_pin(&self) -> Pin {
        if self.is_alone() { Pin::Any } else { Pin::seen(self.era) }
    }

    /// The number of slots it covers, of [`SHARDS_MAX`].
    pub(crate) fn slots(&self) -> u32 {
        SHARDS_MAX / u32::try_from(self.count).unwrap_or(1).clamp(1, SHARDS_MAX)
    }
}

impl Default for Standing {
    fn default() -> Standing {
        Standing::ALONE
    }
}

/// The share of a capacity: half of half, the larger part to the smaller number. The shares of the
/// two parts of a split add up to the share before it. Example: 7 over two shards is 4 and 3, and
/// 4 over shards 0 and 2 is 2 and 2.
pub(crate) fn share(capacity: i64, shard: u32, count: i64) -> i64 {
    let (mut share, mut bits) = (capacity, shard);
    for _ in 0..count.trailing_zeros() {
        share = if bits & 1 == 0 { share - share / 2 } else { share / 2 };
        bits >>= 1;
    }
    share
}

/// The shard that a shard was split from: its number without the highest bit.
pub(crate) fn donor(shard: u32) -> u32 {
    match shard.checked_ilog2() {
        Some(bit) => shard ^ (1 << bit),
        None => 0,
    }
}

/// The smallest count a shard can have: that of its birth.
pub(crate) fn count_at_birth(shard: u32) -> i64 {
    i64::from((shard + 1).next_power_of_two())
}

/// The shards that were split from a shard of this count, the oldest first.
pub(crate) fn children(shard: u32, count: i64) -> impl Iterator<Item = u32> {
    let (mut step, count) = (count_at_birth(shard), count.min(i64::from(SHARDS_MAX)));
    std::iter::from_fn(move || {
        let child = u32::try_from(i64::from(shard) + step).ok().filter(|_| step < count)?;
        step *= 2;
        Some(child)
    })
}

/// Whether these are all shards of one bucket, of one moment: each slot is covered once, and nobody
/// has folded between two looks. A shard that the Python package made has no era, and belongs to
/// the bucket all the same: it would never be complete again.
pub(crate) fn is_complete<'a>(standings: impl Iterator<Item = &'a Standing>) -> bool {
    let (mut slots, mut era, mut numbers) = (0, None, 0_u32);
    for standing in standings {
        let is_again = numbers & (1 << (standing.shard % SHARDS_MAX)) != 0;
        let is_of_another_era = match (era, standing.era) {
            (Some(era), Some(other)) => era != other,
            (known, other) => {
                era = known.or(other);
                false
            }
        };
        if !standing.is_possible() || is_again || is_of_another_era {
            return false;
        }
        numbers |= 1 << standing.shard;
        slots += standing.slots();
    }
    slots == SHARDS_MAX
}

/// The counts of the shards of one bucket, as far as they are known: 0 for a shard that is not
/// there, or was not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaves([u8; SHARDS_MAX as usize]);

impl Leaves {
    pub(crate) const NONE: Leaves = Leaves([0; SHARDS_MAX as usize]);

    /// A shard was seen.
    pub(crate) fn learn(&mut self, standing: &Standing) {
        if !standing.is_possible() {
            return;
        }
        // A fold has taken the others away.
        if standing.is_alone() {
            *self = Leaves::NONE;
        }
        if let (Some(place), Ok(count)) =
            (self.0.get_mut(standing.shard as usize), u8::try_from(standing.count))
        {
            *place = count;
        }
    }

    /// A shard is not there.
    pub(crate) fn lose(&mut self, shard: u32) {
        if let Some(count) = self.0.get_mut(shard as usize) {
            *count = 0;
        }
    }

    /// The shard that covers a slot. A shard that was not seen exists if its donor has split often
    /// enough.
    fn covering(&self, slot: u32) -> u32 {
        let mut count = 1;
        loop {
            let shard = slot % count;
            let known = u32::from(self.0[shard as usize]);
            if count >= SHARDS_MAX || known <= count {
                return shard;
            }
            count *= 2;
        }
    }

    /// All shards, each with the number of its slots: drawn by slots, a shard is drawn in
    /// proportion to its share.
    pub(crate) fn all(&self) -> SmallVec<[(u32, u32); 4]> {
        let mut all: SmallVec<[(u32, u32); 4]> = SmallVec::new();
        for slot in 0..SHARDS_MAX {
            let shard = self.covering(slot);
            match all.iter_mut().find(|(known, _)| *known == shard) {
                Some((_, slots)) => *slots += 1,
                None => all.push((shard, 1)),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn standing(shard: u32, count: i64) -> Standing {
        Standing { shard, count, era: None, pinned: None }
    }

    /// A random tree, as the shards of a bucket are: each step splits one of them.
    fn tree(steps: &[usize]) -> Vec<(u32, i64)> {
        let mut leaves = vec![(0_u32, 1_i64)];
        for step in steps {
            let place = step % leaves.len();
            let (shard, count) = leaves[place];
            if count < i64::from(SHARDS_MAX) {
                leaves[place] = (shard, 2 * count);
                leaves.push((shard + u32::try_from(count).expect("small"), 2 * count));
            }
        }
        leaves
    }

    proptest! {
        #[test]
        fn shares_are_nested_and_sum(
            capacity in 0_i64..1_000_000_000_000,
            steps in proptest::collection::vec(0_usize..64, 0..80),
        ) {
            let leaves = tree(&steps);
            let sum: i64 = leaves.iter().map(|(shard, count)| share(capacity, *shard, *count)).sum();
            prop_assert_eq!(sum, capacity);
            for (shard, count) in leaves.into_iter().filter(|(_, count)| *count < 32) {
                let child = shard + u32::try_from(count).expect("small");
                prop_assert_eq!(
                    share(capacity, shard, count),
                    share(capacity, shard, 2 * count) + share(capacity, child, 2 * count)
                );
                prop_assert_eq!(donor(child), shard);
            }
        }

        #[test]
        fn slots_partition(steps in proptest::collection::vec(0_usize..64, 0..80)) {
            let (leaves, mut known) = (tree(&steps), Leaves::NONE);
            leaves.iter().for_each(|(shard, count)| known.learn(&standing(*shard, *count)));
            let mut drawn = known.all().to_vec();
            drawn.sort_unstable();
            let mut expected: Vec<(u32, u32)> = leaves
                .iter()
                .map(|(shard, count)| (*shard, standing(*shard, *count).slots()))
                .collect();
            expected.sort_unstable();
            prop_assert_eq!(drawn, expected);
            let standings: Vec<Standing> =
                leaves.iter().map(|(shard, count)| standing(*shard, *count)).collect();
            prop_assert!(is_complete(standings.iter()));
            prop_assert!(!is_complete(standings[1..].iter()));
            for (shard, count) in &leaves {
                for child in children(*shard, *count) {
                    prop_assert!(leaves.iter().any(|(other, _)| *other == child));
                    prop_assert_eq!(donor(child), *shard);
                }
            }
        }

        #[test]
        fn the_share_of_one_shard_is_everything(
            capacity_milli in 1_i64..1_000_000_000, refill_milli in 1_i64..1_000_000_000,
            period_ms in 1_i64..1_000_000_000,
        ) {
            let params = LimitParams { capacity_milli, refill_milli, period_ms };
            let name = "rpm".parse().expect("a name");
            prop_assert_eq!(Standing::ALONE.effective(&name, params), params);
        }
    }

    #[test]
    fn a_pinned_limit_is_all_on_shard_zero() {
        let params =
            LimitParams { capacity_milli: 10_000, refill_milli: 10_000, period_ms: 60_000 };
        let at =
            |shard| Standing { pinned: Some("img,rpd".into()), era: Some(1), ..standing(shard, 4) };
        let (pinned, divided) = ("rpd".parse().expect("a name"), "rp".parse().expect("a name"));
        assert_eq!(at(0).effective(&pinned, params), params);
        assert_eq!(at(3).effective(&pinned, params).capacity_milli, 0);
        assert_eq!(at(3).effective(&pinned, params).refill_milli, 0);
        assert_eq!(at(3).effective(&divided, params).capacity_milli, 2_500);
        assert_eq!(at(3).effective(&divided, params).period_ms, 240_000);
    }

    #[test]
    fn a_shard_that_was_not_seen_is_drawn_if_its_donor_has_split() {
        let mut leaves = Leaves::NONE;
        leaves.learn(&standing(0, 4));
        assert_eq!(leaves.all().to_vec(), [(0, 8), (1, 16), (2, 8)]);
        leaves.learn(&standing(1, 4));
        assert_eq!(leaves.all().to_vec(), [(0, 8), (1, 8), (2, 8), (3, 8)]);
        leaves.learn(&standing(0, 1));
        assert_eq!(leaves.all().to_vec(), [(0, 32)], "folded");
        leaves.learn(&standing(0, 2));
        assert_eq!(leaves.all().to_vec(), [(0, 16), (1, 16)], "what was before is forgotten");
    }

    #[test]
    fn shards_of_two_eras_and_one_shard_twice_are_not_all() {
        let at = |shard, era| Standing { era: Some(era), ..standing(shard, 2) };
        assert!(is_complete([&at(0, 1), &at(1, 1)].into_iter()));
        assert!(!is_complete([&at(0, 1), &at(1, 2)].into_iter()), "folded in between");
        assert!(!is_complete([&at(0, 1), &at(0, 1)].into_iter()), "half of the bucket");
        let by_python = |shard| standing(shard, 4);
        let at = |shard, era| Standing { era: Some(era), ..standing(shard, 4) };
        assert!(is_complete([&at(0, 1), &by_python(1), &at(2, 1), &by_python(3)].into_iter()));
        assert!(!is_complete([&at(0, 1), &by_python(1), &at(2, 2), &at(3, 1)].into_iter()));
    }
}
