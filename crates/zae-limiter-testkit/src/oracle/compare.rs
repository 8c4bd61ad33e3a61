//! The comparison: every stored bucket against the oracle's, to the millitoken.

use std::collections::{BTreeMap, BTreeSet};

use zae_limiter_core::{TimeMs, UsageSnapshot};
use zae_limiter_store::BucketView;

use super::bucket::Bucket;
use super::{Broken, HourUsage, Oracle};

const HOUR_MS: i64 = 3_600_000;

impl Oracle {
    /// Compares everything stored in a namespace. A bucket that is gone must have been full at
    /// `now`.
    pub(crate) fn compare(
        &mut self,
        namespace: &str,
        stored: &[BucketView],
        now: TimeMs,
    ) -> Result<(), Broken> {
        self.coverage.compared += 1;
        let tenant = self.tenants.entry(namespace.to_owned()).or_default();
        let mut missing: Vec<_> = tenant.buckets.keys().cloned().collect();
        for view in stored {
            let key = (view.entity.clone(), view.resource.clone());
            let Some(bucket) = tenant.buckets.get(&key) else {
                return Err(format!(
                    "{namespace}: there is a bucket of {}/{} that nothing has created: {:?}",
                    key.0, key.1, view.state
                ));
            };
            missing.retain(|known| *known != key);
            let flagged = tenant.config.blocked_by(&key.0, &key.1).is_some();
            if let Some(difference) = difference(bucket, view, flagged) {
                return Err(format!(
                    "{namespace}: the bucket of {}/{} differs: {difference}",
                    key.0, key.1
                ));
            }
        }
        for key in missing {
            let Some(bucket) = tenant.buckets.get(&key).cloned() else { continue };
            tenant.told(&key, now, self.elapsed_ms, &mut self.coverage);
            tenant.buckets.remove(&key);
            if !bucket.is_full_at(now.0) {
                return Err(format!(
                    "{namespace}: the bucket of {}/{} was forgotten although it was not full",
                    key.0, key.1
                ));
            }
            self.coverage.forgotten += 1;
            bucket.forget_into(now.0, tenant.past.entry(key).or_default());
        }
        Ok(())
    }

    /// Compares the usage history, open hours included, with the sums of takes and adjustments.
    /// After a sweep of everything what was too old by then is gone.
    pub(crate) fn compare_usage(
        &mut self,
        namespace: &str,
        snapshots: &[UsageSnapshot],
        swept: Option<TimeMs>,
    ) -> Result<(), Broken> {
        let is_something =
            |usage: &HourUsage| usage.events > 0 || usage.used.values().any(|milli| *milli != 0);
        // An hour is as old as its beginning. What is old enough for a sweep may be gone, and come
        // back in part with a late write.
        let kept_ms = self.usage_kept_ms;
        let is_young = |hour: i64, swept_at: Option<TimeMs>| {
            kept_ms.zip(swept_at).is_none_or(|(kept_ms, swept_at)| {
                hour.saturating_mul(HOUR_MS) >= swept_at.0.saturating_sub(kept_ms)
            })
        };
        let swept_at = self.swept_at;
        let is_kept = |hour: i64| is_young(hour, swept_at);
        let tenant = self.tenants.entry(namespace.to_owned()).or_default();
        let expected: BTreeMap<_, _> =
            tenant.usage.iter().filter(|(_, usage)| is_something(usage)).collect();
        let found_at = |snapshot: &UsageSnapshot| {
            (
                snapshot.entity.clone(),
                snapshot.resource.clone(),
                snapshot.start.0.div_euclid(HOUR_MS),
            )
        };
        let found: BTreeSet<_> = snapshots.iter().map(found_at).collect();
        if found.len() != snapshots.len() {
            return Err(format!(
                "{namespace}: there are {} snapshots of {} hours",
                snapshots.len(),
                found.len()
            ));
        }
        for key in expected.keys().filter(|key| !found.contains(*key)) {
            if is_kept(key.2) {
                return Err(format!("{namespace}: usage of {key:?} is missing"));
            }
            self.coverage.hours_removed += 1;
        }
        for snapshot in snapshots {
            let key = found_at(snapshot);
            if !is_kept(key.2) {
                let is_open = tenant
                    .buckets
                    .get(&(key.0.clone(), key.1.clone()))
                    .is_some_and(|bucket| bucket.hour == key.2);
                if !is_young(key.2, swept) && !is_open {
                    return Err(format!(
                        "{namespace}: usage of {key:?} is kept although it is too old"
                    ));
                }
                continue;
            }
            let counters = snapshot
                .counters
                .iter()
                .map(|(name, milli)| (name.to_string(), i128::from(milli.0)))
                .collect();
            let found = HourUsage { used: counters, events: snapshot.events };
            let wanted = expected.get(&key).map(|usage| HourUsage {
                used: usage
                    .used
                    .iter()
                    .filter(|(_, milli)| **milli != 0)
                    .map(|(name, milli)| (name.clone(), *milli))
                    .collect(),
                events: usage.events,
            });
            if wanted.as_ref() != Some(&found) {
                return Err(format!(
                    "{namespace}: usage of {key:?} is {found:?}, expected {wanted:?}"
                ));
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
    let lead = (stored.lead_ms(), stored.is_led());
    if lead != (expected.lead, expected.is_led) {
        return differs(
            "the lead of a clock, and whether it was paid last",
            &lead,
            &(expected.lead, expected.is_led),
        );
    }
    if stored.stamp.0 != expected.stamp {
        return differs("the stamp", &stored.stamp.0, &expected.stamp);
    }
    if stored.flag.blocks() != expected.disabled || stored.flag.blocks() != flagged {
        return differs("the flag", &stored.flag.blocks(), &(expected.disabled, flagged));
    }
    if (i64::from(stored.hour), u64::from(stored.events)) != (expected.hour, expected.events) {
        return differs(
            "the open hour",
            &(stored.hour, stored.events),
            &(expected.hour, expected.events),
        );
    }
    let names = |active: usize, names: Vec<&str>| format!("{active} of {names:?}");
    let found = names(
        stored.active(),
        stored.all_limits().iter().map(|limit| limit.name.as_str()).collect(),
    );
    let wanted = names(
        expected.active,
        expected.accounts.iter().map(|account| account.name.as_str()).collect(),
    );
    if found != wanted {
        return differs("the set of limits", &found, &wanted);
    }
    for (limit, account) in stored.all_limits().iter().zip(&expected.accounts) {
        let params = &limit.params;
        let found = [
            params.capacity_milli,
            params.refill_milli,
            params.period_ms,
            limit.balance.0,
            limit.remainder,
            limit.consumed.0,
        ];
        let wanted = [
            account.params.capacity,
            account.params.refill,
            account.params.period,
            account.balance(),
            account.remainder(),
            account.consumed,
        ];
        if found.map(i128::from) != wanted {
            return differs(
                &format!("{} [capacity, refill, period, balance, remainder, consumed]", limit.name),
                &found,
                &wanted,
            );
        }
        if limit.balance.0 > params.capacity_milli {
            return differs("a balance", &limit.balance.0, &"at most its capacity");
        }
        if i128::from(stored.gap(&limit.name).0) != account.gap {
            return differs(
                &format!("the gap of {}", limit.name),
                &stored.gap(&limit.name).0,
                &account.gap,
            );
        }
        if i128::from(limit.hour_base.0) != account.hour_base {
            return differs("the base of the open hour", &limit.hour_base.0, &account.hour_base);
        }
    }
    None
}
