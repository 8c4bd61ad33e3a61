//! Attribute values: their one stored form, their order, their size.

use std::cmp::Ordering;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_dynamodb::table::{Item, Key};

use super::number::Number;

/// Nested deeper than this is refused.
const DEPTH_MAX: usize = 32;

/// The form a value is stored in: numbers without superfluous zeros, sets sorted. Equal values have
/// equal forms.
pub(super) fn canonical(value: &AttributeValue) -> Result<AttributeValue, String> {
    canonical_at(value, 0)
}

fn canonical_at(value: &AttributeValue, depth: usize) -> Result<AttributeValue, String> {
    if depth > DEPTH_MAX {
        return Err(format!("nested deeper than {DEPTH_MAX}"));
    }
    let number = |text: &String| Number::parse(text);
    Ok(match value {
        AttributeValue::S(_)
        | AttributeValue::B(_)
        | AttributeValue::Bool(_)
        | AttributeValue::Null(true) => value.clone(),
        AttributeValue::N(text) => AttributeValue::N(number(text)?.to_string()),
        AttributeValue::Ss(members) => AttributeValue::Ss(set(members.clone())?),
        AttributeValue::Ns(members) => {
            let members = set(members.iter().map(number).collect::<Result<Vec<_>, _>>()?)?;
            AttributeValue::Ns(members.iter().map(ToString::to_string).collect())
        }
        AttributeValue::Bs(members) => {
            let mut sorted = members.clone();
            sorted.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
            if sorted.is_empty() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err("a set is empty or has a member twice".to_owned());
            }
            AttributeValue::Bs(sorted)
        }
        AttributeValue::L(members) => AttributeValue::L(
            members
                .iter()
                .map(|member| canonical_at(member, depth + 1))
                .collect::<Result<_, _>>()?,
        ),
        AttributeValue::M(members) => AttributeValue::M(
            members
                .iter()
                .map(|(name, member)| Ok((name.clone(), canonical_at(member, depth + 1)?)))
                .collect::<Result<_, String>>()?,
        ),
        other => return Err(format!("{other:?} is no value")),
    })
}

fn set<T: Ord>(mut members: Vec<T>) -> Result<Vec<T>, String> {
    members.sort_unstable();
    if members.is_empty() || members.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a set is empty or has a member twice".to_owned());
    }
    Ok(members)
}

/// The order of two canonical values of one ordered type; `None` for others.
pub(super) fn order(a: &AttributeValue, b: &AttributeValue) -> Option<Ordering> {
    match (a, b) {
        (AttributeValue::N(a), AttributeValue::N(b)) => {
            Some(Number::parse(a).ok()?.cmp(&Number::parse(b).ok()?))
        }
        (AttributeValue::S(a), AttributeValue::S(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (AttributeValue::B(a), AttributeValue::B(b)) => Some(a.as_ref().cmp(b.as_ref())),
        _ => None,
    }
}

/// Whether `<` and its like take the value.
pub(super) fn is_ordered(value: &AttributeValue) -> bool {
    matches!(value, AttributeValue::N(_) | AttributeValue::S(_) | AttributeValue::B(_))
}

/// The size of an item in bytes, as AWS counts it.
#[must_use]
pub fn item_size(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + size(value)).sum()
}

fn size(value: &AttributeValue) -> usize {
    let number = |text: &String| Number::parse(text).map_or(text.len(), Number::size);
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(text) => number(text),
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        AttributeValue::Ss(members) => members.iter().map(String::len).sum(),
        AttributeValue::Ns(members) => members.iter().map(number).sum(),
        AttributeValue::Bs(members) => members.iter().map(|bytes| bytes.as_ref().len()).sum(),
        AttributeValue::L(members) => {
            3 + members.iter().map(|member| 1 + size(member)).sum::<usize>()
        }
        AttributeValue::M(members) => {
            3 + members.iter().map(|(name, member)| name.len() + 1 + size(member)).sum::<usize>()
        }
        // `Bool`, `Null`, and whatever a newer SDK knows.
        _ => 1,
    }
}

/// A text attribute.
pub(super) fn text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    match item.get(name) {
        Some(AttributeValue::S(text)) => Some(text),
        _ => None,
    }
}

/// The key of an item.
pub(super) fn key_of(item: &Item) -> Option<Key> {
    Some(Key { pk: text(item, "PK")?.to_owned(), sk: text(item, "SK")?.to_owned().into() })
}

/// A key as attributes.
pub(super) fn key_item(key: &Key) -> Item {
    [("PK", key.pk.clone()), ("SK", key.sk.clone().into_owned())]
        .map(|(name, text)| (name.to_owned(), AttributeValue::S(text)))
        .into_iter()
        .collect()
}
