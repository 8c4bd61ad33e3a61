//! Admission: the path of a request, from names to lease.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;
use zae_limiter_core::{EntityId, LimitStatus, RateLimitExceeded, ResourceName, Wait, WaitMs};
use zae_limiter_store::{ConsumeOutcome, OnUnavailable, StoreError, StoreErrorKind};

use super::RateLimiter;
use crate::breaker::Attempt;
use crate::error::{AcquireError, Disabled, Invalid, OutageReason, Unavailable};
use crate::inflight::{InFlight, beside, within};
use crate::lease::{Grant, Lease};
use crate::metrics;
use crate::plan::{Amounts, Plan, Settlement};
use crate::request::Request;
use crate::settler::Job;

/// Times a decision is asked again because the configuration it was based on was older than the
/// bucket's.
const STALE_ATTEMPTS_MAX: u32 = 4;
/// Times `Request::wait` asks again; a bound on top of the time.
const WAIT_ATTEMPTS_MAX: u32 = 10_000;
/// How long a configuration that says "on" is kept although the store says "off".
const DISABLED_REREAD: Duration = Duration::from_secs(1);
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
        self.statuses
            .iter()
            .filter(|status| status.limit.name().as_str() == limit)
            .map(|status| status.available)
            .min()
    }
}

impl RateLimiter {
    /// Takes the amounts from every bucket of the chain, or from none.
    ///
    /// Cancel-safe: dropped at any point, whatever was taken is given back by the settler.
    ///
    /// Cost: one round trip, one write per member of the chain; one more read per member whose
    /// configuration is not cached.
    pub async fn acquire(&self, request: Request) -> Result<Lease, AcquireError> {
        let span = tracing::debug_span!("acquire", outcome = tracing::field::Empty);
        let result = if span.is_disabled() {
            self.acquire_waiting(request).await
        } else {
            // Boxed, so that an acquire that nobody watches need not carry room for a second
            // future.
            Box::pin(self.acquire_waiting(request)).instrument(span.clone()).await
        };
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

    /// Runs `work` with a lease: commit when it returns `Ok`, rollback when it returns `Err`. A
    /// panic or a cancelled future drops the lease, which then acts as the request's `OnDrop` says:
    /// rollback, unless asked otherwise.
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

    /// What `request` would find, without taking anything. Without amounts it looks at every limit
    /// there is.
    ///
    /// Cost: one read, plus one per member whose configuration is not cached.
    pub async fn availability(&self, request: &Request) -> Result<Availability, AcquireError> {
        let (entity, resource) = request.checked_names()?;
        let deadline = request.deadline.unwrap_or(self.shared.settings.deadline);
        let attempt = self.enter()?;
        self.answer(
            attempt,
            within(self.clock(), deadline, self.look(request, entity, resource)).await,
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
            match plan.peek(&**self.store(), &amounts_of(&request), self.clock().now()).await? {
                ConsumeOutcome::Granted(reports) | ConsumeOutcome::Refused(reports) => {
                    return Ok(Availability { statuses: plan.statuses(&reports) });
                }
                ConsumeOutcome::Disabled { member } => {
                    return Err(Failure::Answer(disabled(&plan, member)));
                }
                ConsumeOutcome::Stale { .. } => self.forget(&plan),
                ConsumeOutcome::Contended { retry_after } => {
                    return Err(Failure::Answer(contended(retry_after)));
                }
            }
        }
        Err(Failure::Answer(contended(self.short_wait())))
    }

    async fn acquire_waiting(&self, request: Request) -> Result<Lease, AcquireError> {
        request.checked_names()?;
        let decided = match request.wait {
            None => self.decide(&request).await,
            Some(wait) => Box::pin(self.decide_waiting(&request, wait)).await,
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

    /// Asks again after every refusal that waiting can cure.
    async fn decide_waiting(
        &self,
        request: &Request,
        wait: Duration,
    ) -> Result<Grant, AcquireError> {
        let started = self.clock().monotonic();
        for _ in 0..WAIT_ATTEMPTS_MAX {
            let refused = match self.decide(request).await {
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

    /// Only a store that is down may be passed over; a full disk, a corrupt file or a closed
    /// limiter may not.
    fn may_allow(&self, unavailable: &Unavailable, request: &Request) -> bool {
        let outage = match unavailable.reason {
            OutageReason::Deadline | OutageReason::BreakerOpen => true,
            OutageReason::Failed(kind) => kind.is_outage(),
            OutageReason::Closed => false,
        };
        outage && self.policy(request.on_unavailable) == OnUnavailable::Allow
    }

    /// One decision within one deadline.
    async fn decide(&self, request: &Request) -> Result<Grant, AcquireError> {
        let attempt = self.enter()?;
        let deadline = request.deadline.unwrap_or(self.shared.settings.deadline);
        let stopwatch = self.stopwatch();
        let decided = within(self.clock(), deadline, self.decide_fresh(request)).await;
        stopwatch.stop(self.clock(), metrics::acquire_took);
        self.answer(attempt, decided)
    }

    /// Decides; reads the configuration again when the bucket knows a newer one.
    async fn decide_fresh(&self, request: &Request) -> Result<Grant, Failure> {
        for _ in 0..STALE_ATTEMPTS_MAX {
            if let Some(grant) = self.decide_once(request).await? {
                return Ok(grant);
            }
        }
        Err(Failure::Answer(contended(self.short_wait())))
    }

    /// `None` when the configuration has to be read again first.
    async fn decide_once(&self, request: &Request) -> Result<Option<Grant>, Failure> {
        let (entity, resource) = request.checked_names()?;
        // Where a read is a round trip, limits that have just expired are used once more while they
        // are read again, for a few seconds. They may grant; an error they would lead to is not
        // told before they were.
        let remembered =
            if self.shared.reads_are_slow { self.remembered_chain(entity, resource) } else { None };
        let planned = remembered.and_then(|(chain, expired)| {
            Some((self.plan(request, resource, &chain).ok()?, expired))
        });
        let (plan, expired) = match planned {
            Some(planned) => planned,
            None => {
                (self.plan(request, resource, &self.chain(entity, resource).await?)?, Vec::new())
            }
        };
        let amounts = amounts_of(request);
        let consume = Arc::clone(&plan).consume(
            Arc::clone(self.store()),
            Amounts::from_slice(&amounts),
            self.clock().now(),
        );
        let outcome = InFlight::new(consume, self.settler(), |consume| {
            let mut refund = Settlement::default();
            refund.add(&plan, &amounts.iter().map(|amount| amount.negated()).collect());
            Job::GiveBack { store: Arc::clone(self.store()), consume, refund }
        });
        let outcome = if expired.is_empty() {
            outcome.await
        } else {
            Box::pin(beside(
                outcome,
                Box::pin(self.clone().refresh(expired, resource.clone())),
                self.settler(),
            ))
            .await
        };
        match outcome? {
            ConsumeOutcome::Granted(reports) => Ok(Some(Grant { plan, amounts, reports })),
            ConsumeOutcome::Refused(reports) => {
                Err(Failure::Answer(RateLimitExceeded::new(plan.statuses(&reports)).into()))
            }
            ConsumeOutcome::Disabled { member } => {
                // What is remembered says otherwise, or the store had not been asked: read it
                // again, but not for every request.
                let said_by = &plan.members[member].entity;
                self.scope.cache.evict_older(said_by, resource, DISABLED_REREAD, self.clock());
                Err(Failure::Answer(disabled(&plan, member)))
            }
            ConsumeOutcome::Contended { retry_after } => {
                Err(Failure::Answer(contended(retry_after)))
            }
            ConsumeOutcome::Stale { .. } => {
                self.forget(&plan);
                Ok(None)
            }
        }
    }

    /// What an attempt means to the breaker and to the caller; `None` is one that took too long.
    fn answer<T>(
        &self,
        attempt: Attempt<'_>,
        result: Option<Result<T, Failure>>,
    ) -> Result<T, AcquireError> {
        match result {
            Some(Ok(answer)) => {
                attempt.answered();
                Ok(answer)
            }
            Some(Err(Failure::Answer(error))) => {
                attempt.answered();
                Err(error)
            }
            Some(Err(Failure::Store(error))) => Err(self.failed(attempt, error)),
            None => Err(self.outage(attempt, OutageReason::Deadline, None)),
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
        self.shared.breaker.enter(self.clock()).map_err(|retry_after| {
            AcquireError::Unavailable(Unavailable {
                reason: OutageReason::BreakerOpen,
                retry_after,
                source: None,
            })
        })
    }

    fn outage(
        &self,
        attempt: Attempt<'_>,
        reason: OutageReason,
        source: Option<StoreError>,
    ) -> AcquireError {
        attempt.failed(self.clock(), &*self.shared.entropy);
        AcquireError::Unavailable(Unavailable {
            reason,
            retry_after: Duration::from_secs(1),
            source,
        })
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
        Wait::After(WaitMs::at_least_one(
            CONTENDED_WAIT_MS + self.shared.entropy.next_u64() % CONTENDED_WAIT_MS,
        ))
    }
}

/// Why an attempt gave no lease.
enum Failure {
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

fn amounts_of(request: &Request) -> Amounts {
    // Pushed one by one: collecting into a small vector costs more than the few amounts there are.
    let mut amounts = Amounts::new();
    request.amounts.iter().for_each(|(_, amount)| amounts.push(*amount));
    amounts
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
