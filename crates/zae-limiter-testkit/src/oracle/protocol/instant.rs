//! What an item was like at its present refill instant.
//!
//! A write that is pinned on the refill instant was reckoned from some image of that instant:
//! balances and remainders may have changed since, the instant has not. So whatever such a write
//! left to its image must be what one of these had.

use std::collections::{BTreeMap, BTreeSet};

use super::stored::{Stored, StoredLimit};

/// The images of one refill instant, put together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instant {
    at: i64,
    limits: BTreeMap<String, Seen>,
}

/// One limit.
#[derive(Clone, Debug, Default)]
struct Seen {
    balances: BTreeSet<i128>,
    remainders: BTreeSet<i128>,
}

impl Instant {
    /// The item is like this now.
    pub(crate) fn note(&mut self, stored: &Stored) {
        if self.at != stored.refilled_at {
            *self = Instant { at: stored.refilled_at, limits: BTreeMap::new() };
        }
        for (name, limit) in &stored.limits {
            let seen = self.limits.entry(name.clone()).or_default();
            seen.balances.insert(limit.balance);
            seen.remainders.insert(limit.remainder);
        }
    }

    /// Every remainder a writer may have gone by, that of the item first.
    pub(crate) fn remainders(&self, name: &str, was: &StoredLimit) -> impl Iterator<Item = i128> {
        let seen = self.limits.get(name).into_iter().flat_map(|seen| &seen.remainders);
        std::iter::once(was.remainder)
            .chain(seen.copied().filter(move |remainder| *remainder != was.remainder))
    }

    /// How much more a writer may have seen of a limit than it had when the write landed.
    pub(crate) fn unseen(&self, name: &str, was: &StoredLimit) -> i128 {
        self.balances(name, was).max().map_or(0, |most| most - was.balance)
    }

    /// Every balance a writer may have gone by.
    pub(crate) fn balances(&self, name: &str, was: &StoredLimit) -> impl Iterator<Item = i128> {
        let seen = self.limits.get(name).into_iter().flat_map(|seen| &seen.balances);
        std::iter::once(was.balance).chain(seen.copied())
    }
}
