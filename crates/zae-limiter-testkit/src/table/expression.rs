//! Conditions and actions, evaluated as DynamoDB does.
//!
//! A mistake in the request itself (an attribute named twice, a comparison no type has) is found
//! before anything is looked at; a mistake about the item (an `ADD` to a text) only once the
//! condition has held.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_dynamodb::sdk::expression::{EXPRESSION_BYTES_MAX, render};
use zae_limiter_dynamodb::table::{Action, Comparison, Condition, Item, Key, number};

use super::number::Number;
use super::value::{canonical, is_ordered, item_size, key_item, order};

/// The largest item, in bytes.
const ITEM_BYTES_MAX: usize = 400 * 1024;

/// The longest partition key and the longest sort key, in bytes.
const KEY_BYTES_MAX: (usize, usize) = (2048, 1024);

/// The attributes that are keys of the table.
const KEYS: [&str; 2] = ["PK", "SK"];

/// The attributes that are keys of an index: texts, and not empty, if they are there.
const INDEX_KEYS: [&str; 8] =
    ["GSI1PK", "GSI1SK", "GSI2PK", "GSI2SK", "GSI3PK", "GSI3SK", "GSI4PK", "GSI4SK"];

/// Refuses what DynamoDB refuses without looking at the item.
pub(super) fn check(actions: &[Action], conditions: &[Condition]) -> Result<(), String> {
    for condition in conditions {
        check_condition(condition)?;
    }
    for (index, action) in actions.iter().enumerate() {
        let attr = attr_of(action);
        if attr.is_empty() {
            return Err("an attribute has no name".to_owned());
        }
        if KEYS.contains(&attr) {
            return Err(format!("{attr} is part of the key and cannot be updated"));
        }
        if actions[..index].iter().any(|other| attr_of(other) == attr) {
            return Err(format!("two clauses are about {attr}"));
        }
        if let Action::Set(_, value) | Action::SetIfAbsent(_, value) = action {
            canonical(value)?;
        }
    }
    let rendered = render(actions, conditions);
    for text in [&rendered.update, &rendered.condition].into_iter().flatten() {
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(format!(
                "an expression has {} bytes, more than {EXPRESSION_BYTES_MAX}",
                text.len()
            ));
        }
    }
    Ok(())
}

/// Whether nothing is left of the conditions once they are written as an expression.
pub(super) fn says_nothing(conditions: &[Condition]) -> bool {
    render(&[], conditions).condition.is_none()
}

fn check_condition(condition: &Condition) -> Result<(), String> {
    match condition {
        Condition::Exists(attr) | Condition::Absent(attr) | Condition::CompareNumber(attr, ..)
            if attr.is_empty() =>
        {
            Err("an attribute has no name".to_owned())
        }
        Condition::Exists(_) | Condition::Absent(_) | Condition::CompareNumber(..) => Ok(()),
        Condition::Compare(attr, comparison, value) => {
            canonical(value)?;
            if attr.is_empty() {
                return Err("an attribute has no name".to_owned());
            }
            let needs_order = !matches!(comparison, Comparison::Eq | Comparison::Ne);
            if needs_order && !is_ordered(value) {
                return Err(format!(
                    "{attr} is compared by {comparison:?} with {value:?}, which has no order"
                ));
            }
            Ok(())
        }
        Condition::All(members) | Condition::Any(members) => {
            members.iter().try_for_each(check_condition)
        }
    }
}

/// The attribute a clause is about.
pub(super) fn attr_of(action: &Action) -> &str {
    match action {
        Action::Set(attr, _)
        | Action::SetIfAbsent(attr, _)
        | Action::Add(attr, _)
        | Action::AddMember(attr, _)
        | Action::DeleteMember(attr, _)
        | Action::Remove(attr) => attr,
    }
}

/// Whether all conditions hold for an item that may not be there.
pub(super) fn hold(conditions: &[Condition], item: Option<&Item>) -> bool {
    conditions.iter().all(|condition| holds(condition, item))
}

fn holds(condition: &Condition, item: Option<&Item>) -> bool {
    let get = |attr: &str| item.and_then(|item| item.get(attr));
    match condition {
        Condition::Exists(attr) => get(attr).is_some(),
        Condition::Absent(attr) => get(attr).is_none(),
        Condition::Compare(attr, comparison, value) => compares(get(attr), *comparison, value),
        Condition::CompareNumber(attr, comparison, value) => {
            compares(get(attr), *comparison, &number(*value))
        }
        Condition::All(members) => members.iter().all(|member| holds(member, item)),
        Condition::Any(members) => members.iter().any(|member| holds(member, item)),
    }
}

fn compares(
    found: Option<&AttributeValue>,
    comparison: Comparison,
    value: &AttributeValue,
) -> bool {
    let Some(found) = found else { return comparison == Comparison::Ne };
    let equal = || canonical(value).is_ok_and(|value| value == *found);
    let ordered = |wanted: fn(std::cmp::Ordering) -> bool| order(found, value).is_some_and(wanted);
    match comparison {
        Comparison::Eq => equal(),
        Comparison::Ne => !equal(),
        Comparison::Lt => ordered(std::cmp::Ordering::is_lt),
        Comparison::Le => ordered(std::cmp::Ordering::is_le),
        Comparison::Gt => ordered(std::cmp::Ordering::is_gt),
        Comparison::Ge => ordered(std::cmp::Ordering::is_ge),
    }
}

/// The item after an update; the error is what DynamoDB finds wrong with the item.
pub(super) fn updated(
    actions: &[Action],
    key: &Key,
    before: Option<&Item>,
) -> Result<Item, String> {
    let mut item = before.cloned().unwrap_or_else(|| key_item(key));
    for action in actions {
        apply(action, &mut item)?;
    }
    check_item(&item)?;
    Ok(item)
}

fn apply(action: &Action, item: &mut Item) -> Result<(), String> {
    let name = attr_of(action);
    let wrong = |found: &AttributeValue| {
        Err(format!("{name} is {found:?}, to which nothing like that can be added or removed"))
    };
    match action {
        Action::Set(_, value) => {
            item.insert(name.to_owned(), canonical(value)?);
        }
        Action::SetIfAbsent(_, value) => {
            if !item.contains_key(name) {
                item.insert(name.to_owned(), canonical(value)?);
            }
        }
        Action::Add(_, amount) => {
            let amount = Number::parse(&amount.to_string())?;
            let sum = match item.get(name) {
                None => amount,
                Some(AttributeValue::N(text)) => Number::parse(text)?.add(amount)?,
                Some(found) => return wrong(found),
            };
            item.insert(name.to_owned(), AttributeValue::N(sum.to_string()));
        }
        Action::AddMember(_, member) => match item.get_mut(name) {
            None => {
                item.insert(name.to_owned(), AttributeValue::Ss(vec![member.clone()]));
            }
            Some(AttributeValue::Ss(members)) => {
                if let Err(at) = members.binary_search(member) {
                    members.insert(at, member.clone());
                }
            }
            Some(found) => return wrong(found),
        },
        Action::DeleteMember(_, member) => match item.get_mut(name) {
            None => {}
            Some(AttributeValue::Ss(members)) => {
                members.retain(|known| known != member);
                // There are no empty sets.
                if members.is_empty() {
                    item.remove(name);
                }
            }
            Some(found) => return wrong(found),
        },
        Action::Remove(_) => {
            item.remove(name);
        }
    }
    Ok(())
}

/// The item to put in its stored form.
pub(super) fn put(item: &Item) -> Result<Item, String> {
    if item.keys().any(String::is_empty) {
        return Err("an attribute has no name".to_owned());
    }
    item.iter().map(|(name, value)| Ok((name.clone(), canonical(value)?))).collect()
}

/// Refuses an item that DynamoDB does not store, whatever made it.
pub(super) fn check_item(item: &Item) -> Result<(), String> {
    for name in INDEX_KEYS {
        if let Some(value) = item.get(name) {
            match value {
                AttributeValue::S(text)
                    if !text.is_empty() && text.len() <= key_bytes_max(name) => {}
                found => return Err(format!("{name} is {found:?}, which is no key of an index")),
            }
        }
    }
    let size = item_size(item);
    if size > ITEM_BYTES_MAX {
        return Err(format!("the item has {size} bytes, more than {ITEM_BYTES_MAX}"));
    }
    Ok(())
}

/// Refuses a key that DynamoDB does not accept.
pub(super) fn check_key(key: &Key) -> Result<(), String> {
    for (name, text) in [("PK", &*key.pk), ("SK", &*key.sk)] {
        if text.is_empty() || text.len() > key_bytes_max(name) {
            return Err(format!(
                "{name} has {} bytes, which is none or too many for a key",
                text.len()
            ));
        }
    }
    Ok(())
}

fn key_bytes_max(name: &str) -> usize {
    if name.ends_with("PK") { KEY_BYTES_MAX.0 } else { KEY_BYTES_MAX.1 }
}
