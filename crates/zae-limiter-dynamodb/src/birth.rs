//! Making a bucket that is not there, without making it behind the back of an administrator who switches it off.

use std::sync::Arc;

use zae_limiter_store::{MemberTake, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::config;
use crate::constants::CREATE_TRUST_MS;
use crate::create::Birth;
use crate::entity::Owner;
use crate::refill::Amount;
use crate::table::Key;
use crate::take::{Moment, count};
use crate::write::{BucketWrite, Writer};

/// Whether a bucket may be made.
pub(crate) enum Vouched {
    /// Whose it will be; `None` for an entity without a record.
    For(Option<Arc<Owner>>),
    Disabled,
}

impl DynamoStore {
    pub(crate) fn birth(&self, member: &MemberTake<'_>, owner: Option<&Owner>, nonce: &str, now: i64) -> BucketWrite {
        let limits = &member.limits.limits;
        let amounts: Vec<Amount<'_>> =
            member.takes.iter().map(|take| Amount { limit: &limits[usize::from(take.limit)], milli: take.amount.0 }).collect();
        let birth = Birth {
            namespace: &self.id,
            entity: member.entity,
            resource: member.resource,
            owner,
            limits: member.limits,
            amounts: &amounts,
            disabled: false,
            nonce,
            now,
        };
        birth.build(Writer::Create)
    }

    /// Whose bucket it will be, and that nobody has switched it off: from the cache if that was read just now.
    pub(crate) async fn vouch_for_birth(&self, member: &MemberTake<'_>) -> Result<Vouched, StoreError> {
        zae_limiter_core::check_limits(&member.limits.limits)
            .map_err(|error| StoreError::new(StoreErrorKind::Invalid, "consume", error.to_string()))?;
        let age_us = self.shared.caches.tick(self.shared.wall()).saturating_sub(member.limits.stamp.0);
        if age_us < CREATE_TRUST_MS * 1000
            && let Some(owner) = self.shared.caches.owner(&self.id, member.entity)
        {
            return Ok(Vouched::For(Some(owner)));
        }
        let found = self.member(member).await?;
        if found.disabled_by.is_some() {
            return Ok(Vouched::Disabled);
        }
        Ok(Vouched::For(self.shared.caches.owner(&self.id, member.entity)))
    }

    /// Looks once more after a bucket was made. Whoever switches off writes the flag, then looks for buckets; whoever makes a
    /// bucket writes it, then looks for the flag: one of the two sees the other.
    pub(crate) async fn is_still_on(&self, member: &MemberTake<'_>, key: &Key, moment: Moment) -> Result<bool, StoreError> {
        let found = self.member(member).await;
        if matches!(&found, Ok(found) if found.disabled_by.is_none()) {
            return Ok(true);
        }
        let limits = &member.limits.limits;
        let amounts: Vec<Amount<'_>> = member
            .takes
            .iter()
            .filter(|take| take.amount.0 > 0)
            .map(|take| Amount { limit: &limits[usize::from(take.limit)], milli: take.amount.0 })
            .collect();
        // Off first: that what was taken stays taken is the smaller harm of the two.
        let flagged = match found {
            Ok(_) => {
                let flag = config::flags::write_flag(key.clone(), true);
                self.shared
                    .persist("consume", || self.table().update(&flag))
                    .await
                    .map(drop)
                    .map_err(|refused| refused.into_error("consume"))
            }
            Err(error) => Err(error),
        };
        if !amounts.is_empty() {
            let credited = self.credit(key, &amounts, moment).await;
            credited.inspect_err(|_| count(&self.shared.caches.tally.credits_lost))?;
        }
        self.shared.caches.forget(&key.pk);
        flagged.map(|()| false)
    }
}
