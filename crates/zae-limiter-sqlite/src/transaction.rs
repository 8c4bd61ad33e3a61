//! The buckets of one transaction: each row is read once and written once, however often it changes
//! in between.
//!
//! Decisions are made here, in memory, by the core; SQLite only ever sees the last state. The
//! transaction of a lone caller holds one chain, a batch holds the chains of all its callers.
//!
//! The rows that one transaction leaves behind are those that the next one would read, unless
//! another connection has written in between. SQLite counts such writes for its own cache of pages;
//! while its count stays the same, rows are not read again.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use rusqlite::{Connection, DEFAULT_NAME, FileControl};
use smallvec::SmallVec;
use zae_limiter_core::{
    BucketState, ClosedHour, ConfigStamp, EntityId, Flag, Limit, Report, ResourceName, TimeMs,
};
use zae_limiter_store::chain::{self, HeldChain};
use zae_limiter_store::{
    Adjusted, BucketDelta, ConsumeOutcome, MemberConfig, MemberTake, Order, Provisioned,
};

use crate::config;
use crate::error::{Failure, Outcome, namespace_gone};
use crate::rows::{self, Found, Key};
use crate::usage;

/// Buckets remembered from one transaction to the next, about a megabyte. Beyond that all are
/// forgotten: a process with more buckets in use reads most of them anyway.
const REMEMBERED_MAX: usize = 4_096;

struct Slot {
    hash: u64,
    ns: i64,
    entity: EntityId,
    resource: ResourceName,
    /// `None` while there is no such bucket.
    state: Option<BucketState>,
    /// False when the namespace was not active: nothing may be created in it.
    is_active: bool,
    /// The hour of the row to update, or `None` when there is one to insert.
    stored: Option<u32>,
    dirty: bool,
    /// The stored flag of the key, once it was read.
    flag: Option<Flag>,
}

impl Slot {
    fn is(&self, key: &Key<'_>) -> bool {
        self.ns == key.ns && self.entity == *key.entity && self.resource == *key.resource
    }

    fn key(&self) -> Key<'_> {
        Key { ns: self.ns, entity: &self.entity, resource: &self.resource }
    }
}

/// The buckets that one transaction reads and changes, remembered for the next.
#[derive(Default)]
pub(crate) struct Transaction {
    slots: Vec<Slot>,
    /// The slots to write, each once.
    dirty: Vec<usize>,
    index: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// The namespace that was last looked at, whether it is active, and whether its flags are
    /// spreading.
    namespace: Option<(i64, bool, bool)>,
    /// SQLite's count of changes when all this was true. `None` during a transaction, and after a
    /// transaction that failed, panicked or did other work: then the slots may differ from the
    /// rows.
    version: Option<u32>,
    blob: Vec<u8>,
}

impl Transaction {
    /// To be called when a transaction has begun: forgets the rows that another connection may have
    /// changed. False when none has written since the last transaction here.
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

    /// To be called when a transaction has ended and the slots equal the stored rows.
    pub(crate) fn keep(&mut self, conn: &Connection) {
        self.version = data_version(conn);
    }

    /// To be called when other work uses this connection: SQLite's count does not include it.
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
        chain::consume(&mut self.hold_members(conn, ns, members), members, now)
    }

    /// The answer that a take would get.
    pub(crate) fn peek(
        &mut self,
        conn: &Connection,
        ns: i64,
        members: &[MemberTake<'_>],
        now: TimeMs,
    ) -> Outcome<ConsumeOutcome> {
        chain::peek(&mut self.hold_members(conn, ns, members), members, now)
    }

    /// Charges and gives back after the fact.
    pub(crate) fn adjust(
        &mut self,
        conn: &Connection,
        ns: i64,
        delta: &BucketDelta<'_>,
        now: TimeMs,
    ) -> Outcome<Adjusted> {
        let key = Key { ns, entity: delta.entity, resource: delta.resource };
        let keys = SmallVec::from_iter([key]);
        let places = SmallVec::new();
        chain::adjust(
            &mut Held { transaction: self, conn, keys, places, is_take: false },
            delta,
            now,
        )
    }

    /// Serves a request and lends.
    pub(crate) fn provision(
        &mut self,
        conn: &Connection,
        ns: i64,
        order: &Order<'_>,
        now: TimeMs,
    ) -> Outcome<Provisioned> {
        let key = Key { ns, entity: order.entity, resource: order.resource };
        let (keys, places) = (SmallVec::from_iter([key]), SmallVec::new());
        let mut held = Held { transaction: self, conn, keys, places, is_take: true };
        chain::provision(&mut held, order, now)
    }

    /// Ends a loan.
    pub(crate) fn settle(
        &mut self,
        conn: &Connection,
        key: Key<'_>,
        report: &Report,
        now: TimeMs,
    ) -> Outcome<()> {
        let (keys, places) = (SmallVec::from_iter([key]), SmallVec::new());
        let mut held = Held { transaction: self, conn, keys, places, is_take: false };
        chain::settle(&mut held, report, now)
    }

    fn hold_members<'a>(
        &'a mut self,
        conn: &'a Connection,
        ns: i64,
        members: &[MemberTake<'a>],
    ) -> Held<'a> {
        let key = |take: &MemberTake<'a>| Key { ns, entity: take.entity, resource: take.resource };
        let keys = members.iter().map(key).collect();
        Held { transaction: self, conn, keys, places: SmallVec::new(), is_take: true }
    }

    /// Writes what changed, each row once. Returns how many rows that were.
    pub(crate) fn flush(&mut self, conn: &Connection) -> Outcome<u64> {
        let Transaction { slots, dirty, blob, .. } = self;
        let mut rows = 0;
        // Looked up once for the whole batch.
        let mut update = conn.prepare_cached(rows::UPDATE_IN_HOUR)?;
        for place in dirty.drain(..) {
            let slot = &mut slots[place];
            slot.dirty = false;
            if let Some(state) = &slot.state {
                if slot.stored == Some(state.hour) {
                    rows::write(&mut update, &slot.key(), state, true, blob)?;
                } else {
                    rows::save(conn, &slot.key(), state, slot.stored.is_some(), blob)?;
                }
                slot.stored = Some(state.hour);
                rows += 1;
            }
        }
        Ok(rows)
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
        let (state, is_active) = match self.namespace {
            Some((ns, is_active, spreading)) if ns == key.ns => {
                (rows::find(conn, key, known, spreading)?, is_active)
            }
            _ => {
                let Found { state, is_active, spreading } = rows::load(conn, key, known)?;
                self.namespace = Some((key.ns, is_active, spreading));
                (state, is_active)
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
            is_active,
            stored,
            dirty: false,
            flag: None,
        });
        let slots = &self.slots;
        self.index.insert_unique(hash, place, |&place| slots[place].hash);
        Ok(place)
    }
}

/// The buckets of one chain in the slots of the transaction that decides about them.
struct Held<'a> {
    transaction: &'a mut Transaction,
    conn: &'a Connection,
    /// The key of each member.
    keys: SmallVec<[Key<'a>; 4]>,
    /// The slot of each member that was loaded.
    places: SmallVec<[usize; 4]>,
    /// A take needs an active namespace; an adjustment of a bucket that is there does not.
    is_take: bool,
}

/// Why the bucket of a loaded member exists.
const LOADED: &str = "a bucket that was loaded stays in its slot";

impl Held<'_> {
    fn slot(&self, member: usize) -> &Slot {
        &self.transaction.slots[self.places[member]]
    }

    /// The slot of a member, put on the list of those to write.
    fn slot_to_write(&mut self, member: usize) -> &mut Slot {
        let place = self.places[member];
        let Transaction { slots, dirty, .. } = &mut *self.transaction;
        let slot = &mut slots[place];
        if !std::mem::replace(&mut slot.dirty, true) {
            dirty.push(place);
        }
        slot
    }
}

impl HeldChain for Held<'_> {
    type Error = Failure;

    fn load(&mut self, member: usize, limits: &[Limit]) -> Outcome<Option<&BucketState>> {
        let place = self.transaction.find_or_load(self.conn, &self.keys[member], limits)?;
        self.places.push(place);
        let slot = &self.transaction.slots[place];
        if self.is_take && !slot.is_active {
            Err(namespace_gone())
        } else {
            Ok(slot.state.as_ref())
        }
    }

    fn loaded(&self, member: usize) -> &BucketState {
        self.slot(member).state.as_ref().expect(LOADED)
    }

    fn loaded_mut(&mut self, member: usize) -> &mut BucketState {
        self.slot_to_write(member).state.as_mut().expect(LOADED)
    }

    /// The flag is remembered like a row: after a change of a flag, here or elsewhere, all slots
    /// are read again.
    fn flag(&mut self, member: usize) -> Outcome<Flag> {
        let slot = &mut self.transaction.slots[self.places[member]];
        match slot.flag {
            Some(flag) => Ok(flag),
            None => Ok(*slot.flag.insert(config::flag(self.conn, &self.keys[member])?)),
        }
    }

    fn save(&mut self, member: usize, bucket: BucketState) {
        self.slot_to_write(member).state = Some(bucket);
    }

    fn add_usage(&mut self, member: usize, hour: &ClosedHour) -> Outcome<()> {
        usage::spill(self.conn, &self.slot(member).key(), hour)
    }

    fn configured(&mut self, member: usize) -> Outcome<(MemberConfig, ConfigStamp)> {
        config::resolve_one(self.conn, &self.keys[member])
    }
}

/// SQLite's count of changes, by this connection or any other, as of the transaction that is or was
/// last open.
fn data_version(conn: &Connection) -> Option<u32> {
    let mut version = 0;
    // Without an answer nothing is remembered, which is only slower.
    conn.file_control(DEFAULT_NAME, FileControl::DataVersion(&mut version)).ok().map(|()| version)
}
