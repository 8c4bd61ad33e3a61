//! What too many retired limits become.
//!
//! A limit that is no longer configured stays in its bucket until it is full, or dropping it and
//! setting it back would mint. A bucket cannot carry any number of them. Beyond its bound the ones
//! nearest to full are **folded**: dropped, and one limit with a name nobody can give remembers for
//! how long the last of them is not full. It gains a millitoken in a millisecond and begins
//! drained, so that time fills it, on every store, like any other retired limit. Until then a limit
//! the bucket does not know starts empty instead of full: it may be one of those that were folded.
//!
//! Example: `a` of 100 a day, drained and folded at noon, comes back at one. Full it would be 100
//! tokens out of nothing; it starts with none, where it would have had 4.

use crate::{BucketState, LimitName, LimitParams, LimitState, Milli, TOKENS_MAX};

/// The name of the limit that remembers others. No limit may be called so.
pub const FOLDED: &str = "folded_limits";

/// The longest that can be remembered, in milliseconds: thirty million years.
const LONGEST_MS: i64 = (TOKENS_MAX * 1_000).cast_signed();

/// True for the limit that remembers others.
#[must_use]
pub fn is_fold(name: &LimitName) -> bool {
    name.as_str() == FOLDED
}

/// The parameters of a limit that is full `ms` milliseconds after it was drained.
#[must_use]
pub fn fold_params(ms: i64) -> LimitParams {
    LimitParams { capacity_milli: ms.clamp(1, LONGEST_MS), refill_milli: 1, period_ms: 1 }
}

/// The limit that remembers others for `ms` milliseconds.
fn lasting(ms: i64) -> LimitState {
    let name = FOLDED.parse().expect("the word is a valid name of a limit");
    LimitState { balance: Milli::ZERO, ..LimitState::full(name, fold_params(ms)) }
}

impl BucketState {
    /// True while a limit that was folded may not be full.
    pub(crate) fn is_folding(&self) -> bool {
        self.limits.iter().any(|limit| is_fold(&limit.name) && limit.lack() > 0)
    }

    /// Which of the retired limits to fold so that at most `room` are left, the nearest to full
    /// first, and how many are left.
    pub(crate) fn to_fold(
        &self,
        retired: &mut Vec<&LimitState>,
        room: usize,
    ) -> (Vec<LimitName>, usize) {
        let mut folded = Vec::new();
        let remembers = retired.iter().any(|limit| is_fold(&limit.name));
        if retired.len() > room {
            retired.sort_by_key(|limit| self.whole_in_ms(limit));
            // One place is for what remembers them.
            let mut excess = retired.len() - room + usize::from(!remembers);
            retired.retain(|limit| {
                // A debt would be forgiven, and usage that no hour has counted would be lost.
                let may_go = excess > 0
                    && !is_fold(&limit.name)
                    && limit.balance.0 >= 0
                    && limit.consumed == limit.hour_base;
                if may_go {
                    excess -= 1;
                    folded.push(limit.name.clone());
                }
                !may_go
            });
        }
        let left = retired.len() + usize::from(!remembers && !folded.is_empty());
        (folded, left)
    }

    /// How long until a limit is full and hides nothing.
    fn whole_in_ms(&self, limit: &LimitState) -> i64 {
        let lack = limit.lack().max(0) + i128::from(self.gaps.of(&limit.name).0);
        limit.params.time_to_gain_ms(i64::try_from(lack).unwrap_or(i64::MAX))
    }

    /// Puts the one limit in the place of others that remembers how long they are not full.
    pub(crate) fn fold(&mut self, folded: &[LimitName]) {
        if folded.is_empty() {
            return;
        }
        let goes = |limit: &LimitState| is_fold(&limit.name) || folded.contains(&limit.name);
        let longest = self
            .limits
            .iter()
            .filter(|limit| goes(limit))
            .map(|limit| self.whole_in_ms(limit))
            .max()
            .unwrap_or(0);
        self.limits.retain(|limit| !goes(limit));
        folded.iter().for_each(|limit| self.gaps.set(limit, Milli::ZERO));
        self.limits.push(lasting(longest));
    }
}
