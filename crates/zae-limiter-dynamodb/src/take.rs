//! Taking from one bucket: sends what `debit.rs` chooses until there is an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zae_limiter_core::{LimitSource, TimeMs, Wait, WaitMs};
use zae_limiter_store::{MemberKey, MemberTake, StoreError};

use crate::DynamoStore;
use crate::birth::Vouched;
use crate::cache::Seen;
use crate::config;
use crate::constants::{CONFIG_MARGIN_MS, CONTENDED_WAIT_MS, REFILL_ATTEMPTS_MAX};
use crate::debit::{Debit, Step, View};
use crate::exchange::{Exchange, Heard};
use crate::image::Image;
use crate::keys;
use crate::table::{Item, Key};
use crate::write::Writer;

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

    /// Takes from one bucket.
    pub(crate) async fn take(&self, asked: &Asked<'_>, moment: Moment) -> Result<Taken, StoreError> {
        let nonce = self.nonce();
        let mut exchange = Exchange::new(self, "consume", &asked.key, moment, asked.seen.clone()).with_nonce(&nonce);
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
        nonce: &str,
        exchange: &mut Exchange<'_>,
        moment: Moment,
    ) -> Result<Taken, StoreError> {
        let Asked { member, key, .. } = asked;
        let debit = Debit {
            key,
            limits: member.limits,
            takes: member.takes,
            absent: member.absent,
            nonce,
            grace_ms: self.shared.options.fast_grace_ms,
        };
        if !self.shared.options.speculative {
            exchange.seen = Some(Box::pin(self.look(key, moment)).await?);
            exchange.is_fresh = true;
        }
        let (mut is_proven, mut owner) = (false, None);
        while exchange.races < REFILL_ATTEMPTS_MAX {
            let now = exchange.now();
            let write = match debit.plan(self.view(member, exchange, is_proven, now), now)? {
                Step::Take(write) | Step::Prepare(write) => write,
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
                    self.birth(member, owner, nonce, exchange.now())
                }
                Step::Refuse => {
                    if !exchange.is_fresh && exchange.sends == 0 {
                        count(&self.shared.caches.tally.local_refusals);
                    }
                    let look = match exchange.seen.take() {
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
                Step::Contended => break,
            };
            let creates = write.writer == Writer::Create;
            match exchange.send(write).await? {
                Heard::Landed(look) | Heard::AlreadyOurs(look) => {
                    if creates && !Box::pin(self.is_still_on(member, key, moment)).await? {
                        return Ok(Taken::Disabled);
                    }
                    return Ok(Taken::Granted(look));
                }
                // What was proven was proven of the image before.
                Heard::Prepared | Heard::Lost => is_proven = false,
                Heard::Again => {}
            }
        }
        count(&self.shared.caches.tally.contended);
        Ok(Taken::Contended)
    }

    /// What a take goes by.
    fn view<'a>(&self, member: &MemberTake<'_>, exchange: &'a Exchange<'_>, is_proven: bool, now: i64) -> View<'a> {
        let Some(look) = exchange.seen.as_deref() else { return View::Unknown };
        let is_recent = exchange.is_fresh || self.is_recent(look, now);
        match &look.image {
            Some(image) => View::Known { image, is_recent, may_sync: is_proven || knows_more(member, look, image) },
            None if is_recent => View::Absent,
            None => View::Unknown,
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
