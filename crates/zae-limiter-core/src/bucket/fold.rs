//! Folding: how a bucket with too many retired limits stays bounded.
//!
//! A retired limit stays in its bucket until it is full, because removing a limit and setting it
//! again would mint otherwise. A bucket has room for a bounded number of them. Beyond the bound the
//! retired limits that are nearest to full are **folded**: they are dropped, and one limit with a
//! reserved name remembers for how long the last of them is not full. That limit begins drained and
//! gains a millitoken in a millisecond, so that time fills it, on every store, like any other
//! retired limit. Until it is full, a limit that the bucket does not carry starts empty instead of
//! full: it may be one of the folded limits.
//!
//! Example: `a` of 100 a day is drained, folded at noon and configured again at one. Started full,
//! it would have 100 tokens out of nothing. It starts with none; unfolded it would have 4.

use super::{BucketState, LimitParams, LimitState};
use crate::{LimitName, Milli, TOKENS_MAX};

/// The name of the limit that remembers folded ones. No limit may have this name.
pub const FOLDED: &str = "folded_limits";

/// The longest time that can be remembered, in milliseconds: thirty million years.
const LONGEST_MS: i64 = (TOKENS_MAX * 1_000).cast_signed();

/// True for the limit that remembers folded ones.
#[must_use]
pub fn is_fold(name: &LimitName) -> bool {
    name.as_str() == FOLDED
}

/// The parameters of a limit that is full `ms` milliseconds after it was drained.
#[must_use]
pub fn fold_params(ms: i64) -> LimitParams {
    LimitParams { capacity_milli: ms.clamp(1, LONGEST_MS), refill_milli: 1, period_ms: 1 }
}

/// The limit that remembers folded ones for `ms` milliseconds.
fn lasting(ms: i64) -> LimitState {
    let name = FOLDED.parse().expect("the word is a valid name of a limit");
    LimitState { balance: Milli::ZERO, ..LimitState::full(name, fold_params(ms)) }
}

impl BucketState {
    /// True while a folded limit may not be full.
    pub(super) fn is_folding(&self) -> bool {
        self.limits.iter().any(|limit| is_fold(&limit.name) && limit.lack() > 0)
    }

    /// Which of the retired limits to fold so that at most `room` are left, the nearest to full
    /// first, and how many are left.
    pub(super) fn to_fold(
        &self,
        retired: &mut Vec<&LimitState>,
        room: usize,
    ) -> (Vec<LimitName>, usize) {
        let mut folded = Vec::new();
        let remembers = retired.iter().any(|limit| is_fold(&limit.name));
        if retired.len() > room {
            retired.sort_by_key(|limit| self.whole_in_ms(limit));
            // One place is for the limit that remembers the folded ones.
            let mut excess = retired.len() - room + usize::from(!remembers);
            retired.retain(|limit| {
                // Folding a debt would forgive it; folding usage of the open hour would lose it.
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

    /// How long until a limit is full and has no gap.
    fn whole_in_ms(&self, limit: &LimitState) -> i64 {
        let lack = limit.lack().max(0) + i128::from(self.gaps.of(&limit.name).0);
        limit.params.time_to_gain_ms(i64::try_from(lack).unwrap_or(i64::MAX))
    }

    /// Replaces the folded limits by the limit that remembers how long they are not full.
    pub(super) fn fold(&mut self, folded: &[LimitName]) {
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
