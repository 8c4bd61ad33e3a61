//! The part of the fixture for stores that do not promise whole buckets: a bucket may be spread
//! over several shards. A case does not know of shards. It settles where its takes were made, as a
//! lease does, and its comparisons allow for what several shards round down. For a store with the
//! promise nothing here does anything.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use zae_limiter_core::{EntityId, LimitName, LimitParams, Milli, ResourceName, Wait};

use super::asks::Ask;
use crate::{Adjusted, Delta, Grant, StoreError};

/// How many millitokens the shards of a bucket may be short of together, because each rounds down
/// by itself. A store is run with at most four shards: of the balances of four only one would be
/// rounded down if they were one.
const SHORT_MAX_MILLI: i64 = 3;

/// How many shards a store is run with at most.
const SHARDS: u64 = 4;

/// How far an answer may be from the expected one, in the safe direction alone: fewer tokens,
/// longer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Slack {
    milli: i64,
    ms: u64,
}

impl Slack {
    /// For several shards of a limit.
    pub(super) fn of_shards(params: LimitParams) -> Slack {
        let ms = u64::try_from(params.time_to_gain_ms(SHORT_MAX_MILLI)).unwrap_or(u64::MAX);
        Slack { milli: SHORT_MAX_MILLI, ms }
    }

    /// A balance that may be found instead of the expected one.
    pub(super) fn allows_balance(self, found: i64, expected: i64) -> bool {
        (expected.saturating_sub(self.milli)..=expected).contains(&found)
    }

    /// A wait that may be found instead of the expected one.
    pub(super) fn allows_wait(self, found: Wait, expected: Wait) -> bool {
        let (Wait::After(found), Wait::After(expected)) = (found, expected) else {
            return found == expected;
        };
        // A shard that is full gains nothing: up to all but one of them may be.
        let longest = match self.ms {
            0 => expected.get(),
            ms => expected.get().saturating_add(ms).saturating_mul(SHARDS),
        };
        (expected.get()..=longest).contains(&found.get())
    }
}

/// Balances of a bucket, in millitokens, that compare as far as the store promises.
#[derive(Clone, Debug)]
pub(super) struct Balances {
    pub(super) found: Vec<i64>,
    /// Whether several shards may have rounded down.
    pub(super) is_of_shards: bool,
}

impl Balances {
    pub(super) fn len(&self) -> usize {
        self.found.len()
    }
}

impl std::ops::Index<usize> for Balances {
    type Output = i64;

    fn index(&self, index: usize) -> &i64 {
        &self.found[index]
    }
}

impl PartialEq<[i64]> for Balances {
    fn eq(&self, expected: &[i64]) -> bool {
        let milli = if self.is_of_shards { SHORT_MAX_MILLI } else { 0 };
        let slack = Slack { milli, ms: 0 };
        self.found.len() == expected.len()
            && self.found.iter().zip(expected).all(|(a, b)| slack.allows_balance(*a, *b))
    }
}

impl<const N: usize> PartialEq<[i64; N]> for Balances {
    fn eq(&self, expected: &[i64; N]) -> bool {
        *self == expected[..]
    }
}

impl PartialEq<Vec<i64>> for Balances {
    fn eq(&self, expected: &Vec<i64>) -> bool {
        *self == expected[..]
    }
}

/// What was taken at one shard of a bucket.
#[derive(Debug)]
struct Spot {
    shard: u8,
    taken: HashMap<LimitName, Milli>,
}

/// Where the takes of a case were made, by bucket.
#[derive(Debug, Default)]
pub(super) struct Spots(Mutex<HashMap<(EntityId, ResourceName), Vec<Spot>>>);

/// The changes of one bucket at one shard.
pub(super) type Part = (u8, Vec<Delta>);

impl Spots {
    /// Remembers where a grant took.
    pub(super) fn remember(&self, asks: &[Ask], grant: &Grant) {
        for place in &grant.places {
            let ask = &asks[usize::from(place.member)];
            for take in &place.taken {
                self.add(ask, place.shard, take.limit, take.amount);
            }
        }
    }

    /// Remembers what was charged.
    pub(super) fn charged(&self, ask: &Ask, (shard, deltas): &Part) {
        for delta in deltas.iter().filter(|delta| delta.amount > Milli::ZERO) {
            self.add(ask, *shard, delta.limit, delta.amount);
        }
    }

    fn add(&self, ask: &Ask, shard: u8, limit: u8, amount: Milli) {
        let mut spots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = spots.entry((ask.entity.clone(), ask.resource.clone())).or_default();
        let place = here.iter().position(|spot| spot.shard == shard).unwrap_or_else(|| {
            here.push(Spot { shard, taken: HashMap::new() });
            here.len() - 1
        });
        if let Some(limit) = ask.limits.limits.get(usize::from(limit)) {
            let taken = here[place].taken.entry(limit.name().clone()).or_default();
            *taken = taken.saturating_add(amount);
        }
    }

    /// The changes of a bucket, place by place: a charge goes to the first place, a credit to the
    /// places in order, at each one as much as was taken there. What is left goes to the last place
    /// and stops at its capacity. All at shard 0 for a bucket whose takes had no places.
    pub(super) fn spread(&self, ask: &Ask) -> Vec<Part> {
        let all = ask.takes.iter().map(|take| Delta { limit: take.limit, amount: take.amount });
        let mut spots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = spots.get_mut(&(ask.entity.clone(), ask.resource.clone()));
        let Some(here) = here.filter(|here| !here.is_empty()) else {
            return vec![(0, all.collect())];
        };
        let mut parts: Vec<Part> = here.iter().map(|spot| (spot.shard, Vec::new())).collect();
        let last = here.len() - 1;
        for Delta { limit, amount } in all {
            let name = ask.limits.limits.get(usize::from(limit)).map(|limit| limit.name().clone());
            let Some(name) = name.filter(|_| amount < Milli::ZERO) else {
                parts[0].1.push(Delta { limit, amount });
                continue;
            };
            let mut left = amount;
            for (index, (spot, (_, deltas))) in here.iter_mut().zip(&mut parts).enumerate() {
                let taken = spot.taken.entry(name.clone()).or_default();
                let part = if index == last { left } else { left.max(taken.negated()) };
                *taken = taken.saturating_add(part).max(Milli::ZERO);
                left = left.saturating_sub(part);
                if part != Milli::ZERO {
                    deltas.push(Delta { limit, amount: part });
                }
            }
        }
        parts.retain(|(_, deltas)| !deltas.is_empty());
        parts
    }
}

/// One answer for all parts of a change.
pub(super) fn joined(
    answers: impl Iterator<Item = Result<Adjusted, StoreError>>,
) -> Result<Adjusted, StoreError> {
    let mut joined = Adjusted::Dropped;
    for answer in answers {
        joined = match (joined, answer?) {
            (Adjusted::Recreated, _) | (_, Adjusted::Recreated) => Adjusted::Recreated,
            (Adjusted::Applied, _) | (_, Adjusted::Applied) => Adjusted::Applied,
            (Adjusted::Dropped, Adjusted::Dropped) => Adjusted::Dropped,
        };
    }
    Ok(joined)
}
