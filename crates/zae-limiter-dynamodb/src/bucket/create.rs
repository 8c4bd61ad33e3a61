//! Making a bucket that is not there. An administrator may disable it at the same moment: the
//! bucket must not stay enabled.

use std::sync::Arc;

use zae_limiter_core::{ConfigStamp, Flag, Milli, TimeMs};
use zae_limiter_store::{LimitsInForce, MemberKey, MemberTake, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::admin::entity::Owner;
use crate::bucket::credit::Undo;
use crate::bucket::operation::{Moment, amounts_of, count};
use crate::bucket::refill::Amount;
use crate::bucket::take::Taken;
use crate::bucket::write::{BucketWrite, NewBucket, Nonce, Purpose, Shape};
use crate::config::{Member, Trust, Verdict};
use crate::records::keys;
use crate::table::Key;

/// What a bucket begins with.
pub(crate) struct New<'a> {
    /// `None` when the entity has no record.
    pub(crate) owner: Option<&'a Arc<Owner>>,
    pub(crate) limits: &'a LimitsInForce,
    /// Taken or charged on the way.
    pub(crate) amounts: &'a [Amount<'a>],
    pub(crate) flag: Flag,
    pub(crate) nonce: &'a Nonce,
    pub(crate) now: TimeMs,
}

/// Whether a bucket may be made.
pub(crate) enum MayCreate {
    /// It may, and whose it will be; `None` for an entity without a record.
    Yes(Option<Arc<Owner>>),
    Blocked(Flag),
    /// The configuration has changed since the caller read its limits.
    Stale,
}

impl DynamoStore {
    /// The write that makes a bucket, if it is not there, and takes or charges on the way.
    pub(crate) fn create(
        &self,
        purpose: Purpose,
        member: MemberKey<'_>,
        bucket: New<'_>,
    ) -> BucketWrite {
        let amounts = bucket.amounts.iter();
        let bucket = NewBucket {
            namespace: Arc::clone(&self.id),
            entity: member.entity.clone(),
            resource: member.resource.clone(),
            owner: bucket.owner.cloned(),
            limits: bucket.limits.clone(),
            amounts: amounts.map(|amount| (amount.limit.name().clone(), amount.milli)).collect(),
            flag: bucket.flag,
            nonce: bucket.nonce.clone(),
            now: bucket.now,
            carried: None,
        };
        let key = keys::bucket(&self.id, member.entity, member.resource, 0);
        BucketWrite { key, purpose, shape: Shape::Make(Box::new(bucket)) }
    }

    /// Whether a bucket may be made, and whose it will be: it must be enabled and its limits in
    /// force. Answers from memory as far as the configuration was read just now. A bucket made from
    /// limits that have been replaced would be full by the old capacity.
    pub(crate) async fn may_create(
        &self,
        member: &MemberTake<'_>,
    ) -> Result<MayCreate, StoreError> {
        zae_limiter_core::check_limits(&member.limits.limits).map_err(|error| {
            StoreError::new(StoreErrorKind::Invalid, "consume", error.to_string())
        })?;
        let found = self.member(member, Trust::BEFORE_CREATE).await?;
        Ok(match verdict(&found, member) {
            Verdict::Blocked(flag) => MayCreate::Blocked(flag),
            Verdict::Different => MayCreate::Stale,
            Verdict::Same => MayCreate::Yes(found.owner),
        })
    }

    /// Looks once more after a bucket was made. An administrator writes the flag, then looks for
    /// buckets; a take writes the bucket, then looks for the flag: one of the two sees the other.
    /// `Some` is the answer when the amounts are given back: the bucket is disabled, or its limits
    /// were replaced meanwhile.
    pub(crate) async fn confirm_created(
        &self,
        member: &MemberTake<'_>,
        key: &Key,
        moment: Moment,
    ) -> Result<Option<Taken>, StoreError> {
        let found =
            self.member(member, Trust::AFTER_CREATE).await.map(|found| verdict(&found, member));
        if matches!(found, Ok(Verdict::Same)) {
            return Ok(None);
        }
        let is_taken = self.shared.options.born_split == 1;
        let amounts = amounts_of(member, |milli| is_taken && milli > Milli::ZERO);
        // The bucket is disabled first: amounts that stay taken are the smaller harm of the two.
        let answer = match found {
            Ok(Verdict::Blocked(flag)) => {
                let flagged = self.flag_new_bucket(member, key, flag).await;
                flagged.map(|()| Some(Taken::Blocked(flag)))
            }
            Ok(Verdict::Same | Verdict::Different) => Ok(Some(Taken::Stale)),
            Err(error) => Err(error),
        };
        let undo = Undo { mark: self.undo_mark(moment), is_counted: true };
        let credited = self.credit(key, &amounts, Some(undo), moment).await;
        credited.inspect_err(|_| count(&self.shared.caches.tally.credits_lost))?;
        self.shared.caches.forget(&key.pk);
        answer
    }
}

/// What a configuration says about the limits of a bucket that is made. Limits without a stamp were
/// not read from a store: no configuration can contradict them.
fn verdict(found: &Member, member: &MemberTake<'_>) -> Verdict {
    match found.verdict_on(member) {
        Verdict::Different if member.limits.stamp == ConfigStamp::default() => Verdict::Same,
        verdict => verdict,
    }
}
