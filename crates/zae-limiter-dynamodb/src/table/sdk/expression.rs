//! Turns the values of [`crate::table`] into the expressions DynamoDB reads.
//!
//! Names that can be no trouble stand as they are, see [`is_plain`]; every other one has a
//! positional alias (`#0`), because limit names may hold dots and dashes and other attributes may
//! be reserved words. Values always have one (`:0`). Every alias is declared once however often it
//! is used. This runs in every take, so it formats nothing and allocates only what the SDK wants to
//! own.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use smallvec::SmallVec;

use crate::table::{Action, Attr, Comparison, Condition, Write};

/// The longest expression DynamoDB reads, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 4096;

/// Plain names of attributes that belong to no limit. None is a reserved word; `ttl` is one.
const PLAIN: [&str; 15] = [
    "PK",
    "rf",
    "shard_count",
    "vu",
    "disabled",
    "lw",
    "ca",
    "rmf",
    "ret",
    "pin",
    "er",
    "tx",
    "sp",
    "un",
    "wx",
];

/// What attributes of limits begin with. No reserved word has an underscore, so none of these is
/// one.
const PLAIN_PREFIX: &str = "b_";

/// The longest name that stands as it is, in bytes. An alias is shorter, and the length of an
/// expression is bounded: the widest write names two times sixteen limits, and stays below
/// [`EXPRESSION_BYTES_MAX`] with names of this length.
const PLAIN_BYTES_MAX: usize = 14;

/// Whether a name stands in an expression as it is. DynamoDB reads a letter and then letters,
/// digits and underscores as a name unless it is a reserved word.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    match name.strip_prefix(PLAIN_PREFIX) {
        Some(rest) => {
            name.len() <= PLAIN_BYTES_MAX
                && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        }
        None => PLAIN.contains(&name),
    }
}

/// One write as DynamoDB reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The update expression; `None` without actions.
    pub update: Option<String>,
    /// The condition expression; `None` when nothing must hold.
    pub condition: Option<String>,
    /// What `#…` stands for; `None` when no name is used.
    pub names: Option<HashMap<String, String>>,
    /// What `:…` stands for; `None` when no value is used.
    pub values: Option<HashMap<String, AttributeValue>>,
}

/// Renders a write. A condition that always holds is left out; one that can never hold is rendered
/// as one that never does.
#[must_use]
pub fn render(actions: &[Action], conditions: &[Condition]) -> Rendered {
    render_owned(actions.to_vec(), conditions.to_vec())
}

/// The same, with names and values moved, for the writes of every take.
#[must_use]
pub fn render_owned(mut actions: Vec<Action>, conditions: Vec<Condition>) -> Rendered {
    let mut aliases = Aliases { names: SmallVec::new(), values: SmallVec::new() };
    actions.sort_by_key(section);
    let update = render_update(actions, &mut aliases);
    let condition = render_condition(conditions, &mut aliases);
    aliases.into_rendered(update, condition)
}

/// Renders a leg of a transaction.
#[must_use]
pub fn render_write(write: &Write) -> Rendered {
    match write {
        Write::Update(update) => render(&update.actions, &update.conditions),
        Write::Put(put) => render(&[], &put.conditions),
        Write::Delete(delete) => render(&[], &delete.conditions),
        Write::Check(check) => render(&[], &check.conditions),
        Write::Bucket(bucket) => render_write(&bucket.rendered()),
    }
}

/// A value that is used; numbers become text only once.
#[derive(PartialEq)]
enum Value {
    Number(i64),
    Other(Box<AttributeValue>),
}

impl Value {
    /// A number that is written as we write it is a number: it has one alias wherever it comes
    /// from.
    fn of(value: Box<AttributeValue>) -> Value {
        let AttributeValue::N(text) = &*value else { return Value::Other(value) };
        let is_as_ours = text == "0"
            || text
                .strip_prefix('-')
                .unwrap_or(text)
                .starts_with(|digit| matches!(digit, '1'..='9'));
        match text.parse() {
            Ok(number) if is_as_ours => Value::Number(number),
            _ => Value::Other(value),
        }
    }

    fn into_attribute(self) -> AttributeValue {
        match self {
            Value::Number(number) => crate::table::number(number),
            Value::Other(value) => *value,
        }
    }
}

struct Aliases {
    /// The position is the alias. Few enough for a scan to beat a map.
    names: SmallVec<[Attr; 8]>,
    values: SmallVec<[Value; 24]>,
}

impl Aliases {
    fn name(&mut self, out: &mut String, name: Attr) {
        if is_plain(&name) {
            out.push_str(&name);
            return;
        }
        let index = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        push_alias(out, '#', index);
    }

    fn value(&mut self, out: &mut String, value: Value) {
        let index = self.values.iter().position(|known| *known == value).unwrap_or_else(|| {
            self.values.push(value);
            self.values.len() - 1
        });
        push_alias(out, ':', index);
    }

    fn into_rendered(self, update: Option<String>, condition: Option<String>) -> Rendered {
        let names: HashMap<String, String> = self
            .names
            .into_iter()
            .enumerate()
            .map(|(index, name)| (alias('#', index), name.into()))
            .collect();
        let values: HashMap<String, AttributeValue> = self
            .values
            .into_iter()
            .enumerate()
            .map(|(index, value)| (alias(':', index), value.into_attribute()))
            .collect();
        Rendered {
            update,
            condition,
            names: (!names.is_empty()).then_some(names),
            values: (!values.is_empty()).then_some(values),
        }
    }
}

/// The four sections of an update expression, in the order they are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Set,
    Add,
    Delete,
    Remove,
}

impl Section {
    fn keyword(self) -> &'static str {
        match self {
            Section::Set => "SET ",
            Section::Add => "ADD ",
            Section::Delete => "DELETE ",
            Section::Remove => "REMOVE ",
        }
    }
}

fn section(action: &Action) -> Section {
    match action {
        Action::Set(..) | Action::SetIfAbsent(..) => Section::Set,
        Action::Add(..) | Action::AddMember(..) => Section::Add,
        Action::DeleteMember(..) => Section::Delete,
        Action::Remove(..) => Section::Remove,
    }
}

/// The actions come by section.
fn render_update(actions: Vec<Action>, aliases: &mut Aliases) -> Option<String> {
    if actions.is_empty() {
        return None;
    }
    let mut out = String::with_capacity(16 + 20 * actions.len());
    let mut open = None;
    for action in actions {
        let section = section(&action);
        if open == Some(section) {
            out.push(',');
        } else {
            if open.is_some() {
                out.push(' ');
            }
            out.push_str(section.keyword());
            open = Some(section);
        }
        render_action(action, aliases, &mut out);
    }
    Some(out)
}

fn render_action(action: Action, aliases: &mut Aliases, out: &mut String) {
    match action {
        Action::Set(attr, value) => {
            aliases.name(out, attr);
            out.push('=');
            aliases.value(out, Value::of(Box::new(value)));
        }
        Action::SetIfAbsent(attr, value) => {
            aliases.name(out, attr.clone());
            out.push_str("=if_not_exists(");
            aliases.name(out, attr);
            out.push(',');
            aliases.value(out, Value::of(Box::new(value)));
            out.push(')');
        }
        Action::Add(attr, amount) => {
            aliases.name(out, attr);
            out.push(' ');
            aliases.value(out, Value::Number(amount));
        }
        Action::AddMember(attr, member) | Action::DeleteMember(attr, member) => {
            aliases.name(out, attr);
            out.push(' ');
            aliases.value(out, Value::Other(Box::new(AttributeValue::Ss(vec![member]))));
        }
        Action::Remove(attr) => aliases.name(out, attr),
    }
}

fn render_condition(conditions: Vec<Condition>, aliases: &mut Aliases) -> Option<String> {
    let conditions = match truth_of(&conditions, Joint::And) {
        Some(true) => return None,
        // No item is there and not there.
        Some(false) => vec![Condition::Exists("PK".into()), Condition::Absent("PK".into())],
        None => conditions,
    };
    let mut out = String::with_capacity(32 * conditions.len());
    join(conditions, Joint::And, aliases, &mut out);
    Some(out)
}

/// The operator around a condition: it decides whether the condition needs parentheses. DynamoDB
/// refuses redundant ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joint {
    And,
    Or,
}

impl Joint {
    /// A condition that always holds says nothing under AND, one that never holds says nothing
    /// under OR.
    fn hears(self, condition: &Condition) -> bool {
        truth(condition) != Some(self == Joint::And)
    }
}

fn join(conditions: Vec<Condition>, joint: Joint, aliases: &mut Aliases, out: &mut String) {
    let mut first = true;
    for condition in conditions.into_iter().filter(|condition| joint.hears(condition)) {
        if !first {
            out.push_str(if joint == Joint::And { " AND " } else { " OR " });
        }
        first = false;
        render_one(condition, joint, aliases, out);
    }
}

fn render_one(condition: Condition, around: Joint, aliases: &mut Aliases, out: &mut String) {
    match condition {
        Condition::Exists(attr) => function("attribute_exists(", attr, aliases, out),
        Condition::Absent(attr) => function("attribute_not_exists(", attr, aliases, out),
        Condition::Compare(attr, comparison, value) => {
            compare(attr, comparison, Value::of(value), aliases, out)
        }
        Condition::CompareNumber(attr, comparison, number) => {
            compare(attr, comparison, Value::Number(number), aliases, out)
        }
        Condition::All(members) => nested(members, (Joint::And, around), aliases, out),
        Condition::Any(members) => nested(members, (Joint::Or, around), aliases, out),
    }
}

fn compare(
    attr: Attr,
    comparison: Comparison,
    value: Value,
    aliases: &mut Aliases,
    out: &mut String,
) {
    aliases.name(out, attr);
    out.push_str(match comparison {
        Comparison::Eq => "=",
        Comparison::Ne => "<>",
        Comparison::Lt => "<",
        Comparison::Le => "<=",
        Comparison::Gt => ">",
        Comparison::Ge => ">=",
    });
    aliases.value(out, value);
}

fn nested(
    mut members: Vec<Condition>,
    (joint, around): (Joint, Joint),
    aliases: &mut Aliases,
    out: &mut String,
) {
    members.retain(|member| joint.hears(member));
    match members.len() {
        1 => members.into_iter().for_each(|member| render_one(member, around, aliases, out)),
        // AND binds tighter than OR, so only an OR inside an AND needs parentheses.
        _ if joint == Joint::Or && around == Joint::And => {
            out.push('(');
            join(members, joint, aliases, out);
            out.push(')');
        }
        _ => join(members, joint, aliases, out),
    }
}

fn function(name: &str, attr: Attr, aliases: &mut Aliases, out: &mut String) {
    out.push_str(name);
    aliases.name(out, attr);
    out.push(')');
}

/// Whether a condition holds whatever the item is; `None` when it depends on the item.
fn truth(condition: &Condition) -> Option<bool> {
    match condition {
        Condition::Exists(_)
        | Condition::Absent(_)
        | Condition::Compare(..)
        | Condition::CompareNumber(..) => None,
        Condition::All(members) => truth_of(members, Joint::And),
        Condition::Any(members) => truth_of(members, Joint::Or),
    }
}

/// The same for conditions that are joined: one that fails decides an AND, one that holds an OR.
fn truth_of(members: &[Condition], joint: Joint) -> Option<bool> {
    let decisive = joint == Joint::Or;
    let mut is_open = false;
    for member in members {
        match truth(member) {
            Some(truth) if truth == decisive => return Some(decisive),
            Some(_) => {}
            None => is_open = true,
        }
    }
    (!is_open).then_some(!decisive)
}

fn alias(sigil: char, index: usize) -> String {
    let mut out = String::with_capacity(4);
    push_alias(&mut out, sigil, index);
    out
}

fn push_alias(out: &mut String, sigil: char, index: usize) {
    out.push(sigil);
    push_digits(out, index);
}

fn push_digits(out: &mut String, number: usize) {
    const DIGITS: [char; 10] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];
    // Nearly always one or two.
    if number >= 100 {
        push_digits(out, number / 100);
    }
    if number >= 10 {
        out.push(DIGITS[number / 10 % 10]);
    }
    out.push(DIGITS[number % 10]);
}
