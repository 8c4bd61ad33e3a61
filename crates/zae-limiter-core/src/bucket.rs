//! The state of one bucket: all limits of one entity for one resource, and how time and charges
//! change it.

use smallvec::SmallVec;

use crate::fold;
use crate::gaps::Gaps;
use crate::{ConfigStamp, LIMITS_MAX, Limit, LimitName, Milli, Take, TimeMs, UsageWindow, WaitMs};

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
    /// What `elapsed_ms` add to a balance together with the `remainder` of the refill before, and
    /// the new remainder; without regard to the capacity. A clock that went back adds nothing.
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
        // A remainder is below one whole unit, so one more than the quotient rounded down is
        // enough.
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
        i64::try_from(units.div_euclid(refill) + i128::from(units.rem_euclid(refill) != 0))
            .unwrap_or(i64::MAX)
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
    /// What the last refill could not pay out, in 1/`period_ms` of a millitoken:
    /// `0 <= remainder < period_ms`.
    pub remainder: i64,
    /// Net consumption since the bucket exists: takes plus adjustments minus refunds. Before it
    /// would leave the range of a number, after about 9.2 · 10^15 tokens, it starts anew from what
    /// the open usage hour has used.
    pub consumed: Milli,
    /// `consumed` as it was when the open usage hour began.
    pub hour_base: Milli,
}

impl LimitState {
    /// A limit nobody has used yet: full.
    #[must_use]
    pub fn full(name: LimitName, params: LimitParams) -> LimitState {
        LimitState {
            name,
            params,
            balance: Milli(params.capacity_milli),
            remainder: 0,
            consumed: Milli::ZERO,
            hour_base: Milli::ZERO,
        }
    }

    /// A limit the bucket does not know. Empty while some that were folded are not full: it may be
    /// one of them.
    fn first_seen(limit: &Limit, is_folding: bool) -> LimitState {
        let mut state = LimitState::full(limit.name().clone(), limit.params());
        if is_folding {
            state.balance = Milli::ZERO;
        }
        state
    }

    /// Balance and remainder after `elapsed_ms` more milliseconds.
    pub(crate) fn accrued(&self, elapsed_ms: i64) -> (Milli, i64) {
        let LimitParams { capacity_milli, refill_milli, period_ms } = self.params;
        if self.balance.0 >= capacity_milli {
            return (Milli(capacity_milli), 0);
        }
        // A clock that went back adds nothing; neither do parameters no limit can have (a damaged
        // row must not panic).
        if elapsed_ms <= 0 || refill_milli <= 0 || period_ms <= 0 {
            return (self.balance, self.remainder);
        }
        // The product nearly always fits 64 bits, where division is several times cheaper.
        let product = elapsed_ms
            .checked_mul(refill_milli)
            .and_then(|units| units.checked_add(self.remainder));
        let (add, remainder) = match product {
            Some(units) => (i128::from(units.div_euclid(period_ms)), units.rem_euclid(period_ms)),
            None => {
                let units =
                    i128::from(elapsed_ms) * i128::from(refill_milli) + i128::from(self.remainder);
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
        let beyond = i128::from(self.balance.0) + units.div_euclid(i128::from(period_ms))
            - i128::from(capacity_milli);
        Milli(i64::try_from(beyond.max(0)).unwrap_or(i64::MAX))
    }

    /// What the open usage hour has used.
    fn used_in_hour(&self) -> i128 {
        i128::from(self.consumed.0) - i128::from(self.hour_base.0)
    }

    /// Counts what was used or given back. The counter of a bucket that has lived long starts anew;
    /// the usage of the open hour is kept exactly. False, and nothing is counted, when that alone
    /// would not fit.
    fn count(&mut self, delta: Milli) -> bool {
        let Ok(used) = i64::try_from(self.used_in_hour() + i128::from(delta.0)) else {
            return false;
        };
        match self.consumed.0.checked_add(delta.0) {
            Some(consumed) => self.consumed = Milli(consumed),
            None => (self.consumed, self.hour_base) = (Milli(used), Milli::ZERO),
        }
        true
    }

    /// What the balance lacks to be full.
    pub(crate) fn lack(&self) -> i128 {
        i128::from(self.params.capacity_milli) - i128::from(self.balance.0)
    }
}

/// How far behind the time of a bucket a clock may be and still wait until it has caught up. A
/// clock that is further behind shows that one of the two was wrong: the bucket goes on by this
/// one, and what the other has been paid is not paid again.
pub const CLOCK_BACK_MAX_MS: i64 = 60_000;

/// Limits a bucket carries, retired ones included, before retired ones are folded.
const KEPT_MAX: usize = 4 * LIMITS_MAX;

/// Limits a bucket may carry in all: those that cannot be folded included.
const CARRIED_MAX: usize = 15 * LIMITS_MAX;

/// A bucket would carry more limits than it may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limits of this bucket were renamed too often: it would carry {count}, with those that are still in debt or used within \
     this hour; keep to the same names until the hour is over, and reset the bucket if debts are left then"
)]
pub struct TooManyLimits {
    /// How many it would have been.
    pub count: usize,
}

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

/// All limits of one entity for one resource. They share one refill instant, so whoever moves it
/// credits every limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketState {
    /// When the balances were last brought up to date. Goes back only for a clock that is far
    /// behind it ([`CLOCK_BACK_MAX_MS`]), and for a reset.
    pub refilled_at: TimeMs,
    /// Freshness of the configuration that justified the parameters.
    pub stamp: ConfigStamp,
    /// From when on the bucket may be forgotten, provided it is full. The end of time means never:
    /// an `Option` would take twice the room in every bucket.
    expires_at: TimeMs,
    /// The open usage hour, in hours since the epoch.
    pub hour: u32,
    /// Grants in the open usage hour.
    pub events: u32,
    /// True while an administrator has switched the entity or resource off.
    pub disabled: bool,
    /// How many of `limits` are in force; the ones behind are retired.
    active: u8,
    /// Limits in force first, in the order of the configuration, then retired ones: no longer
    /// configured, refilled but unchecked, kept until full so that dropping and re-adding a limit
    /// mints nothing.
    pub(crate) limits: SmallVec<[LimitState; 2]>,
    /// What lowered limits hide, and the lead of a clock that was ahead.
    pub(crate) gaps: Gaps,
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
            disabled: false,
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
            disabled: false,
            active,
            limits,
            gaps: Gaps::default(),
        }
    }

    /// What the limit would still lack if its capacity had never been lowered, beyond what its
    /// balance shows. A limit that is full with a gap is not forgotten: it would come back larger
    /// than it was.
    #[must_use]
    pub fn gap(&self, limit: &LimitName) -> Milli {
        self.gaps.of(limit)
    }

    /// Puts back a gap read from storage.
    pub fn restore_gap(&mut self, limit: &LimitName, gap: Milli) {
        self.gaps.set(limit, gap);
    }

    /// How far ahead of the bucket's time a clock was that has been paid already; 0 when clocks
    /// have agreed so far.
    ///
    /// Say one process takes at 10:00 by a clock that shows 10:00 in ten years: the bucket is
    /// refilled for ten years. For the next process it is 10:00 today: the bucket goes on from
    /// there, and remembers ten years of lead. When the first process comes back a minute later by
    /// its own clock, it is paid that minute, not ten years again.
    #[must_use]
    pub fn lead_ms(&self) -> i64 {
        self.gaps.lead_ms()
    }

    /// True when the refill instant was set by the clock that is ahead, less its lead, and not by
    /// one of the others.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.gaps.is_led()
    }

    /// Puts back a lead read from storage.
    pub fn restore_lead(&mut self, lead_ms: i64, is_led: bool) {
        self.gaps.set_lead(lead_ms, is_led);
    }

    /// True when the bucket's time is so far ahead of a clock that one of the two was wrong.
    /// [`BucketState::refill`] goes on by the clock then, which has to be written even when a
    /// request is refused, or it would be refused for ever.
    #[must_use]
    pub fn is_far_ahead_of(&self, now: TimeMs) -> bool {
        self.refilled_at.since(now) > CLOCK_BACK_MAX_MS
    }

    /// What a clock that shows `now` means in the bucket's own time: a clock that was ahead, and is
    /// again, less its lead.
    fn own_time(&self, now: TimeMs) -> TimeMs {
        let lead_ms = self.lead_ms();
        let led = now.plus_ms(lead_ms.saturating_neg());
        if lead_ms > 0 && led.since(self.refilled_at) >= -CLOCK_BACK_MAX_MS { led } else { now }
    }

    /// What has passed since the last refill, by a clock that shows `now`. Nothing accrues unless
    /// it is positive; a negative one says how long the clock needs to catch up.
    pub(crate) fn elapsed_at(&self, now: TimeMs) -> i64 {
        if self.is_far_ahead_of(now) { 0 } else { self.own_time(now).since(self.refilled_at) }
    }

    /// Goes on by a clock that is behind. What was paid up to the refill instant stays paid, as
    /// lead. One lead is remembered, that of the clock that came last: were another's added to it,
    /// two clocks that take turns would be paid every time.
    fn go_back_to(&mut self, now: TimeMs) {
        let ahead_ms = self.refilled_at.since(now);
        let lead_ms = if self.is_led() { self.lead_ms() } else { 0 };
        self.gaps.set_lead(lead_ms.saturating_add(ahead_ms), false);
        self.refilled_at = now;
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
    }

    /// Makes `limits` the limits in force: refill to `now` at the old rate, cut each balance to the
    /// smaller of the old and the new capacity, keep what is no longer configured as retired. Mints
    /// nothing: a limit never seen before starts full, one that was here before goes on from its
    /// balance. Beyond 64 limits retired ones are folded, see [`crate::FOLDED`]. An error leaves
    /// the bucket as it was, refilled to `now`.
    pub fn sync(
        &mut self,
        limits: &[Limit],
        stamp: ConfigStamp,
        now: TimeMs,
    ) -> Result<(), TooManyLimits> {
        self.refill(now);
        let configured =
            |state: &LimitState| limits.iter().any(|limit| state.name == *limit.name());
        let was_folded = self.is_folding();
        let mut retired: Vec<&LimitState> = self
            .limits
            .iter()
            .filter(|state| !configured(state) && !self.is_forgettable(state))
            .collect();
        let (folded, left) = self.to_fold(&mut retired, KEPT_MAX.saturating_sub(limits.len()));
        if limits.len() + left > CARRIED_MAX {
            return Err(TooManyLimits { count: limits.len() + left });
        }
        self.fold(&folded);
        let mut old = std::mem::take(&mut self.limits);
        let mut states: SmallVec<[LimitState; 2]> =
            SmallVec::with_capacity(limits.len().max(old.len()));
        for limit in limits {
            match old.iter().position(|state| state.name == *limit.name()) {
                Some(index) => {
                    let before = old.remove(index);
                    let lacked = before.lack();
                    let after = reparametrised(before, limit.params());
                    // Lowered, the balance lacks less than it did; what it hides is remembered.
                    // Raised, it shows again.
                    let hidden = i128::from(self.gaps.of(&after.name).0) + lacked - after.lack();
                    self.gaps
                        .set(&after.name, Milli(i64::try_from(hidden.max(0)).unwrap_or(i64::MAX)));
                    states.push(after);
                }
                None => states.push(LimitState::first_seen(limit, was_folded)),
            }
        }
        states.extend(old.into_iter().filter(|retired| !self.is_forgettable(retired)));
        self.limits = states;
        self.active = u8::try_from(limits.len()).unwrap_or(u8::MAX);
        self.stamp = self.stamp.max(stamp);
        Ok(())
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
            debug_assert!(counted, "what an hour cannot count was refused before");
        }
        self.events = self.events.saturating_add(1);
        closed
    }

    /// Whether [`BucketState::adjust`] can count `delta`. To be asked for every change of a bucket
    /// before the first is made.
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

    /// How long until the usage of the open hour can count `amount` of a limit; `None` when it can
    /// now.
    pub(crate) fn wait_to_count(
        &self,
        limit: &LimitState,
        amount: Milli,
        now: TimeMs,
    ) -> Option<WaitMs> {
        if i64::try_from(limit.used_in_hour() + i128::from(amount.0)).is_ok()
            || hour_of(now) > self.hour
        {
            return None;
        }
        let next_hour = TimeMs((i64::from(self.hour) + 1).saturating_mul(HOUR_MS));
        Some(WaitMs::at_least_one(u64::try_from(next_hour.since(now)).unwrap_or(1)))
    }

    /// Charges (positive) or gives back (negative) after the fact. A charge may lead into debt; a
    /// credit never lifts a balance above capacity. A limit the bucket has forgotten was full when
    /// it was: a charge brings it back from `receipt` as retired (even beyond [`LIMITS_MAX`]: a
    /// charge is never refused), a credit to it has nothing left to do. Whoever has not asked
    /// [`BucketState::check_adjust`] may have changed a balance that no usage accounts for.
    pub fn adjust(&mut self, receipt: &Limit, delta: Milli, now: TimeMs) -> Option<ClosedHour> {
        let closed = self.roll_hour(now);
        self.refill(now);
        let index = self.limits.iter().position(|state| state.name == *receipt.name());
        let limit = match index {
            Some(index) => &mut self.limits[index],
            None if delta.0 <= 0 => return closed,
            None => {
                let is_folding = self.is_folding();
                self.limits.push(LimitState::first_seen(receipt, is_folding));
                let last = self.limits.len() - 1;
                &mut self.limits[last]
            }
        };
        let balance = limit.balance.saturating_sub(delta);
        limit.count(delta);
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

    /// Fills the named limits, or all of them, whatever they owe, and sets the time of a bucket
    /// right that is ahead. Returns what each one gained.
    pub fn reset(&mut self, only: Option<&[LimitName]>, now: TimeMs) -> Vec<(LimitName, Milli)> {
        self.refill(now);
        if only.is_none() {
            // All are full: there is nothing that could be paid twice.
            self.gaps.set_lead(0, false);
            self.refilled_at = now;
        }
        let mut restored = Vec::new();
        for limit in &mut self.limits {
            if only.is_none_or(|names| names.contains(&limit.name)) {
                let capacity = Milli(limit.params.capacity_milli);
                if !fold::is_fold(&limit.name) {
                    restored.push((limit.name.clone(), capacity.saturating_sub(limit.balance)));
                }
                (limit.balance, limit.remainder) = (capacity, 0);
            }
        }
        restored
    }

    /// Closes the open usage hour if `now` lies in a later one, and returns its usage for the
    /// history. A clock that went back a little keeps counting in the open hour; one that went back
    /// further closes it too, or all usage would be counted in a far future. So usage is filed
    /// under the hour that its user's clock showed, and an hour may be closed more than once.
    pub fn roll_hour(&mut self, now: TimeMs) -> Option<ClosedHour> {
        let hour = hour_of(now);
        if hour == self.hour || hour.saturating_add(1) == self.hour {
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
            .map(|limit| {
                (limit.name.clone(), Milli(i64::try_from(limit.used_in_hour()).unwrap_or(i64::MAX)))
            })
            .filter(|(_, used)| *used != Milli::ZERO)
            .collect();
        ClosedHour { start: TimeMs(i64::from(self.hour) * HOUR_MS), used, events: self.events }
    }

    /// True when every limit, retired ones too, is full at `now`: only then may the bucket be
    /// forgotten.
    #[must_use]
    pub fn is_full_at(&self, now: TimeMs) -> bool {
        let elapsed_ms = self.elapsed_at(now);
        let is_whole = |limit: &LimitState| {
            limit.accrued(elapsed_ms).0.0 >= limit.params.capacity_milli
                && limit.overflow(elapsed_ms) >= self.gaps.of(&limit.name)
        };
        self.limits.iter().all(is_whole)
    }

    /// True when the bucket has been idle past its expiry and is full: forgetting it changes no
    /// decision. Its [`BucketState::open_hour`] still has to go to the history.
    #[must_use]
    pub fn is_expired_at(&self, now: TimeMs) -> bool {
        self.expires_at <= now && self.expires_at != NEVER && self.is_full_at(now)
    }

    /// True when some limit owes tokens at `now`.
    #[must_use]
    pub fn in_debt_at(&self, now: TimeMs) -> bool {
        let elapsed_ms = self.elapsed_at(now);
        self.limits.iter().any(|limit| limit.accrued(elapsed_ms).0.is_negative())
    }

    fn forget_full_retired(&mut self) {
        if self.limits.len() > self.active() {
            let limits = std::mem::take(&mut self.limits);
            let active = self.active();
            let kept = limits
                .into_iter()
                .enumerate()
                .filter(|(index, limit)| *index < active || !self.is_forgettable(limit));
            self.limits = kept.map(|(_, limit)| limit).collect();
        }
    }

    /// Full, and nothing hidden: forgetting it and starting it anew is the same.
    fn is_whole(&self, limit: &LimitState) -> bool {
        limit.lack() <= 0 && self.gaps.of(&limit.name) == Milli::ZERO
    }

    /// A retired limit may go once re-adding it would start where it is, and its usage is in the
    /// history.
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
    if (state.params.refill_milli, state.params.period_ms)
        != (params.refill_milli, params.period_ms)
        || state.balance.0 >= params.capacity_milli
    {
        state.remainder = 0;
    }
    state.params = params;
    state
}
