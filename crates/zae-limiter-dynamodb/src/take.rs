//! Taking from one bucket: sends what `debit.rs` chooses until there is an answer.
//!
//! A debit is sent at least once and counts once. It carries one nonce over all attempts and forms; whatever comes back
//! from a failed condition is first asked for that nonce, because an earlier attempt may have landed unheard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zae_limiter_core::{LimitSource, TimeMs, Wait, WaitMs};
use zae_limiter_store::{BoxFuture, MemberKey, MemberTake, StoreError};

use crate::DynamoStore;
use crate::birth::Vouched;
use crate::cache::Seen;
use crate::config;
use crate::constants::{CONFIG_MARGIN_MS, CONTENDED_WAIT_MS, REFILL_ATTEMPTS_MAX, SEND_ATTEMPTS_MAX};
use crate::debit::{Debit, Step, View};
use crate::error::failed;
use crate::image::Image;
use crate::keys;
use crate::table::{Item, Key, TableError, Write};
use crate::write::{BucketWrite, Writer};

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
}

/// What is asked of a bucket, and what is remembered of it.
pub(crate) struct Asked<'a> {
    pub(crate) member: &'a MemberTake<'a>,
    pub(crate) key: Key,
    pub(crate) seen: Option<Arc<Seen>>,
}

/// A bucket that was short, and when.
pub(crate) struct Refusal {
    pub(crate) look: Arc<Seen>,
    pub(crate) at: i64,
}

/// The time of one operation: the caller's `now`, and what has passed since.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    now: TimeMs,
    started: Duration,
}

/// How a write ended, as far as it is known.
pub(crate) enum Sent {
    /// It landed; the item after it.
    Landed(Item),
    /// Its condition failed; the item as it is.
    Lost(Option<Item>),
    /// It may have landed.
    Unknown(TableError),
    /// Proven not to have landed; try again.
    NotYet(TableError),
}

impl DynamoStore {
    /// Starts the clock of an operation.
    pub(crate) fn moment(&self, now: TimeMs) -> Moment {
        Moment { now, started: self.shared.options.clock.monotonic() }
    }

    /// What time it is for a write that is sent now. Every attempt takes a fresh one: an old `now` would let more pass.
    pub(crate) fn now(&self, moment: Moment) -> i64 {
        let passed = self.shared.options.clock.monotonic().saturating_sub(moment.started);
        self.shared.not_far_ahead(moment.now.plus_ms(i64::try_from(passed.as_millis()).unwrap_or(i64::MAX))).0
    }

    /// What is remembered of a bucket.
    pub(crate) fn recall(&self, key: &Key) -> Option<Arc<Seen>> {
        self.shared.caches.image(&key.pk)
    }

    /// Recent enough to refuse on, or to believe that a bucket is not there.
    pub(crate) fn is_recent(&self, seen: &Seen, now: i64) -> bool {
        (0..self.shared.options.rejection_cache_ttl_ms).contains(&now.saturating_sub(seen.at.0))
    }

    /// What a take begins with.
    pub(crate) fn asked<'a>(&self, member: &'a MemberTake<'a>) -> Asked<'a> {
        let key = keys::bucket(&self.id, member.entity, member.resource, 0);
        let seen = self.recall(&key);
        Asked { member, key, seen }
    }

    pub(crate) fn note(&self, key: &Key, item: Option<&Item>, moment: Moment) -> Result<Arc<Seen>, StoreError> {
        let before = self.recall(key);
        let known = before.as_ref().and_then(|before| before.image.as_ref());
        let image = item.map(|item| Image::parse_after(item, known)).transpose()?;
        Ok(self.shared.caches.remember(&key.pk, image, before.as_deref(), TimeMs(self.now(moment)), self.shared.wall()))
    }

    /// What is known of a bucket after a write has landed. Landed is landed: an image that can not be read changes nothing about
    /// that, and an error would have the write sent again.
    pub(crate) fn note_landed(&self, key: &Key, item: &Item, moment: Moment) -> Arc<Seen> {
        match self.note(key, Some(item), moment) {
            Ok(look) => look,
            Err(error) => {
                tracing::warn!(%error, pk = key.pk, "a write has landed on a bucket that can not be read");
                self.shared.caches.forget(&key.pk);
                self.shared.caches.unread(TimeMs(self.now(moment)), self.shared.wall())
            }
        }
    }

    /// Sends one write and says what its answer proves. The future does not hold the write: it is part of every take's.
    pub(crate) fn send(&self, write: BucketWrite) -> impl Future<Output = Result<Sent, StoreError>> {
        debug_assert!(write.breaches().is_empty(), "{:?}", write.breaches());
        let answer: BoxFuture<'_, Result<Item, TableError>> = match write.write {
            Write::Update(update) => self.table().update_owned(update),
            Write::Put(put) => Box::pin(async move { self.table().put(&put).await.map(|()| put.item) }),
            Write::Delete(_) | Write::Check(_) => {
                Box::pin(std::future::ready(Err(TableError::Rejected("not a write of a bucket".to_owned()))))
            }
        };
        async move {
            match answer.await {
                Ok(item) => Ok(Sent::Landed(item)),
                Err(TableError::Condition(item)) => Ok(Sent::Lost(item)),
                Err(error @ TableError::Unknown(_)) => Ok(Sent::Unknown(error)),
                Err(error @ (TableError::NotApplied(_) | TableError::Unreachable(_))) => Ok(Sent::NotYet(error)),
                Err(error) => Err(failed("consume", error)),
            }
        }
    }

    /// Takes from one bucket.
    pub(crate) async fn take(&self, asked: &Asked<'_>, moment: Moment) -> Result<Taken, StoreError> {
        let mut is_ambiguous = false;
        let taken = self.take_until_answered(asked, moment, &mut is_ambiguous).await;
        if is_ambiguous && !matches!(taken, Ok(Taken::Granted(_))) {
            // Whatever the last word was, an earlier attempt may have landed unheard.
            count(&self.shared.caches.tally.debits_unknown);
        }
        taken
    }

    /// `is_ambiguous` tells, at any end, whether an attempt may have landed that nobody has heard of.
    async fn take_until_answered(&self, asked: &Asked<'_>, moment: Moment, is_ambiguous: &mut bool) -> Result<Taken, StoreError> {
        let Asked { member, key, seen } = asked;
        let nonce = self.nonce();
        let debit = Debit {
            key,
            limits: member.limits,
            takes: member.takes,
            absent: member.absent,
            nonce: &nonce,
            grace_ms: self.shared.options.fast_grace_ms,
        };
        let mut seen = if self.shared.options.speculative { seen.clone() } else { Some(Box::pin(self.look(key, moment)).await?) };
        // An image of this very operation is as recent as can be.
        let mut is_fresh = !self.shared.options.speculative;
        let mut is_proven = false;
        let mut owner = None;
        let (mut races, mut sends) = (0, 0);
        loop {
            let now = self.now(moment);
            let view = match seen.as_deref() {
                None => View::Unknown,
                Some(look) => match &look.image {
                    Some(image) => View::Known {
                        image,
                        is_recent: is_fresh || self.is_recent(look, now),
                        may_sync: is_proven || knows_more(member, look, image),
                    },
                    None if is_fresh || self.is_recent(look, now) => View::Absent,
                    None => View::Unknown,
                },
            };
            let (write, takes) = match debit.plan(view, now)? {
                Step::Take(write) => (write, true),
                Step::Prepare(write) => (write, false),
                Step::Create => {
                    // A bucket that is made behind the back of an administrator's switch would be on.
                    if owner.is_none() {
                        match Box::pin(self.vouch_for_birth(member)).await? {
                            Vouched::For(found) => owner = Some(found),
                            Vouched::Disabled => return Ok(Taken::Disabled),
                        }
                    }
                    let owner = owner.as_ref().and_then(|owner| owner.as_deref());
                    // Reading took its time: the bucket is full as of now, not as of then.
                    (self.birth(member, owner, &nonce, self.now(moment)), true)
                }
                Step::Refuse => {
                    if !is_fresh && sends == 0 {
                        count(&self.shared.caches.tally.local_refusals);
                    }
                    let look = match seen {
                        Some(look) => look,
                        None => self.note(key, None, moment)?,
                    };
                    return Ok(Taken::Refused(Refusal { look, at: now }));
                }
                Step::Disabled => return Ok(Taken::Disabled),
                Step::Reread => {
                    match Box::pin(self.reread(member)).await? {
                        Reread::Same => is_proven = true,
                        Reread::Different => return Ok(Taken::Stale),
                        Reread::Disabled => return Ok(Taken::Disabled),
                    }
                    continue;
                }
                Step::Contended => {
                    count(&self.shared.caches.tally.contended);
                    return Ok(Taken::Contended);
                }
            };
            let writer = write.writer;
            match self.send(write).await? {
                Sent::Landed(item) => {
                    let look = self.note_landed(key, &item, moment);
                    *is_ambiguous &= !takes;
                    if writer == Writer::Create && !Box::pin(self.is_still_on(member, key, moment)).await? {
                        return Ok(Taken::Disabled);
                    }
                    if takes {
                        return Ok(Taken::Granted(look));
                    }
                    // What was proven was proven of the image before.
                    (seen, is_fresh, is_proven) = (Some(look), true, false);
                }
                Sent::Lost(item) => {
                    let look = self.note(key, item.as_ref(), moment)?;
                    if look.image.as_ref().is_some_and(|image| image.lw.as_deref() == Some(&nonce)) {
                        count(&self.shared.caches.tally.debits_confirmed);
                        *is_ambiguous = false;
                        if writer == Writer::Create && !Box::pin(self.is_still_on(member, key, moment)).await? {
                            return Ok(Taken::Disabled);
                        }
                        return Ok(Taken::Granted(look));
                    }
                    (seen, is_fresh, is_proven) = (Some(look), true, false);
                    races += 1;
                }
                Sent::Unknown(error) => {
                    if takes && !*is_ambiguous {
                        count(&self.shared.caches.tally.debits_resent);
                    }
                    *is_ambiguous |= takes;
                    sends += 1;
                    if sends >= SEND_ATTEMPTS_MAX {
                        return Err(failed("consume", error));
                    }
                }
                Sent::NotYet(error) => {
                    sends += 1;
                    if sends >= SEND_ATTEMPTS_MAX {
                        // An earlier attempt may have landed, whatever became of this one.
                        let error = if *is_ambiguous { TableError::Unknown(error.to_string()) } else { error };
                        return Err(failed("consume", error));
                    }
                    Box::pin(self.shared.back_off(sends)).await;
                }
            }
            if races >= REFILL_ATTEMPTS_MAX {
                count(&self.shared.caches.tally.contended);
                return Ok(Taken::Contended);
            }
        }
    }

    /// Reads a bucket as it is.
    pub(crate) async fn look(&self, key: &Key, moment: Moment) -> Result<Arc<Seen>, StoreError> {
        let found = self.shared.read_all("consume", std::slice::from_ref(key), true).await?;
        self.note(key, found.into_iter().next().flatten().as_ref(), moment)
    }

    /// Reads the configuration of a member again, after its bucket was seen.
    async fn reread(&self, member: &MemberTake<'_>) -> Result<Reread, StoreError> {
        let found = self.member(member).await?;
        if found.disabled_by.is_some() {
            return Ok(Reread::Disabled);
        }
        let same = match member.limits.source {
            LimitSource::Call => true,
            LimitSource::Builder | LimitSource::Fallback => found.limits.is_none(),
            LimitSource::EntityResource | LimitSource::Entity | LimitSource::Resource | LimitSource::System => {
                found.limits.as_ref().is_some_and(|(limits, _)| limits[..] == member.limits.limits[..])
            }
        };
        Ok(if same { Reread::Same } else { Reread::Different })
    }

    /// True when the caller's limits may replace the bucket's.
    pub(crate) async fn is_up_to_date(&self, member: &MemberTake<'_>, look: &Seen, image: &Image) -> Result<bool, StoreError> {
        Ok(knows_more(member, look, image) || matches!(self.reread(member).await?, Reread::Same))
    }

    /// True when the bucket of a member that is not there would be made switched off.
    pub(crate) async fn is_switched_off(&self, member: &MemberTake<'_>) -> Result<bool, StoreError> {
        Ok(self.member(member).await?.disabled_by.is_some())
    }

    pub(crate) async fn member(&self, member: &MemberTake<'_>) -> Result<config::Member, StoreError> {
        let key = MemberKey { entity: member.entity, resource: member.resource };
        config::member(&self.shared, &self.id, key).await
    }

    /// A nonce that is used by one operation only.
    pub(crate) fn nonce(&self) -> String {
        spell(self.shared.options.entropy.next_u64())
    }

    /// The nonce of an operation of this process, the same whenever it is asked for; of one that has no number, a new one.
    pub(crate) fn nonce_of(&self, operation: u64) -> String {
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
        Wait::After(WaitMs::at_least_one(CONTENDED_WAIT_MS + self.shared.options.entropy.next_u64() % CONTENDED_WAIT_MS))
    }
}

enum Reread {
    Same,
    Different,
    Disabled,
}

/// True when the member's limits were read after its bucket's parameters were seen, or clearly later than what justified them.
fn knows_more(member: &MemberTake<'_>, look: &Seen, image: &Image) -> bool {
    let limits = member.limits;
    let read_at_ms = i64::try_from(limits.stamp.0 / 1000).unwrap_or(i64::MAX);
    limits.source == LimitSource::Call
        || limits.stamp.0 > look.parameters_since
        || read_at_ms >= image.ca.unwrap_or(0).saturating_add(CONFIG_MARGIN_MS)
}

/// Eleven characters of six bits.
fn spell(mut bits: u64) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut nonce = String::with_capacity(11);
    for _ in 0..11 {
        nonce.push(char::from(ALPHABET[usize::try_from(bits % 64).unwrap_or(0)]));
        bits /= 64;
    }
    nonce
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
