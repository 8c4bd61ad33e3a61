//! Settling with one bucket after the fact: charges at least once, credits at most once.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use zae_limiter_store::{Adjusted, BucketDelta, MemberKey, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::cache::Seen;
use crate::charge::{self, Charge};
use crate::config;
use crate::constants::{REFILL_ATTEMPTS_MAX, SEND_ATTEMPTS_MAX};
use crate::create::Birth;
use crate::credit::{self, Credit};
use crate::debit::View;
use crate::error::failed;
use crate::keys;
use crate::refill::Amount;
use crate::table::{Key, TableError};
use crate::take::{Moment, Sent, count};
use crate::write::Writer;

/// Amounts of one bucket.
pub(crate) type Amounts<'a> = SmallVec<[Amount<'a>; 2]>;

impl DynamoStore {
    /// Charges and gives back. The charge first: what is owed is never lost to a failure of what is given.
    pub(crate) async fn settle(&self, delta: &BucketDelta<'_>, moment: Moment) -> Result<Adjusted, StoreError> {
        let (mut charges, mut credits) = (Amounts::new(), Amounts::new());
        for change in delta.deltas {
            let Some(limit) = delta.limits.limits.get(usize::from(change.limit)) else {
                let message = format!("a change of {} names limit {}, which its receipt does not have", delta.entity, change.limit);
                return Err(StoreError::new(StoreErrorKind::Invalid, "adjust", message));
            };
            match change.amount.0 {
                0 => {}
                milli if milli > 0 => charges.push(Amount { limit, milli }),
                milli => credits.push(Amount { limit, milli: milli.saturating_neg() }),
            }
        }
        let charged = if charges.is_empty() { None } else { Some(self.charge(delta, &charges, moment).await?) };
        let is_charged = matches!(charged, Some(Adjusted::Applied | Adjusted::Recreated));
        let credited = if credits.is_empty() { None } else { Some(self.credit(&self.key_of(delta), &credits, moment).await) };
        let credited = match credited {
            // The charge has landed: an error would have it sent again. What was not given back stays spent.
            Some(Err(error)) if is_charged => {
                count(&self.shared.caches.tally.credits_lost);
                tracing::warn!(%error, "charged, but what was to be given back beside it stays spent");
                None
            }
            credited => credited.transpose()?,
        };
        Ok(match (charged, credited) {
            (Some(Adjusted::Recreated), _) => Adjusted::Recreated,
            (Some(Adjusted::Applied), _) | (_, Some(Adjusted::Applied)) => Adjusted::Applied,
            (None, None) => self.untouched(delta, moment).await?,
            _ => Adjusted::Dropped,
        })
    }

    fn key_of(&self, delta: &BucketDelta<'_>) -> Key {
        keys::bucket(&self.id, delta.entity, delta.resource, 0)
    }

    /// A change of nothing: is there a bucket it could have been made to?
    async fn untouched(&self, delta: &BucketDelta<'_>, moment: Moment) -> Result<Adjusted, StoreError> {
        let key = self.key_of(delta);
        let look = match self.recall(&key).filter(|look| look.image.is_some()) {
            Some(look) => look,
            None => self.look(&key, moment).await?,
        };
        Ok(if look.image.is_some() { Adjusted::Applied } else { Adjusted::Dropped })
    }

    async fn charge(&self, delta: &BucketDelta<'_>, amounts: &[Amount<'_>], moment: Moment) -> Result<Adjusted, StoreError> {
        let key = self.key_of(delta);
        let nonce = self.nonce_of(delta.operation);
        let charge = Charge { key: &key, receipt: delta.limits, amounts, nonce: &nonce };
        let mut seen = self.recall(&key);
        let mut is_fresh = false;
        let (mut races, mut sends, mut is_ambiguous) = (0, 0, false);
        loop {
            let now = self.now(moment);
            let step = charge.plan(view(seen.as_deref(), is_fresh), races >= REFILL_ATTEMPTS_MAX, now)?;
            let (write, outcome) = match step {
                charge::Step::Charge(write) => (write, Adjusted::Applied),
                charge::Step::Recreate => {
                    // As it is configured now: a charge must not switch on what an administrator has switched off.
                    let found =
                        config::member(&self.shared, &self.id, MemberKey { entity: delta.entity, resource: delta.resource }).await?;
                    let owner = self.shared.caches.owner(&self.id, delta.entity);
                    let birth = Birth {
                        namespace: &self.id,
                        entity: delta.entity,
                        resource: delta.resource,
                        owner: owner.as_deref(),
                        limits: delta.limits,
                        amounts,
                        disabled: found.disabled_by.is_some(),
                        nonce: &nonce,
                        // Reading took its time: it was full as of now, not as of then.
                        now: self.now(moment),
                    };
                    (birth.build(Writer::Recreate), Adjusted::Recreated)
                }
                charge::Step::Drop => return Ok(Adjusted::Dropped),
            };
            // Amounts that the write of the last resort can not charge.
            let left_out = match seen.as_deref().and_then(|look| look.image.as_ref()) {
                Some(image) if write.writer == Writer::ChargePlain => charge.left_out(image),
                _ => 0,
            };
            match self.send(write).await? {
                Sent::Landed(item) => {
                    self.uncharged(&key, left_out);
                    self.note_landed(&key, &item, moment);
                    return Ok(outcome);
                }
                Sent::Lost(item) => {
                    let look = match self.note(&key, item.as_ref(), moment) {
                        Ok(look) => look,
                        // An earlier attempt may have landed: that it can not be read is not the whole answer.
                        Err(error) if is_ambiguous => return Err(self.charge_failed(TableError::Unknown(error.to_string()), true)),
                        Err(error) => return Err(error),
                    };
                    if look.image.as_ref().is_some_and(|image| image.lw.as_deref() == Some(&nonce)) {
                        count(&self.shared.caches.tally.debits_confirmed);
                        self.uncharged(&key, left_out);
                        return Ok(Adjusted::Applied);
                    }
                    (seen, is_fresh) = (Some(look), true);
                    races += 1;
                }
                Sent::Unknown(error) => {
                    if !is_ambiguous {
                        count(&self.shared.caches.tally.debits_resent);
                    }
                    is_ambiguous = true;
                    sends += 1;
                    if sends >= SEND_ATTEMPTS_MAX {
                        count(&self.shared.caches.tally.debits_unknown);
                        return Err(failed("adjust", error));
                    }
                }
                Sent::NotYet(error) => {
                    sends += 1;
                    if sends >= SEND_ATTEMPTS_MAX {
                        return Err(self.charge_failed(error, is_ambiguous));
                    }
                    self.shared.back_off(sends).await;
                }
            }
            if races > 2 * REFILL_ATTEMPTS_MAX {
                // The plain form has no race to lose except against somebody who deletes and re-creates the bucket all the time.
                let error = TableError::NotApplied("the bucket keeps appearing and disappearing".to_owned());
                return Err(self.charge_failed(error, is_ambiguous));
            }
        }
    }

    fn uncharged(&self, key: &Key, limits: usize) {
        if limits > 0 {
            self.shared.caches.tally.charges_lost.fetch_add(limits as u64, Ordering::Relaxed);
            tracing::warn!(pk = key.pk, limits, "limits that the bucket has forgotten were not charged");
        }
    }

    /// An earlier attempt may have landed, whatever became of the last one.
    fn charge_failed(&self, error: TableError, is_ambiguous: bool) -> StoreError {
        if !is_ambiguous {
            return failed("adjust", error);
        }
        count(&self.shared.caches.tally.debits_unknown);
        failed("adjust", TableError::Unknown(error.to_string()))
    }

    /// Gives back, at most once: sent again only when the last attempt is proven not to have landed.
    pub(crate) async fn credit(&self, key: &Key, amounts: &[Amount<'_>], moment: Moment) -> Result<Adjusted, StoreError> {
        let credit = Credit { key, amounts };
        let mut seen = self.recall(key);
        let mut is_fresh = false;
        let (mut races, mut sends) = (0, 0);
        loop {
            let write = match credit.plan(view(seen.as_deref(), is_fresh)) {
                credit::Step::Credit(write) => write,
                credit::Step::Drop => return Ok(Adjusted::Dropped),
            };
            match self.send(write).await? {
                Sent::Landed(item) => {
                    self.note_landed(key, &item, moment);
                    return Ok(Adjusted::Applied);
                }
                Sent::Lost(item) => {
                    (seen, is_fresh) = (Some(self.note(key, item.as_ref(), moment)?), true);
                    races += 1;
                    if races > REFILL_ATTEMPTS_MAX {
                        return Err(failed("adjust", TableError::NotApplied("others kept changing the bucket".to_owned())));
                    }
                }
                Sent::Unknown(error) => {
                    count(&self.shared.caches.tally.credits_unknown);
                    return Err(failed("adjust", error));
                }
                Sent::NotYet(error) => {
                    sends += 1;
                    if sends >= SEND_ATTEMPTS_MAX {
                        return Err(failed("adjust", error));
                    }
                    self.shared.back_off(sends).await;
                }
            }
        }
    }
}

/// Absence is believed only when this operation has seen it: a credit or a charge dropped by mistake would be lost.
fn view(seen: Option<&Seen>, is_fresh: bool) -> View<'_> {
    match seen.map(|look| &look.image) {
        None => View::Unknown,
        Some(Some(image)) => View::Known { image, is_recent: is_fresh, may_sync: false },
        Some(None) if is_fresh => View::Absent,
        Some(None) => View::Unknown,
    }
}
