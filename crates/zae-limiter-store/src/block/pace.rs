//! Pacing: while a limit is scarce, a process asks for more at times that follow from the balance
//! that it found, and refuses in between.
//!
//! Without it each order of an empty bucket finds next to nothing, so each grant is an order, and
//! who comes more often gets more. The time to the next visit depends on the balance that was found
//! alone: all processes of a bucket come equally often, find as much, and take the same part of it.

use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{
    LENT_PART, LimitParams, LimitReport, LimitSource, Milli, Reports, Take, TimeMs, Wait, WaitMs,
};

use super::cell::{CLOCK_BACK_MAX_MS, Cell};
use super::options::SHORTEST_MS;
use super::order::{Purchase, Terms};
use crate::{MemberTake, Stocked};

/// The requests that an order of a scarce limit is to be worth.
const REQUESTS_AIM: i64 = 16;

/// What an order found of one limit.
#[derive(Clone, Copy, Debug)]
struct Found {
    limit: u8,
    /// Before the order took anything.
    balance: Milli,
    /// What the order has left: what it lent is stock now.
    left: Milli,
    /// Refill comes on top from here on.
    since: TimeMs,
    /// There was less than refills while a block is for, or the order was refused.
    is_scarce: bool,
}

/// The way to the next visit of a bucket that has too little.
#[derive(Debug)]
pub(super) struct Pace {
    found: SmallVec<[Found; 2]>,
    at: TimeMs,
    /// The same by a clock that is never set.
    moment: Option<Duration>,
    gap_ms: i64,
    epoch: u64,
}

/// A refusal without the store.
#[derive(Debug)]
pub(super) struct Paced {
    pub(super) reports: Reports,
    /// How long ago the store was asked.
    pub(super) age: Duration,
}

impl Pace {
    /// How long there is no visit yet; `None` when it is time for one.
    fn left_ms(&self, terms: &Terms<'_>) -> Option<i64> {
        let passed = terms.moment.zip(self.moment).map(|(now, at)| now.saturating_sub(at));
        let passed_ms = passed.map_or(0, |passed| i64::try_from(passed.as_millis()).unwrap_or(0));
        let is_back = self.at.since(terms.now) > CLOCK_BACK_MAX_MS;
        let left_ms = self.gap_ms - passed_ms.max(terms.now.since(self.at));
        Some(left_ms).filter(|left| *left > 0 && !is_back && self.epoch == terms.epoch)
    }

    fn found(&self, limit: u8) -> Option<&Found> {
        self.found.iter().find(|found| found.limit == limit)
    }
}

impl Found {
    /// What is there now, if nobody has taken of it.
    fn balance_at(&self, params: LimitParams, now: TimeMs) -> Milli {
        let gained = params.accrual(now.since(self.since), 0).0;
        self.left.saturating_add(Milli(gained)).min(params.full())
    }

    /// How long until a request passes that has `stock`: not shorter than the store would say.
    fn wait_ms(&self, params: LimitParams, amount: Milli, stock: Milli, now: TimeMs) -> i64 {
        let lacks = amount.saturating_sub(stock).saturating_sub(self.left);
        self.since.plus_ms(params.time_to_gain_ms(lacks.0)).since(now).max(0)
    }
}

/// The time to the next visit of a bucket of which a limit has this balance: short while a visit is
/// worth many requests.
fn gap_ms(balance: Milli, unit: Milli, horizon_ms: i64) -> i64 {
    if balance <= Milli::ZERO {
        return horizon_ms;
    }
    let worth = i128::from(unit.0.max(1)) * i128::from(REQUESTS_AIM * LENT_PART);
    let gap_ms = i128::from(horizon_ms) * worth / i128::from(balance.0);
    i64::try_from(gap_ms).unwrap_or(horizon_ms).min(horizon_ms).max(SHORTEST_MS)
}

impl Cell {
    /// An order was served: what it had found.
    pub(super) fn pace_after(&mut self, purchase: &Purchase, stocked: &Stocked, terms: &Terms<'_>) {
        let since = stocked.bucket.refilled_at.max(terms.now);
        let found = purchase.lines.iter().map(|line| {
            let given = stocked.provision.lots.iter().find(|lot| lot.limit == line.limit);
            let given = given.map_or(Milli::ZERO, |lot| lot.given);
            let left = stocked.bucket.limits()[usize::from(line.limit)].balance;
            let balance = left.saturating_add(given).saturating_add(line.least);
            Found { limit: line.limit, balance, left, since, is_scarce: false }
        });
        self.pace(purchase, found.collect(), terms);
    }

    /// An order was refused: what there is.
    pub(super) fn pace_after_refusal(
        &mut self,
        purchase: &Purchase,
        reports: &[LimitReport],
        terms: &Terms<'_>,
    ) {
        let found = purchase.lines.iter().zip(reports).map(|(line, report)| {
            let params = purchase.limits.limits[usize::from(line.limit)].params();
            // A bucket that is ahead of this clock begins to refill later.
            let behind_ms = report.wait.ms().map_or(0, |wait_ms| {
                let lacks = report.requested.saturating_sub(report.balance);
                let wait_ms = i64::try_from(wait_ms).unwrap_or(i64::MAX);
                wait_ms.saturating_sub(params.time_to_gain_ms(lacks.0))
            });
            let since = terms.now.plus_ms(behind_ms.max(0));
            let is_scarce = report.wait != Wait::None;
            let (limit, balance) = (line.limit, report.balance);
            Found { limit, balance, left: balance, since, is_scarce }
        });
        self.pace(purchase, found.collect(), terms);
    }

    fn pace(&mut self, purchase: &Purchase, mut found: SmallVec<[Found; 2]>, terms: &Terms<'_>) {
        self.pace = None;
        if !terms.options.paces() {
            return;
        }
        let horizon_ms = purchase.age_ms / 2;
        let mut gap = None;
        for (line, found) in purchase.lines.iter().zip(&mut found) {
            let params = purchase.limits.limits[usize::from(line.limit)].params();
            found.is_scarce |= found.balance < Milli(params.accrual_at_most(horizon_ms));
            if found.is_scarce {
                gap = gap.max(Some(gap_ms(found.balance, line.unit, horizon_ms)));
            }
        }
        let Some(gap) = gap else { return };
        // Processes that began together do not come together: three to five quarters.
        let part = i64::try_from(terms.entropy.next_u64() % 513).unwrap_or(256) + 768;
        self.pace = Some(Box::new(Pace {
            found,
            at: terms.now,
            moment: purchase.ordered,
            gap_ms: gap * part / 1_024,
            epoch: purchase.epoch,
        }));
    }

    fn lacks(&self, take: &Take, terms: &Terms<'_>) -> bool {
        take.amount > Milli::ZERO && !self.covers(take, terms)
    }

    /// The bucket has got something back: it is asked again at once.
    pub(super) fn end_pause(&mut self) {
        self.pace = None;
    }

    /// Whether the next visit has not come.
    pub(super) fn is_paced(&self, terms: &Terms<'_>) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.left_ms(terms).is_some())
    }

    /// Refuses a request that needs more than the stock of a scarce limit, until the next visit.
    /// `None` for a request that the bucket should see.
    pub(super) fn paced(&mut self, member: &MemberTake<'_>, terms: &Terms<'_>) -> Option<Paced> {
        let pace = self.pace.as_ref()?;
        let is_for_us = terms.is_alone && !self.is_busy() && self.is_about(member.limits);
        if !is_for_us || member.limits.source == LimitSource::Call {
            return None;
        }
        let left_ms = pace.left_ms(terms)?;
        let limits = &member.limits.limits;
        let mut is_paced = false;
        for take in member.takes {
            let params = limits.get(usize::from(take.limit))?.params();
            let found = pace.found(take.limit)?;
            // What is too large for the limit is for the store to refuse.
            if take.amount > params.full() {
                return None;
            }
            is_paced |= found.is_scarce && self.lacks(take, terms);
        }
        if !is_paced {
            return None;
        }
        let report = |take: &Take| {
            let params = limits[usize::from(take.limit)].params();
            let found = pace.found(take.limit)?;
            let stock = self.usable(take.limit, terms);
            let mut wait_ms = found.wait_ms(params, take.amount, stock, terms.now);
            let mut balance = found.balance_at(params, terms.now).saturating_add(stock);
            if found.is_scarce && self.lacks(take, terms) {
                wait_ms = wait_ms.max(left_ms);
                // What has refilled since is there for everybody.
                balance = found.left.min(Milli::ZERO).saturating_add(stock);
            }
            let wait = match u64::try_from(wait_ms) {
                Ok(wait_ms @ 1..) => Wait::After(WaitMs::at_least_one(wait_ms)),
                _ => Wait::None,
            };
            let (limit, requested) = (take.limit, take.amount);
            Some(LimitReport { member: 0, limit, balance, requested, wait })
        };
        let reports = member.takes.iter().filter_map(report).collect();
        let age_ms = u64::try_from(terms.now.since(pace.at)).unwrap_or(0);
        if terms.is_new {
            self.watch.note(member, terms.now);
        }
        terms.stats.paced();
        Some(Paced { reports, age: Duration::from_millis(age_ms) })
    }
}
