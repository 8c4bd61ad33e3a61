//! Prepared requests: for callers who ask for the same again and again.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use zae_limiter_core::{Milli, TOKENS_MAX};
use zae_limiter_store::Grant as StoreGrant;

use super::RateLimiter;
use super::acquire::{Attempt, Call, NoGrant};
use super::cache::PlanPlace;
use super::plan::{Amounts, Plan, copied};
use super::request::Request;
use crate::error::{AcquireError, Invalid, UndeclaredLimit};
use crate::lease::{Grant, Lease};

/// A request that is made once and acquired many times: for a gateway that knows its callers. Cheap
/// to clone; clones share everything.
///
/// Its answers are those of [`RateLimiter::acquire`], to the last detail. Only the work that every
/// call would repeat is done once: names are checked, the chain and its limits are looked up, the
/// buckets are planned. What was looked up is trusted no longer than the config cache trusts it:
/// changed limits, flags, parents and deletions arrive as soon as they would without preparation.
///
/// ```
/// use zae_limiter::{Level, MemoryStore, RateLimiter, Request};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder(MemoryStore::new()).build()?;
/// limiter.set_limits(&Level::System, ["rpm:60/min".parse()?, "tpm:10000/min".parse()?]).await?;
///
/// // Once per API key and model.
/// let prepared = limiter.prepare(Request::new("key-1", "gpt-4").take("rpm", 1).take("tpm", 500))?;
///
/// // Once per call, with the amounts of the request or with others.
/// prepared.acquire().await?.commit().await?;
/// let lease = prepared.acquire_with([("tpm", 900)]).await?;
/// lease.record("tpm", 750)?;
/// lease.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Prepared {
    inner: Arc<Inner>,
}

struct Inner {
    limiter: RateLimiter,
    request: Request,
    amounts: Amounts,
    /// Where the plan was found last.
    place: Mutex<Option<PlanPlace>>,
}

impl RateLimiter {
    /// Prepares a request that will be acquired many times. Reads nothing: the first acquire does,
    /// and the first after the configuration has expired.
    ///
    /// An error is a mistake in the request, which `acquire` would have told.
    pub fn prepare(&self, request: Request) -> Result<Prepared, Invalid> {
        request.checked_names()?;
        let (limiter, amounts) = (self.for_lease(), request.amounts());
        let inner = Inner { limiter, request, amounts, place: Mutex::new(None) };
        Ok(Prepared { inner: Arc::new(inner) })
    }
}

impl Prepared {
    /// As [`RateLimiter::acquire`] with the request that was prepared.
    ///
    /// Cost: as `acquire`.
    pub async fn acquire(&self) -> Result<Lease, AcquireError> {
        self.inner.acquire(&self.inner.amounts).await
    }

    /// As [`Prepared::acquire`], with other amounts for some of the limits. Limits that are not
    /// named keep the amount of the request; a limit that the request did not declare is an error.
    ///
    /// Cost: as `acquire`.
    pub async fn acquire_with(
        &self,
        amounts: impl IntoIterator<Item = (impl AsRef<str>, u64)>,
    ) -> Result<Lease, AcquireError> {
        let amounts = self.inner.with(amounts)?;
        self.inner.acquire(&amounts).await
    }

    /// The request that was prepared.
    pub fn request(&self) -> &Request {
        &self.inner.request
    }
}

impl Inner {
    /// The amounts of the request, some of them replaced.
    fn with(
        &self,
        amounts: impl IntoIterator<Item = (impl AsRef<str>, u64)>,
    ) -> Result<Amounts, Invalid> {
        let mut changed = Amounts::from_slice(&self.amounts);
        for (limit, amount) in amounts {
            let limit = limit.as_ref();
            let mut declared = self.request.amounts.iter();
            let Some(index) = declared.position(|(name, _)| *name == *limit) else {
                return Err(UndeclaredLimit { limit: limit.to_owned() }.into());
            };
            if amount > TOKENS_MAX {
                let limit = self.request.amounts[index].0.clone();
                return Err(Invalid::Amount { limit, amount, max: TOKENS_MAX });
            }
            changed[index] = Milli::from_tokens(amount);
        }
        Ok(changed)
    }

    async fn acquire(&self, amounts: &[Milli]) -> Result<Lease, AcquireError> {
        let call = Call::begin();
        let planned = match self.at_once(amounts) {
            Attempt::Answer(result) => return call.end(result),
            Attempt::Ask(planned) => planned,
        };
        let answer = Box::pin(self.limiter.admit_or_degrade(self.again(amounts), planned));
        let result = call.wait_for(answer).await;
        call.end(result)
    }

    fn at_once(&self, amounts: &[Milli]) -> Attempt {
        let Some(plan) = self.plan() else { return Attempt::Ask(None) };
        let mut taken = StoreGrant::default();
        match self.limiter.decide_at_once(&plan, amounts, self.request.manner(), &mut taken) {
            Ok(operation) => {
                let grant = Grant { plan, operation, amounts: copied(amounts) };
                let (limiter, terms) = (self.limiter.for_lease(), self.request.boxed_terms());
                let on_drop = self.request.on_drop;
                Attempt::Answer(Ok(Lease::granted(limiter, on_drop, terms, grant, &mut taken)))
            }
            Err(NoGrant::Answer(error)) => {
                Attempt::Answer(self.limiter.degraded_or(error, || self.again(amounts)))
            }
            Err(NoGrant::Ask(planned)) => Attempt::Ask(planned),
        }
    }

    /// The plan, if what it was made from is trusted.
    fn plan(&self) -> Option<Arc<Plan>> {
        let (cache, clock) = (&self.limiter.scope.cache, self.limiter.clock());
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = place.as_ref().and_then(|place| cache.plan_at(place, clock)) {
            return Some(plan);
        }
        let (entity, resource) = self.request.names().filter(|_| self.request.is_plain())?;
        *place = cache.find_plan(entity, resource, |plan| plan.serves(&self.request));
        cache.plan_at(place.as_ref()?, clock)
    }

    /// The request with these amounts, for the usual path.
    fn again(&self, amounts: &[Milli]) -> Request {
        let mut request = self.request.clone();
        request.amounts.iter_mut().zip(amounts).for_each(|((_, amount), ours)| *amount = *ours);
        request
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("request", &self.inner.request).finish_non_exhaustive()
    }
}
