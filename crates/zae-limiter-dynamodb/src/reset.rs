//! Filling a bucket by order of an administrator, with the audit event in the same transaction.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{AuditAction, AuditSubject, LimitName, Milli};
use zae_limiter_store::{Change, ResetRequest, Restored, StoreError};

use crate::DynamoStore;
use crate::change::{Outcome, too_busy};
use crate::constants::ADMIN_ATTEMPTS_MAX;
use crate::image::{Image, attr, limit_attr};
use crate::item::Event;
use crate::keys;
use crate::refill::{Refill, balance_at};
use crate::table::{Action, Comparison, Key, Update, compare, number};
use crate::write::{BucketWrite, Writer};

impl DynamoStore {
    pub(crate) async fn reset_bucket(&self, request: &ResetRequest<'_>, change: &Change) -> Result<Option<Restored>, StoreError> {
        let key = keys::bucket(&self.id, request.entity, request.resource, 0);
        let moment = self.moment(change.at);
        for attempt in 0..ADMIN_ATTEMPTS_MAX {
            if attempt > 0 {
                self.shared.back_off(attempt).await;
            }
            let look = self.look(&key, moment).await?;
            let Some(image) = &look.image else { return Ok(None) };
            image.check_supported(&key.pk).map_err(|error| error.during("reset"))?;
            let now = self.now(moment);
            let (write, restored) = fill(&key, image, request.only, now)?;
            debug_assert!(write.breaches().is_empty(), "{:?}", write.breaches());
            let amounts = restored.iter().map(|(name, gained)| (name.to_string(), number(gained.floor_tokens()))).collect();
            let event = Event {
                subject: AuditSubject::Entity(request.entity.clone()),
                action: AuditAction::BucketReset,
                resource: Some(request.resource.as_str()),
                details: [("amounts".to_owned(), AttributeValue::M(amounts)), ("shards".to_owned(), number(1))].into(),
            };
            let outcome = self.shared.change("reset", &self.id, vec![write.write], (change, event)).await?;
            self.shared.caches.forget(&key.pk);
            if matches!(outcome, Outcome::Made) {
                return Ok(Some(restored));
            }
        }
        Err(too_busy("reset"))
    }
}

/// The write that fills the named limits, or all, and brings the others to now.
fn fill(key: &Key, image: &Image, only: Option<&[LimitName]>, now: i64) -> Result<(BucketWrite, Restored), StoreError> {
    let refill = Refill { key, image, target: None, amounts: &[], nonce: None, has_floor: false, clears_mark: false, now };
    let mut update: Update = refill.build()?;
    let mut restored = Restored::new();
    for limit in image.limits.iter().filter(|limit| only.is_none_or(|names| names.contains(&limit.name))) {
        let (tk, rm) = (limit_attr(&limit.name, "tk"), limit_attr(&limit.name, "rm"));
        update.actions.retain(
            |action| !matches!(action, Action::Set(name, _) | Action::Add(name, _) | Action::Remove(name) if *name == tk || *name == rm),
        );
        // Exactly as read, or what is reported as restored would be wrong.
        update.conditions.push(compare(tk.clone(), Comparison::Eq, limit.tk));
        let capacity = limit.params.capacity_milli;
        update.actions.push(Action::Set(tk, number(capacity)));
        if limit.has_rm {
            update.actions.push(Action::Remove(rm));
        }
        let balance = balance_at(image, &limit.name, now).unwrap_or(capacity);
        restored.push((limit.name.clone(), Milli(capacity.saturating_sub(balance))));
    }
    update.actions.retain(|action| !matches!(action, Action::Set(name, _) if *name == attr::RF));
    update.actions.push(Action::Set(attr::RF.into(), number(now.max(image.rf.saturating_add(1)))));
    // Remainders that are left belong to the new refill instant.
    if let Some(Action::Set(_, rmf)) = update.actions.iter_mut().find(|action| matches!(action, Action::Set(name, _) if *name == attr::RMF))
    {
        *rmf = number(now.max(image.rf.saturating_add(1)));
    }
    Ok((BucketWrite::update(Writer::Reset, update), restored))
}
