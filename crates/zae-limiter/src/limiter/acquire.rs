//! Admission: the path of a request, from names to lease.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;
use zae_limiter_core::{LimitStatus, RateLimitExceeded, Wait, WaitMs};
use zae_limiter_store::{ConsumeOutcome, OnUnavailable, StoreError, StoreErrorKind};

use super::RateLimiter;
use crate::breaker::Attempt;
use crate::error::{AcquireError, Disabled, Invalid, OutageReason, Unavailable};
use crate::inflight::{InFlight, within};
use crate::lease::Lease;
use crate::metrics;
use crate::plan::{Amounts, Plan, Settlement};
use crate::request::Request;
use crate::settler::Job;

/// Times a decision is asked again because the configuration it was based on was older than the bucket's.
const STALE_ATTEMPTS_MAX: u32 = 4;
/// Times `Request::wait` asks again; a bound on top of the time.
const WAIT_ATTEMPTS_MAX: u32 = 10_000;
/// What a caller is told to wait when others keep the store busy, plus up to as much again.
const CONTENDED_WAIT_MS: u64 = 50;

/// What a request would find, without taking anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    statuses: Vec<LimitStatus>,
}

impl Availability {
    /// Every limit looked at, the caller's own first.
    #[must_use]
    pub fn statuses(&self) -> &[LimitStatus] {
        &self.statuses
    }

    /// True when the request would be granted now.
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.retry_after() == Wait::None
    }

    /// When it could be granted.
    #[must_use]
    pub fn retry_after(&self) -> Wait {
        self.statuses.iter().map(|status| status.retry_after).max().unwrap_or(Wait::None)
    }

    /// Tokens left of a limit: the least over the chain. `None` when nobody has it.
    #[must_use]
    pub fn available(&self, limit: &str) -> Option<i64> {
        self.statuses.iter().filter(|status| status.limit.name().as_str() == limit).map(|status| status.available).min()
    }
}

impl RateLimiter {
    /// Takes the amounts from every bucket of the chain, or from none.
    ///
    /// Cancel-safe: dropped at any point, whatever was taken is given back by the settler.
    ///
    /// Cost: one round trip, one write per member of the chain; one more read per member whose configuration is not
    /// cached.
    pub async fn acquire(&self, request: Request) -> Result<Lease, AcquireError> {
        let span = tracing::debug_span!("acquire", outcome = tracing::field::Empty);
        let result = self.acquire_waiting(request).instrument(span.clone()).await;
        let outcome = match &result {
            Ok(lease) => match lease.degraded() {
                Some(degraded) => {
                    metrics::degraded(degraded.reason.as_str());
                    "degraded"
                }
                None => {
                    metrics::granted();
                    "granted"
                }
            },
            Err(AcquireError::Exceeded(report)) if report.is_contended() => {
                metrics::contended();
                "contended"
            }
            Err(AcquireError::Exceeded(_)) => {
                metrics::refused();
                "refused"
            }
            Err(AcquireError::Unavailable(unavailable)) => {
                metrics::blocked(unavailable.reason.as_str());
                "blocked"
            }
            Err(_) => "error",
        };
        span.record("outcome", outcome);
        result
    }

    /// Runs `work` with a lease: commit when it returns `Ok`, rollback when it returns `Err`. A panic or a cancelled future
    /// drops the lease, which then acts as the request's `OnDrop` says: rollback, unless asked otherwise.
    ///
    /// A commit that fails does not fail the work: its charges are retried by the settler.
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

    /// What `request` would find, without taking anything. Without amounts it looks at every limit there is.
    ///
    /// Cost: one read, plus one per member whose configuration is not cached.
    pub async fn availability(&self, request: &Request) -> Result<Availability, AcquireError> {
        let (entity, resource) = request.checked_names()?;
        let deadline = request.deadline.unwrap_or(self.shared.settings.deadline);
        let attempt = self.enter()?;
        let look = async {
            for _ in 0..STALE_ATTEMPTS_MAX {
                let chain = self.chain(entity, resource).await.map_err(Failure::Store)?;
                let mut all = request.clone();
                if all.amounts.is_empty() {
                    let bare = self.plan(request, resource, &chain).map_err(Failure::Answer)?;
                    all = every_limit(all, &bare);
                }
                let plan = self.plan(&all, resource, &chain).map_err(Failure::Answer)?;
                let amounts = amounts_of(&all);
                match plan.peek(&**self.store(), &amounts, self.clock().now()).await.map_err(Failure::Store)? {
                    ConsumeOutcome::Granted(reports) | ConsumeOutcome::Refused(reports) => {
                        return Ok(Availability { statuses: plan.statuses(&reports) });
                    }
                    ConsumeOutcome::Disabled { member } => return Err(Failure::Answer(disabled(&plan, member))),
                    ConsumeOutcome::Stale { .. } => self.forget(&plan),
                    ConsumeOutcome::Contended { retry_after } => return Err(Failure::Answer(contended(retry_after))),
                }
            }
            Err(Failure::Answer(contended(self.short_wait())))
        };
        match within(self.clock(), deadline, look).await {
            None | Some(Err(Failure::Deadline)) => Err(self.outage(attempt, OutageReason::Deadline, None)),
            Some(Err(Failure::Store(error))) => Err(self.failed(attempt, error)),
            Some(Err(Failure::Answer(error))) => {
                attempt.answered();
                Err(error)
            }
            Some(Ok(availability)) => {
                attempt.answered();
                Ok(availability)
            }
        }
    }

    async fn acquire_waiting(&self, request: Request) -> Result<Lease, AcquireError> {
        request.checked_names()?;
        let Some(wait) = request.wait else {
            return self.acquire_once(&request).await;
        };
        let started = self.clock().monotonic();
        for _ in 0..WAIT_ATTEMPTS_MAX {
            let refused = match self.acquire_once(&request).await {
                Err(AcquireError::Exceeded(report)) => report,
                other => return other,
            };
            let left = wait.saturating_sub(self.clock().monotonic().saturating_sub(started));
            match refused.retry_after().duration() {
                Some(pause) if pause <= left => self.clock().sleep(pause).await,
                _ => return Err(AcquireError::Exceeded(refused)),
            }
        }
        Err(contended(self.short_wait()))
    }

    /// One try within one deadline, with the outage policy applied.
    async fn acquire_once(&self, request: &Request) -> Result<Lease, AcquireError> {
        match self.decide(request).await {
            Err(AcquireError::Unavailable(unavailable)) if self.may_allow(&unavailable, request) => {
                Ok(Lease::degraded_by(self.clone(), request.clone(), unavailable.reason))
            }
            other => other,
        }
    }

    /// Only a store that is down may be passed over; a full disk, a corrupt file or a closed limiter may not.
    fn may_allow(&self, unavailable: &Unavailable, request: &Request) -> bool {
        let outage = match unavailable.reason {
            OutageReason::Deadline | OutageReason::BreakerOpen => true,
            OutageReason::Failed(kind) => kind.is_outage(),
            OutageReason::Closed => false,
        };
        outage && self.policy(request.on_unavailable) == OnUnavailable::Allow
    }

    async fn decide(&self, request: &Request) -> Result<Lease, AcquireError> {
        let attempt = self.enter()?;
        let deadline = request.deadline.unwrap_or(self.shared.settings.deadline);
        let started = self.clock().monotonic();
        for _ in 0..STALE_ATTEMPTS_MAX {
            let left = deadline.saturating_sub(self.clock().monotonic().saturating_sub(started));
            match self.decide_once(request, left).await {
                Ok(Some(lease)) => {
                    attempt.answered();
                    return Ok(lease);
                }
                Ok(None) => {}
                Err(Failure::Answer(error)) => {
                    attempt.answered();
                    return Err(error);
                }
                Err(Failure::Store(error)) => return Err(self.failed(attempt, error)),
                Err(Failure::Deadline) => return Err(self.outage(attempt, OutageReason::Deadline, None)),
            }
        }
        attempt.answered();
        Err(contended(self.short_wait()))
    }

    /// One decision; `None` when the configuration has to be read again first.
    async fn decide_once(&self, request: &Request, left: Duration) -> Result<Option<Lease>, Failure> {
        let (entity, resource) = request.checked_names().map_err(|error| Failure::Answer(error.into()))?;
        let started = self.clock().monotonic();
        let chain = within(self.clock(), left, self.chain(entity, resource)).await.ok_or(Failure::Deadline)?.map_err(Failure::Store)?;
        let plan = self.plan(request, resource, &chain).map_err(Failure::Answer)?;
        let amounts = amounts_of(request);
        let consume = Arc::clone(&plan).consume(Arc::clone(self.store()), amounts.clone(), self.clock().now());
        let consume = InFlight::new(consume, self.settler(), |consume| {
            let mut refund = Settlement::default();
            refund.add(&plan, &amounts.iter().map(|amount| amount.negated()).collect());
            Job::GiveBack { store: Arc::clone(self.store()), consume, refund }
        });
        let left = left.saturating_sub(self.clock().monotonic().saturating_sub(started));
        match consume.finish(self.clock(), left).await.ok_or(Failure::Deadline)?.map_err(Failure::Store)? {
            ConsumeOutcome::Granted(reports) => Ok(Some(Lease::granted(self.clone(), request.clone(), plan, amounts, reports))),
            ConsumeOutcome::Refused(reports) => Err(Failure::Answer(RateLimitExceeded::new(plan.statuses(&reports)).into())),
            ConsumeOutcome::Disabled { member } => {
                self.forget(&plan);
                Err(Failure::Answer(disabled(&plan, member)))
            }
            ConsumeOutcome::Contended { retry_after } => Err(Failure::Answer(contended(retry_after))),
            ConsumeOutcome::Stale { .. } => {
                self.forget(&plan);
                Ok(None)
            }
        }
    }

    /// Asks the breaker; an open one is an outage that costs no waiting.
    fn enter(&self) -> Result<Attempt<'_>, AcquireError> {
        if self.shared.settler.is_closed() {
            return Err(AcquireError::Unavailable(Unavailable {
                reason: OutageReason::Closed,
                retry_after: Duration::from_secs(1),
                source: None,
            }));
        }
        self.shared
            .breaker
            .enter(self.clock())
            .map_err(|retry_after| AcquireError::Unavailable(Unavailable { reason: OutageReason::BreakerOpen, retry_after, source: None }))
    }

    fn outage(&self, attempt: Attempt<'_>, reason: OutageReason, source: Option<StoreError>) -> AcquireError {
        attempt.failed(self.clock(), &*self.shared.entropy);
        AcquireError::Unavailable(Unavailable { reason, retry_after: Duration::from_secs(1), source })
    }

    /// One place that says what each kind of store error means to a caller.
    fn failed(&self, attempt: Attempt<'_>, error: StoreError) -> AcquireError {
        let kind = error.kind();
        if kind.is_outage() {
            return self.outage(attempt, OutageReason::Failed(kind), Some(error));
        }
        attempt.answered();
        match kind {
            StoreErrorKind::Busy => contended(self.short_wait()),
            StoreErrorKind::Denied => AcquireError::Denied(error),
            StoreErrorKind::Incompatible => AcquireError::Incompatible(error),
            StoreErrorKind::Invalid => Invalid::Refused(error.message().to_owned()).into(),
            StoreErrorKind::NotFound => Invalid::Namespace(error.message().to_owned()).into(),
            _ => AcquireError::Unavailable(Unavailable {
                reason: OutageReason::Failed(kind),
                retry_after: Duration::from_secs(1),
                source: Some(error),
            }),
        }
    }

    /// Forgets what is cached about the members of a plan.
    fn forget(&self, plan: &Plan) {
        plan.members.iter().for_each(|member| self.scope.cache.evict_entity(&member.entity));
    }

    fn short_wait(&self) -> Wait {
        Wait::After(WaitMs::at_least_one(CONTENDED_WAIT_MS + self.shared.entropy.next_u64() % CONTENDED_WAIT_MS))
    }
}

/// Why an attempt gave no lease.
enum Failure {
    /// The store or the configuration answered, and this is the answer.
    Answer(AcquireError),
    /// The store failed.
    Store(StoreError),
    /// The store did not answer in time.
    Deadline,
}

fn amounts_of(request: &Request) -> Amounts {
    request.amounts.iter().map(|(_, amount)| *amount).collect()
}

/// The same request, naming every limit of the chain with no amount.
fn every_limit(request: Request, plan: &Plan) -> Request {
    let limits = plan.members.iter().flat_map(|member| member.limits.limits.iter());
    limits.fold(request, |request, limit| request.take(limit.name().clone(), 0))
}

fn contended(retry_after: Wait) -> AcquireError {
    RateLimitExceeded::contended(Vec::new(), retry_after).into()
}

fn disabled(plan: &Plan, member: usize) -> AcquireError {
    let entity = plan.members[member].entity.clone();
    Disabled { entity, resource: plan.resource.clone(), level: None }.into()
}
