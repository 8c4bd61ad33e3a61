//! What a file says: the desired state of a namespace.

use std::collections::BTreeMap;
use std::fmt;

use zae_limiter::{EntityId, Flag, Level, Limit, NamespaceName, OnUnavailable, ResourceName};

/// Where limits and flags are stored: a [`Level`] that sorts. The system comes first, then the
/// resources, then each entity with its resources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The entity, if the level is about one.
    pub entity: Option<EntityId>,
    /// The resource, if the level is about one.
    pub resource: Option<ResourceName>,
}

impl Place {
    /// The whole namespace.
    pub const SYSTEM: Place = Place { entity: None, resource: None };

    /// One resource.
    #[must_use]
    pub fn resource(resource: ResourceName) -> Place {
        Place { entity: None, resource: Some(resource) }
    }

    /// One entity, on one resource or on all.
    #[must_use]
    pub fn entity(entity: EntityId, resource: Option<ResourceName>) -> Place {
        Place { entity: Some(entity), resource }
    }

    /// The level of the store.
    #[must_use]
    pub fn level(&self) -> Level {
        match (self.entity.clone(), self.resource.clone()) {
            (None, None) => Level::System,
            (None, Some(resource)) => Level::Resource(resource),
            (Some(entity), None) => Level::Entity(entity),
            (Some(entity), Some(resource)) => Level::EntityResource(entity, resource),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.level().fmt(f)
    }
}

/// What a file says about one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelSpec {
    /// The limits by name; empty when the file names none, and then it leaves them alone.
    pub limits: Vec<Limit>,
    /// The flag; `None` when the file does not mention it, and then it leaves it alone.
    pub flag: Option<Flag>,
}

/// What a file says about an entity as such.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntitySpec {
    /// What people call it; `None` is left alone, and is the id for a new entity.
    pub name: Option<String>,
    /// Its parent.
    pub parent: Option<EntityId>,
    /// Whether takes go on to the parent.
    pub cascade: bool,
    /// Free text pairs; `None` is left alone.
    pub metadata: Option<BTreeMap<String, String>>,
    /// The line of the entity in the file; 0 when there is no file.
    pub line: u64,
}

/// The desired state of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Which namespace.
    pub namespace: NamespaceName,
    /// What to do with calls while the store is down; `None` is left alone.
    pub on_unavailable: Option<OnUnavailable>,
    /// Limits and flags.
    pub levels: BTreeMap<Place, LevelSpec>,
    /// Entities that the file wants to exist. A level of an entity needs none.
    pub entities: BTreeMap<EntityId, EntitySpec>,
}

impl Manifest {
    /// A manifest that says nothing about a namespace.
    #[must_use]
    pub fn empty(namespace: NamespaceName) -> Manifest {
        let (levels, entities) = (BTreeMap::new(), BTreeMap::new());
        Manifest { namespace, on_unavailable: None, levels, entities }
    }
}
