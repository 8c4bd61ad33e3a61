//! The configuration as it is stored on the table, read by code of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use zae_limiter_core::{EntityId, Flag, Limit, LimitSource, ResourceName};
use zae_limiter_dynamodb::table::{Item, Key};
use zae_limiter_store::{Level, LimitsInForce};

use crate::oracle::config::Config;
use crate::oracle::history::History;
use crate::table::Change;

/// What every record of the table says, by the id of the namespace.
#[derive(Debug, Default)]
pub(crate) struct Configured {
    now: BTreeMap<String, Config>,
    /// The end of each entity's deletion, by namespace and id; `Duration::MAX` while it goes on.
    leaving: BTreeMap<(String, EntityId), Duration>,
    pub(crate) history: History,
}

impl Configured {
    /// A record has changed.
    pub(crate) fn note(&mut self, change: &Change, at: Duration) {
        let Some((namespace, what)) = what(&change.key) else { return };
        let config = self.now.entry(namespace.to_owned()).or_default();
        match what {
            What::Level(level) => {
                let limits = change.after.as_ref().map(limits).unwrap_or_default();
                let disabled = change.after.as_ref().and_then(|item| flag(item, "disabled"));
                let flag = disabled.map(Flag::from_disabled);
                config.replace_level(&level, limits, flag);
            }
            What::Entity(entity) => {
                let is_leaving =
                    change.after.as_ref().is_some_and(|item| item.contains_key("deleting"));
                let who = (namespace.to_owned(), entity.clone());
                match (is_leaving, self.leaving.get(&who)) {
                    (true, _) => drop(self.leaving.insert(who, Duration::MAX)),
                    (false, Some(&Duration::MAX)) => drop(self.leaving.insert(who, at)),
                    (false, _) => {}
                }
                let link = change
                    .after
                    .as_ref()
                    .map(|item| (text(item, "parent_id"), flag(item, "cascade").unwrap_or(false)));
                let link = link.map(|(parent, cascade)| {
                    (parent.and_then(|parent| parent.parse().ok()), cascade)
                });
                config.replace_entity(&entity, link);
            }
        }
        self.history.note(namespace, at, config);
    }

    /// What a late charge may have made a forgotten bucket from, if it began then: the limits in
    /// force, or those of its receipt where the call had brought them along, where the others lack
    /// what is charged, and where the entity is being deleted.
    pub(crate) fn made_again(
        &self,
        namespace: &str,
        (entity, resource): (&EntityId, &ResourceName),
        (receipt, charged): (&LimitsInForce, &[&str]),
        began: Duration,
    ) -> Vec<MadeAgain> {
        let until = self.leaving.get(&(namespace.to_owned(), entity.clone()));
        let is_leaving = until.is_some_and(|until| *until >= began);
        let mut found = Vec::new();
        for config in self.history.since(namespace, began) {
            let limits = config.member(entity, resource).limits;
            let has_own = limits.as_ref().is_some_and(|(_, source)| !source.expires());
            let has = |limits: &[Limit]| {
                charged.iter().all(|name| limits.iter().any(|limit| limit.name().as_str() == *name))
            };
            let in_force =
                limits.filter(|(limits, _)| receipt.source != LimitSource::Call && has(limits));
            if in_force.is_none() || is_leaving {
                let expires = receipt.ttl_ms.is_some() || !has_own && !receipt.source.expires();
                found.push(MadeAgain { limits: receipt.limits.to_vec(), expires });
                found.extend(
                    is_leaving
                        .then(|| MadeAgain { limits: receipt.limits.to_vec(), expires: true }),
                );
            }
            // A client configured without expiry has `ttl_ms: None` in its receipts.
            let expires = |source: LimitSource| {
                source.expires() && (receipt.ttl_ms.is_some() || !receipt.source.expires())
            };
            found.extend(in_force.map(|(limits, source)| MadeAgain {
                limits: limits.to_vec(),
                expires: expires(source),
            }));
        }
        found
    }
}

/// A bucket as it may have been made again.
#[derive(Debug)]
pub(crate) struct MadeAgain {
    pub(crate) limits: Vec<Limit>,
    /// True if the bucket has an expiry.
    pub(crate) expires: bool,
}

enum What {
    Level(Level),
    Entity(EntityId),
}

/// Which namespace a record belongs to, and what of its configuration it is.
fn what(key: &Key) -> Option<(&str, What)> {
    let (namespace, rest) = key.pk.split_once('/')?;
    let what = match (rest.split_once('#')?, &*key.sk) {
        (("SYSTEM", ""), "#CONFIG") => What::Level(Level::System),
        (("RESOURCE", resource), "#CONFIG") => What::Level(Level::Resource(resource.parse().ok()?)),
        (("ENTITY", entity), "#META") => What::Entity(entity.parse().ok()?),
        (("ENTITY", entity), sort) => match sort.strip_prefix("#CONFIG#")? {
            "_default_" => What::Level(Level::Entity(entity.parse().ok()?)),
            resource => {
                What::Level(Level::EntityResource(entity.parse().ok()?, resource.parse().ok()?))
            }
        },
        _ => return None,
    };
    Some((namespace, what))
}

fn text(item: &Item, name: &str) -> Option<String> {
    item.get(name).and_then(|value| value.as_s().ok()).cloned()
}

fn flag(item: &Item, name: &str) -> Option<bool> {
    item.get(name).and_then(|value| value.as_bool().ok()).copied()
}

fn limits(item: &Item) -> Vec<Limit> {
    let number = |name: String| {
        item.get(&name)
            .and_then(|value| value.as_n().ok())
            .and_then(|value| value.parse::<u64>().ok())
    };
    let mut names: Vec<&str> =
        item.keys().filter_map(|name| name.strip_prefix("l_")?.strip_suffix("_cp")).collect();
    names.sort_unstable();
    let limit = |name: &str| {
        let part = |field: &str| number(format!("l_{name}_{field}"));
        Limit::custom(name, part("cp")?, part("ra")?, part("rp")?).ok()
    };
    names.into_iter().filter_map(limit).collect()
}
