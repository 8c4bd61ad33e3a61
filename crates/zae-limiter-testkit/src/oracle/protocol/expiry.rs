//! When an item may be forgotten: never before it is full, or a debt would be forgiven.

use zae_limiter_dynamodb::bucket::writers::Writer;

use super::ledger::Landing;
use super::stored::StoredLimit;
use crate::oracle::Broken;
use crate::oracle::bucket::Params;

/// The shortest time an idle bucket is kept.
const KEPT_MIN_MS: i128 = 3_600_000;
/// How many times its fill time a bucket is kept.
const FILLS_KEPT: i128 = 7;

impl Landing<'_> {
    /// Kept for seven fill times and an hour, and until everything it owes and hides has been
    /// refilled.
    pub(crate) fn check_expiry(&self) -> Result<(), Broken> {
        let (Some(expires_s), Some(now)) = (self.after.expires_s, self.now) else { return Ok(()) };
        let mut kept_ms = KEPT_MIN_MS;
        for (name, limit) in self.after.limits.iter().filter(|(_, limit)| limit.params.refill > 0) {
            let Params { capacity, refill, period } = limit.params;
            // A charge does not pin the balance: what others took between image and landing is debt
            // that it did not see, at most a capacity, and one of the fill times is for that. A
            // bucket that is in debt already it has seen so.
            let was = self
                .before
                .and_then(|before| before.limits.get(name))
                .filter(|was| was.balance >= 0);
            let was = was.filter(|_| self.writer == Writer::ChargeRefill);
            let unseen = was.map_or(0, |was| self.instant.unseen(name, was));
            let owed = (-limit.balance - unseen).max(0) + limit.gap;
            let fill = (capacity * period + refill - 1).div_euclid(refill);
            kept_ms =
                kept_ms.max(FILLS_KEPT * fill + (owed * period + refill - 1).div_euclid(refill));
        }
        if i128::from(expires_s) * 1000 < i128::from(now) + kept_ms {
            return Err(format!(
                "{:?} at {now} leaves a bucket that expires at {expires_s} s, too early: {:?}",
                self.writer, self.after
            ));
        }
        Ok(())
    }

    /// After any write, the bucket will be full, and nothing hidden, before it expires. Parameters
    /// of a foreign writer, which carry a mark, are exempt, and so is one of several shards that
    /// expires: a foreign writer has raised the count alone. A refill instant that a wrong clock
    /// has moved ahead of the sender's is refill that the bucket has had early.
    pub(crate) fn check_full_by_expiry(&self) -> Result<(), Broken> {
        let is_ours = self.after.mark.is_none() && self.after.place.is_alone();
        let expires_s = self.after.expires_s.filter(|_| is_ours);
        let (Some(expires_s), Some(now)) = (expires_s, self.now) else { return Ok(()) };
        let left_ms = i128::from(expires_s) * 1000 - i128::from(now.min(self.after.refilled_at));
        let is_full = |limit: &StoredLimit| {
            limit.fine() + left_ms.max(0) * limit.params.refill
                >= limit.params.brim() + limit.gap * limit.params.period
        };
        match self.after.limits.iter().find(|(_, limit)| !is_full(limit)) {
            None => Ok(()),
            Some((name, limit)) => Err(format!(
                "{:?} leaves {name} as {limit:?}, which is not full when the bucket expires at {expires_s} s",
                self.writer
            )),
        }
    }
}
