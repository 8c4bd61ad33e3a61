//! The write that brings every limit of a bucket to now, changes its parameters where they differ,
//! and takes or charges on the way. One builder for refills, parameter changes, charges and resets,
//! because whoever moves the refill instant owes every limit its due.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{
    BUCKET_TTL_MULTIPLIER, FOLDED, LIMITS_MAX, Limit, LimitName, LimitParams, LimitSource,
    TooManyLimits, fold_params, is_fold, time_to_fill_ms,
};
use zae_limiter_store::{LimitsInForce, StoreError};

use crate::constants::{BUCKET_TTL_MIN_MS, WCU_MILLI, WCU_PERIOD_MS};
use crate::image::{Image, ImageLimit, attr, limit_attr};
use crate::table::{
    Action, Comparison, Condition, Key, Update, compare, compare_with, number, text,
};

const WCU: LimitParams =
    LimitParams { capacity_milli: WCU_MILLI, refill_milli: WCU_MILLI, period_ms: WCU_PERIOD_MS };

/// Fields of a limit, all that disappear with it.
const FIELDS: [&str; 7] = ["tk", "tc", "cp", "ra", "rp", "rm", "gp"];

/// An amount asked or charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) milli: i64,
}

/// A refill to build.
pub(crate) struct Refill<'a> {
    pub(crate) key: &'a Key,
    pub(crate) image: &'a Image,
    /// The limits the bucket shall have; `None` leaves its parameters alone.
    pub(crate) target: Option<&'a LimitsInForce>,
    pub(crate) amounts: &'a [Amount<'a>],
    /// `None` for a write that takes nothing.
    pub(crate) nonce: Option<&'a str>,
    /// A take never leads into debt; a charge may, and is not stopped by a disabled bucket.
    pub(crate) has_floor: bool,
    /// Takes the mark off that a foreign writer of parameters leaves; only by whoever then looks at
    /// the limits.
    pub(crate) clears_mark: bool,
    /// What the write counts in `wcu`.
    pub(crate) units_milli: i64,
    pub(crate) now: i64,
}

/// The write as it grows.
#[derive(Default)]
struct Draft {
    actions: Vec<Action>,
    conditions: Vec<Condition>,
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
    pub(crate) fn build(&self) -> Result<Update, StoreError> {
        let mut draft = Draft::default();
        draft.conditions.push(Condition::Exists(attr::PK.into()));
        draft.conditions.push(compare(attr::RF, Comparison::Eq, self.image.rf));
        let folded = self.to_fold();
        let replaces = |limit: &ImageLimit| !folded.is_empty() && is_fold(&limit.name);
        for limit in self.image.limits.iter().filter(|limit| !replaces(limit)) {
            match folded.iter().any(|folded| folded.name == limit.name) {
                true => self.drop_folded(limit, &mut draft),
                false => self.limit(limit, &mut draft),
            }
        }
        self.seeds(&mut draft);
        self.remember(&folded, &mut draft);
        if draft.names > LIMITS_MAX {
            return Err(TooManyLimits { count: draft.names }.into());
        }
        Ok(self.finish(draft, true))
    }

    /// The same for a bucket that is full at this instant even if others have refilled it since the
    /// image: not pinned on the refill instant, so that it does not conflict with them. `None` when
    /// that cannot be said.
    pub(crate) fn build_blind(&self) -> Result<Option<Update>, StoreError> {
        // A retired limit wants to be dropped, and a gap to be repaid: both need the exact form.
        if self.image.limits.iter().any(|limit| limit.gp > 0 || limit.retired) {
            return Ok(None);
        }
        let due = |limit: &ImageLimit| {
            let lack = limit
                .params
                .capacity_milli
                .saturating_sub(limit.tk)
                .max(self.amount(&limit.name).unwrap_or(0));
            self.now.saturating_sub(limit.params.time_to_gain_ms(lack))
        };
        let latest = self.image.limits.iter().map(due).min().unwrap_or(self.now);
        if latest < self.image.rf {
            return Ok(None);
        }
        let mut draft = Draft::default();
        draft.conditions.push(Condition::Exists(attr::PK.into()));
        draft.conditions.push(compare(attr::RF, Comparison::Le, latest));
        draft.conditions.push(pin_stamp(self.image));
        for limit in &self.image.limits {
            let LimitParams { capacity_milli, .. } = limit.params;
            let amount = self.amount(&limit.name).unwrap_or(0);
            let add = limit.params.accrual(self.now.saturating_sub(latest), 0).0;
            let tk = limit_attr(&limit.name, "tk");
            pin_parameters(&limit.name, limit.params, &mut draft.conditions);
            draft.conditions.push(compare(
                tk.clone(),
                Comparison::Ge,
                capacity_milli.saturating_sub(add),
            ));
            draft.conditions.push(Condition::Absent(limit_attr(&limit.name, "gp")));
            draft.actions.push(Action::Set(tk, number(capacity_milli - amount)));
            self.count(&limit.name, amount, &mut draft);
            if limit.has_rm {
                draft.actions.push(Action::Remove(limit_attr(&limit.name, "rm")));
            }
            draft.keep(limit.params, capacity_milli - amount, 0);
            draft.names += 1;
        }
        Ok(Some(self.finish(draft, false)))
    }

    fn amount(&self, name: &LimitName) -> Option<i64> {
        self.amounts.iter().find(|amount| amount.limit.name() == name).map(|amount| amount.milli)
    }

    fn target_of(&self, name: &LimitName) -> Option<LimitParams> {
        self.target?.limits.iter().find(|limit| limit.name() == name).map(Limit::params)
    }

    /// Limits given with the call say nothing about the limits they do not name.
    fn retires(&self) -> bool {
        self.target.is_some_and(|target| target.source != LimitSource::Call)
    }

    fn limit(&self, limit: &ImageLimit, draft: &mut Draft) {
        let name = &limit.name;
        let tk = limit_attr(name, "tk");
        let amount = self.amount(name);
        let wanted = self.target_of(name);
        let params = wanted.unwrap_or(limit.params);
        let capacity = params.capacity_milli.min(limit.params.capacity_milli);
        let (add, remainder) =
            limit.params.accrual(self.now.saturating_sub(self.image.rf), limit.rm);
        pin_parameters(name, limit.params, &mut draft.conditions);

        // Mode by mode the result is exact for every balance that meets its condition, so the
        // balance itself is not pinned.
        let surplus = limit.tk.saturating_add(add).saturating_sub(capacity);
        let is_full = surplus >= 0;
        // What a lower capacity hides, less what overflows and is proven to.
        let hidden = limit
            .gp
            .saturating_add(limit.params.capacity_milli)
            .saturating_sub(params.capacity_milli)
            .max(0);
        let repaid = hidden.min(surplus.max(0));
        let gap = hidden.saturating_sub(repaid);
        if is_full {
            draft.conditions.push(compare(
                tk.clone(),
                Comparison::Ge,
                capacity.saturating_sub(add).saturating_add(repaid),
            ));
        } else {
            draft.conditions.push(compare(
                tk.clone(),
                Comparison::Lt,
                capacity.saturating_sub(add),
            ));
            // The expiry is reckoned from the debt of the image, so a deeper one must not slip in.
            let floor = match amount.filter(|_| self.has_floor) {
                Some(amount) => amount.saturating_sub(add),
                None => limit.tk.min(0),
            };
            draft.conditions.push(compare(tk.clone(), Comparison::Ge, floor));
        }

        let is_retired =
            if self.retires() { wanted.is_none() } else { limit.retired && wanted.is_none() };
        if is_retired && is_full && gap == 0 && amount.is_none() && self.target.is_some() {
            // Full and not configured: starting it anew would be the same.
            draft
                .actions
                .extend(FIELDS.iter().map(|field| Action::Remove(limit_attr(name, field))));
            draft.reshapes = true;
            return;
        }
        let amount = amount.unwrap_or(0);
        if is_full {
            draft.actions.push(Action::Set(tk, number(capacity.saturating_sub(amount))));
        } else if add != amount {
            draft.actions.push(Action::Add(tk, add.saturating_sub(amount)));
        }
        self.count(name, amount, draft);
        self.parametrise(limit, params, draft);
        let same_rate = (params.refill_milli, params.period_ms)
            == (limit.params.refill_milli, limit.params.period_ms);
        let remainder = if is_full || !same_rate { 0 } else { remainder };
        if remainder != 0 {
            draft.actions.push(Action::Set(limit_attr(name, "rm"), number(remainder)));
            draft.has_remainder = true;
        } else if limit.has_rm {
            draft.actions.push(Action::Remove(limit_attr(name, "rm")));
        }
        if gap != limit.gp {
            let attribute = limit_attr(name, "gp");
            draft.actions.push(if gap == 0 {
                Action::Remove(attribute)
            } else {
                Action::Set(attribute, number(gap))
            });
        }
        draft.reshapes |= is_retired != limit.retired;
        if is_retired {
            draft.retired.push(name.to_string());
        }
        let after =
            if is_full { capacity } else { limit.tk.saturating_add(add) }.saturating_sub(amount);
        draft.keep(params, after, gap);
        draft.names += usize::from(!is_fold(name));
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
                && self.accrued(limit) >= 0
        };
        let mut folded: Vec<&ImageLimit> = kept.into_iter().filter(may_go).collect();
        folded.sort_by_key(|limit| self.whole_in_ms(limit));
        folded.truncate(excess);
        folded
    }

    /// The balance of a limit now, its capacity aside.
    fn accrued(&self, limit: &ImageLimit) -> i64 {
        limit.tk.saturating_add(
            limit.params.accrual(self.now.saturating_sub(self.image.rf), limit.rm).0,
        )
    }

    /// How long until a limit is full and hides nothing.
    fn whole_in_ms(&self, limit: &ImageLimit) -> i64 {
        let lack = limit
            .params
            .capacity_milli
            .saturating_add(limit.gp)
            .saturating_sub(self.accrued(limit));
        limit.params.time_to_gain_ms(lack)
    }

    /// Removes a limit that is folded, provided that it lacks no more than the image says.
    fn drop_folded(&self, limit: &ImageLimit, draft: &mut Draft) {
        pin_parameters(&limit.name, limit.params, &mut draft.conditions);
        draft.conditions.push(compare(limit_attr(&limit.name, "tk"), Comparison::Ge, limit.tk));
        draft
            .actions
            .extend(FIELDS.iter().map(|field| Action::Remove(limit_attr(&limit.name, field))));
        draft.reshapes = true;
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
        let (params, name) =
            (fold_params(longest), FOLDED.parse().expect("the word is a valid name of a limit"));
        match before {
            Some(limit) => {
                pin_parameters(&name, limit.params, &mut draft.conditions);
                draft.conditions.push(compare(limit_attr(&name, "tk"), Comparison::Ge, limit.tk));
            }
            None => draft.conditions.push(Condition::Absent(limit_attr(&name, "tk"))),
        }
        let values = [
            ("tk", 0),
            ("tc", 0),
            ("cp", params.capacity_milli),
            ("ra", params.refill_milli),
            ("rp", params.period_ms),
        ];
        draft.actions.extend(
            values.map(|(field, value)| Action::Set(limit_attr(&name, field), number(value))),
        );
        draft.retired.push(name.to_string());
        draft.keep(params, 0, 0);
        draft.reshapes = true;
    }

    fn count(&self, name: &LimitName, amount: i64, draft: &mut Draft) {
        if amount != 0 {
            draft.actions.push(Action::Add(limit_attr(name, "tc"), amount));
        }
    }

    fn parametrise(&self, limit: &ImageLimit, params: LimitParams, draft: &mut Draft) {
        let before = limit.params;
        let changes = [
            ("cp", before.capacity_milli, params.capacity_milli),
            ("ra", before.refill_milli, params.refill_milli),
            ("rp", before.period_ms, params.period_ms),
        ];
        for (field, _, new) in changes.into_iter().filter(|(_, old, new)| old != new) {
            draft.actions.push(Action::Set(limit_attr(&limit.name, field), number(new)));
            draft.reshapes = true;
        }
    }

    /// Limits the bucket does not have yet start as [`first_seen`] says; a charge brings back one
    /// that was forgotten, as retired.
    fn seeds(&self, draft: &mut Draft) {
        let wanted = self.target.map(|target| target.limits.iter()).into_iter().flatten();
        let charged = self
            .amounts
            .iter()
            .map(|amount| amount.limit)
            .filter(|limit| self.target_of(limit.name()).is_none());
        let mut seeded: HashSet<&LimitName> = HashSet::new();
        for limit in wanted.chain(charged) {
            if self.image.limit(limit.name()).is_some() || !seeded.insert(limit.name()) {
                continue;
            }
            let (name, params) = (limit.name(), limit.params());
            let amount = self.amount(name).unwrap_or(0);
            let after = first_seen(self.image, limit, self.now).saturating_sub(amount);
            let values = [
                ("tk", after),
                ("cp", params.capacity_milli),
                ("ra", params.refill_milli),
                ("rp", params.period_ms),
            ];
            draft.actions.extend(
                values.map(|(field, value)| Action::Set(limit_attr(name, field), number(value))),
            );
            match self.image.stub(name) {
                // What is owed was read: a further charge by somebody who does not look must not be
                // lost.
                Some(stub) => {
                    draft.conditions.push(compare(limit_attr(name, "tk"), Comparison::Eq, stub.tk));
                    draft.conditions.push(Condition::Absent(limit_attr(name, "cp")));
                    self.count(name, amount, draft);
                }
                None => {
                    draft.actions.push(Action::Set(limit_attr(name, "tc"), number(amount)));
                    draft.conditions.push(Condition::Absent(limit_attr(name, "tk")));
                }
            }
            if self.target_of(name).is_none() {
                draft.retired.push(name.to_string());
            }
            draft.keep(params, after, 0);
            draft.names += 1;
            draft.reshapes = true;
        }
    }

    /// `is_pinned` when the item is as the image says in all but its balances.
    fn finish(&self, mut draft: Draft, is_pinned: bool) -> Update {
        let image = self.image;
        self.clear_stubs(&mut draft);
        let clears = self.clears_mark && image.vu.is_some();
        // Whoever holds an older image must lose, even within the same millisecond.
        let rf = if draft.reshapes || clears {
            self.now.max(image.rf.saturating_add(1))
        } else {
            self.now.max(image.rf)
        };
        let mut set = |name: &'static str, value: i64| {
            draft.actions.push(Action::Set(name.into(), number(value)))
        };
        if rf != image.rf {
            set(attr::RF, rf);
        }
        if draft.reshapes || clears {
            // A foreign change leaves no stamp, so whoever takes note of it stamps it as of now: an
            // older read must not undo it.
            let read_at = match self.target {
                Some(target) if target.source != LimitSource::Call && !clears => {
                    i64::try_from(target.stamp.0 / 1000).unwrap_or(i64::MAX)
                }
                _ => self.now,
            };
            set(attr::CA, image.ca.map_or(read_at, |ca| read_at.max(ca.saturating_add(1))));
        }
        if draft.has_remainder {
            set(attr::RMF, rf);
        } else if image.has_rmf {
            draft.actions.push(Action::Remove(attr::RMF.into()));
        }
        self.expiry(&mut draft, is_pinned);
        draft.conditions.push(match image.vu {
            Some(vu) => compare(attr::VU, Comparison::Eq, vu),
            None => Condition::Absent(attr::VU.into()),
        });
        if clears {
            draft.actions.push(Action::Remove(attr::VU.into()));
        }
        let was_retired = image.limits.iter().any(|limit| limit.retired);
        if draft.reshapes && !draft.retired.is_empty() {
            draft.actions.push(Action::Set(
                attr::RET.into(),
                AttributeValue::Ss(std::mem::take(&mut draft.retired)),
            ));
        } else if draft.reshapes && was_retired {
            draft.actions.push(Action::Remove(attr::RET.into()));
        }
        // Not a limit but a measure: exactness is not needed, so it is neither pinned nor a reason
        // to conflict.
        let gained = WCU.accrual(self.now.saturating_sub(image.rf), 0).0;
        if image.wcu_tk.saturating_add(gained) >= WCU_MILLI {
            draft
                .actions
                .push(Action::Set(attr::WCU_TK.into(), number(WCU_MILLI - self.units_milli)));
        } else if gained != self.units_milli {
            draft.actions.push(Action::Add(attr::WCU_TK.into(), gained - self.units_milli));
        }
        draft.actions.push(Action::Add(attr::WCU_TC.into(), self.units_milli));
        draft.conditions.push(compare(attr::SHARD_COUNT, Comparison::Eq, image.shard_count));
        if self.has_floor {
            draft.conditions.push(Condition::Absent(attr::DISABLED.into()));
        }
        if let Some(nonce) = self.nonce {
            draft.conditions.push(not_ours_yet(nonce));
            draft.actions.push(Action::Set(attr::LW.into(), text(nonce)));
        }
        Update { key: self.key.clone(), actions: draft.actions, conditions: draft.conditions }
    }

    /// Takes away what is left of limits that are gone, unless one of them is on its way back.
    fn clear_stubs(&self, draft: &mut Draft) {
        let is_seeded =
            |name: &LimitName| self.target_of(name).is_some() || self.amount(name).is_some();
        for stub in self.image.stubs.iter().filter(|stub| !is_seeded(&stub.name)) {
            draft.conditions.push(Condition::Absent(limit_attr(&stub.name, "cp")));
            draft
                .actions
                .extend(["tk", "tc"].map(|field| Action::Remove(limit_attr(&stub.name, field))));
        }
    }

    /// Forgotten no earlier than everything it owes has been refilled. An expiry that is left as it
    /// is must be as the image says: one that was set meanwhile, within the same millisecond, would
    /// forget what is taken or charged now.
    fn expiry(&self, draft: &mut Draft, is_pinned: bool) {
        let own_ttl = match self.target {
            Some(target) => target.ttl_ms,
            None => self.image.ttl.map(|_| 0),
        };
        match own_ttl {
            Some(own) => {
                let ttl = expiry_s(self.now, own, draft.keep_ms);
                if is_pinned && self.image.ttl.is_some_and(|stored| stored >= ttl) {
                    draft.conditions.push(compare(attr::TTL, Comparison::Ge, ttl));
                } else {
                    draft.actions.push(Action::Set(attr::TTL.into(), number(ttl)));
                }
            }
            None if is_pinned && self.image.ttl.is_none() => {
                draft.conditions.push(Condition::Absent(attr::TTL.into()))
            }
            None => draft.actions.push(Action::Remove(attr::TTL.into())),
        }
    }
}

impl Draft {
    /// Keeps the item until a limit that is left with `balance`, and hides `gap`, has long been
    /// full.
    fn keep(&mut self, params: LimitParams, balance: i64, gap: i64) {
        self.keep_ms = self.keep_ms.max(keep_ms(params, balance, gap));
    }
}

/// How long a limit with this balance needs until it may be forgotten: seven fill times, of which
/// six are the debt that charges may add without touching the expiry, and the time to earn what it
/// owes and hides.
pub(crate) fn keep_ms(params: LimitParams, balance: i64, gap: i64) -> i64 {
    let owed = balance.min(0).saturating_neg().saturating_add(gap);
    time_to_fill_ms(params)
        .saturating_mul(i64::from(BUCKET_TTL_MULTIPLIER))
        .saturating_add(params.time_to_gain_ms(owed))
}

/// The expiry in seconds of a bucket written now.
pub(crate) fn expiry_s(now: i64, own_ttl_ms: i64, keep_ms: i64) -> i64 {
    let kept_ms = own_ttl_ms.max(keep_ms).max(BUCKET_TTL_MIN_MS);
    // The largest number that is certainly in the future; the exact one does not matter so far out.
    now.saturating_add(kept_ms).saturating_add(999).div_euclid(1000)
}

/// The balance of a limit at `now`, `None` when the bucket does not have it.
pub(crate) fn balance_at(image: &Image, name: &LimitName, now: i64) -> Option<i64> {
    let limit = image.limit(name)?;
    let add = limit.params.accrual(now.saturating_sub(image.rf), limit.rm).0;
    Some(limit.tk.saturating_add(add).min(limit.params.capacity_milli))
}

/// What a limit starts with that the bucket does not have. While some that were folded may not be
/// full it may be one of them, and starts with nothing but what it owes.
pub(crate) fn first_seen(image: &Image, limit: &Limit, now: i64) -> i64 {
    let is_folding = |limit: &ImageLimit| {
        let add = limit.params.accrual(now.saturating_sub(image.rf), limit.rm).0;
        is_fold(&limit.name) && limit.tk.saturating_add(add) < limit.params.capacity_milli
    };
    let start = image.start_of(limit);
    if image.limits.iter().any(is_folding) {
        start.saturating_sub(limit.params().capacity_milli).min(0)
    } else {
        start
    }
}

/// What the hidden limit has at `now`.
pub(crate) fn wcu_after(image: &Image, now: i64) -> i64 {
    image.wcu_tk.saturating_add(WCU.accrual(now.saturating_sub(image.rf), 0).0).min(WCU_MILLI)
}

/// A lower bound of the refill instant to try without an image: half the time the fastest limit
/// needs to fill.
pub(crate) fn cold_bound(params: impl Iterator<Item = LimitParams>, now: i64) -> i64 {
    let shortest = params.map(time_to_fill_ms).min().unwrap_or(0);
    now.saturating_sub(shortest / 2)
}

/// Pins the three parameters of a limit.
pub(crate) fn pin_parameters(
    name: &LimitName,
    params: LimitParams,
    conditions: &mut Vec<Condition>,
) {
    conditions.push(compare(limit_attr(name, "cp"), Comparison::Eq, params.capacity_milli));
    conditions.push(compare(limit_attr(name, "ra"), Comparison::Eq, params.refill_milli));
    conditions.push(compare(limit_attr(name, "rp"), Comparison::Eq, params.period_ms));
}

/// Pins the set of limits and their parameters as the image has them: every change of ours moves
/// `ca`.
pub(crate) fn pin_stamp(image: &Image) -> Condition {
    match image.ca {
        Some(ca) => compare(attr::CA, Comparison::Eq, ca),
        None => Condition::Absent(attr::CA.into()),
    }
}

/// Counts a write that is not a refill in the hidden limit, which measures what the item takes.
pub(crate) fn heat(units_milli: i64) -> [Action; 2] {
    [Action::Add(attr::WCU_TK.into(), -units_milli), Action::Add(attr::WCU_TC.into(), units_milli)]
}

/// Fails when this very operation has landed already.
pub(crate) fn not_ours_yet(nonce: &str) -> Condition {
    Condition::Any(vec![
        Condition::Absent(attr::LW.into()),
        compare_with(attr::LW, Comparison::Ne, text(nonce)),
    ])
}
