//! The exchange of one operation with one bucket: what was seen of the bucket, which nonce the
//! operation carries, how often it lost a race or went unanswered, and whether an attempt may have
//! landed unheard.
//!
//! A take, a charge and a credit choose their writes differently and hear the answers alike. A
//! debit is sent at least once and counts once: it carries one nonce over all attempts and forms,
//! and an image that comes back from a failed condition is asked for that nonce first, because an
//! earlier attempt may have landed unheard. A credit has no nonce and is sent at most once.

use std::sync::Arc;
use std::time::Duration;

use zae_limiter_core::TimeMs;
use zae_limiter_store::StoreError;

use crate::DynamoStore;
use crate::bucket::cache::Seen;
use crate::bucket::debit::{Known, View};
use crate::bucket::image::Image;
use crate::bucket::operation::{Moment, count};
use crate::bucket::write::{BucketWrite, Cost, Nonce, Purpose};
use crate::constants::{
    RACE_PAUSE_FIRST, RACES_AT_ONCE, SEND_ATTEMPTS_MAX, UNREPORTED_MAX, WCU_PER_WRITE_MILLI,
};
use crate::table::error::failed;
use crate::table::{Item, Key, TableError};

/// One operation on one bucket, until it has an answer.
pub(crate) struct Exchange<'a> {
    store: &'a DynamoStore,
    /// For messages.
    operation: &'static str,
    key: &'a Key,
    pub(crate) moment: Moment,
    /// `None` for a credit.
    nonce: Option<&'a Nonce>,
    /// The last look at the bucket.
    pub(crate) seen: Option<Arc<Seen>>,
    /// Whether the last look is one of this very operation, and so as recent as can be.
    pub(crate) is_fresh: bool,
    /// Conditions that failed.
    pub(crate) races: u32,
    /// Attempts that were not answered, or turned away.
    pub(crate) unanswered: u32,
    /// Whether an attempt may have landed without an answer.
    pub(crate) is_ambiguous: bool,
    /// Failed conditions that the next write to land counts in `wcu`.
    uncounted: u32,
    /// When the first attempt was sent that was not answered, by the monotonic clock.
    unheard_since: Option<Duration>,
}

/// What came of one write.
pub(crate) enum Heard {
    /// The write landed; the bucket after it.
    Landed(Arc<Seen>),
    /// A write that takes nothing landed: the bucket is fresh in `seen`.
    Prepared,
    /// An earlier attempt of the same operation had landed.
    AlreadyOurs(Arc<Seen>),
    /// Another writer was faster: the bucket is fresh in `seen`.
    Lost,
    /// No answer, or turned away: nothing new is known.
    Again,
}

/// How a write ended, as far as it is known.
enum Sent {
    /// It landed; the item after it.
    Landed(Item),
    /// Its condition failed; the item as it is.
    Lost(Option<Item>),
    /// It may have landed.
    Unknown(TableError),
    /// Proven not to have landed; try again.
    NotYet(TableError),
}

impl<'a> Exchange<'a> {
    /// Begins with what is remembered of the bucket, if anything.
    pub(crate) fn new(
        store: &'a DynamoStore,
        operation: &'static str,
        key: &'a Key,
        moment: Moment,
        seen: Option<Arc<Seen>>,
    ) -> Exchange<'a> {
        Exchange {
            store,
            operation,
            key,
            moment,
            nonce: None,
            seen,
            is_fresh: false,
            races: 0,
            unanswered: 0,
            is_ambiguous: false,
            uncounted: 0,
            unheard_since: None,
        }
    }

    /// For a debit, which may be sent again because it carries a nonce.
    pub(crate) fn with_nonce(mut self, nonce: &'a Nonce) -> Exchange<'a> {
        self.nonce = Some(nonce);
        self
    }

    /// The time for a write that is sent now.
    pub(crate) fn now(&self) -> TimeMs {
        self.store.now(self.moment)
    }

    /// What the next write counts in `wcu`: itself, and the failed conditions of this process on
    /// the bucket that no landed write has counted yet. They reached the item and cost what a write
    /// costs.
    pub(crate) fn cost(&mut self) -> Cost {
        if let Some(look) = self.seen.as_deref() {
            self.uncounted = self
                .uncounted
                .saturating_add(look.own.collect(self.store.now(self.moment)))
                .min(UNREPORTED_MAX);
        }
        let failed_milli = self.failed_milli();
        let units = self.image().map_or(1, |image| image.units);
        Cost { units_milli: (WCU_PER_WRITE_MILLI + failed_milli) * units, failed_milli }
    }

    /// Reads the bucket.
    pub(crate) async fn look(&mut self) -> Result<(), StoreError> {
        let look = Box::pin(self.store.look(self.key, self.moment)).await?;
        (self.seen, self.is_fresh) = (Some(look), true);
        Ok(())
    }

    fn failed_milli(&self) -> i64 {
        i64::from(self.uncounted) * WCU_PER_WRITE_MILLI
    }

    /// The image last seen, if there was a bucket.
    pub(crate) fn image(&self) -> Option<&Image> {
        self.seen.as_deref().and_then(|look| look.image.as_ref())
    }

    /// What a charge or a credit goes by. Absence is believed only when this operation has seen it:
    /// a credit or a charge that is dropped by mistake would be lost.
    pub(crate) fn settling_view(&self) -> View<'_> {
        match self.seen.as_deref().map(|look| &look.image) {
            None => View::Unknown,
            Some(Some(image)) => View::Known(Known {
                image,
                is_trusted: self.is_fresh,
                may_sync: false,
                is_crowded: false,
                is_outdated: false,
                judged_at: self.now(),
            }),
            Some(None) if self.is_fresh => View::Absent,
            Some(None) => View::Unknown,
        }
    }

    /// Sends one write and hears what its answer proves. An error ends the operation.
    pub(crate) fn send(
        &mut self,
        write: BucketWrite,
    ) -> impl Future<Output = Result<Heard, StoreError>> {
        // A write that only prepares carries no nonce: landing twice changes nothing.
        let prepares = write.purpose == Purpose::SyncOnly;
        let takes_milli = write.takes_milli();
        let sent_at = self.store.shared.options.clock.monotonic();
        let answer = dispatch(self.store, self.operation, write);
        async move {
            match answer.await? {
                Sent::Landed(item) => {
                    if let Some(before) = self.seen.as_deref() {
                        before.own.landed(self.failed_milli() + takes_milli);
                    }
                    let look = self.store.note_landed(self.key, &item, self.moment);
                    self.uncounted = 0;
                    if !prepares {
                        self.is_ambiguous = false;
                        return Ok(Heard::Landed(look));
                    }
                    (self.seen, self.is_fresh) = (Some(look), true);
                    Ok(Heard::Prepared)
                }
                Sent::Lost(item) => {
                    let heard = self.lost(item.as_ref())?;
                    if matches!(heard, Heard::Lost) && self.races > RACES_AT_ONCE {
                        let turn = self.races - RACES_AT_ONCE;
                        Box::pin(self.store.shared.pause_up_to(RACE_PAUSE_FIRST, turn)).await;
                    }
                    Ok(heard)
                }
                Sent::Unknown(error) => {
                    if !prepares {
                        self.unheard_since.get_or_insert(sent_at);
                    }
                    let heard = self.unanswered(error, prepares)?;
                    // A table that fails at once must not be asked again at once by every caller.
                    Box::pin(self.store.shared.back_off(self.unanswered)).await;
                    Ok(heard)
                }
                Sent::NotYet(error) => {
                    self.unanswered += 1;
                    if matches!(error, TableError::NotApplied(_)) {
                        // The item is asked more than it can take: that is pressure, too.
                        self.uncounted = self.uncounted.saturating_add(1).min(UNREPORTED_MAX);
                    }
                    if self.unanswered >= self.attempts_max() {
                        return Err(self.doubt(failed(self.operation, error)));
                    }
                    Box::pin(self.store.shared.back_off(self.unanswered)).await;
                    Ok(Heard::Again)
                }
            }
        }
    }

    /// A take leaves one of several shards that takes no writes for another one at once. A charge
    /// or a credit belongs where it is.
    fn attempts_max(&self) -> u32 {
        let is_alone = self.image().is_none_or(|image| image.standing.is_alone());
        let may_leave = self.operation == "consume" && !is_alone && !self.is_ambiguous;
        if may_leave { 1 } else { SEND_ATTEMPTS_MAX }
    }

    /// True when an attempt that has landed may have been decided too long ago to count: see
    /// [`WRITE_AGE_MAX`].
    ///
    /// [`WRITE_AGE_MAX`]: crate::constants::WRITE_AGE_MAX
    pub(crate) fn is_overdue(&self) -> bool {
        let options = &self.store.shared.options;
        self.unheard_since.is_some_and(|since| {
            options.clock.monotonic().saturating_sub(since) > options.write_age_max
        })
    }

    /// The condition failed, and `item` is what is there. A nonce of ours in it says that an
    /// earlier attempt has landed; otherwise the race is lost, and the item is what is known from
    /// now on.
    fn lost(&mut self, item: Option<&Item>) -> Result<Heard, StoreError> {
        self.uncounted = self.uncounted.saturating_add(1).min(UNREPORTED_MAX);
        let look = self.store.note(self.key, item, self.moment)?;
        let landed = look.image.as_ref().and_then(|image| image.last_nonce.as_ref());
        if self.nonce.is_some() && landed == self.nonce {
            count(&self.store.shared.caches.tally.debits_confirmed);
            self.is_ambiguous = false;
            return Ok(Heard::AlreadyOurs(look));
        }
        (self.seen, self.is_fresh) = (Some(look), true);
        self.races += 1;
        Ok(Heard::Lost)
    }

    fn unanswered(&mut self, error: TableError, prepares: bool) -> Result<Heard, StoreError> {
        let tally = &self.store.shared.caches.tally;
        if self.nonce.is_none() {
            count(&tally.credits_unknown);
            return Err(failed(self.operation, error));
        }
        if !prepares && !self.is_ambiguous {
            count(&tally.debits_resent);
        }
        self.is_ambiguous |= !prepares;
        self.unanswered += 1;
        if self.unanswered >= SEND_ATTEMPTS_MAX {
            Err(failed(self.operation, error))
        } else {
            Ok(Heard::Again)
        }
    }

    /// The last error of an operation. An earlier attempt may have landed even when the last one
    /// has not.
    pub(crate) fn doubt(&self, error: StoreError) -> StoreError {
        if self.is_ambiguous && !error.fate_unknown() {
            failed(self.operation, TableError::Unknown(error.to_string()))
        } else {
            error
        }
    }
}

impl Drop for Exchange<'_> {
    /// Failed conditions that no write of this operation has counted are left to the next one.
    fn drop(&mut self) {
        if let Some(look) = self.seen.as_deref().filter(|_| self.uncounted > 0) {
            look.own.leave(self.uncounted, self.now());
        }
    }
}

/// Renders the write before the first await, so the future, which every take embeds, does not store
/// the write.
fn dispatch(
    store: &DynamoStore,
    operation: &'static str,
    write: BucketWrite,
) -> impl Future<Output = Result<Sent, StoreError>> {
    let answer = store.table().write_bucket(write);
    async move {
        match answer.await {
            Ok(item) => Ok(Sent::Landed(item)),
            Err(TableError::Condition(item)) => Ok(Sent::Lost(item)),
            Err(error @ TableError::Unknown(_)) => Ok(Sent::Unknown(error)),
            Err(error @ (TableError::NotApplied(_) | TableError::Unreachable(_))) => {
                Ok(Sent::NotYet(error))
            }
            Err(error) => Err(failed(operation, error)),
        }
    }
}
