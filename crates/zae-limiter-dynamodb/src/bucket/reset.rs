//! Filling a bucket by order of an administrator, with the audit event in the same transaction.

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use smallvec::SmallVec;
use zae_limiter_core::{AuditAction, AuditSubject, LimitName, TimeMs};
use zae_limiter_store::{Change as Order, ResetRequest, Restored, StoreError};

use crate::DynamoStore;
use crate::admin::change::{Outcome, too_busy};
use crate::bucket::image::Image;
use crate::bucket::write::{
    BucketWrite, Change, Cost, ExpiryPin, FlagPin, ItemChange, Line, LineForm, LoansPin, Pin, Pins,
    Purpose, RefilledAt,
};
use crate::constants::{ADMIN_ATTEMPTS_MAX, REFILL_AHEAD_MAX_MS, SHARDS_MAX};
use crate::records::item::Event;
use crate::records::keys;
use crate::table::{Key, Write, number};

/// Attempts that report what was restored to the millitoken. A bucket that changes faster than that
/// is filled all the same, and what it lacked is told as of the look before.
const EXACT_ATTEMPTS: u32 = 2;

/// When a bucket is filled, and how it is to be reported.
#[derive(Clone, Copy)]
struct At {
    now: TimeMs,
    is_exact: bool,
}

impl DynamoStore {
    pub(crate) async fn reset_bucket(
        &self,
        request: &ResetRequest<'_>,
        change: &Order,
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
            let (now, is_alone) = (self.now(moment), image.standing.is_alone());
            // Shards that others write would never be as they were seen, all at once.
            let at = At { now, is_exact: is_alone && attempt < EXACT_ATTEMPTS };
            let whose = self.whose(request.entity.as_str(), request.resource.as_str());
            let looks = match is_alone {
                true => vec![Arc::clone(&look)],
                false => match self.read_shards(&whose, moment).await? {
                    Some(looks) => looks,
                    None => continue,
                },
            };
            let (mut writes, mut restored) = (Vec::new(), Restored::new());
            for image in looks.iter().filter_map(|look| look.image.as_ref()) {
                let (write, part) = fill(&whose.key(image.standing.shard), image, request.only, at);
                writes.push(Write::Bucket(Box::new(write)));
                add_up(&mut restored, part);
            }
            let shards = i64::try_from(writes.len()).unwrap_or(1);
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
                    ("shards".to_owned(), number(shards)),
                ]
                .into(),
                version: None,
            };
            let outcome = self.shared.change("reset", &self.id, writes, (change, event)).await?;
            for shard in 0..SHARDS_MAX {
                self.shared.caches.forget(&whose.key(shard).pk);
            }
            if matches!(outcome, Outcome::Made) {
                return Ok(Some(restored));
            }
        }
        Err(too_busy("reset"))
    }
}

/// Adds what one shard lacked to what the others did.
fn add_up(restored: &mut Restored, part: Restored) {
    for (name, gained) in part {
        match restored.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum = sum.saturating_add(gained),
            None => restored.push((name, gained)),
        }
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
    let is_named = |name: &LimitName| only.is_none_or(|names| names.contains(name));
    let (mut restored, mut lines) = (Restored::new(), SmallVec::new());
    for limit in image.limits.iter().filter(|limit| is_named(&limit.name)) {
        let full = limit.effective.full();
        let form = LineForm::Top {
            stored_capacity: limit.stored.full(),
            full,
            exactly: is_exact.then_some(limit.balance),
        };
        lines.push(Line { name: limit.name.clone(), form });
        let balance = image.balance_at(&limit.name, now).unwrap_or(full);
        restored.push((limit.name.clone(), full.saturating_sub(balance)));
    }
    // The debt that a removed limit left behind would be owed when the limit comes back.
    let stubs = image.stubs.iter().filter(|stub| is_named(&stub.name));
    lines.extend(stubs.map(|stub| Line { name: stub.name.clone(), form: LineForm::Clear }));
    let far = now.plus_ms(REFILL_AHEAD_MAX_MS);
    let (refilled_at, sets) = if image.refilled_at > far {
        (RefilledAt::After(far), Some(now))
    } else if is_exact {
        (RefilledAt::Exactly(image.refilled_at), None)
    } else {
        (RefilledAt::NotAfter(far), None)
    };
    let pins = Pins {
        refilled_at,
        shard_count: Some(image.standing.count),
        era: image.standing.era_pin(),
        flag: FlagPin::Any,
        mark: Pin::Any,
        config_read_at: Pin::Any,
        expiry: ExpiryPin::Any,
        has_room: false,
        loans: LoansPin::Any,
        must_be_absent: SmallVec::new(),
    };
    let item = ItemChange { refilled_at: sets, ..ItemChange::spending(Cost::ONE) };
    let change = Change { nonce: None, pins, lines, item };
    (BucketWrite::change(key.clone(), Purpose::Reset, change), restored)
}
