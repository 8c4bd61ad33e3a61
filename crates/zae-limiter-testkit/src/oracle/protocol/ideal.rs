//! The ideal buckets: exact, never deleted, fed with what landed at the time it really was.
//!
//! The stored bucket, brought to the true time, must hold what the ideal bucket holds: more would
//! be minted, less would be refill that nobody gets. Only clocks explain a difference: the rate
//! times how far the writers' clocks were ahead of the truth and behind it. A write that arrives
//! late is a clock that is behind. The documents bound both: a clock that is further off, or an
//! answer that is older, is a broken promise. At 1 token per second, a writer whose clock is 2 s
//! ahead may have been given 2 tokens early, and no more.

use std::collections::BTreeMap;
use std::time::Duration;

use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_dynamodb::constants::{CLOCK_OFF_MAX_MS, WRITE_AGE_MAX};

use super::ledger::Amounts;
use super::stored::{Stored, StoredLimit};
use super::whole::parts;
use super::writer::{refills, takes};
use crate::oracle::Broken;
use crate::oracle::bucket::{Account, Params, Past};
use crate::oracle::meter::Meter;

/// Milliseconds by which changes of parameters within one instant may move it on.
const BUMPS_MAX_MS: i64 = 100;

/// One limit.
#[derive(Clone, Debug)]
struct Ideal {
    account: Account,
    /// What the two may differ by beside the present clocks, in `1/period` of a millitoken: earlier
    /// rates, and what was let go on purpose.
    carried: i128,
}

/// One bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdealBucket {
    at: i64,
    limits: BTreeMap<String, Ideal>,
    past: Past,
    /// How far clocks were ahead of the truth, and behind it.
    ahead_ms: i64,
    behind_ms: i64,
    /// Differences of limits that are forgotten, in millitokens.
    carried_past: BTreeMap<String, i128>,
}

fn whole_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// One landed write, as far as the ideal bucket is concerned.
pub(crate) struct Event<'a> {
    pub(crate) writer: Writer,
    pub(crate) amounts: &'a Amounts,
    pub(crate) before: Option<&'a Stored>,
    pub(crate) after: &'a Stored,
    pub(crate) now: Option<i64>,
    /// When it really was sent.
    pub(crate) sent_at: Option<i64>,
    /// How late a writer may look at the ceiling.
    pub(crate) grace_ms: i64,
    /// See [`super::ledger::Landing::drifts`].
    pub(crate) drifts: &'a Amounts,
}

impl Ideal {
    /// Changes the parameters. The carried difference keeps its amount, counted in parts of the new
    /// period.
    fn become_limit(&mut self, params: Params, clocks_ms: i128) {
        let old = self.account.params;
        if (old.refill, old.period) != (params.refill, params.period) {
            // A bucket given tokens early at the old rate repays them at the new one, so each
            // change may add the difference once.
            self.carried += old.refill * clocks_ms;
            // A change drops the fraction of a millitoken of the stored bucket and of the ideal
            // one, which may differ.
            let whole = if self.carried > 0 { params.period } else { 0 };
            self.carried =
                (self.carried * params.period + old.period - 1).div_euclid(old.period) + whole;
        }
        if old != params {
            self.account.become_limit(params);
        }
    }

    /// In millitokens, rounded up.
    fn millis(&self, fine: i128) -> i128 {
        (fine + self.account.params.period - 1).div_euclid(self.account.params.period)
    }
}

impl IdealBucket {
    /// Time passes.
    pub(crate) fn wait(&mut self, truth: i64) {
        let elapsed = i128::from(truth) - i128::from(self.at);
        if elapsed > 0 {
            self.limits.values_mut().for_each(|ideal| ideal.account.wait_of(elapsed));
            self.at = truth;
        }
    }

    /// What stored and ideal may differ by now, in `1/period` of a millitoken. Nothing is rounded:
    /// with nothing carried and exact clocks the allowance is 0.
    fn allowance(&self, ideal: &Ideal) -> i128 {
        ideal.carried
            + ideal.account.params.refill * (i128::from(self.ahead_ms) + i128::from(self.behind_ms))
    }

    /// A write of ours.
    pub(crate) fn landed(&mut self, event: &Event<'_>, truth: i64) -> Result<(), Broken> {
        self.wait(truth);
        self.at = truth;
        let instant = event.after.refilled_at;
        let sent_at = event.sent_at.unwrap_or(truth);
        let is_timed = !matches!(event.writer, Writer::Credit | Writer::Flag | Writer::Reset);
        // Without an instant of its own a write has that of the item.
        let now = event
            .now
            .or((event.now.is_none() && refills(event.writer)).then_some(instant))
            .filter(|_| is_timed);
        let mut overdue_ms = 0;
        if let Some(now) = now {
            let off_ms = now.saturating_sub(sent_at);
            // An instant that is the item's own may have been moved on to outdate images.
            let most_ms = CLOCK_OFF_MAX_MS + if event.now.is_none() { BUMPS_MAX_MS } else { 0 };
            if off_ms < -CLOCK_OFF_MAX_MS || off_ms > most_ms {
                return Err(format!(
                    "{:?} says it is {now}, {off_ms} ms from the table's clock when it was sent",
                    event.writer
                ));
            }
            let late_ms = truth.saturating_sub(sent_at);
            let is_overdue = late_ms > whole_ms(WRITE_AGE_MAX);
            overdue_ms = if is_overdue { late_ms } else { 0 };
            let seen_at = if is_overdue { sent_at } else { truth };
            let grace = if event.writer == Writer::Fast { event.grace_ms } else { 0 };
            self.spread(now.saturating_sub(seen_at), seen_at.saturating_sub(now).max(0) + grace);
        }
        let ahead_ms = instant.saturating_sub(truth);
        if ahead_ms > CLOCK_OFF_MAX_MS + BUMPS_MAX_MS {
            return Err(format!("refilled {ahead_ms} ms ahead of the table's clock"));
        }
        self.spread(ahead_ms, 0);
        self.reshape(event, i128::from(overdue_ms))?;
        for (name, found) in &event.after.limits {
            let milli = event.amounts.get(name).copied().unwrap_or(0);
            self.apply(name, event, milli, found)?;
        }
        self.compare(event.after, truth)
    }

    fn spread(&mut self, ahead_ms: i64, behind_ms: i64) {
        self.ahead_ms = self.ahead_ms.max(ahead_ms);
        self.behind_ms = self.behind_ms.max(behind_ms);
    }

    /// `overdue_ms` is how late a write landed that was too late to grant anything, else 0. Unless
    /// it changes parameters, such a write may let go no more than it took.
    fn reshape(&mut self, event: &Event<'_>, overdue_ms: i128) -> Result<(), Broken> {
        let gone: Vec<String> = self
            .limits
            .keys()
            .filter(|name| !event.after.limits.contains_key(*name))
            .cloned()
            .collect();
        for name in gone {
            self.forget(&name)?;
        }
        // True when the write moved the refill instant on by 1 ms only to make older images lose.
        let is_bumped = |before: &Stored| {
            event.after.refilled_at == before.refilled_at + 1
                && event.now.is_none_or(|now| now <= before.refilled_at)
        };
        let is_bumped = event.before.is_some_and(is_bumped);
        for (name, found) in &event.after.limits {
            let clocks_ms = i128::from(self.ahead_ms) + i128::from(self.behind_ms);
            let lets_go = found.params.refill * overdue_ms;
            let taken =
                event.amounts.get(name).map_or(0, |milli| milli.max(&0) * found.params.period);
            let Some(ideal) = self.limits.get_mut(name) else {
                let account = Account::new(name.clone(), found.params, &mut self.past);
                let carried = self.carried_past.remove(name).unwrap_or(0) * found.params.period
                    + lets_go.min(taken);
                self.limits.insert(name.clone(), Ideal { account, carried });
                continue;
            };
            let is_changed = ideal.account.params != found.params;
            ideal.become_limit(found.params, clocks_ms + overdue_ms);
            ideal.carried += if is_changed { lets_go } else { lets_go.min(taken) };
            ideal.carried += event.drifts.get(name).copied().unwrap_or(0);
            if is_bumped {
                ideal.carried += found.params.refill;
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        name: &str,
        event: &Event<'_>,
        milli: i128,
        found: &StoredLimit,
    ) -> Result<(), Broken> {
        let Some(mut ideal) = self.limits.remove(name) else { return Ok(()) };
        let is_reset = event.writer == Writer::Reset && found.balance == found.params.capacity;
        if is_reset {
            let gain = found.params.capacity - ideal.account.balance();
            ideal.account.fine = found.params.brim();
            // A reset forgives the hidden gap too.
            ideal.account.gap = 0;
            ideal.account.meter.give_back(gain.max(0));
        }
        if event.writer == Writer::ChargePlain && milli > 0 {
            // The charge may have been paid from tokens that had overflowed, which is the safe loss
            // of the two.
            ideal.carried += milli * ideal.account.params.period;
        }
        ideal.account.give(-milli);
        let allowance = ideal.millis(self.allowance(&ideal));
        let verdict = if milli < 0 {
            ideal.account.meter.give_back(-milli);
            Ok(())
        } else if takes(event.writer) && event.after.place.is_alone() {
            ideal
                .account
                .meter
                .admit_within(milli, allowance)
                .map_err(|excess| format!("{name}: {excess}, allowed are {allowance} more"))
        } else {
            Ok(())
        };
        self.limits.insert(name.to_owned(), ideal);
        verdict
    }

    /// Compares the stored bucket with the ideal one.
    fn compare(&self, stored: &Stored, truth: i64) -> Result<(), Broken> {
        let elapsed = i128::from(truth) - i128::from(stored.refilled_at);
        for (name, limit) in &stored.limits {
            let Some(ideal) = self.limits.get(name) else { continue };
            let (difference, allowed) =
                (limit.fine_after(elapsed) - ideal.account.fine, self.allowance(ideal));
            if difference.abs() > allowed {
                return Err(format!(
                    "{name} has {difference} of 1/{} milli other than the ideal bucket ({} milli at {truth}), allowed are {allowed}: {limit:?} \
                     refilled at {}",
                    limit.params.period,
                    ideal.account.balance(),
                    stored.refilled_at
                ));
            }
        }
        Ok(())
    }

    fn forget(&mut self, name: &str) -> Result<(), Broken> {
        let Some(ideal) = self.limits.remove(name) else { return Ok(()) };
        let Account { params, fine, gap, .. } = ideal.account;
        let (lacks, allowance) =
            (params.brim() - fine + gap * params.period, self.allowance(&ideal));
        self.carried_past.insert(name.to_owned(), ideal.millis(ideal.carried));
        let (name, meter) = ideal.account.forgotten();
        self.past.insert(name.clone(), meter);
        if lacks > allowance {
            let period = params.period;
            return Err(format!(
                "{name} is forgotten while it lacks {lacks} of 1/{period} milli, gap {gap}, allowed are {allowance}"
            ));
        }
        Ok(())
    }

    /// The item has expired, and was swept.
    pub(crate) fn swept(&mut self, truth: i64) -> Result<(), Broken> {
        self.wait(truth);
        let names: Vec<String> = self.limits.keys().cloned().collect();
        names.iter().try_for_each(|name| self.forget(name))
    }

    /// A foreign writer took or gave, and may have paid from what had overflowed.
    pub(crate) fn foreign(&mut self, amounts: &Amounts, after: &Stored, truth: i64) {
        self.wait(truth);
        for (name, ideal) in &mut self.limits {
            let milli = amounts.get(name).copied().unwrap_or(0);
            ideal.account.give(-milli);
            ideal.carried += milli.abs() * ideal.account.params.period;
            if let Some(found) =
                after.limits.get(name).filter(|found| found.params != ideal.account.params)
            {
                // The parameters change without a refill, so the time since the last refill counts
                // at the new rate.
                let since = (i128::from(truth) - i128::from(after.refilled_at)).max(0);
                let old = ideal.account.params;
                ideal.carried += old.refill * since;
                ideal.become_limit(found.params, 0);
                // The stored remainder stays as it is, and counts in parts of the new period.
                ideal.carried += found.params.period;
                ideal.carried += found.params.refill * since
                    + (old.capacity - found.params.capacity).abs() * found.params.period;
            }
        }
    }

    /// A part of the bucket goes to another shard. Whether tokens have only moved is for others to
    /// say (`moves`, `whole`): from now on both are as stored, with the differences that were
    /// allowed until now.
    pub(crate) fn part(&mut self, after: &Stored, child: &Stored, truth: i64) -> IdealBucket {
        self.wait(truth);
        let mut other = IdealBucket { past: Past::new(), ..self.clone() };
        self.restart(after, truth);
        other.restart(child, truth);
        other
    }

    /// All shards are collected in one item.
    pub(crate) fn collect<'a>(
        leaves: impl Iterator<Item = &'a IdealBucket>,
        after: &Stored,
        truth: i64,
    ) -> Result<IdealBucket, Broken> {
        let ahead_ms = after.refilled_at.saturating_sub(truth);
        if ahead_ms > CLOCK_OFF_MAX_MS + BUMPS_MAX_MS {
            return Err(format!("folded {ahead_ms} ms ahead of the table's clock"));
        }
        let mut sum: Option<IdealBucket> = None;
        for leaf in leaves {
            let mut leaf = leaf.clone();
            leaf.wait(truth);
            leaf.restart(after, truth);
            let Some(sum) = &mut sum else {
                sum = Some(leaf);
                continue;
            };
            sum.spread(leaf.ahead_ms, leaf.behind_ms);
            for (name, ideal) in &mut sum.limits {
                ideal.carried += leaf.limits.get(name).map_or(0, |other| other.carried);
            }
        }
        let mut sum = sum.unwrap_or_default();
        // By a clock that is behind, the one item gains once more for the time in which a full
        // shard has just overflowed. Not for a fold that lands late: all that it collects is
        // pinned, so nothing has happened since it was computed.
        let behind_ms = truth.saturating_sub(after.refilled_at).clamp(0, CLOCK_OFF_MAX_MS);
        sum.spread(ahead_ms, behind_ms);
        Ok(sum)
    }

    /// A shard that somebody has made who does not keep our rules.
    pub(crate) fn found(stored: &Stored, truth: i64) -> IdealBucket {
        let mut found = IdealBucket { at: truth, ..IdealBucket::default() };
        for (name, limit) in &stored.limits {
            let account = Account::new(name.clone(), limit.params, &mut found.past);
            found.limits.insert(name.clone(), Ideal { account, carried: 0 });
        }
        found.restart(stored, truth);
        found
    }

    /// The count of the shard was changed, and nothing else.
    pub(crate) fn recount(&mut self, after: &Stored, truth: i64) {
        self.wait(truth);
        self.restart(after, truth);
    }

    /// Begins anew with what is stored. What was allowed to differ stays allowed.
    fn restart(&mut self, after: &Stored, truth: i64) {
        let elapsed = i128::from(truth) - i128::from(after.refilled_at);
        let clocks_ms = i128::from(self.ahead_ms) + i128::from(self.behind_ms);
        for (name, found) in &after.limits {
            let Some(ideal) = self.limits.get_mut(name) else { continue };
            let old = ideal.account.params;
            let allowed = ideal.carried + old.refill * clocks_ms;
            ideal.carried = (allowed * found.params.period + old.period - 1).div_euclid(old.period);
            ideal.account.params = found.params;
            ideal.account.fine = found.fine_after(elapsed);
            // What has overflowed until now repays the gap.
            let fine = found.fine() + elapsed.max(0) * found.params.refill;
            let surplus = (fine - found.params.brim()).div_euclid(found.params.period);
            ideal.account.gap = (found.gap - surplus.max(0)).max(0);
        }
    }

    /// What was admitted of the whole bucket counts for the item that is left of it.
    pub(crate) fn admitted(&mut self, name: &str, meter: &Meter) {
        if let Some(ideal) = self.limits.get_mut(name) {
            ideal.account.meter = meter.clone();
            ideal.account.meter.allow(ideal.account.params.capacity);
        }
    }

    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.limits.values().map(|ideal| &ideal.account)
    }

    /// What stored and ideal may differ by, in parts of a millitoken.
    pub(crate) fn allowed(&self, name: &str) -> i128 {
        self.limits
            .get(name)
            .map_or(0, |ideal| parts(self.allowance(ideal), ideal.account.params.period))
    }

    /// True when the stored bucket must equal the ideal one exactly.
    pub(crate) fn is_exact(&self) -> bool {
        self.limits.values().all(|ideal| self.allowance(ideal) == 0)
    }

    /// Whether the bucket has this limit.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.limits.contains_key(name)
    }

    /// How many of its limits hide a gap.
    pub(crate) fn gaps(&self) -> usize {
        self.limits.values().filter(|ideal| ideal.account.gap > 0).count()
    }
}
