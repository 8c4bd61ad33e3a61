//! Which write charges a bucket after the fact, given what is known of it. Pure. A charge is never
//! refused: it may lead into debt, and when every exact form has lost its race it is made without
//! looking.

use zae_limiter_core::{CounterFull, LimitParams};
use zae_limiter_store::StoreError;

use crate::debit::View;
use crate::image::{Image, attr, limit_attr};
use crate::refill::{self, Amount, Refill, pin_parameters};
use crate::table::{Action, Comparison, Condition, Key, Update, compare, text};
use crate::write::{BucketWrite, Writer};

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
    pub(crate) nonce: &'a str,
    /// What the write counts in `wcu`.
    pub(crate) units_milli: i64,
}

impl Charge<'_> {
    /// The next write. `is_last` gives up being exact.
    pub(crate) fn plan(&self, view: View<'_>, is_last: bool, now: i64) -> Result<Step, StoreError> {
        let image = match view {
            View::Unknown => {
                let since = refill::cold_bound(
                    self.amounts.iter().map(|amount| amount.limit.params()),
                    now,
                );
                return Ok(Step::Charge(self.fast(since, 1, |amount| amount.limit.params(), now)));
            }
            // Forgotten full, or deleted: what was used was used.
            View::Absent => return Ok(Step::Recreate),
            View::Known { image, .. } => image,
        };
        if let Some(amount) = self.amounts.iter().find(|amount| !holds(image, amount)) {
            return Err(CounterFull { limit: amount.limit.name().clone() }.into());
        }
        if is_last || image.unsupported.is_some() {
            return Ok(Step::Charge(self.plain(image)));
        }
        if self.fits_fast(image, now) {
            let params = |amount: &Amount<'_>| {
                image.limit(amount.limit.name()).map_or(amount.limit.params(), |found| found.params)
            };
            return Ok(Step::Charge(self.fast(image.rf, image.shard_count, params, now)));
        }
        let refill = Refill {
            key: self.key,
            image,
            target: None,
            amounts: self.amounts,
            nonce: Some(self.nonce),
            has_floor: false,
            clears_mark: false,
            units_milli: self.units_milli,
            now,
        };
        Ok(Step::Charge(BucketWrite::update(Writer::ChargeRefill, refill.build()?)))
    }

    fn fits_fast(&self, image: &Image, now: i64) -> bool {
        let is_alive = image.ttl.is_none_or(|ttl| ttl > now.div_euclid(1000));
        let fits = |amount: &Amount<'_>| {
            image.limit(amount.limit.name()).is_some_and(|found| {
                found.tk <= ceiling(found.params, image.rf, now)
                    && (image.ttl.is_none() || found.tk >= debt_floor(found.params, amount.milli))
            })
        };
        is_alive && self.amounts.iter().all(fits)
    }

    fn fast(
        &self,
        since: i64,
        shard_count: i64,
        params: impl Fn(&Amount<'_>) -> LimitParams,
        now: i64,
    ) -> BucketWrite {
        let mut conditions = vec![Condition::Exists(attr::PK.into())];
        let mut actions = Vec::new();
        let mut alive = vec![compare(attr::TTL, Comparison::Gt, now.div_euclid(1000))];
        for amount in self.amounts {
            let (name, params) = (amount.limit.name(), params(amount));
            let tk = limit_attr(name, "tk");
            pin_parameters(name, params, &mut conditions);
            conditions.push(compare(tk.clone(), Comparison::Le, ceiling(params, since, now)));
            alive.push(compare(tk.clone(), Comparison::Ge, debt_floor(params, amount.milli)));
            actions.push(Action::Add(tk, amount.milli.saturating_neg()));
            actions.push(Action::Add(limit_attr(name, "tc"), amount.milli));
        }
        conditions.push(compare(attr::RF, Comparison::Ge, since));
        conditions.push(compare(attr::SHARD_COUNT, Comparison::Eq, shard_count));
        conditions
            .push(Condition::Any(vec![Condition::Absent(attr::TTL.into()), Condition::All(alive)]));
        conditions.push(refill::not_ours_yet(self.nonce));
        actions.push(Action::Set(attr::LW.into(), text(self.nonce)));
        actions.extend(refill::heat(self.units_milli));
        BucketWrite::update(
            Writer::ChargeFast,
            Update { key: self.key.clone(), actions, conditions },
        )
    }

    /// How many of the amounts [`Writer::ChargePlain`] cannot charge: limits that the image lacks.
    pub(crate) fn left_out(&self, image: &Image) -> usize {
        self.amounts.iter().filter(|amount| image.limit(amount.limit.name()).is_none()).count()
    }

    fn plain(&self, image: &Image) -> BucketWrite {
        let mut conditions: Vec<Condition> =
            vec![Condition::Exists(attr::PK.into()), refill::not_ours_yet(self.nonce)];
        // Without a look at the debt there is no saying when it is paid: the next refill gives the
        // bucket an expiry again.
        let mut actions =
            vec![Action::Set(attr::LW.into(), text(self.nonce)), Action::Remove(attr::TTL.into())];
        for amount in
            self.amounts.iter().filter(|amount| image.limit(amount.limit.name()).is_some())
        {
            let tk = limit_attr(amount.limit.name(), "tk");
            conditions.push(Condition::Exists(tk.clone()));
            actions.push(Action::Add(tk, amount.milli.saturating_neg()));
            actions.push(Action::Add(limit_attr(amount.limit.name(), "tc"), amount.milli));
        }
        actions.extend(refill::heat(self.units_milli));
        BucketWrite::update(
            Writer::ChargePlain,
            Update { key: self.key.clone(), actions, conditions },
        )
    }
}

/// Whether the debt after a charge is one that can be read again. The table itself counts further.
fn holds(image: &Image, amount: &Amount<'_>) -> bool {
    image
        .limit(amount.limit.name())
        .is_none_or(|found| found.tk.checked_sub(amount.milli).is_some())
}

/// The largest balance that has not overflowed since `since`. Without grace: a charge can wait for
/// its refill.
fn ceiling(params: LimitParams, since: i64, now: i64) -> i64 {
    params.capacity_milli.saturating_sub(params.accrual_at_most(now.saturating_sub(since)))
}

/// The smallest balance from which `amount` may be charged without a later expiry.
fn debt_floor(params: LimitParams, amount: i64) -> i64 {
    amount.saturating_sub(params.capacity_milli.saturating_mul(DEBT_IN_CAPACITIES))
}
