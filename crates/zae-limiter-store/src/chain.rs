//! Decisions over the buckets of a chain, for backends that hold a lock while they decide: loading,
//! bringing up to date, deciding and writing in the order that is the same everywhere. A backend
//! loads, saves and owns the atomicity; see [`HeldChain`].

use smallvec::SmallVec;
use zae_limiter_core::{
    BucketState, ClosedHour, ConfigStamp, Flag, Limit, Milli, Report, Reports, Take, TimeMs, Wait,
    assess, check_limits,
};

use crate::bucket::least_of;
use crate::{
    Adjusted, BucketDelta, ConsumeOutcome, LimitsInForce, MemberConfig, MemberTake, Order,
    Provisioned, Readiness, Stocked, StoreError, bring_up_to_date,
};

/// The buckets of one chain, held by their backend: no other caller reads or writes them until the
/// decision is saved. `member` is an index into the members of the request.
pub trait HeldChain {
    /// A [`StoreError`], or another reason that ends the decision.
    type Error: From<StoreError>;

    /// Reads the bucket of a member; `None` when there is none. Called once per member, in order,
    /// until a member stops the chain. `limits` are the caller's, to share their names.
    fn load(
        &mut self,
        member: usize,
        limits: &[Limit],
    ) -> Result<Option<&BucketState>, Self::Error>;

    /// The bucket that was loaded, once more.
    fn loaded(&self, member: usize) -> &BucketState;

    /// The bucket that was loaded, to be changed: the backend saves it.
    fn loaded_mut(&mut self, member: usize) -> &mut BucketState;

    /// The flag that the stored levels give the member. Asked for a bucket that is not there yet,
    /// and for a member without limits.
    fn flag(&mut self, member: usize) -> Result<Flag, Self::Error>;

    /// Fails when no bucket may come into being for the member: its namespace is gone.
    fn check_namespace(&mut self, _member: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Fails when there is no room for that many more buckets. Nothing was changed yet.
    fn reserve(&mut self, _buckets: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Saves a bucket whole, in the place of the one that was loaded or as a new one.
    fn save(&mut self, member: usize, bucket: BucketState);

    /// Adds an hour that has ended to the usage history of a bucket that was saved.
    fn add_usage(&mut self, member: usize, hour: &ClosedHour) -> Result<(), Self::Error>;

    /// The configuration of a member as it is now; asked when a charge finds its bucket forgotten.
    fn configured(&mut self, member: usize) -> Result<(MemberConfig, ConfigStamp), Self::Error>;
}

/// The next state of one bucket of a chain.
pub(crate) enum Prepared {
    /// It is there and fits.
    Loaded,
    /// It is there under other limits, or its time was wrong: this is how it continues, granted or
    /// not. Otherwise the old rate would go on for as long as requests are refused.
    Synced(Box<BucketState>),
    /// It is not there: this is how it begins, if granted.
    New(Box<BucketState>),
    /// The member has no limits, so there is none.
    Unlimited,
}

/// Why a chain is not decided.
pub(crate) enum Stop<E> {
    Stale,
    Blocked(Flag),
    Failed(E),
}

impl<E> From<E> for Stop<E> {
    fn from(error: E) -> Stop<E> {
        Stop::Failed(error)
    }
}

impl<E> Stop<E> {
    pub(crate) fn answer(self, member: usize) -> Result<ConsumeOutcome, E> {
        match self {
            Stop::Stale => Ok(ConsumeOutcome::Stale { member }),
            Stop::Blocked(flag) => Ok(ConsumeOutcome::Blocked { member, flag }),
            Stop::Failed(error) => Err(error),
        }
    }
}

/// Takes from every bucket of the chain or from none.
pub fn consume<C: HeldChain>(
    chain: &mut C,
    members: &[MemberTake<'_>],
    now: TimeMs,
) -> Result<ConsumeOutcome, C::Error> {
    let prepared = match prepare_all(chain, members, now) {
        Ok(prepared) => prepared,
        Err((member, stop)) => return stop.answer(member),
    };
    let mut reports = assess_all(chain, members, &prepared, now);
    let is_granted = !is_refusal(&reports);
    if is_granted {
        let new = prepared.iter().filter(|ready| matches!(ready, Prepared::New(_))).count();
        chain.reserve(new)?;
    }
    for (member, (ready, take)) in prepared.into_iter().zip(members).enumerate() {
        let closed = match ready {
            Prepared::Loaded if is_granted => take_granted(chain.loaded_mut(member), take, now),
            Prepared::Synced(mut bucket) if !is_granted => {
                bucket.set_expires_at(take.limits.expiry(now));
                chain.save(member, *bucket);
                None
            }
            Prepared::Synced(mut bucket) | Prepared::New(mut bucket) if is_granted => {
                let closed = take_granted(&mut bucket, take, now);
                chain.save(member, *bucket);
                closed
            }
            _ => None,
        };
        if let Some(hour) = closed {
            chain.add_usage(member, &hour)?;
        }
    }
    if !is_granted {
        return Ok(ConsumeOutcome::Refused(reports));
    }
    for report in &mut reports {
        report.balance = report.balance.saturating_sub(report.requested);
    }
    Ok(ConsumeOutcome::Granted(reports.into()))
}

/// What [`consume`] would answer. Writes nothing.
pub fn peek<C: HeldChain>(
    chain: &mut C,
    members: &[MemberTake<'_>],
    now: TimeMs,
) -> Result<ConsumeOutcome, C::Error> {
    match prepare_all(chain, members, now) {
        Ok(prepared) => {
            let reports = assess_all(chain, members, &prepared, now);
            Ok(if is_refusal(&reports) {
                ConsumeOutcome::Refused(reports)
            } else {
                ConsumeOutcome::Granted(reports.into())
            })
        }
        Err((member, stop)) => stop.answer(member),
    }
}

/// Serves a request and lends. The bucket of `order` is member 0 of the chain.
pub fn provision<C: HeldChain>(
    chain: &mut C,
    order: &Order<'_>,
    now: TimeMs,
) -> Result<Provisioned, C::Error> {
    order.check()?;
    let Order { entity, resource, limits, .. } = *order;
    let takes: SmallVec<[Take; 4]> = order.lines.iter().map(least_of).collect();
    let member = MemberTake { entity, resource, limits, takes: &takes, absent: &[] };
    let prepared = match prepare_one(chain, 0, &member, now) {
        Ok(prepared) => prepared,
        Err(Stop::Stale) => return Ok(Provisioned::Stale),
        Err(Stop::Blocked(flag)) => return Ok(Provisioned::Blocked(flag)),
        Err(Stop::Failed(error)) => return Err(error),
    };
    let reports = assess_all(chain, &[member], std::slice::from_ref(&prepared), now);
    let is_granted = !is_refusal(&reports);
    let lend = |bucket: &mut BucketState| {
        let lent = bucket.provision(order.lines, order.report, order.serves, order.age_ms, now);
        bucket.set_expires_at(limits.expiry(now));
        (lent, bucket.clone())
    };
    let (provision, bucket) = match prepared {
        Prepared::Unlimited => {
            let message = format!("{entity} has no limits on {resource}, so it has no stock");
            return Err(StoreError::invalid("provision", message).into());
        }
        Prepared::Synced(mut bucket) if !is_granted => {
            bucket.set_expires_at(limits.expiry(now));
            chain.save(0, *bucket);
            return Ok(Provisioned::Refused(reports));
        }
        _ if !is_granted => return Ok(Provisioned::Refused(reports)),
        Prepared::Loaded => lend(chain.loaded_mut(0)),
        Prepared::Synced(mut bucket) => {
            let lent = lend(&mut bucket);
            chain.save(0, *bucket);
            lent
        }
        Prepared::New(mut bucket) => {
            chain.reserve(1)?;
            let lent = lend(&mut bucket);
            chain.save(0, *bucket);
            lent
        }
    };
    for hour in &provision.closed {
        chain.add_usage(0, hour)?;
    }
    Ok(Provisioned::Granted(Box::new(Stocked { provision, bucket })))
}

/// Ends a loan. The bucket is member 0 of the chain.
pub fn settle<C: HeldChain>(chain: &mut C, report: &Report, now: TimeMs) -> Result<(), C::Error> {
    // A forgotten bucket was full, and whoever deleted one has taken its use along.
    if chain.load(0, &[])?.is_none() {
        return Ok(());
    }
    for hour in chain.loaded_mut(0).settle(report, now) {
        chain.add_usage(0, &hour)?;
    }
    Ok(())
}

/// Charges and gives back after the fact. The bucket of `delta` is member 0 of the chain.
pub fn adjust<C: HeldChain>(
    chain: &mut C,
    delta: &BucketDelta<'_>,
    now: TimeMs,
) -> Result<Adjusted, C::Error> {
    let receipt = &delta.limits.limits;
    if delta.deltas.iter().any(|change| usize::from(change.limit) >= receipt.len()) {
        let message =
            format!("a change of {} names a limit that is not on its receipt", delta.entity);
        return Err(StoreError::invalid("adjust", message).into());
    }
    let limit = |index: u8| &receipt[usize::from(index)];
    // All changes are made at one instant, so the first of them ends the hour if any does.
    let charge = |bucket: &mut BucketState| {
        let mut closed = None;
        for change in delta.deltas {
            let hour = bucket.adjust(limit(change.limit), change.amount, now);
            if hour.is_some() {
                debug_assert!(closed.is_none(), "an hour ends once");
                closed = hour;
            }
        }
        closed
    };
    let (closed, adjusted) = if let Some(bucket) = chain.load(0, receipt)? {
        for change in delta.deltas {
            let counted = bucket.check_adjust(limit(change.limit), change.amount, now);
            counted.map_err(StoreError::from)?;
        }
        let bucket = chain.loaded_mut(0);
        if let Some(last) = bucket.expires_at() {
            bucket.set_expires_at(delta.limits.expiry(now).or(Some(last)));
        }
        (charge(bucket), Adjusted::Applied)
    } else if delta.deltas.iter().all(|change| change.amount <= Milli::ZERO) {
        // A forgotten bucket was full: a refund has nothing to fill, and a charge makes the bucket
        // again, or the debt would be lost.
        return Ok(Adjusted::Dropped);
    } else {
        let (configured, stamp) = chain.configured(0)?;
        let limits = delta.made_again(configured.limits.as_ref(), stamp);
        let mut bucket = new_bucket(chain, 0, &limits, now)?;
        bucket.set_expires_at(limits.expiry(now));
        let closed = charge(&mut bucket);
        chain.reserve(1)?;
        chain.save(0, bucket);
        (closed, Adjusted::Recreated)
    };
    if let Some(hour) = closed {
        chain.add_usage(0, &hour)?;
    }
    Ok(adjusted)
}

/// The next state of each bucket of the chain; or the member that stops the chain, and why. Writes
/// nothing.
#[expect(clippy::type_complexity, reason = "the member is only of use to the caller")]
fn prepare_all<C: HeldChain>(
    chain: &mut C,
    members: &[MemberTake<'_>],
    now: TimeMs,
) -> Result<SmallVec<[Prepared; 4]>, (usize, Stop<C::Error>)> {
    let mut prepared = SmallVec::new();
    for (member, take) in members.iter().enumerate() {
        prepared.push(prepare_one(chain, member, take, now).map_err(|stop| (member, stop))?);
    }
    Ok(prepared)
}

fn prepare_one<C: HeldChain>(
    chain: &mut C,
    member: usize,
    take: &MemberTake<'_>,
    now: TimeMs,
) -> Result<Prepared, Stop<C::Error>> {
    match chain.load(member, &take.limits.limits)? {
        Some(bucket) if !take.is_unlimited() => {
            return prepare(bucket, take, now);
        }
        _ => {}
    }
    if take.is_unlimited() {
        let flag = chain.flag(member)?;
        return if flag.blocks() { Err(Stop::Blocked(flag)) } else { Ok(Prepared::Unlimited) };
    }
    let bucket = new_bucket(chain, member, take.limits, now)?;
    if bucket.flag.blocks() {
        return Err(Stop::Blocked(bucket.flag));
    }
    Ok(Prepared::New(Box::new(bucket)))
}

/// The next state of a stored bucket. Does not change the bucket.
#[inline]
pub(crate) fn prepare<E: From<StoreError>>(
    bucket: &BucketState,
    take: &MemberTake<'_>,
    now: TimeMs,
) -> Result<Prepared, Stop<E>> {
    // The usual case without the copy.
    if is_ready(bucket, take, now) { Ok(Prepared::Loaded) } else { prepare_copy(bucket, take, now) }
}

/// True when a stored bucket decides as it is.
#[inline]
pub(crate) fn is_ready(bucket: &BucketState, take: &MemberTake<'_>, now: TimeMs) -> bool {
    !bucket.flag.blocks() && bucket.matches(&take.limits.limits) && !bucket.is_far_ahead_of(now)
}

/// A sync that fails leaves its bucket unusable, so the sync works on a copy.
#[cold]
fn prepare_copy<E: From<StoreError>>(
    bucket: &BucketState,
    take: &MemberTake<'_>,
    now: TimeMs,
) -> Result<Prepared, Stop<E>> {
    check(&take.limits.limits).map_err(E::from)?;
    let mut copy = Box::new(bucket.clone());
    let readiness = bring_up_to_date(&mut copy, take, now).map_err(StoreError::from);
    match readiness.map_err(E::from)? {
        Readiness::Ready => Ok(Prepared::Loaded),
        Readiness::Synced => Ok(Prepared::Synced(copy)),
        Readiness::Stale => Err(Stop::Stale),
        Readiness::Blocked(flag) => Err(Stop::Blocked(flag)),
    }
}

/// A bucket that is not there yet, with the flag that is stored for it.
fn new_bucket<C: HeldChain>(
    chain: &mut C,
    member: usize,
    limits: &LimitsInForce,
    now: TimeMs,
) -> Result<BucketState, C::Error> {
    check(&limits.limits)?;
    chain.check_namespace(member)?;
    let mut bucket = BucketState::full(&limits.limits, limits.stamp, now);
    bucket.flag = chain.flag(member)?;
    Ok(bucket)
}

fn check(limits: &[Limit]) -> Result<(), StoreError> {
    check_limits(limits).map_err(|error| StoreError::invalid("consume", error))
}

/// Takes the granted amounts, and sets the expiry anew.
pub(crate) fn take_granted(
    bucket: &mut BucketState,
    take: &MemberTake<'_>,
    now: TimeMs,
) -> Option<ClosedHour> {
    let closed = bucket.take(take.takes, now);
    bucket.set_expires_at(take.limits.expiry(now));
    closed
}

fn assess_all<C: HeldChain>(
    chain: &C,
    members: &[MemberTake<'_>],
    prepared: &[Prepared],
    now: TimeMs,
) -> Reports {
    let none = BucketState::full(&[], ConfigStamp::default(), now);
    let buckets = prepared.iter().enumerate().map(|(member, ready)| match ready {
        Prepared::Unlimited => &none,
        Prepared::Loaded => chain.loaded(member),
        Prepared::Synced(bucket) | Prepared::New(bucket) => &**bucket,
    });
    assess(buckets.zip(members.iter().map(|take| take.takes)), now)
}

fn is_refusal(reports: &Reports) -> bool {
    reports.iter().any(|report| report.wait != Wait::None)
}
