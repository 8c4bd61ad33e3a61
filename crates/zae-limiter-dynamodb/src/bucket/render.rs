//! A write of a bucket as DynamoDB reads it. The only place where a [`BucketWrite`] becomes
//! conditions and actions on attributes.

mod item;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{LimitName, LimitParams, Milli, TimeMs};

use crate::constants::{WCU_MILLI, WCU_NEEDED_MILLI};
use crate::records::attr::{self, of_limit};
use crate::records::item::config;

use crate::bucket::write::{
    Becomes, BucketWrite, Ceiling, Change, ExpiryPin, Fits, FlagChange, FlagPin, ItemChange, Line,
    LineForm, LoansPin, Pin, Pins, RefilledAt, Room, Shape, To, TreeChange, Whole,
};
use crate::bucket::writers::breaches;
use crate::table::{
    Action, Comparison, Condition, Delete, Put, Update, Write, compare, compare_with, number, text,
};

/// A write of one item.
#[derive(Clone)]
pub(crate) enum Request {
    Update(Update),
    Put(Put),
    Delete(Delete),
}

/// The request of a write.
pub(crate) fn request(write: BucketWrite) -> Request {
    let (writer, takes_milli) = (write.writer(), write.takes_milli());
    let request = match write.shape {
        Shape::Make(bucket) => Request::Put(Put {
            item: item::item(&bucket, takes_milli),
            conditions: vec![Condition::Absent(attr::PK.into())],
        }),
        Shape::Change(change) => {
            let limits = change.lines.len();
            let mut draft = Draft {
                actions: Vec::with_capacity(2 * limits + 3),
                conditions: Vec::with_capacity(5 * limits + 8),
            };
            draft.change(*change);
            let Draft { actions, conditions } = draft;
            Request::Update(Update { key: write.key, actions, conditions })
        }
        Shape::Remove(Whole::Shard) => {
            Request::Delete(Delete { key: write.key, conditions: Vec::new() })
        }
        Shape::Remove(Whole::Alone) => {
            let is_gone = Condition::Absent(attr::PK.into());
            let is_alone = compare(attr::SHARD_COUNT, Comparison::Eq, 1);
            let conditions = vec![Condition::Any(vec![is_gone, is_alone])];
            Request::Delete(Delete { key: write.key, conditions })
        }
        Shape::Branch(leaf) => Request::Put(Put {
            item: item::leaf_item(&leaf),
            conditions: vec![Condition::Absent(attr::PK.into())],
        }),
        Shape::Withdraw(leaf) => {
            let mut draft =
                Draft { actions: Vec::new(), conditions: vec![Condition::Exists(attr::PK.into())] };
            for (name, stored, balance) in &leaf.balances {
                draft.require_parameters(name, *stored);
                draft.require(name, attr::BALANCE, Comparison::Eq, *balance);
            }
            draft.pins(leaf.pins, &[]);
            Request::Delete(Delete { key: write.key, conditions: draft.conditions })
        }
    };
    debug_assert_eq!(breaches(writer, &request.clone().into()), [""; 0]);
    request
}

impl BucketWrite {
    /// The write in the words of the table: an update, a put or a delete.
    #[must_use]
    pub fn rendered(&self) -> Write {
        request(self.clone()).into()
    }
}

impl From<Request> for Write {
    fn from(request: Request) -> Write {
        match request {
            Request::Update(update) => Write::Update(update),
            Request::Put(put) => Write::Put(put),
            Request::Delete(delete) => Write::Delete(delete),
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
                Condition::Absent(attr::LAST_NONCE.into()),
                compare_with(attr::LAST_NONCE, Comparison::Ne, text(nonce.as_str())),
            ]));
            self.set(attr::LAST_NONCE, text(nonce.as_str()));
        }
    }

    fn set(&mut self, name: &'static str, value: AttributeValue) {
        self.actions.push(Action::Set(name.into(), value));
    }

    fn require(
        &mut self,
        name: &LimitName,
        field: &'static str,
        by: Comparison,
        value: impl Into<i64>,
    ) {
        self.conditions.push(compare(of_limit(name, field), by, value.into()));
    }

    fn add(&mut self, name: &LimitName, field: &'static str, amount: Milli) {
        if amount != Milli::ZERO {
            self.actions.push(Action::Add(of_limit(name, field), amount.0));
        }
    }

    fn put(&mut self, name: &LimitName, field: &'static str, value: impl Into<i64>) {
        self.actions.push(Action::Set(of_limit(name, field), number(value.into())));
    }

    fn put_parameters(&mut self, name: &LimitName, params: LimitParams) {
        self.put(name, attr::CAPACITY, params.capacity_milli);
        self.put(name, attr::REFILL, params.refill_milli);
        self.put(name, attr::PERIOD, params.period_ms);
    }

    fn remove(&mut self, name: &LimitName, fields: &[&'static str]) {
        self.actions.extend(fields.iter().map(|field| Action::Remove(of_limit(name, field))));
    }

    fn require_parameters(&mut self, name: &LimitName, params: LimitParams) {
        self.require(name, attr::CAPACITY, Comparison::Eq, params.capacity_milli);
        self.require(name, attr::REFILL, Comparison::Eq, params.refill_milli);
        self.require(name, attr::PERIOD, Comparison::Eq, params.period_ms);
    }

    fn absent(&mut self, name: &LimitName, field: &'static str) {
        self.conditions.push(Condition::Absent(of_limit(name, field)));
    }

    // ------------------------------------------------------------------------------------- limits

    fn line(&mut self, line: &Line) {
        let name = &line.name;
        match &line.form {
            LineForm::Fast { stored, amount, at_least, .. } => {
                self.require_parameters(name, *stored);
                if let Some(at_least) = at_least {
                    self.require(name, attr::BALANCE, Comparison::Ge, *at_least);
                }
                self.add(name, attr::BALANCE, amount.negated());
                self.add(name, attr::USED, *amount);
            }
            LineForm::Add { stored, gained, amount, used, below, at_least, becomes } => {
                self.require_parameters(name, *stored);
                self.require(name, attr::BALANCE, Comparison::Lt, *below);
                self.require(name, attr::BALANCE, Comparison::Ge, *at_least);
                self.add(name, attr::BALANCE, gained.saturating_sub(*amount));
                self.add(name, attr::USED, *used);
                self.becomes(name, *stored, becomes);
            }
            LineForm::Fill { stored, full, amount, used, at_least, has_no_gap, becomes } => {
                self.require_parameters(name, *stored);
                self.require(name, attr::BALANCE, Comparison::Ge, *at_least);
                if *has_no_gap {
                    self.absent(name, attr::GAP);
                }
                self.put(name, attr::BALANCE, full.saturating_sub(*amount));
                self.add(name, attr::USED, *used);
                self.becomes(name, *stored, becomes);
            }
            LineForm::Seed { params, start, amount, stub } => {
                self.seed(name, *params, start.saturating_sub(*amount), *amount, *stub);
            }
            LineForm::Drop { stored, at_least } => {
                self.require_parameters(name, *stored);
                self.require(name, attr::BALANCE, Comparison::Ge, *at_least);
                self.remove(name, &attr::LIMIT);
            }
            LineForm::Clear => {
                self.absent(name, attr::CAPACITY);
                self.remove(name, &[attr::BALANCE, attr::USED]);
            }
            LineForm::Fold { before, params } => {
                match before {
                    Some((stored, at_least)) => {
                        self.require_parameters(name, *stored);
                        self.require(name, attr::BALANCE, Comparison::Ge, *at_least);
                    }
                    None => self.absent(name, attr::BALANCE),
                }
                self.put(name, attr::BALANCE, 0);
                self.put(name, attr::USED, 0);
                self.put_parameters(name, *params);
            }
            LineForm::Owe { amount } => {
                self.conditions.push(Condition::Exists(of_limit(name, attr::BALANCE)));
                self.add(name, attr::BALANCE, amount.negated());
                self.add(name, attr::USED, *amount);
            }
            LineForm::GiveBack { stored_capacity, ceiling, amount, fits } => {
                let room = ceiling.saturating_sub(*amount);
                self.require(name, attr::CAPACITY, Comparison::Eq, *stored_capacity);
                match fits {
                    Fits::All => {
                        self.require(name, attr::BALANCE, Comparison::Le, room);
                        self.add(name, attr::BALANCE, *amount);
                    }
                    Fits::Part => {
                        self.require(name, attr::BALANCE, Comparison::Gt, room);
                        self.put(name, attr::BALANCE, *ceiling);
                    }
                    Fits::PartBesideLoans => {
                        self.require(name, attr::BALANCE, Comparison::Gt, room);
                        self.require(name, attr::BALANCE, Comparison::Le, *ceiling);
                        self.put(name, attr::BALANCE, *ceiling);
                    }
                    Fits::Nothing => self.require(name, attr::BALANCE, Comparison::Gt, *ceiling),
                }
                self.add(name, attr::USED, amount.negated());
            }
            LineForm::Count { used } => {
                self.conditions.push(Condition::Exists(of_limit(name, attr::BALANCE)));
                self.add(name, attr::USED, *used);
            }
            LineForm::Part { stored, moved, at_least, at_most, forgets_remainder, gap } => {
                self.require_parameters(name, *stored);
                self.require(name, attr::BALANCE, Comparison::Le, *at_most);
                if let Some(at_least) = at_least {
                    self.require(name, attr::BALANCE, Comparison::Ge, *at_least);
                }
                self.add(name, attr::BALANCE, moved.negated());
                self.tidy(name, *forgets_remainder, gap);
            }
            LineForm::Collect { stored, exactly, to, forgets_remainder, gap, folded_used } => {
                self.require_parameters(name, *stored);
                self.require(name, attr::BALANCE, Comparison::Eq, *exactly);
                self.put(name, attr::BALANCE, *to);
                self.tidy(name, *forgets_remainder, gap);
                self.put_to(name, attr::FOLDED_USED, folded_used);
            }
            LineForm::Top { stored_capacity, full, exactly } => {
                self.require(name, attr::CAPACITY, Comparison::Eq, *stored_capacity);
                if let Some(balance) = exactly {
                    self.require(name, attr::BALANCE, Comparison::Eq, *balance);
                }
                self.put(name, attr::BALANCE, *full);
            }
        }
    }

    fn becomes(&mut self, name: &LimitName, before: LimitParams, becomes: &Becomes) {
        let Becomes { stored, remainder, gap } = becomes;
        let changes = [
            (attr::CAPACITY, before.capacity_milli, stored.capacity_milli),
            (attr::REFILL, before.refill_milli, stored.refill_milli),
            (attr::PERIOD, before.period_ms, stored.period_ms),
        ];
        for (field, _, new) in changes.into_iter().filter(|(_, old, new)| old != new) {
            self.put(name, field, new);
        }
        self.put_to(name, attr::REMAINDER, remainder);
        self.put_to(name, attr::GAP, gap);
    }

    fn tidy(&mut self, name: &LimitName, forgets_remainder: bool, gap: &To<Milli>) {
        if forgets_remainder {
            self.remove(name, &[attr::REMAINDER]);
        }
        self.put_to(name, attr::GAP, gap);
    }

    fn put_to(&mut self, name: &LimitName, field: &'static str, to: &To<impl Into<i64> + Copy>) {
        match to {
            To::Keep => {}
            To::Set(value) => self.put(name, field, *value),
            To::Remove => self.remove(name, &[field]),
        }
    }

    fn seed(
        &mut self,
        name: &LimitName,
        params: LimitParams,
        balance: Milli,
        amount: Milli,
        stub: Option<Milli>,
    ) {
        self.put(name, attr::BALANCE, balance);
        self.put_parameters(name, params);
        match stub {
            // The debt was read: a further charge by a writer that does not look must not be lost.
            Some(owed) => {
                self.require(name, attr::BALANCE, Comparison::Eq, owed);
                self.absent(name, attr::CAPACITY);
                self.add(name, attr::USED, amount);
            }
            None => {
                self.put(name, attr::USED, amount);
                self.absent(name, attr::BALANCE);
            }
        }
    }

    // --------------------------------------------------------------------------------------- item

    fn pins(&mut self, pins: Pins, lines: &[Line]) {
        match pins.refilled_at {
            RefilledAt::Any => {}
            RefilledAt::Exactly(at) => self.pin(attr::REFILLED_AT, Comparison::Eq, at.0),
            RefilledAt::NotAfter(at) => self.pin(attr::REFILLED_AT, Comparison::Le, at.0),
            RefilledAt::After(at) => self.pin(attr::REFILLED_AT, Comparison::Gt, at.0),
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
        self.pin_number(attr::CONFIG_READ_AT, pins.config_read_at);
        self.pin_number(attr::MARK, pins.mark);
        if let Some(count) = pins.shard_count {
            self.pin(attr::SHARD_COUNT, Comparison::Eq, count);
        }
        self.pin_number(attr::ERA, pins.era);
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
                self.pin_number(attr::FLAG_COUNT, Pin::seen(count));
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
            self.pin(attr::ROOM, Comparison::Ge, WCU_NEEDED_MILLI);
        }
        match pins.loans {
            LoansPin::Any => {}
            LoansPin::Absent => self.conditions.push(Condition::Absent(attr::LENT.into())),
            LoansPin::Is(loans) => {
                self.conditions.push(compare_with(
                    attr::LENT,
                    Comparison::Eq,
                    text(loans.as_str()),
                ));
            }
        }
        pins.must_be_absent.iter().for_each(|name| self.absent(name, attr::CAPACITY));
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
            self.set(attr::REFILLED_AT, number(at.0));
        }
        if let Some(at) = item.config_read_at {
            self.set(attr::CONFIG_READ_AT, number(at));
        }
        self.to(attr::REMAINDERS_AT, item.remainders_at, |at| number(at.0));
        self.to(attr::TTL, item.expiry, number);
        self.to(attr::RETIRED, item.retired, AttributeValue::Ss);
        if item.clears_mark {
            self.actions.push(Action::Remove(attr::MARK.into()));
        }
        if let Some(FlagChange { flag, count }) = item.flag {
            let flag = if flag.blocks() { To::Set(flag) } else { To::Remove };
            self.to(attr::DISABLED, flag, config::flag_value);
            self.set(attr::FLAG_COUNT, number(count));
        }
        if let Some(mark) = item.undoes {
            self.set(attr::UNDONE, number(mark));
        }
        self.to(attr::LENT, item.loans, |loans| text(loans.as_str()));
        if let Some(tree) = item.tree {
            self.tree(*tree);
        }
        match item.room {
            Room::Uncounted => {}
            Room::Less { units_milli, gained_milli } => {
                self.add_to(attr::ROOM, gained_milli - units_milli);
            }
            Room::Full { units_milli } => self.set(attr::ROOM, number(WCU_MILLI - units_milli)),
        }
        self.add_to(attr::TAKES, item.takes_milli);
        self.add_to(attr::FAILED, item.failed_milli);
    }

    fn add_to(&mut self, name: &'static str, amount: i64) {
        if amount != 0 {
            self.actions.push(Action::Add(name.into(), amount));
        }
    }

    fn tree(&mut self, tree: TreeChange) {
        self.set(attr::SHARD_COUNT, number(tree.count));
        self.to(attr::PINNED, tree.pinned, text);
        self.to(attr::ERA, tree.era, number);
        self.to(attr::EXPIRES_LATER, tree.expires_later, |()| number(1));
        self.to(attr::SPLIT_AT, tree.split_at, |at| number(at.0));
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
    since: TimeMs,
    bound: impl Fn(&Ceiling) -> Option<Milli>,
) -> impl Iterator<Item = Condition> {
    let low = lines.iter().filter_map(move |line| match &line.form {
        LineForm::Fast { at_most: Some(ceiling), .. } => Some(compare(
            of_limit(&line.name, attr::BALANCE),
            Comparison::Le,
            bound(ceiling).unwrap_or(ceiling.since).0,
        )),
        _ => None,
    });
    low.chain(std::iter::once(compare(attr::REFILLED_AT, Comparison::Ge, since.0)))
}

/// The item expires later than a second, and no debt outlives it.
fn alive(lines: &[Line], second: i64) -> Condition {
    let later = compare(attr::TTL, Comparison::Gt, second);
    let floors = lines.iter().filter_map(|line| match line.form {
        LineForm::Fast { floor_if_expiring: Some(floor), .. } => {
            Some(compare(of_limit(&line.name, attr::BALANCE), Comparison::Ge, floor.0))
        }
        _ => None,
    });
    let mut floors = floors.peekable();
    // A take has none, and a list of one would cost every take an allocation.
    if floors.peek().is_none() {
        return later;
    }
    Condition::All(std::iter::once(later).chain(floors).collect())
}
