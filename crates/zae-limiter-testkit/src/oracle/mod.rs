//! The oracle: redoes the sums from what really landed in the store, by code of its own, and says
//! where the store differs.
//!
//! `journal` has the two wrappers around a store, which write the `books`: what was asked, what
//! landed, what was told. `bucket`, `meter`, `decision`, `config` and `history` redo the sums,
//! `compare` and `inspect` hold them against what is stored, `real` against real time. `lease` is a
//! lease as it should be, and `accounts` add up the leases of a run. `protocol` does the same for
//! the writes of the DynamoDB protocol.

pub(crate) mod accounts;
pub(crate) mod books;
pub(crate) mod bucket;
mod compare;
pub(crate) mod config;
mod decision;
pub(crate) mod history;
pub(crate) mod inspect;
pub(crate) mod journal;
pub(crate) mod lease;
mod meter;
pub(crate) mod protocol;
mod real;

use std::collections::BTreeMap;
use std::time::Duration;

use zae_limiter_core::{EntityId, Flag, Limit, LimitSource, ResourceName, TimeMs};
use zae_limiter_store::{
    Adjusted, BucketDelta, Change, DeletedEntity, Level, LimitsChange, MemberKey, NewEntity,
    ResetRequest, Resolution, StoreError, StoreErrorKind,
};

pub use books::Freshness;
use bucket::{Bucket, Past};
use config::Config;
use real::RealBucket;
pub use real::RealTime;

/// A broken promise, in words.
pub(crate) type Broken = String;

type BucketKey = (EntityId, ResourceName);

/// How often things happened, so that a test can tell whether a run was worth its time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Chains that were granted.
    pub granted: u64,
    /// Grants that took from more than one bucket.
    pub granted_chains: u64,
    /// Chains that were refused.
    pub refused: u64,
    /// Callers told to read the configuration again.
    pub stale: u64,
    /// Callers told that an administrator has disabled it.
    pub disabled: u64,
    /// Of those, callers who were stopped by a member of their chain that has no limits.
    pub disabled_unlimited: u64,
    /// Grants to a chain in which some member has no limits.
    pub granted_unlimited: u64,
    /// Buckets whose limits were changed by a take.
    pub synced: u64,
    /// Of those, changes that had to be kept although the take was refused.
    pub synced_on_refusal: u64,
    /// Charges and credits that were written.
    pub adjusted: u64,
    /// Charges that brought a forgotten bucket back.
    pub recreated: u64,
    /// Credits to a bucket that was no longer there.
    pub dropped: u64,
    /// Buckets seen in debt after a charge.
    pub in_debt: u64,
    /// Resets of a bucket.
    pub resets: u64,
    /// Changes of stored limits, flags and entities.
    pub config_changes: u64,
    /// Buckets that a sweep had forgotten, all of them full.
    pub forgotten: u64,
    /// Takes from a bucket in which a lowered limit hides how much its old capacity would lack.
    pub hidden_gaps: u64,
    /// Times all stored buckets were compared.
    pub compared: u64,
    /// Hours of usage that a sweep had removed, all of them old enough.
    pub hours_removed: u64,
    /// Grants held against the bound in real time.
    pub real_time: RealTime,
}

/// One namespace.
#[derive(Clone, Debug, Default)]
struct Tenant {
    config: Config,
    buckets: BTreeMap<BucketKey, Bucket>,
    /// What is remembered of limits that the store has forgotten.
    past: BTreeMap<BucketKey, Past>,
    /// What was admitted in real time, also from buckets that are forgotten.
    real: BTreeMap<BucketKey, RealBucket>,
    usage: BTreeMap<(EntityId, ResourceName, i64), HourUsage>,
    /// To whom the takes of an entity went on, by the stamp of the read that said so.
    named: BTreeMap<(EntityId, u64), Option<EntityId>>,
    /// The freshest read so far: its stamp, and how many changes there had been.
    freshest: (u64, u64),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HourUsage {
    used: BTreeMap<String, i128>,
    events: u64,
}

/// Everything the oracle knows.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    tenants: BTreeMap<String, Tenant>,
    /// How long the run has taken.
    elapsed_ms: i64,
    /// For how long usage is kept; `None` is for ever.
    usage_kept_ms: Option<i64>,
    /// The latest time a sweep has acted on.
    swept_at: Option<TimeMs>,
    pub(crate) coverage: Coverage,
}

impl Tenant {
    /// Somebody tells a bucket the time.
    fn told(
        &mut self,
        key: &BucketKey,
        now: TimeMs,
        elapsed_ms: i64,
        coverage: &mut Coverage,
    ) -> &mut RealBucket {
        let real = self.real.entry(key.clone()).or_default();
        real.told(now.0, elapsed_ms, &mut coverage.real_time);
        real.become_limits(self.buckets.get(key).map_or(&[][..], |bucket| &bucket.accounts));
        real
    }

    fn count(&mut self, key: &BucketKey, limit: &str, milli: i128) {
        let hour = self.buckets.get(key).map_or(0, |bucket| bucket.hour);
        let usage = self.usage.entry((key.0.clone(), key.1.clone(), hour)).or_default();
        *usage.used.entry(limit.to_owned()).or_default() += milli;
    }
}

impl Oracle {
    fn tenant(&mut self, namespace: &str) -> &mut Tenant {
        self.tenants.entry(namespace.to_owned()).or_default()
    }

    /// Time passes, for everybody.
    pub(crate) fn pass(&mut self, pause: Duration) {
        self.elapsed_ms =
            self.elapsed_ms.saturating_add(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX));
    }

    /// Usage is kept for a while only.
    pub(crate) fn keep_usage_for(&mut self, kept_ms: i64) {
        self.usage_kept_ms = Some(kept_ms);
    }

    /// A sweep that acts on this time.
    pub(crate) fn sweep(&mut self, now: TimeMs) {
        self.swept_at = self.swept_at.max(Some(now));
    }

    /// What is stored in a namespace.
    pub(crate) fn config(&self, namespace: &str) -> Option<&Config> {
        self.tenants.get(namespace).map(|tenant| &tenant.config)
    }

    /// One bucket's charges and credits.
    pub(crate) fn adjust(
        &mut self,
        namespace: &str,
        delta: &BucketDelta<'_>,
        now: TimeMs,
        said: &Result<Adjusted, StoreError>,
    ) -> Result<(), Broken> {
        let said =
            said.as_ref().map_err(|error| format!("adjust failed in the store itself: {error}"))?;
        let tenant = self.tenants.entry(namespace.to_owned()).or_default();
        let key = (delta.entity.clone(), delta.resource.clone());
        let charges = delta.deltas.iter().any(|change| change.amount.0 > 0);
        let expected = match (tenant.buckets.contains_key(&key), charges) {
            (true, _) => Adjusted::Applied,
            (false, true) => Adjusted::Recreated,
            (false, false) => Adjusted::Dropped,
        };
        if *said != expected {
            return Err(format!(
                "adjust of {}/{} said {said:?}, expected {expected:?}",
                key.0, key.1
            ));
        }
        match expected {
            Adjusted::Applied => self.coverage.adjusted += 1,
            Adjusted::Recreated => self.coverage.recreated += 1,
            Adjusted::Dropped => {
                self.coverage.dropped += 1;
                return Ok(());
            }
        }
        tenant.told(&key, now, self.elapsed_ms, &mut self.coverage);
        let past = tenant.past.entry(key.clone()).or_default();
        if expected == Adjusted::Recreated {
            let disabled = tenant.config.blocked_by(&key.0, &key.1).is_some();
            let (limits, stamp) = made_again(&tenant.config, delta, tenant.freshest);
            let bucket = Bucket::full(&limits, stamp, disabled, now.0, past);
            tenant.buckets.insert(key.clone(), bucket);
        }
        let bucket = tenant.buckets.get_mut(&key).ok_or("the bucket was just looked up")?;
        let mut counted: Vec<(&Limit, i128)> = Vec::new();
        for change in delta.deltas {
            let limit = &delta.limits.limits[usize::from(change.limit)];
            let milli = i128::from(change.amount.0);
            if bucket.adjust(limit, milli, now.0, past) {
                counted.push((limit, milli));
            }
        }
        self.coverage.in_debt +=
            u64::from(bucket.accounts.iter().any(|account| account.balance() < 0));
        let real = tenant.real.entry(key.clone()).or_default();
        real.become_limits(&bucket.accounts);
        counted
            .iter()
            .for_each(|(limit, milli)| real.give_back(limit.name().as_str(), (-milli).max(0)));
        for (limit, milli) in counted {
            tenant.count(&key, limit.name().as_str(), milli);
        }
        Ok(())
    }

    pub(crate) fn reset(
        &mut self,
        namespace: &str,
        request: &ResetRequest<'_>,
        change: &Change,
        said: &Option<Vec<(String, i128)>>,
    ) -> Result<(), Broken> {
        let only: Option<Vec<String>> =
            request.only.map(|names| names.iter().map(ToString::to_string).collect());
        let key = (request.entity.clone(), request.resource.clone());
        let tenant = self.tenants.entry(namespace.to_owned()).or_default();
        let expected =
            tenant.buckets.get_mut(&key).map(|bucket| bucket.reset(only.as_deref(), change.at.0));
        if let Some(gained) = &expected {
            let real = tenant.told(&key, change.at, self.elapsed_ms, &mut self.coverage);
            gained.iter().for_each(|(name, milli)| real.give_back(name, *milli));
        }
        self.coverage.resets += u64::from(expected.is_some());
        if *said == expected {
            Ok(())
        } else {
            Err(format!("reset gave {said:?}, expected {expected:?}"))
        }
    }

    pub(crate) fn set_limits(&mut self, namespace: &str, level: &Level, change: &LimitsChange) {
        self.coverage.config_changes += 1;
        self.tenant(namespace).config.set_limits(level, &change.limits);
    }

    pub(crate) fn delete_limits(
        &mut self,
        namespace: &str,
        level: &Level,
        said: bool,
    ) -> Result<(), Broken> {
        let expected = self.tenant(namespace).config.delete_limits(level);
        self.coverage.config_changes += u64::from(expected);
        if said == expected {
            Ok(())
        } else {
            Err(format!("delete_limits of {level} said {said}, expected {expected}"))
        }
    }

    pub(crate) fn set_flag(
        &mut self,
        namespace: &str,
        level: &Level,
        flag: Option<Flag>,
        said: u64,
    ) -> Result<(), Broken> {
        self.coverage.config_changes += 1;
        let tenant = self.tenant(namespace);
        tenant.config.set_flag(level, flag);
        let mut covered = 0;
        for ((entity, resource), bucket) in &mut tenant.buckets {
            if Config::covers(level, entity, resource) {
                covered += 1;
                bucket.disabled = tenant.config.blocked_by(entity, resource).is_some();
            }
        }
        if said == covered {
            Ok(())
        } else {
            Err(format!("set_flag of {level} reached {said} buckets, expected {covered}"))
        }
    }

    pub(crate) fn create_entity(
        &mut self,
        namespace: &str,
        new: &NewEntity,
        said: Result<(), StoreErrorKind>,
    ) -> Result<(), Broken> {
        let expected = self.tenant(namespace).config.create_entity(new);
        self.coverage.config_changes += u64::from(expected.is_ok());
        if said == expected {
            Ok(())
        } else {
            Err(format!("create_entity of {} said {said:?}, expected {expected:?}", new.id))
        }
    }

    pub(crate) fn delete_entity(
        &mut self,
        namespace: &str,
        id: &EntityId,
        said: Result<DeletedEntity, StoreErrorKind>,
    ) -> Result<(), Broken> {
        let tenant = self.tenant(namespace);
        let expected = tenant.config.delete_entity(id).map(|configs| {
            let before = tenant.buckets.len();
            tenant.buckets.retain(|(entity, _), _| entity != id);
            // An administrator deleted it, debts and all: what comes back is a new entity.
            tenant.past.retain(|(entity, _), _| entity != id);
            tenant.real.retain(|(entity, _), _| entity != id);
            DeletedEntity { buckets: (before - tenant.buckets.len()) as u64, configs }
        });
        self.coverage.config_changes += u64::from(expected.is_ok());
        if said == expected {
            Ok(())
        } else {
            Err(format!("delete_entity of {id} said {said:?}, expected {expected:?}"))
        }
    }

    /// A read of the configuration: what it says, and that its freshness grows with every change.
    pub(crate) fn resolve(
        &mut self,
        namespace: &str,
        keys: &[MemberKey<'_>],
        said: &Resolution,
    ) -> Result<(), Broken> {
        let tenant = self.tenant(namespace);
        for (key, member) in keys.iter().zip(&said.members) {
            let expected = tenant.config.member(key.entity, key.resource);
            if *member != expected {
                return Err(format!(
                    "resolve of {}/{} said {member:?}, expected {expected:?}",
                    key.entity, key.resource
                ));
            }
            tenant.named.insert((key.entity.clone(), said.stamp.0), member.cascades_to.clone());
        }
        let (stamp, changes) = (said.stamp.0, tenant.config.changes);
        let (last_stamp, last_changes) = tenant.freshest;
        let in_order = if changes > last_changes {
            stamp > last_stamp || tenant.freshest == (0, 0)
        } else {
            stamp >= last_stamp
        };
        if !in_order {
            return Err(format!(
                "a read after {changes} changes has stamp {stamp}, one after {last_changes} had {last_stamp}"
            ));
        }
        tenant.freshest = (stamp, changes);
        Ok(())
    }
}

/// What a bucket is made again from that a late charge finds forgotten: the limits in force by now,
/// unless the call had brought its own or they lack what is charged.
fn made_again(
    config: &Config,
    delta: &BucketDelta<'_>,
    (stamp, changes): (u64, u64),
) -> (Vec<Limit>, u64) {
    let receipt = (delta.limits.limits.to_vec(), delta.limits.stamp.0);
    let Some((limits, _)) = config.member(delta.entity, delta.resource).limits else {
        return receipt;
    };
    let charges = delta.deltas.iter().filter(|change| change.amount.0 > 0);
    let mut charged = charges.map(|change| delta.limits.limits[usize::from(change.limit)].name());
    if delta.limits.source == LimitSource::Call
        || !charged.all(|name| limits.iter().any(|limit| limit.name() == name))
    {
        return receipt;
    }
    (limits.to_vec(), stamp + (config.changes - changes))
}
