//! A settlement: the bucket writes that settle a lease, and what is left of them after an attempt.

use std::sync::Arc;

use smallvec::SmallVec;
use zae_limiter_core::{Milli, Take, TimeMs};
use zae_limiter_store::{Adjusted, BoxFuture, BucketDelta, Delta, Place, Store, StoreError};

use crate::limiter::{Amounts, Plan, Share, next_operation};

/// The plan of a take, and its number.
pub(crate) type Taken<'a> = (&'a Arc<Plan>, u64);

/// Changes of one bucket at one place.
type Deltas = SmallVec<[Delta; 2]>;

/// An adjust that was started.
pub(crate) type AdjustInFlight = BoxFuture<'static, Vec<Result<Adjusted, StoreError>>>;

/// Bucket writes that settle a lease: each is independent of the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settlement {
    pub(crate) parts: SmallVec<[Part; 1]>,
    /// Credits left out because their charge may not have landed. They are counted as lost when the
    /// rest is sent.
    pub(crate) withheld: usize,
}

/// The write to one bucket.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) plan: Arc<Plan>,
    /// The number of the take that this settles.
    take: u64,
    pub(crate) member: usize,
    pub(crate) deltas: SmallVec<[Delta; 2]>,
    /// Which shard of the bucket.
    place: u8,
    /// The same for every attempt.
    operation: u64,
}

impl Settlement {
    /// Adds `amounts` (positive charges, negative gives back) to every bucket of the plan, at the
    /// places of the grant. `places` say afterwards what is still taken there. Zeroes are left out.
    pub(crate) fn add(&mut self, taken: Taken<'_>, amounts: &Amounts, places: &mut [Place]) {
        let (plan, _) = taken;
        for (index, member) in plan.members.iter().enumerate() {
            let delta = |share: &Share| Delta {
                limit: share.limit,
                amount: amounts[usize::from(share.declared)],
            };
            let deltas: SmallVec<[Delta; 2]> = member
                .shares
                .iter()
                .map(delta)
                .filter(|delta| delta.amount != Milli::ZERO)
                .collect();
            let mut here: SmallVec<[&mut Place; 1]> =
                places.iter_mut().filter(|place| usize::from(place.member) == index).collect();
            if here.is_empty() {
                self.push(taken, index, 0, deltas);
                continue;
            }
            for (shard, deltas) in spread(&deltas, &mut here) {
                self.push(taken, index, shard, deltas);
            }
        }
    }

    fn push(&mut self, taken: Taken<'_>, member: usize, place: u8, deltas: Deltas) {
        if !deltas.is_empty() {
            let (plan, take) = (Arc::clone(taken.0), taken.1);
            let operation = next_operation();
            self.parts.push(Part { plan, take, member, deltas, place, operation });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Starts the writes. The future owns everything it needs.
    pub(crate) fn send(&self, store: Arc<dyn Store>, now: TimeMs) -> AdjustInFlight {
        let parts = self.parts.clone();
        Box::pin(async move {
            let deltas: SmallVec<[BucketDelta<'_>; 2]> = parts.iter().map(Part::as_delta).collect();
            store.adjust(&deltas, now).await
        })
    }

    /// The writes that are left after these results, and how many credits had to be given up. A
    /// charge of unknown fate is sent again: charging twice is the safe direction. A credit of
    /// unknown fate is not: giving 100 tokens back twice would mint 100.
    pub(crate) fn after(mut self, results: &[Result<Adjusted, StoreError>]) -> (Settlement, usize) {
        let mut given_up = 0;
        let mut index = 0;
        self.parts.retain(|part| {
            // The fate of a write without a result is unknown.
            let result = results.get(index);
            index += 1;
            match result {
                Some(Ok(_)) => false,
                Some(Err(error)) if !error.fate_unknown() => true,
                _ => {
                    part.deltas.retain(|delta| {
                        delta.amount > Milli::ZERO || {
                            given_up += 1;
                            false
                        }
                    });
                    !part.deltas.is_empty()
                }
            }
        });
        (self, given_up)
    }
}

impl Part {
    fn as_delta(&self) -> BucketDelta<'_> {
        let member = &self.plan.members[self.member];
        BucketDelta {
            entity: &member.entity,
            resource: &self.plan.resource,
            limits: &member.limits,
            deltas: &self.deltas,
            operation: self.operation,
            take: self.take,
            place: self.place,
        }
    }
}

/// The changes of a bucket, place by place: a charge goes to the first place, a credit to the
/// places in order, at each one as much as was taken there. Example: 3 taken at shard 0 and 2 at
/// shard 5; giving 4 back gives 3 to shard 0 and 1 to shard 5. The ledger never gives back more
/// than was taken in all; a rest would go to the last place rather than be lost, and stops at its
/// capacity.
fn spread(deltas: &[Delta], places: &mut [&mut Place]) -> SmallVec<[(u8, Deltas); 1]> {
    let mut spread: SmallVec<[(u8, Deltas); 1]> =
        places.iter().map(|place| (place.shard, Deltas::new())).collect();
    for delta in deltas {
        let mut left = delta.amount;
        let last = places.len() - 1;
        for (index, (place, (_, changes))) in places.iter_mut().zip(&mut spread).enumerate() {
            let taken = taken_of(place, delta.limit);
            let amount = if left > Milli::ZERO || index == last {
                left
            } else {
                left.max(taken.amount.negated())
            };
            taken.amount = taken.amount.saturating_add(amount);
            left = left.saturating_sub(amount);
            if amount != Milli::ZERO {
                changes.push(Delta { limit: delta.limit, amount });
            }
        }
    }
    spread
}

/// What was taken of a limit at a place.
fn taken_of(place: &mut Place, limit: u8) -> &mut Take {
    let index = place.taken.iter().position(|take| take.limit == limit).unwrap_or_else(|| {
        place.taken.push(Take { limit, amount: Milli::ZERO });
        place.taken.len() - 1
    });
    &mut place.taken[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(shard: u8, taken: i64) -> Place {
        let taken = SmallVec::from_iter([Take { limit: 0, amount: Milli(taken) }]);
        Place { member: 0, shard, taken }
    }

    /// What a change of one limit does at each of two places, and what is taken there afterwards.
    fn check(taken: [i64; 2], change: i64, expected: &[(u8, i64)], after: [i64; 2]) {
        let [mut first, mut second] = [place(0, taken[0]), place(5, taken[1])];
        let delta = Delta { limit: 0, amount: Milli(change) };
        let spread = spread(&[delta], &mut [&mut first, &mut second]);
        let changes: Vec<(u8, i64)> = spread
            .iter()
            .flat_map(|(shard, deltas)| deltas.iter().map(|delta| (*shard, delta.amount.0)))
            .collect();
        assert_eq!(changes, expected, "{change} at {taken:?}");
        assert_eq!([first, second].map(|place| place.taken[0].amount.0), after);
    }

    #[test]
    fn a_charge_goes_to_the_first_place() {
        check([3, 2], 4, &[(0, 4)], [7, 2]);
        check([0, 2], 1, &[(0, 1)], [1, 2]);
    }

    #[test]
    fn a_credit_goes_back_to_its_places_in_order() {
        check([3, 2], -2, &[(0, -2)], [1, 2]);
        check([3, 2], -4, &[(0, -3), (5, -1)], [0, 1]);
        check([0, 2], -2, &[(5, -2)], [0, 0]);
        check([1, 1], -3, &[(0, -1), (5, -2)], [0, -1]);
    }
}
