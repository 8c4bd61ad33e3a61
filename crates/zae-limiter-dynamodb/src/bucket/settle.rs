//! Settling with one bucket after the fact: charges at least once, credits at most once.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use zae_limiter_core::Milli;
use zae_limiter_store::{Adjusted, BucketDelta, MemberKey, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::bucket::charge::{self, Charge};
use crate::bucket::create::New;
use crate::bucket::credit::{self, Credit, Undo};
use crate::bucket::exchange::{Exchange, Heard};
use crate::bucket::operation::{Moment, count};
use crate::bucket::refill::Amount;
use crate::bucket::shard::donor;
use crate::bucket::write::{Cost, Nonce, Purpose};
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
    pub(crate) async fn settle_delta(
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
            Some(self.credit_places(delta, &credits, moment).await)
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
        self.key_at(delta, u32::from(delta.place))
    }

    fn key_at(&self, delta: &BucketDelta<'_>, shard: u32) -> Key {
        keys::bucket(&self.id, delta.entity, delta.resource, shard)
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

    /// Charges the place of the take. Limits that are pinned by now are charged on shard 0, where
    /// all of them is.
    async fn charge(
        &self,
        delta: &BucketDelta<'_>,
        amounts: &[Amount<'_>],
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let shard = u32::from(delta.place);
        let nonce = self.nonce_of(delta.operation);
        if shard == 0 {
            return self.charge_from(delta, 0, amounts, &nonce, moment).await;
        }
        let whose = MemberKey { entity: delta.entity, resource: delta.resource };
        let (pinned, here) = self.pinned_first(whose, shard, amounts, moment).await?;
        let mut adjusted = Adjusted::Applied;
        if !pinned.is_empty() {
            // Two charges may end on one item: each needs a nonce of its own.
            let nonce = match delta.operation {
                // Without a number no charge is ever repeated.
                0 => self.nonce(),
                operation => self.nonce_of(operation ^ (1 << 62)),
            };
            adjusted = self.charge_from(delta, 0, &pinned, &nonce, moment).await?;
        }
        if !here.is_empty() {
            adjusted = self.charge_from(delta, shard, &here, &nonce, moment).await?;
        }
        Ok(adjusted)
    }

    /// Charges a shard, or the one that it was split from if it is gone, down to shard 0.
    async fn charge_from(
        &self,
        delta: &BucketDelta<'_>,
        mut shard: u32,
        amounts: &[Amount<'_>],
        nonce: &Nonce,
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        loop {
            let key = self.key_at(delta, shard);
            let charge = Charge { key: &key, amounts, nonce, cost: Cost::ONE };
            let mut exchange =
                Exchange::new(self, "adjust", &key, moment, self.recall(&key)).with_nonce(nonce);
            let charged = self.charge_until_answered(delta, shard, &charge, &mut exchange).await;
            let charged = charged.map_err(|error| {
                if exchange.is_ambiguous {
                    count(&self.shared.caches.tally.debits_unknown);
                }
                exchange.doubt(error)
            })?;
            match charged {
                Some(adjusted) => return Ok(adjusted),
                None => shard = donor(shard),
            }
        }
    }

    /// Amounts of limits that are all on shard 0, and the others, by what a shard says.
    async fn pinned_first<'a>(
        &self,
        whose: MemberKey<'_>,
        shard: u32,
        amounts: &[Amount<'a>],
        moment: Moment,
    ) -> Result<(Amounts<'a>, Amounts<'a>), StoreError> {
        let key = keys::bucket(&self.id, whose.entity, whose.resource, shard);
        let look = match self.recall(&key) {
            Some(look) => look,
            None => self.look(&key, moment).await?,
        };
        let standing = look.image.as_ref().map(|image| &image.standing);
        let is_pinned = |amount: &&Amount<'_>| {
            standing.is_some_and(|standing| standing.is_pinned(amount.limit.name()))
        };
        Ok((
            amounts.iter().filter(is_pinned).copied().collect(),
            amounts.iter().filter(|amount| !is_pinned(amount)).copied().collect(),
        ))
    }

    /// `None` when a shard other than shard 0 is gone.
    async fn charge_until_answered(
        &self,
        delta: &BucketDelta<'_>,
        shard: u32,
        charge: &Charge<'_>,
        exchange: &mut Exchange<'_>,
    ) -> Result<Option<Adjusted>, StoreError> {
        while exchange.races <= 2 * RACES_MAX {
            let is_last = exchange.races >= RACES_MAX;
            let charge = Charge { cost: exchange.cost(), ..*charge };
            let (write, outcome) =
                match charge.plan(exchange.settling_view(), is_last, exchange.now())? {
                    charge::Step::Charge(write) => (write, Adjusted::Applied),
                    charge::Step::Recreate if shard > 0 => return Ok(None),
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
            return Ok(Some(outcome));
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

    /// Gives back to the place of the take.
    async fn credit_places(
        &self,
        delta: &BucketDelta<'_>,
        amounts: &[Amount<'_>],
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let whose = MemberKey { entity: delta.entity, resource: delta.resource };
        self.credit_at(whose, u32::from(delta.place), amounts, None, moment).await
    }

    /// Gives back to a shard, or to the one that it was split from if it is gone, down to shard 0.
    pub(crate) async fn credit_at(
        &self,
        whose: MemberKey<'_>,
        shard: u32,
        amounts: &[Amount<'_>],
        undo: Option<Undo>,
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let key = |shard| keys::bucket(&self.id, whose.entity, whose.resource, shard);
        if shard == 0 {
            return self.credit(&key(0), amounts, undo, moment).await;
        }
        let (pinned, here) = match amounts {
            [] => Default::default(),
            _ => self.pinned_first(whose, shard, amounts, moment).await?,
        };
        let mut adjusted = Adjusted::Dropped;
        if !pinned.is_empty() {
            let undo = undo.map(|undo| Undo { is_counted: false, mark: undo.mark + 1 });
            adjusted = self.credit(&key(0), &pinned, undo, moment).await?;
        }
        let mut shard = shard;
        while !here.is_empty() || amounts.is_empty() {
            let credited = match self.credit_once(&key(shard), &here, undo, moment).await {
                Ok(credited) => credited,
                // The pinned part has landed: an error would have it given back once more.
                Err(error) if adjusted == Adjusted::Applied => {
                    count(&self.shared.caches.tally.credits_lost);
                    tracing::warn!(%error, "given back in part; the rest stays spent");
                    break;
                }
                Err(error) => return Err(error),
            };
            match credited {
                Credited::Absent if shard > 0 => shard = donor(shard),
                Credited::Applied => return Ok(Adjusted::Applied),
                Credited::Absent | Credited::Dropped => break,
            }
        }
        Ok(adjusted)
    }

    /// Gives back to a bucket of one item.
    pub(crate) async fn credit(
        &self,
        key: &Key,
        amounts: &[Amount<'_>],
        undo: Option<Undo>,
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        Ok(match self.credit_once(key, amounts, undo, moment).await? {
            Credited::Applied => Adjusted::Applied,
            Credited::Absent | Credited::Dropped => Adjusted::Dropped,
        })
    }

    /// Gives back, at most once: sent again only when the last attempt is proven not to have
    /// landed.
    async fn credit_once(
        &self,
        key: &Key,
        amounts: &[Amount<'_>],
        undoes: Option<Undo>,
        moment: Moment,
    ) -> Result<Credited, StoreError> {
        let mut exchange = Exchange::new(self, "adjust", key, moment, self.recall(key));
        while exchange.races <= RACES_MAX {
            let cost = exchange.cost();
            let credit = Credit { key, amounts, cost, undoes, now: exchange.now() };
            let write = match credit.plan(exchange.settling_view()) {
                credit::Step::Credit(write) => write,
                credit::Step::Drop if exchange.image().is_none() => return Ok(Credited::Absent),
                credit::Step::Drop => return Ok(Credited::Dropped),
            };
            if let Heard::Landed(_) = exchange.send(write).await? {
                return Ok(Credited::Applied);
            }
        }
        Err(failed("adjust", TableError::NotApplied("others kept changing the bucket".to_owned())))
    }
}

/// What became of a credit.
enum Credited {
    Applied,
    /// The item is not there.
    Absent,
    /// The limits are not there.
    Dropped,
}
