//! A lease: what a request was granted, and how it is settled.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use smallvec::SmallVec;
use zae_limiter_core::{IntoName, LimitName, LimitStatus, Milli, Reports, TOKENS_MAX};
use zae_limiter_store::{Adjusted, Grant as StoreGrant, StoreError, StoreErrorKind};

mod in_flight;
mod ledger;
mod settlement;
mod settler;

pub(crate) use in_flight::{InFlight, with_read_alongside};
pub(crate) use settlement::Settlement;
pub use settler::Settled;
pub(crate) use settler::{Job, Settler};

use crate::deadline::timeout;
use crate::error::{AcquireError, CommitError, Invalid, OutageReason, UndeclaredLimit};
use crate::limiter::{Amounts, OnDrop, Plan, RateLimiter, Request, Terms};
use ledger::{Ledger, Settling};

/// A grant without a decision, because the store was down and the policy is "allow".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// How the outage was noticed.
    pub reason: OutageReason,
}

/// Who granted a lease: [`Lease::source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store, asked for this very request.
    Store,
    /// This process, from tokens that it had bought before ([`crate::Builder::local_blocks`]).
    Local,
    /// Nobody: the store was down and the policy is "allow" ([`Lease::degraded`]).
    Nobody,
}

impl Source {
    fn of(is_local: bool) -> Source {
        if is_local { Source::Local } else { Source::Store }
    }
}

/// The result of a granted decision, beside what the store says of it.
pub(crate) struct Grant {
    pub(crate) plan: Arc<Plan>,
    /// The number of the take.
    pub(crate) operation: u64,
    pub(crate) amounts: Amounts,
}

/// Tokens taken, to be settled when the work is done.
///
/// `record` what was really used, then `commit`; or `rollback` when the work failed. A lease that
/// is dropped unfinished acts as the request's [`OnDrop`] says, in the background.
#[must_use = "a dropped lease is rolled back; call commit() when the work is done"]
#[derive(Debug)]
pub struct Lease {
    /// Boxed: a lease is moved through several futures, and a pointer is cheap to move.
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    limiter: RateLimiter,
    reports: Reports,
    statuses: OnceLock<Vec<LimitStatus>>,
    ledger: Mutex<Ledger>,
    on_drop: OnDrop,
    source: Source,
    /// What the request asked for besides amounts, which `consume` asks for again.
    terms: Option<Box<Terms>>,
    degraded: Option<Box<WithoutDecision>>,
}

/// A lease of the policy "allow": the request stands in for a plan.
#[derive(Debug)]
struct WithoutDecision {
    degraded: Degraded,
    declared: SmallVec<[LimitName; 2]>,
}

impl Lease {
    #[inline]
    pub(crate) fn granted(
        limiter: RateLimiter,
        on_drop: OnDrop,
        terms: Option<Box<Terms>>,
        grant: Grant,
        StoreGrant { reports, places, is_local }: &mut StoreGrant,
    ) -> Lease {
        let Grant { plan, operation, amounts } = grant;
        let ledger = Ledger::granted(plan, operation, amounts, std::mem::take(places));
        // Made where it stays: `Box::new` would make it first and copy it then, and one report
        // after the other costs less than all the room there is for them.
        let mut inner = Box::write(
            Box::new_uninit(),
            Inner {
                limiter,
                reports: Reports::new(),
                statuses: OnceLock::new(),
                ledger: Mutex::new(ledger),
                on_drop,
                source: Source::of(*is_local),
                terms,
                degraded: None,
            },
        );
        reports.iter().for_each(|report| inner.reports.push(*report));
        Lease { inner }
    }

    pub(crate) fn degraded_by(
        limiter: RateLimiter,
        request: Request,
        reason: OutageReason,
    ) -> Lease {
        let ledger = Mutex::new(Ledger::without_receipt(request.amounts()));
        let on_drop = request.on_drop;
        let declared = request.amounts.into_iter().map(|(name, _)| name).collect();
        let without = WithoutDecision { degraded: Degraded { reason }, declared };
        let inner = Inner {
            limiter,
            reports: Reports::new(),
            statuses: OnceLock::new(),
            ledger,
            on_drop,
            source: Source::Nobody,
            terms: None,
            degraded: Some(Box::new(without)),
        };
        Lease { inner: Box::new(inner) }
    }

    /// Records how much of a limit was really used, in total, the amount taken included. The last
    /// call wins. A record is buffered and does no I/O: fit for every chunk of a stream. More than
    /// [`TOKENS_MAX`] tokens is an error, as for a take, and nothing is recorded then: such a
    /// number is nearly always a difference that fell below zero.
    pub fn record(&self, limit: &str, used_in_total: u64) -> Result<(), Invalid> {
        let mut ledger = self.ledger();
        let (index, name) = self.find(&ledger, limit)?;
        if used_in_total > TOKENS_MAX {
            return Err(too_much(name, used_in_total));
        }
        ledger.used[index] = Milli::from_tokens(used_in_total);
        Ok(())
    }

    /// Adds `delta` tokens to the amount used; the signed form of [`Lease::record`]. The amount
    /// used never falls below zero: no more can be given back than was taken. An amount beyond
    /// [`TOKENS_MAX`] is an error, and nothing is changed then.
    pub fn adjust(&self, limit: &str, delta: i64) -> Result<(), Invalid> {
        let mut ledger = self.ledger();
        let (index, name) = self.find(&ledger, limit)?;
        let used = i128::from(ledger.used[index].0) + i128::from(delta) * 1000;
        if used > i128::from(Milli::from_tokens(TOKENS_MAX).0) && delta > 0 {
            return Err(too_much(name, u64::try_from(used / 1000).unwrap_or(u64::MAX)));
        }
        ledger.used[index] = Milli(i64::try_from(used.max(0)).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Takes more, checked, at once. The names must have been declared by the request.
    ///
    /// Cost: as `acquire`.
    pub async fn consume(
        &self,
        amounts: impl IntoIterator<Item = (impl IntoName<LimitName>, u64)>,
    ) -> Result<(), AcquireError> {
        let mut request = {
            let ledger = self.ledger();
            let declared = self.declared(&ledger);
            let names = ledger.plan().map(Plan::names);
            Request::more(names, declared, self.inner.terms.clone())
        };
        let declared = request.amounts.len();
        for (limit, amount) in amounts {
            request = request.take(limit, amount);
        }
        if let Some((limit, _)) = request.amounts.get(declared) {
            return Err(Invalid::from(UndeclaredLimit { limit: limit.as_str().to_owned() }).into());
        }
        if self.inner.degraded.is_some() {
            return Ok(());
        }
        let more = self.inner.limiter.acquire(request).await?;
        self.ledger().absorb(&mut more.ledger());
        Ok(())
    }

    /// Writes the buffered records and keeps the lease.
    ///
    /// A flush that fails or is dropped leaves its writes to the settler; a later rollback then
    /// keeps their charges, because it is unknown when they land.
    ///
    /// Cost: one write per bucket whose amounts written and used differ; none otherwise.
    pub async fn flush(&self) -> Result<(), CommitError> {
        let Settling { mut settlement, charged } = self.ledger().settle_use();
        // A withheld credit is not lost yet: once its charge is confirmed, a later flush or the end
        // of the lease gives it back.
        settlement.withheld = 0;
        self.write(settlement).await?;
        self.ledger().confirm(&charged);
        Ok(())
    }

    /// The status of every limit that was checked, the caller's own first.
    #[must_use]
    pub fn statuses(&self) -> &[LimitStatus] {
        self.inner.statuses.get_or_init(|| {
            self.ledger().plan().map(|plan| plan.statuses(&self.inner.reports)).unwrap_or_default()
        })
    }

    /// Who granted the lease.
    #[must_use]
    pub fn source(&self) -> Source {
        self.inner.source
    }

    /// `Some` when the store was down and the policy let this call pass: nothing is counted, and
    /// writes of this lease do nothing.
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        self.inner.degraded.as_deref().map(|without| &without.degraded)
    }

    /// The whole tokens used so far, per declared limit.
    #[must_use]
    pub fn used(&self) -> Vec<(LimitName, i64)> {
        let ledger = self.ledger();
        let names = self.declared(&ledger).iter().cloned();
        names.zip(ledger.used.iter().map(|used| used.floor_tokens())).collect()
    }

    /// Settles: writes the difference between the amounts taken and used. Failed charges are
    /// retried in the background; the error is informational.
    ///
    /// Cost: one write per bucket whose amounts taken and used differ; none otherwise.
    pub async fn commit(mut self) -> Result<(), CommitError> {
        match self.ledger_mut().commit() {
            Some(settlement) => self.write(settlement).await,
            None => Ok(()),
        }
    }

    /// Ends the lease with the amounts used; `None` when nothing is left to write.
    pub(crate) fn conclude(&self) -> Option<Settlement> {
        self.ledger().commit()
    }

    /// Gives everything back.
    ///
    /// Cost: one write per bucket.
    pub async fn rollback(self) -> Result<(), CommitError> {
        self.rollback_shared().await
    }

    pub(crate) async fn rollback_shared(&self) -> Result<(), CommitError> {
        let settlement = self.ledger().rollback();
        self.write(settlement).await
    }

    pub(crate) async fn write(&self, settlement: Settlement) -> Result<(), CommitError> {
        self.inner.limiter.settler().count_lost(settlement.withheld);
        if settlement.is_empty() {
            return Ok(());
        }
        let (store, settler, clock) =
            (self.inner.limiter.store(), self.inner.limiter.settler(), self.inner.limiter.clock());
        let sent = settlement.send(Arc::clone(store), clock.now());
        let for_settler = (Arc::clone(store), settlement.clone());
        let write = InFlight::new(sent, settler, move |adjust| Job::Finish {
            store: for_settler.0,
            adjust,
            settlement: for_settler.1,
        });
        let writes = settlement.parts.len();
        let stopwatch = self.inner.limiter.stopwatch();
        let results = timeout(clock, self.inner.limiter.settle_deadline(), write).await;
        stopwatch.stop(clock, crate::metrics::settle_took);
        let Some(results) = results else {
            // The write went to the settler, which learns its fate.
            let source = StoreError::new(
                StoreErrorKind::Unavailable,
                "adjust",
                "no answer within the deadline",
            );
            return Err(CommitError { writes, failed: writes, source });
        };
        let (rest, given_up) = settlement.after(&results);
        settler.count_lost(given_up);
        if !rest.is_empty() {
            settler.submit(Job::Settle { store: Arc::clone(store), settlement: rest });
        }
        failures(results)
    }

    /// The limits that the request declared.
    fn declared<'a>(&'a self, ledger: &'a Ledger) -> &'a [LimitName] {
        match (&self.inner.degraded, ledger.plan()) {
            (Some(without), _) => &without.declared,
            (None, Some(plan)) => &plan.declared,
            (None, None) => &[],
        }
    }

    /// A limit among those that the request declared, and its place.
    fn find(&self, ledger: &Ledger, limit: &str) -> Result<(usize, LimitName), UndeclaredLimit> {
        let found = self.declared(ledger).iter().enumerate().find(|(_, name)| **name == *limit);
        found
            .map(|(index, name)| (index, name.clone()))
            .ok_or_else(|| UndeclaredLimit { limit: limit.to_owned() })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.inner.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn ledger_mut(&mut self) -> &mut Ledger {
        self.inner.ledger.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn too_much(limit: LimitName, amount: u64) -> Invalid {
    Invalid::Amount { limit, amount, max: TOKENS_MAX }
}

fn failures(results: Vec<Result<Adjusted, StoreError>>) -> Result<(), CommitError> {
    let writes = results.len();
    let mut errors = results.into_iter().filter_map(Result::err);
    match errors.next() {
        None => Ok(()),
        Some(source) => Err(CommitError { writes, failed: 1 + errors.count(), source }),
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let on_drop = self.inner.on_drop;
        let ledger = self.ledger_mut();
        if ledger.finished {
            return;
        }
        let settlement = match on_drop {
            OnDrop::Rollback => ledger.rollback(),
            OnDrop::Commit => ledger.commit().unwrap_or_default(),
            OnDrop::Keep => return,
        };
        self.inner.limiter.settler().count_lost(settlement.withheld);
        if !settlement.is_empty() {
            let store = Arc::clone(self.inner.limiter.store());
            self.inner.limiter.settler().submit(Job::Settle { store, settlement });
        }
    }
}
