//! Upkeep of the buckets that a batch tells of: early refills, early splits, levelling, folding. Best
//! effort: a lost race is silence, and what fails is left to the takes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use zae_limiter_dynamodb::stream::{
    BucketName, FOLD_RATE, HOT_RATE, HOT_RECORDS_MIN, REFILL_IMAGE_AGE_MAX_S, SHARDS_MAX, SPLIT_AT,
};
use zae_limiter_store::StoreError;

use crate::aggregator::Aggregator;
use crate::fold::{Leaf, integer};

/// A shard is not split again within this, in ms: it has had no time to show its rate.
const SPLIT_PAUSE_MS: i64 = 1_000;

/// A bucket is tried to be folded once in this time, in s: each try reads all its shards.
const FOLD_PAUSE_S: i64 = 60;

/// Buckets whose last try is remembered.
const FOLDS_REMEMBERED_MAX: usize = 1_000;

/// When buckets were last tried to be folded, in s.
#[derive(Debug, Default)]
pub(crate) struct FoldTries(Mutex<HashMap<BucketName, i64>>);

impl FoldTries {
    /// Whether a bucket may be tried now; who asks tries.
    fn may_try(&self, bucket: &BucketName, now_s: i64) -> bool {
        let mut tries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tries.get(bucket).is_some_and(|at| (0..FOLD_PAUSE_S).contains(&(now_s - at))) {
            return false;
        }
        if tries.len() >= FOLDS_REMEMBERED_MAX {
            tries.clear();
        }
        tries.insert(bucket.clone(), now_s);
        true
    }
}

/// What upkeep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// Buckets refilled early.
    pub refills: u64,
    /// Buckets split early.
    pub splits: u64,
    /// Shards made so that all have the same count.
    pub levelled: u64,
    /// Buckets folded back into one item.
    pub folds: u64,
    /// Whether it ended with an error: the table was throttled, or not to be reached.
    pub ended_early: bool,
}

/// What a bucket needs, by what a batch says of one of its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// It was taken from faster than it is refilled.
    Refill,
    /// It takes nearly as many writes as one item can.
    Split,
    /// Shard 0 has split: the others follow.
    Level,
    /// Its shards take so few writes that one item could.
    Fold,
}

impl Aggregator {
    /// Looks after the buckets of a batch. Ends at `until`, by the monotonic clock, and with the
    /// first answer that says that the table has no room.
    pub(crate) async fn upkeep(&self, leaves: &[Leaf], until: Option<Duration>) -> Kept {
        let mut kept = Kept::default();
        let now_s = self.clock.now().0.div_euclid(1_000);
        for leaf in leaves {
            if until.is_some_and(|until| self.clock.monotonic() >= until) {
                break;
            }
            let bucket = BucketName {
                namespace: leaf.namespace.clone(),
                entity: leaf.entity.clone(),
                resource: leaf.resource.clone(),
            };
            for wish in wishes(leaf, now_s, self.settings().folds) {
                if wish == Wish::Fold && !self.fold_tries.may_try(&bucket, now_s) {
                    continue;
                }
                // What fails is left to the takes; the next batch tries again.
                if self.fulfil(wish, &bucket, leaf, &mut kept).await.is_err() {
                    kept.ended_early = true;
                    return kept;
                }
            }
        }
        kept
    }

    async fn fulfil(
        &self,
        wish: Wish,
        bucket: &BucketName,
        leaf: &Leaf,
        kept: &mut Kept,
    ) -> Result<(), StoreError> {
        let keeper = self.keeper();
        match wish {
            Wish::Refill => {
                let done = keeper.refill(bucket, leaf.shard, &leaf.image, &leaf.taken).await?;
                kept.refills += u64::from(done);
            }
            Wish::Split => kept.splits += u64::from(keeper.split(bucket, leaf.shard).await?),
            Wish::Level => kept.levelled += keeper.level(bucket).await?,
            Wish::Fold => kept.folds += u64::from(keeper.fold(bucket).await?),
        }
        Ok(())
    }
}

fn wishes(leaf: &Leaf, now_s: i64, folds: bool) -> Vec<Wish> {
    let mut wishes = Vec::new();
    let count = leaf.shard_count.1;
    let span_ms = span_ms(leaf);
    let records = i64::try_from(leaf.records).unwrap_or(i64::MAX);
    let per_second = |count: i64| count.saturating_mul(1_000) / span_ms;
    if !leaf.taken.is_empty() && now_s.saturating_sub(leaf.at_s.1) <= REFILL_IMAGE_AGE_MAX_S {
        wishes.push(Wish::Refill);
    }
    let units = i64::try_from(leaf.units).unwrap_or(i64::MAX);
    let split_s = integer(&leaf.image, SPLIT_AT).unwrap_or(0);
    let is_settled = now_s.saturating_mul(1_000).saturating_sub(split_s) >= SPLIT_PAUSE_MS;
    let is_hot = records >= HOT_RECORDS_MIN && per_second(units) >= HOT_RATE;
    if is_hot && is_settled && count < i64::from(SHARDS_MAX) {
        wishes.push(Wish::Split);
    }
    if leaf.shard == 0 && count > leaf.shard_count.0 {
        wishes.push(Wish::Level);
    }
    if folds && count > 1 && per_second(records.saturating_mul(count)) < FOLD_RATE {
        wishes.push(Wish::Fold);
    }
    wishes
}

/// How long the records of a shard took: by its refill instants, which are exact to a millisecond,
/// or by the whole seconds of the records.
fn span_ms(leaf: &Leaf) -> i64 {
    let moved = leaf.refilled_ms.1.saturating_sub(leaf.refilled_ms.0);
    let seconds = leaf.at_s.1.saturating_sub(leaf.at_s.0).saturating_add(1);
    if moved > 0 { moved } else { seconds.saturating_mul(1_000) }.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(records: u64, span_ms: i64, count: (i64, i64)) -> Leaf {
        Leaf {
            key: ("ns/BUCKET#key#gpt-4#0".to_owned(), "#STATE".to_owned()),
            namespace: "ns".to_owned(),
            entity: "key".to_owned(),
            resource: "gpt-4".to_owned(),
            shard: 0,
            image: crate::Item::new(),
            records,
            units: records,
            at_s: (100, 100),
            refilled_ms: (100_000, 100_000 + span_ms),
            shard_count: count,
            taken: [("rpm".to_owned(), 1)].into(),
        }
    }

    fn wishes(leaf: &Leaf, now_s: i64) -> Vec<Wish> {
        super::wishes(leaf, now_s, true)
    }

    /// The balance of the measure stays full at 900 writes a second; the rate does not.
    #[test]
    fn ninety_per_cent_doubles_early() {
        assert_eq!(wishes(&leaf(900, 1_000, (1, 1)), 200), [Wish::Split]);
        assert_eq!(wishes(&leaf(700, 1_000, (1, 1)), 200), [], "one item can");
        assert_eq!(wishes(&leaf(150, 100, (1, 1)), 200), [], "too few to tell");
        assert_eq!(wishes(&leaf(900, 1_000, (32, 32)), 200), [], "no more shards");
    }

    #[test]
    fn a_quiet_bucket_is_folded_and_a_grown_one_levelled() {
        assert_eq!(wishes(&leaf(10, 1_000, (4, 4)), 200), [Wish::Fold]);
        assert_eq!(super::wishes(&leaf(10, 1_000, (4, 4)), 200, false), [], "it is told not to");
        assert_eq!(wishes(&leaf(80, 1_000, (4, 4)), 200), [], "320 a second together");
        assert_eq!(wishes(&leaf(300, 1_000, (1, 2)), 200), [Wish::Level]);
    }

    #[test]
    fn a_bucket_is_tried_to_be_folded_once_a_minute() {
        let bucket = |entity: &str| BucketName {
            namespace: "ns".to_owned(),
            entity: entity.to_owned(),
            resource: "gpt-4".to_owned(),
        };
        let tries = FoldTries::default();
        assert!(tries.may_try(&bucket("a"), 100) && tries.may_try(&bucket("b"), 100));
        assert!(!tries.may_try(&bucket("a"), 159));
        assert!(tries.may_try(&bucket("a"), 160));
    }

    /// Records without a take never trigger a refill, and so no refill triggers another.
    #[test]
    fn nothing_feeds_back() {
        assert_eq!(wishes(&leaf(1, 1_000, (1, 1)), 101), [Wish::Refill]);
        let mut refilled = leaf(1, 1_000, (1, 1));
        refilled.taken.clear();
        assert_eq!(wishes(&refilled, 101), []);
        assert_eq!(wishes(&leaf(1, 1_000, (1, 1)), 103), [], "an old image");
    }
}
