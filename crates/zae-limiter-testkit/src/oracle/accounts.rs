//! Lease conservation: what a lease takes is kept, returned or settled, exactly once.
//!
//! The model of a lease says which changes it intends. The audit counts how often each was sent,
//! landed and was answered, and what may differ: a charge of unknown fate is sent again, a credit
//! of unknown fate is not, and whatever is given up is counted by the settler.

use std::collections::{BTreeMap, BTreeSet};

use zae_limiter_core::EntityId;
use zae_limiter_store::{ConsumeOutcome, StoreErrorKind};

use crate::oracle::Broken;
use crate::oracle::books::{Asked, Call, CallId, Change, PlannedMember, State, Told};
use crate::oracle::lease::{Intent, LeaseId};

/// How often the settler sends a change before it gives it up.
const SETTLER_ATTEMPTS: i128 = 6;

/// The first number for leases of takes that no caller got; the number of the call is added.
const ORPHANS: LeaseId = 1 << 40;

/// What all leases of a run intend, and which takes are theirs.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    owners: BTreeMap<CallId, LeaseId>,
    intended: BTreeMap<(LeaseId, Change), u64>,
    clients: BTreeMap<LeaseId, usize>,
    /// Leases that had to give back tokens that were not known to be paid. Each ends exact, or
    /// short by an amount that was counted.
    in_doubt: BTreeSet<LeaseId>,
}

/// How often one intended change was sent, and what became of it.
#[derive(Debug, Default)]
struct Count {
    sent: u64,
    landed: u64,
    fine: u64,
    /// Not applied for certain: must be sent again.
    refused: u64,
    /// Of unknown fate.
    unknown: u64,
}

impl Accounts {
    pub(crate) fn own(&mut self, take: CallId, lease: LeaseId, client: usize) {
        self.owners.insert(take, lease);
        self.clients.insert(lease, client);
    }

    pub(crate) fn intend(&mut self, lease: LeaseId, intent: Intent) {
        for change in intent.changes {
            *self.intended.entry((lease, change)).or_default() += 1;
        }
        if intent.in_doubt {
            self.in_doubt.insert(lease);
        }
    }

    /// Checks every lease. `lost` is what each client's settler says it gave up; clients that
    /// crashed have no say.
    pub(crate) fn audit(
        mut self,
        state: &State,
        lost: &BTreeMap<usize, u64>,
    ) -> Result<(), Broken> {
        let crashed: BTreeSet<usize> = state
            .calls
            .iter()
            .map(|call| call.client)
            .filter(|client| !lost.contains_key(client))
            .collect();
        let mut expected_lost: BTreeMap<usize, u64> =
            lost.keys().map(|client| (*client, 0)).collect();
        self.adopt_orphans(state, &mut expected_lost);
        self.spread(state);
        let counts = self.count(state);
        for (key, count) in &counts {
            let (lease, change) = key;
            let client = self.clients.get(lease).copied().unwrap_or(usize::MAX);
            if crashed.contains(&client) || self.in_doubt.contains(lease) {
                continue;
            }
            let intended = self.intended.get(key).copied().unwrap_or(0);
            let charge = change.milli > 0;
            let failed = count.refused + if charge { count.unknown } else { 0 };
            let again = i128::from(count.sent) - i128::from(intended);
            if again < 0 || again > i128::from(failed) {
                return Err(format!(
                    "lease {lease}: {change:?} was intended {intended} times, and counted {count:?}"
                ));
            }
            // What failed and was not sent again was given up, which takes as many attempts as the
            // settler makes.
            let exhausted = i128::from(failed) - again;
            let tries = exhausted * SETTLER_ATTEMPTS + i128::from(intended) - exhausted;
            if i128::from(count.sent) < tries {
                return Err(format!(
                    "lease {lease}: {change:?} was given up {exhausted} times, too early: {count:?}"
                ));
            }
            // A credit of unknown fate is given up at once.
            let given_up = exhausted + if charge { 0 } else { i128::from(count.unknown) };
            *expected_lost.entry(client).or_default() += u64::try_from(given_up).unwrap_or(0);
        }
        for ((lease, change), intended) in &self.intended {
            let known = counts.contains_key(&(*lease, change.clone()));
            let excused = self.in_doubt.contains(lease)
                || self.clients.get(lease).is_some_and(|client| crashed.contains(client));
            if !known && !excused {
                return Err(format!(
                    "lease {lease}: {change:?} was intended {intended} times and never sent"
                ));
            }
        }
        let doubtful: BTreeSet<usize> =
            self.in_doubt.iter().filter_map(|lease| self.clients.get(lease).copied()).collect();
        let differs = |(client, said): (&usize, &u64)| {
            let expected = expected_lost.get(client).copied().unwrap_or(0);
            if doubtful.contains(client) { *said < expected } else { *said != expected }
        };
        if lost.iter().any(differs) {
            return Err(format!(
                "the settlers say they gave up {lost:?} changes by client, the journal says {expected_lost:?}"
            ));
        }
        self.never_more_back_than_taken(state)
    }

    fn lease_of(&self, take: CallId) -> LeaseId {
        self.owners.get(&take).copied().unwrap_or(ORPHANS + take as LeaseId)
    }

    /// Takes without a lease. A take granted after its caller had gone is given back; a take of
    /// unknown fate stays.
    fn adopt_orphans(&mut self, state: &State, expected_lost: &mut BTreeMap<usize, u64>) {
        for (id, call) in state.calls.iter().enumerate() {
            let Asked::Consume { members } = &call.asked else { continue };
            if self.owners.contains_key(&id) {
                continue;
            }
            let lease = self.lease_of(id);
            self.clients.insert(lease, call.client);
            let is_settlers = call.told_to.is_none();
            match &call.told {
                Some(Told::Decision(ConsumeOutcome::Granted(_))) => {
                    self.intend(lease, Intent { changes: refund(members), in_doubt: false })
                }
                Some(Told::Decision(_)) => {}
                Some(Told::Failed(kind)) if !is_unknown_fate(*kind) => {}
                // The caller was told that the store failed: an outage, not a loss of the
                // settler's.
                Some(_) if !is_settlers => {}
                Some(_) | None => {
                    if let Some(lost) = expected_lost.get_mut(&call.client) {
                        *lost += refund(members).len() as u64;
                    }
                }
            }
        }
    }

    /// What a lease took from several shards of a bucket is settled with each of them, in parts of
    /// what the lease intends: such a lease is held to giving back no more than it took.
    fn spread(&mut self, state: &State) {
        let mut places: BTreeMap<(LeaseId, &EntityId), usize> = BTreeMap::new();
        let mut sharded: BTreeSet<LeaseId> = BTreeSet::new();
        for (take, call) in state.calls.iter().enumerate() {
            let (Asked::Consume { members }, Some(Told::Decision(ConsumeOutcome::Granted(grant)))) =
                (&call.asked, &call.told)
            else {
                continue;
            };
            let lease = self.lease_of(take);
            sharded.extend((!grant.places.is_empty()).then_some(lease));
            for (member, index) in members.iter().zip(0..) {
                let shards = grant.places.iter().filter(|place| place.member == index).count();
                *places.entry((lease, &member.entity)).or_default() += shards.max(1);
            }
        }
        let spread = places.into_iter().filter(|((lease, _), count)| {
            // A second take may be settled with another shard than the first.
            *count > 1 && sharded.contains(lease)
        });
        self.in_doubt.extend(spread.map(|((lease, _), _)| lease));
    }

    fn count(&self, state: &State) -> BTreeMap<(LeaseId, Change), Count> {
        let mut counts: BTreeMap<(LeaseId, Change), Count> = BTreeMap::new();
        for call in &state.calls {
            let Asked::Adjust { parts } = &call.asked else { continue };
            for (index, part) in parts.iter().enumerate() {
                for change in &part.changes {
                    let count =
                        counts.entry((self.lease_of(part.plan), change.clone())).or_default();
                    count.sent += 1;
                    count.landed += u64::from(part.landed);
                    match told_about(call, index) {
                        Some(Ok(())) => count.fine += 1,
                        Some(Err(kind)) if !is_unknown_fate(kind) => count.refused += 1,
                        Some(Err(_)) | None => count.unknown += 1,
                    }
                }
            }
        }
        counts
    }

    /// In the order in which things landed, no lease ever gives back more than it has taken so far:
    /// that would let others take what was never there. Holds for crashed clients too.
    fn never_more_back_than_taken(&self, state: &State) -> Result<(), Broken> {
        let mut net: BTreeMap<(LeaseId, EntityId, String), i128> = BTreeMap::new();
        for (id, part) in &state.landings {
            let (plan, changes): (CallId, Vec<Change>) = match (&state.calls[*id].asked, part) {
                (Asked::Consume { members }, _) => (
                    *id,
                    refund(members).into_iter().map(|c| Change { milli: -c.milli, ..c }).collect(),
                ),
                (Asked::Adjust { parts }, Some(part)) => {
                    (parts[*part].plan, parts[*part].changes.clone())
                }
                _ => continue,
            };
            let lease = self.lease_of(plan);
            for change in changes {
                let sum =
                    net.entry((lease, change.entity.clone(), change.limit.clone())).or_default();
                *sum += change.milli;
                if *sum < 0 {
                    return Err(format!(
                        "lease {lease} gave back {} milli of {} of {} more than it had taken",
                        -*sum, change.limit, change.entity
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether a write that failed so may have been applied all the same.
fn is_unknown_fate(kind: StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::Unavailable | StoreErrorKind::Internal)
}

fn told_about(call: &Call, part: usize) -> Option<Result<(), StoreErrorKind>> {
    match &call.told {
        Some(Told::Adjusted(results)) => results.get(part).copied(),
        _ => None,
    }
}

/// What gives a whole take back.
fn refund(members: &[PlannedMember]) -> Vec<Change> {
    let mut changes = Vec::new();
    for member in members {
        for (limit, milli) in member.takes.iter().filter(|(_, milli)| *milli != 0) {
            changes.push(Change {
                entity: member.entity.clone(),
                limit: limit.clone(),
                milli: -milli,
            });
        }
    }
    changes
}
