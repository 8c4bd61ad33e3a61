//! The write that brings every limit of a bucket to now, changes its parameters where they differ,
//! and takes or charges on the way. One builder for refills, parameter changes and charges, because
//! a write that moves the refill instant must credit every limit.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use smallvec::SmallVec;
use smol_str::SmolStr;
use zae_limiter_core::{
    FOLDED, LIMITS_MAX, Limit, LimitName, LimitParams, LimitSource, Milli, TimeMs, TooManyLimits,
    fold_params, is_fold,
};
use zae_limiter_store::{LimitsInForce, StoreError};

use crate::bucket::expiry::{expiry_s, keep_ms};
use crate::bucket::image::{Image, ImageLimit};
use crate::bucket::write::{
    Becomes, BucketWrite, Change, Cost, ExpiryPin, FlagPin, ItemChange, Line, LineForm, LoansPin,
    Nonce, Pin, Pins, Purpose, RefilledAt, To,
};
use crate::constants::WCU_PER_WRITE_MILLI;
use crate::table::Key;

/// An amount asked or charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) milli: Milli,
}

/// A refill to build.
pub(crate) struct Refill<'a> {
    pub(crate) key: &'a Key,
    /// [`Purpose::Take`], [`Purpose::SyncOnly`], [`Purpose::Charge`], [`Purpose::Upkeep`]; with a
    /// loan [`Purpose::Lend`] or [`Purpose::Settle`].
    pub(crate) purpose: Purpose,
    pub(crate) image: &'a Image,
    /// The limits the bucket shall have; `None` leaves its parameters alone.
    pub(crate) target: Option<&'a LimitsInForce>,
    pub(crate) amounts: &'a [Amount<'a>],
    /// What is lent or comes back, in the place of the amounts.
    pub(crate) loan: Option<&'a Loan>,
    /// `None` for a write that takes nothing.
    pub(crate) nonce: Option<&'a Nonce>,
    /// Limits that must not be there, and whether the limits must be those of the image.
    pub(crate) must_be_absent: MustBeAbsent,
    /// What the write counts of the hidden limit.
    pub(crate) cost: Cost,
    pub(crate) now: TimeMs,
}

/// What a write that lends, or that ends a loan, does beside a refill.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Loan {
    /// By limit.
    pub(crate) lines: SmallVec<[LoanLine; 2]>,
    /// What the bucket has lent afterwards.
    pub(crate) lent: Option<SmolStr>,
    /// The requests that it counts.
    pub(crate) grants: i64,
}

/// What a loan does to one limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoanLine {
    pub(crate) limit: LimitName,
    /// Debited, less what comes back.
    pub(crate) amount: Milli,
    /// Of it: what comes back, and room for refunds of holders. Computed for the balance of the
    /// image: with a larger one it could be too much.
    pub(crate) back: Milli,
    /// What counts as used.
    pub(crate) used: Milli,
}

/// What a take pins of limits that are asked for and that its caller does not know of: a limit that
/// has come to the bucket meanwhile would not be held to.
#[derive(Clone, Debug, Default)]
pub(crate) struct MustBeAbsent {
    /// Limits the bucket did not have.
    pub(crate) absent: SmallVec<[LimitName; 1]>,
    /// True if the image has a name asked for as a retired limit; the write then pins `ca`, which
    /// every change of parameters moves.
    pub(crate) pins_config: bool,
}

/// The write as it grows.
#[derive(Default)]
struct Draft {
    lines: SmallVec<[Line; 2]>,
    /// Parameters, names or their being in force change.
    reshapes: bool,
    has_remainder: bool,
    retired: Vec<String>,
    /// How long the worst limit needs until it may be forgotten.
    keep_ms: i64,
    /// How many limits there are afterwards, without the one that remembers others.
    names: usize,
}

impl Refill<'_> {
    /// Pinned on the refill instant of the image.
    pub(crate) fn build(self) -> Result<BucketWrite, StoreError> {
        let mut draft = Draft::default();
        let folded = self.to_fold();
        let replaces = |limit: &ImageLimit| !folded.is_empty() && is_fold(&limit.name);
        for limit in self.image.limits.iter().filter(|limit| !replaces(limit)) {
            if folded.iter().any(|folded| folded.name == limit.name) {
                // Provided that it lacks no more than the image says.
                draft.drop(limit, limit.balance);
            } else {
                self.limit(limit, &mut draft);
            }
        }
        self.seeds(&mut draft);
        self.remember(&folded, &mut draft);
        if draft.names > LIMITS_MAX {
            return Err(TooManyLimits { count: draft.names }.into());
        }
        Ok(self.finish(draft, RefilledAt::Exactly(self.image.refilled_at)))
    }

    /// The same for a bucket that is full at this instant even if others have refilled it since the
    /// image: not pinned on the refill instant, so that it does not conflict with them. `None` when
    /// that cannot be said.
    ///
    /// An earlier bound of the instant lets more be taken since the image, a later one lets others
    /// refill since. With a grace most takes do not refill: they get half of the time there is to
    /// spare. Without one every take refills.
    pub(crate) fn build_blind(&self, grace_ms: i64) -> Option<BucketWrite> {
        // A retired limit wants to be dropped, and a gap to be repaid: both need the exact form.
        if self.image.limits.iter().any(|limit| limit.gap > Milli::ZERO || limit.retired) {
            return None;
        }
        let due = |limit: &ImageLimit| {
            let lack = limit.effective.full().saturating_sub(limit.balance);
            let lack = lack.max(self.amount(&limit.name).unwrap_or_default());
            self.now.plus_ms(limit.effective.time_to_gain_ms(lack.0).saturating_neg())
        };
        let latest = self.image.limits.iter().map(due).min().unwrap_or(self.now);
        let spare_ms = latest.0.saturating_sub(self.image.refilled_at.0);
        if spare_ms < 0 {
            return None;
        }
        let latest = if grace_ms > 0 { latest.plus_ms(-(spare_ms / 2)) } else { latest };
        let mut draft = Draft::default();
        for limit in &self.image.limits {
            let full = limit.effective.full();
            let amount = self.amount(&limit.name).unwrap_or_default();
            let gained = Milli(limit.effective.accrual(self.now.since(latest), 0).0);
            let form = LineForm::Fill {
                stored: limit.stored,
                full,
                amount,
                used: amount,
                at_least: full.saturating_sub(gained),
                has_no_gap: true,
                becomes: Becomes {
                    stored: limit.stored,
                    remainder: if limit.has_remainder { To::Remove } else { To::Keep },
                    gap: To::Keep,
                },
            };
            draft.lines.push(Line { name: limit.name.clone(), form });
            draft.keep(limit.effective, full.saturating_sub(amount), Milli::ZERO);
            draft.names += 1;
        }
        Some(self.finish(draft, RefilledAt::NotAfter(latest)))
    }

    fn amount(&self, name: &LimitName) -> Option<Milli> {
        if self.loan.is_some() {
            return self.loan_line(name).map(|line| line.amount);
        }
        self.amounts.iter().find(|amount| amount.limit.name() == name).map(|amount| amount.milli)
    }

    fn loan_line(&self, name: &LimitName) -> Option<&LoanLine> {
        self.loan?.lines.iter().find(|line| line.limit == *name)
    }

    fn target_of(&self, name: &LimitName) -> Option<LimitParams> {
        self.target?.limits.iter().find(|limit| limit.name() == name).map(Limit::params)
    }

    /// Limits given with the call say nothing about the limits they do not name.
    fn retires(&self) -> bool {
        self.target.is_some_and(|target| target.source != LimitSource::Call)
    }

    /// A take never leads into debt; a charge may.
    fn may_owe(&self) -> bool {
        self.purpose == Purpose::Charge
    }

    /// A disabled bucket does not stop what is after the fact.
    fn is_after_the_fact(&self) -> bool {
        matches!(self.purpose, Purpose::Charge | Purpose::Settle)
    }

    fn limit(&self, limit: &ImageLimit, draft: &mut Draft) {
        let amount = self.amount(&limit.name);
        let wanted = self.target_of(&limit.name);
        let stored = wanted.unwrap_or(limit.stored);
        let effective = self.image.effective(&limit.name, stored);
        let full = effective.full().min(limit.effective.full());
        let since = self.now.since(self.image.refilled_at);
        let (gained, remainder) = limit.effective.accrual(since, limit.remainder);
        let gained = Milli(gained);

        // Mode by mode the result is exact for every balance that meets its condition, so the
        // balance itself is not pinned.
        let surplus = limit.balance.saturating_add(gained).saturating_sub(full);
        let is_full = !surplus.is_negative();
        // The amount that a lower capacity hides, less the part that is proven to overflow.
        let hidden = limit
            .gap
            .saturating_add(limit.effective.full())
            .saturating_sub(effective.full())
            .max(Milli::ZERO);
        let repaid = hidden.min(surplus.max(Milli::ZERO));
        let gap = hidden.saturating_sub(repaid);
        let full_at_least = full.saturating_sub(gained).saturating_add(repaid);

        let is_retired =
            if self.retires() { wanted.is_none() } else { limit.retired && wanted.is_none() };
        if is_retired && is_full && gap == Milli::ZERO && amount.is_none() && self.target.is_some()
        {
            // Full and not configured: starting it anew would be the same.
            return draft.drop(limit, full_at_least);
        }
        let same_rate = (stored.refill_milli, stored.period_ms)
            == (limit.stored.refill_milli, limit.stored.period_ms);
        let remainder = if is_full || !same_rate { 0 } else { remainder };
        let becomes = Becomes {
            stored,
            remainder: match remainder {
                0 if limit.has_remainder => To::Remove,
                0 => To::Keep,
                remainder => To::Set(remainder),
            },
            gap: match gap {
                gap if gap == limit.gap => To::Keep,
                Milli::ZERO => To::Remove,
                gap => To::Set(gap),
            },
        };
        draft.has_remainder |= remainder != 0;
        draft.reshapes |= stored != limit.stored || is_retired != limit.retired;
        if is_retired {
            draft.retired.push(limit.name.to_string());
        }
        let taken = amount.unwrap_or_default();
        let loan = self.loan_line(&limit.name);
        let used = loan.map_or(taken, |line| line.used);
        let form = if is_full {
            LineForm::Fill {
                stored: limit.stored,
                full,
                amount: taken,
                used,
                at_least: full_at_least,
                has_no_gap: false,
                becomes,
            }
        } else {
            // The expiry is reckoned from the debt of the image, so a deeper one must not slip in.
            let brings = loan.is_some() && taken <= Milli::ZERO;
            let at_least = match amount.filter(|_| !self.may_owe() && !brings) {
                Some(amount) => amount.saturating_sub(gained),
                None => limit.balance.min(Milli::ZERO),
            };
            let mut below = full.saturating_sub(gained);
            if loan.is_some_and(|line| line.back > Milli::ZERO) {
                below = below.min(limit.balance.saturating_add(Milli(1)));
            }
            let (stored, amount) = (limit.stored, taken);
            LineForm::Add { stored, gained, amount, used, below, at_least, becomes }
        };
        draft.lines.push(Line { name: limit.name.clone(), form });
        let after = if is_full { full } else { limit.balance.saturating_add(gained) };
        draft.keep(effective, after.saturating_sub(taken), gap);
        draft.names += usize::from(!is_fold(&limit.name));
    }

    /// Retired limits to give up, the nearest to full first, so that the rest fit one item: a write
    /// of more would be longer than DynamoDB takes. See [`zae_limiter_core::FOLDED`].
    fn to_fold(&self) -> Vec<&ImageLimit> {
        let wanted = self.target.map_or(0, |target| target.limits.len());
        if self.image.limits.len() + wanted + self.amounts.len() <= LIMITS_MAX {
            return Vec::new();
        }
        let is_wanted = |name: &LimitName| self.target_of(name).is_some();
        let is_retired =
            |limit: &ImageLimit| !is_wanted(&limit.name) && (self.retires() || limit.retired);
        let is_whole = |limit: &ImageLimit| {
            is_retired(limit) && self.target.is_some() && self.whole_in_ms(limit) == 0
        };
        let kept: Vec<&ImageLimit> = self
            .image
            .limits
            .iter()
            .filter(|limit| self.amount(&limit.name).is_some() || !is_whole(limit))
            .collect();
        let is_new = |name: &LimitName| self.image.limit(name).is_none();
        let charged =
            self.amounts.iter().map(|amount| amount.limit.name()).filter(|name| !is_wanted(name));
        let names = self
            .target
            .into_iter()
            .flat_map(|target| target.limits.iter().map(Limit::name))
            .chain(charged);
        let carried = kept.iter().filter(|limit| !is_fold(&limit.name)).count();
        let excess =
            (carried + names.filter(|name| is_new(name)).count()).saturating_sub(LIMITS_MAX);
        // A debt would be forgiven.
        let may_go = |limit: &&ImageLimit| {
            is_retired(limit)
                && !is_fold(&limit.name)
                && self.amount(&limit.name).is_none()
                && !self.image.accrued(limit, self.now).is_negative()
        };
        let mut folded: Vec<&ImageLimit> = kept.into_iter().filter(may_go).collect();
        folded.sort_by_key(|limit| self.whole_in_ms(limit));
        folded.truncate(excess);
        folded
    }

    /// How long until a limit is full and hides nothing.
    fn whole_in_ms(&self, limit: &ImageLimit) -> i64 {
        let whole = limit.effective.full().saturating_add(limit.gap);
        let lack = whole.saturating_sub(self.image.accrued(limit, self.now));
        limit.effective.time_to_gain_ms(lack.0)
    }

    /// Remembers, in the place of those that are folded, how long the last of them is not full.
    fn remember(&self, folded: &[&ImageLimit], draft: &mut Draft) {
        if folded.is_empty() {
            return;
        }
        let before = self.image.limits.iter().find(|limit| is_fold(&limit.name));
        let longest = folded
            .iter()
            .copied()
            .chain(before)
            .map(|limit| self.whole_in_ms(limit))
            .max()
            .unwrap_or(0);
        let params = fold_params(longest);
        let name: LimitName = FOLDED.parse().expect("the word is a valid name of a limit");
        let before = before.map(|limit| (limit.stored, limit.balance));
        draft.retired.push(name.to_string());
        draft.lines.push(Line { name, form: LineForm::Fold { before, params } });
        draft.keep(params, Milli::ZERO, Milli::ZERO);
        draft.reshapes = true;
    }

    /// Limits the bucket does not have yet start as [`Image::first_seen`] says; a charge brings
    /// back one that was forgotten, as retired.
    fn seeds(&self, draft: &mut Draft) {
        let wanted = self.target.map(|target| target.limits.iter()).into_iter().flatten();
        let charged = self
            .amounts
            .iter()
            .map(|amount| amount.limit)
            .filter(|limit| self.target_of(limit.name()).is_none());
        let mut seeded: HashSet<&LimitName> = HashSet::new();
        for limit in wanted.chain(charged) {
            let (name, params) = (limit.name(), limit.params());
            if self.image.limit(name).is_some() || !seeded.insert(name) {
                continue;
            }
            let start = self.image.first_seen(limit, self.now);
            let amount = self.amount(name).unwrap_or_default();
            let stub = self.image.stub(name).map(|stub| stub.balance);
            let form = LineForm::Seed { params, start, amount, stub };
            draft.lines.push(Line { name: name.clone(), form });
            if self.target_of(name).is_none() {
                draft.retired.push(name.to_string());
            }
            draft.keep(
                self.image.effective(name, params),
                start.saturating_sub(amount),
                Milli::ZERO,
            );
            draft.names += 1;
            draft.reshapes = true;
        }
    }

    fn finish(&self, mut draft: Draft, refilled_at: RefilledAt) -> BucketWrite {
        let image = self.image;
        self.clear_stubs(&mut draft);
        // A charge leaves the mark to the next take, which looks at the limits.
        let clears_mark = !self.is_after_the_fact() && image.mark.is_some();
        let moves = draft.reshapes || clears_mark;
        // A writer with an older image must lose, even within the same millisecond.
        let at = self.now.max(image.refilled_at.plus_ms(i64::from(moves)));
        let is_blind = matches!(refilled_at, RefilledAt::NotAfter(_));
        let (expiry_pin, expiry) = self.expiry(&draft, is_blind);
        let was_retired = image.limits.iter().any(|limit| limit.retired);
        let item = ItemChange {
            refilled_at: (at != image.refilled_at).then_some(at),
            config_read_at: moves.then(|| self.config_read_at(clears_mark)),
            remainders_at: match draft.has_remainder {
                true => To::Set(at),
                false if image.has_remainders => To::Remove,
                false => To::Keep,
            },
            expiry,
            clears_mark,
            retired: match draft.reshapes {
                true if !draft.retired.is_empty() => To::Set(draft.retired),
                true if was_retired => To::Remove,
                _ => To::Keep,
            },
            flag: None,
            room: image.room_after(self.cost.units_milli, self.now),
            failed_milli: self.cost.failed_milli,
            takes_milli: match (self.purpose, self.loan) {
                (_, Some(loan)) => loan.grants.saturating_mul(WCU_PER_WRITE_MILLI),
                (Purpose::Take, None) => WCU_PER_WRITE_MILLI,
                _ => 0,
            },
            undoes: None,
            loans: match self.loan.map(|loan| &loan.lent) {
                Some(Some(lent)) => To::Set(lent.clone()),
                Some(None) if image.loans.is_some() => To::Remove,
                _ => To::Keep,
            },
            tree: None,
        };
        let pins_config = is_blind || self.must_be_absent.pins_config;
        let pins = Pins {
            refilled_at,
            shard_count: Some(image.standing.count),
            era: image.standing.era_pin(),
            flag: if self.is_after_the_fact() { FlagPin::Any } else { FlagPin::Enabled },
            mark: Pin::seen(image.mark),
            config_read_at: if pins_config { image.config_pin() } else { Pin::Any },
            expiry: expiry_pin,
            has_room: false,
            loans: match self.loan {
                Some(_) => LoansPin::seen(Some(image)),
                None => LoansPin::Any,
            },
            must_be_absent: self.must_be_absent.absent.clone(),
        };
        let change = Change { nonce: self.nonce.cloned(), pins, lines: draft.lines, item };
        BucketWrite::change(self.key.clone(), self.purpose, change)
    }

    /// A foreign change leaves no stamp, so the write that notes the change stamps it as of now: an
    /// older read must not undo it.
    fn config_read_at(&self, clears_mark: bool) -> i64 {
        let read_at = match self.target {
            Some(target) if target.source != LimitSource::Call && !clears_mark => {
                i64::try_from(target.stamp.0 / 1000).unwrap_or(i64::MAX)
            }
            _ => self.now.0,
        };
        self.image.config_read_at.map_or(read_at, |before| read_at.max(before.saturating_add(1)))
    }

    /// Takes away what is left of limits that are gone, unless one of them is on its way back.
    fn clear_stubs(&self, draft: &mut Draft) {
        let is_seeded =
            |name: &LimitName| self.target_of(name).is_some() || self.amount(name).is_some();
        let stubs = self.image.stubs.iter().filter(|stub| !is_seeded(&stub.name));
        draft
            .lines
            .extend(stubs.map(|stub| Line { name: stub.name.clone(), form: LineForm::Clear }));
    }

    /// The item expires no earlier than its debt has been refilled. An expiry that is left as it is
    /// must be as the image says: one that was set meanwhile, within the same millisecond, would
    /// forget what is taken or charged now.
    fn expiry(&self, draft: &Draft, is_blind: bool) -> (ExpiryPin, To<i64>) {
        let own_ttl = match self.target {
            // A shard that is swept alone would come back full.
            _ if !self.image.standing.is_alone() => None,
            Some(target) => target.ttl_ms,
            None => self.image.expires_s.map(|_| 0),
        };
        let Some(own_ttl_ms) = own_ttl else {
            return match self.image.expires_s {
                None if !is_blind => (ExpiryPin::Absent, To::Keep),
                _ => (ExpiryPin::Any, To::Remove),
            };
        };
        let expires_s = expiry_s(self.now, own_ttl_ms, draft.keep_ms);
        if !is_blind && self.image.expires_s.is_some_and(|stored| stored >= expires_s) {
            (ExpiryPin::NotBefore(expires_s), To::Keep)
        } else {
            (ExpiryPin::Any, To::Set(expires_s))
        }
    }
}

impl Draft {
    /// Keeps the item until a limit that is left with `balance`, and hides `gap`, has long been
    /// full.
    fn keep(&mut self, params: LimitParams, balance: Milli, gap: Milli) {
        self.keep_ms = self.keep_ms.max(keep_ms(params, balance, gap));
    }

    /// Takes a limit away that has at least this balance.
    fn drop(&mut self, limit: &ImageLimit, at_least: Milli) {
        let form = LineForm::Drop { stored: limit.stored, at_least };
        self.lines.push(Line { name: limit.name.clone(), form });
        self.reshapes = true;
    }
}
