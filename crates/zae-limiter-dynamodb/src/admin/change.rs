//! Administrative changes: one transaction each, with the audit event in it.

use zae_limiter_store::{Change, StoreError, StoreErrorKind};

use crate::Shared;
use crate::records::attr;
use crate::records::item::{Event, audit_item, corrupt, details, details_of, text_of};
use crate::records::keys;
use crate::table::error::failed;
use crate::table::retry::Refused;
use crate::table::{
    Cancellation, Check, Comparison, Item, TableError, Write, compare_with, number, text,
};

/// What became of a change.
pub(crate) enum Outcome {
    /// It was made, and recorded.
    Made,
    /// Nothing was made: some of the writes lost a race. One reason per write.
    Lost(Vec<Cancellation>),
}

impl Outcome {
    /// The value, if the change was made.
    pub(crate) fn then_some<T>(self, value: T) -> Option<T> {
        matches!(self, Outcome::Made).then_some(value)
    }
}

impl Shared {
    /// Makes a change inside an active namespace, with its audit event, or nothing.
    pub(crate) async fn change(
        &self,
        operation: &'static str,
        namespace: &str,
        writes: Vec<Write>,
        recorded: (&Change, Event<'_>),
    ) -> Result<Outcome, StoreError> {
        let mut legs = Vec::with_capacity(writes.len() + 2);
        legs.push(Write::Check(is_active(namespace)));
        legs.extend(writes);
        let mut reasons = match self.change_anywhere(operation, namespace, legs, recorded).await? {
            Outcome::Made => return Ok(Outcome::Made),
            Outcome::Lost(reasons) => reasons,
        };
        if matches!(reasons.remove(0), Cancellation::Condition(_)) {
            return Err(StoreError::namespace_gone(operation));
        }
        Ok(Outcome::Lost(reasons))
    }

    /// The same for changes of the registry of namespaces itself.
    pub(crate) async fn change_anywhere(
        &self,
        operation: &'static str,
        namespace: &str,
        writes: Vec<Write>,
        (change, event): (&Change, Event<'_>),
    ) -> Result<Outcome, StoreError> {
        let retention_s = self.audit_retention_s().await;
        let mut audit = audit_item(namespace, change, event, retention_s);
        // Kept from the table's now on: a clock that is years behind would have its events
        // forgotten at once.
        let now_s = self.corrected(change.at).0.div_euclid(1_000);
        let expires_s = now_s.saturating_add(retention_s);
        audit.insert(attr::TTL.into(), number(expires_s));
        let mut legs = writes;
        legs.push(Write::create(audit.clone()));
        let mut reasons = match self.transact(operation, &legs).await {
            Ok(()) => {
                self.caches.forget_buckets();
                return Ok(Outcome::Made);
            }
            Err(Refused::Canceled(reasons)) if reasons.len() == legs.len() => reasons,
            Err(refused) => return Err(refused.into_error(operation)),
        };
        if let Some(Cancellation::Rejected(why)) =
            reasons.iter().find(|reason| matches!(reason, Cancellation::Rejected(_)))
        {
            return Err(failed(operation, TableError::Rejected(why.clone())));
        }
        match reasons.pop() {
            // The very event we were about to write: an earlier attempt of ours landed, and its
            // answer was lost.
            Some(Cancellation::Condition(Some(found))) if is_same_event(&found, &audit) => {
                Ok(Outcome::Made)
            }
            Some(Cancellation::Condition(_)) => {
                let message = format!(
                    "the audit event {} has been used for another change; make a new one for each",
                    change.event
                );
                Err(StoreError::new(StoreErrorKind::AlreadyExists, operation, message))
            }
            _ => Ok(Outcome::Lost(reasons)),
        }
    }
}

/// Whether two items tell the same change. The details of what was there before are left out: a
/// change that is repeated finds its own result.
pub(crate) fn is_same_event(found: &Item, ours: &Item) -> bool {
    let made = |item| details_of(item).map(details::without_before);
    ["event_id", "action", "timestamp", "principal", "resource"]
        .iter()
        .all(|part| found.get(*part) == ours.get(*part))
        && made(found) == made(ours)
}

/// The condition that a namespace is active. Part of every change, so that none can be made in one
/// that is gone.
pub(crate) fn is_active(namespace: &str) -> Check {
    let active = compare_with(attr::STATUS, Comparison::Eq, text("active"));
    Check { key: keys::namespace_by_id(namespace), conditions: vec![active] }
}

/// Fails unless the record of a namespace says that it is active.
pub(crate) fn check_active(
    operation: &'static str,
    record: Option<&Item>,
) -> Result<(), StoreError> {
    let Some(record) = record else { return Err(StoreError::namespace_gone(operation)) };
    match text_of(record, attr::STATUS) {
        Some("active") => Ok(()),
        Some(_) => Err(StoreError::namespace_gone(operation)),
        None => Err(corrupt(record, attr::STATUS, "is missing, or not a text").during(operation)),
    }
}

/// Every attempt lost its race.
pub(crate) fn too_busy(operation: &'static str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Busy,
        operation,
        "others keep changing the same records; nothing was changed, try again",
    )
}
