//! What every operation on a bucket needs: its time, its nonce, and what is remembered of the
//! bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{Milli, Take, TimeMs};
use zae_limiter_store::{MemberTake, StoreError};

use crate::DynamoStore;
use crate::bucket::cache::Seen;
use crate::bucket::image::Image;
use crate::bucket::refill::Amount;
use crate::bucket::write::Nonce;
use crate::table::clock::whole_ms;
use crate::table::{Item, Key};

/// The time of one operation: the caller's `now`, and what has passed since.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    now: TimeMs,
    pub(super) started: Duration,
}

impl DynamoStore {
    /// Starts the clock of an operation.
    pub(crate) fn moment(&self, now: TimeMs) -> Moment {
        Moment { now, started: self.shared.options.clock.monotonic() }
    }

    /// When an operation began, as a mark for what undoes it: microseconds whose last three digits
    /// are drawn, so that two marks differ. They leave room for the marks of its parts, which must
    /// not reach into the next millisecond: it may belong to another hour.
    pub(crate) fn undo_mark(&self, moment: Moment) -> i64 {
        let began = self.shared.corrected(moment.now).0;
        let salt = i64::try_from(self.shared.options.entropy.next_u64() % 900).unwrap_or(0);
        began.saturating_mul(1_000).saturating_add(salt)
    }

    /// The instant of a write that is sent now. Every attempt reads the clock again: an old `now`
    /// would let more pass.
    pub(crate) fn now(&self, moment: Moment) -> TimeMs {
        let passed = self.shared.options.clock.monotonic().saturating_sub(moment.started);
        self.shared.corrected(moment.now.plus_ms(whole_ms(passed)))
    }

    /// What is remembered of a bucket.
    pub(crate) fn recall(&self, key: &Key) -> Option<Arc<Seen>> {
        self.shared.caches.image(&key.pk)
    }

    /// Recent enough to refuse on, or to believe that a bucket is not there.
    pub(crate) fn is_recent(&self, seen: &Seen, now: TimeMs) -> bool {
        (0..self.shared.options.rejection_cache_ttl_ms).contains(&now.since(seen.at))
    }

    /// Parses an item, or its absence, and remembers it as what was last seen of the bucket.
    pub(crate) fn note(
        &self,
        key: &Key,
        item: Option<&Item>,
        moment: Moment,
    ) -> Result<Arc<Seen>, StoreError> {
        let before = self.recall(key);
        let known = before.as_ref().and_then(|before| before.image.as_ref());
        let image = item.map(|item| Image::parse_after(item, known)).transpose()?;
        let is_of_several = |image: &&Image| !image.standing.is_alone();
        if known.iter().chain(&image.as_ref()).any(is_of_several) {
            self.learn(key, image.as_ref());
        }
        Ok(self.shared.caches.remember(
            &key.pk,
            image,
            before.as_deref(),
            self.now(moment),
            self.shared.wall(),
        ))
    }

    /// A shard of a bucket that has several, or had, was seen, or is gone.
    fn learn(&self, key: &Key, image: Option<&Image>) {
        let Some((bucket, shard)) = key.pk.rsplit_once('#') else { return };
        let tree = self.shared.caches.tree(&format!("{bucket}#0"));
        match image {
            Some(image) => tree.learn(&image.standing),
            None => tree.lose(shard.parse().unwrap_or(0)),
        }
    }

    /// The bucket after a write has landed. An image that cannot be read is no error: the write has
    /// landed, and an error would have it sent again.
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

    /// Reads a bucket as it is.
    pub(crate) async fn look(&self, key: &Key, moment: Moment) -> Result<Arc<Seen>, StoreError> {
        let [found] = self.shared.read("consume", std::array::from_ref(key)).await?;
        self.note(key, found.as_ref(), moment)
    }

    /// A nonce that is used by one operation only.
    pub(crate) fn nonce(&self) -> Nonce {
        spell(self.shared.options.entropy.next_u64())
    }

    /// The nonce of a numbered operation of this process, always the same; a new nonce for an
    /// operation without a number.
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
    counts: impl Fn(Milli) -> bool,
) -> SmallVec<[Amount<'a>; 2]> {
    let limits = &member.limits.limits;
    let amount =
        |take: &Take| Amount { limit: &limits[usize::from(take.limit)], milli: take.amount };
    member.takes.iter().map(amount).filter(|amount| counts(amount.milli)).collect()
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
