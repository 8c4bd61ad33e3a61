//! Every key of the schema, built and parsed in one place.
//!
//! The parts of a key are separated by `#` and `/`, which no name except a resource may contain
//! (`/` only), so every key has one reading. The namespace comes first, so a policy on leading keys
//! can fence a process into its namespace; the partition `_/SYSTEM#`, where every read looks
//! whether the namespace is active, has to stay readable (`docs/dynamodb.md`).

use std::borrow::Cow;
use std::fmt::Display;

use zae_limiter_core::{EntityId, ResourceName};

use crate::table::Key;

/// The namespace id of the registry and the version record. No tenant can have it.
pub const REGISTRY: &str = "_";

/// An id no namespace has: real ones never begin with a hyphen.
pub const NO_NAMESPACE: &str = "-";

/// The resource under which limits for all resources of an entity are stored.
pub const ALL_RESOURCES: &str = zae_limiter_core::DEFAULT_RESOURCE;

/// Sort key of a bucket.
pub const STATE: &str = "#STATE";
/// Sort key of an entity.
pub const META: &str = "#META";
/// Sort key of the configuration of a resource or the system.
pub const CONFIG: &str = "#CONFIG";
/// Sort key of the set of resources with a configuration.
pub const RESOURCES: &str = "#RESOURCES";
/// Sort key of the counts of entity configurations per resource.
pub const ENTITY_CONFIG_RESOURCES: &str = "#ENTITY_CONFIG_RESOURCES";
/// Sort key of what the versions of deleted entities add up to.
pub const ENTITY_VERSIONS: &str = "#ENTITY_VERSIONS";
/// Sort key of the version record.
pub const VERSION: &str = "#VERSION";

/// The bucket of an entity for a resource; shard 0 until buckets are split.
pub fn bucket(namespace: &str, entity: &EntityId, resource: &ResourceName, shard: u32) -> Key {
    bucket_of(namespace, entity.as_str(), resource.as_str(), shard)
}

/// The same by the words it is stored under: names that other writers accept and we do not have
/// buckets too.
pub fn bucket_of(namespace: &str, entity: &str, resource: &str, shard: u32) -> Key {
    const MARK: &str = "/BUCKET#";
    // Built for every take: at once in the right size.
    let mut pk =
        String::with_capacity(namespace.len() + MARK.len() + entity.len() + resource.len() + 4);
    for part in [namespace, MARK, entity, "#", resource, "#"] {
        pk.push_str(part);
    }
    if shard == 0 {
        pk.push('0');
    } else {
        pk.push_str(&shard.to_string());
    }
    Key { pk, sk: Cow::Borrowed(STATE) }
}

/// What a bucket's partition key says: entity, resource and shard, as text.
pub fn parse_bucket<'a>(namespace: &str, pk: &'a str) -> Option<(&'a str, &'a str, u32)> {
    let rest = pk.strip_prefix(namespace)?.strip_prefix("/BUCKET#")?;
    let (rest, shard) = rest.rsplit_once('#')?;
    let (entity, resource) = rest.split_once('#')?;
    Some((entity, resource, shard.parse().ok()?))
}

/// The partition of an entity: its record, configuration and usage.
pub fn entity_partition(namespace: &str, entity: &EntityId) -> String {
    format!("{namespace}/ENTITY#{entity}")
}

/// The record of an entity.
pub fn entity(namespace: &str, entity: &EntityId) -> Key {
    Key { pk: entity_partition(namespace, entity), sk: Cow::Borrowed(META) }
}

/// The entity an entity partition belongs to.
pub fn parse_entity_partition<'a>(namespace: &str, pk: &'a str) -> Option<&'a str> {
    pk.strip_prefix(namespace)?.strip_prefix("/ENTITY#")
}

/// The configuration of an entity for a resource; `None` for all resources.
pub fn entity_config(namespace: &str, entity: &EntityId, resource: Option<&ResourceName>) -> Key {
    let resource = resource.map_or(ALL_RESOURCES, ResourceName::as_str);
    entity_config_of(namespace, entity.as_str(), resource)
}

/// The configuration of a resource.
pub fn resource_config(namespace: &str, resource: &ResourceName) -> Key {
    resource_config_of(namespace, resource.as_str())
}

/// The partition of the system level and the registries.
pub fn system_partition(namespace: &str) -> String {
    format!("{namespace}/SYSTEM#")
}

fn in_system(namespace: &str, sk: impl Into<Cow<'static, str>>) -> Key {
    Key { pk: system_partition(namespace), sk: sk.into() }
}

/// The configuration of the system.
pub fn system_config(namespace: &str) -> Key {
    in_system(namespace, CONFIG)
}

/// The set of resources with a configuration.
pub fn resources(namespace: &str) -> Key {
    in_system(namespace, RESOURCES)
}

/// How many entities have a configuration, per resource.
pub fn entity_config_resources(namespace: &str) -> Key {
    in_system(namespace, ENTITY_CONFIG_RESOURCES)
}

/// One part of what files of limits manage. Ours.
pub fn managed(namespace: &str, part: u32) -> Key {
    in_system(namespace, format!("#MANAGED#{part}"))
}

/// The sum of the versions of all entities that were deleted.
pub fn entity_versions(namespace: &str) -> Key {
    in_system(namespace, ENTITY_VERSIONS)
}

/// The partition of a subject's audit events.
pub fn audit_partition(namespace: &str, subject: impl Display) -> String {
    format!("{namespace}/AUDIT#{subject}")
}

/// One audit event, by its subject or the word that is stored under.
pub fn audit(namespace: &str, subject: impl Display, event: impl Display) -> Key {
    Key { pk: audit_partition(namespace, subject), sk: Cow::Owned(format!("{AUDIT}{event}")) }
}

/// What the sort keys of audit events begin with.
pub const AUDIT: &str = "#AUDIT#";

/// What the sort keys of entity configurations begin with.
pub const ENTITY_CONFIG: &str = "#CONFIG#";

/// What the sort keys of active namespaces begin with, in the registry.
pub const NAMESPACE: &str = "#NAMESPACE#";

/// What the sort keys of namespaces by id begin with, in the registry.
pub const NAMESPACE_ID: &str = "#NSID#";

/// Greater than every text a key contains: the end of a range.
pub const END: char = '\u{10ffff}';

/// The configuration of an entity for a resource, by the words they are stored under: names that
/// other writers accept and we do not have one too.
pub fn entity_config_of(namespace: &str, entity: &str, resource: &str) -> Key {
    Key {
        pk: format!("{namespace}/ENTITY#{entity}"),
        sk: Cow::Owned(format!("{ENTITY_CONFIG}{resource}")),
    }
}

/// The configuration of a resource, by the word it is stored under.
pub fn resource_config_of(namespace: &str, resource: &str) -> Key {
    Key { pk: format!("{namespace}/RESOURCE#{resource}"), sk: Cow::Borrowed(CONFIG) }
}

/// The resource an entity configuration is for, as stored: [`ALL_RESOURCES`] for all.
pub fn parse_entity_config(sk: &str) -> Option<&str> {
    sk.strip_prefix(ENTITY_CONFIG)
}

/// One usage snapshot of an entity; `window` is the key of the window. By the words it is stored
/// under: buckets with names that other writers accept and we do not are used too.
pub fn usage(namespace: &str, entity: impl Display, resource: impl Display, window: &str) -> Key {
    Key {
        pk: format!("{namespace}/ENTITY#{entity}"),
        sk: Cow::Owned(format!("#USAGE#{resource}#{window}")),
    }
}

/// What the sort keys of usage snapshots begin with, of one resource or of all.
pub fn usage_prefix(resource: Option<&ResourceName>) -> String {
    resource.map_or_else(|| "#USAGE#".to_owned(), |resource| format!("#USAGE#{resource}#"))
}

/// What the sort key of a usage snapshot says: the resource and the key of the window.
pub fn parse_usage(sk: &str) -> Option<(&str, &str)> {
    sk.strip_prefix("#USAGE#")?.split_once('#')
}

/// The mark that a namespace id has been used and its data erased.
pub fn purged_namespace(id: &str) -> Key {
    in_system(REGISTRY, format!("#NSPURGED#{id}"))
}

/// The version record of the table.
pub fn version() -> Key {
    in_system(REGISTRY, VERSION)
}

/// What the sort keys of checkpoints begin with, in the registry.
pub const CHECKPOINT: &str = "#CHECKPOINT#";

/// How far a shard of the table's stream was read.
pub fn checkpoint(stream_shard: &str) -> Key {
    in_system(REGISTRY, format!("{CHECKPOINT}{stream_shard}"))
}

/// The record of a namespace by name; only active ones have it.
pub fn namespace_by_name(name: &str) -> Key {
    in_system(REGISTRY, format!("{NAMESPACE}{name}"))
}

/// The record of a namespace by id.
pub fn namespace_by_id(id: &str) -> Key {
    in_system(REGISTRY, format!("{NAMESPACE_ID}{id}"))
}

/// Keys of the indexes.
pub mod index {
    use super::{ALL_RESOURCES, Display, EntityId, ResourceName};

    /// GSI1 partition: children of an entity.
    pub fn children(namespace: &str, parent: &EntityId) -> String {
        format!("{namespace}/PARENT#{parent}")
    }

    /// GSI1 sort key of a child.
    pub fn child(entity: &EntityId) -> String {
        format!("CHILD#{entity}")
    }

    /// GSI2 partition: buckets and usage of a resource.
    pub fn resource(namespace: &str, resource: impl Display) -> String {
        format!("{namespace}/RESOURCE#{resource}")
    }

    /// GSI2 sort key of a bucket.
    pub fn resource_bucket(entity: impl Display, shard: u32) -> String {
        format!("BUCKET#{entity}#{shard}")
    }

    /// GSI3 partition: buckets of an entity.
    pub fn entity(namespace: &str, entity: impl Display) -> String {
        format!("{namespace}/ENTITY#{entity}")
    }

    /// GSI3 sort key of a bucket.
    pub fn entity_bucket(resource: impl Display, shard: u32) -> String {
        format!("BUCKET#{resource}#{shard}")
    }

    /// What the sort keys of buckets begin with, in GSI2 and GSI3.
    pub const BUCKET: &str = "BUCKET#";

    /// What the sort keys of children begin with, in GSI1.
    pub const CHILD: &str = "CHILD#";

    /// The child a GSI1 sort key names.
    pub fn parse_child(sort: &str) -> Option<&str> {
        sort.strip_prefix(CHILD)
    }

    /// What the GSI3 sort keys of the buckets of one resource begin with.
    pub fn entity_bucket_prefix(resource: &ResourceName) -> String {
        format!("{BUCKET}{resource}#")
    }

    /// What the GSI2 sort keys of usage snapshots begin with.
    pub const USAGE: &str = "USAGE#";

    /// GSI2 sort key of a usage snapshot; `window` is the key of the window.
    pub fn resource_usage(window: &str, entity: impl Display) -> String {
        format!("{USAGE}{window}#{entity}")
    }

    /// What the GSI2 sort key of a usage snapshot says: the key of the window and the entity.
    pub fn parse_resource_usage(sort: &str) -> Option<(&str, &str)> {
        sort.strip_prefix(USAGE)?.split_once('#')
    }

    /// What the GSI4 sort keys of audit events begin with.
    pub fn audit(namespace: &str) -> String {
        format!("{namespace}/AUDIT#")
    }

    /// What the GSI4 sort keys of everything about entities begin with.
    pub fn entities(namespace: &str) -> String {
        format!("{namespace}/ENTITY#")
    }

    /// GSI3 partition: entities with a configuration for a resource; the sort key is the entity.
    pub fn entity_configs(namespace: &str, resource: Option<&ResourceName>) -> String {
        format!(
            "{namespace}/ENTITY_CONFIG#{}",
            resource.map_or(ALL_RESOURCES, ResourceName::as_str)
        )
    }

    /// GSI4 sort key of a bucket; every other record has its partition key there.
    pub fn namespace_bucket(entity: impl Display, resource: impl Display, shard: u32) -> String {
        format!("BUCKET#{entity}#{resource}#{shard}")
    }
}

#[cfg(test)]
mod tests;
