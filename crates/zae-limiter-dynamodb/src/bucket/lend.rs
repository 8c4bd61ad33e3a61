//! Lending to local blocks: tokens that a process debits ahead of need, and brings back.
//!
//! How much is lent, and what a return may lift, the core decides on the bucket as it was seen
//! (`BucketState::provision`); the write is a refill that says the same for every balance that
//! meets its conditions. It pins the count of what is lent to the letter, and so does every credit:
//! a credit that has not seen a loan does not land beside it ([`super::loans`]).
//!
//! Only a bucket of one item lends. What is lent counts for the whole bucket, so no share of it
//! could be computed; a bucket that is short of writes lends no more, so that it can be split.

use smallvec::SmallVec;
use zae_limiter_core::{
    BucketState, EntityId, Milli, OrderLine, Provision, Report, ResourceName, Take, TimeMs, Wait,
    assess,
};
use zae_limiter_store::{LimitsInForce, Order, Provisioned, Stocked, StoreError};

use crate::DynamoStore;
use crate::bucket::cache::Seen;
use crate::bucket::exchange::{Exchange, Heard};
use crate::bucket::image::Image;
use crate::bucket::loans;
use crate::bucket::refill::{Loan, LoanLine, MustBeAbsent, Refill};
use crate::bucket::write::{
    BucketWrite, Change, Cost, ItemChange, Line, LineForm, Nonce, Pins, Purpose,
};
use crate::constants::{RACES_MAX, WCU_NEEDED_MILLI, WCU_PER_WRITE_MILLI};
use crate::records::keys;
use crate::table::error::failed;
use crate::table::{Key, TableError};

/// A bucket that was refilled so far ahead of our clock does not lend: the age of a loan would mean
/// nothing.
const AHEAD_MAX_MS: i64 = 500;

/// How often a return is tried before its use alone is counted.
const RETURN_RACES_MAX: u32 = RACES_MAX / 2;

impl DynamoStore {
    /// Serves a request and lends, in one write. What the image does not allow is left to
    /// `consume`: a bucket to be made, brought up to date, split or refused by its configuration.
    pub(super) async fn lend(
        &self,
        order: &Order<'_>,
        now: TimeMs,
    ) -> Result<Provisioned, StoreError> {
        order.check()?;
        let moment = self.moment(now);
        self.shared.ask_the_time().await.map_err(|error| error.during("provision"))?;
        let key = keys::bucket(&self.id, order.entity, order.resource, 0);
        let nonce = self.nonce();
        let mut exchange =
            Exchange::new(self, "provision", &key, moment, self.recall(&key)).with_nonce(&nonce);
        let lent = self.lend_until_answered(order, &key, &nonce, &mut exchange).await;
        lent.map_err(|error| exchange.doubt(error))
    }

    async fn lend_until_answered(
        &self,
        order: &Order<'_>,
        key: &Key,
        nonce: &Nonce,
        exchange: &mut Exchange<'_>,
    ) -> Result<Provisioned, StoreError> {
        let takes: SmallVec<[Take; 4]> = order.lines.iter().map(least_of).collect();
        let mut sent: Option<(Deal, BucketWrite)> = None;
        while exchange.races < RACES_MAX {
            // An attempt that may have landed is sent again as it was: an answer that it has landed
            // is then about this very loan.
            if let Some((deal, write)) = sent.take() {
                match exchange.send(write.clone()).await? {
                    Heard::AlreadyOurs(_) if exchange.is_overdue() => {
                        return Err(lost("an order was answered too late to be of use"));
                    }
                    Heard::Landed(look) | Heard::AlreadyOurs(look) => {
                        return Ok(deal.granted(&look, order.limits));
                    }
                    Heard::Lost if exchange.is_ambiguous => {
                        return Err(lost("others have changed the bucket since an order was sent"));
                    }
                    Heard::Again if exchange.is_ambiguous => sent = Some((deal, write)),
                    Heard::Prepared | Heard::Lost | Heard::Again => {}
                }
                continue;
            }
            let Some(seen) = exchange.seen.clone() else {
                exchange.look().await?;
                continue;
            };
            let now = exchange.now();
            let lends = |image: &&Image| may_lend(image, order.limits, now);
            let Some(image) = seen.image.as_ref().filter(lends) else {
                return Ok(Provisioned::NotNow);
            };
            let state = image.state(&order.limits.limits);
            let reports = assess(std::iter::once((&state, &takes[..])), now);
            if reports.iter().any(|report| report.wait != Wait::None) {
                if exchange.is_fresh || self.is_recent(&seen, now) {
                    return Ok(Provisioned::Refused(reports));
                }
                exchange.look().await?;
                continue;
            }
            let deal = Deal::new(state, order.report, now, |bucket| {
                bucket.provision(order.lines, order.report, order.serves, order.age_ms, now)
            });
            if deal.provision.lots.is_empty() && order.report.is_empty() {
                // A take that lends nothing is cheaper as a take.
                return Ok(Provisioned::NotNow);
            }
            let loan = deal.loan(order.lines, i64::from(order.serves));
            let refill = Refill {
                key,
                purpose: Purpose::Lend,
                image,
                target: Some(order.limits),
                amounts: &[],
                loan: Some(&loan),
                nonce: Some(nonce),
                must_be_absent: MustBeAbsent::default(),
                cost: exchange.cost(),
                now,
            };
            let write = refill.build()?;
            sent = Some((deal, write));
        }
        Ok(Provisioned::NotNow)
    }

    /// Ends a loan: takes back what is left and counts what was used.
    pub(super) async fn end_loan(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        report: &Report,
        now: TimeMs,
    ) -> Result<(), StoreError> {
        let moment = self.moment(now);
        if let Err(error) = self.shared.ask_the_time().await {
            // The use counts all the same, by the time that was last heard.
            tracing::debug!(%error, "the table did not tell its time");
        }
        let key = keys::bucket(&self.id, entity, resource, 0);
        let nonce = self.nonce();
        let mut exchange =
            Exchange::new(self, "settle", &key, moment, self.recall(&key)).with_nonce(&nonce);
        let ended = self.end_until_answered(report, &key, &nonce, &mut exchange).await;
        ended.map_err(|error| exchange.doubt(error))
    }

    async fn end_until_answered(
        &self,
        report: &Report,
        key: &Key,
        nonce: &Nonce,
        exchange: &mut Exchange<'_>,
    ) -> Result<(), StoreError> {
        let mut sent: Option<(bool, BucketWrite)> = None;
        while exchange.races < RACES_MAX {
            // As an order: what may have landed is not reckoned anew, or it would come back twice.
            if let Some((is_whole, write)) = sent.take() {
                match exchange.send(write.clone()).await? {
                    Heard::Landed(_) | Heard::AlreadyOurs(_) if is_whole => return Ok(()),
                    Heard::Landed(_) | Heard::AlreadyOurs(_) => return kept(report),
                    Heard::Lost if exchange.is_ambiguous => {
                        return Err(lost("others have changed the bucket since a return was sent"));
                    }
                    Heard::Again if exchange.is_ambiguous => sent = Some((is_whole, write)),
                    Heard::Prepared | Heard::Lost | Heard::Again => {}
                }
                continue;
            }
            let Some(seen) = exchange.seen.clone().filter(|seen| {
                // Absence is believed only when this very operation has seen it.
                exchange.is_fresh || seen.image.is_some()
            }) else {
                exchange.look().await?;
                continue;
            };
            // A forgotten bucket was full, and whoever deleted one has taken its use along.
            let Some(image) = &seen.image else { return Ok(()) };
            let now = exchange.now();
            let is_whole = image.standing.is_alone()
                && image.unsupported.is_none()
                && exchange.races < RETURN_RACES_MAX;
            let write = if is_whole {
                let deal = Deal::new(image.view(), report, now, |bucket| Provision {
                    closed: bucket.settle(report, now),
                    ..Provision::default()
                });
                let loan = deal.loan(&[], 0);
                if loan.lines.is_empty() && loan.grants == 0 && !is_counted(image, now) {
                    return Ok(());
                }
                let refill = Refill {
                    key,
                    purpose: Purpose::Settle,
                    image,
                    target: None,
                    amounts: &[],
                    loan: Some(&loan),
                    nonce: Some(nonce),
                    must_be_absent: MustBeAbsent::default(),
                    cost: exchange.cost(),
                    now,
                };
                refill.build()?
            } else {
                count_use(key, image, report, nonce, exchange.cost())
            };
            sent = Some((is_whole, write));
        }
        let kept = "others kept changing the bucket".to_owned();
        Err(failed("settle", TableError::NotApplied(kept)))
    }
}

fn least_of(line: &OrderLine) -> Take {
    Take { limit: line.limit, amount: line.least }
}

/// Whether a bucket lends under these limits. Everything else is for a take to set right.
fn may_lend(image: &Image, limits: &LimitsInForce, now: TimeMs) -> bool {
    image.standing.is_alone()
        && image.unsupported.is_none()
        && !image.flag.blocks()
        && image.mark.is_none()
        && image.is_in_force(&limits.limits)
        && image.expires_as(limits)
        && image.refilled_at <= now.plus_ms(AHEAD_MAX_MS)
        // A bucket that needs to be split has to be free of loans.
        && image.room_at(now) >= WCU_NEEDED_MILLI
}

fn is_counted(image: &Image, now: TimeMs) -> bool {
    image.loans.as_deref().is_some_and(|loans| !loans.have_ended(now))
}

/// Counts the use of a loan whose bucket cannot take anything back any more.
fn count_use(key: &Key, image: &Image, report: &Report, nonce: &Nonce, cost: Cost) -> BucketWrite {
    let line = |line: &zae_limiter_core::Return| {
        let is_used = line.used != Milli::ZERO && image.limit(&line.limit).is_some();
        let form = LineForm::Count { used: line.used };
        is_used.then(|| Line { name: line.limit.clone(), form })
    };
    let change = Change {
        nonce: Some(nonce.clone()),
        pins: Pins::THERE,
        lines: report.lines.iter().filter_map(line).collect(),
        item: ItemChange {
            takes_milli: i64::from(report.grants).saturating_mul(WCU_PER_WRITE_MILLI),
            ..ItemChange::spending(cost)
        },
    };
    BucketWrite::change(key.clone(), Purpose::Settle, change)
}

/// Nobody can say whether it was written.
fn lost(how: &str) -> StoreError {
    failed("provision", TableError::Unknown(how.to_owned()))
}

/// The use is counted; what should have come back stays spent.
fn kept(report: &Report) -> Result<(), StoreError> {
    if report.lines.iter().all(|line| line.back == Milli::ZERO) {
        return Ok(());
    }
    Err(lost("the bucket could not take back what was left of a loan"))
}

/// A bucket before and after it has lent, or taken back.
struct Deal {
    /// As it was seen, refilled.
    before: BucketState,
    after: BucketState,
    provision: Provision,
    /// Requests that the report counts.
    grants: i64,
}

impl Deal {
    fn new(
        mut before: BucketState,
        report: &Report,
        now: TimeMs,
        make: impl FnOnce(&mut BucketState) -> Provision,
    ) -> Deal {
        before.refill(now);
        let mut after = before.clone();
        let provision = make(&mut after);
        Deal { before, after, provision, grants: i64::from(report.grants) }
    }

    /// The answer, by the bucket as the write has left it.
    fn granted(mut self, look: &Seen, limits: &LimitsInForce) -> Provisioned {
        match look.image.as_ref().filter(|image| image.carries(&limits.limits)) {
            Some(image) => self.after = image.state(&limits.limits),
            // The balance is not known, and so is what the stock is a part of: it is lost.
            None => self.provision.lots.clear(),
        }
        let Deal { provision, after: bucket, .. } = self;
        Provisioned::Granted(Box::new(Stocked { provision, bucket }))
    }

    /// The same as what a write does to each limit.
    fn loan(&self, lines: &[OrderLine], serves: i64) -> Loan {
        let debited = |index: usize| {
            let is_meant = |limit: u8| usize::from(limit) == index;
            let least = lines.iter().find(|line| is_meant(line.limit)).map(|line| line.least);
            let lots = self.provision.lots.iter();
            let given = lots.clone().find(|lot| is_meant(lot.limit)).map(|lot| lot.given);
            least.unwrap_or_default().saturating_add(given.unwrap_or_default())
        };
        let line = |(index, before): (usize, &zae_limiter_core::LimitState)| {
            let after = self.after.all_limits().iter().find(|after| after.name == before.name)?;
            let used = after.consumed.saturating_sub(before.consumed);
            let mut gained = after.balance.saturating_sub(before.balance);
            // Room for refunds is a credit to be: it depends on the balance as what comes back
            // does.
            let lot = self.provision.lots.iter().find(|lot| usize::from(lot.limit) == index);
            let room = lot.map_or(Milli::ZERO, |lot| lot.span.saturating_sub(debited(index)));
            let mut back = gained.saturating_add(debited(index)).saturating_add(room);
            if gained == Milli::ZERO && used == Milli::ZERO && room == Milli::ZERO {
                return None;
            }
            if back > Milli::ZERO && after.balance >= after.params.full() {
                // Just short of full: what is full has no remainder to keep.
                gained = gained.saturating_sub(Milli(1));
                back = back.saturating_sub(Milli(1));
            }
            Some(LoanLine { limit: before.name.clone(), amount: gained.negated(), back, used })
        };
        Loan {
            lines: self.before.all_limits().iter().enumerate().filter_map(line).collect(),
            lent: self.after.loans().map(loans::text_of),
            grants: self.grants + serves,
        }
    }
}
