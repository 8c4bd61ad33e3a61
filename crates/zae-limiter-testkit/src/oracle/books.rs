//! The books of a run: what callers asked, what really landed, what they were told.
//!
//! Two wrappers write them. [`CallLog`](crate::oracle::journal::CallLog) stands above the faults
//! and sees what the library asks and hears; [`JournalStore`](crate::oracle::journal::JournalStore)
//! stands below them and sees what the store really does. Takes are numbered, and a change names
//! the take that it settles: that is how a write is assigned to its lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zae_limiter_core::{EntityId, ResourceName, TimeMs, Wait};
use zae_limiter_store::{
    BucketDelta, ConsumeOutcome, ConsumeRequest, LimitsInForce, Store, StoreErrorKind,
};

use crate::oracle::history::{Basis, History, LENT_MAX};
use crate::oracle::{Broken, Oracle};

/// Index of a call in the log.
pub(crate) type CallId = usize;

/// An operation of the simulator, or any other caller that wants to be told apart.
pub(crate) type OpId = u64;

/// One bucket of a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlannedMember {
    pub(crate) entity: EntityId,
    pub(crate) limits: Vec<String>,
    pub(crate) takes: Vec<(String, i128)>,
    /// What it is held to.
    pub(crate) in_force: LimitsInForce,
}

/// One change of one limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Change {
    pub(crate) entity: EntityId,
    pub(crate) limit: String,
    pub(crate) milli: i128,
}

/// The changes of one bucket that are written, or not, together.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The take these belong to.
    pub(crate) plan: CallId,
    /// The shard of the bucket that they belong to.
    pub(crate) place: i64,
    /// The limits as they were when the lease took.
    pub(crate) receipt: LimitsInForce,
    pub(crate) changes: Vec<Change>,
    pub(crate) landed: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Consume { members: Vec<PlannedMember> },
    Adjust { parts: Vec<Part> },
    Other,
}

/// What the caller of a call was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A decision.
    Decision(ConsumeOutcome),
    /// One result per part.
    Adjusted(Vec<Result<(), StoreErrorKind>>),
    Fine,
    Failed(StoreErrorKind),
}

/// One call, from the first poll on.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) client: usize,
    /// The operation that made the call; `None` for the settler.
    pub(crate) op: Option<OpId>,
    pub(crate) asked: Asked,
    /// The caller's `now`, and when that was; `None` for calls without.
    pub(crate) now: Option<(TimeMs, Duration)>,
    /// When it began, by the time of the run.
    pub(crate) began: Duration,
    /// `None` when nobody was told: it is on its way, or was given up.
    pub(crate) told: Option<Told>,
    /// Who was told: the operation, or `None` for the settler that had taken the call over.
    pub(crate) told_to: Option<OpId>,
}

impl Call {
    /// The failure the caller was told about, if it was.
    pub(crate) fn failure(&self) -> Option<StoreErrorKind> {
        match &self.told {
            Some(Told::Failed(kind)) => Some(*kind),
            _ => None,
        }
    }
}

/// How often the age of what is known mattered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Freshness {
    /// Changes of stored limits, flags and entities.
    pub changes: u64,
    /// Grants held against the history of the configuration.
    pub checked: u64,
    /// Members that were read again after their client had been idle beyond everything it may
    /// trust.
    pub idle: u64,
    /// Takes decided by what had just expired.
    pub lent: u64,
}

/// How old what a client has read may be, and whether all of it has one age.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    pub(crate) max: Duration,
    pub(crate) is_one: bool,
}

/// When a client last read a configuration, by what it then knew.
type Read = (usize, String, EntityId, ResourceName, u64);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) oracle: Oracle,
    pub(crate) calls: Vec<Call>,
    /// The operation that is being polled.
    pub(crate) op: Option<OpId>,
    /// When that operation began, by the clock of its client.
    pub(crate) op_began: Duration,
    /// The call whose inner future is being polled.
    pub(crate) call: Option<CallId>,
    /// What happened in the store, for people.
    pub(crate) events: Vec<String>,
    pub(crate) broken: Option<Broken>,
    /// Clients with an operation that has passed its deadline, whatever became of its calls later.
    pub(crate) timed_out: BTreeSet<usize>,
    /// Takes and parts of adjustments that were carried out, in order.
    pub(crate) landings: Vec<(CallId, Option<usize>)>,
    takes: BTreeMap<u64, CallId>,
    reads: BTreeMap<Read, Duration>,
    /// Reads that decided once more after their time was over.
    lent: BTreeSet<Read>,
    /// When a client last read about a member at all.
    last_reads: BTreeMap<(usize, String, EntityId, ResourceName), Duration>,
    /// How long the run has taken, for everybody.
    pub(crate) elapsed: Duration,
    /// What was stored when, where the oracle sees every change as it lands.
    pub(crate) history: History,
    /// Grants that are still to be held against the history.
    pub(crate) grants: Vec<Basis>,
    pub(crate) freshness: Freshness,
}

/// How long an entry that was trusted for a time may be lent after it.
pub(crate) fn lent_max(age_max: Duration) -> Duration {
    age_max.min(LENT_MAX)
}

/// A namespace, and a handle to look into it.
type Inspector = (String, Arc<dyn Store>);

/// Shared by everything that takes part in a run.
#[derive(Clone, Default)]
pub(crate) struct Books {
    state: Arc<Mutex<State>>,
    /// Handles of the namespaces, where nothing fails: for looking.
    inspectors: Arc<Mutex<Vec<Inspector>>>,
}

impl Books {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn inspect_with(&self, namespace: &str, store: Arc<dyn Store>) {
        self.inspectors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((namespace.to_owned(), store));
    }

    pub(crate) fn inspectors(&self) -> Vec<Inspector> {
        self.inspectors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a broken promise; the first one counts.
    pub(crate) fn check(&self, verdict: Result<(), Broken>) {
        if let Err(broken) = verdict {
            self.lock().broken.get_or_insert(broken);
        }
    }
}

impl State {
    fn begin(
        &mut self,
        client: usize,
        operation: &'static str,
        asked: Asked,
        now: Option<(TimeMs, Duration)>,
    ) -> CallId {
        if let Asked::Adjust { parts } = &asked {
            let by = self.op.map_or("the settler".to_owned(), |op| format!("op {op}"));
            let parts: Vec<_> = parts.iter().map(|part| (part.plan, &part.changes)).collect();
            self.events.push(format!(
                "    call {} (adjust) of client {client} by {by}: {parts:?}",
                self.calls.len()
            ));
        }
        self.calls.push(Call {
            operation,
            client,
            op: self.op,
            asked,
            now,
            began: self.elapsed,
            told: None,
            told_to: None,
        });
        self.calls.len() - 1
    }

    pub(crate) fn begin_other(&mut self, client: usize, operation: &'static str) -> CallId {
        self.begin(client, operation, Asked::Other, None)
    }

    pub(crate) fn begin_consume(
        &mut self,
        client: usize,
        request: &ConsumeRequest<'_>,
        began: Duration,
    ) -> CallId {
        let members: Vec<PlannedMember> = request
            .members
            .iter()
            .map(|member| PlannedMember {
                entity: member.entity.clone(),
                limits: member.limits.limits.iter().map(|limit| limit.name().to_string()).collect(),
                takes: member
                    .takes
                    .iter()
                    .map(|take| {
                        (
                            member.limits.limits[usize::from(take.limit)].name().to_string(),
                            i128::from(take.amount.0),
                        )
                    })
                    .collect(),
                in_force: member.limits.clone(),
            })
            .collect();
        let call =
            self.begin(client, "consume", Asked::Consume { members }, Some((request.now, began)));
        self.takes.insert(request.operation, call);
        call
    }

    pub(crate) fn begin_adjust(
        &mut self,
        client: usize,
        deltas: &[BucketDelta<'_>],
        now: (TimeMs, Duration),
    ) -> CallId {
        let mut parts = Vec::new();
        for delta in deltas {
            let Some(&plan) = self.takes.get(&delta.take) else {
                self.broken
                    .get_or_insert(format!("an adjustment of {} belongs to no take", delta.entity));
                continue;
            };
            let change = |change: &zae_limiter_store::Delta| Change {
                entity: delta.entity.clone(),
                limit: delta.limits.limits[usize::from(change.limit)].name().to_string(),
                milli: i128::from(change.amount.0),
            };
            parts.push(Part {
                plan,
                place: i64::from(delta.place),
                receipt: delta.limits.clone(),
                changes: delta.deltas.iter().map(change).collect(),
                landed: false,
            });
        }
        self.begin(client, "adjust", Asked::Adjust { parts }, Some(now))
    }

    pub(crate) fn tell(&mut self, call: CallId, told: Told) {
        let op = self.op;
        let asked = &self.calls[call];
        let is_news = match &told {
            Told::Fine | Told::Decision(_) => asked.op != op,
            Told::Adjusted(_) | Told::Failed(_) => true,
        };
        if is_news {
            let to = op.map_or("the settler".to_owned(), |op| format!("op {op}"));
            self.events.push(format!(
                "    call {call} ({}) of client {}: {to} is told {told:?}",
                asked.operation, asked.client
            ));
        }
        let call = &mut self.calls[call];
        call.told = Some(told);
        call.told_to = op;
    }

    /// What a take really did.
    pub(crate) fn landed_consume(&mut self, outcome: &ConsumeOutcome) {
        if let (Some(call), ConsumeOutcome::Granted(_)) = (self.call, outcome) {
            self.landings.push((call, None));
        }
    }

    /// An adjustment of one bucket was carried out.
    pub(crate) fn landed_adjust(&mut self, index: usize) {
        if let Some(Asked::Adjust { parts }) = self.call.map(|call| &mut self.calls[call].asked)
            && let Some(part) = parts.get_mut(index)
        {
            part.landed = true;
            self.landings.extend(self.call.map(|call| (call, Some(index))));
        }
    }

    /// A change may have landed: what is stored now goes into the history.
    pub(crate) fn remember_config(&mut self, namespace: &str) {
        let State { oracle, history, elapsed, .. } = self;
        if let Some(config) = oracle.config(namespace) {
            history.note(namespace, *elapsed, config);
        }
    }

    /// A take was granted to a client that trusts what it has read for `age_max`, lent time
    /// included.
    pub(crate) fn granted(
        &mut self,
        (client, namespace): (usize, &str),
        request: &ConsumeRequest<'_>,
        age: Age,
        began: Duration,
    ) {
        let Some(first) = request.members.first() else { return };
        let members = request
            .members
            .iter()
            .map(|member| (member.entity.clone(), member.limits.clone()))
            .collect();
        let since = began.saturating_sub(age.max);
        let (namespace, resource) = (namespace.to_owned(), first.resource.clone());
        self.grants.push(Basis {
            client,
            namespace,
            since,
            resource,
            members,
            is_chain: true,
            is_one_look: age.is_one,
        });
    }

    /// Notes when a client read what. Of two reads that found the same, the one that began later
    /// counts, whichever was answered first.
    pub(crate) fn read(
        &mut self,
        client: usize,
        namespace: &str,
        key: (&EntityId, &ResourceName),
        stamp: u64,
        at: Duration,
    ) {
        let read = self
            .reads
            .entry((client, namespace.to_owned(), key.0.clone(), key.1.clone(), stamp))
            .or_insert(at);
        *read = at.max(*read);
    }

    /// No operation may act on a configuration that its client had read longer than `age_max`
    /// before it began. On a store that is far away (`lends`) one may, once and for a few seconds,
    /// while the configuration is read again.
    pub(crate) fn check_age(
        &mut self,
        client: usize,
        namespace: &str,
        request: &ConsumeRequest<'_>,
        age_max: Duration,
        lends: bool,
    ) -> Result<(), Broken> {
        let began = self.op_began;
        for member in request.members {
            let key = (
                client,
                namespace.to_owned(),
                member.entity.clone(),
                member.resource.clone(),
                member.limits.stamp.0,
            );
            match self.reads.get(&key) {
                Some(at) if began.saturating_sub(*at) <= age_max => {}
                Some(at)
                    if lends
                        && began.saturating_sub(*at) < age_max + lent_max(age_max)
                        && self.lent.insert(key.clone()) =>
                {
                    self.freshness.lent += 1;
                }
                Some(at) => {
                    let age = began.saturating_sub(*at);
                    return Err(format!(
                        "client {client} takes from {} by a configuration read {age:?} ago, older than {age_max:?}",
                        key.2
                    ));
                }
                None => {
                    return Err(format!(
                        "client {client} takes from {} by a configuration it never read",
                        key.2
                    ));
                }
            }
        }
        Ok(())
    }

    /// Counts a read of what its client knew before, and has left alone for longer than it may
    /// trust it.
    pub(crate) fn note_idle(
        &mut self,
        client: usize,
        namespace: &str,
        key: (&EntityId, &ResourceName),
        at: Duration,
        age_max: Duration,
    ) {
        let known = (client, namespace.to_owned(), key.0.clone(), key.1.clone());
        let before = self.last_reads.get(&known).copied();
        self.last_reads.insert(known, before.map_or(at, |before| at.max(before)));
        let limit = age_max.saturating_add(lent_max(age_max));
        self.freshness.idle += u64::from(
            !age_max.is_zero() && before.is_some_and(|before| at.saturating_sub(before) > limit),
        );
    }

    pub(crate) fn note_decision(
        &mut self,
        namespace: &str,
        request: &ConsumeRequest<'_>,
        outcome: &ConsumeOutcome,
    ) {
        let asked: Vec<String> = request
            .members
            .iter()
            .map(|member| {
                let take = |take: &zae_limiter_core::Take| {
                    format!("{} {}m", member.limits.limits[usize::from(take.limit)], take.amount.0)
                };
                let takes: Vec<String> = member.takes.iter().map(take).collect();
                format!("{}@{}[{}]", member.entity, member.limits.stamp.0, takes.join(", "))
            })
            .collect();
        let outcome = match outcome {
            ConsumeOutcome::Granted(grant) => {
                format!(
                    "granted, left {:?}",
                    grant.reports.iter().map(|report| report.balance.0).collect::<Vec<_>>()
                )
            }
            ConsumeOutcome::Refused(reports) | ConsumeOutcome::Paced { reports, .. } => {
                let waits: Vec<Wait> = reports.iter().map(|report| report.wait).collect();
                format!("refused {waits:?}")
            }
            other => format!("{other:?}"),
        };
        let resource = request.members.first().map_or("", |member| member.resource.as_str());
        self.note(
            request.now,
            format!("{namespace}/{resource} consume {} -> {outcome}", asked.join(" + ")),
        );
    }

    pub(crate) fn note(&mut self, now: TimeMs, event: String) {
        self.events.push(format!("    landed at {}: {event}", now.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two reads of one client found the same. The one that began first is answered last, and makes
    /// nothing older.
    #[test]
    fn of_two_reads_the_one_that_began_later_counts() {
        let (leaf, gpt): (EntityId, ResourceName) =
            ("leaf".parse().unwrap(), "gpt-4".parse().unwrap());
        let ms = Duration::from_millis;
        let mut state = State::default();
        for at in [ms(48), Duration::ZERO] {
            state.note_idle(1, "default", (&leaf, &gpt), at, ms(10));
            state.read(1, "default", (&leaf, &gpt), 7, at);
        }
        assert_eq!(state.reads.values().copied().collect::<Vec<_>>(), [ms(48)]);
        assert_eq!(state.last_reads.values().copied().collect::<Vec<_>>(), [ms(48)]);
    }
}
