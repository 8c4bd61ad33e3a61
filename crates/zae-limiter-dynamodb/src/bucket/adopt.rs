//! Taking buckets and usage over from another store: transactions of creates, with the audit event
//! of what they make.

use std::collections::BTreeMap;

use zae_limiter_core::{AuditAction, AuditSubject, Flag, LimitSource, TimeMs, UsageSnapshot};
use zae_limiter_store::{
    Adopted, Adoption, BucketView, Change, LimitsInForce, MemberKey, MemberTake, StoreError,
};

use crate::DynamoStore;
use crate::admin::change::{Outcome, too_busy};
use crate::admin::version::Versions;
use crate::bucket::write::{BucketWrite, NewBucket, Nonce, Purpose, Shape};
use crate::config::{Member, Trust};
use crate::constants::{ADMIN_ATTEMPTS_MAX, USAGE_RETENTION_DAYS};
use crate::records::item::usage::{Snapshot, SnapshotWrite};
use crate::records::item::{Event, details};
use crate::records::keys;
use crate::table::{Cancellation, Key, Write, absent};

const OPERATION: &str = "adopt";
const DAY_MS: i64 = 86_400_000;

const IS_LEAVING: Adopted = Adopted::Skipped("the entity is being deleted in the target");
const IS_OLD: Adopted = Adopted::Skipped("older than the target keeps usage");

/// Something to make: where its answer goes, and how.
struct Leg {
    answer: usize,
    key: Key,
    write: Write,
}

impl DynamoStore {
    /// Cost: one `BatchGetItem` for what is there, one for the configuration of the buckets, a
    /// transaction for what is made, and one more `BatchGetItem` for flags that were set meanwhile.
    pub(super) async fn adopt_all(
        &self,
        adoption: &Adoption<'_>,
        change: &Change,
    ) -> Result<Vec<Adopted>, StoreError> {
        adoption.check()?;
        let moment = self.moment(change.at);
        self.shared.ask_the_time().await.map_err(|error| error.during(OPERATION))?;
        let Adoption { buckets, usage, details: told } = *adoption;
        let key = |view: &BucketView| keys::bucket(&self.id, &view.entity, &view.resource, 0);
        let of_usage = |snapshot: &UsageSnapshot| self.snapshot(snapshot).key();
        let mut wanted: Vec<Key> = buckets.iter().map(key).collect();
        wanted.extend(usage.iter().map(of_usage));
        wanted.push(keys::version());
        let mut there = self.shared.read_all(OPERATION, &wanted).await?;
        // The list of keys ends with the record of the table.
        let kept_days =
            there.pop().flatten().and_then(|item| Versions::of(&item).retention.usage_days);
        let kept_days = i64::from(kept_days.unwrap_or(USAGE_RETENTION_DAYS));
        let (mut answers, mut legs) = (vec![Adopted::Kept; there.len()], Vec::new());
        let members: Vec<MemberKey<'_>> = buckets
            .iter()
            .map(|BucketView { entity, resource, .. }| MemberKey { entity, resource })
            .collect();
        // Also where no bucket is asked for: the namespace must be active.
        let found = self.members(&members, Trust::NOTHING, OPERATION).await?.members;
        // Reading took time.
        let now = self.now(moment);
        for (answer, (view, member)) in buckets.iter().zip(&found).enumerate() {
            if there[answer].is_some() {
                continue;
            }
            if member.owner.as_ref().is_some_and(|owner| owner.is_leaving) {
                answers[answer] = IS_LEAVING;
                continue;
            }
            let write = Write::Bucket(Box::new(self.adopted(view, member, now)));
            legs.push(Leg { answer, key: wanted[answer].clone(), write });
        }
        for (snapshot, answer) in usage.iter().zip(buckets.len()..) {
            if there[answer].is_some() {
                continue;
            }
            let end = snapshot.window.next_start(snapshot.start);
            let expires = end.plus_ms(kept_days.saturating_mul(DAY_MS));
            if expires <= now {
                answers[answer] = IS_OLD;
                continue;
            }
            let write = self.adopted_usage(snapshot, expires);
            legs.push(Leg { answer, key: wanted[answer].clone(), write });
        }
        self.make(&mut legs, buckets.len(), told, change, &mut answers).await?;
        self.confirm_adopted(buckets, &found, &answers).await?;
        Ok(answers)
    }

    /// Makes everything in one transaction, less what somebody else has made meanwhile.
    async fn make(
        &self,
        legs: &mut Vec<Leg>,
        buckets: usize,
        told: &[(String, String)],
        change: &Change,
        answers: &mut [Adopted],
    ) -> Result<(), StoreError> {
        for lost in 1..=ADMIN_ATTEMPTS_MAX {
            if legs.is_empty() {
                return Ok(());
            }
            let of_buckets = legs.iter().filter(|leg| leg.answer < buckets).count();
            let event = zae_limiter_store::audit::adopted(
                change,
                of_buckets,
                legs.len() - of_buckets,
                told,
            );
            let event = Event {
                subject: AuditSubject::System,
                action: AuditAction::Adopted,
                resource: None,
                details: details::texts(&event.details),
                version: None,
            };
            let writes = legs.iter().map(|leg| leg.write.clone()).collect();
            match self.shared.change(OPERATION, &self.id, writes, (change, event)).await? {
                Outcome::Made => {
                    for leg in legs.drain(..) {
                        self.shared.caches.forget(&leg.key.pk);
                        answers[leg.answer] = Adopted::Made;
                    }
                    return Ok(());
                }
                Outcome::Lost(reasons) => {
                    // Somebody was faster: what is there stays.
                    let mut reasons = reasons.iter();
                    let is_open =
                        |_: &Leg| !matches!(reasons.next(), Some(Cancellation::Condition(_)));
                    legs.retain(is_open);
                }
            }
            self.shared.back_off(lost).await;
        }
        if legs.is_empty() { Ok(()) } else { Err(too_busy(OPERATION)) }
    }

    /// An administrator may have disabled a bucket while it was made, and not have found it: rule
    /// A4, as for a bucket that a take makes.
    async fn confirm_adopted(
        &self,
        buckets: &[BucketView],
        before: &[Member],
        answers: &[Adopted],
    ) -> Result<(), StoreError> {
        let is_made = |(place, _): &(usize, &BucketView)| answers[*place] == Adopted::Made;
        let made: Vec<(usize, &BucketView)> = buckets.iter().enumerate().filter(is_made).collect();
        let keys: Vec<MemberKey<'_>> = made
            .iter()
            .map(|(_, view)| MemberKey { entity: &view.entity, resource: &view.resource })
            .collect();
        if keys.is_empty() {
            return Ok(());
        }
        let now = self.members(&keys, Trust::AFTER_CREATE, OPERATION).await?;
        for ((place, view), member) in made.into_iter().zip(&now.members) {
            let flag = member.flag();
            if flag.blocks() && !before[place].flag().blocks() {
                let key = keys::bucket(&self.id, &view.entity, &view.resource, 0);
                let limits = LimitsInForce::none(now.stamp);
                let (entity, resource) = (&view.entity, &view.resource);
                let take =
                    MemberTake { entity, resource, limits: &limits, takes: &[], absent: &[] };
                self.flag_new_bucket(&take, &key, flag).await?;
            }
        }
        Ok(())
    }

    /// The write that makes a bucket of another store.
    fn adopted(&self, view: &BucketView, member: &Member, now: TimeMs) -> BucketWrite {
        let flag: Flag = member.flag();
        let mut state = view.state.clone().adopted(flag, now);
        // By the table's time from here on, and without what only a clock that was ahead explains.
        state.refill(now);
        // Whether it expires is a matter of the level that decides here; a bucket of several shards
        // does not say whether it did.
        let expires = match &member.limits {
            Some((_, source)) => source.expires(),
            None => state.expires_at().is_some(),
        };
        let ttl_ms = state.expires_at().map_or(0, |at| at.since(now).max(0));
        let limits = LimitsInForce {
            source: LimitSource::Call,
            ttl_ms: expires.then_some(ttl_ms),
            ..LimitsInForce::none(Default::default())
        };
        let bucket = NewBucket {
            namespace: std::sync::Arc::clone(&self.id),
            entity: view.entity.clone(),
            resource: view.resource.clone(),
            owner: member.owner.clone(),
            limits,
            amounts: Default::default(),
            flag,
            nonce: Nonce::default(),
            now,
            carried: Some(Box::new(state)),
        };
        let key = keys::bucket(&self.id, &view.entity, &view.resource, 0);
        BucketWrite { key, purpose: Purpose::Adopt, shape: Shape::Make(Box::new(bucket)) }
    }

    fn snapshot(&self, snapshot: &UsageSnapshot) -> Snapshot {
        Snapshot {
            namespace: self.id.to_string(),
            entity: snapshot.entity.to_string(),
            resource: snapshot.resource.to_string(),
            window: snapshot.window,
            start: snapshot.start,
        }
    }

    /// The write that makes a snapshot, without a watermark: no record of this table's stream is in
    /// it, so an aggregator adds all of its records to it.
    fn adopted_usage(&self, snapshot: &UsageSnapshot, expires: TimeMs) -> Write {
        let used = snapshot.counters.iter().map(|(name, used)| (name.to_string(), used.0));
        let write = SnapshotWrite {
            used: used.collect(),
            takes: i64::try_from(snapshot.events).unwrap_or(i64::MAX),
            marks: BTreeMap::new(),
            expires_s: expires.0.div_euclid(1_000),
        };
        let mut update = write.update(&self.snapshot(snapshot), None);
        update.conditions.push(absent());
        Write::Update(update)
    }

    /// The table's time when the caller's clock shows `now`.
    pub(crate) async fn table_time(&self, now: TimeMs) -> Result<TimeMs, StoreError> {
        let moment = self.moment(now);
        self.shared.ask_the_time().await.map_err(|error| error.during("store_time"))?;
        Ok(self.now(moment))
    }
}
