//! Taking from one bucket: sends what `debit.rs` chooses until there is an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{LimitSource, Take, TimeMs, Wait, WaitMs, time_to_fill_ms};
use zae_limiter_store::{MemberKey, MemberTake, StoreError};

use crate::DynamoStore;
use crate::bucket::cache::{Quiet, Seen, writes_between};
use crate::bucket::create::{MayCreate, New};
use crate::bucket::debit::{Debit, Step, View};
use crate::bucket::exchange::{Exchange, Heard};
use crate::bucket::image::Image;
use crate::bucket::refill::Amount;
use crate::bucket::write::{Form, Nonce, Purpose};
use crate::config::{self, Trust, Verdict};
use crate::constants::{
    CONFIG_MARGIN_MS, CONTENDED_WAIT_MS, OUTDATED_MS, QUIET_PACES, QUIET_WRITES_MIN,
    REFILL_ATTEMPTS_MAX, SECOND_LOOK,
};
use crate::records::keys;
use crate::table::{Item, Key};

/// What became of a take.
pub(crate) enum Taken {
    /// The amounts are taken; the bucket as it is now.
    Granted(Arc<Seen>),
    /// A limit is short.
    Refused(Refusal),
    /// Switched off.
    Disabled,
    /// The caller's limits are older than the bucket's.
    Stale,
    /// Others were faster, again and again.
    Contended,
    /// Not asked, because another bucket of the chain has refused; the bucket as it is.
    Spared(Arc<Seen>),
}

/// What is asked of a bucket, and what is remembered of it.
pub(crate) struct Asked<'a> {
    pub(crate) member: &'a MemberTake<'a>,
    pub(crate) key: Key,
    pub(crate) seen: Option<Arc<Seen>>,
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
}

/// The time of one operation: the caller's `now`, and what has passed since.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    now: TimeMs,
    started: Duration,
}

impl DynamoStore {
    /// Starts the clock of an operation.
    pub(crate) fn moment(&self, now: TimeMs) -> Moment {
        Moment { now, started: self.shared.options.clock.monotonic() }
    }

    /// What time it is for a write that is sent now. Every attempt takes a fresh one: an old `now`
    /// would let more pass.
    pub(crate) fn now(&self, moment: Moment) -> TimeMs {
        let passed = self.shared.options.clock.monotonic().saturating_sub(moment.started);
        self.shared
            .corrected(moment.now.plus_ms(i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)))
    }

    /// What is remembered of a bucket.
    pub(crate) fn recall(&self, key: &Key) -> Option<Arc<Seen>> {
        self.shared.caches.image(&key.pk)
    }

    /// Recent enough to refuse on, or to believe that a bucket is not there.
    pub(crate) fn is_recent(&self, seen: &Seen, now: TimeMs) -> bool {
        (0..self.shared.options.rejection_cache_ttl_ms).contains(&now.since(seen.at))
    }

    /// What a take begins with.
    pub(crate) fn asked<'a>(&self, member: &'a MemberTake<'a>) -> Asked<'a> {
        let key = keys::bucket(&self.id, member.entity, member.resource, 0);
        let seen = self.recall(&key);
        Asked { member, key, seen, is_ancestor: false, is_spared: false }
    }

    pub(crate) fn note(
        &self,
        key: &Key,
        item: Option<&Item>,
        moment: Moment,
    ) -> Result<Arc<Seen>, StoreError> {
        let before = self.recall(key);
        let known = before.as_ref().and_then(|before| before.image.as_ref());
        let image = item.map(|item| Image::parse_after(item, known)).transpose()?;
        Ok(self.shared.caches.remember(
            &key.pk,
            image,
            before.as_deref(),
            self.now(moment),
            self.shared.wall(),
        ))
    }

    /// What is known of a bucket after a write has landed. Landed is landed: an image that cannot
    /// be read changes nothing about that, and an error would have the write sent again.
    pub(crate) fn note_landed(&self, key: &Key, item: &Item, moment: Moment) -> Arc<Seen> {
        match self.note(key, Some(item), moment) {
            Ok(look) => look,
            Err(error) => {
                tracing::warn!(%error, pk = key.pk, "a write has landed on a bucket that cannot be read");
                self.shared.caches.forget(&key.pk);
                self.shared.caches.unread(self.now(moment), self.shared.wall())
            }
        }
    }

    /// Takes from one bucket.
    pub(crate) async fn take(
        &self,
        asked: &Asked<'_>,
        moment: Moment,
    ) -> Result<Taken, StoreError> {
        let nonce = self.nonce();
        let mut exchange = Exchange::new(self, "consume", &asked.key, moment, asked.seen.clone())
            .with_nonce(&nonce);
        let taken = self.take_until_answered(asked, &nonce, &mut exchange, moment).await;
        if exchange.is_ambiguous && !matches!(taken, Ok(Taken::Granted(_))) {
            // Whatever the last word was, an earlier attempt may have landed unheard.
            count(&self.shared.caches.tally.debits_unknown);
        }
        taken
    }

    async fn take_until_answered(
        &self,
        asked: &Asked<'_>,
        nonce: &Nonce,
        exchange: &mut Exchange<'_>,
        moment: Moment,
    ) -> Result<Taken, StoreError> {
        let Asked { member, key, .. } = asked;
        let mut debit = Debit {
            nonce: Some(nonce),
            grace_ms: self.shared.options.fast_grace_ms,
            ..Debit::of(asked)
        };
        if !self.shared.options.speculative {
            exchange.seen = Some(Box::pin(self.look(key, moment)).await?);
            exchange.is_fresh = true;
        }
        exchange.is_fresh |= asked.is_spared;
        let (mut is_proven, mut owner) = (false, None);
        // A bucket that was short at any instant since was short: by the next one somebody else may
        // have been faster again.
        let mut asked_at = exchange.now();
        let mut second_look = self.second_look(asked, asked_at);
        while exchange.races < REFILL_ATTEMPTS_MAX {
            if exchange.races + exchange.sends > 0 {
                // The machine may have slept since.
                self.shared.ask_the_time().await.map_err(|error| error.during("consume"))?;
            }
            let now = exchange.now();
            debit.units_milli = exchange.units_milli();
            let is_doubted = second_look == SecondLook::Now;
            let judged_at = if exchange.races > 0 {
                exchange.image().map_or(now, |image| image.refilled_at.max(asked_at).min(now))
            } else {
                now
            };
            let view =
                self.view(asked, exchange, Standing { is_proven, is_doubted, judged_at }, now);
            let write = match debit.plan(view, now)? {
                Step::Take(write) | Step::Prepare(write) => write,
                Step::Create => {
                    // A bucket that is made behind the back of an administrator's switch would be
                    // on.
                    if owner.is_none() {
                        match Box::pin(self.may_create(member)).await? {
                            MayCreate::Yes(found) => owner = Some(found),
                            MayCreate::Disabled => return Ok(Taken::Disabled),
                            MayCreate::Stale => return Ok(Taken::Stale),
                        }
                    }
                    let bucket = New {
                        owner: owner.as_ref().and_then(|owner| owner.as_ref()),
                        limits: member.limits,
                        amounts: &amounts_of(member, |_| true),
                        disabled: false,
                        nonce,
                        // Reading took its time: the bucket is full as of now, not as of then.
                        now: exchange.now(),
                    };
                    let key = MemberKey { entity: member.entity, resource: member.resource };
                    self.create(Purpose::Take, key, bucket)
                }
                Step::Refuse => {
                    if second_look == SecondLook::Needed && exchange.is_fresh {
                        second_look = SecondLook::Now;
                        Box::pin(self.wait_for_second_look(moment)).await;
                        asked_at = exchange.now();
                        continue;
                    }
                    let look = self.refuse(asked, &debit, exchange, judged_at)?;
                    return Ok(Taken::Refused(Refusal { look, at: judged_at }));
                }
                Step::Disabled => {
                    // From memory it is just said; whoever has asked the bucket also asks the
                    // configuration, which is what counts.
                    let image = exchange.image().filter(|_| exchange.is_fresh);
                    let Some(image) = image else { return Ok(Taken::Disabled) };
                    if Box::pin(self.is_off_by_configuration(member, key, image)).await? {
                        return Ok(Taken::Disabled);
                    }
                    exchange.seen = Some(Box::pin(self.look(key, moment)).await?);
                    exchange.races += 1;
                    continue;
                }
                Step::Reread => {
                    match Box::pin(self.reread(member)).await? {
                        Verdict::Same => is_proven = true,
                        Verdict::Different => return Ok(Taken::Stale),
                        Verdict::Disabled => return Ok(Taken::Disabled),
                    }
                    continue;
                }
                Step::Nothing => return Ok(Taken::Spared(self.look_of(key, exchange)?)),
                Step::Contended => break,
            };
            let creates = matches!(write.form, Form::Make(_));
            match exchange.send(write).await? {
                Heard::AlreadyOurs(_) if exchange.is_overdue() => {
                    Box::pin(self.take_back(member, moment)).await;
                    break;
                }
                Heard::Landed(look) | Heard::AlreadyOurs(look) => {
                    if creates
                        && let Some(taken) =
                            Box::pin(self.confirm_created(member, key, moment)).await?
                    {
                        return Ok(taken);
                    }
                    return Ok(Taken::Granted(look));
                }
                // What was proven was proven of the image before.
                Heard::Prepared => is_proven = false,
                Heard::Lost => {
                    is_proven = false;
                    if second_look == SecondLook::Now {
                        second_look = SecondLook::Done;
                    }
                }
                Heard::Again => {}
            }
        }
        count(&self.shared.caches.tally.contended);
        Ok(Taken::Contended)
    }

    /// The look that refuses. One of this very operation is kept as such; an ancestor's is the
    /// second of two by now.
    fn refuse(
        &self,
        asked: &Asked<'_>,
        debit: &Debit<'_>,
        exchange: &Exchange<'_>,
        at: TimeMs,
    ) -> Result<Arc<Seen>, StoreError> {
        if !exchange.is_fresh && exchange.sends == 0 {
            count(&self.shared.caches.tally.local_refusals);
        }
        let look = self.look_of(&asked.key, exchange)?;
        if exchange.is_fresh {
            look.refuse(asked.is_ancestor);
            self.keep_quiet(debit, asked.seen.as_deref(), &look, at);
        }
        Ok(look)
    }

    /// The last look of an exchange.
    fn look_of(&self, key: &Key, exchange: &Exchange<'_>) -> Result<Arc<Seen>, StoreError> {
        exchange
            .seen
            .as_ref()
            .map_or_else(|| self.note(key, None, exchange.moment), |look| Ok(Arc::clone(look)))
    }

    /// What a take goes by.
    fn view<'a>(
        &self,
        asked: &Asked<'_>,
        exchange: &'a Exchange<'_>,
        standing: Standing,
        now: TimeMs,
    ) -> View<'a> {
        let Some(look) = exchange.seen.as_deref() else { return View::Unknown };
        let is_recent = exchange.is_fresh || self.is_recent(look, now);
        match &look.image {
            Some(image) => View::Known {
                image,
                is_recent: is_recent
                    && (image.disabled
                        || !standing.is_doubted && (exchange.is_fresh || asked.may_refuse(look))),
                may_sync: standing.is_proven || knows_more(asked.member, look, image),
                is_crowded: look.is_crowded,
                is_outdated: self.is_outdated(exchange, look, now),
                judged_at: standing.judged_at,
            },
            None if is_recent => View::Absent,
            None => View::Unknown,
        }
    }

    /// Whether others have probably written the bucket since. Without a grace there is no bound
    /// that a crowd could name.
    fn is_outdated(&self, exchange: &Exchange<'_>, look: &Seen, now: TimeMs) -> bool {
        let is_old = now.since(look.at) > OUTDATED_MS;
        !exchange.is_fresh && look.is_crowded && is_old && self.shared.options.fast_grace_ms > 0
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

    /// Where many others have taken what the bucket regained since the last look, whoever is
    /// refused would be told to come back within moments, by which time the crowd has been there
    /// again. So the refusal holds for some times as long as the bucket needs for what the crowd
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
            let regained_ms = is.effective.time_to_gain_ms(is.used.saturating_sub(was.used).max(0));
            pace_ms = regained_ms.min(since_ms).max(pace_ms);
            let lacks = amount.saturating_sub(image.balance_at(limit.name(), at).unwrap_or(0));
            wait_ms = is.effective.time_to_gain_ms(lacks).max(wait_ms);
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

    /// Gives back what landed too late to be granted.
    async fn take_back(&self, member: &MemberTake<'_>, moment: Moment) {
        if let Err(error) = self.give_back(member, moment).await {
            count(&self.shared.caches.tally.credits_lost);
            tracing::warn!(%error, "what landed too late to be granted could not be given back");
        }
    }

    /// Reads a bucket as it is.
    pub(crate) async fn look(&self, key: &Key, moment: Moment) -> Result<Arc<Seen>, StoreError> {
        let found = self.shared.read_all("consume", std::slice::from_ref(key), true).await?;
        self.note(key, found.into_iter().next().flatten().as_ref(), moment)
    }

    /// Reads the configuration of a member again, after its bucket was seen.
    async fn reread(&self, member: &MemberTake<'_>) -> Result<Verdict, StoreError> {
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

    /// True when the bucket of a member that is not there would be made switched off.
    pub(crate) async fn is_switched_off(
        &self,
        member: &MemberTake<'_>,
    ) -> Result<bool, StoreError> {
        Ok(self.member(member, Trust::NOTHING).await?.disabled_by.is_some())
    }

    pub(crate) async fn member(
        &self,
        member: &MemberTake<'_>,
        trust: Trust,
    ) -> Result<config::Member, StoreError> {
        let key = MemberKey { entity: member.entity, resource: member.resource };
        config::member(&self.shared, &self.id, key, trust).await
    }

    /// A nonce that is used by one operation only.
    pub(crate) fn nonce(&self) -> Nonce {
        spell(self.shared.options.entropy.next_u64())
    }

    /// The nonce of an operation of this process, the same whenever it is asked for; of one that
    /// has no number, a new one.
    pub(crate) fn nonce_of(&self, operation: u64) -> Nonce {
        if operation == 0 {
            return self.nonce();
        }
        // The finaliser of SplitMix64: numbers in a row become as different as random ones.
        let mut bits = self.shared.seed.wrapping_add(operation.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        spell(bits ^ (bits >> 31))
    }

    pub(crate) fn short_wait(&self) -> Wait {
        Wait::After(WaitMs::at_least_one(
            CONTENDED_WAIT_MS + self.shared.options.entropy.next_u64() % CONTENDED_WAIT_MS,
        ))
    }
}

/// What a take has found out about what it goes by.
#[derive(Clone, Copy)]
struct Standing {
    /// The caller's limits were read again and are those of the bucket.
    is_proven: bool,
    /// The image may show what a refused chain holds for a moment.
    is_doubted: bool,
    judged_at: TimeMs,
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
fn knows_more(member: &MemberTake<'_>, look: &Seen, image: &Image) -> bool {
    let limits = member.limits;
    let read_at_ms = i64::try_from(limits.stamp.0 / 1000).unwrap_or(i64::MAX);
    limits.source == LimitSource::Call
        || limits.stamp.0 > look.parameters_since
        || read_at_ms >= image.config_read_at.unwrap_or(0).saturating_add(CONFIG_MARGIN_MS)
}

/// Eleven characters of six bits.
fn spell(mut bits: u64) -> Nonce {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digit = |_| {
        let digit = char::from(ALPHABET[usize::try_from(bits % 64).unwrap_or(0)]);
        bits /= 64;
        digit
    };
    (0..11).map(digit).collect()
}

/// The amounts of a take, those that `counts`.
pub(crate) fn amounts_of<'a>(
    member: &MemberTake<'a>,
    counts: impl Fn(i64) -> bool,
) -> SmallVec<[Amount<'a>; 2]> {
    let limits = &member.limits.limits;
    let amount =
        |take: &Take| Amount { limit: &limits[usize::from(take.limit)], milli: take.amount.0 };
    member.takes.iter().map(amount).filter(|amount| counts(amount.milli)).collect()
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
