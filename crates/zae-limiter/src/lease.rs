//! A lease: what a request was granted, and how it is settled.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use smallvec::SmallVec;
use zae_limiter_core::{IntoName, LimitName, LimitStatus, Milli, Reports, TOKENS_MAX};
use zae_limiter_store::{Adjusted, StoreError};

use crate::error::{AcquireError, CommitError, Invalid, OutageReason, UndeclaredLimit};
use crate::inflight::{InFlight, within};
use crate::limiter::RateLimiter;
use crate::plan::{Amounts, Plan, Settlement};
use crate::request::{OnDrop, Request};
use crate::settler::Job;

/// A grant that was given without a decision, because the store was down and the policy is "allow".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// How the outage was noticed.
    pub reason: OutageReason,
}

/// What a decision gave.
pub(crate) struct Grant {
    pub(crate) plan: Arc<Plan>,
    pub(crate) amounts: Amounts,
    pub(crate) reports: Reports,
}

/// Tokens taken, to be settled when the work is done.
///
/// `record` what was really used, then `commit`; or `rollback` when the work failed. Dropped
/// unfinished it acts as the request's [`OnDrop`] says, in the background.
#[must_use = "a dropped lease is rolled back; call commit() when the work is done"]
#[derive(Debug)]
pub struct Lease {
    /// Boxed: a lease is moved through several futures, and a pointer is cheaper to move than what
    /// it holds.
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    limiter: RateLimiter,
    /// What to ask again in `consume`.
    request: Request,
    reports: Reports,
    statuses: OnceLock<Vec<LimitStatus>>,
    ledger: Mutex<Ledger>,
    degraded: Option<Degraded>,
}

/// What was taken and what was used.
#[derive(Debug)]
struct Ledger {
    /// What has been written, per plan. More than one only when the chain changed under a long
    /// lease.
    receipts: SmallVec<[Receipt; 1]>,
    /// What was really used, per declared limit.
    used: Amounts,
    finished: bool,
}

#[derive(Debug)]
struct Receipt {
    plan: Arc<Plan>,
    /// What was written, charges that may not have landed yet included; credits count as soon as
    /// they are sent.
    written: Amounts,
    /// Charges that were sent and not confirmed: the settler may still be at it. They are never
    /// given back, because a credit that lands before its charge would mint.
    doubtful: Amounts,
}

impl Receipt {
    fn new(plan: Arc<Plan>, written: Amounts) -> Receipt {
        let doubtful = zeroes(&written);
        Receipt { plan, written, doubtful }
    }

    /// What may be given back of one limit: what certainly was taken and not given back yet.
    fn returnable(&self, declared: usize) -> Milli {
        self.written[declared].saturating_sub(self.doubtful[declared]).max(Milli::ZERO)
    }
}

/// The writes that settle the use of a lease, and the charges among them, per receipt.
struct Settling {
    settlement: Settlement,
    charged: SmallVec<[Amounts; 1]>,
}

impl Lease {
    pub(crate) fn granted(limiter: RateLimiter, request: Request, grant: Grant) -> Lease {
        let Grant { plan, amounts, reports } = grant;
        let mut receipts = SmallVec::new();
        receipts.push(Receipt::new(plan, Amounts::from_slice(&amounts)));
        let ledger = Ledger { receipts, used: amounts, finished: false };
        Lease {
            inner: Box::new(Inner {
                limiter,
                request,
                reports,
                statuses: OnceLock::new(),
                ledger: Mutex::new(ledger),
                degraded: None,
            }),
        }
    }

    pub(crate) fn degraded_by(
        limiter: RateLimiter,
        request: Request,
        reason: OutageReason,
    ) -> Lease {
        let used = request.amounts.iter().map(|(_, amount)| *amount).collect();
        let ledger = Ledger { receipts: SmallVec::new(), used, finished: false };
        let degraded = Some(Degraded { reason });
        let reports = Reports::new();
        Lease {
            inner: Box::new(Inner {
                limiter,
                request,
                reports,
                statuses: OnceLock::new(),
                ledger: Mutex::new(ledger),
                degraded,
            }),
        }
    }

    /// Says what was really used of a limit, in total and including what was taken. The last call
    /// wins. Buffered: no I/O, fit for every chunk of a stream. As for a take, more than
    /// [`TOKENS_MAX`] tokens is an error, and then nothing is recorded: it is nearly always a
    /// difference that fell below zero.
    pub fn record(&self, limit: &str, used_in_total: u64) -> Result<(), Invalid> {
        let index = self.index(limit)?;
        if used_in_total > TOKENS_MAX {
            return Err(self.too_much(index, used_in_total));
        }
        self.ledger().used[index] = Milli::from_tokens(used_in_total);
        Ok(())
    }

    /// Adds `delta` tokens to what was used; the signed form of [`Lease::record`]. Use never falls
    /// below zero: more cannot be given back than was taken. Use beyond [`TOKENS_MAX`] is an
    /// error, and then nothing is changed.
    pub fn adjust(&self, limit: &str, delta: i64) -> Result<(), Invalid> {
        let index = self.index(limit)?;
        let mut ledger = self.ledger();
        let used = i128::from(ledger.used[index].0) + i128::from(delta) * 1000;
        if used > i128::from(Milli::from_tokens(TOKENS_MAX).0) && delta > 0 {
            return Err(self.too_much(index, u64::try_from(used / 1000).unwrap_or(u64::MAX)));
        }
        ledger.used[index] = Milli(i64::try_from(used.max(0)).unwrap_or(i64::MAX));
        Ok(())
    }

    fn too_much(&self, index: usize, amount: u64) -> Invalid {
        Invalid::Amount {
            limit: self.inner.request.amounts[index].0.clone(),
            amount,
            max: TOKENS_MAX,
        }
    }

    /// Takes more, checked, at once. The names must have been declared by the request.
    ///
    /// Cost: as `acquire`.
    pub async fn consume(
        &self,
        amounts: impl IntoIterator<Item = (impl IntoName<LimitName>, u64)>,
    ) -> Result<(), AcquireError> {
        let declared = self.inner.request.amounts.len();
        let mut request = self.inner.request.more();
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
        self.absorb(&more);
        Ok(())
    }

    /// Takes over what another lease with the same declared limits was granted.
    fn absorb(&self, more: &Lease) {
        let mut theirs = more.ledger();
        theirs.finished = true;
        let mut ours = self.ledger();
        for receipt in theirs.receipts.drain(..) {
            add_to(&mut ours.used, &receipt.written);
            match ours.receipts.last_mut() {
                Some(last) if last.plan.takes_the_same(&receipt.plan) => {
                    add_to(&mut last.written, &receipt.written)
                }
                _ => ours.receipts.push(receipt),
            }
        }
    }

    /// Writes what is buffered and keeps the lease.
    ///
    /// A flush that fails or is dropped leaves its writes to the settler; a later rollback then
    /// keeps their charges, because nobody knows when they land.
    ///
    /// Cost: one write per bucket whose use differs from what is written; none otherwise.
    pub async fn flush(&self) -> Result<(), CommitError> {
        let Settling { mut settlement, charged } = self.ledger().settle_use();
        // Not lost yet: once its charge is confirmed, a later flush or the end gives it back.
        settlement.withheld = 0;
        self.write(settlement).await?;
        self.ledger().confirm(&charged);
        Ok(())
    }

    /// The limits that were checked, per member of the chain, with what is left of each.
    pub fn limits(&self) -> &[LimitStatus] {
        self.inner.statuses.get_or_init(|| {
            self.ledger()
                .receipts
                .first()
                .map(|receipt| receipt.plan.statuses(&self.inner.reports))
                .unwrap_or_default()
        })
    }

    /// `Some` when the store was down and the policy let this call pass: nothing is counted, its
    /// writes do nothing.
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        self.inner.degraded.as_ref()
    }

    /// What was used so far, in whole tokens per declared limit.
    #[must_use]
    pub fn used(&self) -> Vec<(LimitName, i64)> {
        let ledger = self.ledger();
        let names = self.inner.request.amounts.iter().map(|(name, _)| name.clone());
        names.zip(ledger.used.iter().map(|used| used.floor_tokens())).collect()
    }

    /// Settles: writes the difference between what was taken and what was used. Failed charges are
    /// retried in the background; the error is informational.
    ///
    /// Cost: one write per bucket whose use differs from what was taken; none otherwise.
    pub async fn commit(self) -> Result<(), CommitError> {
        match self.conclude() {
            Some(settlement) => self.write(settlement).await,
            None => Ok(()),
        }
    }

    /// Ends the lease with what was used; `None` when that is what was taken and nothing is left to
    /// write.
    pub(crate) fn conclude(&self) -> Option<Settlement> {
        let settlement = self.ledger().commit();
        (!settlement.is_empty() || settlement.withheld != 0).then_some(settlement)
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
        let results = within(clock, self.inner.limiter.settle_deadline(), write).await;
        stopwatch.stop(clock, crate::metrics::settle_took);
        let Some(results) = results else {
            // The write went to the settler, which learns its fate.
            let source = StoreError::new(
                zae_limiter_store::StoreErrorKind::Unavailable,
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

    /// The place of a limit among those the request declared.
    fn index(&self, limit: &str) -> Result<usize, UndeclaredLimit> {
        let declared = &self.inner.request.amounts;
        declared
            .iter()
            .position(|(name, _)| name.as_str() == limit)
            .ok_or_else(|| UndeclaredLimit { limit: limit.to_owned() })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.inner.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn failures(results: Vec<Result<Adjusted, StoreError>>) -> Result<(), CommitError> {
    let writes = results.len();
    let mut errors = results.into_iter().filter_map(Result::err);
    match errors.next() {
        None => Ok(()),
        Some(source) => Err(CommitError { writes, failed: 1 + errors.count(), source }),
    }
}

fn zeroes(like: &Amounts) -> Amounts {
    Amounts::from_elem(Milli::ZERO, like.len())
}

fn add_to(totals: &mut Amounts, amounts: &Amounts) {
    for (total, amount) in totals.iter_mut().zip(amounts) {
        *total = total.saturating_add(*amount);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let on_drop = self.inner.request.on_drop;
        let settlement = {
            let ledger =
                self.inner.ledger.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            if ledger.finished {
                return;
            }
            match on_drop {
                OnDrop::Rollback => ledger.rollback(),
                OnDrop::Commit => ledger.commit(),
                OnDrop::Keep => return,
            }
        };
        self.inner.limiter.settler().count_lost(settlement.withheld);
        if !settlement.is_empty() {
            let store = Arc::clone(self.inner.limiter.store());
            self.inner.limiter.settler().submit(Job::Settle { store, settlement });
        }
    }
}

impl Ledger {
    /// The difference between use and what is written. A charge goes to the last plan that has the
    /// limit, a credit back to where tokens are known to have come from, and never more of them.
    fn settle_use(&mut self) -> Settling {
        let mut changes: SmallVec<[Amounts; 1]> =
            self.receipts.iter().map(|receipt| zeroes(&receipt.written)).collect();
        let mut charged = changes.clone();
        let mut settlement = Settlement::default();
        for declared in 0..self.used.len() {
            let written = self
                .receipts
                .iter()
                .fold(Milli::ZERO, |sum, receipt| sum.saturating_add(receipt.written[declared]));
            let difference = self.used[declared].saturating_sub(written);
            if difference > Milli::ZERO {
                if let Some(place) =
                    self.receipts.iter().rposition(|receipt| receipt.plan.has(declared))
                {
                    let receipt = &mut self.receipts[place];
                    receipt.written[declared] =
                        receipt.written[declared].saturating_add(difference);
                    receipt.doubtful[declared] =
                        receipt.doubtful[declared].saturating_add(difference);
                    (changes[place][declared], charged[place][declared]) = (difference, difference);
                }
                continue;
            }
            let mut surplus = difference.negated();
            for (receipt, changes) in self.receipts.iter_mut().zip(&mut changes).rev() {
                let given = surplus.min(receipt.returnable(declared));
                receipt.written[declared] = receipt.written[declared].saturating_sub(given);
                changes[declared] = given.negated();
                surplus = surplus.saturating_sub(given);
            }
            settlement.withheld += usize::from(surplus > Milli::ZERO);
        }
        for (receipt, changes) in self.receipts.iter().zip(&changes) {
            settlement.add(&receipt.plan, changes);
        }
        Settling { settlement, charged }
    }

    /// The charges of a flush have landed: from now on they may be given back.
    fn confirm(&mut self, charged: &[Amounts]) {
        for (receipt, charged) in self.receipts.iter_mut().zip(charged) {
            for (doubtful, charged) in receipt.doubtful.iter_mut().zip(charged) {
                *doubtful = doubtful.saturating_sub(*charged);
            }
        }
    }

    fn commit(&mut self) -> Settlement {
        self.finished = true;
        // The usual case, made cheap: what was taken was used.
        if let [receipt] = &self.receipts[..]
            && receipt.written == self.used
        {
            return Settlement::default();
        }
        self.settle_use().settlement
    }

    fn rollback(&mut self) -> Settlement {
        self.finished = true;
        let mut settlement = Settlement::default();
        for receipt in self.receipts.drain(..) {
            let back: Amounts = (0..receipt.written.len())
                .map(|declared| receipt.returnable(declared).negated())
                .collect();
            settlement.add(&receipt.plan, &back);
            settlement.withheld +=
                receipt.doubtful.iter().filter(|doubtful| **doubtful > Milli::ZERO).count();
        }
        settlement
    }
}
