//! Transactions that move tokens between the shards of a bucket: a split, the repair of a shard
//! that a foreign writer has left out, a fold. What they move is neither more nor less afterwards.

use std::collections::BTreeMap;

use zae_limiter_core::FOLDED;
use zae_limiter_dynamodb::bucket::writers::Writer;

use super::instant::Instant;
use super::ledger::Landing;
use super::share::{Place, SHARDS_MAX};
use super::stored::{Stored, StoredLimit};
use crate::oracle::Broken;

/// A shard before and after it gave a part of its balances to another one.
pub(crate) struct Parted<'a> {
    pub(crate) before: &'a Stored,
    pub(crate) after: &'a Stored,
    pub(crate) child: &'a Stored,
    /// What the shard was like at its refill instant: a split does not pin the balance.
    pub(crate) instant: &'a Instant,
    /// Limits of less than so many millitokens are not divided.
    pub(crate) divided_from: i128,
}

impl Parted<'_> {
    /// True when the shard keeps its count, and the other one should have been there.
    pub(crate) fn is_repair(&self) -> bool {
        self.after.place == self.before.place
    }

    pub(crate) fn check(&self) -> Result<(), Broken> {
        let Parted { before, after, child, .. } = *self;
        let mut expected = self.places();
        // The first split begins an era, by its time.
        if before.place.is_alone() && !self.is_repair() && after.place.era > before.place.era {
            expected.iter_mut().for_each(|place| place.era = after.place.era);
        }
        if [&after.place, &child.place] != [&expected[0], &expected[1]] {
            return Err(format!(
                "a split of {:?} made {:?} and {:?}, expected {expected:?}",
                before.place, after.place, child.place
            ));
        }
        if before.mark.is_some() || before.disabled {
            return Err("a split of what somebody has yet to look at".to_owned());
        }
        let stays = Stored {
            place: after.place.clone(),
            expires_s: None,
            // An expiry that a charge has just taken away was seen by the splitter: a refill would
            // set it again, and so does the fold.
            expires_later: before.expires_later
                || before.expires_s.is_some()
                || after.expires_later,
            limits: after.limits.clone(),
            ..before.clone()
        };
        let goes = Stored {
            place: child.place.clone(),
            nonce: None,
            expires_later: false,
            counted: 0,
            failed: 0,
            limits: child.limits.clone(),
            ..stays.clone()
        };
        for (found, expected) in [(after, &stays), (child, &goes)] {
            if found != expected {
                return Err(format!("a split made {found:?}, expected {expected:?}"));
            }
        }
        if !before.limits.keys().eq(after.limits.keys())
            || !before.limits.keys().eq(child.limits.keys())
        {
            return Err(format!("a split changed the limits: {after:?}, {child:?}"));
        }
        before.limits.iter().try_for_each(|(name, was)| self.check_limit(name, was))
    }

    /// Where both stand afterwards. Which limits are not divided is decided when the first shard
    /// splits, and never again.
    fn places(&self) -> [Place; 2] {
        let before = &self.before.place;
        if self.is_repair() {
            return [before.clone(), Place { shard: self.child.place.shard, ..before.clone() }];
        }
        let mut decided = before.clone();
        if before.is_alone() {
            let is_small = |(name, limit): &(&String, &StoredLimit)| {
                limit.stored.capacity < self.divided_from && name.as_str() != FOLDED
            };
            let small = self.before.limits.iter().filter(is_small);
            decided.pinned = small.map(|(name, _)| name.clone()).collect();
        }
        [decided.after_split(), decided.child()]
    }

    fn check_limit(&self, name: &str, was: &StoredLimit) -> Result<(), Broken> {
        let (stays, goes) = (self.after.limits[name], self.child.limits[name]);
        let is_pinned = self.after.place.pinned.contains(name);
        // The balance is not pinned: half of any balance that a writer may have seen.
        let halves = self.instant.balances(name, was).map(|balance| match self.is_repair() {
            true => (balance - was.params.capacity).max(0),
            false => balance.div_euclid(2),
        });
        let is_given = |half: i128| goes.balance == half.min(goes.params.capacity);
        let is_right = match is_pinned {
            true => goes.balance == 0 && goes.gap == 0,
            false => halves.into_iter().any(is_given),
        };
        let gap = if is_pinned || self.is_repair() { 0 } else { was.gap / 2 };
        let expected = [
            StoredLimit {
                params: stays.params,
                balance: was.balance - goes.balance,
                gap: was.gap - gap,
                remainder: 0,
                ..*was
            },
            StoredLimit {
                params: goes.params,
                balance: goes.balance,
                consumed: 0,
                gap,
                folded: 0,
                remainder: 0,
                ..*was
            },
        ];
        // A foreign writer that raised the count alone leaves more than the share.
        let is_above = |limit: &StoredLimit| limit.balance > limit.params.capacity;
        let is_more = is_above(&goes) || is_above(&stays) && !is_above(was);
        if !is_right || [stays, goes] != expected || is_more {
            return Err(format!(
                "a split made {stays:?} and {goes:?} of {name}, which was {was:?}"
            ));
        }
        Ok(())
    }
}

/// Checks that all shards were collected on shard 0, as of the instant that was written.
pub(crate) fn check_fold(
    before: &[(&Stored, &Instant)],
    after: &Stored,
    shards: usize,
) -> Result<(), Broken> {
    let Some((root, _)) = before.iter().copied().find(|(leaf, _)| leaf.place.shard == 0) else {
        return Err("a fold without shard 0".to_owned());
    };
    let slots: i64 = before.iter().map(|(leaf, _)| SHARDS_MAX / leaf.place.count).sum();
    if slots != SHARDS_MAX || shards != before.len() || root.place.is_alone() {
        return Err(format!(
            "a fold of {} shards, of {shards}, that cover {slots} slots",
            before.len()
        ));
    }
    let at = after.refilled_at;
    if before.iter().any(|(leaf, _)| at <= leaf.refilled_at) {
        return Err(format!("a fold at {at}, and some shard was refilled later"));
    }
    let shape = |stored: &Stored| -> BTreeMap<String, _> {
        stored.limits.iter().map(|(name, limit)| (name.clone(), limit.stored)).collect()
    };
    for (leaf, _) in before {
        // A foreign writer makes shards without an era.
        let is_of_era = leaf.place.era == root.place.era || leaf.place.era == 0;
        if shape(leaf) != shape(root)
            || leaf.retired != root.retired
            || leaf.place.pinned != root.place.pinned
            || !is_of_era
            || leaf.mark.is_some()
        {
            return Err(format!("a fold of shards that differ: {leaf:?}, {root:?}"));
        }
    }
    let expected = Stored {
        place: Place {
            shard: 0,
            count: 1,
            era: root.place.era + 1,
            pinned: std::collections::BTreeSet::new(),
        },
        refilled_at: at,
        read_at: before.iter().map(|(leaf, _)| leaf.read_at).max().flatten(),
        expires_s: after.expires_s,
        expires_later: false,
        limits: after.limits.clone(),
        ..root.clone()
    };
    if *after != expected || after.expires_s.is_some() != root.expires_later {
        return Err(format!("a fold made {after:?}, expected {expected:?}"));
    }
    if shape(after) != shape(root) {
        return Err(format!("a fold changed the limits: {after:?}"));
    }
    for (name, found) in &after.limits {
        check_collected(name, found, before, at)?;
    }
    let landing = Landing {
        writer: Writer::Fold,
        before: Some(root),
        after,
        nonce: None,
        now: Some(at),
        asked: &[],
        limits: None,
        absent: &[],
        instant: &Instant::default(),
        is_leg: false,
        is_in_parts: false,
    };
    landing.check_expiry()?;
    landing.check_full_by_expiry()
}

/// One limit: what each shard has at the instant of the fold, cut at its share, and what is left of
/// each gap after it was repaid by what overflows. The remainders are not pinned: those of any
/// image of the refill instant may have been added.
fn check_collected(
    name: &str,
    found: &StoredLimit,
    before: &[(&Stored, &Instant)],
    at: i64,
) -> Result<(), Broken> {
    let (mut balances, mut gaps, mut used) = ((0, 0), (0, 0), 0);
    // What was counted on the shards that go is kept beside the count of shard 0.
    let mut folded = 0;
    for (leaf, instant) in before {
        let was = leaf.limits[name];
        let elapsed = i128::from(at) - i128::from(leaf.refilled_at);
        let of = |remainder: i128| {
            let fine = was.balance * was.params.period + remainder + elapsed * was.params.refill;
            let has = fine.div_euclid(was.params.period);
            (has.min(was.params.capacity), (was.gap - (has - was.params.capacity).max(0)).max(0))
        };
        let all: Vec<(i128, i128)> = instant.remainders(name, &was).map(of).collect();
        let span = |of: fn(&(i128, i128)) -> i128| {
            let (least, most) = (all.iter().map(of).min(), all.iter().map(of).max());
            (least.unwrap_or(0), most.unwrap_or(0))
        };
        let add = |sum: (i128, i128), more: (i128, i128)| (sum.0 + more.0, sum.1 + more.1);
        balances = add(balances, span(|(balance, _)| *balance));
        gaps = add(gaps, span(|(_, gap)| *gap));
        match leaf.place.shard {
            0 => (used, folded) = (was.consumed, folded + was.folded),
            _ => folded += was.consumed,
        }
    }
    let is_right = (balances.0..=balances.1).contains(&found.balance)
        && (gaps.0..=gaps.1).contains(&found.gap)
        && found.consumed == used
        && found.folded == folded
        && found.remainder == 0;
    if is_right {
        return Ok(());
    }
    let leaves: Vec<_> =
        before.iter().map(|(leaf, _)| (leaf.refilled_at, leaf.limits[name])).collect();
    Err(format!(
        "a fold at {at} made {found:?} of {name}, expected {balances:?} milli and a gap of {gaps:?} from {leaves:?}"
    ))
}
