//! Upkeep of the buckets that a batch tells of: early refills, early splits, levelling, folding.
//! Best effort: a lost race is silence, and what fails is told and left to the takes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zae_limiter_dynamodb::stream::{
    BucketName, FOLD_RATE, HOT_RATE, HOT_RECORDS_MIN, REFILL_IMAGE_AGE_MAX_S, SPLIT_AT,
};
use zae_limiter_store::{StoreError, StoreErrorKind};

use crate::aggregator::Aggregator;
use crate::fold::{Leaf, integer};
use crate::report::Report;
use crate::settings::Settings;

/// A shard is not split again within this, in ms: it has had no time to show its rate.
const SPLIT_PAUSE_MS: i64 = 1_000;

/// The pause between two attempts to fold one bucket, in s: each attempt reads all its shards.
const FOLD_PAUSE_S: i64 = 60;

/// The pause between two attempts to fold a bucket with shards that no record tells of, in s.
const SILENCE_S: i64 = 600;

/// Attempts in a row to fold a silent bucket: for a day.
const SILENT_TRIES_MAX: u32 = 144;

/// Silent buckets that one look attempts to fold.
const SILENT_AT_ONCE: usize = 10;

/// Buckets with shards that are remembered.
const REMEMBERED_MAX: usize = 1_000;

/// Buckets with shards, as far as records told of them since the aggregator was started.
#[derive(Debug, Default)]
pub(crate) struct SpreadBuckets(Mutex<HashMap<BucketName, Spread>>);

/// What is remembered of a bucket with shards.
#[derive(Clone, Copy, Debug)]
struct Spread {
    /// When the last attempt to fold it was, in s.
    tried_s: Option<i64>,
    /// When the next attempt is due if no record tells of it, in s.
    silent_s: i64,
    /// Attempts since a record last told of it.
    tries: u32,
}

impl SpreadBuckets {
    fn lock(&self) -> MutexGuard<'_, HashMap<BucketName, Spread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record tells of a bucket with shards. Whoever asks nothing of the bucket any more leaves
    /// no record, so its fold is due by the clock.
    fn heard_of(&self, bucket: &BucketName, now_s: i64) {
        let mut spread = self.lock();
        let silent_s = now_s.saturating_add(SILENCE_S);
        if let Some(known) = spread.get_mut(bucket) {
            (known.silent_s, known.tries) = (silent_s, 0);
            return;
        }
        // Any other makes room: its own records bring it back.
        if spread.len() >= REMEMBERED_MAX
            && let Some(other) = spread.keys().next().cloned()
        {
            spread.remove(&other);
        }
        spread.insert(bucket.clone(), Spread { tried_s: None, silent_s, tries: 0 });
    }

    /// Whether a bucket may be tried now; who asks tries.
    fn may_try(&self, bucket: &BucketName, now_s: i64) -> bool {
        let mut spread = self.lock();
        let Some(known) = spread.get_mut(bucket) else { return true };
        let is_early = |at: i64| (0..FOLD_PAUSE_S).contains(&now_s.saturating_sub(at));
        if known.tried_s.is_some_and(is_early) {
            return false;
        }
        known.tried_s = Some(now_s);
        true
    }

    /// Buckets that no record has told of for a while; who asks tries them.
    fn silent(&self, now_s: i64) -> Vec<BucketName> {
        let mut spread = self.lock();
        spread.retain(|_, known| known.tries < SILENT_TRIES_MAX);
        let due = spread.iter_mut().filter(|(_, known)| known.silent_s <= now_s);
        due.take(SILENT_AT_ONCE)
            .map(|(bucket, known)| {
                known.silent_s = now_s.saturating_add(SILENCE_S);
                known.tries += 1;
                bucket.clone()
            })
            .collect()
    }

    fn forget(&self, bucket: &BucketName) {
        self.lock().remove(bucket);
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
}

impl Kept {
    pub(crate) fn add(&mut self, other: Kept) {
        self.refills += other.refills;
        self.splits += other.splits;
        self.levelled += other.levelled;
        self.folds += other.folds;
    }
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
    /// first answer that says that the table has no room. What fails is an error of the report.
    pub(crate) async fn upkeep(
        &self,
        leaves: &[Leaf],
        until: Option<Duration>,
        report: &mut Report,
    ) -> Kept {
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
            if leaf.shard_count.1 > 1 && self.settings().folds {
                self.spread.heard_of(&bucket, now_s);
            }
            for wish in wishes(leaf, now_s, self.settings()) {
                if wish == Wish::Fold && !self.spread.may_try(&bucket, now_s) {
                    continue;
                }
                // What fails is left to the takes; the next batch tries again.
                if let Err(error) = self.fulfil(wish, &bucket, leaf, &mut kept).await {
                    report.error(format!("upkeep of {}: {error}", leaf.key.0));
                    // A table without room has none for the others; one bucket that cannot be read,
                    // or one missing permission, says nothing about them.
                    if matches!(error.kind(), StoreErrorKind::Busy | StoreErrorKind::Unavailable) {
                        return kept;
                    }
                }
            }
        }
        if let Err(error) = self.fold_the_silent(until, &mut kept).await {
            report.error(format!("upkeep: {error}"));
        }
        kept
    }

    /// Folds buckets with shards that no record has told of for ten minutes.
    pub(crate) async fn fold_the_silent(
        &self,
        until: Option<Duration>,
        kept: &mut Kept,
    ) -> Result<(), StoreError> {
        for bucket in self.spread.silent(self.clock.now().0.div_euclid(1_000)) {
            if until.is_some_and(|until| self.clock.monotonic() >= until) {
                break;
            }
            self.fold_one(&bucket, kept).await?;
        }
        Ok(())
    }

    async fn fold_one(&self, bucket: &BucketName, kept: &mut Kept) -> Result<(), StoreError> {
        if self.keeper().fold(bucket).await? {
            kept.folds += 1;
            self.spread.forget(bucket);
        }
        Ok(())
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
            Wish::Fold => self.fold_one(bucket, kept).await?,
        }
        Ok(())
    }
}

fn wishes(leaf: &Leaf, now_s: i64, settings: &Settings) -> Vec<Wish> {
    let mut wishes = Vec::new();
    let count = leaf.shard_count.1;
    let span_ms = span_ms(leaf);
    let records = i64::try_from(leaf.records).unwrap_or(i64::MAX);
    let per_second = |count: i64| count.saturating_mul(1_000) / span_ms;
    if !leaf.taken.is_empty() && now_s.saturating_sub(leaf.at_s.1) <= REFILL_IMAGE_AGE_MAX_S {
        wishes.push(Wish::Refill);
    }
    let units = i64::try_from(leaf.units).unwrap_or(i64::MAX);
    let split_ms = integer(&leaf.image, SPLIT_AT).unwrap_or(0);
    let is_settled = now_s.saturating_mul(1_000).saturating_sub(split_ms) >= SPLIT_PAUSE_MS;
    let is_hot = records >= HOT_RECORDS_MIN && per_second(units) >= HOT_RATE;
    let may_split = count.saturating_mul(2) <= i64::from(settings.shards_max);
    if is_hot && is_settled && may_split {
        wishes.push(Wish::Split);
    }
    if leaf.shard == 0 && count > leaf.shard_count.0 {
        wishes.push(Wish::Level);
    }
    if settings.folds && count > 1 && per_second(records.saturating_mul(count)) < FOLD_RATE {
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
    use aws_sdk_dynamodb::types::AttributeValue;

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
        super::wishes(leaf, now_s, &Settings::new("stack"))
    }

    /// The balance of the measure stays full at 900 writes a second; the rate does not.
    #[test]
    fn ninety_per_cent_doubles_early() {
        assert_eq!(wishes(&leaf(900, 1_000, (1, 1)), 200), [Wish::Split]);
        assert_eq!(wishes(&leaf(700, 1_000, (1, 1)), 200), [], "one item can");
        assert_eq!(wishes(&leaf(150, 100, (1, 1)), 200), [], "too few to tell");
        assert_eq!(wishes(&leaf(900, 1_000, (32, 32)), 200), [], "no more shards");
        let one = Settings::new("stack").shards_max(1);
        assert_eq!(super::wishes(&leaf(900, 1_000, (1, 1)), 200, &one), [], "told not to");
    }

    #[test]
    fn a_quiet_bucket_is_folded_and_a_grown_one_levelled() {
        assert_eq!(wishes(&leaf(10, 1_000, (4, 4)), 200), [Wish::Fold]);
        let keeping = Settings::new("stack").folds(false);
        assert_eq!(super::wishes(&leaf(10, 1_000, (4, 4)), 200, &keeping), [], "told not to");
        assert_eq!(wishes(&leaf(80, 1_000, (4, 4)), 200), [], "320 a second together");
        assert_eq!(wishes(&leaf(300, 1_000, (1, 2)), 200), [Wish::Level]);
        let child = Leaf { shard: 1, ..leaf(300, 1_000, (1, 2)) };
        assert_eq!(wishes(&child, 200), [], "the others follow shard 0");
    }

    /// Half a second after a split the records still tell of the item before it.
    #[test]
    fn a_shard_is_not_split_again_before_it_has_shown_its_rate() {
        let mut hot = leaf(900, 1_000, (2, 2));
        let split_at = |ms: i64| [(SPLIT_AT.to_owned(), AttributeValue::N(ms.to_string()))].into();
        hot.image = split_at(199_500);
        assert_eq!(wishes(&hot, 200), []);
        hot.image = split_at(199_000);
        assert_eq!(wishes(&hot, 200), [Wish::Split]);
    }

    #[test]
    fn folding_a_bucket_is_attempted_once_a_minute() {
        let bucket = |entity: &str| BucketName {
            namespace: "ns".to_owned(),
            entity: entity.to_owned(),
            resource: "gpt-4".to_owned(),
        };
        let spread = SpreadBuckets::default();
        ["a", "b"].iter().for_each(|entity| spread.heard_of(&bucket(entity), 100));
        assert!(spread.may_try(&bucket("a"), 100) && spread.may_try(&bucket("b"), 100));
        assert!(!spread.may_try(&bucket("a"), 159));
        assert!(spread.may_try(&bucket("a"), 160));
    }

    #[test]
    fn a_silent_bucket_is_tried_every_ten_minutes_of_a_day() {
        let bucket = BucketName {
            namespace: "ns".to_owned(),
            entity: "a".to_owned(),
            resource: "gpt-4".to_owned(),
        };
        let spread = SpreadBuckets::default();
        spread.heard_of(&bucket, 100);
        assert!(spread.silent(699).is_empty());
        assert_eq!(spread.silent(700), std::slice::from_ref(&bucket));
        assert!(spread.silent(700).is_empty(), "not twice");
        spread.heard_of(&bucket, 800);
        assert!(spread.silent(1_399).is_empty(), "somebody has asked it");
        let tries = (0..300).map(|turn| spread.silent(1_400 + turn * 600).len()).sum::<usize>();
        assert_eq!(tries, 144);
        assert!(spread.lock().is_empty(), "what cannot be folded is not tried for ever");
    }

    /// Each attempt reads 32 items, and what is remembered is memory of the process.
    #[test]
    fn few_silent_buckets_are_tried_at_once_and_not_all_are_remembered() {
        let bucket = |number: usize| BucketName {
            namespace: "ns".to_owned(),
            entity: format!("key-{number}"),
            resource: "gpt-4".to_owned(),
        };
        let spread = SpreadBuckets::default();
        (0..REMEMBERED_MAX + 5).for_each(|number| spread.heard_of(&bucket(number), 100));
        assert_eq!(spread.lock().len(), REMEMBERED_MAX);
        assert_eq!(spread.silent(700).len(), SILENT_AT_ONCE);
        assert_eq!(spread.silent(700).len(), SILENT_AT_ONCE, "the next ones");
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
