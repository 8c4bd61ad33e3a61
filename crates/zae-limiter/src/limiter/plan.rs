//! A plan: which buckets a request takes from, under which limits. Made once for all requests that
//! declare the same limits, for as long as the configuration is cached; kept by every lease as the
//! receipt.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use zae_limiter_core::{
    EntityId, Limit, LimitName, LimitSource, LimitStatus, Milli, Reports, ResourceName, Take,
    TimeMs,
};
use zae_limiter_store::{
    AtOnce, BoxFuture, ConsumeOutcome, ConsumeRequest, Grant, LimitsInForce, MemberTake, Store,
    StoreError,
};

use super::RateLimiter;
use super::chain::Chain;
use super::request::Request;
use crate::error::{AcquireError, Disabled, Invalid, NoLimits};
use crate::metrics;

/// Signed amounts, one per declared limit.
pub(crate) type Amounts = SmallVec<[Milli; 2]>;

/// A consume that was started; it outlives the caller that asked for it.
pub(crate) type ConsumeInFlight = BoxFuture<'static, Result<ConsumeOutcome, StoreError>>;

/// The buckets of one request.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) resource: ResourceName,
    /// Leave limits with no amount out of the decision instead of asking whether they are in debt.
    pub(crate) skip_zero: bool,
    /// The caller first, then its ancestors, those without limits included: they may be disabled.
    pub(crate) members: SmallVec<[PlannedMember; 1]>,
    /// The limits the request names, in its order.
    pub(crate) declared: SmallVec<[LimitName; 2]>,
}

/// One bucket of a plan.
#[derive(Debug)]
pub(crate) struct PlannedMember {
    pub(crate) entity: EntityId,
    pub(crate) limits: LimitsInForce,
    pub(crate) shares: SmallVec<[Share; 2]>,
    /// The declared limits that this member does not have.
    pub(crate) absent: SmallVec<[LimitName; 1]>,
}

/// The amounts asked of one member.
type Takes = SmallVec<[Take; 2]>;

/// A declared limit that this member has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Index into the limits the request names, in its order.
    pub(crate) declared: u8,
    /// Index into the member's limits.
    pub(crate) limit: u8,
}

/// The same amounts by themselves. Two are usual, and copied without a loop.
pub(crate) fn copied(amounts: &[Milli]) -> Amounts {
    match amounts {
        [one, other] => Amounts::from_buf([*one, *other]),
        _ => Amounts::from_slice(amounts),
    }
}

/// How many numbers a thread takes at once, so that threads do not meet at every request.
const NUMBERS: u64 = 1_024;

/// Where the next thread takes its numbers for takes and changes; 0 is none.
static NUMBERS_FROM: AtomicU64 = AtomicU64::new(NUMBERS);

/// A number that no other take and no other change of this process has.
pub(crate) fn next_operation() -> u64 {
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| {
        let mut number = next.get();
        if number.is_multiple_of(NUMBERS) {
            // A number only has to differ from all others: no ordering needed.
            number = NUMBERS_FROM.fetch_add(NUMBERS, Ordering::Relaxed);
        }
        next.set(number + 1);
        number
    })
}

impl Plan {
    /// Who asks, and for what.
    pub(crate) fn names(&self) -> (EntityId, ResourceName) {
        (self.members[0].entity.clone(), self.resource.clone())
    }

    /// Starts taking `amounts` from every bucket. The future owns everything it needs.
    pub(crate) fn consume(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        amounts: Amounts,
        (operation, is_exact): (u64, bool),
        now: TimeMs,
    ) -> ConsumeInFlight {
        Box::pin(async move {
            let takes = self.takes(&amounts);
            let members = self.member_takes(&takes);
            let request = ConsumeRequest::new(&members, now).numbered(operation);
            store.consume(&request.exactly(is_exact)).await
        })
    }

    /// Takes `amounts` from every bucket if the store can say so without waiting.
    #[inline]
    pub(crate) fn decide_at_once(
        &self,
        store: &dyn Store,
        amounts: &[Milli],
        (operation, is_exact): (u64, bool),
        now: TimeMs,
        grant: &mut Grant,
    ) -> AtOnce {
        let mut decide = |members: &[MemberTake<'_>]| {
            let request = ConsumeRequest::new(members, now).numbered(operation);
            store.decide_at_once(&request.exactly(is_exact), grant)
        };
        if let [member] = &self.members[..] {
            return decide(&[self.member_take(member, &self.takes_of(member, amounts))]);
        }
        decide(&self.member_takes(&self.takes(amounts)))
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
        store.peek(&ConsumeRequest::new(&members, now)).await
    }

    fn takes(&self, amounts: &[Milli]) -> SmallVec<[Takes; 1]> {
        self.members.iter().map(|member| self.takes_of(member, amounts)).collect()
    }

    fn takes_of(&self, member: &PlannedMember, amounts: &[Milli]) -> Takes {
        let take = |share: &Share| Take {
            limit: share.limit,
            amount: amounts[usize::from(share.declared)],
        };
        // Two are usual, and need no loop.
        if let [one, other] = &member.shares[..]
            && !self.skip_zero
        {
            return Takes::from_buf([take(one), take(other)]);
        }
        let is_asked = |take: &Take| !(self.skip_zero && take.amount == Milli::ZERO);
        member.shares.iter().map(take).filter(is_asked).collect()
    }

    fn member_takes<'a>(&'a self, takes: &'a [Takes]) -> SmallVec<[MemberTake<'a>; 2]> {
        let both = self.members.iter().zip(takes);
        both.map(|(member, takes)| self.member_take(member, takes)).collect()
    }

    fn member_take<'a>(&'a self, member: &'a PlannedMember, takes: &'a [Take]) -> MemberTake<'a> {
        MemberTake {
            entity: &member.entity,
            resource: &self.resource,
            limits: &member.limits,
            takes,
            absent: &member.absent,
        }
    }

    /// True when `request` takes from the buckets of this plan. The plan was made for its entity
    /// and resource, and from their configuration alone.
    pub(crate) fn serves(&self, request: &Request) -> bool {
        self.skip_zero == request.skip_zero
            && self.declared.len() == request.amounts.len()
            && self.declared.iter().zip(&request.amounts).all(|(ours, (theirs, _))| ours == theirs)
    }

    /// The reports of a decision, with names instead of indices.
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

    /// True when `other` was made for requests that look like this one's.
    pub(crate) fn declares_the_same(&self, other: &Plan) -> bool {
        self.skip_zero == other.skip_zero && self.declared == other.declared
    }

    /// True when `other` takes the same declared limits from the very same buckets: only then can
    /// one settle for the other.
    pub(crate) fn takes_the_same(&self, other: &Plan) -> bool {
        let is_same = |(ours, theirs): (&PlannedMember, &PlannedMember)| {
            let declared = |member: &PlannedMember| -> SmallVec<[u8; 2]> {
                member.shares.iter().map(|share| share.declared).collect()
            };
            ours.entity == theirs.entity && declared(ours) == declared(theirs)
        };
        self.resource == other.resource
            && self.members.len() == other.members.len()
            && self.members.iter().zip(&other.members).all(is_same)
    }
}

impl RateLimiter {
    /// The plan that an earlier request left with the cached configuration, if that is still to be
    /// trusted.
    pub(super) fn kept_plan(
        &self,
        request: &Request,
        entity: &EntityId,
        resource: &ResourceName,
    ) -> Option<Arc<Plan>> {
        if !request.is_plain() {
            return None;
        }
        self.scope.cache.kept_plan(entity, resource, self.clock(), |plan| plan.serves(request))
    }

    /// Which buckets `request` takes from; kept for the next request like it.
    pub(super) fn plan_and_keep(
        &self,
        request: &Request,
        resource: &ResourceName,
        chain: &Chain,
    ) -> Result<Arc<Plan>, AcquireError> {
        let plan = self.plan(request, resource, chain)?;
        if request.is_plain() {
            self.scope.cache.keep_plan(chain, &plan);
        }
        Ok(plan)
    }

    /// Which buckets `request` takes from.
    pub(super) fn plan(
        &self,
        request: &Request,
        resource: &ResourceName,
        chain: &Chain,
    ) -> Result<Arc<Plan>, AcquireError> {
        for (entity, cached) in chain {
            if let Some((flag, level)) = cached.config.blocked_by.clone() {
                let (entity, resource) = (entity.clone(), resource.clone());
                return Err(Disabled { entity, resource, flag, level: Some(level) }.into());
            }
        }
        let mut members: SmallVec<[PlannedMember; 1]> = SmallVec::new();
        for (index, (entity, cached)) in chain.iter().enumerate() {
            let terms = request.terms();
            let call = if index == 0 { terms.limits.as_ref() } else { None };
            let fallback = if index == 0 { terms.fallback_limits.as_ref() } else { None };
            let limits = match call {
                Some(limits) => {
                    metrics::count(metrics::OVERRIDES);
                    Some(self.in_force(limits, LimitSource::Call, cached.stamp))
                }
                None => self.limits_of(cached).or_else(|| {
                    fallback
                        .map(|limits| self.in_force(limits, LimitSource::Fallback, cached.stamp))
                }),
            };
            // A member without limits goes with the others: the store looks whether it is disabled.
            let (limits, (shares, absent)) = match limits {
                Some(limits) => {
                    let parts = shares(&request.amounts, &limits.limits);
                    (limits, parts)
                }
                None => (LimitsInForce::none(cached.stamp), Default::default()),
            };
            members.push(PlannedMember { entity: entity.clone(), limits, shares, absent });
        }
        let (resource, skip_zero) = (resource.clone(), request.skip_zero);
        let declared = request.amounts.iter().map(|(name, _)| name.clone()).collect();
        let plan = Plan { resource, skip_zero, members, declared };
        check_names(&plan, &request.amounts, &chain[0].0)?;
        Ok(Arc::new(plan))
    }
}

/// The declared limits that are among `limits`, and the names of those that are not.
fn shares(
    declared: &[(LimitName, Milli)],
    limits: &[Limit],
) -> (SmallVec<[Share; 2]>, SmallVec<[LimitName; 1]>) {
    let (mut shares, mut absent) = (SmallVec::new(), SmallVec::new());
    for (declared, (name, _)) in (0u8..).zip(declared) {
        match (0u8..).zip(limits).find(|(_, limit)| limit.name() == name) {
            Some((limit, _)) => shares.push(Share { declared, limit }),
            None => absent.push(name.clone()),
        }
    }
    (shares, absent)
}

/// Checks that some member has every declared limit: a typo must not mean "unlimited".
fn check_names(
    plan: &Plan,
    declared: &[(LimitName, Milli)],
    entity: &EntityId,
) -> Result<(), AcquireError> {
    if plan.members.iter().all(|member| member.limits.limits.is_empty()) {
        return Err(NoLimits { entity: entity.clone(), resource: plan.resource.clone() }.into());
    }
    let missing = declared.iter().enumerate().find(|(index, _)| !plan.has(*index));
    let Some((_, (limit, _))) = missing else { return Ok(()) };
    let limits = plan.members.iter().flat_map(|member| member.limits.limits.iter());
    let known: BTreeSet<LimitName> = limits.map(|limit| limit.name().clone()).collect();
    let unknown = Invalid::UnknownLimit {
        limit: limit.clone(),
        entity: entity.clone(),
        resource: plan.resource.clone(),
        known: known.into_iter().collect(),
    };
    Err(unknown.into())
}
