//! Which write takes from a bucket, given what is known of it. Pure: no clock, no table.
//!
//! A debit has one of three forms, each exact for whatever balance it meets. FAST takes and leaves
//! the refill instant alone; it is allowed only while nothing has overflowed, or the overflow would
//! be credited once more later. A refill moves the instant and credits every limit of the item,
//! each one by ADD (still below its capacity) or FILL (full).

use smallvec::SmallVec;
use zae_limiter_core::{Limit, LimitName, LimitSource, Take};
use zae_limiter_store::{LimitsInForce, StoreError};

use crate::constants::{WCU_NEEDED_MILLI, WCU_PER_WRITE_MILLI};
use crate::image::{Image, attr, limit_attr};
use crate::refill::{self, Amount, Refill, wcu_after};
use crate::table::{Action, Comparison, Condition, Key, Update, compare, text};
use crate::take::Asked;
use crate::write::{BucketWrite, Writer};

/// What is known of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View<'a> {
    /// Nothing.
    Unknown,
    /// It is not there.
    Absent,
    /// It was like this.
    Known {
        image: &'a Image,
        /// Recent enough to refuse on.
        is_recent: bool,
        /// The caller's limits are proven to be as new as the bucket's parameters.
        may_sync: bool,
        /// Others write the bucket all the time.
        is_crowded: bool,
        /// They have probably done so since.
        is_outdated: bool,
        /// The instant a shortage is judged by; not before the operation began.
        judged_at: i64,
    },
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Send this; when it lands the amounts are taken.
    Take(BucketWrite),
    /// Send this, which takes nothing, and look again.
    Prepare(BucketWrite),
    /// Make the bucket, taking the amounts; the item is built by whoever knows its owner.
    Create,
    /// A limit is short.
    Refuse,
    /// The bucket is switched off.
    Disabled,
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
    pub(crate) limits: &'a LimitsInForce,
    pub(crate) takes: &'a [Take],
    /// See [`zae_limiter_store::MemberTake::absent`].
    pub(crate) absent: &'a [LimitName],
    pub(crate) nonce: &'a str,
    /// See [`crate::constants::FAST_GRACE_MS`].
    pub(crate) grace_ms: i64,
    /// What the write counts in `wcu`.
    pub(crate) units_milli: i64,
    /// See [`Asked::is_spared`].
    pub(crate) is_spared: bool,
}

impl<'a> Debit<'a> {
    /// What is asked, for looking only: without a nonce it is never sent.
    pub(crate) fn of(asked: &'a Asked<'_>) -> Debit<'a> {
        let Asked { member, key, .. } = asked;
        Debit {
            key,
            limits: member.limits,
            takes: member.takes,
            absent: member.absent,
            nonce: "",
            grace_ms: 0,
            units_milli: WCU_PER_WRITE_MILLI,
            is_spared: asked.is_spared,
        }
    }

    /// The next write, chosen from what is known, without another read.
    pub(crate) fn plan(&self, view: View<'_>, now: i64) -> Result<Step, StoreError> {
        let (image, is_recent, may_sync, is_crowded, is_outdated, judged_at) = match view {
            View::Unknown => return Ok(Step::Take(self.fast(None, false, now))),
            View::Absent if self.is_spared => return Ok(Step::Nothing),
            View::Absent => {
                let fits =
                    self.asked().all(|(limit, amount)| amount <= limit.params().capacity_milli);
                return Ok(if fits { Step::Create } else { Step::Refuse });
            }
            View::Known { image, is_recent, may_sync, is_crowded, is_outdated, judged_at } => {
                (image, is_recent, may_sync, is_crowded, is_outdated, judged_at)
            }
        };
        image.check_supported(&self.key.pk)?;
        if image.disabled {
            return Ok(if is_recent {
                Step::Disabled
            } else {
                self.probed(image, may_sync, is_outdated, now)
            });
        }
        if !image.carries(&self.limits.limits) || image.vu.is_some() {
            return self.synced(image, may_sync, now);
        }
        if self.is_spared {
            return Ok(Step::Nothing);
        }
        if self.is_short(image, judged_at) {
            return Ok(if is_recent {
                Step::Refuse
            } else {
                self.probed(image, may_sync, is_outdated, now)
            });
        }
        if wcu_after(image, now) < WCU_NEEDED_MILLI && is_recent {
            return Ok(Step::Contended);
        }
        if !self.is_settled(image) && !may_sync {
            // Whether a name the bucket has and the caller does not know of is gone or new: an old
            // reader must not say.
            return Ok(Step::Reread);
        }
        let is_fast =
            is_outdated || self.fits_fast(image, now) && !(is_crowded && self.is_due(image, now));
        if self.is_settled(image) && is_fast {
            return Ok(Step::Take(self.fast(Some(image), is_outdated, now)));
        }
        Ok(Step::Take(self.refill(image, now)?))
    }

    /// An old image says no: the write itself asks again. It may well land, so the caller must know
    /// the limits of the bucket.
    fn probed(&self, image: &Image, may_sync: bool, is_outdated: bool, now: i64) -> Step {
        if may_sync || self.is_settled(image) {
            Step::Take(self.fast(Some(image), is_outdated, now))
        } else {
            Step::Reread
        }
    }

    /// Whether [`plan`](Debit::plan) would refuse on this image, were it recent. Builds no write:
    /// every take asks.
    pub(crate) fn is_refused_by(&self, image: &Image, now: i64) -> bool {
        let is_plain = image.unsupported.is_none() && !image.disabled && image.vu.is_none();
        is_plain && image.carries(&self.limits.limits) && self.is_short(image, now)
    }

    fn is_short(&self, image: &Image, now: i64) -> bool {
        self.short(image, now).next().is_some()
    }

    /// The limits that are short at an instant, with the amounts asked of them.
    pub(crate) fn short(&self, image: &Image, now: i64) -> impl Iterator<Item = (&'a Limit, i64)> {
        self.asked().filter(move |(limit, amount)| {
            refill::balance_at(image, limit.name(), now).is_none_or(|balance| balance < *amount)
        })
    }

    /// The limits asked for, with their amounts in millitokens.
    pub(crate) fn asked(&self) -> impl Iterator<Item = (&'a Limit, i64)> {
        let limits = &self.limits.limits;
        self.takes.iter().map(move |take| (&limits[usize::from(take.limit)], take.amount.0))
    }

    /// A refill that also brings the parameters up to date; it takes only if the amounts pass.
    fn synced(&self, image: &Image, may_sync: bool, now: i64) -> Result<Step, StoreError> {
        let is_settled = image.carries(&self.limits.limits) && self.is_settled(image);
        if image.vu.is_some() && !image.carries(&self.limits.limits) {
            // Somebody has changed the parameters and left no stamp: note that first, then compare.
            let refill = Refill {
                key: self.key,
                image,
                target: None,
                amounts: &[],
                nonce: None,
                has_floor: true,
                clears_mark: true,
                units_milli: self.units_milli,
                now,
            };
            return Ok(Step::Prepare(BucketWrite::update(Writer::SyncOnly, refill.build()?)));
        }
        if !may_sync && !is_settled {
            return Ok(Step::Reread);
        }
        let passes = !self.is_spared
            && self.asked().all(|(limit, amount)| {
                let capacity = limit.params().capacity_milli;
                let first_seen = || refill::first_seen(image, limit, now);
                refill::balance_at(image, limit.name(), now)
                    .unwrap_or_else(first_seen)
                    .min(capacity)
                    >= amount
            });
        let amounts = if passes { self.amounts() } else { SmallVec::new() };
        let refill = Refill {
            key: self.key,
            image,
            target: Some(self.limits),
            amounts: &amounts,
            nonce: passes.then_some(self.nonce),
            has_floor: true,
            clears_mark: true,
            units_milli: self.units_milli,
            now,
        };
        Ok(if passes {
            Step::Take(self.over(image, Writer::Sync, refill.build()?))
        } else {
            Step::Prepare(BucketWrite::update(Writer::SyncOnly, refill.build()?))
        })
    }

    fn refill(&self, image: &Image, now: i64) -> Result<BucketWrite, StoreError> {
        let amounts = self.amounts();
        let refill = Refill {
            key: self.key,
            image,
            target: Some(self.limits),
            amounts: &amounts,
            nonce: Some(self.nonce),
            has_floor: true,
            clears_mark: true,
            units_milli: self.units_milli,
            now,
        };
        if self.is_settled(image) {
            if let Some(update) = refill.build_blind()? {
                return Ok(self.over(image, Writer::BlindFill, update));
            }
            return Ok(self.over(image, Writer::Refill, refill.build()?));
        }
        Ok(self.over(image, Writer::Sync, refill.build()?))
    }

    /// A refill that takes, with what every take pins beside it.
    fn over(&self, image: &Image, writer: Writer, mut update: Update) -> BucketWrite {
        self.pin_absent(Some(image), &mut update.conditions);
        BucketWrite::update(writer, update)
    }

    /// A limit that is asked for and that the caller does not know of must not have come to the
    /// bucket meanwhile: it would not be held to. A limit has parameters; a balance alone is what
    /// another writer left of one. One that is retired comes back by a change of parameters, which
    /// moves `ca`.
    fn pin_absent(&self, image: Option<&Image>, conditions: &mut Vec<Condition>) {
        // Limits given with the call are all that the caller wants to be held to.
        if self.limits.source == LimitSource::Call {
            return;
        }
        let has = |name: &&LimitName| image.is_some_and(|image| image.limit(name).is_some());
        conditions.extend(
            self.absent
                .iter()
                .filter(|name| !has(name))
                .map(|name| Condition::Absent(limit_attr(name, "cp"))),
        );
        if let Some(image) = image.filter(|_| self.absent.iter().any(|name| has(&name))) {
            conditions.push(refill::pin_stamp(image));
        }
    }

    fn amounts(&self) -> SmallVec<[Amount<'a>; 2]> {
        self.asked().map(|(limit, milli)| Amount { limit, milli }).collect()
    }

    /// True when nothing but balances needs to change: names, their being in force, and whether the
    /// bucket expires.
    fn is_settled(&self, image: &Image) -> bool {
        let names =
            self.limits.source == LimitSource::Call || image.is_in_force(&self.limits.limits);
        names && image.ttl.is_some() == self.limits.ttl_ms.is_some()
    }

    fn fits_fast(&self, image: &Image, now: i64) -> bool {
        let is_alive = image.ttl.is_none_or(|ttl| ttl > now.div_euclid(1000));
        let fits = |(limit, amount): (&Limit, i64)| {
            image.limit(limit.name()).is_some_and(|found| {
                found.tk >= amount
                    && (amount == 0 || found.tk <= self.ceiling(limit, image.rf, now))
            })
        };
        is_alive && image.wcu_tk >= WCU_NEEDED_MILLI && self.asked().all(fits)
    }

    /// Whether the bucket is rather full and was refilled longer ago than the grace: FAST would
    /// land for who knows the instant of the refill, and fail for a crowd that does not. The first
    /// to know refills for all.
    fn is_due(&self, image: &Image, now: i64) -> bool {
        let is_old = self.grace_ms > 0 && now.saturating_sub(image.rf) > self.grace_ms;
        let is_high = |(limit, _): (&Limit, i64)| {
            refill::balance_at(image, limit.name(), now)
                .is_some_and(|balance| balance >= limit.params().capacity_milli / 2)
        };
        is_old && self.asked().all(is_high)
    }

    /// The largest balance that has not overflowed since `since`.
    fn ceiling(&self, limit: &Limit, since: i64, now: i64) -> i64 {
        let params = limit.params();
        params.capacity_milli.saturating_sub(
            params.accrual_at_most(now.saturating_sub(self.grace_ms).saturating_sub(since)),
        )
    }

    /// Nothing has overflowed, if the bucket was refilled no earlier than `since`.
    fn unspilt(&self, since: i64, now: i64) -> impl Iterator<Item = Condition> {
        let debited = self.asked().filter(|(_, amount)| *amount > 0);
        let low = debited.map(move |(limit, _)| {
            compare(limit_attr(limit.name(), "tk"), Comparison::Le, self.ceiling(limit, since, now))
        });
        low.chain(std::iter::once(compare(attr::RF, Comparison::Ge, since)))
    }

    /// Without an image, a bucket that was refilled at least this recently is taken from at once.
    fn cold_bound(&self, now: i64) -> i64 {
        refill::cold_bound(self.asked().map(|(limit, _)| limit.params()), now)
    }

    /// FAST: takes if the balance suffices and nothing has overflowed since a lower bound of the
    /// refill instant.
    ///
    /// Any lower bound is sound by itself: a bucket of 1 000 that regains 1 a millisecond, with a
    /// grace of 100 ms, has not overflowed if it was refilled 400 ms ago and has at most 700, nor
    /// if it was refilled 150 ms ago and has at most 950. So a write whose image is probably
    /// outdated names a second bound: refilled within the grace, and however full.
    fn fast(&self, image: Option<&Image>, is_outdated: bool, now: i64) -> BucketWrite {
        let (since, shard_count) =
            image.map_or_else(|| (self.cold_bound(now), 1), |image| (image.rf, image.shard_count));
        let mut actions = Vec::with_capacity(2 * self.takes.len() + 3);
        let mut conditions = Vec::with_capacity(5 * self.takes.len() + 8);
        conditions.push(Condition::Exists(attr::PK.into()));
        for (limit, amount) in self.asked() {
            let name: &LimitName = limit.name();
            let tk = limit_attr(name, "tk");
            refill::pin_parameters(name, limit.params(), &mut conditions);
            conditions.push(compare(tk.clone(), Comparison::Ge, amount));
            if amount > 0 {
                actions.push(Action::Add(tk, -amount));
                actions.push(Action::Add(limit_attr(name, "tc"), amount));
            }
        }
        let later = now.saturating_sub(self.grace_ms);
        if is_outdated && later > since {
            let bounds =
                [since, later].map(|bound| Condition::All(self.unspilt(bound, now).collect()));
            conditions.push(Condition::Any(bounds.into()));
        } else {
            conditions.extend(self.unspilt(since, now));
        }
        conditions.push(compare(attr::SHARD_COUNT, Comparison::Eq, shard_count));
        conditions.push(Condition::Absent(attr::DISABLED.into()));
        conditions.push(Condition::Absent(attr::VU.into()));
        conditions.push(Condition::Any(vec![
            Condition::Absent(attr::TTL.into()),
            compare(attr::TTL, Comparison::Gt, now.div_euclid(1000)),
        ]));
        conditions.push(compare(attr::WCU_TK, Comparison::Ge, WCU_NEEDED_MILLI));
        conditions.push(refill::not_ours_yet(self.nonce));
        self.pin_absent(image, &mut conditions);
        actions.push(Action::Add(attr::WCU_TK.into(), -self.units_milli));
        actions.push(Action::Add(attr::WCU_TC.into(), self.units_milli));
        actions.push(Action::Set(attr::LW.into(), text(self.nonce)));
        BucketWrite::update(Writer::Fast, Update { key: self.key.clone(), actions, conditions })
    }
}
