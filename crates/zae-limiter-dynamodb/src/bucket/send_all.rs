//! Sends the legs of a take from several shards, as one transaction (rule S8d).

use crate::DynamoStore;
use crate::bucket::operation::{Moment, count};
use crate::bucket::write::{BucketWrite, Nonce};
use crate::constants::SEND_ATTEMPTS_MAX;
use crate::table::error::failed;
use crate::table::{Cancellation, Key, TableError, Write};
use zae_limiter_store::StoreError;

/// What became of a transaction over several shards.
pub(super) enum SentAll {
    Landed,
    /// Nothing landed; the images that came back are remembered.
    Lost,
    /// It landed, and too long ago to be granted.
    Overdue,
    /// The shards are not as they were planned for, and an attempt was not answered.
    Doubtful,
}

impl DynamoStore {
    /// Sends the legs of a take. All carry the nonce of the take: an image that comes back with it
    /// says that all of them have landed.
    pub(super) async fn send_all(
        &self,
        writes: Vec<BucketWrite>,
        nonce: &Nonce,
        moment: Moment,
    ) -> Result<SentAll, StoreError> {
        let keys: Vec<Key> = writes.iter().map(|write| write.key.clone()).collect();
        let writes: Vec<Write> =
            writes.into_iter().map(|write| Write::Bucket(Box::new(write))).collect();
        let (token, options) = (self.shared.token(), &self.shared.options);
        let sent_at = options.clock.monotonic();
        let mut is_ambiguous = false;
        let mut last = TableError::NotApplied("others kept writing the shards".to_owned());
        let age = || options.clock.monotonic().saturating_sub(sent_at);
        let landed = || match age() > options.write_age_max {
            true => SentAll::Overdue,
            false => SentAll::Landed,
        };
        for attempt in 1..=SEND_ATTEMPTS_MAX {
            if !is_ambiguous && 2 * age() > options.write_age_max {
                // Decided too long ago to be sent as it is.
                return Ok(SentAll::Lost);
            }
            match self.table().transact(&writes, &token).await {
                Ok(()) => return Ok(landed()),
                Err(TableError::Canceled(reasons)) => {
                    let (mut is_ours, mut is_lost) = (false, false);
                    for (key, reason) in keys.iter().zip(&reasons) {
                        match reason {
                            Cancellation::Condition(item) => {
                                is_lost = true;
                                let look = self.note(key, item.as_ref(), moment)?;
                                let image = look.image.as_ref();
                                is_ours |= image
                                    .is_some_and(|image| image.last_nonce.as_ref() == Some(nonce));
                            }
                            Cancellation::Rejected(why) => {
                                return Err(failed("consume", TableError::Rejected(why.clone())));
                            }
                            Cancellation::Innocent
                            | Cancellation::Conflict
                            | Cancellation::Throttled => {}
                        }
                    }
                    if is_ours {
                        count(&self.shared.caches.tally.debits_confirmed);
                        return Ok(landed());
                    }
                    if is_lost && is_ambiguous {
                        // What was not answered may still land: nothing may be taken elsewhere.
                        count(&self.shared.caches.tally.debits_unknown);
                        return Ok(SentAll::Doubtful);
                    }
                    if is_lost {
                        return Ok(SentAll::Lost);
                    }
                }
                Err(error @ TableError::Unknown(_)) => {
                    if !is_ambiguous {
                        count(&self.shared.caches.tally.debits_resent);
                    }
                    (is_ambiguous, last) = (true, error);
                }
                Err(error @ (TableError::NotApplied(_) | TableError::Unreachable(_))) => {
                    if !is_ambiguous {
                        last = error;
                    }
                }
                Err(error) => return Err(failed("consume", error)),
            }
            self.shared.back_off(attempt).await;
        }
        if is_ambiguous {
            count(&self.shared.caches.tally.debits_unknown);
            return Err(failed("consume", last));
        }
        Ok(SentAll::Lost)
    }
}
