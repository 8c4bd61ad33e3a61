//! Configuration items: the limits and flags of one level.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{Flag, LIMITS_MAX, Limit, LimitName};
use zae_limiter_store::{Level, LevelConfig, OnUnavailable, StoreError};

use super::{
    attr, corrupt, flag_of, incompatible, name_in, stored_version, text_of, version_of,
    whole_number,
};
use crate::records::keys;
use crate::table::{Action, Item, Key, number, text};

/// The version changes of a level are conditional on.
pub(crate) const CONFIG_VERSION: &str = "config_version";
/// The outage policy, at system level.
pub(crate) const ON_UNAVAILABLE: &str = "on_unavailable";
/// The order of the limits, where it is not that of their names. Ours; attributes have no order.
const ORDER: &str = "lo";
/// The time zone of the schedules of a level. It goes with the limits.
const TIME_ZONE: &str = "sched_tz";

/// The item of a level.
pub(crate) fn key(namespace: &str, level: &Level) -> Key {
    match level {
        Level::System => keys::system_config(namespace),
        Level::Resource(resource) => keys::resource_config(namespace, resource),
        Level::Entity(entity) => keys::entity_config(namespace, entity, None),
        Level::EntityResource(entity, resource) => {
            keys::entity_config(namespace, entity, Some(resource))
        }
    }
}

/// What a level is called in the attribute `resource`; none for the system.
pub(crate) fn resource_word(level: &Level) -> Option<&str> {
    match level {
        Level::System => None,
        Level::Entity(_) => Some(keys::ALL_RESOURCES),
        Level::Resource(resource) | Level::EntityResource(_, resource) => Some(resource.as_str()),
    }
}

/// The attributes by which an item that an update may create is found.
pub(crate) fn identity_actions(namespace: &str, level: &Level) -> Vec<Action> {
    let mut actions: Vec<Action> = super::index_actions(namespace, &key(namespace, level)).into();
    if let Some(resource) = resource_word(level) {
        actions.push(Action::SetIfAbsent(attr::RESOURCE.into(), text(resource)));
    }
    if let Some(entity) = level.entity_id() {
        actions.push(Action::SetIfAbsent(attr::ENTITY_ID.into(), text(entity.as_str())));
        actions.push(Action::SetIfAbsent(
            attr::GSI3PK.into(),
            text(keys::index::entity_configs(namespace, level.resource_name())),
        ));
        actions.push(Action::SetIfAbsent(attr::GSI3SK.into(), text(entity.as_str())));
    }
    actions
}

/// What an update does to replace the limits of an item whole.
pub(crate) fn limit_actions(before: Option<&Item>, limits: &[Limit]) -> Vec<Action> {
    let mut written: HashMap<String, AttributeValue> = HashMap::with_capacity(limits.len() * 3 + 1);
    for limit in limits {
        let name = limit.name();
        written.insert(format!("l_{name}_cp"), whole(limit.capacity()));
        written.insert(format!("l_{name}_ra"), whole(limit.refill_amount()));
        written.insert(format!("l_{name}_rp"), whole(limit.refill_period_s()));
    }
    if !limits.is_sorted_by_key(|limit| limit.name()) {
        let names: Vec<&str> = limits.iter().map(|limit| limit.name().as_str()).collect();
        written.insert(ORDER.to_owned(), text(names.join(",")));
    }
    let stale = before
        .into_iter()
        .flat_map(|item| item.keys())
        .filter(|name| is_limit_attribute(name) && !written.contains_key(*name));
    let mut actions: Vec<Action> = stale.map(|name| Action::Remove(name.clone().into())).collect();
    actions.extend(written.into_iter().map(|(name, value)| Action::Set(name.into(), value)));
    actions
}

/// At most 10^15, so it fits.
fn whole(value: u64) -> AttributeValue {
    number(stored_version(value))
}

/// True for everything that goes when the limits of a level go.
fn is_limit_attribute(name: &str) -> bool {
    is_part_of_a_limit(name) || name == ORDER || name == TIME_ZONE
}

fn is_part_of_a_limit(name: &str) -> bool {
    name.starts_with("l_") || name.starts_with("w_")
}

/// True when the item says anything about limits, readable or not.
pub(crate) fn has_limits(item: &Item) -> bool {
    item.keys().any(|name| is_part_of_a_limit(name))
}

/// The attributes of an item that make up its limits, for a condition that they are unchanged.
pub(crate) fn limit_parts(item: &Item) -> impl Iterator<Item = (&String, &AttributeValue)> {
    item.iter().filter(|(name, _)| is_part_of_a_limit(name))
}

/// True when the item would say nothing if it lost its limits (and the outage policy) or, with
/// `flag`, its flag.
pub(crate) fn says_nothing_without(item: &Item, flag: bool) -> bool {
    const IDENTITY: [&str; 9] = [
        attr::PK,
        attr::SK,
        attr::GSI3PK,
        attr::GSI3SK,
        attr::GSI4PK,
        attr::GSI4SK,
        attr::ENTITY_ID,
        attr::RESOURCE,
        CONFIG_VERSION,
    ];
    item.keys().all(|name| {
        let name = name.as_str();
        let goes = if flag {
            name == attr::DISABLED
        } else {
            name == ON_UNAVAILABLE || is_limit_attribute(name)
        };
        goes || IDENTITY.contains(&name) || (flag && name == ORDER)
    })
}

/// Whether a level is disabled.
pub(crate) fn is_switched_off(item: &Item) -> bool {
    matches!(flag(item), Ok(Some(flag)) if flag.blocks())
}

/// What is stored at a level.
pub(crate) fn level_config(item: &Item) -> Result<LevelConfig, StoreError> {
    let version = version_of(item, CONFIG_VERSION);
    Ok(LevelConfig {
        limits: limits(item)?.into(),
        flag: flag(item)?,
        on_unavailable: on_unavailable(item)?,
        cascade: cascade(item)?,
        version,
    })
}

/// The flag of a level.
pub(crate) fn flag(item: &Item) -> Result<Option<Flag>, StoreError> {
    let Some(value) = item.get(attr::DISABLED) else { return Ok(None) };
    match (flag_from(value), value) {
        (Some(flag), _) => Ok(Some(flag)),
        (None, AttributeValue::Null(_)) => Ok(None),
        // A word: more than on and off is a feature of the Python package.
        (None, AttributeValue::S(word)) => {
            let problem = format!(
                "says {word:?}, which this version does not support; set it with enable or disable"
            );
            Err(incompatible(item, attr::DISABLED, problem))
        }
        _ => Err(corrupt(item, attr::DISABLED, "is neither true nor false")),
    }
}

/// A flag as `disabled` holds it, at a level and on a bucket.
pub(crate) fn flag_value(flag: Flag) -> AttributeValue {
    match flag {
        Flag::Enabled => AttributeValue::Bool(false),
        Flag::Disabled => AttributeValue::Bool(true),
    }
}

/// The flag that a value of `disabled` stands for: the reverse of [`flag_value`].
pub(crate) fn flag_from(value: &AttributeValue) -> Option<Flag> {
    Flag::ALL.into_iter().find(|flag| flag_value(*flag) == *value)
}

/// Whether a level overrides the cascade of its entities.
pub(crate) fn cascade(item: &Item) -> Result<Option<bool>, StoreError> {
    flag_of(item, attr::CASCADE)
}

/// The outage policy.
pub(crate) fn on_unavailable(item: &Item) -> Result<Option<OnUnavailable>, StoreError> {
    match item.get(ON_UNAVAILABLE) {
        None | Some(AttributeValue::Null(_)) => Ok(None),
        Some(AttributeValue::S(word)) => {
            word.parse().map(Some).map_err(|error| incompatible(item, ON_UNAVAILABLE, error))
        }
        Some(_) => Err(corrupt(item, ON_UNAVAILABLE, "is not a text")),
    }
}

/// The limits of a level, in their order.
pub(crate) fn limits(item: &Item) -> Result<Vec<Limit>, StoreError> {
    let mut parts: BTreeMap<&str, [Option<u64>; 3]> = BTreeMap::new();
    for (attribute, value) in limit_parts(item) {
        let unsupported = |what: &str| {
            Err(incompatible(
                item,
                attribute,
                format_args!("is about {what}, which this version does not support"),
            ))
        };
        let Some((name, field)) =
            attribute.strip_prefix("l_").and_then(|rest| rest.rsplit_once('_'))
        else {
            return unsupported("limits with a session window");
        };
        let index = match field {
            "cp" => 0,
            "ra" => 1,
            "rp" => 2,
            "soft" if matches!(value, AttributeValue::Bool(false)) => continue,
            "soft" => return unsupported("soft limits"),
            "sched" => return unsupported("limits with a schedule"),
            "rsched" => return unsupported("calendar quotas"),
            _ => return unsupported("something"),
        };
        let AttributeValue::N(digits) = value else {
            return Err(corrupt(item, attribute, "is not a number"));
        };
        let whole = whole_number(digits).and_then(|whole| u64::try_from(whole).ok());
        let whole = whole.ok_or_else(|| {
            incompatible(
                item,
                attribute,
                format_args!("says {digits}; this version knows whole numbers only"),
            )
        })?;
        parts.entry(name).or_default()[index] = Some(whole);
    }
    let mut limits = Vec::with_capacity(parts.len());
    for (name, part) in parts {
        limits.push(limit(item, name, part)?);
    }
    if limits.len() > LIMITS_MAX {
        let problem = format!(
            "is one of {} limits; this version knows at most {LIMITS_MAX} at one level",
            limits.len()
        );
        return Err(incompatible(item, &format!("l_{}_cp", limits[0].name()), problem));
    }
    sort(item, &mut limits);
    Ok(limits)
}

fn limit(item: &Item, name: &str, part: [Option<u64>; 3]) -> Result<Limit, StoreError> {
    let of = |field: &str| format!("l_{name}_{field}");
    let [Some(capacity), Some(amount), Some(period_s)] = part else {
        let missing = ["cp", "ra", "rp"]
            .into_iter()
            .zip(part)
            .find(|(_, value)| value.is_none())
            .map_or("cp", |(field, _)| field);
        return Err(corrupt(item, &of(missing), "is missing"));
    };
    if amount == 0 {
        return Err(incompatible(
            item,
            &of("ra"),
            "is 0: a quota, which this version does not support",
        ));
    }
    let name: LimitName = name_in(item, &of("cp"), name)?;
    Limit::new(name, capacity, amount, period_s)
        .map_err(|error| incompatible(item, &of("cp"), format_args!("is not usable: {error}")))
}

/// Brings limits, which come by name, into the order they were given in. Names the order does not
/// know stay behind.
fn sort(item: &Item, limits: &mut [Limit]) {
    let Some(order) = text_of(item, ORDER) else { return };
    limits.sort_by_key(|limit| {
        order.split(',').position(|name| *limit.name() == *name).unwrap_or(usize::MAX)
    });
}
