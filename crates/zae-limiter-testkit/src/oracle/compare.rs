//! The comparison: every stored bucket against the oracle's, to the millitoken.

use std::collections::BTreeMap;

use zae_limiter_core::{TimeMs, UsageSnapshot};
use zae_limiter_store::BucketView;

use super::bucket::Bucket;
use super::{Broken, HourUsage, Oracle};

const HOUR_MS: i64 = 3_600_000;

impl Oracle {
    /// Compares everything stored in a namespace. A bucket that is gone must have been full at `now`.
    pub(crate) fn compare(&mut self, namespace: &str, stored: &[BucketView], now: TimeMs) -> Result<(), Broken> {
        self.coverage.compared += 1;
        let tenant = self.tenants.entry(namespace.to_owned()).or_default();
        let mut missing: Vec<_> = tenant.buckets.keys().cloned().collect();
        for view in stored {
            let key = (view.entity.clone(), view.resource.clone());
            let Some(bucket) = tenant.buckets.get(&key) else {
                return Err(format!("{namespace}: there is a bucket of {}/{} that nothing has created: {:?}", key.0, key.1, view.state));
            };
            missing.retain(|known| *known != key);
            let flagged = tenant.config.disabled_by(&key.0, &key.1).is_some();
            if let Some(difference) = difference(bucket, view, flagged) {
                return Err(format!("{namespace}: the bucket of {}/{} differs: {difference}", key.0, key.1));
            }
        }
        for key in missing {
            let Some(bucket) = tenant.buckets.remove(&key) else { continue };
            if !bucket.is_full_at(now.0) {
                return Err(format!("{namespace}: the bucket of {}/{} was forgotten although it was not full", key.0, key.1));
            }
            self.coverage.forgotten += 1;
            bucket.forget_into(now.0, tenant.past.entry(key).or_default());
        }
        Ok(())
    }

    /// Compares the usage history, open hours included, with the sums of takes and adjustments.
    pub(crate) fn compare_usage(&mut self, namespace: &str, snapshots: &[UsageSnapshot]) -> Result<(), Broken> {
        let is_something = |usage: &HourUsage| usage.events > 0 || usage.used.values().any(|milli| *milli != 0);
        let expected: BTreeMap<_, _> = self.tenant(namespace).usage.iter().filter(|(_, usage)| is_something(usage)).collect();
        if snapshots.len() != expected.len() {
            return Err(format!("{namespace}: there are {} hours of usage, expected {}", snapshots.len(), expected.len()));
        }
        for snapshot in snapshots {
            let hour = snapshot.start.0.div_euclid(HOUR_MS);
            let key = (snapshot.entity.clone(), snapshot.resource.clone(), hour);
            let counters = snapshot.counters.iter().map(|(name, milli)| (name.to_string(), i128::from(milli.0))).collect();
            let found = HourUsage { used: counters, events: snapshot.events };
            let wanted = expected.get(&key).map(|usage| HourUsage {
                used: usage.used.iter().filter(|(_, milli)| **milli != 0).map(|(name, milli)| (name.clone(), *milli)).collect(),
                events: usage.events,
            });
            if wanted.as_ref() != Some(&found) {
                return Err(format!("{namespace}: usage of {key:?} is {found:?}, expected {wanted:?}"));
            }
        }
        Ok(())
    }
}

/// The first thing in which a stored bucket is not what it should be.
fn difference(expected: &Bucket, view: &BucketView, flagged: bool) -> Option<String> {
    let stored = &view.state;
    let differs = |what: &str, stored: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug| {
        Some(format!("{what} is {stored:?}, expected {expected:?}"))
    };
    if stored.refilled_at.0 != expected.refilled_at {
        return differs("the refill instant", &stored.refilled_at.0, &expected.refilled_at);
    }
    if stored.stamp.0 != expected.stamp {
        return differs("the stamp", &stored.stamp.0, &expected.stamp);
    }
    if stored.disabled != expected.disabled || stored.disabled != flagged {
        return differs("the flag", &stored.disabled, &(expected.disabled, flagged));
    }
    if (i64::from(stored.hour), u64::from(stored.events)) != (expected.hour, expected.events) {
        return differs("the open hour", &(stored.hour, stored.events), &(expected.hour, expected.events));
    }
    let names = |active: usize, names: Vec<&str>| format!("{active} of {names:?}");
    let found = names(stored.active(), stored.all_limits().iter().map(|limit| limit.name.as_str()).collect());
    let wanted = names(expected.active, expected.accounts.iter().map(|account| account.name.as_str()).collect());
    if found != wanted {
        return differs("the set of limits", &found, &wanted);
    }
    for (limit, account) in stored.all_limits().iter().zip(&expected.accounts) {
        let params = &limit.params;
        let found = [params.capacity_milli, params.refill_milli, params.period_ms, limit.balance.0, limit.remainder, limit.consumed.0];
        let wanted = [
            account.params.capacity,
            account.params.refill,
            account.params.period,
            account.balance(),
            account.remainder(),
            account.consumed,
        ];
        if found.map(i128::from) != wanted {
            return differs(&format!("{} [capacity, refill, period, balance, remainder, consumed]", limit.name), &found, &wanted);
        }
        if limit.balance.0 > params.capacity_milli {
            return differs("a balance", &limit.balance.0, &"at most its capacity");
        }
        if i128::from(stored.gap(&limit.name).0) != account.gap {
            return differs(&format!("the gap of {}", limit.name), &stored.gap(&limit.name).0, &account.gap);
        }
        if i128::from(limit.hour_base.0) != account.hour_base {
            return differs("the base of the open hour", &limit.hour_base.0, &account.hour_base);
        }
    }
    None
}
