//! Outages: what a failure of the store means to the breaker and to the caller.

use std::time::Duration;

use zae_limiter_store::{OnUnavailable, StoreError, StoreErrorKind};

use super::RateLimiter;
use super::acquire::contended;
use super::breaker::Entry;
use super::request::Request;
use crate::error::{AcquireError, Invalid, OutageReason, Unavailable};

/// When a caller is told to try again while the store is down.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why an attempt gave no lease.
pub(super) enum Failure {
    /// The store or the configuration answered, and this is the answer.
    Answer(AcquireError),
    /// The store failed.
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::Store(error)
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Failure {
        Failure::Answer(error)
    }
}

impl From<Invalid> for Failure {
    fn from(error: Invalid) -> Failure {
        Failure::Answer(error.into())
    }
}

impl RateLimiter {
    /// The policy for an outage: that of the call, else the stored one if it was ever read, else
    /// the limiter's own, else block.
    pub(super) fn policy(&self, per_call: Option<OnUnavailable>) -> OnUnavailable {
        per_call
            .or_else(|| self.scope.stored_policy())
            .or(self.scope.shared.settings.on_unavailable)
            .unwrap_or(OnUnavailable::Block)
    }

    /// Only a store that is down may be passed over; a full disk, a corrupt file or a closed
    /// limiter may not.
    pub(super) fn may_allow(&self, unavailable: &Unavailable, request: &Request) -> bool {
        let outage = match unavailable.reason {
            OutageReason::Deadline | OutageReason::BreakerOpen => true,
            OutageReason::Failed(kind) => kind.is_outage(),
            OutageReason::Closed => false,
        };
        outage && self.policy(request.terms().on_unavailable) == OnUnavailable::Allow
    }

    /// Asks the breaker; an open one is an outage that costs no waiting.
    pub(super) fn enter(&self) -> Result<Entry<'_>, AcquireError> {
        if self.scope.shared.settler.is_closed() {
            return Err(unavailable(OutageReason::Closed, RETRY_AFTER, None));
        }
        self.scope
            .shared
            .breaker
            .enter(self.clock())
            .map_err(|retry_after| unavailable(OutageReason::BreakerOpen, retry_after, None))
    }

    /// Tells the breaker how a call ended, and gives the caller its answer. `None` is a call that
    /// took too long.
    pub(super) fn answer<T>(
        &self,
        entry: Entry<'_>,
        result: Option<Result<T, Failure>>,
    ) -> Result<T, AcquireError> {
        match result {
            Some(Ok(answer)) => {
                entry.answered();
                Ok(answer)
            }
            Some(Err(Failure::Answer(error))) => {
                entry.answered();
                Err(error)
            }
            Some(Err(Failure::Store(error))) => Err(self.failed(entry, error)),
            None => Err(self.outage(entry, OutageReason::Deadline, None)),
        }
    }

    fn outage(
        &self,
        entry: Entry<'_>,
        reason: OutageReason,
        source: Option<StoreError>,
    ) -> AcquireError {
        entry.failed(self.clock(), &*self.scope.shared.entropy);
        unavailable(reason, RETRY_AFTER, source)
    }

    /// The one place that says what each kind of store error means to a caller.
    fn failed(&self, entry: Entry<'_>, error: StoreError) -> AcquireError {
        let kind = error.kind();
        if kind.is_outage() {
            return self.outage(entry, OutageReason::Failed(kind), Some(error));
        }
        entry.answered();
        match kind {
            StoreErrorKind::Busy => contended(Vec::new(), self.short_wait()),
            StoreErrorKind::Denied => AcquireError::Denied(error),
            StoreErrorKind::Incompatible => AcquireError::Incompatible(error),
            StoreErrorKind::Invalid => Invalid::Refused(error.message().to_owned()).into(),
            StoreErrorKind::NotFound => Invalid::Namespace(error.message().to_owned()).into(),
            _ => unavailable(OutageReason::Failed(kind), RETRY_AFTER, Some(error)),
        }
    }
}

fn unavailable(
    reason: OutageReason,
    retry_after: Duration,
    source: Option<StoreError>,
) -> AcquireError {
    AcquireError::Unavailable(Unavailable { reason, retry_after, source })
}
