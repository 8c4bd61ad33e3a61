//! Taking from one bucket: sends what `debit.rs` chooses until there is an answer.

use std::sync::Arc;

use smallvec::SmallVec;
use zae_limiter_core::{Flag, Limit, LimitSource, Take, TimeMs, Wait, WaitMs, time_to_fill_ms};
use zae_limiter_store::{MemberKey, MemberTake, StoreError};

use crate::DynamoStore;
use crate::admin::entity::Owner;
use crate::bucket::cache::{Quiet, Seen, writes_between};
use crate::bucket::create::{MayCreate, New};
use crate::bucket::debit::{Debit, Known, Step, View};
use crate::bucket::exchange::{Exchange, Heard};
use crate::bucket::gather::is_of_several;
use crate::bucket::image::Image;
use crate::bucket::operation::{Moment, amounts_of, count};
use crate::bucket::reshape::Moved;
use crate::bucket::shard::Standing;
use crate::bucket::tree::Turn;
use crate::bucket::waits::Waits;
use crate::bucket::write::{BucketWrite, Nonce, Purpose, Shape};
use crate::config::{self, Trust, Verdict};
use crate::constants::{
    CONFIG_MARGIN_MS, CONTENDED_WAIT_MS, LEAF_RACES_MAX, OUTDATED_MS, QUIET_PACES,
    QUIET_WRITES_MIN, RACES_MAX, SECOND_LOOK,
};
use crate::records::keys;
use crate::table::Key;

/// What became of a take.
pub(crate) enum Taken {
    /// The amounts are taken.
    Granted(Granted),
    /// A limit is short.
    Refused(Refusal),
    /// The bucket is disabled.
    Blocked(Flag),
    /// The caller's limits are older than the bucket's.
    Stale,
    /// Others were faster, again and again.
    Contended,
    /// Not asked, because another bucket of the chain has refused; the bucket as it is.
    Spared(Arc<Seen>),
    /// The shard is not there. The bucket may well be.
    Gone,
}

/// What was taken from which shards; empty when the bucket is one item.
pub(crate) type Held = Vec<(u32, SmallVec<[Take; 2]>)>;

/// A take that has landed.
pub(crate) struct Granted {
    /// The bucket as it is now, or the shard that was taken from.
    pub(crate) look: Arc<Seen>,
    pub(crate) held: Held,
    /// Whether the take has also brought new limits to the item.
    pub(crate) brings_limits: bool,
}

/// What is asked of a bucket, and what is remembered of it.
pub(crate) struct Asked<'a> {
    pub(crate) member: &'a MemberTake<'a>,
    pub(crate) key: Key,
    pub(crate) seen: Option<Arc<Seen>>,
    /// Which shard it is, as long as nothing was seen of it.
    pub(crate) standing: Standing,
    /// Whether it is the bucket of an ancestor of the caller: chains of others hold tokens of it
    /// for a moment.
    pub(crate) is_ancestor: bool,
    /// Whether another bucket of the chain has refused: this one was read just now, and is only
    /// brought up to date.
    pub(crate) is_spared: bool,
}

/// A bucket that was short, and when.
pub(crate) struct Refusal {
    pub(crate) look: Arc<Seen>,
    pub(crate) at: TimeMs,
    /// The waits of a bucket with several shards.
    pub(crate) waits: Waits,
}

impl DynamoStore {
    /// What a take begins with.
    pub(crate) fn asked<'a>(&self, member: &'a MemberTake<'a>) -> Asked<'a> {
        let key = keys::bucket(&self.id, member.entity, member.resource, 0);
        let seen = self.recall(&key);
        let standing = Standing::ALONE;
        Asked { member, key, seen, standing, is_ancestor: false, is_spared: false }
    }

    /// Takes from one bucket, whatever shards it has.
    pub(crate) async fn take(
        &self,
        asked: &Asked<'_>,
        moment: Moment,
    ) -> Result<Taken, StoreError> {
        if !asked.seen.as_deref().is_some_and(is_of_several) {
            let (taken, is_ambiguous) = match self.take_from(asked, moment).await {
                Ok(answer) => answer,
                // Whatever this shard could not take is asked of the others below.
                Err(error) if self.has_other_shards(asked, &error, moment).await => {
                    (Taken::Gone, false)
                }
                Err(error) => return Err(error),
            };
            // The bucket may have been split since: one shard proves nothing about the others.
            let is_part = match &taken {
                Taken::Refused(refusal) => is_of_several(&refusal.look),
                Taken::Contended => self.recall(&asked.key).as_deref().is_some_and(is_of_several),
                Taken::Gone => true,
                _ => false,
            };
            match taken {
                Taken::Refused(_) if is_part && is_ambiguous => return Ok(Taken::Contended),
                taken if !is_part || is_ambiguous => {
                    if brings_limits_to_a_shard(&taken) {
                        Box::pin(self.bring_limits_to_shards(asked, moment)).await;
                    }
                    return Ok(taken);
                }
                _ => {}
            }
        }
        let taken = Box::pin(self.take_from_shards(asked, moment)).await?;
        if brings_limits_to_a_shard(&taken) {
            Box::pin(self.bring_limits_to_shards(asked, moment)).await;
        }
        Ok(taken)
    }

    /// Takes from one item, and whether an attempt may have landed that was not answered.
    pub(crate) async fn take_from(
        &self,
        asked: &Asked<'_>,
        moment: Moment,
    ) -> Result<(Taken, bool), StoreError> {
        let nonce = self.nonce();
        let mut take = OneTake::new(self, asked, &nonce, moment);
        let taken = take.until_answered().await;
        let is_granted = matches!(taken, Ok(Taken::Granted(_)));
        if take.exchange.is_ambiguous && !is_granted {
            // An earlier attempt may have landed without an answer.
            count(&self.shared.caches.tally.debits_unknown);
        }
        let taken = taken.map_err(|error| take.exchange.doubt(error))?;
        Ok((taken, take.exchange.is_ambiguous && !is_granted))
    }

    /// Gives back what landed too late to be granted.
    pub(crate) async fn take_back(&self, member: &MemberTake<'_>, held: &Held, moment: Moment) {
        if let Err(error) = self.give_back(member, held, moment).await {
            count(&self.shared.caches.tally.credits_lost);
            tracing::warn!(%error, "what landed too late to be granted could not be given back");
        }
    }

    /// Whether a bucket that turns out to be short is looked at once more.
    pub(crate) fn second_look(&self, asked: &Asked<'_>, now: TimeMs) -> SecondLook {
        let is_lately =
            |look: &Seen| now.since(look.at) < 2 * self.shared.options.rejection_cache_ttl_ms;
        let is_confirmed =
            asked.seen.as_deref().is_some_and(|look| look.is_confirmed() && is_lately(look));
        if asked.is_ancestor && !is_confirmed { SecondLook::Needed } else { SecondLook::Spared }
    }

    /// About two round trips, by what this operation has taken so far: for so long a refused chain
    /// holds what it took.
    pub(crate) async fn wait_for_second_look(&self, moment: Moment) {
        let passed = self.shared.options.clock.monotonic().saturating_sub(moment.started);
        self.shared.options.clock.sleep((2 * passed).clamp(SECOND_LOOK.0, SECOND_LOOK.1)).await;
    }

    /// Where many others have taken what the bucket regained since the last look, a refused caller
    /// would be told to come back within moments, and the crowd would have drained the bucket again
    /// by then. So the refusal holds for some times as long as the bucket needs for what the crowd
    /// took, drawn at random: see [`QUIET_PACES`]. The waits told are as long.
    fn keep_quiet(&self, debit: &Debit<'_>, before: Option<&Seen>, look: &Seen, at: TimeMs) {
        let (Some(before), Some(image)) = (before, &look.image) else { return };
        let Some(old) = &before.image else { return };
        if writes_between(before, look) < QUIET_WRITES_MIN {
            return;
        }
        let since_ms = look.at.0.saturating_sub(before.at.0);
        let (mut pace_ms, mut wait_ms, mut short) = (0, 0, SmallVec::new());
        let mut held_max_ms = self.shared.options.rejection_cache_ttl_ms;
        for (limit, amount) in debit.short(image, at) {
            let (Some(was), Some(is)) = (old.limit(limit.name()), image.limit(limit.name())) else {
                continue;
            };
            let regained_ms = is.effective.time_to_gain_ms(is.used.saturating_sub(was.used).0);
            pace_ms = regained_ms.min(since_ms).max(pace_ms);
            let lacks =
                amount.saturating_sub(image.balance_at(limit.name(), at).unwrap_or_default());
            wait_ms = is.effective.time_to_gain_ms(lacks.0).max(wait_ms);
            held_max_ms = held_max_ms.min(time_to_fill_ms(is.effective));
            short.push((limit.name().clone(), amount));
        }
        let pace_ms = u64::try_from(pace_ms).unwrap_or(0);
        if pace_ms == 0 {
            return;
        }
        let drawn =
            self.shared.options.entropy.next_u64() % (pace_ms * (QUIET_PACES.1 - QUIET_PACES.0));
        let held_ms = i64::try_from(pace_ms * QUIET_PACES.0 + drawn).unwrap_or(i64::MAX);
        look.keep_quiet(Quiet {
            until: look.at.plus_ms(wait_ms.saturating_add(held_ms).min(held_max_ms)),
            short,
        });
    }

    /// Reads the configuration of a member again, after its bucket was seen.
    pub(crate) async fn reread(&self, member: &MemberTake<'_>) -> Result<Verdict, StoreError> {
        Ok(self.member(member, Trust::NOTHING).await?.verdict_on(member))
    }

    /// True when the caller's limits may replace the bucket's.
    pub(crate) async fn is_up_to_date(
        &self,
        member: &MemberTake<'_>,
        look: &Seen,
        image: &Image,
    ) -> Result<bool, StoreError> {
        Ok(knows_more(member, look, image) || matches!(self.reread(member).await?, Verdict::Same))
    }

    /// The flag that a bucket of this member would be made with.
    pub(crate) async fn configured_flag(
        &self,
        member: &MemberTake<'_>,
    ) -> Result<Flag, StoreError> {
        Ok(self.member(member, Trust::NOTHING).await?.flag())
    }

    pub(crate) async fn member(
        &self,
        member: &MemberTake<'_>,
        trust: Trust,
    ) -> Result<config::Member, StoreError> {
        let key = MemberKey { entity: member.entity, resource: member.resource };
        Ok(self.members(&[key], trust, "resolve").await?.members.remove(0))
    }

    pub(crate) fn short_wait(&self) -> Wait {
        Wait::After(WaitMs::at_least_one(
            CONTENDED_WAIT_MS + self.shared.options.entropy.next_u64() % CONTENDED_WAIT_MS,
        ))
    }
}

/// A take from one bucket on its way.
struct OneTake<'a> {
    store: &'a DynamoStore,
    asked: &'a Asked<'a>,
    nonce: &'a Nonce,
    moment: Moment,
    exchange: Exchange<'a>,
    /// The caller's limits were read again and are those of the bucket.
    is_proven: bool,
    /// Whose bucket it will be, once that was read.
    owner: Option<Option<Arc<Owner>>>,
    /// When the request began, or its second look. After a lost race a bucket counts as short if it
    /// was short at any instant since: another caller may be faster again at the next instant.
    asked_at: TimeMs,
    /// The instant of the last choice, and so that of a refusal: a moment later the amounts might
    /// pass.
    judged_at: TimeMs,
    second_look: SecondLook,
}

/// What a take does next.
enum Next {
    Send(BucketWrite),
    Answer(Taken),
    /// Something new is known: choose again.
    Choose,
    GiveUp,
}

impl<'a> OneTake<'a> {
    fn new(
        store: &'a DynamoStore,
        asked: &'a Asked<'a>,
        nonce: &'a Nonce,
        moment: Moment,
    ) -> OneTake<'a> {
        let exchange = Exchange::new(store, "consume", &asked.key, moment, asked.seen.clone())
            .with_nonce(nonce);
        let asked_at = exchange.now();
        let second_look = store.second_look(asked, asked_at);
        OneTake {
            store,
            asked,
            nonce,
            moment,
            exchange,
            is_proven: false,
            owner: None,
            asked_at,
            judged_at: asked_at,
            second_look,
        }
    }

    async fn until_answered(&mut self) -> Result<Taken, StoreError> {
        if !self.store.shared.options.speculative {
            self.exchange.look().await?;
        }
        self.exchange.is_fresh |= self.asked.is_spared;
        while self.exchange.races < self.races_max() {
            if self.exchange.races + self.exchange.unanswered > 0 {
                // The machine may have slept since the last attempt.
                let time = self.store.shared.ask_the_time().await;
                time.map_err(|error| error.during("consume"))?;
            }
            let next = match self.choose()? {
                Step::Take(write) | Step::Prepare(write) => Next::Send(write),
                Step::Create => Box::pin(self.create()).await?,
                Step::Refuse => Box::pin(self.refuse()).await?,
                Step::Blocked(flag) => Box::pin(self.blocked(flag)).await?,
                Step::Reread => Box::pin(self.reread()).await?,
                Step::Nothing => Next::Answer(Taken::Spared(self.last_look()?)),
                Step::Contended => Box::pin(self.split_and_choose()).await?,
            };
            let next = match next {
                Next::Send(write) => self.send(write).await?,
                next => next,
            };
            match next {
                Next::Answer(taken) => return Ok(taken),
                Next::GiveUp => break,
                Next::Choose | Next::Send(_) => {}
            }
        }
        if !self.may_leave() {
            count(&self.store.shared.caches.tally.contended);
        }
        Ok(Taken::Contended)
    }

    /// One of several shards is left for another one sooner: the others may have what is asked
    /// without a fight.
    fn races_max(&self) -> u32 {
        if self.may_leave() { LEAF_RACES_MAX } else { RACES_MAX }
    }

    /// Whether another shard can be asked instead. A pinned limit is nowhere else, and what may
    /// have landed here must not be taken elsewhere.
    fn may_leave(&self) -> bool {
        let is_one_of_several = |image: &Image| {
            let is_pinned = |limit: &Limit| image.standing.is_pinned(limit.name());
            let debit = Debit::of(self.asked);
            !image.standing.is_alone() && !debit.wanted().any(|(limit, _)| is_pinned(limit))
        };
        !self.asked.is_spared
            && !self.exchange.is_ambiguous
            && self.exchange.image().is_some_and(is_one_of_several)
    }

    /// The next step, by what is known now.
    fn choose(&mut self) -> Result<Step, StoreError> {
        let debit = Debit {
            nonce: Some(self.nonce),
            grace_ms: self.store.shared.options.fast_grace_ms,
            cost: self.exchange.cost(),
            ..Debit::of(self.asked)
        };
        let now = self.exchange.now();
        let raced = self.exchange.image().filter(|_| self.exchange.races > 0);
        self.judged_at = raced.map_or(now, |image| image.refilled_at.max(self.asked_at).min(now));
        debit.plan(self.view(now), now)
    }

    /// What the take goes by.
    fn view(&self, now: TimeMs) -> View<'_> {
        let Some(look) = self.exchange.seen.as_deref() else { return View::Unknown };
        let is_fresh = self.exchange.is_fresh;
        let is_recent = is_fresh || self.store.is_recent(look, now);
        let Some(image) = &look.image else {
            return if is_recent { View::Absent } else { View::Unknown };
        };
        // The image may show what a refused chain holds for a moment.
        let is_doubted = self.second_look == SecondLook::Now;
        let may_refuse = !is_doubted && (is_fresh || self.asked.may_refuse(look));
        // Without a grace there is no bound that a crowd could name.
        let is_outdated = !is_fresh
            && look.is_crowded
            && now.since(look.at) > OUTDATED_MS
            && self.store.shared.options.fast_grace_ms > 0;
        View::Known(Known {
            image,
            is_trusted: is_recent && (image.flag.blocks() || may_refuse),
            may_sync: self.is_proven || knows_more(self.asked.member, look, image),
            is_crowded: look.is_crowded,
            is_outdated,
            judged_at: self.judged_at,
        })
    }

    async fn send(&mut self, write: BucketWrite) -> Result<Next, StoreError> {
        let creates = matches!(write.shape, Shape::Make(_));
        let limits = &self.asked.member.limits.limits;
        let brings_limits = self.exchange.image().is_some_and(|image| !image.carries(limits));
        match self.exchange.send(write).await? {
            Heard::AlreadyOurs(look) if self.exchange.is_overdue() => {
                let held = self.held(&look);
                Box::pin(self.store.take_back(self.asked.member, &held, self.moment)).await;
                return Ok(Next::GiveUp);
            }
            Heard::Landed(look) | Heard::AlreadyOurs(look) => {
                let undone = match creates {
                    true => Box::pin(self.created()).await?,
                    false => None,
                };
                let held = self.held(&look);
                let granted = Taken::Granted(Granted { look, held, brings_limits });
                return Ok(Next::Answer(undone.unwrap_or(granted)));
            }
            // The proof was about the image before.
            Heard::Prepared => self.is_proven = false,
            Heard::Lost => {
                self.is_proven = false;
                if self.second_look == SecondLook::Now {
                    self.second_look = SecondLook::Done;
                }
            }
            Heard::Again => {}
        }
        Ok(Next::Choose)
    }

    /// The bucket is not there. The configuration is read first: a bucket that is disabled at this
    /// moment must not be made enabled.
    async fn create(&mut self) -> Result<Next, StoreError> {
        let member = self.asked.member;
        if self.asked.standing.shard > 0 {
            // Only shard 0 is made by a take; the others by the split of their donor.
            return Ok(Next::Answer(Taken::Gone));
        }
        if self.owner.is_none() {
            match self.store.may_create(member).await? {
                MayCreate::Yes(found) => self.owner = Some(found),
                MayCreate::Blocked(flag) => return Ok(Next::Answer(Taken::Blocked(flag))),
                MayCreate::Stale => return Ok(Next::Answer(Taken::Stale)),
            }
        }
        let bucket = New {
            owner: self.owner.as_ref().and_then(|owner| owner.as_ref()),
            limits: member.limits,
            // A bucket that is to be split at its birth is taken from afterwards.
            amounts: &amounts_of(member, |_| self.store.shared.options.born_split == 1),
            flag: Flag::Enabled,
            nonce: self.nonce,
            // Reading took time: the bucket is full as of now, not as of then.
            now: self.exchange.now(),
        };
        let key = MemberKey { entity: member.entity, resource: member.resource };
        Ok(Next::Send(self.store.create(Purpose::Take, key, bucket)))
    }

    /// A limit is short. An ancestor's is looked at once more; a look of this very operation is
    /// kept as one that refused.
    async fn refuse(&mut self) -> Result<Next, StoreError> {
        if self.second_look == SecondLook::Needed && self.exchange.is_fresh {
            self.second_look = SecondLook::Now;
            self.store.wait_for_second_look(self.moment).await;
            self.asked_at = self.exchange.now();
            return Ok(Next::Choose);
        }
        if !self.exchange.is_fresh && self.exchange.unanswered == 0 {
            count(&self.store.shared.caches.tally.local_refusals);
        }
        let (look, at) = (self.last_look()?, self.judged_at);
        if self.exchange.is_fresh {
            look.refuse(self.asked.is_ancestor);
            let debit = Debit::of(self.asked);
            self.store.keep_quiet(&debit, self.asked.seen.as_deref(), &look, at);
        }
        Ok(Next::Answer(Taken::Refused(Refusal { look, at, waits: Waits::new() })))
    }

    /// The bucket says that it is disabled. From memory that is just passed on; an operation that
    /// has asked the bucket also asks the configuration, which is what counts.
    async fn blocked(&mut self, flag: Flag) -> Result<Next, StoreError> {
        let Asked { member, key, .. } = self.asked;
        let image = self.exchange.image().filter(|_| self.exchange.is_fresh);
        let Some(image) = image else { return Ok(Next::Answer(Taken::Blocked(flag))) };
        let flag = self.store.reconcile_flag(member, key, image).await?;
        if flag.blocks() {
            return Ok(Next::Answer(Taken::Blocked(flag)));
        }
        self.exchange.look().await?;
        self.exchange.races += 1;
        Ok(Next::Choose)
    }

    /// The bucket has other limits than the caller: the configuration decides which are right.
    async fn reread(&mut self) -> Result<Next, StoreError> {
        Ok(match self.store.reread(self.asked.member).await? {
            Verdict::Same => {
                self.is_proven = true;
                Next::Choose
            }
            Verdict::Different => Next::Answer(Taken::Stale),
            Verdict::Blocked(flag) => Next::Answer(Taken::Blocked(flag)),
        })
    }

    fn last_look(&self) -> Result<Arc<Seen>, StoreError> {
        match &self.exchange.seen {
            Some(look) => Ok(Arc::clone(look)),
            None => self.store.note(&self.asked.key, None, self.moment),
        }
    }

    /// What a landed take holds where, if the bucket has several shards.
    fn held(&self, look: &Seen) -> Held {
        let standing = look.image.as_ref().map_or(&self.asked.standing, |image| &image.standing);
        match standing.is_alone() {
            true => Held::new(),
            false => vec![(standing.shard, self.asked.member.takes.iter().copied().collect())],
        }
    }

    /// A bucket was made: the configuration is looked at once more.
    async fn created(&self) -> Result<Option<Taken>, StoreError> {
        let Asked { member, key, .. } = self.asked;
        let undone = self.store.confirm_created(member, key, self.moment).await?;
        if undone.is_none() && self.store.shared.options.born_split > 1 {
            self.store.split_at_birth(key, self.moment).await?;
            return Ok(Some(Taken::Gone));
        }
        Ok(undone)
    }

    /// The item takes no more writes, and has what is asked: it is split, by one caller of the
    /// process.
    async fn split_and_choose(&mut self) -> Result<Next, StoreError> {
        let Some(look) = self.exchange.seen.clone() else { return Ok(Next::GiveUp) };
        let shards_max = i64::from(self.store.shared.options.shards_max);
        let may_split = look.image.as_ref().is_some_and(|image| image.standing.count < shards_max);
        let Some(_turn) = Turn::of(&look.own.is_parting).filter(|_| may_split) else {
            return Ok(Next::GiveUp);
        };
        if self.store.split(&self.asked.key, self.moment).await? != Moved::Done {
            return Ok(Next::GiveUp);
        }
        self.exchange.look().await?;
        // What was lost on the whole item does not count on its half; there are few halves.
        self.exchange.races = 1;
        Ok(Next::Choose)
    }
}

/// Whether a take has changed the limits of one of several shards.
fn brings_limits_to_a_shard(taken: &Taken) -> bool {
    matches!(taken, Taken::Granted(granted) if granted.brings_limits && is_of_several(&granted.look))
}

/// An ancestor that is short is looked at twice before it refuses: a chain that is refused
/// elsewhere may hold its tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecondLook {
    /// Not an ancestor, or its last refusal was confirmed a moment ago.
    Spared,
    Needed,
    Now,
    Done,
}

impl Asked<'_> {
    /// Whether an image of a moment ago may refuse without a write.
    pub(crate) fn may_refuse(&self, look: &Seen) -> bool {
        !self.is_ancestor || look.is_confirmed()
    }
}

/// True when the member's limits were read after its bucket's parameters were seen, or clearly
/// later than what justified them.
pub(crate) fn knows_more(member: &MemberTake<'_>, look: &Seen, image: &Image) -> bool {
    let limits = member.limits;
    let read_at_ms = i64::try_from(limits.stamp.0 / 1000).unwrap_or(i64::MAX);
    limits.source == LimitSource::Call
        || limits.stamp.0 > look.parameters_since
        || read_at_ms >= image.config_read_at.unwrap_or(0).saturating_add(CONFIG_MARGIN_MS)
}
