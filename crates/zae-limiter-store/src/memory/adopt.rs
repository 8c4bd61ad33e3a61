//! Buckets and usage of another store.

use std::collections::btree_map;

use zae_limiter_core::{UsageSnapshot, UsageWindow};

use super::MemoryStore;
use super::bucket::LockedChain;
use super::table::{UsageKey, UsageRow};
use crate::chain::HeldChain as _;
use crate::{Adopted, Adoption, BucketView, COUNTED_BY_THE_HOUR, Change, StoreError, audit};

impl MemoryStore {
    pub(super) fn adopt_now(
        &self,
        adoption: &Adoption<'_>,
        change: &Change,
    ) -> Result<Vec<Adopted>, StoreError> {
        adoption.check()?;
        self.check_adoption()?;
        let mut answers = Vec::with_capacity(adoption.buckets.len() + adoption.usage.len());
        let ended = self.adopt_each(adoption, change, &mut answers);
        let of_buckets = &answers[..answers.len().min(adoption.buckets.len())];
        let buckets = Adopted::made(of_buckets);
        let usage = Adopted::made(&answers) - buckets;
        // Also when one of them has failed: what was made before stays.
        if buckets + usage > 0 {
            let mut directory = self.shared.write_directory();
            let event = audit::adopted(change, buckets, usage, adoption.details);
            let audit = &mut directory.tenant_mut(self.number).audit;
            audit.record(event, self.shared.options.audit_events_max);
        }
        ended.map(|()| answers)
    }

    fn adopt_each(
        &self,
        adoption: &Adoption<'_>,
        change: &Change,
        answers: &mut Vec<Adopted>,
    ) -> Result<(), StoreError> {
        for bucket in adoption.buckets {
            answers.push(self.adopt_bucket(bucket, change)?);
        }
        for usage in adoption.usage {
            answers.push(self.adopt_usage(usage)?);
        }
        Ok(())
    }

    fn adopt_bucket(&self, bucket: &BucketView, change: &Change) -> Result<Adopted, StoreError> {
        let key = self.key(&bucket.entity, &bucket.resource);
        self.decide("adopt", &[key], change.at, |chain: &mut LockedChain<'_, '_>| {
            self.check_adoption()?;
            if chain.load(0, &[])?.is_some() {
                return Ok(Adopted::Kept);
            }
            let flag = chain.flag(0)?;
            chain.reserve(1)?;
            chain.save(0, bucket.state.clone().adopted(flag, change.at));
            Ok(Adopted::Made)
        })
    }

    fn adopt_usage(&self, snapshot: &UsageSnapshot) -> Result<Adopted, StoreError> {
        let UsageSnapshot { entity, resource, window, start, counters, events } = snapshot;
        if *window != UsageWindow::Hourly {
            return Ok(COUNTED_BY_THE_HOUR);
        }
        let mut shard = self.shared.lock_of(&self.key(entity, resource));
        self.check_adoption()?;
        let (entity, resource) = (entity.clone(), resource.clone());
        let key = UsageKey { start: *start, number: self.number, entity, resource };
        Ok(match shard.usage.rows.entry(key) {
            btree_map::Entry::Occupied(_) => Adopted::Kept,
            btree_map::Entry::Vacant(row) => {
                row.insert(UsageRow { used: counters.clone(), events: *events });
                Adopted::Made
            }
        })
    }

    fn check_adoption(&self) -> Result<(), StoreError> {
        match self.shared.read_directory().tenant(self.number).is_active() {
            true => Ok(()),
            false => Err(StoreError::namespace_gone("adopt")),
        }
    }
}
