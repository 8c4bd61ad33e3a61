//! What landed for each call of the store, bucket by bucket, against what its caller was told.

use std::collections::{BTreeMap, BTreeSet};

use zae_limiter_dynamodb::table::Write;
use zae_limiter_dynamodb::write::Writer;
use zae_limiter_store::ConsumeOutcome;

use super::ledger::Amounts;
use super::writer::{classify, debits, nonce};
use super::{Coverage, bucket_of};
use crate::books::{Asked, Call as StoreCall, CallId, Part, State, Told as Said};
use crate::evaluator::{Call, Request, Told};
use crate::oracle::Broken;

/// One write that landed.
#[derive(Clone, Debug)]
struct Landed {
    writer: Writer,
    told: Told,
    amounts: Amounts,
    nonce: Option<String>,
}

/// One bucket of one call.
#[derive(Clone, Debug, Default)]
struct Slot {
    landed: Vec<Landed>,
    /// Every request that was answered, or not: who, and what its sender heard.
    heard: Vec<(Writer, Told)>,
    /// The nonces of debits whose condition failed: one of them may be why.
    failed: BTreeSet<String>,
}

/// All of them, by call and entity.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: BTreeMap<(CallId, String), Slot>,
    /// Entities some of whose buckets could not be read at times.
    pub(crate) unreadable: BTreeSet<String>,
    /// Entities and their limits that were forgotten at times: there is nothing to give back to.
    pub(crate) gone: BTreeSet<(String, String)>,
}

/// What the counters of a client must at least say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Due {
    /// Operations that landed more than once.
    pub(crate) doubled: u64,
    /// Takes that landed and that neither a lease nor a refund knows of.
    pub(crate) unheard: u64,
}

impl Slot {
    /// Landings of debits, by operation.
    fn debits(&self) -> BTreeMap<&Option<String>, usize> {
        let mut found = BTreeMap::new();
        self.landed.iter().filter(|landed| debits(landed.writer)).for_each(|landed| *found.entry(&landed.nonce).or_default() += 1);
        found
    }

    fn credits(&self) -> impl Iterator<Item = &Landed> {
        self.landed.iter().filter(|landed| landed.writer == Writer::Credit)
    }

    /// What its sender last heard about this kind of write.
    fn last(&self, of: fn(Writer) -> bool) -> Option<Told> {
        self.heard.iter().rev().find(|(writer, _)| of(*writer)).map(|(_, told)| *told)
    }

    fn was_unheard(&self, of: fn(Writer) -> bool) -> bool {
        self.heard.iter().any(|(writer, told)| of(*writer) && *told == Told::Unknown)
    }

    /// No operation lands twice unless an answer was lost.
    fn doubled(&self) -> Result<u64, Broken> {
        let doubled = self.debits().values().filter(|count| **count > 1).count() as u64;
        if doubled > 0 && !self.was_unheard(debits) {
            return Err(format!("an operation has landed twice, and its sender heard everything: {self:?}"));
        }
        Ok(doubled)
    }
}

fn is_credit(writer: Writer) -> bool {
    writer == Writer::Credit
}

impl Slots {
    /// A request of a call has been answered.
    pub(crate) fn heard(&mut self, id: CallId, asked: &StoreCall, call: &Call) {
        let (write, key) = match &call.request {
            Request::Update(update) => (Write::Update(update.clone()), update.key.clone()),
            Request::Put(put) => {
                (Write::Put(put.clone()), zae_limiter_dynamodb::table::Key { pk: text(put, "PK"), sk: text(put, "SK").into() })
            }
            _ => return,
        };
        let (Some((entity, _)), Some(writer)) = (bucket_of(&key), classify(asked.operation, &write)) else { return };
        if call.told != Told::Nobody {
            let slot = self.slots.entry((id, entity.to_owned())).or_default();
            slot.heard.push((writer, call.told));
            if call.told == Told::Condition && debits(writer) {
                slot.failed.extend(nonce(&write).map(ToOwned::to_owned));
            }
        }
    }

    /// A write of a call has landed.
    pub(crate) fn landed(&mut self, id: CallId, entity: &str, (writer, told): (Writer, Told), amounts: &Amounts, nonce: Option<&str>) {
        let landed = Landed { writer, told, amounts: amounts.clone(), nonce: nonce.map(ToOwned::to_owned) };
        self.slots.entry((id, entity.to_owned())).or_default().landed.push(landed);
    }

    /// Charges of this call that earlier calls had sent already, unheard: the settler repeats a charge by its number.
    fn landed_before(&self, id: CallId, entity: &str) -> usize {
        let Some(slot) = self.slots.get(&(id, entity.to_owned())) else { return 0 };
        let earlier = self.slots.iter().filter(|((call, of), _)| *call < id && of == entity);
        let landed: BTreeSet<&String> = earlier.flat_map(|(_, slot)| slot.debits().into_keys().flatten().collect::<Vec<_>>()).collect();
        slot.failed.iter().filter(|nonce| landed.contains(nonce)).count()
    }

    /// Holds every call to what it was told. Returns what the counters of each client must say.
    pub(crate) fn audit(&self, state: &State, coverage: &mut Coverage) -> Result<BTreeMap<usize, Due>, Broken> {
        let mut due: BTreeMap<usize, Due> = BTreeMap::new();
        let nothing = Slot::default();
        for (id, call) in state.calls.iter().enumerate() {
            let due = due.entry(call.client).or_default();
            let slot = |entity: &str| self.slots.get(&(id, entity.to_owned())).unwrap_or(&nothing);
            let mut entities: Vec<&str> = match &call.asked {
                Asked::Consume { members } => members.iter().map(|member| member.entity.as_str()).collect(),
                Asked::Adjust { parts } => parts.iter().flat_map(|part| &part.changes).map(|change| change.entity.as_str()).collect(),
                Asked::Other => continue,
            };
            entities.dedup();
            entities.retain(|entity| !self.unreadable.contains(*entity));
            let mut refunded = false;
            for entity in entities {
                let slot = slot(entity);
                let wrong = |broken: Broken| format!("call {id} ({}) of client {} on {entity}: {broken}", call.operation, call.client);
                let doubled = slot.doubled().map_err(wrong)?;
                (due.doubled, coverage.doubled) = (due.doubled + doubled, coverage.doubled + doubled);
                match &call.asked {
                    Asked::Consume { .. } => {
                        let is_gone = |limit: &String| self.gone.contains(&(entity.to_owned(), limit.clone()));
                        due.unheard += check_take(call, slot, is_gone).map_err(wrong)?;
                        refunded |= slot.credits().next().is_some();
                    }
                    Asked::Adjust { parts } => check_adjusted(call, parts, entity, slot, self.landed_before(id, entity)).map_err(wrong)?,
                    Asked::Other => {}
                }
            }
            coverage.compensated += u64::from(refunded);
            coverage.unheard += due.unheard;
        }
        Ok(due)
    }
}

/// A granted take has landed on every bucket; of any other one nothing stays but what nobody could know of, or give back.
/// Returns how many landed unheard.
fn check_take(call: &StoreCall, slot: &Slot, is_gone: impl Fn(&String) -> bool) -> Result<u64, Broken> {
    // What has landed twice is counted by itself: it is given back once at most.
    let taken = slot.debits().len();
    let given = slot.credits().count();
    if given > 1 || given > taken {
        return Err(format!("given back {given} times, taken {taken} times: {slot:?}"));
    }
    match &call.told {
        Some(Said::Decision(ConsumeOutcome::Granted(_))) if taken == 0 => Err(format!("granted, and nothing has landed: {slot:?}")),
        Some(Said::Decision(ConsumeOutcome::Granted(_))) if given > 0 => Err(format!("granted, and given back: {slot:?}")),
        Some(Said::Decision(ConsumeOutcome::Granted(_))) | None => Ok(0),
        // A limit that was only declared has nothing to give back.
        Some(_) if taken == given || slot.landed.iter().all(|landed| landed.amounts.is_empty()) => Ok(0),
        Some(_) => {
            let is_known = slot.landed.iter().any(|landed| debits(landed.writer) && landed.told == Told::Done);
            let was_tried = slot.last(is_credit).is_some_and(|told| told != Told::Done);
            match (is_known, was_tried) {
                (_, true) => Ok(0),
                (true, false) if slot.landed.iter().flat_map(|landed| landed.amounts.keys()).all(is_gone) => Ok(0),
                (true, false) => Err(format!("not granted, and what was taken stays taken: {slot:?}")),
                (false, false) if slot.was_unheard(debits) => Ok(1),
                (false, false) => Err(format!("not granted, taken unheard, and nobody had reason to be in doubt: {slot:?}")),
            }
        }
    }
}

/// Charges that went through have landed, once; credits land at most once; what is said to have failed is not known to have
/// landed, or it would be sent again.
fn check_adjusted(call: &StoreCall, parts: &[Part], entity: &str, slot: &Slot, landed_before: usize) -> Result<(), Broken> {
    let ours: Vec<(usize, &Part)> =
        parts.iter().enumerate().filter(|(_, part)| part.changes.iter().any(|change| change.entity.as_str() == entity)).collect();
    let sum = |of: &dyn Fn(i128) -> bool| {
        let mut sums = Amounts::new();
        for change in ours.iter().flat_map(|(_, part)| &part.changes).filter(|change| of(change.milli)) {
            *sums.entry(change.limit.clone()).or_default() += change.milli;
        }
        sums
    };
    let asked_back = sum(&|milli| milli < 0);
    let mut given = Amounts::new();
    for landed in slot.credits() {
        landed.amounts.iter().for_each(|(name, milli)| *given.entry(name.clone()).or_default() += milli);
    }
    if given.iter().any(|(name, milli)| *milli < asked_back.get(name).copied().unwrap_or(0)) {
        return Err(format!("asked to give back {asked_back:?}, gave {given:?}: {slot:?}"));
    }
    let Some(Said::Adjusted(results)) = &call.told else { return Ok(()) };
    let charging = |part: &Part| part.changes.iter().any(|change| change.milli > 0);
    let charged = ours.iter().filter(|(index, part)| charging(part) && results.get(*index) == Some(&Ok(()))).count();
    let landed = slot.debits().len() + landed_before;
    // A bucket without an expiry that is gone was deleted by an administrator: there is nothing to charge.
    let may_drop = ours.iter().filter(|(_, part)| part.receipt.ttl_ms.is_none()).count();
    if landed + if slot.last(debits) == Some(Told::Condition) { may_drop } else { 0 } < charged {
        return Err(format!("{charged} charges went through, {landed} have landed: {slot:?}"));
    }
    let all_failed = ours.iter().all(|(index, _)| matches!(results.get(*index), Some(Err(_))));
    if all_failed && slot.landed.iter().any(|landed| landed.told == Told::Done) {
        return Err(format!("said to have failed, and known to have landed: {slot:?}"));
    }
    Ok(())
}

fn text(put: &zae_limiter_dynamodb::table::Put, name: &str) -> String {
    put.item.get(name).and_then(|value| value.as_s().ok()).cloned().unwrap_or_default()
}
