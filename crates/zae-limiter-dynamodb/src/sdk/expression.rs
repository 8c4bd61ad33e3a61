//! Turns the values of [`crate::table`] into the expressions DynamoDB reads.
//!
//! Only positional aliases (`#0`, `:0`): attribute names contain limit names, which may hold dots and dashes or be reserved
//! words. Every name and every value is declared once however often it is used. This runs in every take, so it formats
//! nothing and allocates only what the SDK wants to own.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use smallvec::SmallVec;

use crate::table::{Action, Attr, Comparison, Condition, Write};

/// The longest expression DynamoDB reads, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 4096;

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

/// Renders a write. A condition that always holds is left out; one that can never hold is rendered as one that never does.
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
    }
}

struct Aliases {
    /// The position is the alias. Few enough for a scan to beat a map.
    names: SmallVec<[Attr; 32]>,
    values: SmallVec<[AttributeValue; 24]>,
}

impl Aliases {
    fn name(&mut self, out: &mut String, name: Attr) {
        let index = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        push_alias(out, '#', index);
    }

    fn value(&mut self, out: &mut String, value: AttributeValue) {
        let index = self.values.iter().position(|known| *known == value).unwrap_or_else(|| {
            self.values.push(value);
            self.values.len() - 1
        });
        push_alias(out, ':', index);
    }

    fn into_rendered(self, update: Option<String>, condition: Option<String>) -> Rendered {
        let names: HashMap<String, String> =
            self.names.into_iter().enumerate().map(|(index, name)| (alias('#', index), name.into_owned())).collect();
        let values: HashMap<String, AttributeValue> =
            self.values.into_iter().enumerate().map(|(index, value)| (alias(':', index), value)).collect();
        Rendered { update, condition, names: (!names.is_empty()).then_some(names), values: (!values.is_empty()).then_some(values) }
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

const SECTIONS: [Section; 4] = [Section::Set, Section::Add, Section::Delete, Section::Remove];

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
    let mut out = String::with_capacity(16 + 14 * actions.len());
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
            aliases.value(out, value);
        }
        Action::SetIfAbsent(attr, value) => {
            aliases.name(out, attr.clone());
            out.push_str("=if_not_exists(");
            aliases.name(out, attr);
            out.push(',');
            aliases.value(out, value);
            out.push(')');
        }
        Action::Add(attr, amount) => {
            aliases.name(out, attr);
            out.push(' ');
            aliases.value(out, AttributeValue::N(amount.to_string()));
        }
        Action::AddMember(attr, member) | Action::DeleteMember(attr, member) => {
            aliases.name(out, attr);
            out.push(' ');
            aliases.value(out, AttributeValue::Ss(vec![member]));
        }
        Action::Remove(attr) => aliases.name(out, attr),
    }
}

fn render_condition(conditions: Vec<Condition>, aliases: &mut Aliases) -> Option<String> {
    match all(&conditions) {
        Some(true) => return None,
        Some(false) => {
            // No item is there and not there.
            let mut out = String::with_capacity(64);
            for (function, joint) in [("attribute_exists(", ""), ("attribute_not_exists(", " AND ")] {
                out.push_str(joint);
                out.push_str(function);
                aliases.name(&mut out, "PK".into());
                out.push(')');
            }
            return Some(out);
        }
        None => {}
    }
    let mut out = String::with_capacity(24 * conditions.len());
    join(conditions, Joint::And, aliases, &mut out);
    Some(out)
}

/// What joins the conditions around one: it decides who needs parentheses. DynamoDB refuses redundant ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joint {
    And,
    Or,
}

impl Joint {
    /// What always holds says nothing under AND, what never holds says nothing under OR.
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
        Condition::All(members) => nested(members, (Joint::And, around), aliases, out),
        Condition::Any(members) => nested(members, (Joint::Or, around), aliases, out),
    }
}

fn nested(mut members: Vec<Condition>, (joint, around): (Joint, Joint), aliases: &mut Aliases, out: &mut String) {
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
        Condition::Exists(_) | Condition::Absent(_) | Condition::Compare(..) => None,
        Condition::All(members) => all(members),
        Condition::Any(members) => {
            let mut depends = false;
            for member in members {
                match truth(member) {
                    Some(true) => return Some(true),
                    Some(false) => {}
                    None => depends = true,
                }
            }
            (!depends).then_some(false)
        }
    }
}

fn all(members: &[Condition]) -> Option<bool> {
    let mut depends = false;
    for member in members {
        match truth(member) {
            Some(false) => return Some(false),
            Some(true) => {}
            None => depends = true,
        }
    }
    (!depends).then_some(true)
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

/// Checks what DynamoDB would refuse: an alias used but not declared or declared but not used, the same name or value
/// declared twice, a section that is empty or comes twice, an expression that is too long. For tests; says what is wrong.
pub fn check(rendered: &Rendered) -> Result<(), String> {
    let texts: Vec<&str> = [&rendered.update, &rendered.condition].into_iter().flatten().map(String::as_str).collect();
    for text in &texts {
        if text.trim().is_empty() {
            return Err("an expression is empty".to_owned());
        }
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(format!("an expression has {} bytes, more than {EXPRESSION_BYTES_MAX}", text.len()));
        }
        if text.contains(",,") || text.contains("()") || text.contains("((") || text.contains("  ") {
            return Err(format!("an empty clause or redundant parentheses: {text}"));
        }
    }
    if let Some(update) = &rendered.update {
        check_sections(update)?;
    }
    let declared_names = rendered.names.as_ref().map(|names| names.keys().map(String::as_str).collect()).unwrap_or_default();
    let declared_values = rendered.values.as_ref().map(|values| values.keys().map(String::as_str).collect()).unwrap_or_default();
    check_aliases(&texts, '#', declared_names)?;
    check_aliases(&texts, ':', declared_values)?;
    if rendered.names.as_ref().is_some_and(HashMap::is_empty) || rendered.values.as_ref().is_some_and(HashMap::is_empty) {
        return Err("an empty map of aliases".to_owned());
    }
    let names: Vec<&String> = rendered.names.iter().flat_map(HashMap::values).collect();
    if let Some(twice) = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
        return Err(format!("the name {} has two aliases", twice.1));
    }
    let values: Vec<&AttributeValue> = rendered.values.iter().flat_map(HashMap::values).collect();
    if let Some(twice) = values.iter().enumerate().find(|(index, value)| values[..*index].contains(value)) {
        return Err(format!("the value {:?} has two aliases", twice.1));
    }
    Ok(())
}

fn check_sections(update: &str) -> Result<(), String> {
    let words: Vec<&str> = update.split(' ').collect();
    for section in SECTIONS {
        let keyword = section.keyword().trim();
        let at: Vec<usize> = words.iter().enumerate().filter(|(_, word)| **word == keyword).map(|(index, _)| index).collect();
        if at.len() > 1 {
            return Err(format!("{keyword} comes twice: {update}"));
        }
        if at.first().is_some_and(|index| words.get(index + 1).is_none_or(|next| !next.starts_with('#'))) {
            return Err(format!("{keyword} has no clause: {update}"));
        }
    }
    if SECTIONS.iter().any(|section| update.starts_with(section.keyword())) { Ok(()) } else { Err(format!("no section: {update}")) }
}

fn check_aliases(texts: &[&str], sigil: char, declared: Vec<&str>) -> Result<(), String> {
    let mut used: Vec<&str> = Vec::new();
    for text in texts {
        for (at, _) in text.match_indices(sigil) {
            let rest = &text[at..];
            let end = rest[1..].find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map_or(rest.len(), |end| end + 1);
            if end < 2 {
                return Err(format!("a bare {sigil} in: {text}"));
            }
            used.push(&rest[..end]);
        }
    }
    if let Some(missing) = used.iter().find(|alias| !declared.contains(alias)) {
        return Err(format!("{missing} is used but not declared"));
    }
    match declared.iter().find(|alias| !used.contains(alias)) {
        Some(idle) => Err(format!("{idle} is declared but not used")),
        None => Ok(()),
    }
}
