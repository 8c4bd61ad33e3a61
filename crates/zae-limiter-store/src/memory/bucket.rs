//! Takes, adjustments and views of buckets.

use std::borrow::Cow;
use std::collections::BTreeMap;

use smallvec::SmallVec;
use zae_limiter_core::{
    AuditAction, AuditSubject, BucketState, ConfigStamp, Decision, EntityId, LimitName, Member,
    Milli, Reports, ResourceName, TimeMs, Wait, assess, check_limits, decide,
};

use super::config::resolve_member;
use super::directory::{Deed, not_active};
use super::room::{ROOM_ATTEMPTS_MAX, Room, too_contended};
use super::table::{Entry, Key, Locked, Shard, UsageLog};
use super::{MemoryStore, invalid, lazily};
use crate::{
    Adjusted, BoxFuture, BucketDelta, BucketStore, BucketView, Change, ConsumeOutcome,
    ConsumeRequest, Cursor, LimitsInForce, MemberKey, MemberTake, Page, PageRequest, Readiness,
    ResetRequest, StoreError, bring_up_to_date,
};

impl BucketStore for MemoryStore {
    fn consume<'a>(
        &'a self,
        request: &'a ConsumeRequest<'a>,
    ) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        lazily(move || self.consume_now(request))
    }

    fn peek<'a>(
        &'a self,
        request: &'a ConsumeRequest<'a>,
    ) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        lazily(move || self.peek_now(request))
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        lazily(move || deltas.iter().map(|delta| self.adjust_one(delta, now)).collect())
    }

    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Option<Vec<(LimitName, Milli)>>, StoreError>> {
        lazily(move || self.reset_now(request, change))
    }

    fn buckets<'a>(
        &'a self,
        entity: &'a EntityId,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<BucketView>, StoreError>> {
        lazily(move || {
            Ok(self.list(page, |entry| {
                (entry.entity() == entity.as_str()).then(|| entry.scope.resource.as_str())
            }))
        })
    }

    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<BucketView>, StoreError>> {
        lazily(move || {
            Ok(self.list(page, |entry| (entry.scope.resource == *resource).then(|| entry.entity())))
        })
    }
}

impl MemoryStore {
    /// [`BucketStore::consume`] without the future. For one existing bucket: one hash, one lock, no
    /// allocation.
    pub fn consume_now(&self, request: &ConsumeRequest<'_>) -> Result<ConsumeOutcome, StoreError> {
        request.check("consume")?;
        if let [member] = request.members
            && !member.is_unlimited()
            && let Some(outcome) = self.consume_existing(member, request.now)?
        {
            return Ok(outcome);
        }
        self.consume_chain(request)
    }

    /// The usual case, made cheap: one member whose bucket is there. `None` when it is not.
    fn consume_existing(
        &self,
        member: &MemberTake<'_>,
        now: TimeMs,
    ) -> Result<Option<ConsumeOutcome>, StoreError> {
        let key = self.key(member.entity, member.resource);
        let mut shard = self.shared.lock_of(&key);
        let Some((entry, usage)) = shard.find_mut(&key) else { return Ok(None) };
        match prepare(&entry.state, member, now) {
            Ok(Plan::Sync(state)) => entry.state = *state,
            Ok(_) => {}
            Err(stop) => return stop.answer(0, "consume").map(Some),
        }
        Ok(Some(self.decide_one(entry, usage, member, now)))
    }

    /// Decides about one bucket that is up to date, and writes what the decision says.
    fn decide_one(
        &self,
        entry: &mut Entry,
        usage: &mut UsageLog,
        member: &MemberTake<'_>,
        now: TimeMs,
    ) -> ConsumeOutcome {
        match decide(&mut [Member { bucket: &mut entry.state, takes: member.takes }], now) {
            Decision::Granted { reports, closed } => {
                entry.state.set_expires_at(expiry(member.limits, now));
                for (_, hour) in closed {
                    usage.add(entry, &hour, self.shared.options.usage_rows_max);
                }
                ConsumeOutcome::Granted(reports)
            }
            Decision::Refused { reports } => ConsumeOutcome::Refused(reports),
        }
    }

    fn consume_chain(&self, request: &ConsumeRequest<'_>) -> Result<ConsumeOutcome, StoreError> {
        let keys = self.keys(request);
        let mut room = Room::none(&self.shared);
        for _ in 0..ROOM_ATTEMPTS_MAX {
            let mut locked = self.shared.lock_all(&keys);
            let plans = match self.plan(&locked, &keys, request) {
                Ok(plans) => plans,
                Err((member, stop)) => return stop.answer(member, "consume"),
            };
            // A table lends one bucket at a time, so a chain is first looked at as a whole and then
            // taken from one by one. With all its shards locked this is one step, and what was
            // enough at the look is enough at the take.
            let reports = look(&locked, &keys, &plans, request);
            if is_refusal(&reports) {
                write_changed_limits(&mut locked, &keys, plans);
                return Ok(ConsumeOutcome::Refused(reports));
            }
            let missing = plans.iter().filter(|plan| matches!(plan, Plan::Create(_))).count();
            if room.reserve(missing) {
                self.take_all(&mut locked, &keys, plans, request, &mut room);
                return Ok(ConsumeOutcome::Granted(after_the_take(reports)));
            }
            // Looking for buckets to forget locks other shards, so ours are let go, and looked at
            // afresh afterwards.
            drop(locked);
            room.evict(missing, request.now, "consume")?;
        }
        Err(too_contended("consume"))
    }

    /// What to do with each bucket of the chain; or which member stops it, and why. Changes
    /// nothing.
    fn plan(
        &self,
        locked: &Locked<'_>,
        keys: &[Key<'_>],
        request: &ConsumeRequest<'_>,
    ) -> Result<Plans, (usize, Stop)> {
        let mut plans = Plans::new();
        for (index, (key, member)) in keys.iter().zip(request.members).enumerate() {
            let plan = match locked.shard(key).find(key) {
                _ if member.is_unlimited() => self.unless_disabled(key),
                Some(entry) => prepare(&entry.state, member, request.now),
                None => match self.new_bucket(key, member.limits, request.now) {
                    Ok(state) if state.disabled => Err(Stop::Disabled),
                    Ok(state) => Ok(Plan::Create(Box::new(state))),
                    Err(error) => Err(Stop::Failed(error)),
                },
            };
            plans.push(plan.map_err(|stop| (index, stop))?);
        }
        Ok(plans)
    }

    /// Takes from every bucket of a chain that was found to have enough, creating those that are
    /// missing.
    fn take_all(
        &self,
        locked: &mut Locked<'_>,
        keys: &[Key<'_>],
        plans: Plans,
        request: &ConsumeRequest<'_>,
        room: &mut Room<'_>,
    ) {
        for ((key, plan), member) in keys.iter().zip(plans).zip(request.members) {
            if matches!(plan, Plan::Unlimited) {
                continue;
            }
            let shard = locked.shard_mut(key);
            if let Plan::Create(state) = plan {
                room.spend();
                shard.insert(key, self.shared.scope(key), *state);
            } else if let Plan::Sync(state) = plan {
                shard.find_mut(key).expect(THERE).0.state = *state;
            }
            let (entry, usage) = shard.find_mut(key).expect(THERE);
            let taken = self.decide_one(entry, usage, member, request.now);
            debug_assert!(
                matches!(taken, ConsumeOutcome::Granted(_)),
                "nothing changes between the look and the take"
            );
        }
    }

    fn peek_now(&self, request: &ConsumeRequest<'_>) -> Result<ConsumeOutcome, StoreError> {
        request.check("peek")?;
        let keys = self.keys(request);
        let locked = self.shared.lock_all(&keys);
        match self.plan(&locked, &keys, request) {
            Ok(plans) => {
                let reports = look(&locked, &keys, &plans, request);
                Ok(if is_refusal(&reports) {
                    ConsumeOutcome::Refused(reports)
                } else {
                    ConsumeOutcome::Granted(reports)
                })
            }
            Err((member, stop)) => stop.answer(member, "peek"),
        }
    }

    pub(super) fn adjust_one(
        &self,
        delta: &BucketDelta<'_>,
        now: TimeMs,
    ) -> Result<Adjusted, StoreError> {
        let limits = &delta.limits.limits;
        if let Some(unknown) =
            delta.deltas.iter().find(|change| usize::from(change.limit) >= limits.len())
        {
            return Err(invalid(
                "adjust",
                format!("limit {} is adjusted, the receipt has {}", unknown.limit, limits.len()),
            ));
        }
        let key = self.key(delta.entity, delta.resource);
        let mut room = Room::none(&self.shared);
        for _ in 0..ROOM_ATTEMPTS_MAX {
            let mut shard = self.shared.lock_of(&key);
            if let Some(entry) = shard.find(&key) {
                for change in delta.deltas {
                    entry.state.check_adjust(
                        &limits[usize::from(change.limit)],
                        change.amount,
                        now,
                    )?;
                }
                self.charge(&mut shard, &key, delta, expiry(delta.limits, now), now);
                return Ok(Adjusted::Applied);
            }
            // Forgotten means it was full: a charge must not be forgotten with it, a refund has
            // nothing to fill.
            if delta.deltas.iter().all(|change| change.amount <= Milli::ZERO) {
                return Ok(Adjusted::Dropped);
            }
            let limits = self.made_again(delta);
            let mut state =
                self.new_bucket(&key, &limits, now).map_err(|error| error.during("adjust"))?;
            state.set_expires_at(expiry(&limits, now));
            if room.reserve(1) {
                room.spend();
                shard.insert(&key, self.shared.scope(&key), state);
                self.charge(&mut shard, &key, delta, expiry(&limits, now), now);
                return Ok(Adjusted::Recreated);
            }
            drop(shard);
            room.evict(1, now, "adjust")?;
        }
        Err(too_contended("adjust"))
    }

    /// Applies every change of one delta to a bucket that is there.
    fn charge(
        &self,
        shard: &mut Shard,
        key: &Key<'_>,
        delta: &BucketDelta<'_>,
        expires_at: Option<TimeMs>,
        now: TimeMs,
    ) {
        let Some((entry, usage)) = shard.find_mut(key) else { return };
        for change in delta.deltas {
            let closed = entry.state.adjust(
                &delta.limits.limits[usize::from(change.limit)],
                change.amount,
                now,
            );
            if let Some(hour) = closed {
                usage.add(entry, &hour, self.shared.options.usage_rows_max);
            }
        }
        if let Some(last) = entry.state.expires_at() {
            entry.state.set_expires_at(expires_at.or(Some(last)));
        }
    }

    /// What a bucket is made again from that a late charge finds forgotten.
    fn made_again<'a>(&self, delta: &BucketDelta<'a>) -> Cow<'a, LimitsInForce> {
        let directory = self.shared.read_directory();
        let config = &directory.tenant(self.number).config;
        let configured =
            resolve_member(config, &MemberKey { entity: delta.entity, resource: delta.resource });
        delta.made_again(configured.limits.as_ref(), ConfigStamp(config.generation))
    }

    fn reset_now(
        &self,
        request: &ResetRequest<'_>,
        change: &Change,
    ) -> Result<Option<Vec<(LimitName, Milli)>>, StoreError> {
        let key = self.key(request.entity, request.resource);
        let mut shard = self.shared.lock_of(&key);
        let mut directory = self.shared.write_directory();
        let tenant = directory.tenant_mut(self.number);
        if !tenant.is_active() {
            return Err(not_active(&self.name, "reset"));
        }
        let Some((entry, _)) = shard.find_mut(&key) else { return Ok(None) };
        let restored = entry.state.reset(request.only, change.at);
        let deed = Deed {
            action: AuditAction::BucketReset,
            subject: AuditSubject::Entity(request.entity.clone()),
            resource: Some(request.resource.clone()),
            details: restored
                .iter()
                .map(|(name, gained)| (name.to_string(), tokens(*gained)))
                .collect(),
        };
        tenant.audit.record(change, deed, self.shared.options.audit_events_max);
        Ok(Some(restored))
    }

    /// The buckets for which `sort_key` has one, in its order. Keeps no more of them in memory than
    /// the page holds.
    fn list(
        &self,
        page: &PageRequest,
        sort_key: impl for<'e> Fn(&'e Entry) -> Option<&'e str>,
    ) -> Page<BucketView> {
        let after = page.cursor().map_or("", |cursor| cursor.0.as_str());
        let size = usize::try_from(page.limit()).unwrap_or(usize::MAX);
        let mut found: BTreeMap<String, BucketView> = BTreeMap::new();
        let mut is_last = true;
        self.shared.each_shard(|shard| {
            for entry in shard.table.iter().filter(|entry| entry.scope.number == self.number) {
                let Some(key) = sort_key(entry).filter(|key| *key > after) else { continue };
                if found.len() < size
                    || found.last_key_value().is_some_and(|(last, _)| key < last.as_str())
                {
                    found.insert(key.to_owned(), entry.view());
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

    /// A bucket that is not there yet, with the flag that is stored for it. The caller holds the
    /// lock of its shard.
    fn new_bucket(
        &self,
        key: &Key<'_>,
        in_force: &LimitsInForce,
        now: TimeMs,
    ) -> Result<BucketState, StoreError> {
        check_limits(&in_force.limits).map_err(|error| invalid("consume", error.to_string()))?;
        let directory = self.shared.read_directory();
        let tenant = directory.tenant(self.number);
        if !tenant.is_open_to_buckets() {
            return Err(not_active(&self.name, "consume"));
        }
        let mut state = BucketState::full(&in_force.limits, in_force.stamp, now);
        state.disabled = tenant.config.disabled_by(key.entity.as_str(), key.resource).is_some();
        Ok(state)
    }

    /// What becomes of a member without limits. Whoever switches it off has written the directory
    /// before it says so.
    fn unless_disabled(&self, key: &Key<'_>) -> Result<Plan, Stop> {
        let directory = self.shared.read_directory();
        match directory.tenant(self.number).config.disabled_by(key.entity.as_str(), key.resource) {
            Some(_) => Err(Stop::Disabled),
            None => Ok(Plan::Unlimited),
        }
    }

    fn keys<'a>(&self, request: &ConsumeRequest<'a>) -> SmallVec<[Key<'a>; 4]> {
        request.members.iter().map(|member| self.key(member.entity, member.resource)).collect()
    }
}

type Plans = SmallVec<[Plan; 4]>;

/// What becomes of one bucket of a chain.
enum Plan {
    /// It is there and fits.
    Use,
    /// It is there under other limits: this is how it continues, granted or not.
    Sync(Box<BucketState>),
    /// It is not there: this is how it begins, if granted.
    Create(Box<BucketState>),
    /// The member has no limits, so there is none.
    Unlimited,
}

/// Why a chain cannot be decided.
enum Stop {
    Stale,
    Disabled,
    Failed(StoreError),
}

impl Stop {
    fn answer(self, member: usize, operation: &'static str) -> Result<ConsumeOutcome, StoreError> {
        match self {
            Stop::Stale => Ok(ConsumeOutcome::Stale { member }),
            Stop::Disabled => Ok(ConsumeOutcome::Disabled { member }),
            Stop::Failed(error) => Err(error.during(operation)),
        }
    }
}

/// What to do with a stored bucket. Does not touch it.
#[inline]
fn prepare(stored: &BucketState, member: &MemberTake<'_>, now: TimeMs) -> Result<Plan, Stop> {
    // The usual case without the copy.
    if !stored.disabled && stored.matches(&member.limits.limits) && !stored.is_far_ahead_of(now) {
        return Ok(Plan::Use);
    }
    prepare_copy(stored, member, now)
}

/// A sync that fails leaves its bucket unusable, so it works on a copy.
#[cold]
fn prepare_copy(stored: &BucketState, member: &MemberTake<'_>, now: TimeMs) -> Result<Plan, Stop> {
    check_limits(&member.limits.limits)
        .map_err(|error| Stop::Failed(invalid("consume", error.to_string())))?;
    let mut copy = Box::new(stored.clone());
    match bring_up_to_date(&mut copy, member, now).map_err(|error| Stop::Failed(error.into()))? {
        Readiness::Ready => Ok(Plan::Use),
        Readiness::Synced => Ok(Plan::Sync(copy)),
        Readiness::Stale => Err(Stop::Stale),
        Readiness::Disabled => Err(Stop::Disabled),
    }
}

fn expiry(in_force: &LimitsInForce, now: TimeMs) -> Option<TimeMs> {
    in_force.ttl_ms.map(|ttl_ms| now.plus_ms(ttl_ms))
}

/// What a decision over the chain would find.
fn look(
    locked: &Locked<'_>,
    keys: &[Key<'_>],
    plans: &Plans,
    request: &ConsumeRequest<'_>,
) -> Reports {
    let none = BucketState::full(&[], ConfigStamp::default(), request.now);
    let states = keys.iter().zip(plans).map(|(key, plan)| match plan {
        Plan::Unlimited => &none,
        Plan::Use => &locked.shard(key).find(key).expect(THERE).state,
        Plan::Sync(state) | Plan::Create(state) => &**state,
    });
    assess(states.zip(request.members.iter().map(|member| member.takes)), request.now)
}

/// All that a refusal writes: or the old rate would go on for as long as requests are refused.
fn write_changed_limits(locked: &mut Locked<'_>, keys: &[Key<'_>], plans: Plans) {
    for (key, plan) in keys.iter().zip(plans) {
        if let Plan::Sync(state) = plan {
            locked.shard_mut(key).find_mut(key).expect(THERE).0.state = *state;
        }
    }
}

fn after_the_take(mut reports: Reports) -> Reports {
    for report in &mut reports {
        report.balance = report.balance.saturating_sub(report.requested);
    }
    reports
}

fn is_refusal(reports: &Reports) -> bool {
    reports.iter().any(|report| report.wait != Wait::None)
}

/// Why a bucket can be counted on.
const THERE: &str = "a bucket that was there stays there while its shard is locked";

/// Millitokens as tokens, exactly.
fn tokens(amount: Milli) -> String {
    let sign = if amount.is_negative() { "-" } else { "" };
    let milli = amount.0.unsigned_abs();
    match milli.rem_euclid(1000) {
        0 => format!("{sign}{}", milli.div_euclid(1000)),
        rest => format!("{sign}{}.{rest:03}", milli.div_euclid(1000)),
    }
}
