//! The state of one bucket: all limits of one entity for one resource, and how time, takes and
//! charges change it.
//!
//! The parts: `accrual` is the arithmetic of time, `limit` one limit, `clock` the time of a bucket,
//! `at_once` the usual take, `sync` changed limits with `gaps` and `fold`, `hours` the usage,
//! `lent` what holders have got ahead of need, `expiry` when it may go.

use smallvec::SmallVec;

mod accrual;
mod at_once;
mod clock;
mod expiry;
mod fold;
mod gaps;
mod hours;
mod lent;
mod limit;
mod moved;
mod sync;

pub use accrual::LimitParams;
pub(crate) use accrual::saturated;
pub use clock::CLOCK_BACK_MAX_MS;
pub use fold::{FOLDED, fold_params, is_fold};
pub use hours::ClosedHour;
pub use lent::LENT_PART;
pub(crate) use lent::{CLOCKS_MS, slot_of};
pub use lent::{LENT_MAX_MS, LENT_SLOT_MS, Lent};
pub use limit::LimitState;
pub use sync::TooManyLimits;

use crate::{ConfigStamp, Flag, Limit, LimitName, Milli, Take, TimeMs};
use expiry::NEVER;
use gaps::Gaps;
use hours::hour_of;

/// A counter cannot hold an amount. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "limit {limit} cannot count that much more: a debt, and the use of one hour, is at most 9223372036854775 tokens; \
     nothing was changed: reset the bucket, or charge it in the next hour"
)]
pub struct CounterFull {
    /// Which limit.
    pub limit: LimitName,
}

/// All limits of one entity for one resource. The limits share one refill instant, so a refill
/// credits all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketState {
    /// The refill instant: up to here the balances are refilled. It goes back only for a clock that
    /// is far behind ([`CLOCK_BACK_MAX_MS`]), and for a reset.
    pub refilled_at: TimeMs,
    /// Freshness of the configuration that the parameters come from.
    pub stamp: ConfigStamp,
    /// From when on the bucket may be forgotten, provided it is full. The end of time means never:
    /// an `Option` would take twice the room in every bucket.
    expires_at: TimeMs,
    /// The open usage hour, in hours since the epoch.
    pub hour: u32,
    /// Grants in the open usage hour.
    pub events: u32,
    /// Whether an administrator has disabled the entity or the resource.
    pub flag: Flag,
    /// How many of `limits` are in force; the ones after them are retired.
    active: u8,
    /// Limits in force first, in the order of the configuration, then retired ones. A retired limit
    /// is no longer configured; it is refilled but not checked, and kept until it is full. Say a
    /// limit of 100 a day is drained, removed and set again: forgotten, it would come back with 100
    /// tokens out of nothing.
    pub(crate) limits: SmallVec<[LimitState; 2]>,
    /// The gaps of lowered limits, the lead of a clock that was ahead, and what holders have got
    /// ahead of need.
    gaps: Gaps,
}

impl BucketState {
    /// A new bucket: every limit full.
    #[must_use]
    pub fn full(limits: &[Limit], stamp: ConfigStamp, now: TimeMs) -> BucketState {
        let states: SmallVec<_> = limits
            .iter()
            .map(|limit| LimitState::full(limit.name().clone(), limit.params()))
            .collect();
        BucketState {
            refilled_at: now,
            stamp,
            expires_at: NEVER,
            hour: hour_of(now),
            events: 0,
            flag: Flag::Enabled,
            active: u8::try_from(states.len()).unwrap_or(u8::MAX),
            limits: states,
            gaps: Gaps::default(),
        }
    }

    /// A bucket read back from storage; `active` is how many of `limits` are in force. A balance
    /// above its capacity is cut, and a remainder no refill could have left is dropped: a damaged
    /// row grants nothing.
    #[must_use]
    pub fn restore(
        mut limits: SmallVec<[LimitState; 2]>,
        active: usize,
        refilled_at: TimeMs,
        stamp: ConfigStamp,
    ) -> BucketState {
        for limit in &mut limits {
            let LimitParams { capacity_milli, period_ms, .. } = limit.params;
            limit.balance = limit.balance.min(Milli(capacity_milli));
            if limit.balance.0 >= capacity_milli || !(0..period_ms).contains(&limit.remainder) {
                limit.remainder = 0;
            }
        }
        let active = u8::try_from(active.min(limits.len())).unwrap_or(u8::MAX);
        BucketState {
            refilled_at,
            stamp,
            expires_at: NEVER,
            hour: 0,
            events: 0,
            flag: Flag::Enabled,
            active,
            limits,
            gaps: Gaps::default(),
        }
    }

    /// The amount that the limit would lack at its old capacity beyond what its balance lacks now,
    /// since its capacity was lowered. A full limit with a gap is not forgotten: at its old
    /// capacity it would come back with more than it had.
    #[must_use]
    pub fn gap(&self, limit: &LimitName) -> Milli {
        self.gaps.of(limit)
    }

    /// Puts back a gap read from storage.
    pub fn restore_gap(&mut self, limit: &LimitName, gap: Milli) {
        self.gaps.set(limit, gap);
    }

    /// Every limit, retired ones last.
    #[must_use]
    pub fn all_limits(&self) -> &[LimitState] {
        &self.limits
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &[LimitState] {
        &self.limits[..usize::from(self.active)]
    }

    /// How many limits are in force.
    #[must_use]
    pub fn active(&self) -> usize {
        usize::from(self.active)
    }

    /// True when the limits in force are exactly `limits`, in that order.
    #[must_use]
    pub fn matches(&self, limits: &[Limit]) -> bool {
        self.active() == limits.len()
            && self
                .limits()
                .iter()
                .zip(limits)
                .all(|(state, limit)| state.params == limit.params() && state.name == *limit.name())
    }

    /// Brings every limit, retired ones too, up to `now`. A clock that went back a little changes
    /// nothing; one that went back further adds nothing, and the bucket goes on by it.
    pub fn refill(&mut self, now: TimeMs) {
        if self.is_far_ahead_of(now) {
            self.go_back_to(now);
            return;
        }
        let own = self.own_time(now);
        let elapsed_ms = own.since(self.refilled_at);
        if elapsed_ms <= 0 {
            return;
        }
        if !self.gaps.is_empty() {
            for limit in &self.limits {
                self.gaps.repay(&limit.name, limit.overflow(elapsed_ms));
            }
        }
        for limit in &mut self.limits {
            (limit.balance, limit.remainder) = limit.accrued(elapsed_ms);
        }
        self.gaps.set_lead(self.lead_ms(), own != now);
        self.refilled_at = own;
        self.gaps.forget_ended_loans(own);
    }

    /// Takes what [`assess`](crate::assess) has found to be there at `now`, without looking again.
    /// [`decide`](crate::decide) does both for buckets that can be lent all at once.
    pub fn take(&mut self, takes: &[Take], now: TimeMs) -> Option<ClosedHour> {
        let closed = self.roll_hour(now);
        self.refill(now);
        self.forget_full_retired();
        for take in takes {
            let limit = &mut self.limits[usize::from(take.limit)];
            limit.balance = limit.balance.saturating_sub(take.amount);
            let counted = limit.count(take.amount);
            debug_assert!(counted, "the decision refuses what an hour cannot count");
        }
        self.events = self.events.saturating_add(1);
        closed
    }

    /// Whether [`BucketState::adjust`] can count `delta`. A caller asks for every change of a
    /// bucket before it makes the first; an adjustment that was not checked may change a balance
    /// that no usage accounts for.
    pub fn check_adjust(
        &self,
        receipt: &Limit,
        delta: Milli,
        now: TimeMs,
    ) -> Result<(), CounterFull> {
        let Some(limit) = self.limits.iter().find(|state| state.name == *receipt.name()) else {
            return Ok(());
        };
        let (balance, _) = limit.accrued(now.since(self.refilled_at));
        let used = if hour_of(now) > self.hour { 0 } else { limit.used_in_hour() };
        let is_held = |number: i128| i64::try_from(number).is_ok();
        let left = i128::from(balance.0) - i128::from(delta.0);
        // A credit beyond the capacity is cut.
        if is_held(used + i128::from(delta.0)) && (is_held(left) || left > 0) {
            return Ok(());
        }
        Err(CounterFull { limit: limit.name.clone() })
    }

    /// Charges (positive) or gives back (negative) after the fact. A charge may lead into debt; a
    /// credit never lifts a balance above capacity. A limit that the bucket has forgotten was
    /// full: a charge brings it back from `receipt` as retired, even beyond [`crate::LIMITS_MAX`],
    /// because a charge is never refused; a credit to it has nothing left to do.
    pub fn adjust(&mut self, receipt: &Limit, delta: Milli, now: TimeMs) -> Option<ClosedHour> {
        let closed = self.roll_hour(now);
        self.refill(now);
        let index = self.limits.iter().position(|state| state.name == *receipt.name());
        let index = match index {
            Some(index) => index,
            None if delta.0 <= 0 => return closed,
            None => {
                let is_folding = self.is_folding();
                self.limits.push(LimitState::first_seen(receipt, is_folding));
                self.limits.len() - 1
            }
        };
        self.limits[index].count(delta);
        if delta.is_negative() {
            self.credit(index, delta);
        } else {
            let limit = &mut self.limits[index];
            limit.balance = limit.balance.saturating_sub(delta);
        }
        closed
    }

    /// Gives back (`delta` is negative): at most to the capacity, and less far while the bucket has
    /// lent.
    pub(crate) fn credit(&mut self, index: usize, delta: Milli) {
        let ceiling = self.credit_ceiling(index);
        let limit = &mut self.limits[index];
        let balance = limit.balance.saturating_sub(delta);
        let capacity = limit.params.full();
        if balance < ceiling {
            limit.balance = balance;
        } else if ceiling < capacity {
            // The refill of a loan may have gone beyond the ceiling; a credit takes nothing.
            limit.balance = limit.balance.max(ceiling);
        } else {
            (limit.balance, limit.remainder) = (capacity, 0);
            // The part that does not fit comes from the larger capacity of before.
            let name = limit.name.clone();
            self.gaps.repay(&name, balance.saturating_sub(capacity));
        }
    }

    /// Fills the named limits, or all of them, whatever they owe. A reset of all limits also sets
    /// the bucket's time to `now`. Returns the amount each limit gained.
    pub fn reset(&mut self, only: Option<&[LimitName]>, now: TimeMs) -> Vec<(LimitName, Milli)> {
        self.refill(now);
        if only.is_none() {
            // Every limit is full, so nothing can be paid twice.
            self.gaps.set_lead(0, false);
            self.refilled_at = now;
            self.gaps.roll_loans(now);
        }
        let mut restored = Vec::new();
        for limit in &mut self.limits {
            if only.is_none_or(|names| names.contains(&limit.name)) {
                let capacity = Milli(limit.params.capacity_milli);
                if !is_fold(&limit.name) {
                    restored.push((limit.name.clone(), capacity.saturating_sub(limit.balance)));
                }
                (limit.balance, limit.remainder) = (capacity, 0);
            }
        }
        restored
    }
}
