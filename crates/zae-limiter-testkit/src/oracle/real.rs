//! Admission in real time, whatever the clocks of the callers show.
//!
//! The other sums of the oracle go by the time the store is told, as the store does, so a rule
//! about wrong clocks that gives too much would be wrong in both. Here time is that of the run.
//! Beyond capacity + rate·t two clocks that differ by δ may let through rate·δ, at most the
//! capacity, and only when another δ has come between does the same δ count again
//! (`docs/accuracy.md`).

use std::collections::BTreeMap;

use super::bucket::{Account, Params};
use super::meter::Meter;

/// How often the bound mattered.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime {
    /// Grants held against it.
    pub checked: u64,
    /// Of those, grants for which no clocks had differed: capacity + rate·t, and nothing more.
    pub exact: u64,
    /// Times two clocks differed that were not the last pair to differ.
    pub apart: u64,
    /// Times the last pair differed again, which allows nothing more unless the rate has changed.
    pub again: u64,
}

/// One limit of one bucket.
#[derive(Clone, Debug)]
struct Limit {
    meter: Meter,
    params: Params,
    /// What clocks that differ may have let through, in millitokens.
    allowance: i128,
    /// True when the rate has changed since clocks last differed. A bucket given tokens early at
    /// the old rate repays them at the new one, so each change may add the difference once.
    is_changed: bool,
}

/// The limits of one bucket, those that are forgotten included, and the clocks it was told the time
/// by.
#[derive(Clone, Debug, Default)]
pub(super) struct RealBucket {
    limits: BTreeMap<String, Limit>,
    /// When it was last told the time, by the time of the run.
    at_ms: i64,
    /// How far the last clock was from that time.
    off_ms: Option<i64>,
    /// The last two clocks that differed, the one behind first.
    pair: Option<(i64, i64)>,
}

impl RealBucket {
    /// Notes a caller whose clock shows `now`, before the caller changes anything.
    pub(super) fn told(&mut self, now: i64, elapsed_ms: i64, coverage: &mut RealTime) {
        let (off_ms, passed_ms) = (now - elapsed_ms, elapsed_ms - self.at_ms);
        let before_ms = self.off_ms.replace(off_ms).unwrap_or(off_ms);
        self.at_ms = elapsed_ms;
        self.limits
            .values_mut()
            .for_each(|limit| limit.meter.leak(i128::from(passed_ms), limit.params));
        let apart_ms = (i128::from(off_ms) - i128::from(before_ms)).abs();
        if apart_ms == 0 {
            return;
        }
        let pair = Some((off_ms.min(before_ms), off_ms.max(before_ms)));
        let is_same = self.pair == pair;
        self.pair = pair;
        coverage.apart += u64::from(!is_same);
        coverage.again += u64::from(is_same);
        for limit in self.limits.values_mut().filter(|limit| !is_same || limit.is_changed) {
            let Params { refill, period, .. } = limit.params;
            let early = (apart_ms * refill + period - 1).div_euclid(period);
            limit.allowance += early.min(limit.meter.capacity_max());
            limit.is_changed = false;
        }
    }

    /// What its limits are from now on.
    pub(super) fn become_limits(&mut self, accounts: &[Account]) {
        for Account { name, params, .. } in accounts {
            let new = || Limit {
                meter: Meter::new(params.capacity),
                params: *params,
                allowance: 0,
                is_changed: false,
            };
            let limit = self.limits.entry(name.clone()).or_insert_with(new);
            limit.is_changed |=
                (limit.params.refill, limit.params.period) != (params.refill, params.period);
            limit.params = *params;
            limit.meter.allow(params.capacity);
        }
    }

    pub(super) fn admit(
        &mut self,
        name: &str,
        milli: i128,
        coverage: &mut RealTime,
    ) -> Result<(), String> {
        let Some(limit) = self.limits.get_mut(name) else {
            return Err(format!("a take of {name}, which the bucket does not have"));
        };
        coverage.checked += 1;
        coverage.exact += u64::from(limit.allowance == 0);
        let allowance = limit.allowance;
        let told = |excess| {
            format!(
                "{name} in real time: {excess}, clocks that differ may let {allowance} more through"
            )
        };
        limit.meter.admit_within(milli, allowance).map_err(told)
    }

    pub(super) fn give_back(&mut self, name: &str, milli: i128) {
        if let Some(limit) = self.limits.get_mut(name) {
            limit.meter.give_back(milli);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::bucket::Past;

    const CAPACITY: i128 = 10_000;
    const HOUR_MS: i64 = 3_600_000;

    fn bucket() -> RealBucket {
        let params = Params { capacity: CAPACITY, refill: 1_000, period: 60_000 };
        let mut bucket = RealBucket::default();
        bucket.become_limits(&[Account::new("rpm".to_owned(), params, &mut Past::new())]);
        bucket
    }

    /// Takes at some time of the run, by a clock that is ahead of it.
    fn take(bucket: &mut RealBucket, at_ms: i64, ahead_ms: i64, milli: i128) -> bool {
        bucket.told(at_ms + ahead_ms, at_ms, &mut RealTime::default());
        bucket.admit("rpm", milli, &mut RealTime::default()).is_ok()
    }

    #[test]
    fn a_clock_that_is_ahead_is_worth_one_capacity_and_no_more_when_it_comes_back() {
        let mut bucket = bucket();
        assert!(take(&mut bucket, 0, 0, CAPACITY));
        assert!(take(&mut bucket, 0, HOUR_MS, CAPACITY));
        assert!(!take(&mut bucket.clone(), 0, HOUR_MS, 1));
        assert!(take(&mut bucket, 60_000, 0, 1_000), "a minute of the run is a token");
        assert!(!take(&mut bucket.clone(), 60_000, HOUR_MS, 1), "the same hour again is not");
        assert!(take(&mut bucket, 60_000, 2 * HOUR_MS, CAPACITY), "another is");
        assert!(!take(&mut bucket, 60_000, 2 * HOUR_MS, 1));
    }

    #[test]
    fn a_clock_that_is_a_little_ahead_is_worth_its_rate() {
        let mut bucket = bucket();
        assert!(take(&mut bucket, 0, 0, CAPACITY) && take(&mut bucket, 0, 60_000, 1_000));
        assert!(!take(&mut bucket, 0, 60_000, 1));
    }

    #[test]
    fn what_is_given_back_may_be_taken_again() {
        let mut bucket = bucket();
        assert!(take(&mut bucket, 0, 0, CAPACITY));
        bucket.give_back("rpm", 4_000);
        assert!(take(&mut bucket, 0, 0, 4_000) && !take(&mut bucket, 0, 0, 1));
    }
}
