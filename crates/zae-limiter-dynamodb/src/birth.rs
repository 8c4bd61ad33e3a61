//! Making a bucket that is not there, without making it behind the back of an administrator who
//! switches it off.

use std::sync::Arc;

use zae_limiter_core::ConfigStamp;
use zae_limiter_store::{MemberTake, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::config::{Member, Trust, Verdict};
use crate::create::Birth;
use crate::entity::Owner;
use crate::refill::Amount;
use crate::table::Key;
use crate::take::{Moment, Taken, count};
use crate::write::{BucketWrite, Writer};

/// Whether a bucket may be made.
pub(crate) enum Vouched {
    /// Whose it will be; `None` for an entity without a record.
    For(Option<Arc<Owner>>),
    Disabled,
    /// The configuration has changed since the caller read its limits.
    Stale,
}

impl DynamoStore {
    pub(crate) fn birth(
        &self,
        member: &MemberTake<'_>,
        owner: Option<&Owner>,
        nonce: &str,
        now: i64,
    ) -> BucketWrite {
        let limits = &member.limits.limits;
        let amounts: Vec<Amount<'_>> = member
            .takes
            .iter()
            .map(|take| Amount { limit: &limits[usize::from(take.limit)], milli: take.amount.0 })
            .collect();
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

    /// Whose bucket it will be, that nobody has switched it off, and that its limits are those in
    /// force: from memory as far as that was read just now. A bucket made from limits that have
    /// been replaced would be full by the old capacity.
    pub(crate) async fn vouch_for_birth(
        &self,
        member: &MemberTake<'_>,
    ) -> Result<Vouched, StoreError> {
        zae_limiter_core::check_limits(&member.limits.limits).map_err(|error| {
            StoreError::new(StoreErrorKind::Invalid, "consume", error.to_string())
        })?;
        let found = self.member(member, Trust::BEFORE_BIRTH).await?;
        Ok(match verdict(&found, member) {
            Verdict::Disabled => Vouched::Disabled,
            Verdict::Different => Vouched::Stale,
            Verdict::Same => Vouched::For(found.owner),
        })
    }

    /// Looks once more after a bucket was made. Whoever switches off writes the flag, then looks
    /// for buckets; whoever makes a bucket writes it, then looks for the flag: one of the two sees
    /// the other. `Some` is the answer when what was taken is given back: the bucket is off, or its
    /// limits were replaced meanwhile.
    pub(crate) async fn look_again(
        &self,
        member: &MemberTake<'_>,
        key: &Key,
        moment: Moment,
    ) -> Result<Option<Taken>, StoreError> {
        let found =
            self.member(member, Trust::AFTER_BIRTH).await.map(|found| verdict(&found, member));
        if matches!(found, Ok(Verdict::Same)) {
            return Ok(None);
        }
        let limits = &member.limits.limits;
        let amounts: Vec<Amount<'_>> = member
            .takes
            .iter()
            .filter(|take| take.amount.0 > 0)
            .map(|take| Amount { limit: &limits[usize::from(take.limit)], milli: take.amount.0 })
            .collect();
        // Off first: that what was taken stays taken is the smaller harm of the two.
        let answer = match found {
            Ok(Verdict::Disabled) => {
                self.switch_off_newborn(member, key).await.map(|()| Some(Taken::Disabled))
            }
            Ok(Verdict::Same | Verdict::Different) => Ok(Some(Taken::Stale)),
            Err(error) => Err(error),
        };
        if !amounts.is_empty() {
            let credited = self.credit(key, &amounts, moment).await;
            credited.inspect_err(|_| count(&self.shared.caches.tally.credits_lost))?;
        }
        self.shared.caches.forget(&key.pk);
        answer
    }
}

/// What a configuration says about the limits of a bucket that is made. Limits without a stamp were
/// not read from a store: nothing that was read can contradict them.
fn verdict(found: &Member, member: &MemberTake<'_>) -> Verdict {
    match found.verdict_on(member) {
        Verdict::Different if member.limits.stamp == ConfigStamp::default() => Verdict::Same,
        verdict => verdict,
    }
}
