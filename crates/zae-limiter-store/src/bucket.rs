//! Buckets: the hot path of the contract.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{
    BUCKET_TTL_MULTIPLIER, BucketState, CHAIN_MAX, ConfigStamp, EntityId, Flag, Limit, LimitName,
    LimitSource, Milli, OrderLine, Provision, Report, Reports, ResourceName, Take, TimeMs,
    TooManyLimits, Wait, bucket_ttl_ms,
};

use crate::{
    Adopted, Adoption, BoxFuture, Change, LimitsInForce, Page, PageRequest, StoreError, StoreFuture,
};

/// The request to one member of a chain, usually to its bucket.
///
/// A member without limits has no bucket: nothing is taken from it, nothing is written for it, no
/// bucket of it is looked at. It is sent because it may be disabled: a store with
/// [`crate::Capabilities::atomic_chains`] then answers [`ConsumeOutcome::Blocked`], in the same
/// step in which it decides about the others. A store without that promise leaves such a member to
/// its caller, who knows the flag from the last read of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct MemberTake<'a> {
    /// Whose bucket.
    pub entity: &'a EntityId,
    /// For which resource.
    pub resource: &'a ResourceName,
    /// The limits it is held to.
    pub limits: &'a LimitsInForce,
    /// The amounts, by index into `limits`; at most one per limit, never negative.
    pub takes: &'a [Take],
    /// What the request also asks for and `limits` does not have. A store whose buckets carry their
    /// limits makes sure that this one has not got such a limit meanwhile; one that compares stamps
    /// need not look.
    pub absent: &'a [LimitName],
}

impl MemberTake<'_> {
    /// True for a member without limits: only its flag is asked for.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.limits.limits.is_empty()
    }
}

/// One atomic decision over a chain. Everything is borrowed, so a prebuilt request costs nothing to
/// pass.
#[derive(Clone, Copy, Debug)]
pub struct ConsumeRequest<'a> {
    /// The caller first, then its ancestors; at most [`zae_limiter_core::CHAIN_MAX`], all
    /// different.
    pub members: &'a [MemberTake<'a>],
    /// The caller's clock.
    pub now: TimeMs,
    /// The number of the take in this process; 0 when it is not needed. The changes that settle the
    /// take name it ([`BucketDelta::take`]).
    pub operation: u64,
    /// The store decides, not what was bought from it before ([`crate::BlockStore`]).
    pub is_exact: bool,
}

impl<'a> ConsumeRequest<'a> {
    /// A request without a number.
    #[must_use]
    pub fn new(members: &'a [MemberTake<'a>], now: TimeMs) -> ConsumeRequest<'a> {
        ConsumeRequest { members, now, operation: 0, is_exact: false }
    }

    /// The same, for the store alone if `is_exact`.
    #[must_use]
    pub fn exactly(self, is_exact: bool) -> ConsumeRequest<'a> {
        ConsumeRequest { is_exact, ..self }
    }

    /// The same with a number.
    #[must_use]
    pub fn numbered(self, operation: u64) -> ConsumeRequest<'a> {
        ConsumeRequest { operation, ..self }
    }

    /// Refuses a request no backend could decide; for backends to call first.
    #[inline]
    pub fn check(&self, operation: &'static str) -> Result<(), StoreError> {
        match self.flaw() {
            None => Ok(()),
            Some(flaw) => Err(self.refused(operation, flaw)),
        }
    }

    /// What is wrong with the request, without the words.
    #[inline]
    fn flaw(&self) -> Option<Flaw> {
        if self.members.is_empty() || self.members.len() > CHAIN_MAX {
            return Some(Flaw::Length);
        }
        for (index, member) in self.members.iter().enumerate() {
            let same = |other: &MemberTake<'_>| {
                other.entity == member.entity && other.resource == member.resource
            };
            if self.members[..index].iter().any(same) {
                return Some(Flaw::Twice { member: index });
            }
            for (at, take) in member.takes.iter().enumerate() {
                if usize::from(take.limit) >= member.limits.limits.len()
                    || member.takes[..at].iter().any(|other| other.limit == take.limit)
                {
                    return Some(Flaw::Limit { member: index, take: at });
                }
                if take.amount.is_negative() {
                    return Some(Flaw::Negative { member: index, take: at });
                }
            }
        }
        None
    }

    #[cold]
    fn refused(&self, operation: &'static str, flaw: Flaw) -> StoreError {
        let entity = |member: usize| self.members[member].entity;
        let message = match flaw {
            Flaw::Length => {
                format!("a chain has 1 to {CHAIN_MAX} members, this one has {}", self.members.len())
            }
            Flaw::Twice { member } => {
                format!("{} is in the chain twice; each bucket may be asked once", entity(member))
            }
            Flaw::Limit { member, take } => format!(
                "take {take} of {} names no limit of its own; name each limit at most once",
                entity(member)
            ),
            Flaw::Negative { member, take } => {
                format!("take {take} of {} is negative; give back with adjust", entity(member))
            }
        };
        StoreError::invalid(operation, message)
    }
}

/// What is wrong with a request, by the indices of the member and of its take.
enum Flaw {
    Length,
    Twice { member: usize },
    Limit { member: usize, take: usize },
    Negative { member: usize, take: usize },
}

/// The answer to a [`ConsumeRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsumeOutcome {
    /// Everything was taken. The reports carry the balances left (a peek: the balances there are).
    Granted(Grant),
    /// Nothing was taken. The reports carry the balances there are, and the waits.
    Refused(Reports),
    /// Nothing was taken, and the store was not asked: local blocks found too little there a moment
    /// ago. The waits are not shorter than what the store would say.
    Paced {
        /// What there was, with the own stock.
        reports: Reports,
        /// How long ago the store was asked.
        age: Duration,
    },
    /// Nothing was decided: the bucket of `member` was parametrised from a newer configuration than
    /// the request's. Read the configuration again and ask again.
    Stale {
        /// Index into the request's members.
        member: usize,
    },
    /// Nothing was taken: an administrator has disabled the entity or the resource.
    Blocked {
        /// Index into the request's members.
        member: usize,
        /// The flag that says so.
        flag: Flag,
    },
    /// Nothing was taken: too many writers fought for the bucket. Not an outage, not a violation.
    Contended {
        /// A short, jittered wait.
        retry_after: Wait,
        /// The balances as far as they are known, for headers and dashboards; not a decision.
        reports: Reports,
    },
}

/// What a store decides without waiting: [`BucketStore::decide_at_once`].
#[derive(Debug)]
#[must_use]
pub enum AtOnce {
    /// Everything was taken, and the grant is written where the caller wanted it.
    Granted,
    /// Another answer.
    Otherwise(Result<ConsumeOutcome, StoreError>),
    /// Nothing was decided.
    NotYet,
}

/// The amounts taken, and the places they were taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The balances left.
    pub reports: Reports,
    /// The shards that were taken from, for a store whose buckets have several: one place per
    /// member and shard. Empty when every bucket is one item or row.
    pub places: Places,
    /// Whether it was served from tokens that were bought before, without asking the store.
    pub is_local: bool,
}

impl From<Reports> for Grant {
    fn from(reports: Reports) -> Grant {
        Grant { reports, places: Places::new(), is_local: false }
    }
}

/// The places of a grant.
pub type Places = Vec<Place>;

/// A shard of a bucket that a grant took from. Changes of the lease go back there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index into the members of the request.
    pub member: u8,
    /// Which shard.
    pub shard: u8,
    /// The amounts taken there; limits with nothing taken are named too, for a later charge.
    pub taken: SmallVec<[Take; 2]>,
}

/// A signed change of one limit after the fact: positive charges, negative gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Index into the limits of the receipt.
    pub limit: u8,
    /// How much.
    pub amount: Milli,
}

/// The changes of one bucket, with the receipt of its take.
#[derive(Clone, Copy, Debug)]
pub struct BucketDelta<'a> {
    /// Whose bucket.
    pub entity: &'a EntityId,
    /// For which resource.
    pub resource: &'a ResourceName,
    /// The limits as they were when the lease took. What a forgotten bucket is made again from is
    /// [`BucketDelta::made_again`].
    pub limits: &'a LimitsInForce,
    /// The changes, at most one per limit.
    pub deltas: &'a [Delta],
    /// Tells a repetition from another change: the same for every attempt of one change, and for no
    /// other change of this process. 0 when it will not be repeated. A store that cannot always say
    /// whether a change was made needs it to make a charge once.
    pub operation: u64,
    /// The take that this settles: [`ConsumeRequest::operation`].
    pub take: u64,
    /// The shard of the bucket that the take was granted from: [`Place::shard`]. One delta is about
    /// one place, or a delta that fails half way and is repeated would give back twice.
    pub place: u8,
}

impl<'a> BucketDelta<'a> {
    /// The limits that a charge makes a forgotten bucket again from: those in force now, because a
    /// receipt may be hours old. Example: 500 are charged under a receipt of 1000 a minute, and by
    /// now the limit is 10; under the receipt nothing would be owed, under the limit of now 490
    /// are. The limits of the receipt count where the call brought its limits along, and where
    /// those of now lack a limit that is charged; then only an entity that still has limits of its
    /// own keeps the bucket for good.
    #[must_use]
    pub fn made_again(
        &self,
        now: Option<&(Arc<[Limit]>, LimitSource)>,
        stamp: ConfigStamp,
    ) -> Cow<'a, LimitsInForce> {
        let receipt = self.limits;
        let mut charged = self
            .deltas
            .iter()
            .filter(|change| change.amount > Milli::ZERO)
            .map(|change| receipt.limits[usize::from(change.limit)].name());
        let in_force = now.filter(|_| receipt.source != LimitSource::Call);
        if let Some((limits, source)) = in_force.filter(|(limits, _)| {
            charged.all(|name| limits.iter().any(|limit| limit.name() == name))
        }) {
            let is_kept = receipt.source.expires() && receipt.ttl_ms.is_none();
            let multiplier = if is_kept { 0 } else { BUCKET_TTL_MULTIPLIER };
            return Cow::Owned(LimitsInForce::resolved(
                Arc::clone(limits),
                *source,
                stamp,
                multiplier,
            ));
        }
        if receipt.source.expires() || now.is_some_and(|(_, source)| !source.expires()) {
            return Cow::Borrowed(receipt);
        }
        let ttl_ms = Some(bucket_ttl_ms(&receipt.limits, BUCKET_TTL_MULTIPLIER).unwrap_or(0));
        Cow::Owned(LimitsInForce { ttl_ms, ..receipt.clone() })
    }
}

/// The result of one [`BucketDelta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjusted {
    /// The bucket was there and was changed.
    Applied,
    /// The bucket had been forgotten, which means it was full: it was made again and charged.
    Recreated,
    /// There was nothing to give back to: the bucket had been forgotten full, or was deleted by an
    /// administrator.
    Dropped,
}

/// A request that also buys stock: tokens debited ahead of need, for the next requests of its
/// holder. See [`zae_limiter_core::Stock`].
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// Whose bucket.
    pub entity: &'a EntityId,
    /// For which resource.
    pub resource: &'a ResourceName,
    /// The limits it is held to.
    pub limits: &'a LimitsInForce,
    /// What is taken and wanted, at most one line per limit.
    pub lines: &'a [OrderLine],
    /// What the holder has done with its last loan, which ends.
    pub report: &'a Report,
    /// Whether a request is served, or only stock is bought.
    pub serves: bool,
    /// For how long the stock may be spent.
    pub age_ms: i64,
}

impl Order<'_> {
    /// Refuses an order no backend could decide; for backends to call first.
    pub fn check(&self) -> Result<(), StoreError> {
        let takes: SmallVec<[Take; 4]> = self.lines.iter().map(least_of).collect();
        let member = MemberTake {
            entity: self.entity,
            resource: self.resource,
            limits: self.limits,
            takes: &takes,
            absent: &[],
        };
        ConsumeRequest::new(&[member], TimeMs(0)).check("provision")?;
        let amounts = |line: &OrderLine| [line.takes, line.want, line.unit, line.room];
        if self.lines.iter().flat_map(amounts).any(Milli::is_negative) {
            let message = format!("an order for {} has a negative amount", self.entity);
            return Err(StoreError::invalid("provision", message));
        }
        Ok(())
    }
}

/// What a line asks for at least.
pub(crate) fn least_of(line: &OrderLine) -> Take {
    Take { limit: line.limit, amount: line.least }
}

/// The answer to an [`Order`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provisioned {
    /// The request is served, the report is taken, and stock is lent if there is enough.
    Granted(Box<Stocked>),
    /// Nothing was written: the balances there are, and the waits, by line.
    Refused(Reports),
    /// Nothing was written: read the configuration again.
    Stale,
    /// Nothing was written: an administrator has disabled the entity or the resource.
    Blocked(Flag),
    /// Nothing was written: the bucket does not lend as it is now. The request is for
    /// [`BucketStore::consume`].
    NotNow,
}

/// A loan, and the bucket as the loan left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stocked {
    /// What is lent.
    pub provision: Provision,
    /// The bucket. Its balances are never below those that the bucket really has.
    pub bucket: BucketState,
}

/// Which limits of which bucket to fill up.
#[derive(Clone, Copy, Debug)]
pub struct ResetRequest<'a> {
    /// Whose bucket.
    pub entity: &'a EntityId,
    /// For which resource.
    pub resource: &'a ResourceName,
    /// Only these limits; `None` fills all.
    pub only: Option<&'a [LimitName]>,
}

/// The amount that each limit gained by a reset.
pub type Restored = Vec<(LimitName, Milli)>;

/// A bucket as stored. Call [`BucketState::refill`] to see it at a later instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketView {
    /// Whose bucket.
    pub entity: EntityId,
    /// For which resource.
    pub resource: ResourceName,
    /// Its state at `state.refilled_at`.
    pub state: BucketState,
}

/// Takes from buckets and looks at them.
pub trait BucketStore: Send + Sync {
    /// Takes from every bucket of the chain or from none. Dropping the future does not undo the
    /// take: it may or may not be applied, so a caller that must know polls the future to its end.
    ///
    /// Cost: one round trip, one write per member; a refusal writes nothing unless limits changed.
    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome>;

    /// The answer of [`BucketStore::consume`] if it needs neither I/O nor waiting, for a store that
    /// has one; [`AtOnce::NotYet`] with nothing changed when it does: ask `consume` then. Callers
    /// ask this before breaker and deadline, so an answer must cost no more than memory.
    /// A grant, which is large, is written into `grant`, which is empty. With other answers the
    /// content of `grant` means nothing.
    fn decide_at_once(&self, request: &ConsumeRequest<'_>, grant: &mut Grant) -> AtOnce {
        let _ = (request, grant);
        AtOnce::NotYet
    }

    /// The same as one value; `None` when `consume` has to be asked.
    fn consume_at_once(
        &self,
        request: &ConsumeRequest<'_>,
    ) -> Option<Result<ConsumeOutcome, StoreError>> {
        let mut grant = Grant::default();
        match self.decide_at_once(request, &mut grant) {
            AtOnce::Granted => Some(Ok(ConsumeOutcome::Granted(grant))),
            AtOnce::Otherwise(answer) => Some(answer),
            AtOnce::NotYet => None,
        }
    }

    /// What [`BucketStore::consume`] would answer, without writing anything. `Granted` carries the
    /// balances there are.
    fn peek<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome>;

    /// Serves a request and buys stock, in one write; a refusal writes nothing. Only for a store
    /// that promises [`crate::Capabilities::lends`].
    ///
    /// A loan whose answer is lost is lost: nobody spends it, and refill makes up for it.
    fn provision<'a>(&'a self, order: &'a Order<'a>, now: TimeMs) -> StoreFuture<'a, Provisioned> {
        let _ = (order, now);
        Box::pin(std::future::ready(Err(does_not_lend("provision"))))
    }

    /// Ends a loan: takes back the stock that was not spent and counts what was. Never refused; a
    /// bucket that is not there was full, and stays away. Only for a store that promises
    /// [`crate::Capabilities::lends`].
    fn settle<'a>(
        &'a self,
        entity: &'a EntityId,
        resource: &'a ResourceName,
        report: &'a Report,
        now: TimeMs,
    ) -> StoreFuture<'a, ()> {
        let _ = (entity, resource, report, now);
        Box::pin(std::future::ready(Err(does_not_lend("settle"))))
    }

    /// Charges and gives back, each bucket on its own. Never refused: a charge may lead into debt,
    /// a credit never lifts a balance above capacity. One result per delta, in order. `Invalid`,
    /// and nothing changed, for a charge that no counter can hold: a debt, and where usage is
    /// counted the use of one hour, ends at about 9.2 · 10^15 tokens.
    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>>;

    /// Fills a bucket, forgiving its debt, and records it in the audit log. Returns what each limit
    /// gained; `None` when there is no such bucket (nothing is written then: an absent bucket is
    /// full).
    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Option<Restored>>;

    /// The buckets of one entity, ordered by resource.
    fn buckets<'a>(
        &'a self,
        entity: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>>;

    /// The buckets of one resource, ordered by entity.
    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>>;

    /// Every bucket of the namespace, ordered by entity and resource.
    fn namespace_buckets<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<BucketView>>;

    /// Takes buckets and usage over from another store, each only if this store has none yet, and
    /// records in the audit log what was made. One answer per bucket, then one per window of usage,
    /// in order. A call that is repeated, after a lost answer or a killed process, changes nothing
    /// that an earlier one has made.
    ///
    /// A bucket is made as [`BucketState::adopted`] says, with the flag that the levels of this
    /// store give it; its limits become those in force here with its next take. Usage is made
    /// beside what later takes count in the same window, which is added to it. Fails with
    /// `NotFound` when the namespace is not active, and changes nothing then.
    fn adopt<'a>(
        &'a self,
        adoption: &'a Adoption<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Vec<Adopted>>;
}

fn does_not_lend(operation: &'static str) -> StoreError {
    let message = "this store does not lend: local blocks need a store that does";
    StoreError::new(crate::StoreErrorKind::State, operation, message)
}

/// Whether a bucket can take part in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Its limits are the caller's.
    Ready,
    /// Its limits were changed to the caller's, or its time was set right: write the bucket even if
    /// the decision is a refusal, or the old rate, or the wrong time, would go on for as long as
    /// requests are refused.
    Synced,
    /// The caller's limits come from an older configuration than the bucket's, and differ from
    /// them.
    Stale,
    /// Nothing is granted, because of this flag.
    Blocked(Flag),
}

/// Brings an existing bucket under the limits of `member`, if the member's knowledge is fresh
/// enough. The one copy of the rule for backends that hold a lock while they decide. An error
/// leaves `bucket` unusable: drop it, write nothing.
pub fn bring_up_to_date(
    bucket: &mut BucketState,
    member: &MemberTake<'_>,
    now: TimeMs,
) -> Result<Readiness, TooManyLimits> {
    if bucket.flag.blocks() {
        return Ok(Readiness::Blocked(bucket.flag));
    }
    let in_force = member.limits;
    if bucket.matches(&in_force.limits) {
        if !bucket.is_far_ahead_of(now) {
            return Ok(Readiness::Ready);
        }
        bucket.refill(now);
        return Ok(Readiness::Synced);
    }
    // Limits given with the call count as read at this very moment.
    if in_force.source != LimitSource::Call && in_force.stamp < bucket.stamp {
        return Ok(Readiness::Stale);
    }
    bucket.sync(&in_force.limits, in_force.stamp, now)?;
    Ok(Readiness::Synced)
}
