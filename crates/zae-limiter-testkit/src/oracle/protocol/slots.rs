//! What landed for each call of the store, bucket by bucket, against what its caller was told.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use zae_limiter_core::LIMITS_MAX;
use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_dynamodb::constants::{RACES_MAX, WRITE_AGE_MAX};
use zae_limiter_store::ConsumeOutcome;

use super::due::Due;
use super::ideal::IdealBucket;
use super::ledger::Amounts;
use super::writer::debits;
use super::{Coverage, bucket_of};
use crate::oracle::Broken;
use crate::oracle::books::{
    Asked, Call as StoreCall, CallId, Part, PlannedMember, State, Told as Said,
};
use crate::table::{Call, Request, Told};
use zae_limiter_dynamodb::table::Write;

/// One write that landed.
#[derive(Clone, Debug)]
pub(crate) struct Landed {
    /// The shard it landed on.
    pub(crate) shard: i64,
    pub(crate) writer: Writer,
    pub(crate) told: Told,
    /// True for a copy that the network delivered, which no client can know of.
    pub(crate) is_copy: bool,
    /// How long it was on its way.
    pub(crate) late_ms: i64,
    pub(crate) amounts: Amounts,
    pub(crate) nonce: Option<String>,
}

/// One request, and what its sender heard.
#[derive(Clone, Copy, Debug)]
struct Heard {
    writer: Writer,
    told: Told,
    /// The bucket had none of the limits that the request counts: there was nothing to give back
    /// to.
    is_gone: bool,
}

/// One bucket of one call.
#[derive(Clone, Debug, Default)]
struct Slot {
    landed: Vec<Landed>,
    /// Every request, answered or not.
    heard: Vec<Heard>,
    /// The nonces of debits whose condition failed: one of them may be why.
    failed: BTreeSet<String>,
    /// Some request went to a shard other than shard 0, or to several.
    is_sharded: bool,
}

/// The buckets of all calls, by call and entity.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: BTreeMap<(CallId, String), Slot>,
    /// Entities some of whose buckets could not be read at times.
    pub(crate) unreadable: BTreeSet<String>,
}

impl Slot {
    /// Landings of debits, by operation.
    fn debits(&self) -> BTreeMap<&Option<String>, usize> {
        let mut found = BTreeMap::new();
        self.landed
            .iter()
            .filter(|landed| debits(landed.writer))
            .for_each(|landed| *found.entry(&landed.nonce).or_default() += 1);
        found
    }

    /// True when every debit that landed was on its way for longer than one that is granted may be.
    fn is_overdue(&self) -> bool {
        let mut debits = self.landed.iter().filter(|landed| debits(landed.writer)).peekable();
        let most = i64::try_from(WRITE_AGE_MAX.as_millis()).unwrap_or(i64::MAX);
        debits.peek().is_some() && debits.all(|landed| landed.late_ms > most)
    }

    /// What was taken, all shards together. A debit that landed twice is counted once: it is given
    /// back once at most.
    fn taken(&self) -> Amounts {
        let mut seen = BTreeSet::new();
        let mut sums = Amounts::new();
        for landed in self.landed.iter().filter(|landed| debits(landed.writer)) {
            if seen.insert((&landed.nonce, landed.shard)) {
                add(&mut sums, &landed.amounts, 1);
            }
        }
        sums
    }

    /// Whether a take from a shard was not granted, and nobody began to give it back: who cannot
    /// read which limits are divided does not know where to. The client counts that.
    fn is_kept(&self, call: &StoreCall) -> bool {
        let is_granted = matches!(&call.told, Some(Said::Decision(ConsumeOutcome::Granted(_))));
        let is_known = |landed: &Landed| {
            debits(landed.writer) && landed.told == Told::Done && !landed.amounts.is_empty()
        };
        matches!(call.asked, Asked::Consume { .. })
            && call.told.is_some()
            && !is_granted
            && self.last(is_credit).is_none()
            && self.landed.iter().any(|landed| is_known(landed) && landed.shard > 0)
    }

    /// What was given back, all shards together.
    fn given(&self) -> Amounts {
        let mut sums = Amounts::new();
        self.credits().for_each(|landed| add(&mut sums, &landed.amounts, -1));
        sums
    }

    fn credits(&self) -> impl Iterator<Item = &Landed> {
        self.landed.iter().filter(|landed| landed.writer == Writer::Credit)
    }

    /// What its sender last heard about this kind of write.
    fn last(&self, of: fn(Writer) -> bool) -> Option<Told> {
        self.heard.iter().rev().find(|heard| of(heard.writer)).map(|heard| heard.told)
    }

    fn was_unheard(&self, of: fn(Writer) -> bool) -> bool {
        self.heard.iter().any(|heard| of(heard.writer) && heard.told == Told::Unknown)
    }

    /// Requests to give back that were answered like this.
    fn credits_heard(&self, like: impl Fn(&Heard) -> bool) -> u64 {
        self.heard.iter().filter(|heard| is_credit(heard.writer) && like(heard)).count() as u64
    }

    /// Credits that came to an end without an error: given back, or found that there was nothing to
    /// give back to.
    fn credits_ended(&self) -> u64 {
        self.credits_heard(|heard| {
            heard.told == Told::Done || heard.told == Told::Condition && heard.is_gone
        })
    }

    /// Whether a credit has lost so many races that it was given up, whatever the last image said.
    fn is_outraced(&self) -> bool {
        self.credits_heard(|heard| heard.told == Told::Condition) > u64::from(RACES_MAX)
    }

    /// No operation lands twice unless an answer was lost, or the network has delivered it twice.
    fn doubled(&self) -> Result<u64, Broken> {
        let mut sent: BTreeMap<(&Option<String>, i64), usize> = BTreeMap::new();
        self.landed
            .iter()
            .filter(|landed| debits(landed.writer) && !landed.is_copy)
            .for_each(|it| *sent.entry((&it.nonce, it.shard)).or_default() += 1);
        // A take from several shards is one operation.
        let twice = sent.iter().filter(|(_, count)| **count > 1).map(|((nonce, _), _)| nonce);
        let doubled = twice.collect::<BTreeSet<_>>().len() as u64;
        if doubled > 0 && !self.was_unheard(debits) {
            return Err(format!(
                "an operation has landed twice, and its sender heard everything: {self:?}"
            ));
        }
        Ok(doubled)
    }
}

fn add(sums: &mut Amounts, amounts: &Amounts, sign: i128) {
    for (name, milli) in amounts {
        *sums.entry(name.clone()).or_default() += sign * milli;
    }
}

fn is_credit(writer: Writer) -> bool {
    writer == Writer::Credit
}

impl Slots {
    /// A request of a call has been answered, by a bucket that was like this.
    pub(crate) fn heard(
        &mut self,
        id: CallId,
        call: &Call,
        ideals: &BTreeMap<String, IdealBucket>,
    ) {
        if call.told == Told::Nobody {
            return;
        }
        let write = match &call.request {
            Request::Bucket(write) => write,
            Request::Transact(writes, _) => return self.heard_legs(id, call, writes),
            _ => return,
        };
        let Some((entity, _)) = bucket_of(&write.key) else { return };
        let writer = write.writer();
        let slot = self.slots.entry((id, entity.to_owned())).or_default();
        let is_gone = ideals.get(&write.key.pk).is_none_or(|ideal| {
            // A credit of nothing, which only takes back an event, counts no limit.
            let is_nothing = write.counted().next().is_none();
            ideal.accounts().next().is_none()
                || !is_nothing && !write.counted().any(|name| ideal.has(name.as_str()))
        });
        slot.heard.push(Heard { writer, told: call.told, is_gone });
        slot.is_sharded |= !write.key.pk.ends_with("#0");
        if call.told == Told::Condition && debits(writer) {
            slot.failed.extend(write.nonce().map(ToString::to_string));
        }
    }

    /// A take from several shards has been answered.
    fn heard_legs(&mut self, id: CallId, call: &Call, writes: &[Write]) {
        let mut legs = writes.iter().filter_map(|write| match write {
            Write::Bucket(write) if debits(write.writer()) => Some(write),
            _ => None,
        });
        let Some(leg) = legs.next() else { return };
        let Some((entity, _)) = bucket_of(&leg.key) else { return };
        let slot = self.slots.entry((id, entity.to_owned())).or_default();
        slot.heard.push(Heard { writer: leg.writer(), told: call.told, is_gone: false });
        slot.is_sharded = true;
        if call.told == Told::Canceled {
            slot.failed.extend(leg.nonce().map(ToString::to_string));
        }
    }

    /// A write of a call has landed.
    pub(crate) fn landed(&mut self, id: CallId, entity: &str, landed: Landed) {
        self.slots.entry((id, entity.to_owned())).or_default().landed.push(landed);
    }

    /// Charges of this call that earlier calls had sent already, unheard: the settler repeats a
    /// charge by its number.
    fn landed_before(&self, id: CallId, entity: &str) -> usize {
        let Some(slot) = self.slots.get(&(id, entity.to_owned())) else { return 0 };
        let earlier = self.slots.iter().filter(|((call, of), _)| *call < id && of == entity);
        let landed: BTreeSet<&String> = earlier
            .flat_map(|(_, slot)| slot.debits().into_keys().flatten().collect::<Vec<_>>())
            .collect();
        slot.failed.iter().filter(|nonce| landed.contains(nonce)).count()
    }

    /// Holds every call to what it was told. Returns what the counters of each client must say.
    pub(crate) fn audit(
        &self,
        state: &State,
        coverage: &mut Coverage,
    ) -> Result<BTreeMap<usize, Due>, Broken> {
        let mut due: BTreeMap<usize, Due> = BTreeMap::new();
        let nothing = Slot::default();
        for (id, call) in state.calls.iter().enumerate() {
            let due = due.entry(call.client).or_default();
            let unheard_before = due.unheard;
            let slot = |entity: &str| self.slots.get(&(id, entity.to_owned())).unwrap_or(&nothing);
            let mut entities: Vec<&str> = match &call.asked {
                Asked::Consume { members } => {
                    let is_unlimited = |member: &&PlannedMember| member.in_force.limits.is_empty();
                    for member in members.iter().filter(is_unlimited) {
                        let slot = slot(member.entity.as_str());
                        if !(slot.landed.is_empty() && slot.heard.is_empty()) {
                            return Err(format!(
                                "call {id} asked for no limits of {}, and wrote to its bucket: {slot:?}",
                                member.entity
                            ));
                        }
                    }
                    let is_granted =
                        matches!(call.told, Some(Said::Decision(ConsumeOutcome::Granted(_))));
                    coverage.unlimited +=
                        u64::from(is_granted && members.iter().any(|member| is_unlimited(&member)));
                    members
                        .iter()
                        .filter(|member| !is_unlimited(member))
                        .map(|member| member.entity.as_str())
                        .collect()
                }
                Asked::Adjust { parts } => parts
                    .iter()
                    .flat_map(|part| &part.changes)
                    .map(|change| change.entity.as_str())
                    .collect(),
                // A change of limits reaches buckets by takes of nothing, and undoes those that
                // come too late.
                Asked::Other => {
                    let of_call = self.slots.range((id, String::new())..(id + 1, String::new()));
                    for (_, slot) in of_call {
                        let credits = slot.credits_heard(|_| true);
                        due.credits_unknown.add(0..=credits);
                        due.credits_lost.add(0..=credits);
                    }
                    continue;
                }
            };
            entities.sort_unstable();
            entities.dedup();
            let mut refunded = false;
            for entity in entities {
                let slot = slot(entity);
                let unknown = slot.credits_heard(|heard| heard.told == Told::Unknown);
                due.credits_unknown.add(if call.told.is_some() {
                    unknown..=unknown
                } else {
                    0..=unknown
                });
                if self.unreadable.contains(entity) || call.told.is_none() {
                    // Nobody can say how its credits ended, but there were no more than there were
                    // requests.
                    due.credits_lost.add(0..=slot.credits_heard(|_| true));
                    let plain = slot
                        .heard
                        .iter()
                        .filter(|heard| heard.writer == Writer::ChargePlain)
                        .count();
                    due.charges_lost.add(0..=(plain * LIMITS_MAX) as u64);
                }
                if self.unreadable.contains(entity) {
                    continue;
                }
                let wrong = |broken: Broken| {
                    format!(
                        "call {id} ({}) of client {} on {entity}: {broken}",
                        call.operation, call.client
                    )
                };
                let doubled = slot.doubled().map_err(wrong)?;
                (due.doubled, coverage.doubled) =
                    (due.doubled + doubled, coverage.doubled + doubled);
                let lost = match &call.asked {
                    Asked::Consume { members } => {
                        let is_refunded = slot.credits().next().is_some();
                        refunded |= is_refunded;
                        coverage.overdue += u64::from(is_refunded && slot.is_overdue());
                        let member = members.iter().find(|it| it.entity.as_str() == entity);
                        let wanted = member.map_or_else(Amounts::new, |member| {
                            let takes = member.takes.iter().filter(|(_, milli)| *milli != 0);
                            takes.cloned().collect()
                        });
                        due.unheard += check_take(call, &wanted, slot).map_err(wrong)?;
                        lost_of_take(call, slot)
                    }
                    Asked::Adjust { parts } => {
                        check_adjusted(call, parts, entity, slot, self.landed_before(id, entity))
                            .map_err(wrong)?;
                        due.charges_lost.add(if call.told.is_some() {
                            left_out(parts, entity, slot)
                        } else {
                            0..=0
                        });
                        lost_of_adjustment(call, parts, entity, slot).map_err(wrong)?
                    }
                    Asked::Other => 0,
                };
                // Two credits in one bucket: which of them lost the races is not written down. On
                // several shards one credit may be several requests, and walk, and a take that was
                // given back may be followed by another.
                let is_lost = slot.is_kept(call);
                if is_lost {
                    due.credits_lost.add(1..=1);
                } else if slot.is_sharded || slot.debits().len() > 1 {
                    let legs = slot.landed.iter().filter(|landed| debits(landed.writer)).count();
                    due.credits_lost.add(0..=slot.credits_heard(|_| true) + legs as u64);
                } else {
                    due.credits_lost.add(lost..=lost + u64::from(slot.is_outraced()));
                }
                coverage.credits_lost += lost;
                coverage.credits_gone +=
                    slot.credits_heard(|heard| heard.told == Told::Condition && heard.is_gone);
            }
            coverage.compensated += u64::from(refunded);
            coverage.unheard += due.unheard - unheard_before;
        }
        Ok(due)
    }
}

/// A granted take has landed on every bucket. Any other take leaves only debits that no client
/// could know of or give back. Returns how many landed unheard.
fn check_take(call: &StoreCall, wanted: &Amounts, slot: &Slot) -> Result<u64, Broken> {
    let taken = slot.debits().len();
    let (sums, given) = (slot.taken(), slot.given());
    let is_tried = slot.last(is_credit).is_some();
    let is_more = |(name, milli): (&String, &i128)| *milli > sums.get(name).copied().unwrap_or(0);
    if given.iter().any(is_more) {
        return Err(format!("given back {given:?}, taken {sums:?}: {slot:?}"));
    }
    match &call.told {
        Some(Said::Decision(ConsumeOutcome::Granted(_))) if taken == 0 => {
            Err(format!("granted, and nothing has landed: {slot:?}"))
        }
        Some(Said::Decision(ConsumeOutcome::Granted(_))) if slot.is_overdue() => Err(format!(
            "granted by what was decided more than {WRITE_AGE_MAX:?} before it landed: {slot:?}"
        )),
        // What landed too late on one shard is given back, and another shard may be asked.
        Some(Said::Decision(ConsumeOutcome::Granted(_)))
            if is_tried
                && wanted.iter().any(|(name, milli)| {
                    let of = |sums: &Amounts| sums.get(name).copied().unwrap_or(0);
                    of(&sums) - of(&given) < *milli
                }) =>
        {
            Err(format!("granted, and given back: {slot:?}"))
        }
        Some(Said::Decision(ConsumeOutcome::Granted(_))) | None => Ok(0),
        // Counted as lost: see `Slots::audit`.
        Some(_) if slot.is_kept(call) => Ok(0),
        // A limit that was only declared has nothing to give back.
        Some(_)
            if sums == given
                || is_tried
                || slot.landed.iter().all(|landed| landed.amounts.is_empty()) =>
        {
            Ok(0)
        }
        Some(_)
            if slot
                .landed
                .iter()
                .any(|landed| debits(landed.writer) && landed.told == Told::Done) =>
        {
            Err(format!("not granted, and what was taken stays taken: {slot:?}"))
        }
        Some(_) if slot.was_unheard(debits) => Ok(1),
        // The request was refused and its copy landed: the sender cannot know of the copy.
        Some(_)
            if slot
                .landed
                .iter()
                .filter(|landed| debits(landed.writer))
                .all(|landed| landed.is_copy) =>
        {
            Ok(0)
        }
        Some(_) => Err(format!(
            "not granted, taken unheard, and nobody had reason to be in doubt: {slot:?}"
        )),
    }
}

/// Refunds that the store has given up: whatever a take that was not granted began to give back,
/// and neither gave back nor found gone. There is one at most.
fn lost_of_take(call: &StoreCall, slot: &Slot) -> u64 {
    let is_over = call.told.is_some() && slot.last(is_credit).is_some();
    u64::from(is_over && (slot.is_outraced() || slot.credits_ended() == 0))
}

/// Credits that the store has given up and said nothing of: those beside a charge that went
/// through. One that came alone and was given up is an error of the call, which its caller counts.
fn lost_of_adjustment(
    call: &StoreCall,
    parts: &[Part],
    entity: &str,
    slot: &Slot,
) -> Result<u64, Broken> {
    let Some(Said::Adjusted(results)) = &call.told else { return Ok(0) };
    let is_ours = |part: &Part, of: fn(i128) -> bool| {
        part.changes.iter().any(|change| change.entity.as_str() == entity && of(change.milli))
    };
    let went_through = parts
        .iter()
        .zip(results)
        .filter(|(part, result)| result.is_ok() && is_ours(part, |milli| milli < 0));
    let (beside, alone): (Vec<_>, Vec<_>) =
        went_through.partition(|(part, _)| is_ours(part, |milli| milli > 0));
    let open = (beside.len() + alone.len()) as u64;
    let lost = open.saturating_sub(slot.credits_ended());
    if lost > beside.len() as u64 {
        return Err(format!(
            "{open} credits went through, of which {lost} were not given back: {slot:?}"
        ));
    }
    Ok(lost)
}

/// Limits that charges without a look have left out: forgotten, so there was nothing to charge.
/// The client that heard of it counts it.
fn left_out(parts: &[Part], entity: &str, slot: &Slot) -> RangeInclusive<u64> {
    let (mut least, mut most) = (0, 0);
    for landed in
        slot.landed.iter().filter(|landed| landed.writer == Writer::ChargePlain && !landed.is_copy)
    {
        let charged = |part: &Part| {
            part.changes
                .iter()
                .filter(|change| change.entity.as_str() == entity && change.milli > 0)
                .count()
        };
        let lacks = parts
            .iter()
            .map(charged)
            .filter(|charged| *charged > 0)
            .map(|charged| charged.saturating_sub(landed.amounts.len()) as u64);
        most += lacks.clone().max().unwrap_or(0);
        least += if landed.told == Told::Done { lacks.min().unwrap_or(0) } else { 0 };
    }
    least..=most
}

/// Charges that went through have landed, once; credits land at most once; what is said to have
/// failed is not known to have landed, or it would be sent again.
fn check_adjusted(
    call: &StoreCall,
    parts: &[Part],
    entity: &str,
    slot: &Slot,
    landed_before: usize,
) -> Result<(), Broken> {
    let ours: Vec<(usize, &Part)> = parts
        .iter()
        .enumerate()
        .filter(|(_, part)| part.changes.iter().any(|change| change.entity.as_str() == entity))
        .collect();
    let sum = |of: &dyn Fn(i128) -> bool| {
        let mut sums = Amounts::new();
        for change in
            ours.iter().flat_map(|(_, part)| &part.changes).filter(|change| of(change.milli))
        {
            *sums.entry(change.limit.clone()).or_default() += change.milli;
        }
        sums
    };
    let asked_back = sum(&|milli| milli < 0);
    let mut given = Amounts::new();
    for landed in slot.credits() {
        landed
            .amounts
            .iter()
            .for_each(|(name, milli)| *given.entry(name.clone()).or_default() += milli);
    }
    if given.iter().any(|(name, milli)| *milli < asked_back.get(name).copied().unwrap_or(0)) {
        return Err(format!("asked to give back {asked_back:?}, gave {given:?}: {slot:?}"));
    }
    let Some(Said::Adjusted(results)) = &call.told else { return Ok(()) };
    let charging = |part: &Part| part.changes.iter().any(|change| change.milli > 0);
    let charged = ours
        .iter()
        .filter(|(index, part)| charging(part) && results.get(*index) == Some(&Ok(())))
        .count();
    let landed = slot.debits().len() + landed_before;
    if landed < charged {
        return Err(format!("{charged} charges went through, {landed} have landed: {slot:?}"));
    }
    let all_failed = ours.iter().all(|(index, _)| matches!(results.get(*index), Some(Err(_))));
    if all_failed && slot.landed.iter().any(|landed| landed.told == Told::Done) {
        return Err(format!("said to have failed, and known to have landed: {slot:?}"));
    }
    Ok(())
}
