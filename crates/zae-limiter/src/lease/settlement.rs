//! A settlement: the bucket writes that settle a lease, and what is left of them after an attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use zae_limiter_core::{Milli, TimeMs};
use zae_limiter_store::{Adjusted, BoxFuture, BucketDelta, Delta, Store, StoreError};

use crate::limiter::{Amounts, Plan, Share};

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
    pub(crate) member: usize,
    pub(crate) deltas: SmallVec<[Delta; 2]>,
    /// The same for every attempt.
    operation: u64,
}

/// Numbers the changes of this process; 0 is none.
static OPERATIONS: AtomicU64 = AtomicU64::new(1);

impl Settlement {
    /// Adds `amounts` (positive charges, negative gives back) to every bucket of `plan`. Zeroes are
    /// left out.
    pub(crate) fn add(&mut self, plan: &Arc<Plan>, amounts: &Amounts) {
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
            if !deltas.is_empty() {
                // The number only has to differ from all others: no ordering needed.
                let operation = OPERATIONS.fetch_add(1, Ordering::Relaxed);
                self.parts.push(Part { plan: Arc::clone(plan), member: index, deltas, operation });
            }
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
        }
    }
}
