//! The registries: which resources have a configuration, and for which some entity has one. Changed in the transaction that
//! makes or removes the configuration, so they are exact.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_store::{Level, StoreError};

use crate::change::too_busy;
use crate::constants::ADMIN_ATTEMPTS_MAX;
use crate::item::{attr, corrupt, index_actions, integer_of, whole_number};
use crate::retry::Refused;
use crate::table::{Action, Comparison, Condition, Delete, Item, Key, Update, Write, compare};
use crate::{DynamoStore, keys};

/// What a change does to the configuration of a level, as its registry sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is there afterwards and was not registered before.
    Appears,
    /// It is there before and after.
    Stays,
    /// It was registered and is gone afterwards.
    Disappears,
}

/// The registry of a level's kind; the system has none.
pub(super) fn key(namespace: &str, level: &Level) -> Option<Key> {
    match level {
        Level::System => None,
        Level::Resource(_) => Some(keys::resources(namespace)),
        Level::Entity(_) | Level::EntityResource(..) => Some(keys::entity_config_resources(namespace)),
    }
}

/// The resources some entity has a configuration for, as stored.
pub(super) fn counted(registry: &Item) -> impl Iterator<Item = &str> {
    let is_key = |name: &str| zae_limiter_core::KEY_ATTRIBUTES.contains(&name);
    registry.keys().map(String::as_str).filter(move |name| !is_key(name) && integer_of(registry, name).is_some_and(|count| count > 0))
}

/// The write that keeps the registry of a level right. `Corrupt` when there is something in it that can not be counted in.
pub(super) fn update(namespace: &str, level: &Level, registry: Option<&Item>, presence: Presence) -> Result<Option<Write>, StoreError> {
    let Some(key) = key(namespace, level) else { return Ok(None) };
    let (actions, conditions) = match level {
        Level::System => return Ok(None),
        Level::Resource(resource) => {
            check_readable(registry, attr::RESOURCES, AttributeValue::is_ss)?;
            let (name, member) = (attr::RESOURCES.into(), resource.to_string());
            match presence {
                // A set, so that naming it once more repairs what a writer without registry has left out.
                Presence::Appears | Presence::Stays => (vec![Action::AddMember(name, member)], Vec::new()),
                Presence::Disappears => (vec![Action::DeleteMember(name, member)], Vec::new()),
            }
        }
        Level::Entity(_) | Level::EntityResource(..) => {
            let name = level.resource_name().map_or(keys::ALL_RESOURCES, |resource| resource.as_str());
            match presence {
                Presence::Stays => return Ok(None),
                Presence::Appears => {
                    check_readable(registry, name, AttributeValue::is_n)?;
                    (vec![Action::Add(name.to_owned().into(), 1)], Vec::new())
                }
                Presence::Disappears => one_less(name, registry)?,
            }
        }
    };
    let mut actions = actions;
    if presence != Presence::Disappears {
        actions.extend(index_actions(namespace, &key));
    }
    Ok(Some(Write::Update(Update { key, actions, conditions })))
}

/// Somebody has to repair what is of another type: every further change would fail.
fn check_readable(registry: Option<&Item>, name: &str, is_readable: fn(&AttributeValue) -> bool) -> Result<(), StoreError> {
    match registry.and_then(|registry| Some((registry, registry.get(name)?))) {
        Some((registry, value)) if !is_readable(value) => Err(corrupt(registry, name, "can not be counted in; repair or remove it")),
        _ => Ok(()),
    }
}

/// A count that reaches zero goes: a resource without entities is not listed.
fn one_less(name: &str, registry: Option<&Item>) -> Result<(Vec<Action>, Vec<Condition>), StoreError> {
    check_readable(registry, name, |value| matches!(value, AttributeValue::N(digits) if whole_number(digits).is_some()))?;
    let name = || name.to_owned();
    Ok(match registry.and_then(|registry| integer_of(registry, &name())) {
        Some(count) if count > 1 => (vec![Action::Add(name().into(), -1)], vec![compare(name(), Comparison::Gt, 1)]),
        Some(_) => (vec![Action::Remove(name().into())], vec![compare(name(), Comparison::Le, 1)]),
        // Some writer never counted it.
        None => (vec![Action::Remove(name().into())], vec![Condition::Absent(name().into())]),
    })
}

/// Removes one configuration of an entity that is being deleted, and counts it out. False when it is gone already.
pub(crate) async fn remove_entity_config(store: &DynamoStore, key: &Key, operation: &'static str) -> Result<bool, StoreError> {
    let registry_key = keys::entity_config_resources(&store.id);
    let Some(resource) = keys::parse_entity_config(&key.sk) else { return Ok(false) };
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let mut found = store.shared.read_all(operation, &[key.clone(), registry_key.clone()], true).await?;
        let registry = found.pop().flatten();
        let Some(item) = found.pop().flatten() else { return Ok(false) };
        let counted = item.contains_key(attr::GSI3PK);
        let mut writes = vec![Write::Delete(Delete { key: key.clone(), conditions: vec![registered(counted)] })];
        if counted {
            let (actions, conditions) = one_less(resource, registry.as_ref()).map_err(|error| error.during(operation))?;
            writes.push(Write::Update(Update { key: registry_key.clone(), actions, conditions }));
        }
        match store.shared.transact(operation, &writes).await {
            Ok(()) => return Ok(true),
            Err(Refused::Canceled(_)) => store.shared.back_off(attempt).await,
            Err(refused) => return Err(refused.into_error(operation)),
        }
    }
    Err(too_busy(operation))
}

/// The condition that an entity configuration is there, and has or has not been counted. Only counted ones have the key by
/// which they are listed; the Python product's provisioner writes others.
pub(super) fn registered(counted: bool) -> Condition {
    let listed = attr::GSI3PK.into();
    let listed = if counted { Condition::Exists(listed) } else { Condition::Absent(listed) };
    Condition::All(vec![Condition::Exists(attr::PK.into()), listed])
}
