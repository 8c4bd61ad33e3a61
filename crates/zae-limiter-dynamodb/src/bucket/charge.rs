//! Which write charges a bucket after the fact, given what is known of it. Pure. A charge is never
//! refused: it may lead into debt, and when every exact form has lost its race it is made without
//! looking.

use smallvec::SmallVec;
use zae_limiter_core::{CounterFull, LimitParams, Milli, TimeMs};
use zae_limiter_store::StoreError;

use crate::bucket::debit::{View, ceiling, cold_bound, seconds};
use crate::bucket::image::Image;
use crate::bucket::refill::{Amount, MustBeAbsent, Refill};
use crate::bucket::write::{
    BucketWrite, Ceiling, Change, Cost, ExpiryPin, FlagPin, ItemChange, Line, LineForm, LoansPin,
    Nonce, Pin, Pins, Purpose, RefilledAt, To,
};
use crate::table::Key;

/// Debt, in capacities, that charges may add without touching the expiry: what the seven fill times
/// of a bucket allow for.
const DEBT_IN_CAPACITIES: i64 = 6;

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Send this; when it lands the bucket is charged.
    Charge(BucketWrite),
    /// Make the forgotten bucket again, charged.
    Recreate,
}

/// What one bucket is charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge<'a> {
    pub(crate) key: &'a Key,
    pub(crate) amounts: &'a [Amount<'a>],
    pub(crate) nonce: &'a Nonce,
    /// What the write counts of the hidden limit.
    pub(crate) cost: Cost,
}

impl Charge<'_> {
    /// The next write. `is_last` gives up being exact.
    pub(crate) fn plan(
        &self,
        view: View<'_>,
        is_last: bool,
        now: TimeMs,
    ) -> Result<Step, StoreError> {
        let image = match view {
            View::Unknown => return Ok(Step::Charge(self.fast(None, now))),
            // The bucket was forgotten full, or deleted; the use has happened all the same.
            View::Absent => return Ok(Step::Recreate),
            View::Known(known) => known.image,
        };
        if let Some(amount) = self.amounts.iter().find(|amount| !holds(image, amount)) {
            return Err(CounterFull { limit: amount.limit.name().clone() }.into());
        }
        if is_last || image.unsupported.is_some() {
            return Ok(Step::Charge(self.plain(image)));
        }
        if self.fits_fast(image, now) {
            return Ok(Step::Charge(self.fast(Some(image), now)));
        }
        let refill = Refill {
            key: self.key,
            purpose: Purpose::Charge,
            image,
            target: None,
            amounts: self.amounts,
            loan: None,
            nonce: Some(self.nonce),
            must_be_absent: MustBeAbsent::default(),
            cost: self.cost,
            now,
        };
        Ok(Step::Charge(refill.build()?))
    }

    fn fits_fast(&self, image: &Image, now: TimeMs) -> bool {
        let is_alive = image.expires_s.is_none_or(|second| second > seconds(now));
        let fits = |amount: &Amount<'_>| {
            image.limit(amount.limit.name()).is_some_and(|found| {
                found.balance <= ceiling(found.effective, image.refilled_at, now)
                    && (image.expires_s.is_none()
                        || found.balance >= debt_floor(found.effective, amount.milli))
            })
        };
        is_alive && self.amounts.iter().all(fits)
    }

    fn fast(&self, image: Option<&Image>, now: TimeMs) -> BucketWrite {
        let since = image.map_or_else(
            || cold_bound(self.amounts.iter().map(|amount| amount.limit.params()), now),
            |image| image.refilled_at,
        );
        let line = |amount: &Amount<'_>| {
            let found = image.and_then(|image| image.limit(amount.limit.name()));
            let params = amount.limit.params();
            let (stored, effective) =
                found.map_or((params, params), |found| (found.stored, found.effective));
            let form = LineForm::Fast {
                stored,
                amount: amount.milli,
                // A charge may lead into debt.
                at_least: None,
                // Without grace: a charge can wait for its refill.
                at_most: Some(Ceiling { since: ceiling(effective, since, now), or: None }),
                floor_if_expiring: Some(debt_floor(effective, amount.milli)),
            };
            Line { name: amount.limit.name().clone(), form }
        };
        let pins = Pins {
            refilled_at: RefilledAt::NotBefore { since, or: None },
            shard_count: Some(image.map_or(1, |image| image.standing.count)),
            era: image.map_or(Pin::Any, |image| image.standing.era_pin()),
            // The use has happened, on a disabled bucket too.
            flag: FlagPin::Any,
            mark: Pin::Any,
            config_read_at: Pin::Any,
            expiry: ExpiryPin::NoneOrAfter(seconds(now)),
            has_room: false,
            loans: LoansPin::Any,
            must_be_absent: SmallVec::new(),
        };
        let change = Change {
            nonce: Some(self.nonce.clone()),
            pins,
            lines: self.amounts.iter().map(line).collect(),
            item: ItemChange::spending(self.cost),
        };
        BucketWrite::change(self.key.clone(), Purpose::Charge, change)
    }

    /// How many of the amounts a charge of the last resort cannot charge: limits that the image
    /// lacks.
    pub(crate) fn left_out(&self, image: &Image) -> usize {
        self.amounts.iter().filter(|amount| image.limit(amount.limit.name()).is_none()).count()
    }

    fn plain(&self, image: &Image) -> BucketWrite {
        let held = self.amounts.iter().filter(|amount| image.limit(amount.limit.name()).is_some());
        let owe = |amount: &Amount<'_>| Line {
            name: amount.limit.name().clone(),
            form: LineForm::Owe { amount: amount.milli },
        };
        let change = Change {
            nonce: Some(self.nonce.clone()),
            pins: Pins::THERE,
            lines: held.map(owe).collect(),
            // Without a look at the debt the expiry cannot be computed: the next refill sets one
            // again.
            item: ItemChange { expiry: To::Remove, ..ItemChange::spending(self.cost) },
        };
        BucketWrite::change(self.key.clone(), Purpose::Charge, change)
    }
}

/// Whether the debt after a charge fits the 64 bits in which it is read again. The table itself
/// counts further.
fn holds(image: &Image, amount: &Amount<'_>) -> bool {
    image
        .limit(amount.limit.name())
        .is_none_or(|found| found.balance.0.checked_sub(amount.milli.0).is_some())
}

/// The smallest balance from which `amount` may be charged without a later expiry.
fn debt_floor(effective: LimitParams, amount: Milli) -> Milli {
    let debt = effective.capacity_milli.saturating_mul(DEBT_IN_CAPACITIES);
    amount.saturating_sub(Milli(debt))
}
