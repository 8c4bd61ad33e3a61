//! A write of a bucket as DynamoDB reads it. The only place where a [`BucketWrite`] becomes
//! conditions and actions on attributes.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{LimitName, LimitParams, LimitSource};

use crate::constants::{WCU_MILLI, WCU_NEEDED_MILLI, WCU_PERIOD_MS};
use crate::expiry::{expiry_s, keep_ms};
use crate::image::{LIMIT_FIELDS, attr, limit_attr};
use crate::keys;

use crate::table::{
    Action, Comparison, Condition, Item, Put, Update, Write, compare, compare_with, number, text,
};
use crate::write::{
    Becomes, BucketWrite, Ceiling, Change, ExpiryPin, FlagPin, Form, ItemChange, Line, LineForm,
    NewBucket, Pin, Pins, RefilledAt, Room, To,
};
use crate::writers::breaches;

/// A write of one item.
pub(crate) enum Request {
    Update(Update),
    Put(Put),
}

/// The request of a write that is sent alone.
pub(crate) fn request(write: BucketWrite) -> Request {
    let writer = write.writer();
    let request = match write.form {
        Form::Make(bucket) => Request::Put(Put {
            item: item(&bucket),
            conditions: vec![Condition::Absent(attr::PK.into())],
        }),
        Form::Change(change) => {
            let limits = change.lines.len();
            let mut draft = Draft {
                actions: Vec::with_capacity(2 * limits + 3),
                conditions: Vec::with_capacity(5 * limits + 8),
            };
            draft.change(*change);
            let Draft { actions, conditions } = draft;
            Request::Update(Update { key: write.key, actions, conditions })
        }
    };
    debug_assert!(
        breaches(writer, &request.clone().into()).is_empty(),
        "{:?}",
        breaches(writer, &request.clone().into())
    );
    request
}

impl BucketWrite {
    /// The write in the words of the table: an update or a put.
    #[must_use]
    pub fn rendered(&self) -> Write {
        request(self.clone()).into()
    }
}

impl Clone for Request {
    fn clone(&self) -> Request {
        match self {
            Request::Update(update) => Request::Update(update.clone()),
            Request::Put(put) => Request::Put(put.clone()),
        }
    }
}

impl From<Request> for Write {
    fn from(request: Request) -> Write {
        match request {
            Request::Update(update) => Write::Update(update),
            Request::Put(put) => Write::Put(put),
        }
    }
}

/// An update as it grows.
struct Draft {
    actions: Vec<Action>,
    conditions: Vec<Condition>,
}

impl Draft {
    fn change(&mut self, change: Change) {
        let Change { nonce, pins, lines, item } = change;
        self.conditions.push(Condition::Exists(attr::PK.into()));
        lines.iter().for_each(|line| self.line(line));
        self.pins(pins, &lines);
        self.item(item);
        if let Some(nonce) = nonce {
            self.conditions.push(Condition::Any(vec![
                Condition::Absent(attr::LW.into()),
                compare_with(attr::LW, Comparison::Ne, text(nonce.as_str())),
            ]));
            self.set(attr::LW, text(nonce.as_str()));
        }
    }

    fn set(&mut self, name: &'static str, value: AttributeValue) {
        self.actions.push(Action::Set(name.into(), value));
    }

    fn require(&mut self, name: &LimitName, field: &'static str, by: Comparison, value: i64) {
        self.conditions.push(compare(limit_attr(name, field), by, value));
    }

    fn add(&mut self, name: &LimitName, field: &'static str, amount: i64) {
        if amount != 0 {
            self.actions.push(Action::Add(limit_attr(name, field), amount));
        }
    }

    fn put(&mut self, name: &LimitName, field: &'static str, value: i64) {
        self.actions.push(Action::Set(limit_attr(name, field), number(value)));
    }

    fn put_parameters(&mut self, name: &LimitName, params: LimitParams) {
        self.put(name, "cp", params.capacity_milli);
        self.put(name, "ra", params.refill_milli);
        self.put(name, "rp", params.period_ms);
    }

    fn remove(&mut self, name: &LimitName, fields: &[&'static str]) {
        self.actions.extend(fields.iter().map(|field| Action::Remove(limit_attr(name, field))));
    }

    fn require_parameters(&mut self, name: &LimitName, params: LimitParams) {
        self.require(name, "cp", Comparison::Eq, params.capacity_milli);
        self.require(name, "ra", Comparison::Eq, params.refill_milli);
        self.require(name, "rp", Comparison::Eq, params.period_ms);
    }

    fn absent(&mut self, name: &LimitName, field: &'static str) {
        self.conditions.push(Condition::Absent(limit_attr(name, field)));
    }

    // ------------------------------------------------------------------------------------- limits

    fn line(&mut self, line: &Line) {
        let name = &line.name;
        match &line.form {
            LineForm::Fast { stored, amount, at_least, .. } => {
                self.require_parameters(name, *stored);
                if let Some(at_least) = at_least {
                    self.require(name, "tk", Comparison::Ge, *at_least);
                }
                self.add(name, "tk", amount.saturating_neg());
                self.add(name, "tc", *amount);
            }
            LineForm::Add { stored, gained, amount, below, at_least, becomes } => {
                self.require_parameters(name, *stored);
                self.require(name, "tk", Comparison::Lt, *below);
                self.require(name, "tk", Comparison::Ge, *at_least);
                self.add(name, "tk", gained.saturating_sub(*amount));
                self.add(name, "tc", *amount);
                self.becomes(name, *stored, becomes);
            }
            LineForm::Fill { stored, full, amount, at_least, has_no_gap, becomes } => {
                self.require_parameters(name, *stored);
                self.require(name, "tk", Comparison::Ge, *at_least);
                if *has_no_gap {
                    self.absent(name, "gp");
                }
                self.put(name, "tk", full.saturating_sub(*amount));
                self.add(name, "tc", *amount);
                self.becomes(name, *stored, becomes);
            }
            LineForm::Seed { params, start, amount, stub } => {
                self.seed(name, *params, start.saturating_sub(*amount), *amount, *stub);
            }
            LineForm::Drop { stored, at_least } => {
                self.require_parameters(name, *stored);
                self.require(name, "tk", Comparison::Ge, *at_least);
                self.remove(name, &LIMIT_FIELDS);
            }
            LineForm::Clear => {
                self.absent(name, "cp");
                self.remove(name, &["tk", "tc"]);
            }
            LineForm::Fold { before, params } => {
                match before {
                    Some((stored, at_least)) => {
                        self.require_parameters(name, *stored);
                        self.require(name, "tk", Comparison::Ge, *at_least);
                    }
                    None => self.absent(name, "tk"),
                }
                self.put(name, "tk", 0);
                self.put(name, "tc", 0);
                self.put_parameters(name, *params);
            }
            LineForm::Owe { amount } => {
                self.conditions.push(Condition::Exists(limit_attr(name, "tk")));
                self.add(name, "tk", amount.saturating_neg());
                self.add(name, "tc", *amount);
            }
            LineForm::GiveBack { stored_capacity, full, amount, overflows } => {
                let room = full.saturating_sub(*amount);
                self.require(name, "cp", Comparison::Eq, *stored_capacity);
                if *overflows {
                    self.require(name, "tk", Comparison::Gt, room);
                    self.put(name, "tk", *full);
                } else {
                    self.require(name, "tk", Comparison::Le, room);
                    self.add(name, "tk", *amount);
                }
                self.add(name, "tc", amount.saturating_neg());
            }
            LineForm::Top { stored_capacity, full, exactly } => {
                self.require(name, "cp", Comparison::Eq, *stored_capacity);
                if let Some(balance) = exactly {
                    self.require(name, "tk", Comparison::Eq, *balance);
                }
                self.put(name, "tk", *full);
            }
        }
    }

    fn becomes(&mut self, name: &LimitName, before: LimitParams, becomes: &Becomes) {
        let Becomes { stored, remainder, gap } = becomes;
        let changes = [
            ("cp", before.capacity_milli, stored.capacity_milli),
            ("ra", before.refill_milli, stored.refill_milli),
            ("rp", before.period_ms, stored.period_ms),
        ];
        for (field, _, new) in changes.into_iter().filter(|(_, old, new)| old != new) {
            self.put(name, field, new);
        }
        for (field, to) in [("rm", remainder), ("gp", gap)] {
            match to {
                To::Keep => {}
                To::Set(value) => self.put(name, field, *value),
                To::Remove => self.remove(name, &[field]),
            }
        }
    }

    fn seed(
        &mut self,
        name: &LimitName,
        params: LimitParams,
        balance: i64,
        amount: i64,
        stub: Option<i64>,
    ) {
        self.put(name, "tk", balance);
        self.put_parameters(name, params);
        match stub {
            // What is owed was read: a further charge by somebody who does not look must not be
            // lost.
            Some(owed) => {
                self.require(name, "tk", Comparison::Eq, owed);
                self.absent(name, "cp");
                self.add(name, "tc", amount);
            }
            None => {
                self.put(name, "tc", amount);
                self.absent(name, "tk");
            }
        }
    }

    // --------------------------------------------------------------------------------------- item

    fn pins(&mut self, pins: Pins, lines: &[Line]) {
        match pins.refilled_at {
            RefilledAt::Any => {}
            RefilledAt::Exactly(at) => self.pin(attr::RF, Comparison::Eq, at),
            RefilledAt::NotAfter(at) => self.pin(attr::RF, Comparison::Le, at),
            RefilledAt::After(at) => self.pin(attr::RF, Comparison::Gt, at),
            RefilledAt::NotBefore { since, or: None } => {
                self.conditions.extend(unspilt(lines, since, |ceiling| Some(ceiling.since)));
            }
            RefilledAt::NotBefore { since, or: Some(later) } => {
                let either = [
                    Condition::All(unspilt(lines, since, |ceiling| Some(ceiling.since)).collect()),
                    Condition::All(unspilt(lines, later, |ceiling| ceiling.or).collect()),
                ];
                self.conditions.push(Condition::Any(either.into()));
            }
        }
        self.pin_number(attr::CA, pins.config_read_at);
        self.pin_number(attr::VU, pins.mark);
        if let Some(count) = pins.shard_count {
            self.pin(attr::SHARD_COUNT, Comparison::Eq, count);
        }
        match pins.flag {
            FlagPin::Any => {}
            FlagPin::Enabled => self.conditions.push(Condition::Absent(attr::DISABLED.into())),
            FlagPin::Seen { is_set, count } => {
                let name = attr::DISABLED.into();
                self.conditions.push(if is_set {
                    Condition::Exists(name)
                } else {
                    Condition::Absent(name)
                });
                self.pin_number(attr::FV, Pin::seen(count));
            }
        }
        match pins.expiry {
            ExpiryPin::Any => {}
            ExpiryPin::Absent => self.pin_number(attr::TTL, Pin::Absent),
            ExpiryPin::NotBefore(second) => self.pin(attr::TTL, Comparison::Ge, second),
            ExpiryPin::NoneOrAfter(second) => self.conditions.push(Condition::Any(vec![
                Condition::Absent(attr::TTL.into()),
                alive(lines, second),
            ])),
        }
        if pins.has_room {
            self.pin(attr::WCU_TK, Comparison::Ge, WCU_NEEDED_MILLI);
        }
        pins.unknown.iter().for_each(|name| self.absent(name, "cp"));
    }

    fn pin(&mut self, name: &'static str, by: Comparison, value: i64) {
        self.conditions.push(compare(name, by, value));
    }

    fn pin_number(&mut self, name: &'static str, pin: Pin) {
        match pin {
            Pin::Any => {}
            Pin::Absent => self.conditions.push(Condition::Absent(name.into())),
            Pin::Is(value) => self.pin(name, Comparison::Eq, value),
        }
    }

    fn item(&mut self, item: ItemChange) {
        if let Some(at) = item.refilled_at {
            self.set(attr::RF, number(at));
        }
        if let Some(at) = item.config_read_at {
            self.set(attr::CA, number(at));
        }
        self.to(attr::RMF, item.remainders_at, number);
        self.to(attr::TTL, item.expiry, number);
        self.to(attr::RET, item.retired, AttributeValue::Ss);
        if item.clears_mark {
            self.actions.push(Action::Remove(attr::VU.into()));
        }
        if let Some(flag) = item.flag {
            let disabled = if flag.disabled { To::Set(true) } else { To::Remove };
            self.to(attr::DISABLED, disabled, AttributeValue::Bool);
            self.set(attr::FV, number(flag.count));
        }
        match item.room {
            Room::Uncounted => {}
            Room::Less { units_milli, gained_milli } => {
                let change = gained_milli - units_milli;
                if change != 0 {
                    self.actions.push(Action::Add(attr::WCU_TK.into(), change));
                }
                self.actions.push(Action::Add(attr::WCU_TC.into(), units_milli));
            }
            Room::Full { units_milli } => {
                self.set(attr::WCU_TK, number(WCU_MILLI - units_milli));
                self.actions.push(Action::Add(attr::WCU_TC.into(), units_milli));
            }
        }
    }

    fn to<T>(&mut self, name: &'static str, to: To<T>, value: impl Fn(T) -> AttributeValue) {
        match to {
            To::Keep => {}
            To::Set(to) => self.set(name, value(to)),
            To::Remove => self.actions.push(Action::Remove(name.into())),
        }
    }
}

/// Nothing has overflowed, if the bucket was refilled no earlier than `since`.
fn unspilt(
    lines: &[Line],
    since: i64,
    bound: impl Fn(&Ceiling) -> Option<i64>,
) -> impl Iterator<Item = Condition> {
    let low = lines.iter().filter_map(move |line| match &line.form {
        LineForm::Fast { at_most: Some(ceiling), .. } => Some(compare(
            limit_attr(&line.name, "tk"),
            Comparison::Le,
            bound(ceiling).unwrap_or(ceiling.since),
        )),
        _ => None,
    });
    low.chain(std::iter::once(compare(attr::RF, Comparison::Ge, since)))
}

/// The item expires later than a second, and no debt outlives it.
fn alive(lines: &[Line], second: i64) -> Condition {
    let later = compare(attr::TTL, Comparison::Gt, second);
    let floors = lines.iter().filter_map(|line| match line.form {
        LineForm::Fast { floor_if_expiring: Some(floor), .. } => {
            Some(compare(limit_attr(&line.name, "tk"), Comparison::Ge, floor))
        }
        _ => None,
    });
    Condition::All(std::iter::once(later).chain(floors).collect())
}

// ---------------------------------------------------------------------------------------- new item

/// The item of a new bucket.
fn item(bucket: &NewBucket) -> Item {
    let NewBucket { namespace, entity, resource, limits, .. } = bucket;
    let key = keys::bucket(namespace, entity, resource, 0);
    let mut item = Item::with_capacity(24 + 5 * limits.limits.len());
    let mut put = |name: &str, value: AttributeValue| {
        item.insert(name.to_owned(), value);
    };
    put("PK", text(key.pk));
    put("SK", text(key.sk));
    put("GSI2PK", text(keys::index::resource(namespace, resource)));
    put("GSI2SK", text(keys::index::resource_bucket(entity, 0)));
    put("GSI3PK", text(keys::index::entity(namespace, entity)));
    put("GSI3SK", text(keys::index::entity_bucket(resource, 0)));
    put("GSI4PK", text(&**namespace));
    put("GSI4SK", text(keys::index::namespace_bucket(entity, resource, 0)));
    put("entity_id", text(entity.as_str()));
    put("resource", text(resource.as_str()));
    let owner = bucket.owner.as_deref();
    let cascade = owner.is_some_and(|owner| owner.cascade && owner.parent.is_some());
    put("cascade", AttributeValue::Bool(cascade));
    if let Some(parent) = owner.and_then(|owner| owner.parent.as_ref()) {
        put("parent_id", text(parent.as_str()));
    }
    if let Some(pgen) = owner.and_then(|owner| owner.pgen) {
        put("pgen", number(pgen));
    }
    if let Some(pinc) = owner.and_then(|owner| owner.pinc.as_ref()) {
        put("pinc", text(pinc.as_str()));
    }
    if bucket.disabled {
        put(attr::DISABLED, AttributeValue::Bool(true));
        // A delayed write of a flag that was meant for a bucket before this one must not enable
        // this one.
        put(attr::FV, number(1));
    }
    put(attr::RF, number(bucket.now.0));
    put(attr::SHARD_COUNT, number(1));
    put(attr::LW, text(bucket.nonce.as_str()));
    put(attr::CA, number(config_read_at(bucket)));
    put("b_wcu_tk", number(WCU_MILLI));
    put("b_wcu_cp", number(WCU_MILLI));
    put("b_wcu_ra", number(WCU_MILLI));
    put("b_wcu_rp", number(WCU_PERIOD_MS));
    put("b_wcu_tc", number(0));
    let mut kept_ms = 0;
    for limit in limits.limits.iter() {
        let (name, params) = (limit.name(), limit.params());
        let amount =
            bucket.amounts.iter().find(|(of, _)| of == name).map_or(0, |(_, amount)| *amount);
        let after = params.capacity_milli.saturating_sub(amount);
        put(&limit_attr(name, "tk"), number(after));
        put(&limit_attr(name, "cp"), number(params.capacity_milli));
        put(&limit_attr(name, "ra"), number(params.refill_milli));
        put(&limit_attr(name, "rp"), number(params.period_ms));
        put(&limit_attr(name, "tc"), number(amount));
        kept_ms = kept_ms.max(keep_ms(params, after, 0));
    }
    if let Some(own_ttl_ms) = limits.ttl_ms {
        put(attr::TTL, number(expiry_s(bucket.now, own_ttl_ms, kept_ms)));
    }
    item
}

fn config_read_at(bucket: &NewBucket) -> i64 {
    if bucket.limits.source == LimitSource::Call {
        bucket.now.0
    } else {
        i64::try_from(bucket.limits.stamp.0 / 1000).unwrap_or(i64::MAX)
    }
}
