//! Which write takes from a bucket, given what is known of it. Pure: no clock, no table.
//!
//! A debit has one of three forms, each exact for every balance that meets its condition. FAST
//! takes and leaves the refill instant alone. FAST is allowed only while nothing has overflowed, or
//! a later refill would credit the overflow once more. A refill moves the instant and credits every
//! limit of the item, each one by ADD (still below its capacity) or FILL (full).

use smallvec::SmallVec;
use zae_limiter_core::{
    Flag, Limit, LimitName, LimitParams, LimitSource, Milli, Take, TimeMs, time_to_fill_ms,
};
use zae_limiter_store::{LimitsInForce, StoreError};

use crate::bucket::image::Image;
use crate::bucket::refill::{Amount, MustBeAbsent, Refill};
use crate::bucket::shard::Standing;
use crate::bucket::take::Asked;
use crate::bucket::waits::Wanted;
use crate::bucket::write::{
    BucketWrite, Ceiling, Change, Cost, ExpiryPin, FlagPin, ItemChange, Line, LineForm, LoansPin,
    Nonce, Pin, Pins, Purpose, RefilledAt,
};
use crate::constants::{WCU_NEEDED_MILLI, WCU_PER_WRITE_MILLI};
use crate::table::Key;

/// What is known of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View<'a> {
    /// Nothing.
    Unknown,
    /// It is not there.
    Absent,
    /// It was like this.
    Known(Known<'a>),
}

/// A bucket as it was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    pub(crate) image: &'a Image,
    /// Recent enough, and not in doubt: a refusal may rest on the image.
    pub(crate) is_trusted: bool,
    /// The caller's limits are proven to be as new as the bucket's parameters.
    pub(crate) may_sync: bool,
    /// Others write the bucket all the time.
    pub(crate) is_crowded: bool,
    /// Others have probably written the bucket since.
    pub(crate) is_outdated: bool,
    /// The instant a shortage is judged by; not before the operation began.
    pub(crate) judged_at: TimeMs,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Send this; when it lands the amounts are taken.
    Take(BucketWrite),
    /// Send this, which takes nothing, and look again.
    Prepare(BucketWrite),
    /// Make the bucket, taking the amounts; the caller, which knows the owner, builds the item.
    Create,
    /// A limit is short.
    Refuse,
    /// The bucket has a flag that blocks.
    Blocked(Flag),
    /// The bucket has other parameters than the caller: read the configuration again.
    Reread,
    /// The item takes no more writes for now.
    Contended,
    /// The bucket is spared, and up to date.
    Nothing,
}

/// What one operation asks of one bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debit<'a> {
    pub(crate) key: &'a Key,
    /// Where the item stands, as long as nothing was seen of it.
    pub(crate) standing: &'a Standing,
    pub(crate) limits: &'a LimitsInForce,
    pub(crate) takes: &'a [Take],
    /// See [`zae_limiter_store::MemberTake::absent`].
    pub(crate) absent: &'a [LimitName],
    /// `None` for looking only: never sent.
    pub(crate) nonce: Option<&'a Nonce>,
    /// See [`crate::constants::FAST_GRACE_MS`].
    pub(crate) grace_ms: i64,
    /// What the write counts of the hidden limit.
    pub(crate) cost: Cost,
    /// See [`Asked::is_spared`].
    pub(crate) is_spared: bool,
}

impl<'a> Debit<'a> {
    /// What is asked, for looking only.
    pub(crate) fn of(asked: &'a Asked<'_>) -> Debit<'a> {
        let Asked { member, key, standing, .. } = asked;
        Debit {
            key,
            standing,
            limits: member.limits,
            takes: member.takes,
            absent: member.absent,
            nonce: None,
            grace_ms: 0,
            cost: Cost::ONE,
            is_spared: asked.is_spared,
        }
    }

    /// The next write, chosen from what is known, without another read.
    pub(crate) fn plan(&self, view: View<'_>, now: TimeMs) -> Result<Step, StoreError> {
        let Known { image, is_trusted, may_sync, is_crowded, is_outdated, judged_at } = match view {
            View::Unknown => return Ok(Step::Take(self.fast(None, false, now))),
            // Only shard 0 is ever made by a take.
            View::Absent if self.standing.shard > 0 => return Ok(Step::Create),
            View::Absent if self.is_spared => return Ok(Step::Nothing),
            View::Absent => {
                let fits = self.wanted().all(|(limit, amount)| amount <= limit.params().full());
                return Ok(if fits { Step::Create } else { Step::Refuse });
            }
            View::Known(known) => known,
        };
        image.check_supported(&self.key.pk)?;
        if image.flag.blocks() {
            return Ok(if is_trusted {
                Step::Blocked(image.flag)
            } else {
                self.probed(image, may_sync, is_outdated, now)
            });
        }
        if !image.carries(&self.limits.limits) || image.mark.is_some() {
            return self.synced(image, may_sync, now);
        }
        if self.is_spared {
            return Ok(Step::Nothing);
        }
        if self.is_short(image, judged_at) {
            return Ok(if is_trusted {
                Step::Refuse
            } else {
                self.probed(image, may_sync, is_outdated, now)
            });
        }
        if image.room_at(now) < WCU_NEEDED_MILLI && is_trusted {
            return Ok(Step::Contended);
        }
        if !self.is_settled(image) && !may_sync {
            // A name that the bucket has and the caller does not know is either gone or new; a
            // caller with an old configuration cannot tell which.
            return Ok(Step::Reread);
        }
        let is_fast =
            is_outdated || self.fits_fast(image, now) && !(is_crowded && self.is_due(image, now));
        if self.is_settled(image) && is_fast {
            return Ok(Step::Take(self.fast(Some(image), is_outdated, now)));
        }
        Ok(Step::Take(self.refilled(image, now)?))
    }

    /// An old image refuses: the write itself asks again. The write may land, so the caller must
    /// know the limits of the bucket.
    fn probed(&self, image: &Image, may_sync: bool, is_outdated: bool, now: TimeMs) -> Step {
        if may_sync || self.is_settled(image) {
            Step::Take(self.fast(Some(image), is_outdated, now))
        } else {
            Step::Reread
        }
    }

    /// Whether [`plan`](Debit::plan) would refuse on this image, were it recent. Builds no write:
    /// every take asks.
    pub(crate) fn is_refused_by(&self, image: &Image, now: TimeMs) -> bool {
        let is_plain = image.unsupported.is_none() && !image.flag.blocks() && image.mark.is_none();
        is_plain && image.carries(&self.limits.limits) && self.is_short(image, now)
    }

    fn is_short(&self, image: &Image, now: TimeMs) -> bool {
        self.short(image, now).next().is_some()
    }

    /// The limits that are short at an instant, with the amounts asked of them.
    pub(crate) fn short(
        &self,
        image: &Image,
        now: TimeMs,
    ) -> impl Iterator<Item = (&'a Limit, Milli)> {
        self.wanted().filter(move |(limit, amount)| {
            image.balance_at(limit.name(), now).is_none_or(|balance| balance < *amount)
        })
    }

    /// The limits asked for, with their amounts.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = (&'a Limit, Milli)> {
        let limits = &self.limits.limits;
        self.takes.iter().map(move |take| (&limits[usize::from(take.limit)], take.amount))
    }

    /// The same as shards are asked for them.
    pub(crate) fn asked(&self) -> Wanted<'a> {
        self.wanted().map(|(limit, amount)| (limit.name(), limit.params(), amount)).collect()
    }

    /// A refill that also brings the parameters up to date; it takes only if the amounts pass.
    fn synced(&self, image: &Image, may_sync: bool, now: TimeMs) -> Result<Step, StoreError> {
        let carries = image.carries(&self.limits.limits);
        if image.mark.is_some() && !carries {
            // Somebody has changed the parameters and left no stamp: note that first, then compare.
            let noted = Refill { target: None, ..self.sync(image, now) };
            return Ok(Step::Prepare(noted.build()?));
        }
        let is_settled = carries && self.is_settled(image);
        if !may_sync && !is_settled {
            return Ok(Step::Reread);
        }
        let passes = !self.is_spared
            && self.wanted().all(|(limit, amount)| {
                let first_seen = || image.first_seen(limit, now);
                let balance = image.balance_at(limit.name(), now).unwrap_or_else(first_seen);
                balance.min(image.effective(limit.name(), limit.params()).full()) >= amount
            });
        Ok(if passes {
            Step::Take(self.refill(image, &self.amounts(), now).build()?)
        } else {
            Step::Prepare(self.sync(image, now).build()?)
        })
    }

    /// Brings the bucket up to date and takes nothing. It has no nonce: landing twice changes
    /// nothing, and the take that may follow needs its own.
    fn sync<'r>(&'r self, image: &'r Image, now: TimeMs) -> Refill<'r> {
        Refill {
            purpose: Purpose::SyncOnly,
            nonce: None,
            must_be_absent: MustBeAbsent::default(),
            ..self.refill(image, &[], now)
        }
    }

    fn refill<'r>(
        &'r self,
        image: &'r Image,
        amounts: &'r [Amount<'r>],
        now: TimeMs,
    ) -> Refill<'r> {
        Refill {
            key: self.key,
            purpose: Purpose::Take,
            image,
            target: Some(self.limits),
            amounts,
            loan: None,
            nonce: self.nonce,
            must_be_absent: self.must_be_absent(Some(image)),
            cost: self.cost,
            now,
        }
    }

    /// A refill that takes.
    fn refilled(&self, image: &Image, now: TimeMs) -> Result<BucketWrite, StoreError> {
        let amounts = self.amounts();
        let refill = self.refill(image, &amounts, now);
        match self.is_settled(image).then(|| refill.build_blind(self.grace_ms)).flatten() {
            Some(write) => Ok(write),
            None => refill.build(),
        }
    }

    /// A limit that is asked for and that the caller does not know of must not have come to the
    /// bucket meanwhile: it would not be held to. A limit has parameters; a balance alone is what
    /// another writer left of one.
    fn must_be_absent(&self, image: Option<&Image>) -> MustBeAbsent {
        // Limits given with the call are all that the caller wants to be held to.
        if self.limits.source == LimitSource::Call {
            return MustBeAbsent::default();
        }
        let has = |name: &&LimitName| image.is_some_and(|image| image.limit(name).is_some());
        MustBeAbsent {
            absent: self.absent.iter().filter(|name| !has(name)).cloned().collect(),
            pins_config: self.absent.iter().any(|name| has(&name)),
        }
    }

    fn amounts(&self) -> SmallVec<[Amount<'a>; 2]> {
        self.wanted().map(|(limit, milli)| Amount { limit, milli }).collect()
    }

    /// True when nothing but balances needs to change: names, their being in force, and whether the
    /// bucket expires.
    fn is_settled(&self, image: &Image) -> bool {
        let names =
            self.limits.source == LimitSource::Call || image.is_in_force(&self.limits.limits);
        names && image.expires_as(self.limits)
    }

    fn fits_fast(&self, image: &Image, now: TimeMs) -> bool {
        let is_alive = image.expires_s.is_none_or(|second| second > seconds(now));
        let fits = |(limit, amount): (&Limit, Milli)| {
            image.limit(limit.name()).is_some_and(|found| {
                let ceiling = ceiling(found.effective, image.refilled_at, self.graced(now));
                found.balance >= amount && (amount == Milli::ZERO || found.balance <= ceiling)
            })
        };
        is_alive && image.room_milli >= WCU_NEEDED_MILLI && self.wanted().all(fits)
    }

    /// Whether the bucket is rather full and was refilled longer ago than the grace: FAST would
    /// land for a caller that knows the instant of the refill, and fail for a crowd that does not.
    /// The first caller that knows refills for all.
    fn is_due(&self, image: &Image, now: TimeMs) -> bool {
        let is_old = self.grace_ms > 0 && now.since(image.refilled_at) > self.grace_ms;
        let is_high = |(limit, _): (&Limit, Milli)| {
            let effective = image.effective(limit.name(), limit.params());
            let half = Milli(effective.capacity_milli / 2);
            image.balance_at(limit.name(), now).is_some_and(|balance| balance >= half)
        };
        is_old && self.wanted().all(is_high)
    }

    /// The instant at which FAST looks at the ceiling.
    fn graced(&self, now: TimeMs) -> TimeMs {
        now.plus_ms(self.grace_ms.saturating_neg())
    }

    /// FAST: takes if the balance suffices and nothing has overflowed since a lower bound of the
    /// refill instant.
    ///
    /// Any lower bound is sound by itself: a bucket of 1 000 that regains 1 a millisecond, with a
    /// grace of 100 ms, has not overflowed if it was refilled 400 ms ago and has at most 700, nor
    /// if it was refilled 150 ms ago and has at most 950. So a write whose image is probably
    /// outdated names a second bound: refilled within the grace, and however full.
    fn fast(&self, image: Option<&Image>, is_outdated: bool, now: TimeMs) -> BucketWrite {
        let standing = image.map_or(self.standing, |image| &image.standing);
        let share = |(limit, _): (&Limit, Milli)| standing.effective(limit.name(), limit.params());
        let since = image
            .map_or_else(|| cold_bound(self.wanted().map(share), now), |image| image.refilled_at);
        let later = self.graced(now);
        let or = Some(later).filter(|later| is_outdated && *later > since);
        let line = |(limit, amount): (&Limit, Milli)| {
            let stored = limit.params();
            let effective = standing.effective(limit.name(), stored);
            let ceiling = |since| ceiling(effective, since, later);
            let at_most = (amount > Milli::ZERO)
                .then(|| Ceiling { since: ceiling(since), or: or.map(ceiling) });
            let form = LineForm::Fast {
                stored,
                amount,
                at_least: Some(amount),
                at_most,
                floor_if_expiring: None,
            };
            Line { name: limit.name().clone(), form }
        };
        let must_be_absent = self.must_be_absent(image);
        let pins = Pins {
            refilled_at: RefilledAt::NotBefore { since, or },
            shard_count: Some(standing.count),
            era: standing.era_pin(),
            flag: FlagPin::Enabled,
            mark: Pin::Absent,
            config_read_at: match image {
                Some(image) if must_be_absent.pins_config => image.config_pin(),
                _ => Pin::Any,
            },
            expiry: ExpiryPin::NoneOrAfter(seconds(now)),
            has_room: true,
            loans: LoansPin::Any,
            must_be_absent: must_be_absent.absent,
        };
        let change = Change {
            nonce: self.nonce.cloned(),
            pins,
            lines: self.wanted().map(line).collect(),
            item: ItemChange {
                takes_milli: WCU_PER_WRITE_MILLI,
                ..ItemChange::spending(self.cost)
            },
        };
        BucketWrite::change(self.key.clone(), Purpose::Take, change)
    }
}

/// The largest balance that has not overflowed between two instants.
pub(crate) fn ceiling(effective: LimitParams, since: TimeMs, now: TimeMs) -> Milli {
    effective.full().saturating_sub(Milli(effective.accrual_at_most(now.since(since))))
}

/// The second an instant lies in.
pub(crate) fn seconds(now: TimeMs) -> i64 {
    now.0.div_euclid(1000)
}

/// A lower bound of the refill instant to try without an image: half the time the fastest limit
/// needs to fill.
pub(crate) fn cold_bound(params: impl Iterator<Item = LimitParams>, now: TimeMs) -> TimeMs {
    let shortest = params.map(time_to_fill_ms).min().unwrap_or(0);
    TimeMs(now.0.saturating_sub(shortest / 2))
}
