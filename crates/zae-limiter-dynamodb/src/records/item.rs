//! Items as text, numbers and names: every record except the bucket, written and read in one place.
//!
//! Items of the Python package are read too. An attribute that this version cannot honour is an
//! `Incompatible` error that names the item and the attribute, never a guess: a limit that is
//! silently dropped would let every request through.

mod audit;
pub(crate) mod config;
pub(crate) mod usage;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{CHAIN_MAX, Entity, EntityId, TimeMs, parse_rfc3339, rfc3339};
use zae_limiter_store::{Namespace, NamespaceStatus, StoreError, StoreErrorKind};

use crate::records::{attr, keys};
use crate::table::{Action, Item, Key, number, text};

pub(crate) use audit::{
    Details, Event, audit_event, audit_item, deleted_of, details, details_of, is_deletion,
    is_purge_of, purge_told, purged_of,
};
pub(crate) use usage::{Shape, shape_of, usage_item};

/// The key of an item; `None` for one without.
pub(crate) fn key_of(item: &Item) -> Option<Key> {
    let pk = text_of(item, attr::PK)?.to_owned();
    let sk = match text_of(item, attr::SK)? {
        keys::STATE => Cow::Borrowed(keys::STATE),
        keys::META => Cow::Borrowed(keys::META),
        keys::CONFIG => Cow::Borrowed(keys::CONFIG),
        other => Cow::Owned(other.to_owned()),
    };
    Some(Key { pk, sk })
}

pub(crate) fn text_of<'a>(item: &'a Item, attr: &str) -> Option<&'a str> {
    match item.get(attr) {
        Some(AttributeValue::S(text)) => Some(text),
        _ => None,
    }
}

/// A text that must be there.
pub(crate) fn required_text<'a>(item: &'a Item, attr: &str) -> Result<&'a str, StoreError> {
    text_of(item, attr).ok_or_else(|| corrupt(item, attr, "is missing"))
}

/// A flag that may be left out. A flag that cannot be read is an error, not a flag that is off.
pub(crate) fn flag_of(item: &Item, attr: &str) -> Result<Option<bool>, StoreError> {
    match item.get(attr) {
        None | Some(AttributeValue::Null(_)) => Ok(None),
        Some(AttributeValue::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(corrupt(item, attr, "is neither true nor false")),
    }
}

pub(crate) fn integer_of(item: &Item, attr: &str) -> Option<i64> {
    match item.get(attr) {
        Some(AttributeValue::N(text)) => whole_number(text),
        _ => None,
    }
}

/// A number attribute that is a whole number. Other writers may have written `60.0`.
pub(crate) fn whole_number(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    fraction.bytes().all(|digit| digit == b'0').then(|| whole.parse().ok())?
}

/// An instant as items store it; `None` when there is none or it cannot be read.
pub(crate) fn instant_of(item: &Item, attr: &str) -> Option<TimeMs> {
    text_of(item, attr).and_then(|text| parse_rfc3339(text).ok())
}

/// Any value as text, for people.
pub(crate) fn shown(value: &AttributeValue) -> String {
    let list = |parts: Vec<String>| format!("[{}]", parts.join(", "));
    match value {
        AttributeValue::S(text) | AttributeValue::N(text) => text.clone(),
        AttributeValue::Bool(flag) => flag.to_string(),
        AttributeValue::Null(_) => "null".to_owned(),
        AttributeValue::L(values) => list(values.iter().map(shown).collect()),
        AttributeValue::Ss(values) | AttributeValue::Ns(values) => list(values.clone()),
        AttributeValue::M(values) => {
            let sorted: BTreeMap<_, _> = values.iter().collect();
            let pairs: Vec<String> =
                sorted.into_iter().map(|(key, value)| format!("{key}: {}", shown(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        AttributeValue::B(bytes) => format!("{} bytes", bytes.as_ref().len()),
        other => format!("{other:?}"),
    }
}

/// Something in an item that this version cannot honour, or cannot read.
pub(crate) fn incompatible(item: &Item, attribute: &str, problem: impl Display) -> StoreError {
    let message = format!("attribute \"{attribute}\" of item {} {problem}", named(item));
    StoreError::new(StoreErrorKind::Incompatible, "read", message)
}

/// Something in an item that cannot be right.
pub(crate) fn corrupt(item: &Item, attribute: &str, problem: impl Display) -> StoreError {
    let message = format!("attribute \"{attribute}\" of item {} {problem}", named(item));
    StoreError::new(StoreErrorKind::Corrupt, "read", message)
}

fn named(item: &Item) -> String {
    let part = |attr| text_of(item, attr).unwrap_or("?").escape_debug().to_string();
    format!("{} {}", part(attr::PK), part(attr::SK))
}

/// A name in an item. Other writers accept more than we do.
pub(crate) fn name_in<N: FromStr>(item: &Item, attribute: &str, text: &str) -> Result<N, StoreError>
where
    N::Err: Display,
{
    text.parse().map_err(|error| {
        incompatible(
            item,
            attribute,
            format_args!("holds a name this version does not accept: {error}"),
        )
    })
}

/// The keys of a new item, with the one by which its namespace finds it.
pub(crate) fn new_item(namespace: &str, key: &Key) -> Item {
    let mut item = Item::with_capacity(16);
    item.insert(attr::PK.to_owned(), text(key.pk.as_str()));
    item.insert(attr::SK.to_owned(), text(key.sk.as_ref()));
    item.insert(attr::GSI4PK.to_owned(), text(namespace));
    item.insert(attr::GSI4SK.to_owned(), text(key.pk.as_str()));
    item
}

/// The same for an update, which creates the item when it is missing.
pub(crate) fn index_actions(namespace: &str, key: &Key) -> [Action; 2] {
    [
        Action::SetIfAbsent(attr::GSI4PK.into(), text(namespace)),
        Action::SetIfAbsent(attr::GSI4SK.into(), text(key.pk.as_str())),
    ]
}

fn put(item: &mut Item, attribute: &str, value: AttributeValue) {
    item.insert(attribute.to_owned(), value);
}

pub(crate) fn nothing() -> AttributeValue {
    AttributeValue::Null(true)
}

pub(crate) fn optional_text(value: Option<&str>) -> AttributeValue {
    value.map_or_else(nothing, text)
}

/// Metadata as stored.
pub(crate) fn metadata_value(metadata: &BTreeMap<String, String>) -> AttributeValue {
    AttributeValue::M(
        metadata.iter().map(|(key, value)| (key.clone(), text(value.as_str()))).collect(),
    )
}

/// A new entity. `incarnation` tells it apart from an earlier one with the same id.
pub(crate) fn entity_item(
    namespace: &str,
    entity: &Entity,
    incarnation: &str,
    ancestors: &[EntityId],
) -> Item {
    let mut item = new_item(namespace, &keys::entity(namespace, &entity.id));
    put(&mut item, attr::ENTITY_ID, text(entity.id.as_str()));
    put(&mut item, attr::NAME, text(entity.name.as_str()));
    put(&mut item, attr::PARENT_ID, optional_text(entity.parent.as_ref().map(EntityId::as_str)));
    put(&mut item, attr::CASCADE, AttributeValue::Bool(entity.cascade));
    put(&mut item, attr::PGEN, number(entity.created_at.0));
    put(&mut item, attr::PINC, text(incarnation));
    put(&mut item, attr::METADATA, metadata_value(&entity.metadata));
    put(&mut item, attr::CREATED_AT, text(rfc3339(entity.created_at)));
    put(&mut item, attr::VERSION, number(stored_version(entity.version)));
    if let Some(parent) = &entity.parent {
        put(&mut item, attr::GSI1PK, text(keys::index::children(namespace, parent)));
        put(&mut item, attr::GSI1SK, text(keys::index::child(&entity.id)));
    }
    if !ancestors.is_empty() {
        let ids = ancestors.iter().map(|ancestor| text(ancestor.as_str())).collect();
        put(&mut item, attr::ANCESTORS, AttributeValue::L(ids));
    }
    item
}

/// The ancestors an entity had when it was created; empty when the attribute is not a list of ids.
pub(crate) fn ancestors_of(item: &Item) -> Vec<EntityId> {
    let Some(AttributeValue::L(ids)) = item.get(attr::ANCESTORS) else { return Vec::new() };
    let id = |value: &AttributeValue| value.as_s().ok().and_then(|id| id.parse().ok());
    ids.iter().take(CHAIN_MAX).map_while(id).collect()
}

/// A version as stored; it counts changes or microseconds and cannot get that far.
pub(crate) fn stored_version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

/// Reads an entity.
pub(crate) fn entity(item: &Item) -> Result<Entity, StoreError> {
    let id = required_text(item, attr::ENTITY_ID)?;
    let metadata = match item.get(attr::METADATA) {
        Some(AttributeValue::M(pairs)) => {
            pairs.iter().map(|(key, value)| (key.clone(), shown(value))).collect()
        }
        _ => BTreeMap::new(),
    };
    Ok(Entity {
        id: name_in(item, attr::ENTITY_ID, id)?,
        name: text_of(item, attr::NAME).filter(|name| !name.is_empty()).unwrap_or(id).to_owned(),
        parent: parent_of(item)?,
        cascade: flag_of(item, attr::CASCADE)?.unwrap_or(false),
        metadata,
        // Shown to people only; an entity without it is as good as any.
        created_at: instant_of(item, attr::CREATED_AT).unwrap_or(TimeMs(0)),
        version: version_of(item, attr::VERSION),
    })
}

/// The parent an entity names.
pub(crate) fn parent_of(item: &Item) -> Result<Option<EntityId>, StoreError> {
    match item.get(attr::PARENT_ID) {
        Some(AttributeValue::S(parent)) => name_in(item, attr::PARENT_ID, parent).map(Some),
        None | Some(AttributeValue::Null(_)) => Ok(None),
        Some(_) => Err(corrupt(item, attr::PARENT_ID, "is neither a text nor null")),
    }
}

/// A version; an item of another writer is at 1, because 0 means that there is no item.
pub(crate) fn version_of(item: &Item, attribute: &str) -> u64 {
    integer_of(item, attribute).and_then(|version| u64::try_from(version).ok()).unwrap_or(1)
}

/// One of the two records of a namespace.
pub(crate) fn namespace_item(key: &Key, namespace: &Namespace) -> Item {
    let mut item = new_item(keys::REGISTRY, key);
    put(&mut item, attr::NAMESPACE_ID, text(namespace.id.as_str()));
    put(&mut item, attr::NAMESPACE_NAME, text(namespace.name.as_str()));
    put(&mut item, attr::STATUS, text(namespace.status.as_str()));
    put(&mut item, attr::CREATED_AT, text(rfc3339(namespace.created_at)));
    item
}

/// Reads a record of a namespace.
pub(crate) fn namespace(item: &Item) -> Result<Namespace, StoreError> {
    let status = match required_text(item, attr::STATUS)? {
        "active" => NamespaceStatus::Active,
        "deleted" => NamespaceStatus::Deleted,
        "purging" => NamespaceStatus::Purging,
        other => {
            return Err(incompatible(
                item,
                attr::STATUS,
                format_args!("says {other:?}, which this version does not know"),
            ));
        }
    };
    Ok(Namespace {
        id: name_in(item, attr::NAMESPACE_ID, required_text(item, attr::NAMESPACE_ID)?)?,
        name: name_in(item, attr::NAMESPACE_NAME, required_text(item, attr::NAMESPACE_NAME)?)?,
        status,
        created_at: instant_of(item, attr::CREATED_AT).unwrap_or(TimeMs(0)),
        deleted_at: instant_of(item, attr::DELETED_AT)
            .filter(|_| status != NamespaceStatus::Active),
    })
}

/// What a new version record says.
pub(crate) struct NewVersion<'a> {
    pub(crate) schema: &'a str,
    pub(crate) client_min: &'a str,
    pub(crate) min_reader: i64,
    pub(crate) min_reader_release: &'a str,
    /// A new table has nothing to migrate.
    pub(crate) migrated: &'a [&'a str],
    pub(crate) at: TimeMs,
    pub(crate) by: &'a str,
}

/// The version record of a table.
pub(crate) fn version_item(new: &NewVersion<'_>) -> Item {
    let mut item = new_item(keys::REGISTRY, &keys::version());
    put(&mut item, attr::SCHEMA_VERSION, text(new.schema));
    // No Lambda of the Python package is deployed beside us, and its clients must not push one.
    put(&mut item, attr::LAMBDA_VERSION, nothing());
    put(&mut item, attr::CLIENT_MIN_VERSION, text(new.client_min));
    put(&mut item, attr::MIN_READER, number(new.min_reader));
    put(&mut item, attr::MIN_READER_RELEASE, text(new.min_reader_release));
    let migrated = new.migrated.iter().map(|name| (*name).to_owned()).collect();
    put(&mut item, attr::MIGRATED, AttributeValue::Ss(migrated));
    put(&mut item, attr::UPDATED_AT, text(rfc3339(new.at)));
    put(&mut item, attr::UPDATED_BY, text(new.by));
    item
}

#[cfg(test)]
mod tests;
