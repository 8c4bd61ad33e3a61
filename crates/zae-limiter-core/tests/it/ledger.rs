//! Tokens are never created: any run of takes, charges, gifts, resets and changed limits, against
//! an oracle that redoes the sums another way.
//!
//! The oracle counts in one unit that divides everything ([`UNITS`] to the millitoken), so a
//! balance is one number without a remainder. It forgets nothing but what the bucket forgets, and
//! its meter not even that: forgetting a limit must never let more through than remembering it.

use std::collections::BTreeMap;

use crate::support::*;
use proptest::prelude::*;
use zae_limiter_core::{
    BucketState, ClosedHour, ConfigStamp, Decision, Limit, Milli, TimeMs, Wait,
};

/// The least common multiple of every period below, in ms: a rate of `refill/period` is whole in
/// these units.
const UNITS: i128 = 604_800_000;

/// The configurations a run switches between. `often` is always there; the others come and go. All
/// of them change capacity and rate, so a limit can be lowered, fill up, be forgotten and come back
/// larger.
const CONFIGS: [&[&str]; 6] = [
    &["often:100/sec", "daily:10/day"],
    &["often:7/7sec:3", "daily:10/day", "burst:5/min:50"],
    &["burst:5/min:50", "often:1/min:200"],
    &["often:100/sec:20", "daily:700/7day:2"],
    &["daily:10/day", "often:100/sec"],
    &["often:100/sec", "burst:60/sec:2"],
];

/// What the oracle knows of one limit.
#[derive(Clone, Debug)]
struct Account {
    limit: Limit,
    /// The balance.
    units: i128,
    /// A leaky meter: what was taken and not given back, less what the rate has regained, never
    /// below nothing. Its highest mark is the most that was admitted beyond `rate·t` in any
    /// interval.
    meter: i128,
    capacity_max: i128,
    /// Takes and adjustments, all of them, and since the bucket last began to count this limit.
    used: i128,
    used_since_known: i128,
}

impl Account {
    fn new(limit: &Limit) -> Account {
        let capacity = i128::from(limit.params().capacity_milli);
        Account {
            limit: limit.clone(),
            units: capacity * UNITS,
            meter: 0,
            capacity_max: capacity,
            used: 0,
            used_since_known: 0,
        }
    }

    fn capacity(&self) -> i128 {
        i128::from(self.limit.params().capacity_milli) * UNITS
    }

    fn rate(&self) -> i128 {
        let params = self.limit.params();
        assert_eq!(UNITS % i128::from(params.period_ms), 0, "the unit divides every period");
        i128::from(params.refill_milli) * (UNITS / i128::from(params.period_ms))
    }

    fn advance(&mut self, ms: i128) {
        self.units = (self.units + self.rate() * ms).min(self.capacity());
        self.meter = (self.meter - self.rate() * ms).max(0);
    }

    fn become_limit(&mut self, limit: &Limit) {
        let old = self.limit.params();
        self.limit = limit.clone();
        let new = limit.params();
        self.units = self.units.min(self.capacity());
        if (old.refill_milli, old.period_ms) != (new.refill_milli, new.period_ms) {
            // Less than a millitoken is lost with a changed rate, never gained.
            self.units = self.units.div_euclid(UNITS) * UNITS;
        }
        self.capacity_max = self.capacity_max.max(i128::from(new.capacity_milli));
    }

    fn give(&mut self, milli: i128) {
        self.units = (self.units + milli * UNITS).min(self.capacity());
        self.meter = (self.meter - milli * UNITS).max(0);
    }

    fn count(&mut self, milli: i64) {
        self.used += i128::from(milli);
        self.used_since_known += i128::from(milli);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Parts of the capacity of each limit in force, in percent; `None` does not name the limit.
    Take([Option<i64>; 3]),
    /// A charge or a gift to any limit ever seen.
    Adjust(usize, i64),
    Reset(Option<usize>),
    Sync(usize),
    Refill,
}

fn steps() -> impl Strategy<Value = Vec<(i64, Step)>> {
    let percent = || prop::option::of(prop_oneof![0..=20_i64, Just(100), 0..=110_i64]);
    let step = prop_oneof![
        5 => [percent(), percent(), percent()].prop_map(Step::Take),
        2 => (0..3_usize, prop_oneof![-20_000..20_000_i64, -5..5_i64]).prop_map(|(index, delta)| Step::Adjust(index, delta)),
        1 => prop::option::of(0..3_usize).prop_map(Step::Reset),
        2 => (0..CONFIGS.len()).prop_map(Step::Sync),
        2 => Just(Step::Refill),
    ];
    let gap = prop_oneof![4 => 0..50_i64, 3 => 0..20_000_i64, 1 => 0..2 * DAY_MS, 1 => -5_000..0_i64, 1 => Just(0)];
    prop::collection::vec((gap, step), 1..80)
}

struct Run {
    bucket: BucketState,
    accounts: BTreeMap<String, Account>,
    history: Vec<ClosedHour>,
    now: i64,
    /// The latest instant the bucket has seen: time passes for it only beyond.
    latest: i64,
}

impl Run {
    fn new(start: i64) -> Run {
        let first = limits(CONFIGS[0]);
        let accounts =
            first.iter().map(|limit| (limit.name().to_string(), Account::new(limit))).collect();
        Run {
            bucket: BucketState::full(&first, ConfigStamp(0), TimeMs(start)),
            accounts,
            history: vec![],
            now: start,
            latest: start,
        }
    }

    fn apply(&mut self, gap: i64, step: &Step) {
        self.now += gap;
        let elapsed = (self.now - self.latest).max(0);
        self.latest = self.latest.max(self.now);
        let before = self.bucket.clone();
        for account in self.accounts.values_mut() {
            account.advance(i128::from(elapsed));
        }
        match step {
            Step::Take(parts) => {
                if !self.take(parts) {
                    // The oracle has moved on, the bucket has not: look at it refilled, then go on
                    // as it was.
                    assert_eq!(self.bucket, before, "a refusal changes nothing");
                    self.bucket.refill(TimeMs(self.now));
                }
            }
            Step::Adjust(index, delta) => self.adjust(*index, *delta),
            Step::Reset(index) => self.reset(*index),
            Step::Sync(index) => self.sync(CONFIGS[*index]),
            Step::Refill => self.bucket.refill(TimeMs(self.now)),
        }
        self.check();
    }

    fn take(&mut self, parts: &[Option<i64>; 3]) -> bool {
        let asked: Vec<(u8, &str, i64)> = (0u8..)
            .zip(self.bucket.limits())
            .zip(parts)
            .filter_map(|((index, state), part)| {
                part.map(|part| {
                    (index, state.name.as_str(), state.params.capacity_milli / 100 * part)
                })
            })
            .collect();
        let passes = asked
            .iter()
            .all(|(_, name, amount)| self.accounts[*name].units >= i128::from(*amount) * UNITS);
        let takes: Vec<_> = asked.iter().map(|(index, _, amount)| take(*index, *amount)).collect();
        let charges: Vec<(String, i64)> =
            asked.iter().map(|(_, name, amount)| (String::from(*name), *amount)).collect();
        match ask(&mut self.bucket, &takes, self.now) {
            Decision::Refused { reports } => {
                assert!(!passes, "refused although the oracle has enough: {reports:?}");
                for (report, (name, amount)) in reports.iter().zip(&charges) {
                    let short = self.accounts[name].units < i128::from(*amount) * UNITS;
                    assert_eq!(report.wait != Wait::None, short, "{name}");
                }
                false
            }
            Decision::Granted { reports, closed } => {
                assert!(passes, "granted although the oracle has not enough: {reports:?}");
                self.history.extend(closed.into_iter().map(|(_, hour)| hour));
                for (name, amount) in &charges {
                    let account =
                        self.accounts.get_mut(name).expect("a limit in force has an account");
                    account.units -= i128::from(*amount) * UNITS;
                    account.meter += i128::from(*amount) * UNITS;
                    account.count(*amount);
                    // Invariant 1, over every interval that ends here.
                    assert!(
                        account.meter <= account.capacity_max * UNITS,
                        "{name} admitted more than capacity + rate·t"
                    );
                }
                true
            }
        }
    }

    fn adjust(&mut self, index: usize, delta: i64) {
        let Some((name, account)) = self.accounts.iter_mut().nth(index) else {
            return self.bucket.refill(TimeMs(self.now));
        };
        let receipt = account.limit.clone();
        let known = self.bucket.all_limits().iter().any(|state| state.name.as_str() == name);
        if !known {
            assert_eq!(account.units, account.capacity(), "only a full limit is forgotten");
            account.used_since_known = 0;
        }
        self.history.extend(self.bucket.adjust(&receipt, Milli(delta), TimeMs(self.now)));
        if delta < 0 {
            account.give(i128::from(-delta));
        } else {
            account.units -= i128::from(delta) * UNITS;
        }
        if known || delta > 0 {
            account.count(delta);
        }
    }

    fn reset(&mut self, index: Option<usize>) {
        let name = index
            .and_then(|index| self.bucket.all_limits().get(index))
            .map(|state| state.name.clone());
        let only = name.map(|name| vec![name]);
        let gains = self.bucket.reset(only.as_deref(), TimeMs(self.now));
        if only.is_none() {
            // A reset of everything sets the time right.
            self.latest = self.now;
        }
        for (name, gain) in gains {
            let account =
                self.accounts.get_mut(name.as_str()).expect("a limit of the bucket has an account");
            // What a reset gives, on top of a fraction it rounds up, is the administrator's gift,
            // not the rate's.
            account.give(i128::from(gain.0));
            assert_eq!(account.units, account.capacity());
        }
    }

    fn sync(&mut self, texts: &[&str]) {
        let wanted = limits(texts);
        for limit in &wanted {
            let known = self.bucket.all_limits().iter().any(|state| state.name == *limit.name());
            let account = self
                .accounts
                .entry(limit.name().to_string())
                .or_insert_with(|| Account::new(limit));
            account.become_limit(limit);
            if !known {
                // Forgotten, so it starts anew: full. The meter does not.
                account.used_since_known = 0;
                account.units = account.capacity();
            }
        }
        self.bucket.sync(&wanted, ConfigStamp(0), TimeMs(self.now)).expect("at most three limits");
        assert!(self.bucket.matches(&wanted));
    }

    fn check(&self) {
        assert_eq!(self.bucket.refilled_at, TimeMs(self.latest));
        for state in self.bucket.all_limits() {
            let account = &self.accounts[state.name.as_str()];
            let fraction =
                i128::from(state.remainder) * (UNITS / i128::from(state.params.period_ms));
            assert_eq!(
                i128::from(state.balance.0) * UNITS + fraction,
                account.units,
                "balance of {}",
                state.name
            );
            assert!(
                state.balance.0 <= state.params.capacity_milli,
                "{} above capacity",
                state.name
            );
            assert_eq!(
                i128::from(state.consumed.0),
                account.used_since_known,
                "consumed of {}",
                state.name
            );
        }
        let open = self.bucket.open_hour();
        for (name, account) in &self.accounts {
            let hours = self.history.iter().chain([&open]).flat_map(|hour| &hour.used);
            let counted: i64 =
                hours.filter(|(limit, _)| limit.as_str() == name).map(|(_, used)| used.0).sum();
            assert_eq!(i128::from(counted), account.used, "history of {name}");
            let forgotten =
                self.bucket.all_limits().iter().all(|state| state.name.as_str() != name);
            assert!(
                !forgotten || account.units == account.capacity(),
                "{name} was forgotten before it was full"
            );
            assert!(
                !forgotten || account.meter == 0,
                "{name} was forgotten while a larger capacity would still lack tokens"
            );
        }
        assert!(
            self.history.windows(2).all(|pair| pair[0].start < pair[1].start),
            "hours close in order, each once"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn tokens_are_never_created_and_none_is_lost(start in 0..2 * HOUR_MS, steps in steps()) {
        let mut run = Run::new(start);
        for (gap, step) in &steps {
            run.apply(*gap, step);
        }
    }
}
