//! A plan: which buckets a request takes from, under which limits. Made once per request, kept by
//! its lease as the receipt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use zae_limiter_core::{
    EntityId, LimitName, LimitStatus, Milli, Reports, ResourceName, Take, TimeMs,
};
use zae_limiter_store::{
    Adjusted, BoxFuture, BucketDelta, ConsumeOutcome, ConsumeRequest, Delta, LimitsInForce,
    MemberTake, Store, StoreError,
};

/// Signed amounts, one per declared limit.
pub(crate) type Amounts = SmallVec<[Milli; 2]>;

/// A consume on its way; it outlives the caller that asked for it.
pub(crate) type ConsumeInFlight = BoxFuture<'static, Result<ConsumeOutcome, StoreError>>;

/// An adjust on its way.
pub(crate) type AdjustInFlight = BoxFuture<'static, Vec<Result<Adjusted, StoreError>>>;

/// The buckets of one request.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) resource: ResourceName,
    /// Leave limits with no amount out of the decision instead of asking whether they are in debt.
    pub(crate) skip_zero: bool,
    /// The caller first, then its ancestors, those without limits included: they may be switched
    /// off.
    pub(crate) members: SmallVec<[PlannedMember; 1]>,
}

/// One bucket of a plan.
#[derive(Debug)]
pub(crate) struct PlannedMember {
    pub(crate) entity: EntityId,
    pub(crate) limits: LimitsInForce,
    pub(crate) shares: SmallVec<[Share; 2]>,
    /// The declared limits it does not have.
    pub(crate) absent: SmallVec<[LimitName; 1]>,
}

/// A declared limit that this member has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Index into the limits the request names, in its order.
    pub(crate) declared: u8,
    /// Index into the member's limits.
    pub(crate) limit: u8,
}

impl Plan {
    /// Starts taking `amounts` from every bucket. The future owns everything it needs.
    pub(crate) fn consume(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        amounts: Amounts,
        now: TimeMs,
    ) -> ConsumeInFlight {
        Box::pin(async move {
            let takes = self.takes(&amounts);
            let members = self.member_takes(&takes);
            store.consume(&ConsumeRequest { members: &members, now }).await
        })
    }

    /// Looks at every bucket.
    pub(crate) async fn peek(
        &self,
        store: &dyn Store,
        amounts: &Amounts,
        now: TimeMs,
    ) -> Result<ConsumeOutcome, StoreError> {
        let takes = self.takes(amounts);
        let members = self.member_takes(&takes);
        store.peek(&ConsumeRequest { members: &members, now }).await
    }

    fn takes(&self, amounts: &Amounts) -> SmallVec<[SmallVec<[Take; 2]>; 1]> {
        let mut all = SmallVec::new();
        for member in &self.members {
            let mut takes = SmallVec::new();
            for share in &member.shares {
                let amount = amounts[usize::from(share.declared)];
                if !(self.skip_zero && amount == Milli::ZERO) {
                    takes.push(Take { limit: share.limit, amount });
                }
            }
            all.push(takes);
        }
        all
    }

    fn member_takes<'a>(
        &'a self,
        takes: &'a [SmallVec<[Take; 2]>],
    ) -> SmallVec<[MemberTake<'a>; 2]> {
        let member_take =
            |(member, takes): (&'a PlannedMember, &'a SmallVec<[Take; 2]>)| MemberTake {
                entity: &member.entity,
                resource: &self.resource,
                limits: &member.limits,
                takes,
                absent: &member.absent,
            };
        self.members.iter().zip(takes).map(member_take).collect()
    }

    /// What the reports of a decision mean in words.
    pub(crate) fn statuses(&self, reports: &Reports) -> Vec<LimitStatus> {
        let status = |report: &zae_limiter_core::LimitReport| {
            let member = &self.members[usize::from(report.member)];
            LimitStatus {
                entity: member.entity.clone(),
                resource: self.resource.clone(),
                limit: member.limits.limits[usize::from(report.limit)].clone(),
                available: report.balance.floor_tokens(),
                // Amounts are never negative.
                requested: u64::try_from(report.requested.floor_tokens()).unwrap_or(0),
                retry_after: report.wait,
            }
        };
        reports.iter().map(status).collect()
    }

    /// True when some member has the declared limit.
    pub(crate) fn has(&self, declared: usize) -> bool {
        self.members
            .iter()
            .any(|member| member.shares.iter().any(|share| usize::from(share.declared) == declared))
    }

    /// True when `other` takes the same declared limits from the very same buckets: only then can
    /// one settle for the other.
    pub(crate) fn takes_the_same(&self, other: &Plan) -> bool {
        let parts = |plan: &Plan| -> Vec<(EntityId, Vec<u8>)> {
            plan.members
                .iter()
                .map(|member| {
                    (
                        member.entity.clone(),
                        member.shares.iter().map(|share| share.declared).collect(),
                    )
                })
                .collect()
        };
        self.resource == other.resource && parts(self) == parts(other)
    }
}

/// Bucket writes that settle a lease: each is independent of the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settlement {
    pub(crate) parts: SmallVec<[Part; 1]>,
    /// Credits left out because their charge may not have landed: counted as lost by whoever sends
    /// the rest.
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
                // Only different from all others: no ordering needed.
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

    /// What is left to do after these results, and how many credits had to be given up. A charge of
    /// unknown fate is sent again (over-charging is the safe direction), a credit of unknown fate
    /// is not (giving back twice would mint).
    pub(crate) fn after(mut self, results: &[Result<Adjusted, StoreError>]) -> (Settlement, usize) {
        let mut given_up = 0;
        let mut index = 0;
        self.parts.retain(|part| {
            // A store that answers with too few results has not told us the fate of the rest.
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
