//! The registries: which resources have a configuration, and for which some entity has one. Changed
//! in the transaction that makes or removes the configuration, so they are exact.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_store::{Level, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::records::attr;
use crate::records::item::{corrupt, index_actions, integer_of, whole_number};
use crate::records::keys;
use crate::table::{Action, Comparison, Condition, Delete, Item, Key, Update, Write, compare};

/// The size from which a registry takes no more names, in bytes. A table refuses items of 400 KB;
/// before that every change of a registry costs a write unit per KB, twice.
pub(crate) const REGISTRY_BYTES_MAX: usize = 300_000;

/// The size from which every new name is a warning.
const REGISTRY_BYTES_WARNED: usize = REGISTRY_BYTES_MAX / 4 * 3;

/// Attributes that an item may use as a key of the table or of one of its indexes. No resource can
/// have one of these names.
const KEY_ATTRIBUTES: &[&str] = &[
    "PK", "SK", "GSI1PK", "GSI1SK", "GSI2PK", "GSI2SK", "GSI3PK", "GSI3SK", "GSI4PK", "GSI4SK",
    "LSI1SK", "LSI2SK", "LSI3SK", "LSI4SK", "LSI5SK",
];

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
        Level::Entity(_) | Level::EntityResource(..) => {
            Some(keys::entity_config_resources(namespace))
        }
    }
}

/// The resources some entity has a configuration for, as stored.
pub(super) fn counted(registry: &Item) -> impl Iterator<Item = &str> {
    let is_key = |name: &str| KEY_ATTRIBUTES.contains(&name);
    registry.keys().map(String::as_str).filter(move |name| {
        !is_key(name) && integer_of(registry, name).is_some_and(|count| count > 0)
    })
}

/// The write that keeps the registry of a level right. `Corrupt` when there is something in it that
/// cannot be counted in.
pub(super) fn update(
    namespace: &str,
    level: &Level,
    registry: Option<&Item>,
    presence: Presence,
) -> Result<Option<Write>, StoreError> {
    let Some(key) = key(namespace, level) else { return Ok(None) };
    let (actions, conditions) = match level {
        Level::System => return Ok(None),
        Level::Resource(resource) => {
            check_readable(registry, attr::RESOURCES, AttributeValue::is_ss)?;
            let (name, member) = (attr::RESOURCES.into(), resource.to_string());
            match presence {
                // The registry is a set: adding the name once more repairs the registry after a
                // writer that does not keep it.
                Presence::Appears | Presence::Stays => {
                    (vec![Action::AddMember(name, member)], Vec::new())
                }
                Presence::Disappears => (vec![Action::DeleteMember(name, member)], Vec::new()),
            }
        }
        Level::Entity(_) | Level::EntityResource(..) => {
            let name =
                level.resource_name().map_or(keys::ALL_RESOURCES, |resource| resource.as_str());
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
    if presence == Presence::Appears {
        check_room(&key, level, registry)?;
    }
    if presence != Presence::Disappears {
        actions.extend(index_actions(namespace, &key));
    }
    Ok(Some(Write::Update(Update { key, actions, conditions })))
}

/// A registry is one item, and an item has a largest size. Says so before the table does.
fn check_room(key: &Key, level: &Level, registry: Option<&Item>) -> Result<(), StoreError> {
    let Some(registry) = registry else { return Ok(()) };
    let name = level.resource_name().map_or(keys::ALL_RESOURCES, |resource| resource.as_str());
    let is_named = match level {
        Level::Resource(_) => {
            matches!(registry.get(attr::RESOURCES), Some(AttributeValue::Ss(names)) if names.iter().any(|known| known == name))
        }
        _ => registry.contains_key(name),
    };
    if is_named {
        return Ok(());
    }
    let bytes: usize = registry.iter().map(|(name, value)| name.len() + bytes_of(value)).sum();
    if bytes > REGISTRY_BYTES_MAX {
        let message = format!(
            "the registry {} {} holds {bytes} bytes of names, and takes no more beyond {REGISTRY_BYTES_MAX}; the limits of {level} are \
             not stored: delete configurations of resources that are no longer used, or spread tenants over namespaces",
            key.pk, key.sk
        );
        return Err(StoreError::new(StoreErrorKind::Capacity, "read", message));
    }
    if bytes > REGISTRY_BYTES_WARNED {
        tracing::warn!(pk = key.pk, sk = %key.sk, bytes, max = REGISTRY_BYTES_MAX, "a registry is nearly full");
    }
    Ok(())
}

/// What a value of a registry takes, in bytes.
fn bytes_of(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::Ss(names) => names.iter().map(String::len).sum(),
        AttributeValue::S(text) | AttributeValue::N(text) => text.len(),
        _ => 0,
    }
}

/// An attribute of another type has to be repaired by hand: every further change would fail.
fn check_readable(
    registry: Option<&Item>,
    name: &str,
    is_readable: fn(&AttributeValue) -> bool,
) -> Result<(), StoreError> {
    match registry.and_then(|registry| Some((registry, registry.get(name)?))) {
        Some((registry, value)) if !is_readable(value) => {
            Err(corrupt(registry, name, "cannot be counted in; repair or remove it"))
        }
        _ => Ok(()),
    }
}

/// A count that reaches zero goes: a resource without entities is not listed.
fn one_less(
    name: &str,
    registry: Option<&Item>,
) -> Result<(Vec<Action>, Vec<Condition>), StoreError> {
    check_readable(
        registry,
        name,
        |value| matches!(value, AttributeValue::N(digits) if whole_number(digits).is_some()),
    )?;
    let name = || name.to_owned();
    Ok(match registry.and_then(|registry| integer_of(registry, &name())) {
        Some(count) if count > 1 => {
            (vec![Action::Add(name().into(), -1)], vec![compare(name(), Comparison::Gt, 1)])
        }
        Some(_) => (vec![Action::Remove(name().into())], vec![compare(name(), Comparison::Le, 1)]),
        // A writer without registry never counted it.
        None => (vec![Action::Remove(name().into())], vec![Condition::Absent(name().into())]),
    })
}

impl DynamoStore {
    /// The writes that remove configurations of an entity and count them out, and how many of them
    /// are there.
    pub(crate) async fn count_out(
        &self,
        configs: &[Key],
        operation: &'static str,
    ) -> Result<(u64, Vec<Write>), StoreError> {
        let registry_key = keys::entity_config_resources(&self.id);
        let wanted: Vec<Key> = configs.iter().cloned().chain([registry_key.clone()]).collect();
        let mut found = self.shared.read_all(operation, &wanted).await?;
        let registry = found.pop().flatten();
        let (mut writes, mut actions, mut conditions) =
            (Vec::with_capacity(configs.len() + 1), Vec::new(), Vec::new());
        for (key, item) in configs.iter().zip(found) {
            let (Some(item), Some(resource)) = (item, keys::parse_entity_config(&key.sk)) else {
                continue;
            };
            let counted = item.contains_key(attr::GSI3PK);
            writes.push(Write::Delete(Delete {
                key: key.clone(),
                conditions: vec![registered(counted)],
            }));
            if counted {
                let less = one_less(resource, registry.as_ref())
                    .map_err(|error| error.during(operation))?;
                actions.extend(less.0);
                conditions.extend(less.1);
            }
        }
        let removed = u64::try_from(writes.len()).unwrap_or(u64::MAX);
        if !actions.is_empty() {
            writes.push(Write::Update(Update { key: registry_key, actions, conditions }));
        }
        Ok((removed, writes))
    }
}

/// The condition that an entity configuration is there, and has or has not been counted. A
/// configuration that was counted has `GSI3PK`; those of the Python provisioner lack it.
pub(super) fn registered(counted: bool) -> Condition {
    let listed = attr::GSI3PK.into();
    let listed = if counted { Condition::Exists(listed) } else { Condition::Absent(listed) };
    Condition::All(vec![Condition::Exists(attr::PK.into()), listed])
}

#[cfg(test)]
mod tests {
    use zae_limiter_core::{LimitName, ResourceName};

    use super::*;

    #[test]
    fn no_limit_and_no_resource_is_called_like_a_key() {
        for name in KEY_ATTRIBUTES {
            assert!(name.parse::<ResourceName>().is_err(), "{name}");
            assert!(name.parse::<LimitName>().is_err(), "{name}");
        }
    }
}
