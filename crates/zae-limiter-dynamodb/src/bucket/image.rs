//! A bucket item as it came back from the table, parsed once.

#[cfg(test)]
mod tests;

use aws_sdk_dynamodb::types::AttributeValue;
use smallvec::SmallVec;
use smol_str::SmolStr;
use zae_limiter_core::{
    BucketState, ConfigStamp, Flag, Limit, LimitName, LimitParams, LimitState, Milli, TimeMs,
    is_fold,
};
use zae_limiter_store::{LimitsInForce, StoreError, StoreErrorKind};

use crate::bucket::loans::Loans;
use crate::bucket::shard::Standing;
use crate::bucket::write::{Pin, Room};
use crate::constants::{WCU_MILLI, WCU_NEEDED_MILLI, WCU_PERIOD_MS};
use crate::records::attr;
use crate::records::item::{config, corrupt, shown};
use crate::table::Item;

/// Item-level attributes of features this version does not have.
const UNSUPPORTED: [(&str, &str); 4] = [
    ("sched", "schedules"),
    ("rsched", "calendar quotas"),
    ("sched_tz", "schedules"),
    ("bypass", "bypass"),
];

/// Limit-level attributes of features this version does not have.
const UNSUPPORTED_FIELDS: [(&str, &str); 9] = [
    ("sched", "schedules"),
    ("rsched", "calendar quotas"),
    ("gc", "quotas"),
    ("tu", "top-ups"),
    ("rn", "quotas"),
    ("rsa", "session quotas"),
    ("ws", "session quotas"),
    ("wa", "session quotas"),
    ("soft", "soft limits"),
];

/// The Python package writes this beside a limit that it adds to a bucket: the limit has no
/// schedule.
const NO_SCHEDULE: &str = "-";

/// What an item has of one limit.
struct Found<'a> {
    name: &'a str,
    /// Attribute and value, in the order of [`attr::LIMIT`].
    values: [Option<(&'a str, &'a AttributeValue)>; attr::LIMIT.len()],
}

/// One limit of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageLimit {
    pub(crate) name: LimitName,
    /// The parameters of the whole bucket, as the item has them: what a write pins.
    pub(crate) stored: LimitParams,
    /// The share of this shard: what every formula goes by.
    pub(crate) effective: LimitParams,
    /// Negative is debt.
    pub(crate) balance: Milli,
    /// All that was ever taken and not given back.
    pub(crate) used: Milli,
    /// Zero unless the remainders belong to the present refill instant.
    pub(crate) remainder: i64,
    /// Whether the attribute is there, whatever it is worth.
    pub(crate) has_remainder: bool,
    /// What a lowered capacity hides.
    pub(crate) gap: Milli,
    /// What the shards had taken that folds have removed.
    pub(crate) folded_used: Milli,
    pub(crate) retired: bool,
}

/// What is left of a limit that is gone: a balance and a count without parameters. A lease of the
/// Python package ends with `ADD tk -d, tc +d`, also when the limit is gone by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    pub(crate) name: LimitName,
    pub(crate) balance: Milli,
}

/// A bucket item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) refilled_at: TimeMs,
    /// Which shard of its bucket it is.
    pub(crate) standing: Standing,
    pub(crate) expires_s: Option<i64>,
    /// Whether the bucket expires once it is folded.
    pub(crate) expires_later: bool,
    /// When the item was split last.
    pub(crate) split_at: Option<TimeMs>,
    /// Left by a foreign writer of parameters.
    pub(crate) mark: Option<i64>,
    pub(crate) flag: Flag,
    /// How often `disabled` was written.
    pub(crate) flag_count: Option<i64>,
    /// The nonce of the last take or charge.
    pub(crate) last_nonce: Option<SmolStr>,
    /// When the configuration behind the parameters was read, in ms.
    pub(crate) config_read_at: Option<i64>,
    /// Whether limits have remainders, whatever they are worth.
    pub(crate) has_remainders: bool,
    /// What the hidden limit has: room for writes, in thousandths.
    pub(crate) room_milli: i64,
    /// Takes that have landed and writes that have failed, in thousandths: what a crowd does.
    pub(crate) writes_milli: i64,
    /// Write units that a write of the item costs: one per KiB.
    pub(crate) units: i64,
    /// By name.
    pub(crate) limits: SmallVec<[ImageLimit; 3]>,
    /// No take is held to these; the next refill removes them.
    pub(crate) stubs: Vec<Stub>,
    /// What the bucket has lent, and may not have got back.
    pub(crate) loans: Option<Box<Loans>>,
    /// A feature this version cannot honour, and the attribute that says so.
    pub(crate) unsupported: Option<(String, &'static str)>,
}

impl Image {
    /// Parses an item. `Corrupt` for one that no writer of this protocol leaves.
    pub(crate) fn parse(item: &Item) -> Result<Image, StoreError> {
        Image::parse_after(item, None)
    }

    /// The same for a bucket that was seen before: names it had then need not be made again. Goes
    /// over the item once, because every look into its map would cost a hash.
    pub(crate) fn parse_after(item: &Item, before: Option<&Image>) -> Result<Image, StoreError> {
        // An item without the attribute keeps FAST away, which would fail on it for ever; the next
        // refill brings the attribute back.
        let mut image = Image { room_milli: WCU_NEEDED_MILLI - 1, ..Image::default() };
        let (mut refilled_at, mut shard_count, mut remainders_at) = (None, None, None);
        let mut bytes = 0;
        let (mut retired, mut limits): (&[String], SmallVec<[Found<'_>; 4]>) = Default::default();
        for (key, value) in item {
            let number = || number_in(item, key, value);
            bytes += key.len() + size_of(value);
            match key.as_str() {
                attr::PK => image.standing.shard = shard_in(value),
                attr::REFILLED_AT => refilled_at = Some(number()?),
                attr::SHARD_COUNT => shard_count = Some(number()?),
                attr::TTL => image.expires_s = Some(number()?),
                attr::MARK => image.mark = Some(number()?),
                attr::DISABLED => image.flag = flag_in(item, value)?,
                attr::FLAG_COUNT => image.flag_count = Some(number()?),
                attr::LAST_NONCE => image.last_nonce = value.as_s().ok().map(SmolStr::new),
                attr::CONFIG_READ_AT => image.config_read_at = Some(number()?),
                attr::REMAINDERS_AT => remainders_at = Some(number()?),
                attr::RETIRED => retired = value.as_ss().map_or(&[], Vec::as_slice),
                attr::ROOM => image.room_milli = number()?,
                attr::TAKES | attr::FAILED => {
                    image.writes_milli = image.writes_milli.saturating_add(number()?);
                }
                attr::PINNED => image.standing.pinned = value.as_s().ok().map(SmolStr::new),
                attr::ERA => image.standing.era = Some(number()?),
                attr::EXPIRES_LATER => image.expires_later = true,
                attr::SPLIT_AT => image.split_at = Some(TimeMs(number()?)),
                attr::LENT => image.loans = Some(Box::new(Loans::parse(item, value)?)),
                key => image.sort(key, value, &mut limits),
            }
        }
        let missing = |name| move || corrupt(item, name, "is missing");
        image.refilled_at = TimeMs(refilled_at.ok_or_else(missing(attr::REFILLED_AT))?);
        // Every write pins the count: no write could land on an item without it.
        image.standing.count = shard_count.ok_or_else(missing(attr::SHARD_COUNT))?;
        if image.standing.count < 1 {
            let problem = format!("is {}; a bucket has at least one shard", image.standing.count);
            return Err(corrupt(item, attr::SHARD_COUNT, problem));
        }
        if !image.standing.is_possible() {
            image.unsupported = Some((attr::SHARD_COUNT.to_owned(), "another number of shards"));
        }
        image.units = i64::try_from(bytes.div_ceil(1024)).unwrap_or(1);
        image.has_remainders = remainders_at.is_some();
        let remainders_count = remainders_at == refilled_at;
        for limit in limits {
            image.add(item, &limit, before, remainders_count)?;
        }
        for limit in &mut image.limits {
            limit.retired = retired.iter().any(|retired| limit.name.as_str() == retired);
        }
        image.limits.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(image)
    }

    /// An attribute of a limit, of a feature this version does not have, or of nothing that
    /// matters.
    fn sort<'a>(
        &mut self,
        key: &'a str,
        value: &'a AttributeValue,
        limits: &mut SmallVec<[Found<'a>; 4]>,
    ) {
        let of_limit = key.strip_prefix("b_").and_then(|rest| rest.rsplit_once('_'));
        let place = of_limit.and_then(|(_, field)| attr::LIMIT.iter().position(|f| *f == field));
        if let (Some((name, _)), Some(place)) = (of_limit, place) {
            if name == attr::WCU {
                return;
            }
            let index = limits.iter().position(|limit| limit.name == name).unwrap_or_else(|| {
                limits.push(Found { name, values: [None; attr::LIMIT.len()] });
                limits.len() - 1
            });
            limits[index].values[place] = Some((key, value));
            return;
        }
        let says_none = matches!(value, AttributeValue::S(text) if text == NO_SCHEDULE);
        let feature = match of_limit {
            Some(_) if says_none => None,
            Some((_, field)) => UNSUPPORTED_FIELDS.iter().find(|(known, _)| *known == field),
            None => UNSUPPORTED.iter().find(|(known, _)| *known == key),
        };
        if let Some((_, feature)) = feature {
            self.unsupported = Some((key.to_owned(), feature));
        }
    }

    fn add(
        &mut self,
        item: &Item,
        found: &Found<'_>,
        before: Option<&Image>,
        remainders_count: bool,
    ) -> Result<(), StoreError> {
        // Every limit has a balance; what belongs to none is no limit.
        let Some((key, balance)) = found.values[0] else { return Ok(()) };
        let known = before.and_then(|before| {
            before.limits.iter().find(|known| known.name.as_str() == found.name)
        });
        let name: LimitName = match known {
            Some(known) => known.name.clone(),
            None => found.name.parse().map_err(|error| {
                corrupt(item, key, format_args!("is not named after a limit: {error}"))
            })?,
        };
        let balance = Milli(number_in(item, key, balance)?);
        let [_, others @ ..] = found.values;
        if let [_, None, None, None, ..] = others {
            self.stubs.push(Stub { name, balance });
            return Ok(());
        }
        let mut numbers = [None; attr::LIMIT.len() - 1];
        for (number, value) in numbers.iter_mut().zip(others) {
            *number = value.map(|(key, value)| number_in(item, key, value)).transpose()?;
        }
        let [used, capacity, refill, period, remainder, gap, folded_used] = numbers;
        let required = |number: Option<i64>, field| {
            number.ok_or_else(|| corrupt(item, &attr::of_limit(&name, field), "is missing"))
        };
        let stored = LimitParams {
            capacity_milli: required(capacity, attr::CAPACITY)?,
            refill_milli: required(refill, attr::REFILL)?,
            period_ms: required(period, attr::PERIOD)?,
        };
        if stored.refill_milli <= 0 {
            self.unsupported = Some((attr::of_limit(&name, attr::REFILL).into(), "quotas"));
        }
        let effective = self.effective(&name, stored);
        let counts =
            |remainder: &i64| remainders_count && (0..effective.period_ms).contains(remainder);
        self.limits.push(ImageLimit {
            name,
            stored,
            effective,
            balance,
            used: Milli(used.unwrap_or(0)),
            remainder: remainder.filter(counts).unwrap_or(0),
            has_remainder: remainder.is_some(),
            gap: Milli(gap.unwrap_or(0).max(0)),
            folded_used: Milli(folded_used.unwrap_or(0)),
            retired: false,
        });
        Ok(())
    }

    /// Refuses an item with features this version cannot honour.
    pub(crate) fn check_supported(&self, pk: &str) -> Result<(), StoreError> {
        match &self.unsupported {
            None => Ok(()),
            Some((attribute, feature)) => Err(StoreError::new(
                StoreErrorKind::Incompatible,
                "consume",
                format!(
                    "the bucket {pk} uses {feature} (attribute {attribute:?}), which this version does not support"
                ),
            )),
        }
    }

    /// The limit of that name.
    pub(crate) fn limit(&self, name: &LimitName) -> Option<&ImageLimit> {
        self.limits.iter().find(|limit| limit.name == *name)
    }

    /// What is left of a limit of that name that is gone.
    pub(crate) fn stub(&self, name: &LimitName) -> Option<&Stub> {
        self.stubs.iter().find(|stub| stub.name == *name)
    }

    /// What a limit that is not here starts with: full, less what was charged to it while it was
    /// gone.
    pub(crate) fn start_of(&self, limit: &Limit) -> Milli {
        let owed =
            self.stub(limit.name()).map_or(Milli::ZERO, |stub| stub.balance.min(Milli::ZERO));
        self.effective(limit.name(), limit.params()).full().saturating_add(owed)
    }

    /// What this shard has of the parameters of a limit: all of it while there is one shard.
    pub(crate) fn effective(&self, name: &LimitName, stored: LimitParams) -> LimitParams {
        self.standing.effective(name, stored)
    }

    /// Whether the item expires as the bucket should under these limits. Nothing expires while
    /// there are several shards: one that is swept alone would come back full.
    pub(crate) fn expires_as(&self, limits: &LimitsInForce) -> bool {
        !self.standing.is_alone() || self.expires_s.is_some() == limits.ttl_ms.is_some()
    }

    /// The balance of a limit at `now`, `None` when the bucket does not have it.
    pub(crate) fn balance_at(&self, name: &LimitName, now: TimeMs) -> Option<Milli> {
        self.limit(name).map(|limit| self.accrued(limit, now).min(limit.effective.full()))
    }

    /// The balance of a limit at `now`, its capacity aside.
    pub(crate) fn accrued(&self, limit: &ImageLimit, now: TimeMs) -> Milli {
        let gained = limit.effective.accrual(now.since(self.refilled_at), limit.remainder).0;
        limit.balance.saturating_add(Milli(gained))
    }

    /// What a limit starts with that the bucket does not have. While some that were folded may not
    /// be full it may be one of them, and starts with nothing but what it owes.
    pub(crate) fn first_seen(&self, limit: &Limit, now: TimeMs) -> Milli {
        let is_folding = |limit: &ImageLimit| {
            is_fold(&limit.name) && self.accrued(limit, now) < limit.effective.full()
        };
        let start = self.start_of(limit);
        if self.limits.iter().any(is_folding) {
            let full = self.effective(limit.name(), limit.params()).full();
            start.saturating_sub(full).min(Milli::ZERO)
        } else {
            start
        }
    }

    /// The room for writes at `now`.
    pub(crate) fn room_at(&self, now: TimeMs) -> i64 {
        self.room_milli.saturating_add(self.room_gained(now)).min(WCU_MILLI)
    }

    /// What a refill that costs so many units leaves of the room. Not a limit but a measure:
    /// exactness is not needed, so it is neither pinned nor a reason to conflict.
    pub(crate) fn room_after(&self, units_milli: i64, now: TimeMs) -> Room {
        let gained_milli = self.room_gained(now);
        if self.room_milli.saturating_add(gained_milli) >= WCU_MILLI {
            Room::Full { units_milli }
        } else {
            Room::Less { units_milli, gained_milli }
        }
    }

    fn room_gained(&self, now: TimeMs) -> i64 {
        const WRITES: LimitParams = LimitParams {
            capacity_milli: WCU_MILLI,
            refill_milli: WCU_MILLI,
            period_ms: WCU_PERIOD_MS,
        };
        WRITES.accrual(now.since(self.refilled_at), 0).0
    }

    /// Pins the set of limits and their parameters as they are here: every change of ours moves the
    /// stamp.
    pub(crate) fn config_pin(&self) -> Pin {
        Pin::seen(self.config_read_at)
    }

    /// True when every one of `limits` is here with these parameters.
    pub(crate) fn carries(&self, limits: &[Limit]) -> bool {
        limits.iter().all(|limit| {
            self.limit(limit.name()).is_some_and(|found| found.stored == limit.params())
        })
    }

    /// True when the limits that count as in force are exactly `limits`, in any order.
    pub(crate) fn is_in_force(&self, limits: &[Limit]) -> bool {
        self.carries(limits)
            && self.limits.iter().all(|found| {
                found.retired != limits.iter().any(|limit| *limit.name() == found.name)
            })
    }

    /// True when the parameters are the same in both images.
    pub(crate) fn same_parameters(&self, other: &Image) -> bool {
        self.config_read_at == other.config_read_at
            && self.mark == other.mark
            && self.limits.len() == other.limits.len()
            && self
                .limits
                .iter()
                .zip(&other.limits)
                .all(|(a, b)| a.name == b.name && a.stored == b.stored)
    }

    /// The bucket in the words of the core, the limits of `order` first.
    pub(crate) fn state(&self, order: &[Limit]) -> BucketState {
        if order.iter().any(|limit| self.stub(limit.name()).is_some()) {
            return self.with_stubs_as(order).state(order);
        }
        let in_order = order.iter().filter_map(|limit| self.limit(limit.name()));
        let active: SmallVec<[&ImageLimit; 3]> = in_order.collect();
        self.state_of(&active)
    }

    /// The bucket as it is once the limits of `order` that have left something behind are here
    /// again.
    fn with_stubs_as(&self, order: &[Limit]) -> Image {
        let mut image = self.clone();
        for limit in order.iter().filter(|limit| self.stub(limit.name()).is_some()) {
            image.limits.push(ImageLimit {
                name: limit.name().clone(),
                stored: limit.params(),
                effective: self.effective(limit.name(), limit.params()),
                balance: self.start_of(limit),
                used: Milli::ZERO,
                remainder: 0,
                has_remainder: false,
                gap: Milli::ZERO,
                folded_used: Milli::ZERO,
                retired: false,
            });
        }
        image.stubs.retain(|stub| !order.iter().any(|limit| *limit.name() == stub.name));
        image.limits.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        image
    }

    /// The bucket as listings show it: limits in force by name, then retired ones.
    pub(crate) fn view(&self) -> BucketState {
        let active: SmallVec<[&ImageLimit; 3]> =
            self.limits.iter().filter(|limit| !limit.retired).collect();
        self.state_of(&active)
    }

    fn state_of(&self, active: &[&ImageLimit]) -> BucketState {
        let others = self
            .limits
            .iter()
            .filter(|limit| !active.iter().any(|active| active.name == limit.name));
        let limits: SmallVec<[LimitState; 2]> =
            active.iter().copied().chain(others).map(ImageLimit::state).collect();
        let stamp = ConfigStamp(
            u64::try_from(self.config_read_at.unwrap_or(0)).unwrap_or(0).saturating_mul(1000),
        );
        let mut state = BucketState::restore(limits, active.len(), self.refilled_at, stamp);
        for limit in self.limits.iter().filter(|limit| limit.gap > Milli::ZERO) {
            state.restore_gap(&limit.name, limit.gap);
        }
        state.restore_loans(self.loans.as_ref().map(|loans| loans.lent.clone()));
        state.set_expires_at(self.expires_s.map(|seconds| TimeMs(seconds.saturating_mul(1000))));
        state.flag = self.flag;
        state
    }
}

impl ImageLimit {
    fn state(&self) -> LimitState {
        LimitState {
            name: self.name.clone(),
            params: self.stored,
            balance: self.balance,
            remainder: self.remainder,
            consumed: self.used.saturating_add(self.folded_used),
            hour_base: self.used.saturating_add(self.folded_used),
        }
    }
}

/// A bucket is enabled when it has no attribute `disabled`; every take pins that absence.
fn flag_in(item: &Item, value: &AttributeValue) -> Result<Flag, StoreError> {
    config::flag_from(value).filter(|flag| flag.blocks()).ok_or_else(|| {
        let problem = format!(
            "is {}, not true; enable its entity or resource again to take it away",
            shown(value)
        );
        corrupt(item, attr::DISABLED, problem)
    })
}

/// The number of the shard that a key names.
fn shard_in(pk: &AttributeValue) -> u32 {
    let number = pk.as_s().ok().and_then(|pk| pk.rsplit_once('#')).map(|(_, shard)| shard);
    number.and_then(|shard| shard.parse().ok()).unwrap_or(0)
}

/// About the bytes that DynamoDB counts for a value.
fn size_of(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len() / 2 + 2,
        AttributeValue::Ss(texts) => texts.iter().map(|text| text.len() + 1).sum(),
        _ => 1,
    }
}

fn number_in(item: &Item, name: &str, value: &AttributeValue) -> Result<i64, StoreError> {
    let Ok(text) = value.as_n() else { return Err(corrupt(item, name, "is not a number")) };
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    // Beyond 64 bits a balance or a count is as good as at their end.
    if let Ok(number) = text.parse::<i128>() {
        return Ok(if number < 0 { i64::MIN } else { i64::MAX });
    }
    // Whole numbers may be written as decimals or with an exponent.
    match text.parse::<f64>() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "checked to be a whole number of at most 53 bits"
        )]
        Ok(number) if number.fract() == 0.0 && number.abs() < 9.0e15 => Ok(number as i64),
        _ => Err(corrupt(item, name, format_args!("is {text:?}, not a whole number"))),
    }
}
