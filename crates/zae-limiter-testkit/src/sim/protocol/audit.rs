//! Looks at everything that has landed on the table, write by write.

use std::collections::BTreeMap;

use zae_limiter_core::{EntityId, ResourceName};
use zae_limiter_dynamodb::bucket::write::BucketWrite;
use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_dynamodb::constants::{CLOCK_OFF_MAX_MS, CREATE_TRUST, WCU_PER_WRITE_MILLI};
use zae_limiter_dynamodb::table::{Item, Write};
use zae_limiter_store::{Clock, LimitsInForce};

use super::shards::{bucket_and_shard, moves, note_stale};
use super::tap::Sent;
use super::{Knowledge, Scene, Skew, events, stream};
use crate::oracle::Broken;
use crate::oracle::books::{Asked, Books, Call as StoreCall, CallId, Part, PlannedMember, State};
use crate::oracle::bucket::Params;
use crate::oracle::history::Basis;
use crate::oracle::protocol::bucket_of;
use crate::oracle::protocol::configured::MadeAgain;
use crate::oracle::protocol::ideal::Event;
use crate::oracle::protocol::ledger::{Amounts, Landing};
use crate::oracle::protocol::share::SHARDS_MAX;
use crate::oracle::protocol::slots::Landed;
use crate::oracle::protocol::stored::{self, Stored, StoredLimit};
use crate::oracle::protocol::whole::together;
use crate::oracle::protocol::writer::{debits, place, takes};
use crate::table::{Call, Change, Fate, Request, SWEEPER, Told};

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
        if let Some(id) = id {
            self.note_gathered(&mut known, id, (call, sent));
            note_stale(&mut known, call);
        }
        let legs = writes(call);
        let what = || match call.client {
            SWEEPER => "swept".to_owned(),
            events::FOREIGN => "a foreign write".to_owned(),
            stream::AGGREGATOR => "the aggregator".to_owned(),
            client => {
                let late = if is_copy {
                    ", once more"
                } else if told == Told::Nobody {
                    ", late"
                } else {
                    ""
                };
                format!("{} of client {client}{late}", asked.map_or("", |asked| asked.operation))
            }
        };
        for (write, change) in legs.iter().filter(|_| self.is_traced) {
            let (writer, truth) = (write.map(BucketWrite::writer), self.truth.now().0);
            let pk = &change.key.pk;
            lines.push(format!(
                "    landed on {pk} at {truth}: {} ({})",
                what(),
                words(writer, change)
            ));
        }
        let says = |broken: Broken| {
            let keys: Vec<&String> = legs.iter().map(|(_, change)| &change.key.pk).collect();
            format!("{keys:?}, {}: {broken}", what())
        };
        self.check_deleted(&known, &legs).map_err(says)?;
        if legs.iter().any(|(write, _)| write.is_some_and(|write| moves(write.writer()))) {
            self.check_moved(&mut known, (call.client, id.is_some()), &legs).map_err(says)?;
        } else {
            let (mut sums, mut counted) = (Amounts::new(), 0);
            for (write, change) in &legs {
                let taken = self.check(&mut known, call, (*write, change), (sent, asked));
                let (amounts, counts) = taken.map_err(says)?;
                counted += counts;
                for (name, milli) in amounts {
                    *sums.entry(name).or_default() += milli;
                }
                if let (Some(asked), Some(write)) = (asked, write) {
                    self.check_created(&mut known, asked, write, change)?;
                }
            }
            self.check_gathered(&mut known, call, asked, (&sums, counted)).map_err(says)?;
        }
        self.check_wholes(&known, &legs).map_err(says)?;
        for (_, change) in &legs {
            let Knowledge { gathered, leaves, .. } = &mut *known;
            if let Some((entity, _)) = bucket_of(&change.key)
                && let Some((bucket, _)) = bucket_and_shard(&change.key.pk)
                && let Some(leaves) = leaves.get(bucket)
            {
                let at = self.truth.now().0 - CLOCK_OFF_MAX_MS;
                gathered.landed(state, entity, || together(leaves, at));
            }
        }
        for (write, change) in &legs {
            self.stream(call.client, (*write, change), asked).map_err(says)?;
        }
        if let (Some(id), false) = (id, is_copy) {
            let Knowledge { slots, ideals, .. } = &mut *known;
            slots.heard(id, call, ideals);
        }
        Ok(())
    }

    /// A call reads all shards of a bucket, or is told of some of them by a transaction that was
    /// cancelled.
    fn note_gathered(
        &self,
        known: &mut Knowledge,
        id: CallId,
        (call, sent): (&Call, Option<Sent>),
    ) {
        let Knowledge { gathered, leaves, .. } = known;
        match &call.request {
            Request::BatchGet(keys, _)
                if keys.len() as i64 >= SHARDS_MAX && call.told == Told::Done =>
            {
                let (Some((entity, _)), Some((bucket, _))) =
                    (bucket_of(&keys[0]), bucket_and_shard(&keys[0].pk))
                else {
                    return;
                };
                let truth = self.truth.now().0;
                let at = match (self.skew, sent.and_then(|sent| sent.now)) {
                    (Skew::None, Some(now)) => now.min(truth),
                    _ => truth - CLOCK_OFF_MAX_MS,
                };
                let sum = leaves.get(bucket).map(|leaves| together(leaves, at)).unwrap_or_default();
                gathered.read(id, entity, sum, matches!(call.fate, Fate::Withhold(_)));
            }
            Request::Transact(writes, _) if call.told == Told::Canceled => {
                for write in writes {
                    if let Write::Bucket(write) = write
                        && let Some((entity, _)) = bucket_of(&write.key)
                    {
                        gathered.tear(id, entity);
                    }
                }
            }
            _ => {}
        }
    }

    /// The legs of one take add up to what was asked, and count as one take.
    fn check_gathered(
        &self,
        known: &mut Knowledge,
        call: &Call,
        asked: Option<&StoreCall>,
        (sums, counted): (&Amounts, i64),
    ) -> Result<(), Broken> {
        let Request::Transact(writes, _) = &call.request else { return Ok(()) };
        let mut legs = writes.iter().filter_map(|write| match write {
            Write::Bucket(write) if takes(write.writer()) => Some(write),
            _ => None,
        });
        let (Some(first), Some(Asked::Consume { members }), false) =
            (legs.next(), asked.map(|asked| &asked.asked), call.changes.is_empty())
        else {
            return Ok(());
        };
        known.coverage.shards.gathers += u64::from(legs.next().is_some());
        let entity = bucket_of(&first.key).map_or("", |(entity, _)| entity);
        let member = members.iter().find(|member| member.entity.as_str() == entity);
        let wanted: Amounts = member
            .map(|member| member.takes.iter().filter(|(_, milli)| *milli != 0).cloned().collect())
            .unwrap_or_default();
        if *sums == wanted && counted == WCU_PER_WRITE_MILLI {
            return Ok(());
        }
        Err(format!(
            "a take from several shards took {sums:?} and counts {counted}, asked was {wanted:?}"
        ))
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
    ) -> Result<(Amounts, i64), Broken> {
        let nothing = Ok((Amounts::new(), 0));
        let truth = self.truth.now().0;
        let pk = &change.key.pk;
        let (entity, _) = bucket_of(&change.key).ok_or("not a bucket")?;
        if known.damaged.contains(pk) {
            if change.after.is_none() {
                known.damaged.remove(pk);
                known.ideals.remove(pk);
                known.administration.gone(pk);
            }
            return nothing;
        }
        let read = |item: &Option<Item>| item.as_ref().map(stored::read).transpose();
        let (before, after) = (read(&change.before)?, read(&change.after)?);
        let Some(after) = after else {
            known.administration.gone(pk);
            let bucket = bucket_and_shard(pk).map_or("", |(bucket, _)| bucket);
            let is_strange = known.strange.contains(bucket);
            let is_part = before.as_ref().is_some_and(|before| !before.place.is_alone());
            self.note_leaf(known, pk, (before.as_ref(), None), None)?;
            if call.client == SWEEPER {
                known.coverage.swept += 1;
                if is_part && !is_strange {
                    return Err("one of several shards has expired".to_owned());
                }
                // A foreign writer changes parameters and leaves the expiry as it was. A bucket
                // that expires too early because of that breaks no promise of ours.
                if is_part || before.is_some_and(|before| before.mark.is_some()) {
                    known.ideals.remove(pk);
                    return nothing;
                }
                known.ideals.entry(pk.clone()).or_default().swept(truth)?;
                return nothing;
            }
            // An administrator deleted it, debts and all: what comes back is a new one. A purge
            // deletes keys, an entity goes by a writer of the registry.
            match write.map(BucketWrite::writer) {
                Some(Writer::Delete) => known.coverage.writers[place(Writer::Delete)] += 1,
                None if matches!(call.request, Request::DeleteBatch(_)) => {}
                writer => return Err(format!("a bucket was deleted by {writer:?}")),
            }
            known.coverage.deleted += 1;
            known.coverage.shards.deleted += u64::from(is_part);
            known.ideals.remove(pk);
            return nothing;
        };
        if call.client == events::FOREIGN {
            known.coverage.foreign += 1;
            let amounts = difference(before.as_ref(), &after);
            if self.note_foreign(known, pk, (before.as_ref(), &after), &amounts)? {
                return nothing;
            }
            known.ideals.entry(pk.clone()).or_default().foreign(&amounts, &after, truth);
            known.instants.entry(pk.clone()).or_default().note(&after);
            return nothing;
        }
        let write = write.ok_or("a bucket was changed by no writer of the registry")?;
        let writer = write.writer();
        let wanted = asked.map_or_else(Wanted::default, |asked| wanted(asked, change, writer));
        // What a take holds of several shards is given back to each of them.
        let is_leg = takes(writer) && matches!(call.request, Request::Transact(..))
            || self.may_split() && writer == Writer::Credit && wanted.is_take;
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
            is_leg,
            is_in_parts: wanted.is_in_parts,
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
        let nonce = landing.nonce.map(ToOwned::to_owned);
        let counts = before.as_ref().map_or(0, |before| after.counted - before.counted);
        let taken = amounts.clone();
        self.count_shard(known, writer, &after);
        let is_elsewhere =
            wanted.is_elsewhere && !taken.keys().all(|name| after.place.pinned.contains(name));
        known.coverage.shards.walks += u64::from(is_elsewhere);
        if let Some(id) = sent.and_then(|sent| sent.call) {
            let is_copy = sent.is_some_and(|sent| sent.is_copy);
            let told = if is_copy { Told::Nobody } else { call.told };
            let late_ms = sent.map_or(0, |sent| truth.saturating_sub(sent.at));
            known.slots.landed(
                id,
                entity,
                Landed { shard: after.place.shard, writer, told, is_copy, late_ms, amounts, nonce },
            );
        }
        known.instants.entry(pk.clone()).or_default().note(&after);
        self.note_leaf(known, pk, (before.as_ref(), Some(&after)), Some((writer, &taken)))?;
        Ok((taken, counts))
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
        after.limits.iter().map(|(name, limit)| (name.as_str(), limit.stored)).collect();
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
    // A shard that was not there is deleted, too.
    let is_changed = |change: &&Change| change.before.is_some() || change.after.is_some();
    let changes = call.changes.iter().filter(is_changed);
    let changes = changes.filter(|change| bucket_of(&change.key).is_some());
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
    /// A take, and not a change after the fact.
    is_take: bool,
    /// See [`Landing::is_in_parts`].
    is_in_parts: bool,
    /// Some other shard was meant.
    is_elsewhere: bool,
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
                is_take: true,
                ..Wanted::default()
            }
        }
        Asked::Adjust { parts } => {
            let shard = bucket_and_shard(&change.key.pk).map_or(0, |(_, shard)| shard);
            let (mut receipt, mut amounts) = (None, Vec::new());
            let (mut is_in_parts, mut is_elsewhere) = (false, true);
            for part in parts
                .iter()
                .filter(|part| part.changes.iter().any(|change| change.entity.as_str() == entity))
            {
                let of_kind = part.changes.iter().filter(|change| (change.milli < 0) == gives_back);
                amounts.push(of_kind.map(|change| (change.limit.clone(), change.milli)).collect());
                receipt = Some(part.receipt.clone());
                is_in_parts |= part.place > 0;
                is_elsewhere &= part.place != shard;
            }
            Wanted { amounts, limits: receipt, is_in_parts, is_elsewhere, ..Wanted::default() }
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
                "of {}, era {}, rf {} ca {:?} ttl {:?} [{}]",
                stored.place.count,
                stored.place.era,
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
