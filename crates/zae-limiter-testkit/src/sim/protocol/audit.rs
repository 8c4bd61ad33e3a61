//! Looks at everything that has landed on the table, write by write.

use std::collections::BTreeMap;

use zae_limiter_core::{EntityId, ResourceName};
use zae_limiter_dynamodb::bucket::write::BucketWrite;
use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_dynamodb::constants::CREATE_TRUST;
use zae_limiter_dynamodb::table::{Item, Write};
use zae_limiter_store::{Clock, LimitsInForce};

use super::tap::Sent;
use super::{Knowledge, Scene, events};
use crate::oracle::Broken;
use crate::oracle::books::{Asked, Books, Call as StoreCall, Part, PlannedMember, State};
use crate::oracle::bucket::Params;
use crate::oracle::history::Basis;
use crate::oracle::protocol::bucket_of;
use crate::oracle::protocol::configured::MadeAgain;
use crate::oracle::protocol::ideal::Event;
use crate::oracle::protocol::ledger::{Amounts, Landing};
use crate::oracle::protocol::slots::Landed;
use crate::oracle::protocol::stored::{self, Stored, StoredLimit};
use crate::oracle::protocol::writer::{debits, place};
use crate::table::{Call, Change, Request, SWEEPER, Told};

impl Scene {
    /// Checks what has landed since the last look; the first broken promise is noted in the books.
    pub(crate) fn look(&self, books: &Books) {
        for call in self.table.take_journal() {
            let mut state = books.lock();
            let mut lines = Vec::new();
            let verdict = self.look_at(&call, &state, &mut lines);
            state.events.append(&mut lines);
            if let Err(broken) = verdict {
                state.broken.get_or_insert(broken);
            }
        }
    }

    fn look_at(&self, call: &Call, state: &State, lines: &mut Vec<String>) -> Result<(), Broken> {
        let mut known = self.lock();
        let sent = self.outbox.get(call.tag);
        let is_copy = sent.is_some_and(|sent| sent.is_copy);
        // The sender of the original has had another answer, or none.
        let told = if is_copy { Told::Nobody } else { call.told };
        let id = sent.and_then(|sent| sent.call);
        let asked = id.map(|id| &state.calls[id]);
        if call.told == Told::Rejected && known.damaged.is_empty() {
            return Err(format!("the table does not accept {:?}", call.request));
        }
        known.coverage.late +=
            u64::from(!is_copy && told == Told::Nobody && !call.changes.is_empty());
        known.coverage.copies += u64::from(is_copy);
        known.coverage.copies_landed += u64::from(is_copy && !call.changes.is_empty());
        known.administration.look(call)?;
        call.changes.iter().for_each(|change| known.configured.note(change, state.elapsed));
        for (write, change) in writes(call) {
            let Some((entity, resource)) = bucket_of(&change.key) else { continue };
            let what = || match call.client {
                SWEEPER => "swept".to_owned(),
                events::FOREIGN => "a foreign write".to_owned(),
                client => {
                    let late = if is_copy {
                        ", once more"
                    } else if told == Told::Nobody {
                        ", late"
                    } else {
                        ""
                    };
                    format!(
                        "{} of client {client}{late}",
                        asked.map_or("", |asked| asked.operation)
                    )
                }
            };
            if self.is_traced {
                let writer = write.map(BucketWrite::writer);
                let truth = self.truth.now().0;
                lines.push(format!(
                    "    landed on {entity}/{resource} at {truth}: {} ({})",
                    what(),
                    words(writer, change)
                ));
            }
            let verdict = self.check(&mut known, call, (write, change), (sent, asked));
            verdict.map_err(|broken| format!("{entity}/{resource}, {}: {broken}", what()))?;
            if let (Some(asked), Some(write)) = (asked, write) {
                self.check_created(&mut known, asked, write, change)?;
            }
        }
        if let (Some(id), false) = (id, is_copy) {
            let Knowledge { slots, ideals, .. } = &mut *known;
            slots.heard(id, call, ideals);
        }
        Ok(())
    }

    fn check_created(
        &self,
        known: &mut Knowledge,
        asked: &StoreCall,
        write: &BucketWrite,
        change: &Change,
    ) -> Result<(), Broken> {
        match (&asked.asked, write.writer()) {
            (Asked::Consume { members }, Writer::Create) => {
                check_made(known, asked, members, change)
            }
            (Asked::Adjust { parts }, Writer::Recreate) => {
                check_made_again(known, asked, parts, change)
            }
            _ => Ok(()),
        }
    }

    fn check(
        &self,
        known: &mut Knowledge,
        call: &Call,
        (write, change): (Option<&BucketWrite>, &Change),
        (sent, asked): (Option<Sent>, Option<&StoreCall>),
    ) -> Result<(), Broken> {
        let truth = self.truth.now().0;
        let pk = &change.key.pk;
        let (entity, _) = bucket_of(&change.key).ok_or("not a bucket")?;
        if known.damaged.contains(pk) {
            if change.after.is_none() {
                known.damaged.remove(pk);
                known.ideals.remove(pk);
                known.administration.gone(pk);
            }
            return Ok(());
        }
        let read = |item: &Option<Item>| item.as_ref().map(stored::read).transpose();
        let (before, after) = (read(&change.before)?, read(&change.after)?);
        let Some(after) = after else {
            known.administration.gone(pk);
            if call.client == SWEEPER {
                known.coverage.swept += 1;
                // A foreign writer changes parameters and leaves the expiry as it was. A bucket
                // that expires too early because of that breaks no promise of ours.
                if before.is_some_and(|before| before.mark.is_some()) {
                    known.ideals.remove(pk);
                    return Ok(());
                }
                return known.ideals.entry(pk.clone()).or_default().swept(truth);
            }
            // An administrator deleted it, debts and all: what comes back is a new one. A purge
            // deletes keys, an entity goes by a writer of the registry.
            match write.map(BucketWrite::writer) {
                Some(Writer::Delete) => known.coverage.writers[place(Writer::Delete)] += 1,
                None if matches!(call.request, Request::DeleteBatch(_)) => {}
                writer => return Err(format!("a bucket was deleted by {writer:?}")),
            }
            known.coverage.deleted += 1;
            known.ideals.remove(pk);
            return Ok(());
        };
        if call.client == events::FOREIGN {
            known.coverage.foreign += 1;
            let amounts = difference(before.as_ref(), &after);
            known.ideals.entry(pk.clone()).or_default().foreign(&amounts, &after, truth);
            known.instants.entry(pk.clone()).or_default().note(&after);
            return Ok(());
        }
        let write = write.ok_or("a bucket was changed by no writer of the registry")?;
        let writer = write.writer();
        let wanted = asked.map_or_else(Wanted::default, |asked| wanted(asked, change, writer));
        let landing = Landing {
            writer,
            before: before.as_ref(),
            after: &after,
            nonce: write.nonce().map(|nonce| nonce.as_str()),
            now: sent.and_then(|sent| sent.now),
            asked: &wanted.amounts,
            limits: wanted.limits.as_ref(),
            absent: &wanted.absent,
            instant: known.instants.entry(pk.clone()).or_default(),
        };
        landing.check()?;
        known.administration.landed(change, writer, after.disabled)?;
        let (amounts, drifts) = (landing.amounts(), landing.drifts());
        let event = Event {
            writer,
            amounts: &amounts,
            before: before.as_ref(),
            after: &after,
            now: landing.now,
            sent_at: sent.map(|sent| sent.at),
            grace_ms: self.grace_ms,
            drifts: &drifts,
        };
        let ideal = known.ideals.entry(pk.clone()).or_default();
        ideal.landed(&event, truth)?;
        known.coverage.gaps += u64::from(ideal.gaps() > 0);
        known.coverage.exact += u64::from(ideal.is_exact());
        known.coverage.writers[place(writer)] += 1;
        known.coverage.in_debt +=
            u64::from(debits(writer) && after.limits.values().any(|limit| limit.balance < 0));
        if let Some(id) = sent.and_then(|sent| sent.call) {
            let is_copy = sent.is_some_and(|sent| sent.is_copy);
            let told = if is_copy { Told::Nobody } else { call.told };
            let late_ms = sent.map_or(0, |sent| truth.saturating_sub(sent.at));
            let nonce = landing.nonce.map(ToOwned::to_owned);
            known.slots.landed(
                id,
                entity,
                Landed { writer, told, is_copy, late_ms, amounts, nonce },
            );
        }
        known.instants.entry(pk.clone()).or_default().note(&after);
        Ok(())
    }
}

/// A bucket that a take makes is made from what was in force while that take was under way, or the
/// moment before it.
fn check_made(
    known: &mut Knowledge,
    asked: &StoreCall,
    members: &[PlannedMember],
    change: &Change,
) -> Result<(), Broken> {
    let Some((namespace, entity, resource)) = names_of(change) else { return Ok(()) };
    let Some(member) = members.iter().find(|member| member.entity == entity) else { return Ok(()) };
    known.coverage.made += 1;
    let basis = Basis {
        client: asked.client,
        namespace: namespace.to_owned(),
        since: asked.began.saturating_sub(CREATE_TRUST),
        resource,
        members: vec![(member.entity.clone(), member.in_force.clone())],
        is_chain: false,
        is_one_look: false,
    };
    known.configured.history.check(&basis).map_err(|broken| format!("a bucket was made: {broken}"))
}

/// Checks a bucket that a late charge makes again.
fn check_made_again(
    known: &Knowledge,
    asked: &StoreCall,
    parts: &[Part],
    change: &Change,
) -> Result<(), Broken> {
    let Some((namespace, entity, resource)) = names_of(change) else { return Ok(()) };
    let after = change
        .after
        .as_ref()
        .map(stored::read)
        .transpose()?
        .ok_or("a bucket was made, and is not there")?;
    let found: BTreeMap<&str, Params> =
        after.limits.iter().map(|(name, limit)| (name.as_str(), limit.params)).collect();
    let mut candidates = Vec::new();
    for part in
        parts.iter().filter(|part| part.changes.iter().any(|change| change.entity == entity))
    {
        let charges =
            part.changes.iter().filter(|change| change.entity == entity && change.milli > 0);
        let charged: Vec<&str> = charges.map(|change| change.limit.as_str()).collect();
        candidates.extend(known.configured.made_again(
            namespace,
            (&entity, &resource),
            (&part.receipt, &charged),
            asked.began,
        ));
    }
    let is_made_from = |made: &MadeAgain| {
        let params = made.limits.iter().map(|limit| (limit.name().as_str(), Params::of(limit)));
        params.collect::<BTreeMap<_, _>>() == found && made.expires == after.expires_s.is_some()
    };
    if candidates.is_empty() || candidates.iter().any(is_made_from) {
        return Ok(());
    }
    Err(format!("a charge made {after:?} again, which could be one of {candidates:?}"))
}

/// Namespace, entity and resource of a bucket.
fn names_of(change: &Change) -> Option<(&str, EntityId, ResourceName)> {
    let (entity, resource) = bucket_of(&change.key)?;
    let (namespace, _) = change.key.pk.split_once('/')?;
    Some((namespace, entity.parse().ok()?, resource.parse().ok()?))
}

/// The writes of a call to buckets, each with what it changed; a sweep has none.
fn writes(call: &Call) -> Vec<(Option<&BucketWrite>, &Change)> {
    let changes = call.changes.iter().filter(|change| bucket_of(&change.key).is_some());
    changes
        .map(|change| {
            let write = match &call.request {
                Request::Bucket(write) => Some(write),
                Request::Transact(writes, _) => writes.iter().find_map(|write| match write {
                    Write::Bucket(write) if write.key == change.key => Some(&**write),
                    _ => None,
                }),
                _ => None,
            };
            (write, change)
        })
        .collect()
}

/// What a call wants of a bucket.
#[derive(Default)]
struct Wanted {
    amounts: Vec<Amounts>,
    limits: Option<LimitsInForce>,
    /// Names the call asks for that are not among the limits of this member.
    absent: Vec<String>,
}

/// What a write to this bucket may have asked for, and by which limits.
fn wanted(asked: &StoreCall, change: &Change, writer: Writer) -> Wanted {
    let Some((entity, _)) = bucket_of(&change.key) else { return Wanted::default() };
    let gives_back = writer == Writer::Credit;
    match &asked.asked {
        Asked::Consume { members } => {
            let member = members.iter().find(|member| member.entity.as_str() == entity);
            let sign = if gives_back { -1 } else { 1 };
            let amounts = member.map(|member| {
                member.takes.iter().map(|(name, milli)| (name.clone(), sign * milli)).collect()
            });
            let declared = members.iter().flat_map(|member| &member.takes).map(|(name, _)| name);
            let is_absent =
                |name: &&String| member.is_some_and(|member| !member.limits.contains(name));
            Wanted {
                amounts: amounts.into_iter().collect(),
                limits: member.map(|member| member.in_force.clone()),
                absent: declared.filter(is_absent).cloned().collect(),
            }
        }
        Asked::Adjust { parts } => {
            let mut receipt = None;
            let mut amounts = Vec::new();
            for part in parts
                .iter()
                .filter(|part| part.changes.iter().any(|change| change.entity.as_str() == entity))
            {
                let of_kind = part.changes.iter().filter(|change| (change.milli < 0) == gives_back);
                amounts.push(of_kind.map(|change| (change.limit.clone(), change.milli)).collect());
                receipt = Some(part.receipt.clone());
            }
            Wanted { amounts, limits: receipt, ..Wanted::default() }
        }
        Asked::Other => Wanted::default(),
    }
}

fn difference(before: Option<&Stored>, after: &Stored) -> Amounts {
    let counted = |name: &String| {
        before.and_then(|before| before.limits.get(name)).map_or(0, |limit| limit.consumed)
    };
    after
        .limits
        .iter()
        .map(|(name, limit)| (name.clone(), limit.consumed - counted(name)))
        .collect()
}

/// What became of the balances, for people.
fn words(writer: Option<Writer>, change: &Change) -> String {
    let of = |item: &Option<Item>| match item.as_ref().map(stored::read) {
        None => "nothing".to_owned(),
        Some(Err(why)) => why,
        Some(Ok(stored)) => {
            let limits: Vec<String> =
                stored.limits.iter().map(|(name, limit)| line(name, limit)).collect();
            format!(
                "rf {} ca {:?} ttl {:?} [{}]",
                stored.refilled_at,
                stored.read_at,
                stored.expires_s,
                limits.join(", ")
            )
        }
    };
    format!("{writer:?}: {} -> {}", of(&change.before), of(&change.after))
}

fn line(name: &str, limit: &StoredLimit) -> String {
    let Params { capacity, refill, period } = limit.params;
    format!(
        "{name} {}+{} of {capacity} ({refill} per {period}) used {} gap {}",
        limit.balance, limit.remainder, limit.consumed, limit.gap
    )
}
