//! Admission: the path of a request, from names to lease.
//!
//! Every function adds one policy and calls the next. `acquire` traces and counts,
//! `admit_or_degrade` lets a call pass while the store is down, `retry_for` waits for limits,
//! `within_deadline` asks the breaker and bounds the time, `with_fresh_limits` repeats an attempt
//! whose limits were stale, and `attempt` plans and takes.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;
use zae_limiter_core::{
    EntityId, Flag, LimitStatus, RateLimitExceeded, ResourceName, Wait, WaitMs,
};
use zae_limiter_store::{ConsumeOutcome, Grant as StoreGrant};

use super::RateLimiter;
use super::outage::Failure;
use super::plan::{Amounts, Plan};
use super::request::Request;
use crate::deadline::timeout;
use crate::error::{AcquireError, Disabled};
use crate::lease::{Grant, InFlight, Job, Lease, with_read_alongside};
use crate::metrics;

/// Times a decision is asked again because the configuration it was based on was older than the
/// bucket's.
pub(super) const STALE_ATTEMPTS_MAX: u32 = 4;
/// Times `Request::wait` asks again; a bound on top of the time.
const WAIT_ATTEMPTS_MAX: u32 = 10_000;
/// How long a cached configuration that says "enabled" is kept although the store says "disabled".
const DISABLED_REREAD: Duration = Duration::from_secs(1);
/// The wait that a caller is told when others keep the store busy, plus up to as much again.
const CONTENDED_WAIT_MS: u64 = 50;

impl RateLimiter {
    /// Takes the amounts from every bucket of the chain, or from none.
    ///
    /// Cancel-safe: when the future is dropped, at any point, the settler gives back what was
    /// taken.
    ///
    /// Cost: one round trip, one write per member of the chain; one more read per member whose
    /// configuration is not cached.
    pub async fn acquire(&self, request: Request) -> Result<Lease, AcquireError> {
        let span = tracing::debug_span!("acquire", outcome = tracing::field::Empty);
        let result = if span.is_disabled() {
            self.admit_or_degrade(request).await
        } else {
            // Boxed, so that an acquire without a subscriber need not carry room for a second
            // future.
            Box::pin(self.admit_or_degrade(request)).instrument(span.clone()).await
        };
        span.record("outcome", counted(&result));
        result
    }

    /// Runs `work` with a lease: commit when it returns `Ok`, rollback when it returns `Err`. A
    /// panic or a cancelled future drops the lease, which then acts as the request's `OnDrop` says:
    /// rollback, unless asked otherwise.
    ///
    /// A commit that fails does not fail the work: the settler retries its charges.
    pub async fn with_lease<T, E: From<AcquireError>>(
        &self,
        request: Request,
        work: impl AsyncFnOnce(&Lease) -> Result<T, E>,
    ) -> Result<T, E> {
        let lease = self.acquire(request).await?;
        let result = work(&lease).await;
        let settled = if result.is_ok() { lease.commit().await } else { lease.rollback().await };
        if let Err(error) = settled {
            tracing::debug!(%error, "the settler takes over");
        }
        result
    }

    /// A lease for a grant; a degraded lease when the store is down and the policy is to allow.
    async fn admit_or_degrade(&self, request: Request) -> Result<Lease, AcquireError> {
        request.checked_names()?;
        let decided = match request.wait {
            None => self.within_deadline(&request).await,
            Some(wait) => Box::pin(self.retry_for(wait, &request)).await,
        };
        match decided {
            Ok(grant) => Ok(Lease::granted(self.clone(), request, grant)),
            Err(AcquireError::Unavailable(unavailable))
                if self.may_allow(&unavailable, &request) =>
            {
                Ok(Lease::degraded_by(self.clone(), request, unavailable.reason))
            }
            Err(error) => Err(error),
        }
    }

    /// Asks again after every refusal that waiting can cure, for at most `wait` in total.
    async fn retry_for(&self, wait: Duration, request: &Request) -> Result<Grant, AcquireError> {
        let started = self.clock().monotonic();
        for _ in 0..WAIT_ATTEMPTS_MAX {
            let refused = match self.within_deadline(request).await {
                Err(AcquireError::Exceeded(report)) => report,
                other => return other,
            };
            let left = wait.saturating_sub(self.clock().monotonic().saturating_sub(started));
            match refused.retry_after().duration() {
                Some(pause) if pause <= left => self.clock().sleep(pause).await,
                _ => return Err(AcquireError::Exceeded(refused)),
            }
        }
        Err(contended(Vec::new(), self.short_wait()))
    }

    /// One decision, if the breaker lets it through, within the deadline of the request.
    async fn within_deadline(&self, request: &Request) -> Result<Grant, AcquireError> {
        let entry = self.enter()?;
        let deadline = request.deadline.unwrap_or(self.shared.settings.deadline);
        let stopwatch = self.stopwatch();
        let decided = timeout(self.clock(), deadline, self.with_fresh_limits(request)).await;
        stopwatch.stop(self.clock(), metrics::acquire_took);
        self.answer(entry, decided)
    }

    /// Repeats an attempt whose limits were older than those of the bucket.
    async fn with_fresh_limits(&self, request: &Request) -> Result<Grant, Failure> {
        for _ in 0..STALE_ATTEMPTS_MAX {
            if let Some(grant) = self.attempt(request).await? {
                return Ok(grant);
            }
        }
        Err(Failure::Answer(contended(Vec::new(), self.short_wait())))
    }

    /// Plans and takes, once. `None` when the limits were stale; the cache has forgotten them then,
    /// so that the next attempt reads them.
    async fn attempt(&self, request: &Request) -> Result<Option<Grant>, Failure> {
        let (entity, resource) = request.checked_names()?;
        let (plan, expired) = match self.plan_from_cache(request, entity, resource) {
            Some(planned) => planned,
            None => {
                (self.plan(request, resource, &self.chain(entity, resource).await?)?, Vec::new())
            }
        };
        let amounts = request.amounts();
        let consume = Arc::clone(&plan).consume(
            Arc::clone(self.store()),
            Amounts::from_slice(&amounts),
            self.clock().now(),
        );
        let outcome = InFlight::new(consume, self.settler(), |consume| {
            let (store, plan) = (Arc::clone(self.store()), Arc::clone(&plan));
            Job::GiveBack { store, consume, plan, amounts: amounts.clone() }
        });
        let outcome = if expired.is_empty() {
            outcome.await
        } else {
            let refresh = Box::pin(self.clone().refresh(expired, resource.clone()));
            Box::pin(with_read_alongside(outcome, refresh, self.settler())).await
        };
        match outcome? {
            ConsumeOutcome::Granted(StoreGrant { reports, places }) => {
                Ok(Some(Grant { plan, amounts, reports, places }))
            }
            ConsumeOutcome::Refused(reports) => {
                Err(Failure::Answer(RateLimitExceeded::new(plan.statuses(&reports)).into()))
            }
            ConsumeOutcome::Blocked { member, flag } => {
                // The cached configuration says "enabled", or the store was not asked for it. It is
                // read again, but not for every request.
                let said_by = &plan.members[member].entity;
                self.scope.cache.evict_older(said_by, resource, DISABLED_REREAD, self.clock());
                Err(Failure::Answer(disabled(&plan, member, flag)))
            }
            ConsumeOutcome::Contended { retry_after, reports } => {
                Err(Failure::Answer(contended(plan.statuses(&reports), retry_after)))
            }
            ConsumeOutcome::Stale { .. } => {
                self.forget(&plan);
                Ok(None)
            }
        }
    }

    /// A plan from cached configuration alone, with the members whose configuration has just
    /// expired and has to be read again beside the take. Only where a read is a round trip: there
    /// expired limits decide one more take. `None` when the configuration has to be read first:
    /// also when the plan is an error (disabled, no limits, an unknown name), because the error may
    /// be as outdated as the limits.
    fn plan_from_cache(
        &self,
        request: &Request,
        entity: &EntityId,
        resource: &ResourceName,
    ) -> Option<(Arc<Plan>, Vec<EntityId>)> {
        if !self.shared.reads_are_slow {
            return None;
        }
        let (chain, expired) = self.cached_chain(entity, resource)?;
        Some((self.plan(request, resource, &chain).ok()?, expired))
    }

    /// Forgets what is cached about the members of a plan.
    pub(super) fn forget(&self, plan: &Plan) {
        plan.members.iter().for_each(|member| self.scope.cache.evict_entity(&member.entity));
    }

    /// The wait that a contended request is told: short, and different for every caller.
    pub(super) fn short_wait(&self) -> Wait {
        Wait::After(WaitMs::at_least_one(
            CONTENDED_WAIT_MS + self.shared.entropy.next_u64() % CONTENDED_WAIT_MS,
        ))
    }
}

/// Counts an answer, and names it for the span.
fn counted(result: &Result<Lease, AcquireError>) -> &'static str {
    match result {
        Ok(lease) => match lease.degraded() {
            Some(degraded) => {
                metrics::degraded(degraded.reason.as_str());
                "degraded"
            }
            None => {
                metrics::count(metrics::GRANTED);
                "granted"
            }
        },
        Err(AcquireError::Exceeded(report)) if report.is_contended() => {
            metrics::count(metrics::CONTENDED);
            "contended"
        }
        Err(AcquireError::Exceeded(_)) => {
            metrics::count(metrics::REFUSED);
            "refused"
        }
        Err(AcquireError::Unavailable(unavailable)) => {
            metrics::blocked(unavailable.reason.as_str());
            "blocked"
        }
        Err(_) => "error",
    }
}

pub(super) fn contended(statuses: Vec<LimitStatus>, retry_after: Wait) -> AcquireError {
    RateLimitExceeded::contended(statuses, retry_after).into()
}

pub(super) fn disabled(plan: &Plan, member: usize, flag: Flag) -> AcquireError {
    let entity = plan.members[member].entity.clone();
    Disabled { entity, resource: plan.resource.clone(), flag, level: None }.into()
}
