//! Availability: what a request would meet, without taking anything.

use zae_limiter_core::{EntityId, LimitStatus, ResourceName, Wait};
use zae_limiter_store::{ConsumeOutcome, Grant};

use super::RateLimiter;
use super::acquire::{STALE_ATTEMPTS_MAX, contended, disabled};
use super::outage::Failure;
use super::plan::Plan;
use super::request::Request;
use crate::deadline::timeout;
use crate::error::AcquireError;

/// What a request would meet, without taking anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    statuses: Vec<LimitStatus>,
}

impl Availability {
    /// The status of every limit looked at, the caller's own first.
    #[must_use]
    pub fn statuses(&self) -> &[LimitStatus] {
        &self.statuses
    }

    /// True when the request would be granted now.
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.retry_after() == Wait::None
    }

    /// When the request could be granted.
    #[must_use]
    pub fn retry_after(&self) -> Wait {
        self.statuses.iter().map(|status| status.retry_after).max().unwrap_or(Wait::None)
    }

    /// Tokens left of a limit: the least over the chain. `None` when no member has the limit.
    #[must_use]
    pub fn available(&self, limit: &str) -> Option<i64> {
        self.statuses
            .iter()
            .filter(|status| status.limit.name().as_str() == limit)
            .map(|status| status.available)
            .min()
    }
}

impl RateLimiter {
    /// What `request` would meet, without taking anything. A request without amounts looks at every
    /// limit of the chain.
    ///
    /// Cost: one read, plus one per member whose configuration is not cached.
    pub async fn availability(&self, request: &Request) -> Result<Availability, AcquireError> {
        let (entity, resource) = request.checked_names()?;
        let deadline = request.terms().deadline.unwrap_or(self.scope.shared.settings.deadline);
        let entry = self.enter()?;
        self.answer(
            entry,
            timeout(self.clock(), deadline, self.look(request, entity, resource)).await,
        )
    }

    async fn look(
        &self,
        request: &Request,
        entity: &EntityId,
        resource: &ResourceName,
    ) -> Result<Availability, Failure> {
        for _ in 0..STALE_ATTEMPTS_MAX {
            let chain = self.chain(entity, resource).await?;
            let mut request = request.clone();
            if request.amounts.is_empty() {
                let bare = self.plan(&request, resource, &chain)?;
                request = every_limit(request, &bare);
            }
            let plan = self.plan(&request, resource, &chain)?;
            match plan.peek(&**self.store(), &request.amounts(), self.clock().now()).await? {
                ConsumeOutcome::Granted(Grant { reports, .. })
                | ConsumeOutcome::Refused(reports)
                | ConsumeOutcome::Paced { reports, .. } => {
                    return Ok(Availability { statuses: plan.statuses(&reports) });
                }
                ConsumeOutcome::Blocked { member, flag } => {
                    return Err(Failure::Answer(disabled(&plan, member, flag)));
                }
                ConsumeOutcome::Stale { .. } => self.forget(&plan),
                ConsumeOutcome::Contended { retry_after, reports } => {
                    let statuses = plan.statuses(&reports);
                    return Err(Failure::Answer(contended(statuses, retry_after)));
                }
            }
        }
        Err(Failure::Answer(contended(Vec::new(), self.short_wait())))
    }
}

/// The same request, naming every limit of the chain with no amount.
fn every_limit(request: Request, plan: &Plan) -> Request {
    let limits = plan.members.iter().flat_map(|member| member.limits.limits.iter());
    limits.fold(request, |request, limit| request.take(limit.name().clone(), 0))
}
