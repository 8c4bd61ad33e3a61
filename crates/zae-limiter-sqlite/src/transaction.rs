//! The buckets of one transaction: each row is read once and written once, whatever happens to it
//! in between.
//!
//! Decisions are made here, in memory, by the core; SQLite only ever sees the last state. A lone
//! caller's transaction holds one chain, a batch holds everybody's.
//!
//! What one transaction leaves behind is what the next one would read, unless somebody else has
//! written in between. SQLite counts that for its own cache of pages; as long as its count says
//! nobody has, rows are not read again.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use rusqlite::{Connection, DEFAULT_NAME, FileControl};
use smallvec::SmallVec;
use zae_limiter_core::{
    BucketState, ClosedHour, Decision, EntityId, Limit, Member, ResourceName, TimeMs, check_limits,
    decide,
};
use zae_limiter_store::{
    Adjusted, BucketDelta, ConsumeOutcome, MemberTake, Readiness, StoreError, StoreErrorKind,
    bring_up_to_date,
};

use crate::bucket::{self, Found};
use crate::config;
use crate::error::{Outcome, refused};
use crate::usage;

/// Buckets remembered from one transaction to the next, about a megabyte. Beyond that all are
/// forgotten: whoever has more than these in use reads most of them anyway.
const REMEMBERED_MAX: usize = 4_096;

/// Which bucket.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) ns: i64,
    pub(crate) entity: &'a EntityId,
    pub(crate) resource: &'a ResourceName,
}

struct Slot {
    hash: u64,
    ns: i64,
    entity: EntityId,
    resource: ResourceName,
    /// `None` while there is no such bucket.
    state: Option<BucketState>,
    /// False when the namespace was not active: nothing may be created in it.
    open: bool,
    /// The hour of the row to update, or `None` when there is one to insert.
    stored: Option<u32>,
    dirty: bool,
    /// What the stored flags say of the key, once somebody without limits has asked.
    off: Option<bool>,
}

impl Slot {
    fn is(&self, key: &Key<'_>) -> bool {
        self.ns == key.ns && self.entity == *key.entity && self.resource == *key.resource
    }

    fn key(&self) -> Key<'_> {
        Key { ns: self.ns, entity: &self.entity, resource: &self.resource }
    }
}

/// What is read and changed in one transaction, and remembered for the next.
#[derive(Default)]
pub(crate) struct Working {
    slots: Vec<Slot>,
    /// The slots to write, each once.
    dirty: Vec<usize>,
    index: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// The namespace that was last looked at, whether it is active, and whether its flags are
    /// spreading.
    namespace: Option<(i64, bool, bool)>,
    /// SQLite's count of changes when all this was true. `None` during a transaction, and after one
    /// whose end is not known to be what is in the slots: one that failed, panicked or did
    /// something else.
    version: Option<u32>,
    blob: Vec<u8>,
}

/// A member's bucket on its way through a decision.
enum Prepared {
    /// In its slot, under the caller's limits.
    InPlace,
    /// A copy with new limits: kept even if the decision is a refusal.
    Synced(BucketState),
    /// Not stored yet: kept only if the decision is a grant.
    New(BucketState),
    /// A member without limits: nothing to take from, nothing to keep.
    Unlimited(BucketState),
}

impl Working {
    /// To be called when a transaction has begun: forgets what somebody else may have changed.
    /// False when nobody has written since the last transaction here.
    pub(crate) fn begin(&mut self, conn: &Connection) -> bool {
        let unchanged =
            self.version.take().is_some_and(|version| data_version(conn) == Some(version));
        if !unchanged || self.slots.len() > REMEMBERED_MAX {
            self.slots.clear();
            self.dirty.clear();
            self.index.clear();
            self.namespace = None;
        }
        !unchanged
    }

    /// To be called when a transaction has ended and the slots are what is stored.
    pub(crate) fn keep(&mut self, conn: &Connection) {
        self.version = data_version(conn);
    }

    /// To be called when somebody else uses the connection: SQLite's count does not tell us apart.
    pub(crate) fn forget(&mut self) {
        self.version = None;
    }

    /// True when flags of the namespace that was last looked at are spreading.
    pub(crate) fn is_spreading(&self) -> bool {
        self.namespace.is_some_and(|(_, _, spreading)| spreading)
    }

    /// True when there is something to write.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes from every bucket of the chain or from none.
    pub(crate) fn consume(
        &mut self,
        conn: &Connection,
        ns: i64,
        members: &[MemberTake<'_>],
        now: TimeMs,
    ) -> Outcome<ConsumeOutcome> {
        let mut places: SmallVec<[usize; 4]> = SmallVec::new();
        let mut prepared: SmallVec<[Prepared; 4]> = SmallVec::new();
        for (member, take) in members.iter().enumerate() {
            let key = Key { ns, entity: take.entity, resource: take.resource };
            let place = self.find_or_load(conn, &key, &take.limits.limits)?;
            let slot = &self.slots[place];
            if !slot.open {
                return Err(namespace_gone());
            }
            let ready = match &slot.state {
                _ if take.is_unlimited() => {
                    if self.is_off(conn, &key, place)? {
                        return Ok(ConsumeOutcome::Disabled { member });
                    }
                    Prepared::Unlimited(BucketState::full(&[], take.limits.stamp, now))
                }
                Some(state)
                    if !state.disabled
                        && state.matches(&take.limits.limits)
                        && !state.is_far_ahead_of(now) =>
                {
                    Prepared::InPlace
                }
                Some(state) => {
                    check_limits(&take.limits.limits)
                        .map_err(|error| refused(StoreErrorKind::Invalid, error.to_string()))?;
                    // A copy, because an error or a later member may leave it unusable.
                    let mut copy = state.clone();
                    match bring_up_to_date(&mut copy, take, now).map_err(StoreError::from)? {
                        Readiness::Ready => Prepared::InPlace,
                        Readiness::Synced => Prepared::Synced(copy),
                        Readiness::Stale => return Ok(ConsumeOutcome::Stale { member }),
                        Readiness::Disabled => return Ok(ConsumeOutcome::Disabled { member }),
                    }
                }
                None => {
                    let state = bucket::created(conn, &key, take.limits, now)?;
                    if state.disabled {
                        return Ok(ConsumeOutcome::Disabled { member });
                    }
                    Prepared::New(state)
                }
            };
            places.push(place);
            prepared.push(ready);
        }
        self.decide(conn, members, &places, prepared, now)
    }

    fn decide(
        &mut self,
        conn: &Connection,
        members: &[MemberTake<'_>],
        places: &[usize],
        mut prepared: SmallVec<[Prepared; 4]>,
        now: TimeMs,
    ) -> Outcome<ConsumeOutcome> {
        // The states leave their slots while the core looks at them all at once.
        let mut in_place: SmallVec<[Option<BucketState>; 4]> = SmallVec::new();
        for (ready, &place) in prepared.iter().zip(places) {
            in_place.push(if matches!(ready, Prepared::InPlace) {
                self.slots[place].state.take()
            } else {
                None
            });
        }
        let decision = {
            let mut chain: SmallVec<[Member<'_>; 4]> = SmallVec::new();
            for ((ready, moved), take) in prepared.iter_mut().zip(&mut in_place).zip(members) {
                let bucket = match ready {
                    Prepared::Synced(state) | Prepared::New(state) | Prepared::Unlimited(state) => {
                        state
                    }
                    Prepared::InPlace => {
                        moved.as_mut().expect("a bucket that is ready is in its slot")
                    }
                };
                chain.push(Member { bucket, takes: take.takes });
            }
            decide(&mut chain, now)
        };
        let (outcome, closed, granted) = match decision {
            Decision::Granted { reports, closed } => {
                (ConsumeOutcome::Granted(reports), closed, true)
            }
            Decision::Refused { reports } => (ConsumeOutcome::Refused(reports), Vec::new(), false),
        };
        for (((ready, moved), take), &place) in
            prepared.into_iter().zip(in_place).zip(members).zip(places)
        {
            let slot = &mut self.slots[place];
            let expires_at = take.limits.ttl_ms.map(|ttl_ms| now.plus_ms(ttl_ms));
            let (state, write) = match (ready, moved) {
                (Prepared::Unlimited(_), _) => continue,
                (Prepared::InPlace, moved) => (moved, granted),
                (Prepared::Synced(state), _) => (Some(state), true),
                (Prepared::New(state), _) => (granted.then_some(state), granted),
            };
            slot.state = state;
            if write && let Some(state) = &mut slot.state {
                state.set_expires_at(expires_at);
                mark(&mut self.dirty, slot, place);
            }
        }
        for (member, hour) in closed {
            usage::spill(conn, &self.slots[places[usize::from(member)]].key(), &hour)?;
        }
        Ok(outcome)
    }

    /// Charges and gives back after the fact.
    pub(crate) fn adjust(
        &mut self,
        conn: &Connection,
        ns: i64,
        delta: &BucketDelta<'_>,
        now: TimeMs,
    ) -> Outcome<Adjusted> {
        let receipt = &delta.limits.limits;
        if delta.deltas.iter().any(|change| usize::from(change.limit) >= receipt.len()) {
            let message =
                format!("a change of {} names a limit that is not on its receipt", delta.entity);
            return Err(refused(StoreErrorKind::Invalid, message));
        }
        let key = Key { ns, entity: delta.entity, resource: delta.resource };
        let place = self.find_or_load(conn, &key, receipt)?;
        let slot = &mut self.slots[place];
        if let Some(state) = &slot.state {
            for change in delta.deltas {
                state
                    .check_adjust(&receipt[usize::from(change.limit)], change.amount, now)
                    .map_err(StoreError::from)?;
            }
        }
        let expires_at = delta.limits.ttl_ms.map(|ttl_ms| now.plus_ms(ttl_ms));
        let (mut state, adjusted) = match slot.state.take() {
            Some(mut state) => {
                if state.expires_at().is_some() {
                    state.set_expires_at(expires_at.or(state.expires_at()));
                }
                (state, Adjusted::Applied)
            }
            // Forgotten means it was full: a refund has nothing to fill, a charge must not be
            // forgotten with it.
            None if delta.deltas.iter().all(|change| change.amount.0 <= 0) => {
                return Ok(Adjusted::Dropped);
            }
            None if !slot.open => return Err(namespace_gone()),
            None => {
                let (configured, stamp) = config::resolve_one(conn, &key)?;
                let limits = delta.made_again(configured.limits.as_ref(), stamp);
                let mut state = bucket::created(conn, &key, &limits, now)?;
                state.set_expires_at(limits.ttl_ms.map(|ttl_ms| now.plus_ms(ttl_ms)));
                (state, Adjusted::Recreated)
            }
        };
        let mut closed: SmallVec<[ClosedHour; 1]> = SmallVec::new();
        for change in delta.deltas {
            closed.extend(state.adjust(&receipt[usize::from(change.limit)], change.amount, now));
        }
        slot.state = Some(state);
        mark(&mut self.dirty, slot, place);
        for hour in closed {
            usage::spill(conn, &key, &hour)?;
        }
        Ok(adjusted)
    }

    /// Writes what changed, each row once. Returns how many rows that were.
    pub(crate) fn flush(&mut self, conn: &Connection) -> Outcome<u64> {
        let Working { slots, dirty, blob, .. } = self;
        let mut rows = 0;
        // Looked up once for the whole batch.
        let mut update = conn.prepare_cached(bucket::UPDATE_IN_HOUR)?;
        for place in dirty.drain(..) {
            let slot = &mut slots[place];
            slot.dirty = false;
            if let Some(state) = &slot.state {
                if slot.stored == Some(state.hour) {
                    bucket::write(&mut update, &slot.key(), state, true, blob)?;
                } else {
                    bucket::save(conn, &slot.key(), state, slot.stored.is_some(), blob)?;
                }
                slot.stored = Some(state.hour);
                rows += 1;
            }
        }
        Ok(rows)
    }

    /// Whether the configuration has switched a key off, remembered like its row: whoever writes a
    /// flag here or elsewhere makes all slots be read again.
    fn is_off(&mut self, conn: &Connection, key: &Key<'_>, place: usize) -> Outcome<bool> {
        let slot = &mut self.slots[place];
        match slot.off {
            Some(off) => Ok(off),
            None => Ok(*slot.off.insert(config::is_disabled(conn, key)?)),
        }
    }

    fn find_or_load(
        &mut self,
        conn: &Connection,
        key: &Key<'_>,
        known: &[Limit],
    ) -> Outcome<usize> {
        let hash = self.hasher.hash_one((key.ns, key.entity.as_str(), key.resource.as_str()));
        if let Some(&place) = self.index.find(hash, |&place| self.slots[place].is(key)) {
            return Ok(place);
        }
        let (state, open) = match self.namespace {
            Some((ns, open, spreading)) if ns == key.ns => {
                (bucket::find(conn, key, known, spreading)?, open)
            }
            _ => {
                let Found { state, open, spreading } = bucket::load(conn, key, known)?;
                self.namespace = Some((key.ns, open, spreading));
                (state, open)
            }
        };
        let place = self.slots.len();
        let stored = state.as_ref().map(|state| state.hour);
        let (entity, resource) = (key.entity.clone(), key.resource.clone());
        self.slots.push(Slot {
            hash,
            ns: key.ns,
            entity,
            resource,
            state,
            open,
            stored,
            dirty: false,
            off: None,
        });
        let slots = &self.slots;
        self.index.insert_unique(hash, place, |&place| slots[place].hash);
        Ok(place)
    }
}

/// Puts a slot on the list of those to write.
fn mark(dirty: &mut Vec<usize>, slot: &mut Slot, place: usize) {
    if !std::mem::replace(&mut slot.dirty, true) {
        dirty.push(place);
    }
}

/// SQLite's count of changes, by this connection or any other, as of the transaction that is or was
/// last open.
fn data_version(conn: &Connection) -> Option<u32> {
    let mut version = 0;
    // Without an answer nothing is remembered, which is only slower.
    conn.file_control(DEFAULT_NAME, FileControl::DataVersion(&mut version)).ok().map(|()| version)
}

/// What every operation of a handle says whose namespace was deleted or purged.
pub(crate) fn namespace_gone() -> crate::error::Failure {
    let message = "the namespace of this handle was deleted; recover it, or register it again and open a new handle";
    refused(StoreErrorKind::NotFound, message)
}
