//! Settling with one bucket after the fact: charges at least once, credits at most once.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use zae_limiter_core::Milli;
use zae_limiter_store::{Adjusted, BucketDelta, MemberKey, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::bucket::charge::{self, Charge};
use crate::bucket::create::New;
use crate::bucket::credit::{self, Credit};
use crate::bucket::exchange::{Exchange, Heard};
use crate::bucket::operation::{Moment, count};
use crate::bucket::refill::Amount;
use crate::bucket::write::Purpose;
use crate::bucket::writers::Writer;
use crate::config::Trust;
use crate::constants::RACES_MAX;
use crate::records::keys;
use crate::table::error::failed;
use crate::table::{Key, TableError};

/// Amounts of one bucket.
pub(crate) type Amounts<'a> = SmallVec<[Amount<'a>; 2]>;

impl DynamoStore {
    /// Charges and gives back. The charge goes first: a failure to give back must not lose the
    /// charge.
    pub(crate) async fn settle(
        &self,
        delta: &BucketDelta<'_>,
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let (mut charges, mut credits) = (Amounts::new(), Amounts::new());
        for change in delta.deltas {
            let Some(limit) = delta.limits.limits.get(usize::from(change.limit)) else {
                let message = format!(
                    "a change of {} names limit {}, which its receipt does not have",
                    delta.entity, change.limit
                );
                return Err(StoreError::new(StoreErrorKind::Invalid, "adjust", message));
            };
            match change.amount {
                Milli::ZERO => {}
                milli if milli.is_negative() => {
                    credits.push(Amount { limit, milli: milli.negated() })
                }
                milli => charges.push(Amount { limit, milli }),
            }
        }
        let charged = if charges.is_empty() {
            None
        } else {
            Some(self.charge(delta, &charges, moment).await?)
        };
        let is_charged = matches!(charged, Some(Adjusted::Applied | Adjusted::Recreated));
        let credited = if credits.is_empty() {
            None
        } else {
            Some(self.credit(&self.key_of(delta), &credits, moment).await)
        };
        let credited = match credited {
            // The charge has landed: an error would have it sent again. The amounts that were not
            // given back stay spent.
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
    async fn untouched(
        &self,
        delta: &BucketDelta<'_>,
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let key = self.key_of(delta);
        let look = match self.recall(&key).filter(|look| look.image.is_some()) {
            Some(look) => look,
            None => self.look(&key, moment).await?,
        };
        Ok(if look.image.is_some() { Adjusted::Applied } else { Adjusted::Dropped })
    }

    async fn charge(
        &self,
        delta: &BucketDelta<'_>,
        amounts: &[Amount<'_>],
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let (key, nonce) = (self.key_of(delta), self.nonce_of(delta.operation));
        let charge = Charge { key: &key, amounts, nonce: &nonce, units_milli: 0 };
        let mut exchange =
            Exchange::new(self, "adjust", &key, moment, self.recall(&key)).with_nonce(&nonce);
        let charged = self.charge_until_answered(delta, &charge, &mut exchange).await;
        charged.map_err(|error| {
            if exchange.is_ambiguous {
                count(&self.shared.caches.tally.debits_unknown);
            }
            exchange.doubt(error)
        })
    }

    async fn charge_until_answered(
        &self,
        delta: &BucketDelta<'_>,
        charge: &Charge<'_>,
        exchange: &mut Exchange<'_>,
    ) -> Result<Adjusted, StoreError> {
        while exchange.races <= 2 * RACES_MAX {
            let is_last = exchange.races >= RACES_MAX;
            let charge = Charge { units_milli: exchange.units_milli(), ..*charge };
            let (write, outcome) =
                match charge.plan(exchange.settling_view(), is_last, exchange.now())? {
                    charge::Step::Charge(write) => (write, Adjusted::Applied),
                    charge::Step::Recreate => {
                        // As it is configured now: a charge must not enable a bucket that an
                        // administrator has disabled.
                        let key = MemberKey { entity: delta.entity, resource: delta.resource };
                        let found = self.members(&[key], Trust::NOTHING, "adjust").await?;
                        let (stamp, found) = (found.stamp, &found.members[0]);
                        // The limits of an entity that is being deleted are going.
                        let stays = !found.owner.as_ref().is_some_and(|owner| owner.is_leaving);
                        let limits =
                            delta.made_again(found.limits.as_ref().filter(|_| stays), stamp);
                        let bucket = New {
                            owner: found.owner.as_ref(),
                            limits: &limits,
                            amounts: charge.amounts,
                            flag: found.flag(),
                            nonce: charge.nonce,
                            // Reading took time: the bucket was full as of now, not as of then.
                            now: exchange.now(),
                        };
                        (self.create(Purpose::Charge, key, bucket), Adjusted::Recreated)
                    }
                };
            // Amounts that the write of the last resort cannot charge.
            let left_out = match exchange.image() {
                Some(image) if write.writer() == Writer::ChargePlain => charge.left_out(image),
                _ => 0,
            };
            let outcome = match exchange.send(write).await? {
                Heard::Landed(_) => outcome,
                Heard::AlreadyOurs(_) => Adjusted::Applied,
                Heard::Prepared | Heard::Lost | Heard::Again => continue,
            };
            self.uncharged(charge.key, left_out);
            return Ok(outcome);
        }
        // The plain form loses a race only against a process that deletes and makes the bucket all
        // the time.
        Err(failed(
            "adjust",
            TableError::NotApplied("the bucket keeps appearing and disappearing".to_owned()),
        ))
    }

    fn uncharged(&self, key: &Key, limits: usize) {
        if limits > 0 {
            self.shared.caches.tally.charges_lost.fetch_add(limits as u64, Ordering::Relaxed);
            tracing::warn!(
                pk = key.pk,
                limits,
                "limits that the bucket has forgotten were not charged"
            );
        }
    }

    /// Gives back, at most once: sent again only when the last attempt is proven not to have
    /// landed.
    pub(crate) async fn credit(
        &self,
        key: &Key,
        amounts: &[Amount<'_>],
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let mut exchange = Exchange::new(self, "adjust", key, moment, self.recall(key));
        while exchange.races <= RACES_MAX {
            let credit = Credit { key, amounts, units_milli: exchange.units_milli() };
            let write = match credit.plan(exchange.settling_view()) {
                credit::Step::Credit(write) => write,
                credit::Step::Drop => return Ok(Adjusted::Dropped),
            };
            if let Heard::Landed(_) = exchange.send(write).await? {
                return Ok(Adjusted::Applied);
            }
        }
        Err(failed("adjust", TableError::NotApplied("others kept changing the bucket".to_owned())))
    }
}
