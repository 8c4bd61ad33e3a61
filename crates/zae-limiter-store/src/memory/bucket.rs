//! Takes, adjustments and views of buckets.

use std::borrow::Cow;
use std::collections::BTreeMap;

use smallvec::SmallVec;
use zae_limiter_core::{
    BucketState, ClosedHour, ConfigStamp, Decision, EntityId, Flag, Limit, Member, Report,
    ResourceName, TimeMs, decide,
};

use super::config::resolve_member;
use super::room::{ROOM_ATTEMPTS_MAX, Room, too_contended};
use super::table::{Entry, Key, Locked, UsageLog};
use super::{MemoryStore, lazily};
use crate::chain::{self, HeldChain, Prepared, is_ready, prepare};
use crate::{
    Adjusted, Adopted, Adoption, AtOnce, BoxFuture, BucketDelta, BucketStore, BucketView, Change,
    ConsumeOutcome, ConsumeRequest, Cursor, Grant, MemberConfig, MemberKey, MemberTake, Order,
    Page, PageRequest, Provisioned, ResetRequest, Restored, StoreError, StoreFuture, audit,
};

impl BucketStore for MemoryStore {
    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        lazily(move || self.consume_now(request))
    }

    fn decide_at_once(&self, request: &ConsumeRequest<'_>, grant: &mut Grant) -> AtOnce {
        self.decide_now(request, grant)
    }

    fn peek<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        lazily(move || self.peek_now(request))
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        lazily(move || deltas.iter().map(|delta| self.adjust_one(delta, now)).collect())
    }

    fn provision<'a>(&'a self, order: &'a Order<'a>, now: TimeMs) -> StoreFuture<'a, Provisioned> {
        lazily(move || {
            let key = self.key(order.entity, order.resource);
            self.decide("provision", &[key], now, |chain| chain::provision(chain, order, now))
        })
    }

    fn settle<'a>(
        &'a self,
        entity: &'a EntityId,
        resource: &'a ResourceName,
        report: &'a Report,
        now: TimeMs,
    ) -> StoreFuture<'a, ()> {
        lazily(move || {
            let key = self.key(entity, resource);
            self.decide("settle", &[key], now, |chain| chain::settle(chain, report, now))
        })
    }

    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Option<Restored>> {
        lazily(move || self.reset_now(request, change))
    }

    fn buckets<'a>(
        &'a self,
        entity: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>> {
        lazily(move || {
            Ok(self.list(page, |entry| {
                let resource = || Cow::Borrowed(entry.scope.resource.as_str());
                (entry.entity() == entity.as_str()).then(resource)
            }))
        })
    }

    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>> {
        lazily(move || {
            Ok(self.list(page, |entry| {
                (entry.scope.resource == *resource).then(|| Cow::Borrowed(entry.entity()))
            }))
        })
    }

    fn namespace_buckets<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<BucketView>> {
        // No character of a name sorts before the separator, so texts sort as pairs do.
        let whole = |entry: &Entry| format!("{}#{}", entry.entity(), entry.scope.resource);
        lazily(move || Ok(self.list(page, |entry| Some(Cow::Owned(whole(entry))))))
    }

    fn adopt<'a>(
        &'a self,
        adoption: &'a Adoption<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Vec<Adopted>> {
        lazily(move || self.adopt_now(adoption, change))
    }
}

impl MemoryStore {
    /// [`BucketStore::consume`] without the future. For one existing bucket: one hash, one lock, no
    /// allocation.
    pub fn consume_now(&self, request: &ConsumeRequest<'_>) -> Result<ConsumeOutcome, StoreError> {
        let mut grant = Grant::default();
        match self.decide_now(request, &mut grant) {
            AtOnce::Otherwise(answer) => answer,
            AtOnce::Granted | AtOnce::NotYet => Ok(ConsumeOutcome::Granted(grant)),
        }
    }

    /// The decision; it is always one.
    #[inline]
    fn decide_now(&self, request: &ConsumeRequest<'_>, grant: &mut Grant) -> AtOnce {
        if let Err(error) = request.check("consume") {
            return AtOnce::Otherwise(Err(error));
        }
        if let [member] = request.members
            && !member.is_unlimited()
        {
            match self.decide_existing(member, request.now, grant) {
                AtOnce::NotYet => {}
                decided => return decided,
            }
        }
        let outcome = self.decide("consume", &self.keys(request), request.now, |chain| {
            chain::consume(chain, request.members, request.now)
        });
        match outcome {
            Ok(ConsumeOutcome::Granted(granted)) => {
                *grant = granted;
                AtOnce::Granted
            }
            other => AtOnce::Otherwise(other),
        }
    }

    /// The usual case, made cheap: one member whose bucket is there. `NotYet` when it is not.
    fn decide_existing(&self, member: &MemberTake<'_>, now: TimeMs, grant: &mut Grant) -> AtOnce {
        let key = self.key(member.entity, member.resource);
        let mut shard = self.shared.lock_of(&key);
        let Some((entry, usage)) = shard.find_mut(&key) else { return AtOnce::NotYet };
        let expires_at = member.limits.expiry(now);
        if is_ready(&entry.state, member, now)
            && entry.state.take_at_once(member.takes, now, &mut grant.reports)
        {
            entry.state.set_expires_at(expires_at);
            return AtOnce::Granted;
        }
        match prepare(&entry.state, member, now) {
            Ok(Prepared::Synced(mut state)) => {
                state.set_expires_at(expires_at);
                entry.state = *state;
            }
            Ok(_) => {}
            Err(stop) => return AtOnce::Otherwise(stop.answer(0)),
        }
        match decide(&mut [Member { bucket: &mut entry.state, takes: member.takes }], now) {
            Decision::Granted { reports, closed } => {
                entry.state.set_expires_at(expires_at);
                for (_, hour) in closed {
                    usage.add(entry, &hour, self.shared.options.usage_rows_max);
                }
                grant.reports = reports;
                AtOnce::Granted
            }
            Decision::Refused { reports } => {
                AtOnce::Otherwise(Ok(ConsumeOutcome::Refused(reports)))
            }
        }
    }

    /// Decides over buckets whose shards are locked: one step for all other callers. When there is
    /// no room for a new bucket, others are forgotten and the decision is made afresh.
    #[inline]
    pub(super) fn decide<T>(
        &self,
        operation: &'static str,
        keys: &[Key<'_>],
        now: TimeMs,
        decide: impl Fn(&mut LockedChain<'_, '_>) -> Result<T, Halt>,
    ) -> Result<T, StoreError> {
        let mut room = Room::none(&self.shared);
        for _ in 0..ROOM_ATTEMPTS_MAX {
            let locked = self.shared.lock_all(keys);
            let mut chain = LockedChain { store: self, locked, keys, room: &mut room };
            match decide(&mut chain) {
                Ok(answer) => return Ok(answer),
                Err(Halt::Failed(error)) => return Err(error.during(operation)),
                Err(Halt::NoRoom { buckets }) => {
                    // Looking for buckets to forget locks other shards, so these are let go.
                    drop(chain);
                    room.evict(buckets, now, operation)?;
                }
            }
        }
        Err(too_contended(operation))
    }

    fn peek_now(&self, request: &ConsumeRequest<'_>) -> Result<ConsumeOutcome, StoreError> {
        request.check("peek")?;
        self.decide("peek", &self.keys(request), request.now, |chain| {
            chain::peek(chain, request.members, request.now)
        })
    }

    pub(super) fn adjust_one(
        &self,
        delta: &BucketDelta<'_>,
        now: TimeMs,
    ) -> Result<Adjusted, StoreError> {
        let key = self.key(delta.entity, delta.resource);
        self.decide("adjust", &[key], now, |chain| chain::adjust(chain, delta, now))
    }

    fn reset_now(
        &self,
        request: &ResetRequest<'_>,
        change: &Change,
    ) -> Result<Option<Restored>, StoreError> {
        let key = self.key(request.entity, request.resource);
        let mut shard = self.shared.lock_of(&key);
        let mut directory = self.shared.write_directory();
        let tenant = directory.tenant_mut(self.number);
        if !tenant.is_active() {
            return Err(StoreError::namespace_gone("reset"));
        }
        let Some((entry, _)) = shard.find_mut(&key) else { return Ok(None) };
        let restored = entry.state.reset(request.only, change.at);
        let event = audit::bucket_reset(change, request, &restored);
        tenant.audit.record(event, self.shared.options.audit_events_max);
        Ok(Some(restored))
    }

    /// The buckets for which `sort_key` has one, in its order. Keeps no more of them in memory than
    /// the page holds.
    fn list(
        &self,
        page: &PageRequest,
        sort_key: impl for<'e> Fn(&'e Entry) -> Option<Cow<'e, str>>,
    ) -> Page<BucketView> {
        let after = page.cursor().map_or("", |cursor| cursor.0.as_str());
        let size = usize::try_from(page.limit()).unwrap_or(usize::MAX);
        let mut found: BTreeMap<String, BucketView> = BTreeMap::new();
        let mut is_last = true;
        self.shared.each_shard(|shard| {
            for entry in shard.table.iter().filter(|entry| entry.scope.number == self.number) {
                let Some(key) = sort_key(entry).filter(|key| **key > *after) else { continue };
                if found.len() < size
                    || found.last_key_value().is_some_and(|(last, _)| *key < **last)
                {
                    found.insert(key.into_owned(), entry.view());
                } else {
                    is_last = false;
                }
                if found.len() > size {
                    found.pop_last();
                    is_last = false;
                }
            }
        });
        let next =
            found.last_key_value().filter(|_| !is_last).map(|(last, _)| Cursor(last.clone()));
        Page { items: found.into_values().collect(), next }
    }

    fn keys<'a>(&self, request: &ConsumeRequest<'a>) -> SmallVec<[Key<'a>; 4]> {
        request.members.iter().map(|member| self.key(member.entity, member.resource)).collect()
    }
}

/// The buckets of a chain, with their shards locked.
pub(super) struct LockedChain<'c, 's> {
    store: &'c MemoryStore,
    locked: Locked<'c>,
    keys: &'c [Key<'c>],
    room: &'c mut Room<'s>,
}

/// Why a decision ends early.
pub(super) enum Halt {
    NoRoom { buckets: usize },
    Failed(StoreError),
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Halt {
        Halt::Failed(error)
    }
}

/// Why a bucket can be counted on.
const THERE: &str = "a bucket that was there stays there while its shard is locked";

impl LockedChain<'_, '_> {
    fn entry_mut(&mut self, member: usize) -> (&mut Entry, &mut UsageLog) {
        let key = &self.keys[member];
        self.locked.shard_mut(key).find_mut(key).expect(THERE)
    }
}

impl HeldChain for LockedChain<'_, '_> {
    type Error = Halt;

    fn load(&mut self, member: usize, _: &[Limit]) -> Result<Option<&BucketState>, Halt> {
        let key = &self.keys[member];
        Ok(self.locked.shard(key).find(key).map(|entry| &entry.state))
    }

    fn loaded(&self, member: usize) -> &BucketState {
        let key = &self.keys[member];
        &self.locked.shard(key).find(key).expect(THERE).state
    }

    fn loaded_mut(&mut self, member: usize) -> &mut BucketState {
        &mut self.entry_mut(member).0.state
    }

    /// A caller that disables a member writes the directory before its call returns.
    fn flag(&mut self, member: usize) -> Result<Flag, Halt> {
        let Key { entity, resource, .. } = self.keys[member];
        let directory = self.store.shared.read_directory();
        Ok(directory.tenant(self.store.number).config.flag(entity.as_str(), resource))
    }

    fn check_namespace(&mut self, _: usize) -> Result<(), Halt> {
        let directory = self.store.shared.read_directory();
        match directory.tenant(self.store.number).may_create_buckets() {
            true => Ok(()),
            false => Err(StoreError::namespace_gone("consume").into()),
        }
    }

    fn reserve(&mut self, buckets: usize) -> Result<(), Halt> {
        if self.room.reserve(buckets) { Ok(()) } else { Err(Halt::NoRoom { buckets }) }
    }

    fn save(&mut self, member: usize, bucket: BucketState) {
        let key = &self.keys[member];
        let shard = self.locked.shard_mut(key);
        match shard.find_mut(key) {
            Some((entry, _)) => entry.state = bucket,
            None => {
                self.room.spend();
                shard.insert(key, self.store.shared.scope(key), bucket);
            }
        }
    }

    fn add_usage(&mut self, member: usize, hour: &ClosedHour) -> Result<(), Halt> {
        let rows_max = self.store.shared.options.usage_rows_max;
        let (entry, usage) = self.entry_mut(member);
        usage.add(entry, hour, rows_max);
        Ok(())
    }

    fn configured(&mut self, member: usize) -> Result<(MemberConfig, ConfigStamp), Halt> {
        let Key { entity, resource, .. } = self.keys[member];
        let directory = self.store.shared.read_directory();
        let config = &directory.tenant(self.store.number).config;
        let member = resolve_member(config, &MemberKey { entity, resource });
        Ok((member, ConfigStamp(config.generation)))
    }
}
