//! Admission: the path of a request, from names to lease.
//!
//! `acquire` traces and counts (`Call`). It first tries `acquire_at_once`, a plain function: a
//! cached plan and a store that answers without waiting need nothing of what follows. Then every
//! function adds one policy and calls the next: `admit_or_degrade` lets a call pass while the store
//! is down, `retry_for` waits for limits, `within_deadline` asks the breaker and bounds the time,
//! `with_fresh_limits` repeats an attempt whose limits were stale, and `attempt` plans and takes.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;
use zae_limiter_core::{
    EntityId, Flag, LimitStatus, Milli, RateLimitExceeded, ResourceName, Wait, WaitMs,
};
use zae_limiter_store::{AtOnce, ConsumeOutcome, Grant as StoreGrant};

use super::RateLimiter;
use super::outage::Failure;
use super::plan::{Amounts, Plan, next_operation};
use super::request::{Manner, Request};
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

/// What an attempt without waiting came to.
pub(super) enum Attempt {
    /// An answer.
    Answer(Result<Lease, AcquireError>),
    /// Nothing was taken: the store has to be asked, by this plan if there is one.
    Ask(Option<Arc<Plan>>),
}

/// Why a decision without waiting gave no grant.
pub(super) enum NoGrant {
    /// This is the answer.
    Answer(AcquireError),
    /// Nothing was taken: the store has to be asked, by this plan if it is still good.
    Ask(Option<Arc<Plan>>),
}

impl RateLimiter {
    /// Takes the amounts from every bucket of the chain, or from none.
    ///
    /// Cancel-safe: when the future is dropped, at any point, the settler gives back what was
    /// taken.
    ///
    /// Cost: one round trip, one write per member of the chain; one more read per member whose
    /// configuration is not cached.
    pub async fn acquire(&self, request: Request) -> Result<Lease, AcquireError> {
        let call = Call::begin();
        let answer = match self.answer_or_ask(request) {
            Ok(result) => return call.end(result),
            Err(answer) => answer,
        };
        let result = call.wait_for(answer).await;
        call.end(result)
    }

    /// The answer if there is one at once, else its future. Takes the request whole, so that the
    /// future of `acquire` has room for one request and not for two.
    #[expect(clippy::type_complexity, reason = "the one caller matches at once")]
    fn answer_or_ask(
        &self,
        mut request: Request,
    ) -> Result<
        Result<Lease, AcquireError>,
        Pin<Box<impl Future<Output = Result<Lease, AcquireError>>>>,
    > {
        match self.acquire_at_once(&mut request) {
            Attempt::Answer(result) => Ok(result),
            Attempt::Ask(planned) => Err(Box::pin(self.admit_or_degrade(request, planned))),
        }
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

    /// The answer to a request whose configuration is cached, from a store that need not wait: a
    /// plain function, which nobody can drop half way.
    fn acquire_at_once(&self, request: &mut Request) -> Attempt {
        let Some((entity, resource)) = request.names() else { return Attempt::Ask(None) };
        let Some(plan) = self.kept_plan(request, entity, resource) else {
            return Attempt::Ask(None);
        };
        let mut taken = StoreGrant::default();
        let (amounts, manner) = (request.amounts(), request.manner());
        match self.decide_at_once(&plan, &amounts, manner, &mut taken) {
            Ok(operation) => {
                let (limiter, terms) = (self.for_lease(), request.take_terms());
                let grant = Grant { plan, operation, amounts };
                Attempt::Answer(Ok(Lease::granted(
                    limiter,
                    request.on_drop,
                    terms,
                    grant,
                    &mut taken,
                )))
            }
            Err(NoGrant::Answer(error)) => {
                Attempt::Answer(self.degraded_or(error, || request.clone()))
            }
            Err(NoGrant::Ask(planned)) => Attempt::Ask(planned),
        }
    }

    /// A decision without waiting: the number of the take. What the store says of a grant is
    /// written into `taken`: it is large, and moves once from there.
    pub(super) fn decide_at_once(
        &self,
        plan: &Arc<Plan>,
        amounts: &[Milli],
        manner: Manner,
        taken: &mut StoreGrant,
    ) -> Result<u64, NoGrant> {
        // A closed limiter says so on the usual path.
        if self.settler().is_closed() {
            return Err(NoGrant::Ask(None));
        }
        let (operation, now) = (next_operation(), self.clock().now());
        let order = (operation, manner.is_exact);
        match plan.decide_at_once(&**self.store(), amounts, order, now, taken) {
            AtOnce::Granted => Ok(operation),
            other => Err(self.not_granted_at_once(plan, other, manner)),
        }
    }

    /// What it means that a decision without waiting was no grant.
    #[cold]
    fn not_granted_at_once(&self, plan: &Arc<Plan>, decided: AtOnce, manner: Manner) -> NoGrant {
        let answer = match decided {
            AtOnce::Otherwise(answer) => answer,
            AtOnce::Granted | AtOnce::NotYet => return NoGrant::Ask(Some(Arc::clone(plan))),
        };
        match answer {
            // Waiting is for the usual path.
            Ok(ConsumeOutcome::Refused(_) | ConsumeOutcome::Paced { .. }) if manner.waits => {
                NoGrant::Ask(Some(Arc::clone(plan)))
            }
            Ok(outcome) => match self.refused(plan, outcome) {
                Ok(()) => NoGrant::Ask(None),
                Err(error) => NoGrant::Answer(error),
            },
            Err(error) => {
                let failed =
                    |entry| self.answer::<Infallible>(entry, Some(Err(Failure::Store(error))));
                match self.enter().and_then(failed) {
                    Ok(never) => match never {},
                    Err(error) => NoGrant::Answer(error),
                }
            }
        }
    }

    /// A lease for a grant; a degraded lease when the store is down and the policy is to allow.
    pub(super) async fn admit_or_degrade(
        &self,
        mut request: Request,
        mut planned: Option<Arc<Plan>>,
    ) -> Result<Lease, AcquireError> {
        request.checked_names()?;
        let decided = match request.terms().wait {
            None => self.within_deadline(&request, &mut planned).await,
            Some(wait) => Box::pin(self.retry_for(wait, &request, &mut planned)).await,
        };
        match decided {
            Ok((grant, mut taken)) => {
                let (limiter, terms) = (self.for_lease(), request.take_terms());
                Ok(Lease::granted(limiter, request.on_drop, terms, grant, &mut taken))
            }
            Err(error) => self.degraded_or(error, || request),
        }
    }

    /// The error, or a degraded lease when the store is down and the policy is to allow.
    pub(super) fn degraded_or(
        &self,
        error: AcquireError,
        request: impl FnOnce() -> Request,
    ) -> Result<Lease, AcquireError> {
        let AcquireError::Unavailable(unavailable) = error else { return Err(error) };
        let request = request();
        if self.may_allow(&unavailable, &request) {
            return Ok(Lease::degraded_by(self.for_lease(), request, unavailable.reason));
        }
        Err(AcquireError::Unavailable(unavailable))
    }

    /// Asks again after every refusal that waiting can cure, for at most `wait` in total.
    async fn retry_for(
        &self,
        wait: Duration,
        request: &Request,
        planned: &mut Option<Arc<Plan>>,
    ) -> Result<(Grant, StoreGrant), AcquireError> {
        let started = self.clock().monotonic();
        for _ in 0..WAIT_ATTEMPTS_MAX {
            let refused = match self.within_deadline(request, planned).await {
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
    async fn within_deadline(
        &self,
        request: &Request,
        planned: &mut Option<Arc<Plan>>,
    ) -> Result<(Grant, StoreGrant), AcquireError> {
        let entry = self.enter()?;
        let deadline = request.terms().deadline.unwrap_or(self.scope.shared.settings.deadline);
        let stopwatch = self.stopwatch();
        let decide = self.with_fresh_limits(request, planned);
        let decided = timeout(self.clock(), deadline, decide).await;
        stopwatch.stop(self.clock(), metrics::acquire_took);
        self.answer(entry, decided)
    }

    /// Repeats an attempt whose limits were older than those of the bucket.
    async fn with_fresh_limits(
        &self,
        request: &Request,
        planned: &mut Option<Arc<Plan>>,
    ) -> Result<(Grant, StoreGrant), Failure> {
        for _ in 0..STALE_ATTEMPTS_MAX {
            if let Some(grant) = self.attempt(request, planned.take()).await? {
                return Ok(grant);
            }
        }
        Err(Failure::Answer(contended(Vec::new(), self.short_wait())))
    }

    /// Plans, unless that was done before, and takes, once. `None` when the limits were stale; the
    /// cache has forgotten them then, so that the next attempt reads them.
    async fn attempt(
        &self,
        request: &Request,
        planned: Option<Arc<Plan>>,
    ) -> Result<Option<(Grant, StoreGrant)>, Failure> {
        let (entity, resource) = request.checked_names()?;
        let planned = planned.or_else(|| self.kept_plan(request, entity, resource));
        let (plan, expired) = match planned.map(|plan| (plan, Vec::new())) {
            Some(planned) => planned,
            None => match self.plan_from_cache(request, entity, resource) {
                Some(planned) => planned,
                None => {
                    let chain = self.chain(entity, resource).await?;
                    (self.plan_and_keep(request, resource, &chain)?, Vec::new())
                }
            },
        };
        let (operation, amounts) = (next_operation(), request.amounts());
        let consume = Arc::clone(&plan).consume(
            Arc::clone(self.store()),
            Amounts::from_slice(&amounts),
            (operation, request.terms().is_exact),
            self.clock().now(),
        );
        let outcome = InFlight::new(consume, self.settler(), |consume| {
            let (store, plan) = (Arc::clone(self.store()), Arc::clone(&plan));
            Job::GiveBack { store, consume, plan, operation, amounts: amounts.clone() }
        });
        let outcome = if expired.is_empty() {
            outcome.await
        } else {
            let refresh = Box::pin(self.clone().refresh(expired, resource.clone()));
            Box::pin(with_read_alongside(outcome, refresh, self.settler())).await
        };
        self.scope.shared.publish_blocks();
        match outcome? {
            ConsumeOutcome::Granted(taken) => Ok(Some((Grant { plan, operation, amounts }, taken))),
            refused => Ok(self.refused(&plan, refused).map(|()| None)?),
        }
    }

    /// What it means that nothing was taken. `Ok` when the limits were stale; the cache has
    /// forgotten them then.
    fn refused(&self, plan: &Plan, outcome: ConsumeOutcome) -> Result<(), AcquireError> {
        match outcome {
            ConsumeOutcome::Granted(_) | ConsumeOutcome::Stale { .. } => {
                self.forget(plan);
                Ok(())
            }
            ConsumeOutcome::Refused(reports) => {
                Err(RateLimitExceeded::new(plan.statuses(&reports)).into())
            }
            ConsumeOutcome::Paced { reports, age } => {
                Err(RateLimitExceeded::new(plan.statuses(&reports)).aged(age).into())
            }
            ConsumeOutcome::Blocked { member, flag } => {
                // The cached configuration says "enabled", or the store was not asked for it. It is
                // read again, but not for every request.
                let said_by = &plan.members[member].entity;
                let (cache, clock) = (&self.scope.cache, self.clock());
                cache.evict_older(said_by, &plan.resource, DISABLED_REREAD, clock);
                Err(disabled(plan, member, flag))
            }
            ConsumeOutcome::Contended { retry_after, reports } => {
                Err(contended(plan.statuses(&reports), retry_after))
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
        if !self.scope.shared.reads_are_slow {
            return None;
        }
        let (chain, expired) = self.cached_chain(entity, resource)?;
        // Plans are not kept with entries that have expired.
        let plan = match expired.is_empty() {
            true => self.plan_and_keep(request, resource, &chain),
            false => self.plan(request, resource, &chain),
        };
        Some((plan.ok()?, expired))
    }

    /// Forgets what is cached about the members of a plan.
    pub(super) fn forget(&self, plan: &Plan) {
        plan.members.iter().for_each(|member| self.scope.cache.evict_entity(&member.entity));
    }

    /// The wait that a contended request is told: short, and different for every caller.
    pub(super) fn short_wait(&self) -> Wait {
        Wait::After(WaitMs::at_least_one(
            CONTENDED_WAIT_MS + self.scope.shared.entropy.next_u64() % CONTENDED_WAIT_MS,
        ))
    }
}

/// One call, as traces and metrics see it.
pub(super) struct Call {
    span: tracing::Span,
}

impl Call {
    pub(super) fn begin() -> Call {
        Call { span: tracing::debug_span!("acquire", outcome = tracing::field::Empty) }
    }

    /// The answer of the store. It is boxed, so that an acquire that need not wait carries no room
    /// for one that must.
    pub(super) async fn wait_for(
        &self,
        answer: Pin<Box<impl Future<Output = Result<Lease, AcquireError>>>>,
    ) -> Result<Lease, AcquireError> {
        match self.span.is_disabled() {
            true => answer.await,
            false => answer.instrument(self.span.clone()).await,
        }
    }

    pub(super) fn end(self, result: Result<Lease, AcquireError>) -> Result<Lease, AcquireError> {
        let outcome = counted(&result);
        // A span that nobody listens to would look for the field all the same.
        if !self.span.is_disabled() {
            self.span.record("outcome", outcome);
        }
        result
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
                metrics::granted();
                "granted"
            }
        },
        Err(AcquireError::Exceeded(report)) if report.is_contended() => {
            metrics::count(metrics::CONTENDED);
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
    }
}

pub(super) fn contended(statuses: Vec<LimitStatus>, retry_after: Wait) -> AcquireError {
    RateLimitExceeded::contended(statuses, retry_after).into()
}

pub(super) fn disabled(plan: &Plan, member: usize, flag: Flag) -> AcquireError {
    let entity = plan.members[member].entity.clone();
    Disabled { entity, resource: plan.resource.clone(), flag, level: None }.into()
}
