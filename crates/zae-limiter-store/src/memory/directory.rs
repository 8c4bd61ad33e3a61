//! The writes of administrators: namespaces, entities, limits, flags and the audit log. One lock
//! around them makes each write and its audit event one step.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use zae_limiter_core::{
    AuditEvent, Entity, EntityId, EventId, Flag, NamespaceId, NamespaceName, ResourceName, TimeMs,
};

use crate::{
    DEFAULT_NAMESPACE, Level, LevelConfig, Managed, Namespace, NamespaceStatus, decisive_flag,
};

/// All namespaces there ever were.
#[derive(Default)]
pub(super) struct Directory {
    /// By number. A number is never used again, so an old handle finds nothing instead of another
    /// tenant's data.
    tenants: Vec<Tenant>,
    /// Active ones by name.
    pub(super) active: BTreeMap<NamespaceName, u32>,
    /// All by id, purged ones too: an id is never used again.
    pub(super) ids: BTreeMap<NamespaceId, u32>,
}

/// One namespace with everything stored in it, except buckets and usage.
#[derive(Default)]
pub(super) struct Tenant {
    /// `None` once it has been purged.
    pub(super) namespace: Option<Namespace>,
    pub(super) config: Config,
    pub(super) audit: AuditLog,
}

impl Directory {
    pub(super) fn with_default_namespace() -> (Directory, u32, Namespace) {
        let mut directory = Directory::default();
        let namespace = Namespace {
            id: DEFAULT_NAMESPACE.parse().expect("the word is a valid namespace id"),
            name: DEFAULT_NAMESPACE.parse().expect("the word is a valid namespace name"),
            status: NamespaceStatus::Active,
            created_at: TimeMs(0),
            deleted_at: None,
        };
        let number = directory.add(namespace.clone());
        (directory, number, namespace)
    }

    /// Adds an active namespace and returns its number.
    pub(super) fn add(&mut self, namespace: Namespace) -> u32 {
        let number = u32::try_from(self.tenants.len())
            .expect("a process registers fewer than four billion namespaces");
        self.active.insert(namespace.name.clone(), number);
        self.ids.insert(namespace.id.clone(), number);
        self.tenants.push(Tenant { namespace: Some(namespace), ..Tenant::default() });
        number
    }

    /// The active namespace of that name, and its number.
    pub(super) fn find(&self, name: &NamespaceName) -> Option<(u32, &Namespace)> {
        let number = *self.active.get(name)?;
        Some((number, self.tenant(number).namespace.as_ref()?))
    }

    pub(super) fn tenant(&self, number: u32) -> &Tenant {
        &self.tenants[number as usize]
    }

    pub(super) fn tenant_mut(&mut self, number: u32) -> &mut Tenant {
        &mut self.tenants[number as usize]
    }

    pub(super) fn forget_audit_before(&mut self, oldest: TimeMs) -> u64 {
        self.tenants.iter_mut().map(|tenant| tenant.audit.forget_before(oldest)).sum()
    }
}

impl Tenant {
    pub(super) fn is_active(&self) -> bool {
        self.namespace.as_ref().is_some_and(|namespace| namespace.status == NamespaceStatus::Active)
    }

    /// True while buckets may come into being: a deleted namespace can be recovered, one that is
    /// being purged cannot.
    pub(super) fn may_create_buckets(&self) -> bool {
        self.namespace
            .as_ref()
            .is_some_and(|namespace| namespace.status != NamespaceStatus::Purging)
    }
}

/// Entities, limits and flags of one namespace.
#[derive(Default)]
pub(super) struct Config {
    /// Grows with every write; the freshness of a read.
    pub(super) generation: u64,
    /// The highest version of any level that was removed: one that is stored anew goes on from
    /// here, so that a version never comes back with another meaning.
    versions_gone: u64,
    /// The same for entities that were deleted.
    pub(super) entity_versions_gone: u64,
    pub(super) system: Option<LevelConfig>,
    pub(super) resources: BTreeMap<ResourceName, LevelConfig>,
    pub(super) owners: BTreeMap<EntityId, OwnerConfig>,
    pub(super) entities: BTreeMap<EntityId, Entity>,
    pub(super) children: BTreeMap<EntityId, BTreeSet<EntityId>>,
    /// What files of limits manage, by part.
    pub(super) managed: BTreeMap<u32, Managed>,
}

/// The configuration of one entity.
#[derive(Default)]
pub(super) struct OwnerConfig {
    /// For all resources.
    pub(super) all: Option<LevelConfig>,
    pub(super) resources: BTreeMap<ResourceName, LevelConfig>,
}

impl OwnerConfig {
    fn is_empty(&self) -> bool {
        self.all.is_none() && self.resources.is_empty()
    }
}

impl Config {
    pub(super) fn get(&self, level: &Level) -> Option<&LevelConfig> {
        match level {
            Level::System => self.system.as_ref(),
            Level::Resource(resource) => self.resources.get(resource),
            Level::Entity(entity) => self.owners.get(entity)?.all.as_ref(),
            Level::EntityResource(entity, resource) => {
                self.owners.get(entity)?.resources.get(resource)
            }
        }
    }

    /// Changes a level, creating it if need be and dropping it when nothing is left. Returns its
    /// new version.
    pub(super) fn edit(&mut self, level: &Level, change: impl FnOnce(&mut LevelConfig)) -> u64 {
        let fresh = || LevelConfig { version: self.versions_gone, ..LevelConfig::default() };
        let mut stored = self.get(level).cloned().unwrap_or_else(fresh);
        change(&mut stored);
        stored.version += 1;
        let version = stored.version;
        self.put(level, stored);
        version
    }

    fn put(&mut self, level: &Level, stored: LevelConfig) {
        if stored.is_empty() {
            self.versions_gone = self.versions_gone.max(stored.version);
        }
        let stored = Some(stored).filter(|stored| !stored.is_empty());
        match level {
            Level::System => self.system = stored,
            Level::Resource(resource) => put_or_remove(&mut self.resources, resource, stored),
            Level::Entity(entity) => self.owners.entry(entity.clone()).or_default().all = stored,
            Level::EntityResource(entity, resource) => {
                let owner = self.owners.entry(entity.clone()).or_default();
                put_or_remove(&mut owner.resources, resource, stored);
            }
        }
        if let Some(entity) = level.entity_id()
            && self.owners.get(entity).is_some_and(OwnerConfig::is_empty)
        {
            self.owners.remove(entity);
        }
    }

    /// Removes everything stored for an entity. Returns how many levels that were.
    pub(super) fn remove_owner(&mut self, entity: &EntityId) -> u64 {
        let Some(owner) = self.owners.remove(entity) else { return 0 };
        let mut count = 0;
        for stored in owner.all.iter().chain(owner.resources.values()) {
            self.versions_gone = self.versions_gone.max(stored.version);
            count += 1;
        }
        count
    }

    /// How many records a purge removes.
    pub(super) fn records(&self) -> u64 {
        let owned: usize = self
            .owners
            .values()
            .map(|owner| usize::from(owner.all.is_some()) + owner.resources.len())
            .sum();
        (usize::from(self.system.is_some()) + self.resources.len() + owned + self.entities.len())
            as u64
    }

    /// The configuration of an entity and a resource, strongest level first.
    pub(super) fn levels(
        &self,
        entity: &str,
        resource: &ResourceName,
    ) -> [Option<&LevelConfig>; 4] {
        let owner = self.owners.get(entity);
        [
            owner.and_then(|owner| owner.resources.get(resource)),
            owner.and_then(|owner| owner.all.as_ref()),
            self.resources.get(resource),
            self.system.as_ref(),
        ]
    }

    /// The flag that the stored levels give a bucket.
    pub(super) fn flag(&self, entity: &str, resource: &ResourceName) -> Flag {
        let [own, all, of_resource, _] = self.levels(entity, resource);
        let flag = |level: &LevelConfig| Ok::<_, Infallible>(level.flag);
        let Ok(decisive) = decisive_flag([own, all, of_resource], flag);
        decisive.map(|(flag, _)| flag).unwrap_or_default()
    }
}

fn put_or_remove(
    map: &mut BTreeMap<ResourceName, LevelConfig>,
    resource: &ResourceName,
    stored: Option<LevelConfig>,
) {
    match stored {
        Some(stored) => map.insert(resource.clone(), stored),
        None => map.remove(resource),
    };
}

/// Audit events of one namespace, oldest first. Ids come from the caller, so two events may share
/// one: the running number keeps both.
#[derive(Default)]
pub(super) struct AuditLog {
    pub(super) events: BTreeMap<(EventId, u64), AuditEvent>,
    recorded: u64,
}

impl AuditLog {
    pub(super) fn record(&mut self, event: AuditEvent, events_max: usize) {
        self.recorded += 1;
        self.events.insert((event.id, self.recorded), event);
        while self.events.len() > events_max.max(1) {
            self.events.pop_first();
        }
    }

    fn forget_before(&mut self, oldest: TimeMs) -> u64 {
        let before = self.events.len();
        self.events.retain(|_, event| event.at >= oldest);
        (before - self.events.len()) as u64
    }
}
