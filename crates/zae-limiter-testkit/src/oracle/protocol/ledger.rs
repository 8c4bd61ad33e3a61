//! The exact ledger: what one landed write may make of an item, to the last part of a millitoken.
//!
//! Nothing here knows how a write was built. From the item before, the instant the sender wrote at
//! and what was asked for, the item after follows; whatever else is found there is a broken
//! promise.

use std::collections::BTreeMap;

use zae_limiter_core::{Limit, LimitSource};
use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_dynamodb::constants::{REFILL_AHEAD_MAX_MS, UNREPORTED_MAX, WCU_PER_WRITE_MILLI};
use zae_limiter_store::LimitsInForce;

use super::instant::Instant;
use super::stored::{Stored, StoredLimit};
use super::writer::{debits, refills, takes};
use crate::oracle::Broken;
use crate::oracle::bucket::Params;

/// Debt, in capacities, that a charge may leave without a later expiry.
const DEBT_MAX: i128 = 6;

/// What one write asked of a bucket: positive is taken or charged.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// A write that landed.
pub(crate) struct Landing<'a> {
    pub(crate) writer: Writer,
    pub(crate) before: Option<&'a Stored>,
    pub(crate) after: &'a Stored,
    /// The nonce it carries.
    pub(crate) nonce: Option<&'a str>,
    /// When it was sent, by the sender.
    pub(crate) now: Option<i64>,
    /// What it may have asked for; one of these.
    pub(crate) asked: &'a [Amounts],
    /// The limits the caller knows of: in force for a take, the receipt's for a charge.
    pub(crate) limits: Option<&'a LimitsInForce>,
    /// Names the call asks for that are not in `limits`.
    pub(crate) absent: &'a [String],
    /// What the item was like at the refill instant that the write meets.
    pub(crate) instant: &'a Instant,
    /// One leg of several of a take: it takes a part of what is asked.
    pub(crate) is_leg: bool,
    /// What is charged or given back at a shard may be sent in parts: limits that are not divided
    /// are settled at shard 0.
    pub(crate) is_in_parts: bool,
}

impl Landing<'_> {
    /// What it took, charged or gave back, by what the item counts.
    pub(crate) fn amounts(&self) -> Amounts {
        let counted = |name: &String| {
            self.before.and_then(|before| before.limits.get(name)).map_or(0, |limit| limit.consumed)
        };
        self.after
            .limits
            .iter()
            .map(|(name, limit)| (name.clone(), limit.consumed - counted(name)))
            .filter(|(_, milli)| *milli != 0)
            .collect()
    }

    /// What a write made of a limit beside what the item alone says, in `1/period` of a millitoken:
    /// a remainder that an older image of the same instant had, or one that a credit up to the brim
    /// leaves behind.
    pub(crate) fn drifts(&self) -> Amounts {
        let Some(before) = self.before else { return Amounts::new() };
        let amounts = self.amounts();
        let mut drifts = Amounts::new();
        for (name, found) in &self.after.limits {
            let (Some(was), milli) =
                (before.limits.get(name), amounts.get(name).copied().unwrap_or(0))
            else {
                continue;
            };
            let drift = match self.writer {
                Writer::Credit if milli < 0 && found.balance == found.params.capacity => {
                    found.remainder
                }
                Writer::Reset if found.balance == found.params.capacity => found.remainder,
                writer if refills(writer) => {
                    (self.line(was, found, self.elapsed(before), milli).fine() - found.fine()).abs()
                }
                _ => 0,
            };
            drifts.insert(name.clone(), drift);
        }
        drifts
    }

    /// True when the write changes names, parameters, the retired limits or a foreign mark.
    fn reshapes(&self, before: &Stored) -> bool {
        let shape = |stored: &Stored| {
            stored
                .limits
                .iter()
                .map(|(name, limit)| (name.clone(), limit.stored))
                .collect::<Vec<_>>()
        };
        shape(before) != shape(self.after)
            || before.retired != self.after.retired
            || before.mark != self.after.mark
    }

    /// Checks the write. The error is the first difference from what it must be.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        self.check_amounts()?;
        match self.before {
            None => self.check_create()?,
            Some(before) => self.check_update(before)?,
        }
        for (name, limit) in &self.after.limits {
            // A foreign writer that lowers a limit leaves a balance above the capacity, until the
            // next refill cuts it.
            let was = self
                .before
                .and_then(|before| before.limits.get(name))
                .filter(|_| !refills(self.writer));
            if limit.balance > limit.params.capacity.max(was.map_or(i128::MIN, |was| was.balance)) {
                return Err(format!(
                    "{name} has {} milli, more than its capacity of {}",
                    limit.balance, limit.params.capacity
                ));
            }
        }
        self.check_full_by_expiry()?;
        self.check_gate()?;
        self.check_limits()
    }

    fn check_amounts(&self) -> Result<(), Broken> {
        let amounts = self.amounts();
        let has =
            |name: &String| self.before.is_some_and(|before| before.limits.contains_key(name));
        let as_asked = |asked: &Amounts| {
            let is_part = |(name, milli): (&String, &i128)| {
                let most = asked.get(name).copied().unwrap_or(0);
                *milli == most || self.is_leg && (most.min(0)..=most.max(0)).contains(milli)
            };
            if self.is_leg || self.is_in_parts {
                return amounts.iter().all(is_part);
            }
            // These two writers leave out a limit that is gone.
            let leaves_out = matches!(self.writer, Writer::Credit | Writer::ChargePlain);
            amounts
                .iter()
                .eq(asked.iter().filter(|(name, milli)| **milli != 0 && (!leaves_out || has(name))))
        };
        // A change of limits takes nothing from the buckets it reaches.
        let asks = self.asked.iter().any(|asked| asked.values().any(|milli| *milli != 0));
        let nothing = amounts.is_empty()
            && (self.asked.is_empty()
                || !asks
                || !debits(self.writer) && self.writer != Writer::Credit);
        if nothing || self.asked.iter().any(as_asked) {
            return Ok(());
        }
        Err(format!("{:?} counts {amounts:?}, asked was one of {:?}", self.writer, self.asked))
    }

    fn check_create(&self) -> Result<(), Broken> {
        if !matches!(self.writer, Writer::Create | Writer::Recreate) {
            return Err(format!("{:?} made a bucket", self.writer));
        }
        for (name, limit) in &self.after.limits {
            seeded(name, limit)?;
        }
        if self.now.is_some_and(|now| now != self.after.refilled_at) {
            return Err(format!("made at {:?}, refilled at {}", self.now, self.after.refilled_at));
        }
        let takes_milli = if self.writer == Writer::Create { WCU_PER_WRITE_MILLI } else { 0 };
        if self.after.counted != takes_milli || !self.after.place.is_alone() {
            return Err(format!(
                "a new bucket counts {} and stands at {:?}",
                self.after.counted, self.after.place
            ));
        }
        if self.after.nonce.as_deref() != self.nonce
            || self.after.read_at.is_none()
            || self.after.mark.is_some()
        {
            return Err(
                "a new bucket without its nonce or the time of its configuration, or with a mark"
                    .to_owned(),
            );
        }
        let known = self.limits.filter(|_| self.writer == Writer::Create);
        if known.is_some_and(|limits| limits.ttl_ms.is_some() != self.after.expires_s.is_some()) {
            return Err(format!(
                "a new bucket expires at {:?}, its limits say {:?}",
                self.after.expires_s,
                self.limits.map(|l| l.ttl_ms)
            ));
        }
        self.check_expiry()
    }

    fn check_update(&self, before: &Stored) -> Result<(), Broken> {
        if matches!(self.writer, Writer::Create | Writer::Recreate) {
            return Err(format!("{:?} replaced a bucket", self.writer));
        }
        let after = self.after;
        let nonce = if debits(self.writer) { self.nonce } else { before.nonce.as_deref() };
        if after.nonce.as_deref() != nonce {
            return Err(format!(
                "{:?} left the nonce {:?}, expected {nonce:?}",
                self.writer, after.nonce
            ));
        }
        if debits(self.writer) && before.nonce.as_deref() == self.nonce {
            return Err(format!("the operation {:?} has landed twice in a row", self.nonce));
        }
        if self.writer != Writer::Flag && before.disabled != after.disabled {
            return Err(format!(
                "{:?} switched the bucket {}",
                self.writer,
                if after.disabled { "off" } else { "on" }
            ));
        }
        if after.place != before.place || after.expires_later != before.expires_later {
            return Err(format!(
                "{:?} moved the shard from {:?} to {:?}",
                self.writer, before.place, after.place
            ));
        }
        if !after.place.is_alone() && after.expires_s.is_some() && before.expires_s.is_none() {
            return Err(format!("{:?} lets one of several shards expire", self.writer));
        }
        self.check_counted(before)?;
        if refills(self.writer) {
            self.check_refilled(before)
        } else {
            self.check_unrefilled(before)
        }
    }

    /// A take counts itself, a credit that undoes a take takes that back, and both count failed
    /// conditions of their process. Of a take from several shards one leg counts.
    fn check_counted(&self, before: &Stored) -> Result<(), Broken> {
        let (counts, fails) =
            (self.after.counted - before.counted, self.after.failed - before.failed);
        let is_right = match self.writer {
            Writer::Credit => [0, -WCU_PER_WRITE_MILLI].contains(&counts),
            writer if takes(writer) => counts == WCU_PER_WRITE_MILLI || self.is_leg && counts == 0,
            _ => counts == 0,
        };
        let most = match self.writer {
            Writer::Flag => 0,
            _ => i64::from(UNREPORTED_MAX) * WCU_PER_WRITE_MILLI,
        };
        if is_right && (0..=most).contains(&fails) {
            return Ok(());
        }
        Err(format!("{:?} counts {counts} takes and {fails} failures, in milli", self.writer))
    }

    /// A reset fills limits, and sets a refill instant back that nobody may have written.
    fn check_reset(&self, before: &Stored) -> Result<(), Broken> {
        let mut expected = Stored { limits: self.after.limits.clone(), ..before.clone() };
        let is_set_back = self.after.refilled_at != before.refilled_at;
        if is_set_back && before.refilled_at - self.after.refilled_at <= REFILL_AHEAD_MAX_MS {
            return Err(format!(
                "a reset made the refill instant {} of {}",
                self.after.refilled_at, before.refilled_at
            ));
        }
        expected.refilled_at = self.after.refilled_at;
        expected.failed = self.after.failed;
        if *self.after != expected || !before.limits.keys().eq(self.after.limits.keys()) {
            return Err(format!("a reset made {:?} of {before:?}", self.after));
        }
        for (name, was) in &before.limits {
            let found = self.after.limits[name];
            let remainder = if is_set_back { found.remainder } else { was.remainder };
            let filled = StoredLimit { balance: was.params.capacity, remainder, ..*was };
            if found != filled && found != (StoredLimit { remainder, ..*was }) {
                return Err(format!("a reset made {found:?} of {was:?}"));
            }
        }
        Ok(())
    }

    /// Writes that leave the refill instant alone leave everything alone but balances.
    fn check_unrefilled(&self, before: &Stored) -> Result<(), Broken> {
        if self.writer == Writer::Reset {
            return self.check_reset(before);
        }
        let expires_s = before.expires_s.filter(|_| self.writer != Writer::ChargePlain);
        let expected = Stored {
            nonce: self.after.nonce.clone(),
            disabled: self.after.disabled,
            expires_s,
            limits: self.after.limits.clone(),
            counted: self.after.counted,
            failed: self.after.failed,
            ..before.clone()
        };
        if *self.after != expected {
            return Err(format!("{:?} made {:?} of {before:?}", self.writer, self.after));
        }
        let amounts = self.amounts();
        if !before.limits.keys().eq(self.after.limits.keys()) {
            return Err(format!("{:?} changed the limits of the bucket", self.writer));
        }
        for (name, was) in &before.limits {
            let milli = amounts.get(name).copied().unwrap_or(0);
            let balance = if milli < 0 {
                (was.balance - milli).min(was.params.capacity)
            } else {
                was.balance - milli
            };
            let expected = StoredLimit { balance, consumed: was.consumed + milli, ..*was };
            let found = self.after.limits[name];
            if found != expected {
                return Err(format!(
                    "{:?} of {milli} milli made {found:?} of {name}, expected {expected:?}",
                    self.writer
                ));
            }
            let is_deep = found.balance < -(DEBT_MAX * found.params.capacity);
            if self.writer == Writer::ChargeFast
                && self.after.expires_s.is_some()
                && milli > 0
                && is_deep
            {
                return Err(format!(
                    "a charge left {name} with {} milli and the old expiry",
                    found.balance
                ));
            }
        }
        Ok(())
    }

    /// When a refilling write was sent. A change of limits carries no send time; it is `rf`, unless
    /// `rf` was only moved on by 1 ms. The refilled amounts tell the two apart.
    fn sent_at(&self, before: &Stored) -> i64 {
        if let Some(now) = self.now {
            return now;
        }
        let (made, made_up) =
            (self.after.refilled_at, before.refilled_at + i64::from(self.reshapes(before)));
        let is_true = made > made_up
            || self.check_lines(before, i128::from(made) - i128::from(before.refilled_at)).is_ok();
        if is_true { made } else { before.refilled_at }
    }

    fn elapsed(&self, before: &Stored) -> i128 {
        i128::from(self.sent_at(before)) - i128::from(before.refilled_at)
    }

    fn check_refilled(&self, before: &Stored) -> Result<(), Broken> {
        let (after, reshapes, now) = (self.after, self.reshapes(before), self.sent_at(before));
        let earliest = before.refilled_at + i64::from(reshapes);
        if after.refilled_at != now.max(earliest) {
            return Err(format!(
                "refilled at {} by a write of {now}, was {}",
                after.refilled_at, before.refilled_at
            ));
        }
        if reshapes && after.read_at <= before.read_at {
            return Err(format!(
                "parameters change, and `ca` goes from {:?} to {:?}",
                before.read_at, after.read_at
            ));
        }
        if !reshapes && after.read_at != before.read_at {
            return Err(format!(
                "`ca` goes from {:?} to {:?} for nothing",
                before.read_at, after.read_at
            ));
        }
        self.check_lines(before, self.elapsed(before))?;
        for (name, limit) in
            after.limits.iter().filter(|(name, _)| !before.limits.contains_key(*name))
        {
            if !matches!(self.writer, Writer::Sync | Writer::SyncOnly | Writer::ChargeRefill) {
                return Err(format!("{:?} added {name}", self.writer));
            }
            seeded(name, limit)?;
        }
        self.check_expiry()
    }

    fn check_lines(&self, before: &Stored, elapsed: i128) -> Result<(), Broken> {
        let amounts = self.amounts();
        before.limits.iter().try_for_each(|(name, was)| match self.after.limits.get(name) {
            Some(found) => self.check_line(
                name,
                (was, found),
                elapsed,
                amounts.get(name).copied().unwrap_or(0),
            ),
            None => self.check_dropped(name, was, elapsed),
        })
    }

    /// One limit over a refill: refilled at the old rate, cut to the smaller capacity, then taken
    /// from.
    fn line(
        &self,
        was: &StoredLimit,
        found: &StoredLimit,
        elapsed: i128,
        milli: i128,
    ) -> StoredLimit {
        let (old, new) = (was.params, found.params);
        let ceiling = old.capacity.min(new.capacity) * old.period;
        let fine = (was.fine() + elapsed.max(0) * old.refill).min(ceiling);
        let same_rate = (old.refill, old.period) == (new.refill, new.period);
        let remainder = if same_rate { fine.rem_euclid(old.period) } else { 0 };
        let balance = fine.div_euclid(old.period) - milli;
        StoredLimit {
            params: new,
            stored: found.stored,
            balance,
            consumed: was.consumed + milli,
            remainder,
            gap: found.gap,
            folded: was.folded,
        }
    }

    /// What a refill leaves hidden, by a writer who saw this of the limit: what overflows repays
    /// the gap.
    fn gap(seen: &StoredLimit, new: Params, elapsed: i128) -> i128 {
        let old = seen.params;
        let hidden = (seen.gap + old.capacity - new.capacity).max(0);
        let surplus = (seen.fine() + elapsed.max(0) * old.refill).div_euclid(old.period)
            - old.capacity.min(new.capacity);
        hidden - hidden.min(surplus.max(0))
    }

    /// Neither balance nor remainder is pinned. The balance that follows is that of the item, but
    /// with the remainder of any image of the refill instant; the gap is reckoned from the image
    /// alone, and repays no more than really overflows.
    fn check_line(
        &self,
        name: &str,
        (was, found): (&StoredLimit, &StoredLimit),
        elapsed: i128,
        milli: i128,
    ) -> Result<(), Broken> {
        let is_right = |remainder: i128| {
            let was = StoredLimit { remainder, ..*was };
            let mut gaps = self
                .instant
                .balances(name, &was)
                .map(|balance| Self::gap(&StoredLimit { balance, ..was }, found.params, elapsed));
            let least = Self::gap(&was, found.params, elapsed);
            *found == self.line(&was, found, elapsed, milli)
                && found.gap >= least
                && gaps.any(|gap| gap == found.gap)
        };
        if self.instant.remainders(name, was).any(is_right) {
            return Ok(());
        }
        let (limit, gap) =
            (self.line(was, found, elapsed, milli), Self::gap(was, found.params, elapsed));
        Err(format!(
            "{:?} of {milli} milli, {elapsed} ms after {was:?}, made {found:?} of {name}, expected {limit:?} and a gap of {gap}",
            self.writer
        ))
    }

    /// A limit is dropped only when a new one would start the same: full, and with no gap.
    fn check_dropped(&self, name: &str, was: &StoredLimit, elapsed: i128) -> Result<(), Broken> {
        let surplus = (was.fine() + elapsed.max(0) * was.params.refill)
            .div_euclid(was.params.period)
            - was.params.capacity;
        let is_wanted = self
            .limits
            .is_some_and(|limits| limits.limits.iter().any(|limit| limit.name().as_str() == name));
        let is_whole = surplus >= was.gap && surplus >= 0;
        let is_right =
            matches!(self.writer, Writer::Sync | Writer::SyncOnly) && !is_wanted && is_whole;
        if is_right {
            Ok(())
        } else {
            Err(format!("{:?} dropped {name}, which was {was:?} {elapsed} ms before", self.writer))
        }
    }

    /// A take never leaves debt, and nobody takes from what is disabled.
    fn check_gate(&self) -> Result<(), Broken> {
        if !takes(self.writer) {
            return Ok(());
        }
        if self.before.is_some_and(|before| before.disabled) {
            return Err("taken from a bucket that is disabled".to_owned());
        }
        let amounts = self.amounts();
        // One leg of several says nothing about limits that it does not take from.
        let declared = self.asked.iter().flat_map(BTreeMap::keys);
        for name in declared.filter(|name| !self.is_leg || amounts.contains_key(*name)) {
            if self.after.limits.get(name).is_none_or(|limit| limit.balance < 0) {
                return Err(format!(
                    "the gate let {name} into debt: {:?}",
                    self.after.limits.get(name)
                ));
            }
        }
        Ok(())
    }

    /// A take is held to the limits its caller knows: no more than they allow is ever granted.
    fn check_limits(&self) -> Result<(), Broken> {
        let Some(limits) = self.limits.filter(|_| takes(self.writer)) else { return Ok(()) };
        let amounts = self.amounts();
        let differs = |limit: &&Limit| {
            let declared = self.asked.iter().any(|asked| asked.contains_key(limit.name().as_str()));
            // Somebody may have changed, on this shard, a limit that another leg takes from.
            let is_taken = !self.is_leg || amounts.contains_key(limit.name().as_str());
            declared
                && is_taken
                && self
                    .after
                    .limits
                    .get(limit.name().as_str())
                    .is_none_or(|found| found.stored != Params::of(limit))
        };
        if let Some(limit) = limits.limits.iter().find(differs) {
            return Err(format!(
                "{:?} for a caller who knows {limit}, on {:?}",
                self.writer,
                self.after.limits.get(limit.name().as_str())
            ));
        }
        let passed = |name: &&String| {
            self.after.limits.contains_key(*name) && !self.after.retired.contains(*name)
        };
        if let Some(name) =
            self.absent.iter().find(passed).filter(|_| limits.source != LimitSource::Call)
        {
            return Err(format!(
                "{:?} passes by {name}, which the call asks for and its caller does not know of",
                self.writer
            ));
        }
        let is_shaped = matches!(self.writer, Writer::Create | Writer::Sync)
            && limits.source != LimitSource::Call;
        let in_force = self.after.limits.keys().filter(|name| !self.after.retired.contains(*name));
        if is_shaped
            && !in_force
                .clone()
                .all(|name| limits.limits.iter().any(|limit| limit.name().as_str() == name))
        {
            return Err(format!(
                "{:?} leaves {:?} in force for a caller who knows {:?}",
                self.writer,
                in_force.collect::<Vec<_>>(),
                limits.limits
            ));
        }
        Ok(())
    }
}

fn seeded(name: &str, limit: &StoredLimit) -> Result<(), Broken> {
    let expected = StoredLimit {
        balance: limit.params.capacity - limit.consumed,
        remainder: 0,
        gap: 0,
        ..*limit
    };
    if *limit == expected {
        Ok(())
    } else {
        Err(format!("{name} began as {limit:?}, expected {expected:?}"))
    }
}
