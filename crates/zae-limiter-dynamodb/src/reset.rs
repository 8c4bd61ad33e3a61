//! Filling a bucket by order of an administrator, with the audit event in the same transaction.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{AuditAction, AuditSubject, LimitName, Milli};
use zae_limiter_store::{Change, ResetRequest, Restored, StoreError};

use crate::DynamoStore;
use crate::change::{Outcome, too_busy};
use crate::constants::{ADMIN_ATTEMPTS_MAX, REFILL_AHEAD_MAX_MS, WCU_PER_WRITE_MILLI};
use crate::image::{Image, attr, limit_attr};
use crate::item::Event;
use crate::keys;
use crate::refill::balance_at;
use crate::table::{Action, Comparison, Condition, Key, Update, compare, number};
use crate::write::{BucketWrite, Writer};

/// Attempts that report what was restored to the millitoken. A bucket that changes faster than that
/// is filled all the same, and what it lacked is told as of the look before.
const EXACT_ATTEMPTS: u32 = 2;

/// When a bucket is filled, and how it is to be reported.
#[derive(Clone, Copy)]
struct At {
    now: i64,
    is_exact: bool,
}

impl DynamoStore {
    pub(crate) async fn reset_bucket(
        &self,
        request: &ResetRequest<'_>,
        change: &Change,
    ) -> Result<Option<Restored>, StoreError> {
        let key = keys::bucket(&self.id, request.entity, request.resource, 0);
        let moment = self.moment(change.at);
        self.shared.ask_the_time().await.map_err(|error| error.during("reset"))?;
        for attempt in 0..ADMIN_ATTEMPTS_MAX {
            if attempt > 0 {
                self.shared.back_off(attempt).await;
            }
            let look = self.look(&key, moment).await?;
            let Some(image) = &look.image else { return Ok(None) };
            image.check_supported(&key.pk).map_err(|error| error.during("reset"))?;
            let now = self.now(moment);
            let (write, restored) =
                fill(&key, image, request.only, At { now, is_exact: attempt < EXACT_ATTEMPTS });
            debug_assert!(write.breaches().is_empty(), "{:?}", write.breaches());
            let amounts = restored
                .iter()
                .map(|(name, gained)| (name.to_string(), number(gained.floor_tokens())))
                .collect();
            let event = Event {
                subject: AuditSubject::Entity(request.entity.clone()),
                action: AuditAction::BucketReset,
                resource: Some(request.resource.as_str()),
                details: [
                    ("amounts".to_owned(), AttributeValue::M(amounts)),
                    ("shards".to_owned(), number(1)),
                ]
                .into(),
                version: None,
            };
            let outcome =
                self.shared.change("reset", &self.id, vec![write.write], (change, event)).await?;
            self.shared.caches.forget(&key.pk);
            if matches!(outcome, Outcome::Made) {
                return Ok(Some(restored));
            }
        }
        Err(too_busy("reset"))
    }
}

/// The write that fills the named limits, or all, and says what each one lacked.
///
/// It leaves the refill instant alone, as a credit does: a full limit whose refill is still due
/// stays full. So it needs no pin on the balances, which a hot bucket changes a thousand times a
/// second; `is_exact` pins them all the same, so that what is reported as restored is what was
/// restored. One thing it does set: an instant that lies far in the future, written by a clock that
/// was wrong, is brought back to now, or nothing would refill until then.
fn fill(key: &Key, image: &Image, only: Option<&[LimitName]>, at: At) -> (BucketWrite, Restored) {
    let At { now, is_exact } = at;
    let mut restored = Restored::new();
    let (mut actions, mut conditions) = (Vec::new(), vec![Condition::Exists(attr::PK.into())]);
    for limit in
        image.limits.iter().filter(|limit| only.is_none_or(|names| names.contains(&limit.name)))
    {
        let tk = limit_attr(&limit.name, "tk");
        let capacity = limit.params.capacity_milli;
        conditions.push(compare(limit_attr(&limit.name, "cp"), Comparison::Eq, capacity));
        if is_exact {
            conditions.push(compare(tk.clone(), Comparison::Eq, limit.tk));
        }
        actions.push(Action::Set(tk, number(capacity)));
        let balance = balance_at(image, &limit.name, now).unwrap_or(capacity);
        restored.push((limit.name.clone(), Milli(capacity.saturating_sub(balance))));
    }
    // What is left of a limit that is gone would be owed when it comes back.
    for stub in
        image.stubs.iter().filter(|stub| only.is_none_or(|names| names.contains(&stub.name)))
    {
        conditions.push(Condition::Absent(limit_attr(&stub.name, "cp")));
        actions.extend(["tk", "tc"].map(|field| Action::Remove(limit_attr(&stub.name, field))));
    }
    conditions.push(compare(attr::SHARD_COUNT, Comparison::Eq, image.shard_count));
    let far = now.saturating_add(REFILL_AHEAD_MAX_MS);
    if image.rf > far {
        conditions.push(compare(attr::RF, Comparison::Gt, far));
        actions.push(Action::Set(attr::RF.into(), number(now)));
    } else if is_exact {
        conditions.push(compare(attr::RF, Comparison::Eq, image.rf));
    } else {
        conditions.push(compare(attr::RF, Comparison::Le, far));
    }
    actions.push(Action::Add(attr::WCU_TK.into(), -WCU_PER_WRITE_MILLI));
    actions.push(Action::Add(attr::WCU_TC.into(), WCU_PER_WRITE_MILLI));
    (BucketWrite::update(Writer::Reset, Update { key: key.clone(), actions, conditions }), restored)
}
