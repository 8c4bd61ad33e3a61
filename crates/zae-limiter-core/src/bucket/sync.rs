//! Changed limits: how a bucket takes over other parameters without minting.

use smallvec::SmallVec;

use super::{BucketState, LimitState, saturated};
use crate::{ConfigStamp, LIMITS_MAX, Limit, Milli, TimeMs};

/// Limits a bucket carries, retired ones included, before retired ones are folded.
const KEPT_MAX: usize = 4 * LIMITS_MAX;

/// Limits a bucket may carry in all, those that cannot be folded included.
const CARRIED_MAX: usize = 15 * LIMITS_MAX;

/// A bucket would carry more limits than it may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limits of this bucket were renamed too often: it would carry {count}, with those that are still in debt or used within \
     this hour; keep to the same names until the hour is over, and reset the bucket if debts are left then"
)]
pub struct TooManyLimits {
    /// The number of limits it would carry.
    pub count: usize,
}

impl BucketState {
    /// Makes `limits` the limits in force: refills to `now` at the old rate, cuts each balance to
    /// the smaller of the old and the new capacity, and keeps limits that are no longer configured
    /// as retired. A limit the bucket has never carried starts full; a limit it carries goes on
    /// from its balance, so that a change mints nothing. Beyond 64 limits retired ones are folded,
    /// see [`crate::FOLDED`]. An error leaves the bucket as it was, refilled to `now`.
    pub fn sync(
        &mut self,
        limits: &[Limit],
        stamp: ConfigStamp,
        now: TimeMs,
    ) -> Result<(), TooManyLimits> {
        self.refill(now);
        let configured =
            |state: &LimitState| limits.iter().any(|limit| state.name == *limit.name());
        let was_folded = self.is_folding();
        let mut retired: Vec<&LimitState> = self
            .limits
            .iter()
            .filter(|state| !configured(state) && !self.is_forgettable(state))
            .collect();
        let (folded, left) = self.to_fold(&mut retired, KEPT_MAX.saturating_sub(limits.len()));
        if limits.len() + left > CARRIED_MAX {
            return Err(TooManyLimits { count: limits.len() + left });
        }
        self.fold(&folded);
        let mut old = std::mem::take(&mut self.limits);
        let mut states: SmallVec<[LimitState; 2]> =
            SmallVec::with_capacity(limits.len().max(old.len()));
        for limit in limits {
            match old.iter().position(|state| state.name == *limit.name()) {
                Some(index) => {
                    let before = old.remove(index);
                    let lacked = before.lack();
                    let after = before.with_params(limit.params());
                    // A lowered limit lacks less than before, and its gap keeps the difference. A
                    // raised limit lacks more, and its gap shrinks by the difference.
                    let hidden = i128::from(self.gaps.of(&after.name).0) + lacked - after.lack();
                    self.gaps.set(&after.name, Milli(saturated(hidden.max(0))));
                    states.push(after);
                }
                None => states.push(LimitState::first_seen(limit, was_folded)),
            }
        }
        states.extend(old.into_iter().filter(|retired| !self.is_forgettable(retired)));
        self.limits = states;
        self.active = u8::try_from(limits.len()).unwrap_or(u8::MAX);
        self.stamp = self.stamp.max(stamp);
        Ok(())
    }
}
