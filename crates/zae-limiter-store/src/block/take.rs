//! The way of a request: stock, else an order, else the store as if there were no blocks.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use smallvec::SmallVec;
use zae_limiter_core::{LimitReport, LimitSource, Milli, Reports, Stock, Take, TimeMs, Wait};

use super::BlockStore;
use super::home::Trip;
use super::order::{Next, Purchase, Terms};
use super::pace::Paced;
use super::table::{Key, Slot};
use crate::{
    Adjusted, AtOnce, BucketDelta, BucketStore, ConsumeOutcome, ConsumeRequest, Grant, MemberTake,
    Order, Provisioned, Store, StoreError,
};

/// How often a request looks at its cell again: after the order of somebody else, after a return,
/// and after its own order.
const LOOKS_MAX: u32 = 4;

/// The answer to one member of a chain.
enum Served {
    /// It is served.
    Granted(Reports),
    /// The store must be asked.
    Exact,
    /// The whole request is answered, because the member is its only one.
    Answered(ConsumeOutcome),
}

/// Members that were served from stock; put back unless the whole chain is granted.
struct Reserved<'a, S: Store + ?Sized + 'static> {
    store: &'a BlockStore<S>,
    now: TimeMs,
    taken: SmallVec<[(&'a MemberTake<'a>, Arc<Slot>, u64); 4]>,
}

impl<S: Store + ?Sized + 'static> Drop for Reserved<'_, S> {
    fn drop(&mut self) {
        // Terms look at a clock.
        if self.taken.is_empty() {
            return;
        }
        let terms = self.store.terms(self.now);
        for (member, slot, number) in self.taken.drain(..) {
            slot.lock().put_back(member, number, &terms);
        }
    }
}

impl<S: Store + ?Sized + 'static> BlockStore<S> {
    fn sees(&self, now: TimeMs) {
        // Most requests of a millisecond are not its first.
        if self.shared.seen_at.load(SeqCst) != now.0 {
            self.shared.seen_at.store(now.0, SeqCst);
        }
    }

    /// Serves a request whose every member has stock.
    pub(super) fn take_at_once(&self, request: &ConsumeRequest<'_>, grant: &mut Grant) -> AtOnce {
        // A wrong request is for `consume` to refuse.
        if request.is_exact || request.check("consume").is_err() {
            return AtOnce::NotYet;
        }
        self.sees(request.now);
        grant.is_local = true;
        match request.members {
            [member] => self.take_alone(member, request.now, grant),
            members if self.take_chain(members, request.now, grant).is_some() => AtOnce::Granted,
            _ => AtOnce::NotYet,
        }
    }

    /// Serves all members of a chain, or none: `None`. The chain is counted when it is served:
    /// otherwise it comes again.
    fn take_chain(&self, members: &[MemberTake<'_>], now: TimeMs, grant: &mut Grant) -> Option<()> {
        let is_for_the_store =
            |it: &MemberTake<'_>| it.is_unlimited() || it.limits.source == LimitSource::Call;
        if members.iter().any(is_for_the_store) {
            return None;
        }
        let terms = Terms { is_new: false, ..self.hasty_terms(now) };
        let mut reserved = Reserved { store: self, now, taken: SmallVec::new() };
        for (number, member) in (0_u8..).zip(members) {
            let slot = self.table.find(member.entity, member.resource)?;
            let block = slot.lock().take((number, member), &terms, &mut grant.reports)?;
            reserved.taken.push((member, slot, block));
        }
        for (member, slot, _) in reserved.taken.drain(..) {
            slot.lock().watch.note(member, now);
        }
        self.shared.stats.granted();
        Some(())
    }

    /// The same of a request with one member: nothing has to be put back.
    fn take_alone(&self, member: &MemberTake<'_>, now: TimeMs, grant: &mut Grant) -> AtOnce {
        let terms = self.hasty_terms(now);
        let answer = self.table.at(member.entity, member.resource, |slot| {
            let mut cell = slot.lock();
            if cell.take((0, member), &terms, &mut grant.reports).is_some() {
                self.shared.stats.granted();
                return AtOnce::Granted;
            }
            match cell.paced(member, &self.terms(now)) {
                Some(paced) => AtOnce::Otherwise(Ok(refused(paced))),
                None => AtOnce::NotYet,
            }
        });
        answer.unwrap_or(AtOnce::NotYet)
    }

    pub(super) async fn take(
        &self,
        request: &ConsumeRequest<'_>,
    ) -> Result<ConsumeOutcome, StoreError> {
        request.check("consume")?;
        // The members of a chain are looked at one by one below.
        if request.members.len() == 1
            && let Some(answer) = self.consume_at_once(request)
        {
            return answer;
        }
        self.sees(request.now);
        let mut now = request.now;
        self.report_silent(now);
        if request.is_exact {
            if self.settle_members(request.members, now).await {
                now = self.shared.at_least(now);
            }
            return self.inner.consume(&ConsumeRequest { now, ..*request }).await;
        }
        let is_alone = request.members.len() == 1;
        let mut reserved = Reserved { store: self, now, taken: SmallVec::new() };
        let mut served: SmallVec<[Option<Reports>; 4]> = SmallVec::new();
        for member in request.members {
            served.push(match self.serve(member, &mut now, is_alone, &mut reserved).await? {
                Served::Granted(reports) => Some(reports),
                Served::Exact => None,
                Served::Answered(outcome) => return Ok(outcome),
            });
        }
        let request = &ConsumeRequest { now, ..*request };
        let numbers: SmallVec<[u8; 4]> = (0_u8..)
            .zip(&served)
            .filter(|(_, by)| by.is_none())
            .map(|(number, _)| number)
            .collect();
        let members: SmallVec<[MemberTake<'_>; 4]> =
            numbers.iter().map(|number| request.members[usize::from(*number)]).collect();
        let mut rest = Grant::default();
        if !members.is_empty() {
            match self.ask(request, &members).await? {
                ConsumeOutcome::Granted(grant) => rest = grant,
                other => {
                    drop(reserved);
                    return self.not_granted(request, &numbers, other).await;
                }
            }
        }
        reserved.taken.clear();
        let mut reports = Reports::new();
        for (number, by) in (0_u8..).zip(served) {
            let number_of = |report: &LimitReport| numbers[usize::from(report.member)];
            match by {
                Some(by) => {
                    reports.extend(by.into_iter().map(|by| LimitReport { member: number, ..by }));
                }
                None => reports.extend(
                    rest.reports
                        .iter()
                        .filter(|report| number_of(report) == number)
                        .map(|report| LimitReport { member: number, ..*report }),
                ),
            }
        }
        for place in &mut rest.places {
            place.member = numbers[usize::from(place.member)];
        }
        let is_local = members.is_empty();
        if is_local {
            self.shared.stats.granted();
        }
        Ok(ConsumeOutcome::Granted(Grant { reports, places: rest.places, is_local }))
    }

    /// Asks the store for the members that stock does not serve. Their stock counts: a refusal
    /// gives it back and asks once more, and a grant buys anew.
    async fn ask(
        &self,
        request: &ConsumeRequest<'_>,
        members: &[MemberTake<'_>],
    ) -> Result<ConsumeOutcome, StoreError> {
        let mut asked = ConsumeRequest { members, ..*request };
        let mut outcome = self.inner.consume(&asked).await?;
        if matches!(outcome, ConsumeOutcome::Refused(_))
            && self.settle_members(members, asked.now).await
        {
            asked.now = self.shared.at_least(asked.now);
            outcome = self.inner.consume(&asked).await?;
        }
        if let ConsumeOutcome::Granted(grant) = &mut outcome {
            let terms = self.terms(self.shared.at_least(asked.now));
            for (number, member) in members.iter().enumerate() {
                let slot = self.table.find(member.entity, member.resource);
                let stock = slot.and_then(|slot| slot.lock().stock_for(member, &terms));
                let Some(stock) = stock else { continue };
                let mine = grant.reports.iter_mut().filter(|by| usize::from(by.member) == number);
                for (report, stock) in mine.zip(stock) {
                    report.balance = report.balance.saturating_add(stock);
                }
            }
            if request.members.len() > 1 {
                self.restock_all(members, asked.now).await;
            }
        }
        Ok(outcome)
    }

    /// Buys a block for the next requests like one that the store has just granted. A failure costs
    /// the block, not the grant.
    pub(super) async fn restock(&self, member: &MemberTake<'_>, now: TimeMs) {
        let Some(slot) = self.table.find(member.entity, member.resource) else { return };
        let now = self.shared.at_least(now);
        let terms = Terms { is_alone: false, ..self.terms(now) };
        let next = slot.lock().restock(member, &terms);
        match next {
            Next::Order(purchase) => drop(self.order(member, &slot, *purchase, now).await),
            Next::Settle(ending) => {
                let key = Key { entity: member.entity.clone(), resource: member.resource.clone() };
                self.bring_back(&key, &slot, *ending, now).await;
            }
            Next::Taken(_) | Next::Refused(_) | Next::Busy | Next::Exact => {}
        }
    }

    /// The answer to a chain of which the store did not grant the members with these numbers.
    async fn not_granted(
        &self,
        request: &ConsumeRequest<'_>,
        numbers: &[u8],
        outcome: ConsumeOutcome,
    ) -> Result<ConsumeOutcome, StoreError> {
        let whole = |member: usize| usize::from(numbers[member]);
        Ok(match outcome {
            ConsumeOutcome::Stale { member } => ConsumeOutcome::Stale { member: whole(member) },
            ConsumeOutcome::Blocked { member, flag } => {
                ConsumeOutcome::Blocked { member: whole(member), flag }
            }
            other if numbers.len() == request.members.len() => other,
            // The members that stock has served are in the report of a refusal as well.
            ConsumeOutcome::Refused(reports) => match self.look(request).await? {
                ConsumeOutcome::Refused(all) => ConsumeOutcome::Refused(all),
                _ => ConsumeOutcome::Refused(renumbered(reports, numbers)),
            },
            ConsumeOutcome::Contended { retry_after, reports } => {
                ConsumeOutcome::Contended { retry_after, reports: renumbered(reports, numbers) }
            }
            other @ (ConsumeOutcome::Granted(_) | ConsumeOutcome::Paced { .. }) => other,
        })
    }

    /// Serves one member from stock or by an order, or leaves it to the store. `now` is the time at
    /// which it is asked: later, where the member had to wait.
    async fn serve<'a>(
        &'a self,
        member: &'a MemberTake<'a>,
        now: &mut TimeMs,
        is_alone: bool,
        reserved: &mut Reserved<'a, S>,
    ) -> Result<Served, StoreError> {
        if member.is_unlimited() {
            return Ok(Served::Exact);
        }
        let Some(slot) = self.table.slot(member.entity, member.resource, *now, &self.shared.stats)
        else {
            return Ok(Served::Exact);
        };
        // An order before the chain is granted would take although it may be refused.
        let mut may_order = is_alone;
        // Whoever has to wait first is counted when it is looked at: the next order is for it, too.
        let mut is_new = true;
        for _ in 0..LOOKS_MAX {
            // Made before the cell is looked at: so it hears of everything that ends after that.
            let done = pin!(slot.done.notified());
            let terms = Terms { is_alone, may_order, is_new, ..self.terms(*now) };
            let next = slot.lock().next(member, &terms);
            is_new &= matches!(next, Next::Busy);
            match next {
                Next::Taken(taken) => {
                    reserved.taken.push((member, Arc::clone(&slot), taken.number));
                    return Ok(Served::Granted(taken.reports));
                }
                Next::Refused(paced) => return Ok(Served::Answered(refused(paced))),
                Next::Exact => return Ok(Served::Exact),
                Next::Busy if self.shared.ends(done).await => {}
                Next::Busy => return Ok(Served::Exact),
                Next::Settle(ending) => {
                    let key =
                        Key { entity: member.entity.clone(), resource: member.resource.clone() };
                    self.bring_back(&key, &slot, *ending, *now).await;
                }
                Next::Order(purchase) => {
                    may_order = false;
                    if let Some(outcome) = self.order(member, &slot, *purchase, *now).await? {
                        return Ok(Served::Answered(outcome));
                    }
                }
            }
            *now = self.shared.at_least(*now);
        }
        Ok(Served::Exact)
    }

    /// Makes an order. `None` when the member is not answered by it.
    async fn order(
        &self,
        member: &MemberTake<'_>,
        slot: &Slot,
        purchase: Purchase,
        now: TimeMs,
    ) -> Result<Option<ConsumeOutcome>, StoreError> {
        let stats = &self.shared.stats;
        let (own, back) = (purchase.own_sum(), purchase.ending.back);
        let grants = purchase.ending.report.grants;
        let trip = Trip::begin(slot, stats, own.saturating_add(back), grants);
        stats.ordered();
        let order = Order {
            entity: member.entity,
            resource: member.resource,
            limits: &purchase.limits,
            lines: &purchase.lines,
            report: &purchase.ending.report,
            serves: purchase.serves,
            age_ms: purchase.age_ms,
        };
        let answer = match self.inner.provision(&order, now).await {
            Ok(answer) => answer,
            // Nothing was written, so the block goes on.
            Err(error) if !error.fate_unknown() => {
                slot.lock().refused(purchase, stats);
                trip.end();
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let outcome = match answer {
            Provisioned::Granted(stocked) => {
                stats.returned(back);
                stats.spent(own, Milli::ZERO);
                let given = stocked
                    .provision
                    .lots
                    .iter()
                    .fold(Milli::ZERO, |sum, lot| sum.saturating_add(lot.given));
                stats.bought(given);
                let is_kept = slot.lock().stocked(&purchase, &stocked, &self.terms(now));
                if !is_kept {
                    stats.lost(given);
                }
                purchase.serves.then(|| {
                    let report = |take: &Take| {
                        let index = usize::from(take.limit);
                        let lot = stocked.provision.lots.iter().find(|lot| lot.limit == take.limit);
                        let balance = lot.map_or_else(
                            || stocked.bucket.limits()[index].balance,
                            |lot| Stock::new(lot, &stocked.bucket).balance(0),
                        );
                        let (limit, requested, wait) = (take.limit, take.amount, Wait::None);
                        LimitReport { member: 0, limit, balance, requested, wait }
                    };
                    let reports: Reports = member.takes.iter().map(report).collect();
                    ConsumeOutcome::Granted(reports.into())
                })
            }
            Provisioned::Refused(reports) => {
                let mine = |take: &Take| {
                    let line = purchase.lines.iter().position(|line| line.limit == take.limit)?;
                    let report = reports.get(line)?;
                    let back = purchase.ending.report.lines.iter().find(|line| {
                        let limit = &purchase.limits.limits[usize::from(take.limit)];
                        line.limit == *limit.name()
                    });
                    let stock = purchase.own[line]
                        .saturating_add(back.map_or(Milli::ZERO, |line| line.back));
                    let balance = report.balance.saturating_add(stock);
                    Some(LimitReport { member: 0, balance, requested: take.amount, ..*report })
                };
                let mine: Reports = member.takes.iter().filter_map(mine).collect();
                let is_mine = mine.iter().any(|report| report.wait != Wait::None);
                let mut cell = slot.lock();
                cell.pace_after_refusal(&purchase, &reports, &self.terms(now));
                cell.refused(purchase, stats);
                drop(cell);
                is_mine.then_some(ConsumeOutcome::Refused(mine))
            }
            Provisioned::Stale | Provisioned::Blocked(_) | Provisioned::NotNow => {
                slot.lock().refused(purchase, stats);
                // The store is asked, and says which.
                None
            }
        };
        trip.end();
        Ok(outcome)
    }

    /// What [`BlockStore::take`] would answer: the store is asked for what stock does not cover.
    pub(super) async fn look(
        &self,
        request: &ConsumeRequest<'_>,
    ) -> Result<ConsumeOutcome, StoreError> {
        request.check("peek")?;
        let mut now = request.now;
        for member in request.members {
            let Some(slot) = self.table.find(member.entity, member.resource) else { continue };
            let ending = slot.lock().end_for(member.limits, &self.terms(now));
            if let Some(ending) = ending {
                let key = Key { entity: member.entity.clone(), resource: member.resource.clone() };
                self.bring_back(&key, &slot, ending, now).await;
                now = self.shared.at_least(now);
            }
        }
        let terms = self.terms(now);
        let stock: SmallVec<[SmallVec<[Milli; 4]>; 4]> = request
            .members
            .iter()
            .map(|member| {
                let slot = self.table.find(member.entity, member.resource);
                slot.and_then(|slot| slot.lock().stock_for(member, &terms))
                    .unwrap_or_else(|| SmallVec::from_elem(Milli::ZERO, member.takes.len()))
            })
            .collect();
        let lacks = |member: &MemberTake<'_>, stock: &[Milli]| -> SmallVec<[Take; 4]> {
            let lack = |(take, stock): (&Take, &Milli)| Take {
                amount: take.amount.saturating_sub(*stock).max(Milli::ZERO),
                ..*take
            };
            member.takes.iter().zip(stock).map(lack).collect()
        };
        let takes: SmallVec<[_; 4]> = request
            .members
            .iter()
            .zip(&stock)
            .map(|(member, stock)| lacks(member, stock))
            .collect();
        let members: SmallVec<[MemberTake<'_>; 4]> = request
            .members
            .iter()
            .zip(&takes)
            .map(|(member, takes)| MemberTake { takes, ..*member })
            .collect();
        let asked = ConsumeRequest { members: &members, now, ..*request };
        let with_stock = |mut reports: Reports| {
            for report in &mut reports {
                let member = usize::from(report.member);
                let takes = request.members[member].takes;
                let place = takes.iter().position(|take| take.limit == report.limit);
                if let Some(place) = place {
                    report.balance = report.balance.saturating_add(stock[member][place]);
                    report.requested = takes[place].amount;
                }
            }
            reports
        };
        Ok(match self.inner.peek(&asked).await? {
            ConsumeOutcome::Granted(grant) => {
                ConsumeOutcome::Granted(Grant { reports: with_stock(grant.reports), ..grant })
            }
            ConsumeOutcome::Refused(reports) => ConsumeOutcome::Refused(with_stock(reports)),
            other => other,
        })
    }

    /// Charges and gives back: in stock if all of a change fits, else in the store, where the block
    /// goes first.
    pub(super) async fn adjust_all(
        &self,
        deltas: &[BucketDelta<'_>],
        now: TimeMs,
    ) -> Vec<Result<Adjusted, StoreError>> {
        self.sees(now);
        let mut now = now;
        let mut results: Vec<Option<Result<Adjusted, StoreError>>> = Vec::new();
        let (mut rest, mut places) = (Vec::new(), Vec::new());
        for (place, delta) in deltas.iter().enumerate() {
            let slot = self.table.find(delta.entity, delta.resource);
            if let Some(slot) = &slot {
                // The stock of an order that is under way has room in a moment. Without an answer
                // the store takes the refund.
                let _ = self.shared.idle(slot).await;
                now = self.shared.at_least(now);
            }
            let is_done = slot.as_ref().is_some_and(|slot| {
                slot.lock().adjust(delta.limits, delta.deltas, &self.terms(now))
            });
            results.push(is_done.then_some(Ok(Adjusted::Applied)));
            if !is_done {
                if let Some(slot) = &slot {
                    if delta.deltas.iter().any(|delta| delta.amount.is_negative()) {
                        slot.lock().end_pause();
                    }
                    let (entity, resource) = (delta.entity.clone(), delta.resource.clone());
                    let key = Key { entity, resource };
                    self.shared.settle(&*self.home, &key, slot, now).await;
                }
                rest.push(*delta);
                places.push(place);
            }
        }
        if !rest.is_empty() {
            let answers = self.inner.adjust(&rest, now).await;
            for (place, answer) in places.into_iter().zip(answers) {
                results[place] = Some(answer);
            }
        }
        let unanswered = || {
            Err(StoreError::new(
                crate::StoreErrorKind::Internal,
                "adjust",
                "the store gave fewer answers than it was asked for",
            ))
        };
        results.into_iter().map(|result| result.unwrap_or_else(unanswered)).collect()
    }
}

fn refused(paced: Paced) -> ConsumeOutcome {
    ConsumeOutcome::Paced { reports: paced.reports, age: paced.age }
}

fn renumbered(mut reports: Reports, numbers: &[u8]) -> Reports {
    for report in &mut reports {
        report.member = numbers[usize::from(report.member)];
    }
    reports
}
