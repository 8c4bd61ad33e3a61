//! Whether what a caller was told is what the store had said.

use std::time::Duration;

use zae_limiter::{AcquireError, Lease, OnUnavailable};
use zae_limiter::{LimitStatus, OutageReason};
use zae_limiter_core::{Reports, Wait};
use zae_limiter_store::{Clock, ConsumeOutcome, StoreErrorKind};

use super::Run;
use super::leases::check_used;
use super::ops::Ask;
use crate::oracle::Broken;
use crate::oracle::books::{Asked, Call, OpId, PlannedMember, Told};
use crate::oracle::lease::LeaseModel;

impl Run {
    pub(super) fn check_acquired(
        &self,
        op: OpId,
        client: usize,
        began: Duration,
        ask: &Ask,
        result: &Result<Lease, AcquireError>,
    ) -> Result<(), Broken> {
        let mut state = self.books.lock();
        let reason = match result {
            Ok(lease) => lease.degraded().map(|degraded| degraded.reason),
            Err(AcquireError::Unavailable(unavailable)) => Some(unavailable.reason),
            Err(_) => None,
        };
        if reason == Some(OutageReason::Deadline) {
            state.timed_out.insert(self.clients[client].id);
        }
        let state = state;
        let calls: Vec<&Call> = state.calls.iter().filter(|call| call.op == Some(op)).collect();
        let failed_with =
            |kind: StoreErrorKind| calls.iter().any(|call| call.failure() == Some(kind));
        let last = calls.iter().rev().find_map(|call| match (&call.asked, &call.told) {
            (Asked::Consume { members }, Some(Told::Decision(outcome))) => Some((members, outcome)),
            _ => None,
        });
        let client = &self.clients[client];
        let waited = client.clock.monotonic().saturating_sub(began);
        let is_outage = |reason: OutageReason| match reason {
            OutageReason::Deadline => {
                waited >= ask.deadline.unwrap_or(client.deadline).min(Duration::from_millis(1))
            }
            // A call that was given up may have ended well since. Callers that wait for somebody
            // else's read time out too, without a call of their own.
            OutageReason::BreakerOpen => {
                let is_failed = |call: &Call| {
                    call.client == client.id
                        && !matches!(call.told, Some(Told::Fine | Told::Decision(_)))
                };
                state.timed_out.contains(&client.id) || state.calls.iter().any(is_failed)
            }
            OutageReason::Failed(kind) => failed_with(kind),
            _ => false,
        };
        let right = match result {
            Ok(lease) => match lease.degraded() {
                None => matches!(last, Some((_, ConsumeOutcome::Granted(_)))),
                Some(degraded) => {
                    let policy = ask
                        .on_unavailable
                        .or(client.on_unavailable)
                        .unwrap_or(OnUnavailable::Block);
                    let outage =
                        !matches!(degraded.reason, OutageReason::Failed(kind) if !kind.is_outage());
                    policy == OnUnavailable::Allow && outage && is_outage(degraded.reason)
                }
            },
            Err(AcquireError::Exceeded(report)) if report.is_contended() => {
                failed_with(StoreErrorKind::Busy)
                    || matches!(
                        last,
                        Some((_, ConsumeOutcome::Stale { .. } | ConsumeOutcome::Contended { .. }))
                    )
            }
            Err(AcquireError::Exceeded(report)) => match last {
                Some((members, ConsumeOutcome::Refused(reports))) => {
                    check_statuses(members, reports, report.statuses())?;
                    report.retry_after() != Wait::None
                }
                _ => false,
            },
            Err(AcquireError::Disabled(_)) => {
                !matches!(last, Some((_, ConsumeOutcome::Granted(_))))
            }
            Err(AcquireError::NoLimits(_) | AcquireError::Invalid(_)) => {
                !matches!(last, Some((_, ConsumeOutcome::Granted(_))))
            }
            Err(AcquireError::Unavailable(unavailable)) => is_outage(unavailable.reason),
            Err(AcquireError::Denied(_)) => failed_with(StoreErrorKind::Denied),
            Err(AcquireError::Incompatible(_)) => failed_with(StoreErrorKind::Incompatible),
            Err(_) => false,
        };
        if right {
            return Ok(());
        }
        let told: Vec<_> = calls.iter().map(|call| (call.operation, &call.told)).collect();
        let result = result.as_ref().map(|lease| format!("{:?}", lease.degraded()));
        Err(format!("op {op} was told {result:?} after {waited:?}, the store had said {told:?}"))
    }

    pub(super) fn check_lease(
        &self,
        op: OpId,
        lease: &Lease,
        model: &LeaseModel,
    ) -> Result<(), Broken> {
        check_used(lease, model)?;
        if model.degraded {
            return Ok(());
        }
        let state = self.books.lock();
        let granted = state.calls.iter().rev().find_map(|call| match (&call.asked, &call.told) {
            (Asked::Consume { members }, Some(Told::Decision(ConsumeOutcome::Granted(grant))))
                if call.told_to == Some(op) =>
            {
                Some((members, &grant.reports))
            }
            _ => None,
        });
        let (members, reports) = granted.ok_or("a lease was granted by a take")?;
        check_statuses(members, reports, lease.statuses())
    }

    /// A settlement says that it went through exactly when it did.
    pub(super) fn check_settled(&self, op: OpId, fine: bool) -> Result<(), Broken> {
        let state = self.books.lock();
        let mut adjusts = state
            .calls
            .iter()
            .filter(|call| call.op == Some(op) && matches!(call.asked, Asked::Adjust { .. }));
        let went_through = adjusts.next_back().is_none_or(|call| match &call.told {
            Some(Told::Adjusted(results)) => results.iter().all(Result::is_ok),
            _ => false,
        });
        if fine == went_through {
            Ok(())
        } else {
            Err(format!("op {op} said {fine}, the store had said {went_through}"))
        }
    }
}

fn check_statuses(
    members: &[PlannedMember],
    reports: &Reports,
    statuses: &[LimitStatus],
) -> Result<(), Broken> {
    let expected: Vec<(String, String, i64, Wait)> = reports
        .iter()
        .map(|report| {
            let member = &members[usize::from(report.member)];
            (
                member.entity.to_string(),
                member.limits[usize::from(report.limit)].clone(),
                report.balance.0.div_euclid(1000),
                report.wait,
            )
        })
        .collect();
    let found: Vec<(String, String, i64, Wait)> = statuses
        .iter()
        .map(|status| {
            (
                status.entity.to_string(),
                status.limit.name().to_string(),
                status.available,
                status.retry_after,
            )
        })
        .collect();
    if found == expected {
        Ok(())
    } else {
        Err(format!("the caller sees {found:?}, the store reported {expected:?}"))
    }
}
