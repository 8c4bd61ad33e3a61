//! The state of one bucket: all limits of one entity for one resource, and how time and charges change it.

use smallvec::SmallVec;

use crate::gaps::Gaps;
use crate::{ConfigStamp, LIMITS_MAX, Limit, LimitName, Milli, TimeMs, UsageWindow};

/// The three numbers a bucket keeps of a [`Limit`], in the units it computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitParams {
    /// The most the balance can be.
    pub capacity_milli: i64,
    /// What is added in one period.
    pub refill_milli: i64,
    /// The length of that period.
    pub period_ms: i64,
}

impl LimitParams {
    /// What `elapsed_ms` add to a balance together with the `remainder` of the refill before, and the new remainder; without
    /// regard to the capacity. A clock that went back adds nothing.
    #[must_use]
    pub fn accrual(&self, elapsed_ms: i64, remainder: i64) -> (i64, i64) {
        if elapsed_ms <= 0 || self.refill_milli <= 0 || self.period_ms <= 0 {
            return (0, remainder);
        }
        let units = i128::from(elapsed_ms) * i128::from(self.refill_milli) + i128::from(remainder);
        let period = i128::from(self.period_ms);
        let add = i64::try_from(units.div_euclid(period)).unwrap_or(i64::MAX);
        (add, i64::try_from(units.rem_euclid(period)).unwrap_or(0))
    }

    /// The most that `elapsed_ms` can add to a balance, whatever the remainder was: rounded up.
    #[must_use]
    pub fn accrual_at_most(&self, elapsed_ms: i64) -> i64 {
        if elapsed_ms <= 0 || self.refill_milli <= 0 || self.period_ms <= 0 {
            return 0;
        }
        // A remainder is below one whole unit, so one more than the quotient rounded down is enough.
        self.accrual(elapsed_ms, 0).0.saturating_add(1)
    }

    /// How long it takes to gain `amount`, in milliseconds, rounded up.
    #[must_use]
    pub fn time_to_gain_ms(&self, amount: i64) -> i64 {
        if amount <= 0 {
            return 0;
        }
        if self.refill_milli <= 0 {
            return i64::MAX;
        }
        let units = i128::from(amount) * i128::from(self.period_ms);
        let refill = i128::from(self.refill_milli);
        i64::try_from(units.div_euclid(refill) + i128::from(units.rem_euclid(refill) != 0)).unwrap_or(i64::MAX)
    }
}

/// One limit of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// The limit's name.
    pub name: LimitName,
    /// The parameters it refills and is capped by.
    pub params: LimitParams,
    /// What is left; negative is debt.
    pub balance: Milli,
    /// What the last refill could not pay out, in 1/`period_ms` of a millitoken: `0 <= remainder < period_ms`.
    pub remainder: i64,
    /// Net consumption since the bucket exists: takes plus adjustments minus refunds.
    pub consumed: Milli,
    /// `consumed` as it was when the open usage hour began.
    pub hour_base: Milli,
}

impl LimitState {
    /// A limit nobody has used yet: full.
    #[must_use]
    pub fn full(name: LimitName, params: LimitParams) -> LimitState {
        LimitState { name, params, balance: Milli(params.capacity_milli), remainder: 0, consumed: Milli::ZERO, hour_base: Milli::ZERO }
    }

    /// Balance and remainder after `elapsed_ms` more milliseconds.
    pub(crate) fn accrued(&self, elapsed_ms: i64) -> (Milli, i64) {
        let LimitParams { capacity_milli, refill_milli, period_ms } = self.params;
        if self.balance.0 >= capacity_milli {
            return (Milli(capacity_milli), 0);
        }
        // A clock that went back adds nothing; neither do parameters no limit can have (a damaged row must not panic).
        if elapsed_ms <= 0 || refill_milli <= 0 || period_ms <= 0 {
            return (self.balance, self.remainder);
        }
        // The product nearly always fits 64 bits, where division is several times cheaper.
        let product = elapsed_ms.checked_mul(refill_milli).and_then(|units| units.checked_add(self.remainder));
        let (add, remainder) = match product {
            Some(units) => (i128::from(units.div_euclid(period_ms)), units.rem_euclid(period_ms)),
            None => {
                let units = i128::from(elapsed_ms) * i128::from(refill_milli) + i128::from(self.remainder);
                let period = i128::from(period_ms);
                // A remainder is below `period_ms`, so it always fits.
                (units.div_euclid(period), i64::try_from(units.rem_euclid(period)).unwrap_or(0))
            }
        };
        match i64::try_from(i128::from(self.balance.0) + add) {
            Ok(balance) if balance < capacity_milli => (Milli(balance), remainder),
            // Full: what overflows is gone, and so is the fraction.
            _ => (Milli(capacity_milli), 0),
        }
    }

    /// What `elapsed_ms` more milliseconds would add beyond the capacity.
    fn overflow(&self, elapsed_ms: i64) -> Milli {
        let LimitParams { capacity_milli, refill_milli, period_ms } = self.params;
        if elapsed_ms <= 0 || refill_milli <= 0 || period_ms <= 0 {
            return Milli::ZERO;
        }
        let units = i128::from(elapsed_ms) * i128::from(refill_milli) + i128::from(self.remainder);
        let beyond = i128::from(self.balance.0) + units.div_euclid(i128::from(period_ms)) - i128::from(capacity_milli);
        Milli(i64::try_from(beyond.max(0)).unwrap_or(i64::MAX))
    }

    /// What the balance lacks to be full.
    fn lack(&self) -> i128 {
        i128::from(self.params.capacity_milli) - i128::from(self.balance.0)
    }
}

/// Limits a bucket may carry together with full retired ones whose usage hour is still open.
const KEPT_MAX: usize = 4 * LIMITS_MAX;

/// A bucket would carry more limits than it may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a bucket carries at most {LIMITS_MAX} limits, retired ones that are not yet full included; this change would make it {count}")]
pub struct TooManyLimits {
    /// How many it would have been.
    pub count: usize,
}

/// The usage of an hour that is over, to be added to the usage history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedHour {
    /// Start of the hour.
    pub start: TimeMs,
    /// Net consumption in that hour per limit; limits without any are left out.
    pub used: Vec<(LimitName, Milli)>,
    /// Number of grants in that hour.
    pub events: u32,
}

/// All limits of one entity for one resource. They share one refill instant, so whoever moves it credits every limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketState {
    /// When the balances were last brought up to date. Never moves backwards.
    pub refilled_at: TimeMs,
    /// Freshness of the configuration that justified the parameters.
    pub stamp: ConfigStamp,
    /// From when on the bucket may be forgotten, provided it is full. The end of time means never: an `Option` would take
    /// twice the room in every bucket.
    expires_at: TimeMs,
    /// The open usage hour, in hours since the epoch.
    pub hour: u32,
    /// Grants in the open usage hour.
    pub events: u32,
    /// True while an administrator has switched the entity or resource off.
    pub disabled: bool,
    /// How many of `limits` are in force; the ones behind are retired.
    active: u8,
    /// Limits in force first, in the order of the configuration, then retired ones: no longer configured, refilled but
    /// unchecked, kept until full so that dropping and re-adding a limit mints nothing.
    limits: SmallVec<[LimitState; 2]>,
    /// What lowered limits hide.
    gaps: Gaps,
}

impl BucketState {
    /// A new bucket: every limit full.
    #[must_use]
    pub fn full(limits: &[Limit], stamp: ConfigStamp, now: TimeMs) -> BucketState {
        let states: SmallVec<_> = limits.iter().map(|limit| LimitState::full(limit.name().clone(), limit.params())).collect();
        BucketState {
            refilled_at: now,
            stamp,
            expires_at: NEVER,
            hour: hour_of(now),
            events: 0,
            disabled: false,
            active: u8::try_from(states.len()).unwrap_or(u8::MAX),
            limits: states,
            gaps: Gaps::default(),
        }
    }

    /// A bucket read back from storage; `active` is how many of `limits` are in force. A balance above its capacity is cut,
    /// and a remainder no refill could have left is dropped: a damaged row grants nothing.
    #[must_use]
    pub fn restore(mut limits: SmallVec<[LimitState; 2]>, active: usize, refilled_at: TimeMs, stamp: ConfigStamp) -> BucketState {
        for limit in &mut limits {
            let LimitParams { capacity_milli, period_ms, .. } = limit.params;
            limit.balance = limit.balance.min(Milli(capacity_milli));
            if limit.balance.0 >= capacity_milli || !(0..period_ms).contains(&limit.remainder) {
                limit.remainder = 0;
            }
        }
        let active = u8::try_from(active.min(limits.len())).unwrap_or(u8::MAX);
        BucketState { refilled_at, stamp, expires_at: NEVER, hour: 0, events: 0, disabled: false, active, limits, gaps: Gaps::default() }
    }

    /// What the limit would still lack if its capacity had never been lowered, beyond what its balance shows. A limit that
    /// is full with a gap is not forgotten: it would come back larger than it was.
    #[must_use]
    pub fn gap(&self, limit: &LimitName) -> Milli {
        self.gaps.of(limit)
    }

    /// Puts back a gap read from storage.
    pub fn restore_gap(&mut self, limit: &LimitName, gap: Milli) {
        self.gaps.set(limit, gap);
    }

    /// From when on the bucket may be forgotten, provided it is full; `None` means never.
    #[must_use]
    pub fn expires_at(&self) -> Option<TimeMs> {
        (self.expires_at != NEVER).then_some(self.expires_at)
    }

    /// Sets from when on the bucket may be forgotten.
    pub fn set_expires_at(&mut self, expires_at: Option<TimeMs>) {
        self.expires_at = expires_at.unwrap_or(NEVER);
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
            && self.limits().iter().zip(limits).all(|(state, limit)| state.params == limit.params() && state.name == *limit.name())
    }

    /// Brings every limit, retired ones too, up to `now`. A clock that went back changes nothing.
    pub fn refill(&mut self, now: TimeMs) {
        let elapsed_ms = now.since(self.refilled_at);
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
        self.refilled_at = now;
    }

    /// Makes `limits` the limits in force: refill to `now` at the old rate, cut each balance to the smaller of the old and
    /// the new capacity, keep what is no longer configured as retired. Mints nothing: a limit never seen before starts
    /// full, one that was here before goes on from its balance. An error leaves the bucket as it was, refilled to `now`.
    pub fn sync(&mut self, limits: &[Limit], stamp: ConfigStamp, now: TimeMs) -> Result<(), TooManyLimits> {
        self.refill(now);
        let configured = |state: &LimitState| limits.iter().any(|limit| state.name == *limit.name());
        let retired = || self.limits.iter().filter(|state| !configured(state));
        let count = limits.len() + retired().filter(|state| !self.is_whole(state)).count();
        // Full ones are only here until their usage hour closes, so they take no other limit's place, within reason.
        let kept = limits.len() + retired().filter(|state| !self.is_forgettable(state)).count();
        if count > LIMITS_MAX || kept > KEPT_MAX {
            return Err(TooManyLimits { count });
        }
        let mut old = std::mem::take(&mut self.limits);
        let mut states: SmallVec<[LimitState; 2]> = SmallVec::with_capacity(limits.len().max(old.len()));
        for limit in limits {
            match old.iter().position(|state| state.name == *limit.name()) {
                Some(index) => {
                    let before = old.remove(index);
                    let lacked = before.lack();
                    let after = reparametrised(before, limit.params());
                    // Lowered, the balance lacks less than it did; what it hides is remembered. Raised, it shows again.
                    let hidden = i128::from(self.gaps.of(&after.name).0) + lacked - after.lack();
                    self.gaps.set(&after.name, Milli(i64::try_from(hidden.max(0)).unwrap_or(i64::MAX)));
                    states.push(after);
                }
                None => states.push(LimitState::full(limit.name().clone(), limit.params())),
            }
        }
        states.extend(old.into_iter().filter(|retired| !self.is_forgettable(retired)));
        self.limits = states;
        self.active = u8::try_from(limits.len()).unwrap_or(u8::MAX);
        self.stamp = self.stamp.max(stamp);
        Ok(())
    }

    /// Takes what a decision granted. `amounts` are (index, amount) pairs; the balance was checked before.
    pub(crate) fn take(&mut self, amounts: impl Iterator<Item = (usize, Milli)>, now: TimeMs) -> Option<ClosedHour> {
        let closed = self.roll_hour(now);
        self.refill(now);
        self.forget_full_retired();
        for (index, amount) in amounts {
            let limit = &mut self.limits[index];
            limit.balance = limit.balance.saturating_sub(amount);
            limit.consumed = limit.consumed.saturating_add(amount);
        }
        self.events = self.events.saturating_add(1);
        closed
    }

    /// Charges (positive) or gives back (negative) after the fact. A charge may lead into debt; a credit never lifts a
    /// balance above capacity. A limit the bucket has forgotten was full when it was: a charge brings it back from
    /// `receipt` as retired (even beyond [`LIMITS_MAX`]: a charge is never refused), a credit to it has nothing left to do.
    pub fn adjust(&mut self, receipt: &Limit, delta: Milli, now: TimeMs) -> Option<ClosedHour> {
        let closed = self.roll_hour(now);
        self.refill(now);
        let index = self.limits.iter().position(|state| state.name == *receipt.name());
        let limit = match index {
            Some(index) => &mut self.limits[index],
            None if delta.0 <= 0 => return closed,
            None => {
                self.limits.push(LimitState::full(receipt.name().clone(), receipt.params()));
                let last = self.limits.len() - 1;
                &mut self.limits[last]
            }
        };
        let balance = limit.balance.saturating_sub(delta);
        limit.consumed = limit.consumed.saturating_add(delta);
        let capacity = Milli(limit.params.capacity_milli);
        if balance >= capacity {
            (limit.balance, limit.remainder) = (capacity, 0);
            // What does not fit was lent by the capacity there used to be.
            self.gaps.repay(receipt.name(), balance.saturating_sub(capacity));
        } else {
            limit.balance = balance;
        }
        closed
    }

    /// Fills the named limits, or all of them, whatever they owe. Returns what each one gained.
    pub fn reset(&mut self, only: Option<&[LimitName]>, now: TimeMs) -> Vec<(LimitName, Milli)> {
        self.refill(now);
        let mut restored = Vec::new();
        for limit in &mut self.limits {
            if only.is_none_or(|names| names.contains(&limit.name)) {
                let capacity = Milli(limit.params.capacity_milli);
                restored.push((limit.name.clone(), capacity.saturating_sub(limit.balance)));
                (limit.balance, limit.remainder) = (capacity, 0);
            }
        }
        restored
    }

    /// Closes the open usage hour if `now` lies in a later one, and returns its usage for the history. A clock that went
    /// back keeps counting in the open hour.
    pub fn roll_hour(&mut self, now: TimeMs) -> Option<ClosedHour> {
        let hour = hour_of(now);
        if hour <= self.hour {
            return None;
        }
        let closed = self.open_hour();
        for limit in &mut self.limits {
            limit.hour_base = limit.consumed;
        }
        self.hour = hour;
        self.events = 0;
        (!closed.used.is_empty() || closed.events > 0).then_some(closed)
    }

    /// The usage of the open hour so far.
    #[must_use]
    pub fn open_hour(&self) -> ClosedHour {
        let used = self
            .limits
            .iter()
            .map(|limit| (limit.name.clone(), limit.consumed.saturating_sub(limit.hour_base)))
            .filter(|(_, used)| *used != Milli::ZERO)
            .collect();
        ClosedHour { start: TimeMs(i64::from(self.hour) * HOUR_MS), used, events: self.events }
    }

    /// True when every limit, retired ones too, is full at `now`: only then may the bucket be forgotten.
    #[must_use]
    pub fn is_full_at(&self, now: TimeMs) -> bool {
        let elapsed_ms = now.since(self.refilled_at);
        let is_whole = |limit: &LimitState| {
            limit.accrued(elapsed_ms).0.0 >= limit.params.capacity_milli && limit.overflow(elapsed_ms) >= self.gaps.of(&limit.name)
        };
        self.limits.iter().all(is_whole)
    }

    /// True when the bucket has been idle past its expiry and is full: forgetting it changes no decision. Its
    /// [`BucketState::open_hour`] still has to go to the history.
    #[must_use]
    pub fn is_expired_at(&self, now: TimeMs) -> bool {
        self.expires_at <= now && self.expires_at != NEVER && self.is_full_at(now)
    }

    /// True when some limit owes tokens at `now`.
    #[must_use]
    pub fn in_debt_at(&self, now: TimeMs) -> bool {
        let elapsed_ms = now.since(self.refilled_at);
        self.limits.iter().any(|limit| limit.accrued(elapsed_ms).0.is_negative())
    }

    fn forget_full_retired(&mut self) {
        if self.limits.len() > self.active() {
            let limits = std::mem::take(&mut self.limits);
            let active = self.active();
            let kept = limits.into_iter().enumerate().filter(|(index, limit)| *index < active || !self.is_forgettable(limit));
            self.limits = kept.map(|(_, limit)| limit).collect();
        }
    }

    /// Full, and nothing hidden: forgetting it and starting it anew is the same.
    fn is_whole(&self, limit: &LimitState) -> bool {
        limit.lack() <= 0 && self.gaps.of(&limit.name) == Milli::ZERO
    }

    /// A retired limit may go once re-adding it would start where it is, and its usage is in the history.
    fn is_forgettable(&self, limit: &LimitState) -> bool {
        self.is_whole(limit) && limit.consumed == limit.hour_base
    }
}

/// The expiry of a bucket that is kept for ever.
const NEVER: TimeMs = TimeMs(i64::MAX);

const HOUR_MS: i64 = 3_600_000;

fn hour_of(now: TimeMs) -> u32 {
    let start = UsageWindow::Hourly.start_of(now);
    u32::try_from(start.0.div_euclid(HOUR_MS)).unwrap_or(if start.0 < 0 { 0 } else { u32::MAX })
}

fn reparametrised(mut state: LimitState, params: LimitParams) -> LimitState {
    // A balance is never above its old capacity, so this is the smaller of both.
    state.balance = state.balance.min(Milli(params.capacity_milli));
    // The remainder counts in units of the old rate; under another rate it means something else.
    if (state.params.refill_milli, state.params.period_ms) != (params.refill_milli, params.period_ms)
        || state.balance.0 >= params.capacity_milli
    {
        state.remainder = 0;
    }
    state.params = params;
    state
}
