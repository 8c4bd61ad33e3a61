//! The details of audit events, for those who implement a store: what a change has made, and what
//! was there before. The same words in every store, in the same order.

use zae_limiter_core::{Entity, Limit};

use crate::{LevelConfig, LimitsChange};

/// Names and values, in the order in which they are told. A name may occur again.
pub type Details = Vec<(String, String)>;

/// Limits, by themselves.
#[must_use]
pub fn limits(limits: &[Limit]) -> Details {
    named("limit", limits)
}

/// Limits that replace those of a level.
#[must_use]
pub fn limits_set(new: &LimitsChange, before: &LevelConfig) -> Details {
    let mut details = limits(&new.limits);
    details
        .extend(new.on_unavailable.map(|policy| ("on_unavailable".to_owned(), policy.to_string())));
    details.extend(named("was", &before.limits));
    let replaced =
        before.on_unavailable.filter(|policy| new.on_unavailable.is_some_and(|new| new != *policy));
    details.extend(replaced.map(|policy| ("was_on_unavailable".to_owned(), policy.to_string())));
    details
}

/// A flag that replaces that of a level.
#[must_use]
pub fn flag(disabled: Option<bool>, before: Option<bool>) -> Details {
    let word = |flag: Option<bool>| flag.map_or("inherited".to_owned(), |flag| flag.to_string());
    vec![("disabled".to_owned(), word(disabled)), ("was".to_owned(), word(before))]
}

/// Name and metadata of an entity.
#[must_use]
pub fn entity(entity: &Entity) -> Details {
    let metadata =
        entity.metadata.iter().map(|(key, value)| (format!("metadata.{key}"), value.clone()));
    std::iter::once(("name".to_owned(), entity.name.clone())).chain(metadata).collect()
}

/// Name and metadata of an entity after an update, and of those before it what is gone.
#[must_use]
pub fn entity_updated(after: &Entity, before: &Entity) -> Details {
    let mut details = entity(after);
    let gone =
        before.metadata.iter().filter(|(key, value)| after.metadata.get(*key) != Some(*value));
    details.extend(gone.map(|(key, value)| (format!("was_metadata.{key}"), value.clone())));
    details
        .extend((before.name != after.name).then(|| ("was_name".to_owned(), before.name.clone())));
    details
}

fn named(name: &str, limits: &[Limit]) -> Details {
    limits.iter().map(|limit| (name.to_owned(), limit.to_string())).collect()
}
