//! Audit events. The details have the shapes of the Python package where it records the same thing,
//! so that either reads what the other wrote.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{
    AuditAction, AuditEvent, AuditSubject, EventId, Limit, NamespaceId, rfc3339,
};
use zae_limiter_store::{Change, DeletedEntity, StoreError};

use super::{
    attr, incompatible, instant_of, new_item, nothing, optional_text, put, required_text, shown,
    text_of,
};
use crate::records::keys;
use crate::table::{Item, number, text};

const ACTION: &str = "action";
const PRINCIPAL: &str = "principal";
const DETAILS: &str = "details";
const EVENT_ID: &str = "event_id";
const TIMESTAMP: &str = "timestamp";
const BUCKETS: &str = "buckets";
const CONFIGS: &str = "configs";
const RECORDS: &str = "records";
const LIMITS: &str = "limits";
const REASON: &str = "reason";

/// The details of an event as stored.
pub(crate) type Details = HashMap<String, AttributeValue>;

/// What an audit event says beside who and when.
pub(crate) struct Event<'a> {
    pub(crate) subject: AuditSubject,
    pub(crate) action: AuditAction,
    /// As stored: `_default_` for all resources of an entity.
    pub(crate) resource: Option<&'a str>,
    pub(crate) details: Details,
    /// The version a level has got by the change: told again to a caller that repeats the change.
    pub(crate) version: Option<u64>,
}

/// An audit event as stored.
pub(crate) fn audit_item(
    namespace: &str,
    change: &Change,
    event: Event<'_>,
    retention_s: i64,
) -> Item {
    let id = change.event.to_string();
    let mut item = new_item(namespace, &keys::audit(namespace, &event.subject, &id));
    // A flag is recorded as a change of limits, with the flag in its details: the Python package
    // has no other word.
    let action =
        if event.action == AuditAction::FlagsSet { AuditAction::LimitsSet } else { event.action };
    put(&mut item, attr::ENTITY_ID, text(event.subject.to_string()));
    put(&mut item, EVENT_ID, text(id));
    put(&mut item, TIMESTAMP, text(rfc3339(change.at)));
    put(&mut item, ACTION, text(action.as_str()));
    put(
        &mut item,
        PRINCIPAL,
        optional_text(change.principal.as_ref().map(|principal| principal.as_str())),
    );
    put(&mut item, attr::RESOURCE, optional_text(event.resource));
    let mut details = event.details;
    if let Some(reason) = &change.reason {
        details.entry(REASON.to_owned()).or_insert_with(|| text(reason.as_ref()));
    }
    put(&mut item, DETAILS, AttributeValue::M(details));
    if let Some(version) = event.version {
        put(&mut item, super::config::CONFIG_VERSION, number(super::stored_version(version)));
    }
    put(&mut item, attr::TTL, number(change.at.0.div_euclid(1_000).saturating_add(retention_s)));
    item
}

/// Reads an audit event. Words and names that this version does not know are told in the details.
pub(crate) fn audit_event(item: &Item, subject: &AuditSubject) -> Result<AuditEvent, StoreError> {
    let id: EventId = required_text(item, EVENT_ID)?
        .parse()
        .map_err(|error| incompatible(item, EVENT_ID, format_args!("cannot be read: {error}")))?;
    let empty = Details::new();
    let stored = match item.get(DETAILS) {
        Some(AttributeValue::M(details)) => details,
        _ => &empty,
    };
    let mut told = told(stored);
    let word = text_of(item, ACTION).unwrap_or_default();
    let action = match word.parse() {
        // Limits are set, or a flag is: the Python package calls both by one name.
        Ok(AuditAction::LimitsSet) if !stored.contains_key(LIMITS) && is_about_flags(stored) => {
            AuditAction::FlagsSet
        }
        Ok(action) => action,
        Err(_) => {
            told.insert(0, (ACTION.to_owned(), word.to_owned()));
            AuditAction::Other
        }
    };
    let principal =
        text_of(item, PRINCIPAL).and_then(|principal| kept(&mut told, PRINCIPAL, principal));
    let resource =
        text_of(item, attr::RESOURCE).filter(|resource| *resource != keys::ALL_RESOURCES);
    let resource = resource.and_then(|resource| kept(&mut told, attr::RESOURCE, resource));
    let at = instant_of(item, TIMESTAMP).unwrap_or_else(|| id.time());
    Ok(AuditEvent { id, at, subject: subject.clone(), action, principal, resource, details: told })
}

/// The details of an event.
pub(crate) fn details_of(item: &Item) -> Option<Details> {
    item.get(DETAILS).and_then(|details| details.as_m().ok()).cloned()
}

/// True for the event of a deletion of an entity.
pub(crate) fn is_deletion(item: &Item) -> bool {
    text_of(item, ACTION) == Some(AuditAction::EntityDeleted.as_str())
}

/// The counts of a deletion, as its event tells them; zero when another call has finished the
/// deletion.
pub(crate) fn deleted_of(item: &Item) -> DeletedEntity {
    DeletedEntity { buckets: count_in(item, BUCKETS), configs: count_in(item, CONFIGS) }
}

/// True for the event of a purge of this namespace.
pub(crate) fn is_purge_of(item: &Item, id: &NamespaceId) -> bool {
    let told = matches!(item.get(DETAILS), Some(AttributeValue::M(details)) if text_of(details, "id") == Some(id.as_str()));
    told && text_of(item, ACTION) == Some(AuditAction::NamespacePurged.as_str())
}

/// The number of records a purge has removed, as its event tells it; zero when another call has
/// finished the purge.
pub(crate) fn purged_of(item: &Item) -> u64 {
    count_in(item, RECORDS)
}

/// The event of a purge with what it has removed.
pub(crate) fn purge_told(mut item: Item, records: u64) -> Item {
    if let Some(AttributeValue::M(details)) = item.get_mut(DETAILS) {
        details.insert(RECORDS.to_owned(), number(super::stored_version(records)));
    }
    item
}

fn count_in(item: &Item, name: &str) -> u64 {
    let Some(AttributeValue::M(details)) = item.get(DETAILS) else { return 0 };
    super::integer_of(details, name).and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}

fn is_about_flags(details: &Details) -> bool {
    [attr::DISABLED, attr::CASCADE].iter().any(|flag| details.contains_key(*flag))
}

/// The name, or `None` and the text among the details when it is none of ours.
fn kept<N: std::str::FromStr>(
    told: &mut Vec<(String, String)>,
    word: &str,
    name: &str,
) -> Option<N> {
    let parsed = name.parse().ok();
    if parsed.is_none() {
        told.push((word.to_owned(), name.to_owned()));
    }
    parsed
}

/// Details as pairs, in a fixed order: known ones first, then by name.
fn told(details: &Details) -> Vec<(String, String)> {
    const FIRST: [&str; 6] =
        ["namespace", "id", attr::NAME, attr::PARENT_ID, attr::CASCADE, LIMITS];
    let rank = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
    let mut sorted: Vec<_> = details.iter().collect();
    sorted.sort_by_key(|(key, _)| (rank(key), *key));
    let mut pairs = Vec::new();
    for (key, value) in sorted {
        match (key.as_str(), value) {
            (attr::PARENT_ID, AttributeValue::Null(_)) => {}
            (attr::PARENT_ID, parent) => pairs.push(("parent".to_owned(), shown(parent))),
            (attr::DISABLED | details::WAS, AttributeValue::Null(_)) => {
                pairs.push((key.clone(), "inherited".to_owned()))
            }
            (attr::METADATA | details::WAS_METADATA, AttributeValue::M(metadata)) => {
                let sorted: BTreeMap<_, _> = metadata.iter().collect();
                let named = |(name, value)| (format!("{key}.{name}"), shown(value));
                pairs.extend(sorted.into_iter().map(named));
            }
            (LIMITS | details::WAS, AttributeValue::L(limits)) => {
                let word = if key == LIMITS { "limit" } else { key };
                pairs.extend(limits.iter().map(|limit| (word.to_owned(), limit_text(limit))))
            }
            (_, value) => pairs.push((key.clone(), shown(value))),
        }
    }
    pairs
}

/// A limit of the log: as the command line writes it if it is one of ours, else whatever there is.
fn limit_text(value: &AttributeValue) -> String {
    const PARTS: [&str; 4] = ["name", "capacity", "refill_amount", "refill_period_seconds"];
    let AttributeValue::M(parts) = value else { return shown(value) };
    let whole =
        |part: &str| super::integer_of(parts, part).and_then(|whole| u64::try_from(whole).ok());
    let limit = || {
        let name = text_of(parts, PARTS[0])?;
        Limit::custom(name, whole(PARTS[1])?, whole(PARTS[2])?, whole(PARTS[3])?).ok()
    };
    match limit() {
        Some(limit) if parts.len() == PARTS.len() => limit.to_string(),
        _ => shown(value),
    }
}

/// Builders of details.
pub(crate) mod details {
    use super::{
        AttributeValue, BTreeMap, BUCKETS, CONFIGS, Details, LIMITS, Limit, attr, nothing, number,
        text,
    };
    use crate::records::item::{config, metadata_value, optional_text, stored_version};
    use zae_limiter_core::{Entity, EntityId, Flag};
    use zae_limiter_store::{
        DeletedEntity, LevelConfig, LimitsChange, Namespace, OnUnavailable, StoreError,
    };

    /// What was there before a change: limits or a flag.
    pub(crate) const WAS: &str = "was";
    const WAS_NAME: &str = "was_name";
    pub(crate) const WAS_METADATA: &str = "was_metadata";
    const WAS_ON_UNAVAILABLE: &str = "was_on_unavailable";

    fn of<const N: usize>(pairs: [(&str, AttributeValue); N]) -> Details {
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// The same with pairs that are there only sometimes.
    fn with<const N: usize>(
        details: Details,
        pairs: [(&str, Option<AttributeValue>); N],
    ) -> Details {
        let pairs = pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        details.into_iter().chain(pairs).collect()
    }

    /// What a change has made, without what was there before it.
    pub(crate) fn without_before(mut details: Details) -> Details {
        details.retain(|name, _| {
            ![WAS, WAS_NAME, WAS_METADATA, WAS_ON_UNAVAILABLE].contains(&name.as_str())
        });
        details
    }

    pub(crate) fn entity(entity: &Entity) -> Details {
        of([
            (attr::NAME, text(entity.name.as_str())),
            (attr::PARENT_ID, optional_text(entity.parent.as_ref().map(EntityId::as_str))),
            (attr::CASCADE, AttributeValue::Bool(entity.cascade)),
            (attr::METADATA, metadata_value(&entity.metadata)),
        ])
    }

    pub(crate) fn entity_update(entity: &Entity, before: &Entity) -> Details {
        let details = of([
            (attr::NAME, text(entity.name.as_str())),
            (attr::METADATA, metadata_value(&entity.metadata)),
        ]);
        let gone =
            before.metadata.iter().filter(|(key, value)| entity.metadata.get(*key) != Some(*value));
        let gone: BTreeMap<String, String> =
            gone.map(|(key, value)| (key.clone(), value.clone())).collect();
        let was_metadata = (!gone.is_empty()).then(|| metadata_value(&gone));
        let was_name = (entity.name != before.name).then(|| text(before.name.as_str()));
        with(details, [(WAS_METADATA, was_metadata), (WAS_NAME, was_name)])
    }

    /// A deletion that has been ordered. Its counts are stored when it is finished.
    pub(crate) fn deletion_ordered() -> Details {
        of([("complete", AttributeValue::Bool(false))])
    }

    pub(crate) fn entity_deletion(deleted: &DeletedEntity) -> Details {
        let count = |count: u64| number(stored_version(count));
        of([
            (BUCKETS, count(deleted.buckets)),
            (CONFIGS, count(deleted.configs)),
            (
                "records_deleted",
                count(deleted.buckets.saturating_add(deleted.configs).saturating_add(1)),
            ),
            ("complete", AttributeValue::Bool(true)),
        ])
    }

    pub(crate) fn limits(limits: &[Limit], on_unavailable: Option<OnUnavailable>) -> Details {
        let policy = on_unavailable.map(|policy| text(policy.as_str()));
        with(of([(LIMITS, list(limits))]), [("on_unavailable", policy)])
    }

    fn list(limits: &[Limit]) -> AttributeValue {
        let limit = |limit: &Limit| {
            AttributeValue::M(of([
                ("name", text(limit.name().as_str())),
                ("capacity", number(stored_version(limit.capacity()))),
                ("refill_amount", number(stored_version(limit.refill_amount()))),
                ("refill_period_seconds", number(stored_version(limit.refill_period_s()))),
            ]))
        };
        AttributeValue::L(limits.iter().map(limit).collect())
    }

    /// Limits that replace others, which may be such that this version cannot read them.
    pub(crate) fn limits_set(
        new: &LimitsChange,
        before: Result<LevelConfig, StoreError>,
    ) -> Details {
        let (was, was_policy) = match before {
            Ok(before) => {
                let replaced = before
                    .on_unavailable
                    .filter(|policy| new.on_unavailable.is_some_and(|new| new != *policy));
                ((!before.limits.is_empty()).then(|| list(&before.limits)), replaced)
            }
            Err(error) => (Some(text(error.message())), None),
        };
        let was_policy = was_policy.map(|policy| text(policy.as_str()));
        let details = limits(&new.limits, new.on_unavailable);
        with(details, [(WAS, was), (WAS_ON_UNAVAILABLE, was_policy)])
    }

    /// Limits that this version could not read, when they are deleted.
    pub(crate) fn unreadable(problem: &str) -> Details {
        of([("unreadable", text(problem))])
    }

    pub(crate) fn flag(flag: Option<Flag>, before: Option<Flag>) -> Details {
        let stored = |flag: Option<Flag>| flag.map_or_else(nothing, config::flag_value);
        of([(attr::DISABLED, stored(flag)), (WAS, stored(before))])
    }

    /// Texts by name; each name is there once.
    pub(crate) fn texts(pairs: &[(String, String)]) -> Details {
        pairs.iter().map(|(key, value)| (key.clone(), text(value.as_str()))).collect()
    }

    pub(crate) fn namespace(namespace: &Namespace) -> Details {
        of([("namespace", text(namespace.name.as_str())), ("id", text(namespace.id.as_str()))])
    }
}
