//! One bucket as the oracle keeps it: written from the promises (`docs/accuracy.md`, ADR 0001), not
//! from the core.
//!
//! A balance and its remainder are one exact number here, counted in `1/period` of a millitoken. So
//! there is no remainder to carry, to drop or to forget: whatever the stored pair says must be this
//! number.

use std::collections::BTreeMap;

use zae_limiter_core::Limit;

use super::meter::Meter;

const HOUR_MS: i64 = 3_600_000;

/// A clock that is behind a bucket by more than this was not merely late.
const BACK_MAX_MS: i64 = 60_000;

/// The meters of forgotten limits of one bucket, by name: forgetting must not let more through than
/// remembering.
pub(crate) type Past = BTreeMap<String, Meter>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    pub(crate) capacity: i128,
    pub(crate) refill: i128,
    pub(crate) period: i128,
}

impl Params {
    pub(crate) fn of(limit: &Limit) -> Params {
        Params {
            capacity: i128::from(limit.capacity()) * 1000,
            refill: i128::from(limit.refill_amount()) * 1000,
            period: i128::from(limit.refill_period_s()) * 1000,
        }
    }

    /// A full balance, in `1/period` of a millitoken.
    pub(crate) fn brim(self) -> i128 {
        self.capacity * self.period
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) params: Params,
    /// The exact balance, in `1/period` of a millitoken.
    pub(crate) fine: i128,
    /// What the largest capacity it had would lack beyond that, in millitokens: repaid by what
    /// overflows.
    pub(crate) gap: i128,
    pub(crate) consumed: i128,
    pub(crate) hour_base: i128,
    pub(crate) meter: Meter,
}

impl Account {
    fn full(limit: &Limit, past: &mut Past) -> Account {
        Account::new(limit.name().to_string(), Params::of(limit), past)
    }

    /// A new one, full.
    pub(crate) fn new(name: String, params: Params, past: &mut Past) -> Account {
        let mut meter = past.remove(&name).unwrap_or_else(|| Meter::new(params.capacity));
        meter.allow(params.capacity);
        Account { name, params, fine: params.brim(), gap: 0, consumed: 0, hour_base: 0, meter }
    }

    pub(crate) fn balance(&self) -> i128 {
        self.fine.div_euclid(self.params.period)
    }

    pub(crate) fn remainder(&self) -> i128 {
        self.fine.rem_euclid(self.params.period)
    }

    /// Whether it may be forgotten, had it `elapsed_ms` more: full, and nothing hidden by a lowered
    /// capacity.
    fn is_whole_after(&self, elapsed_ms: i128) -> bool {
        self.later(elapsed_ms) == self.params.brim() && self.overflow(elapsed_ms) >= self.gap
    }

    /// Whole millitokens that `elapsed_ms` more would add beyond the capacity.
    fn overflow(&self, elapsed_ms: i128) -> i128 {
        let beyond = (self.fine + elapsed_ms.max(0) * self.params.refill)
            .div_euclid(self.params.period)
            - self.params.capacity;
        if elapsed_ms > 0 { beyond.max(0) } else { 0 }
    }

    /// The exact balance `elapsed_ms` later.
    fn later(&self, elapsed_ms: i128) -> i128 {
        (self.fine + elapsed_ms.max(0) * self.params.refill).min(self.params.brim())
    }

    pub(crate) fn wait_of(&mut self, elapsed_ms: i128) {
        self.gap = (self.gap - self.overflow(elapsed_ms)).max(0);
        self.fine = self.later(elapsed_ms);
        self.meter.leak(elapsed_ms, self.params);
    }

    pub(crate) fn give(&mut self, milli: i128) {
        let beyond = self.balance() + milli - self.params.capacity;
        self.gap = (self.gap - beyond.max(0)).max(0);
        self.fine = (self.fine + milli * self.params.period).min(self.params.brim());
    }

    pub(crate) fn become_limit(&mut self, params: Params) {
        let lacked = self.params.capacity - self.balance();
        let same_rate = (self.params.refill, self.params.period) == (params.refill, params.period);
        // A fraction of a millitoken means something else at another rate; it is dropped, never
        // rounded up.
        self.fine = if same_rate { self.fine } else { self.balance() * params.period };
        self.params = params;
        self.fine = self.fine.min(params.brim());
        self.gap = (self.gap + lacked - (params.capacity - self.balance())).max(0);
        self.meter.allow(params.capacity);
    }

    pub(crate) fn forgotten(self) -> (String, Meter) {
        (self.name, self.meter)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) refilled_at: i64,
    /// How far ahead of `refilled_at` the clock was up to which refill has been paid.
    pub(crate) lead: i64,
    /// True when the last refill was paid to that clock.
    pub(crate) is_led: bool,
    pub(crate) stamp: u64,
    pub(crate) disabled: bool,
    pub(crate) hour: i64,
    pub(crate) events: u64,
    /// How many of `accounts`, from the front, are in force.
    pub(crate) active: usize,
    pub(crate) accounts: Vec<Account>,
}

impl Bucket {
    pub(crate) fn full(
        limits: &[Limit],
        stamp: u64,
        disabled: bool,
        now: i64,
        past: &mut Past,
    ) -> Bucket {
        let accounts = limits.iter().map(|limit| Account::full(limit, past)).collect();
        Bucket {
            refilled_at: now,
            lead: 0,
            is_led: false,
            stamp,
            disabled,
            hour: now.div_euclid(HOUR_MS),
            events: 0,
            active: limits.len(),
            accounts,
        }
    }

    pub(crate) fn matches(&self, limits: &[Limit]) -> bool {
        let in_force = self.accounts[..self.active]
            .iter()
            .map(|account| (account.name.as_str(), account.params));
        in_force.eq(limits.iter().map(|limit| (limit.name().as_str(), Params::of(limit))))
    }

    /// True when this clock and the one before cannot both be right.
    pub(crate) fn is_contradicted_by(&self, now: i64) -> bool {
        self.refilled_at - now > BACK_MAX_MS
    }

    /// What to take off a clock that shows `now`: the lead, for one that has been paid up to about
    /// there.
    pub(crate) fn lead_of(&self, now: i64) -> i64 {
        if self.lead > 0 && now - self.lead >= self.refilled_at - BACK_MAX_MS {
            self.lead
        } else {
            0
        }
    }

    pub(crate) fn refill(&mut self, now: i64) {
        if self.is_contradicted_by(now) {
            // The refill up to that instant was paid and is not paid again: the instant is kept, as
            // lead.
            self.lead = self.refilled_at - now + if self.is_led { self.lead } else { 0 };
            (self.refilled_at, self.is_led) = (now, false);
            return;
        }
        let own = now - self.lead_of(now);
        let elapsed_ms = i128::from(own) - i128::from(self.refilled_at);
        if elapsed_ms > 0 {
            self.accounts.iter_mut().for_each(|account| account.wait_of(elapsed_ms));
            (self.refilled_at, self.is_led) = (own, own != now);
        }
    }

    fn turn_hour(&mut self, now: i64) {
        let hour = now.div_euclid(HOUR_MS);
        if hour > self.hour || hour < self.hour - 1 {
            self.hour = hour;
            self.events = 0;
            self.accounts.iter_mut().for_each(|account| account.hour_base = account.consumed);
        }
    }

    /// The balance, in whole millitokens, that limit `index` has at `at`, by a clock that is `lead`
    /// ahead of the bucket's.
    pub(crate) fn balance_at(&self, index: usize, at: i128, lead: i64) -> i128 {
        let account = &self.accounts[index];
        account
            .later(at - i128::from(lead) - i128::from(self.refilled_at))
            .div_euclid(account.params.period)
    }

    pub(crate) fn is_full_at(&self, now: i64) -> bool {
        // Either of two clocks that disagree may have forgotten the bucket.
        let elapsed_ms = i128::from(now) - i128::from(self.refilled_at);
        self.accounts.iter().all(|account| account.is_whole_after(elapsed_ms))
    }

    /// Makes `limits` the limits in force. The usage hour goes on: only a take or an adjustment
    /// closes it.
    pub(crate) fn sync(&mut self, limits: &[Limit], stamp: u64, now: i64, past: &mut Past) {
        self.refill(now);
        let mut old = std::mem::take(&mut self.accounts);
        for limit in limits {
            match old.iter().position(|account| account.name == limit.name().as_str()) {
                Some(index) => {
                    let mut account = old.remove(index);
                    account.become_limit(Params::of(limit));
                    self.accounts.push(account);
                }
                None => self.accounts.push(Account::full(limit, past)),
            }
        }
        self.active = limits.len();
        self.accounts.append(&mut old);
        self.forget_full_retired(past);
        self.stamp = self.stamp.max(stamp);
    }

    /// A limit that is no longer configured goes once a write finds it full, with no usage left in
    /// the open hour.
    fn forget_full_retired(&mut self, past: &mut Past) {
        for index in (self.active..self.accounts.len()).rev() {
            if self.accounts[index].is_whole_after(0)
                && self.accounts[index].consumed == self.accounts[index].hour_base
            {
                past.extend([self.accounts.remove(index).forgotten()]);
            }
        }
    }

    /// Takes granted amounts. The error is a broken promise.
    pub(crate) fn take(
        &mut self,
        takes: &[(usize, i128)],
        now: i64,
        past: &mut Past,
    ) -> Result<(), String> {
        self.turn_hour(now);
        self.refill(now);
        self.forget_full_retired(past);
        self.events += 1;
        for (index, milli) in takes {
            let account = &mut self.accounts[*index];
            account.fine -= milli * account.params.period;
            account.consumed += milli;
            if *milli > 0 && account.fine < 0 {
                return Err(format!(
                    "the gate let {} into debt: {} milli",
                    account.name,
                    account.balance()
                ));
            }
            account
                .meter
                .admit(*milli)
                .map_err(|excess| format!("{} of {excess}", account.name))?;
        }
        Ok(())
    }

    /// Charges or gives back. Returns the limit whose use was counted, if any was.
    pub(crate) fn adjust(
        &mut self,
        receipt: &Limit,
        milli: i128,
        now: i64,
        past: &mut Past,
    ) -> bool {
        self.turn_hour(now);
        self.refill(now);
        let known =
            self.accounts.iter().position(|account| account.name == receipt.name().as_str());
        let index = match known {
            Some(index) => index,
            None if milli <= 0 => return false,
            None => {
                self.accounts.push(Account::full(receipt, past));
                self.accounts.len() - 1
            }
        };
        let account = &mut self.accounts[index];
        account.give(-milli);
        account.consumed += milli;
        if milli < 0 {
            account.meter.give_back(-milli);
        }
        true
    }

    /// Fills up. Returns what each limit gained, in the order stored.
    pub(crate) fn reset(&mut self, only: Option<&[String]>, now: i64) -> Vec<(String, i128)> {
        self.refill(now);
        if only.is_none() {
            (self.refilled_at, self.lead, self.is_led) = (now, 0, false);
        }
        let mut gained = Vec::new();
        for account in &mut self.accounts {
            if only.is_none_or(|names| names.contains(&account.name)) {
                let gain = account.params.capacity - account.balance();
                account.fine = account.params.brim();
                account.meter.give_back(gain);
                gained.push((account.name.clone(), gain));
            }
        }
        gained
    }

    /// What stays known when the bucket is forgotten at `now`.
    pub(crate) fn forget_into(mut self, now: i64, past: &mut Past) {
        self.refill(now);
        past.extend(self.accounts.into_iter().map(Account::forgotten));
    }
}
