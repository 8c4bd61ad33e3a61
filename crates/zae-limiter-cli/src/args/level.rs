//! A level of limits, as `system`, `resource` and `entity` name it, and what a command stores
//! there.

use clap::Args;
use zae_limiter::domain;
use zae_limiter::{EntityId, Level, Limit, LimitName, ResourceName};

use crate::context::Access;
use crate::error::Failure;

/// The level that a command works on.
#[derive(Clone, Debug)]
pub(crate) struct LevelArgs {
    pub(crate) level: Level,
    /// Refuse an entity that was not created.
    pub(crate) must_exist: bool,
}

impl From<Level> for LevelArgs {
    fn from(level: Level) -> LevelArgs {
        LevelArgs { level, must_exist: false }
    }
}

/// The level of an entity: for one resource, or for all.
pub(crate) fn of_entity(entity: EntityId, resource: Option<ResourceName>) -> Level {
    match resource {
        Some(resource) => Level::EntityResource(entity, resource),
        None => Level::Entity(entity),
    }
}

/// `resource get-defaults`, `resource disable`, `resource enable`, `resource clear-disabled`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ResourceLevelArgs {
    /// Which resource
    pub(crate) name: ResourceName,
}

impl From<ResourceLevelArgs> for Level {
    fn from(args: ResourceLevelArgs) -> Level {
        Level::Resource(args.name)
    }
}

/// `entity get-limits`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityLevelArgs {
    /// Whose limits
    pub(crate) id: EntityId,

    /// Those for this resource [default: those for every resource]
    #[arg(long, short, value_name = "RESOURCE")]
    pub(crate) resource: Option<ResourceName>,
}

impl From<EntityLevelArgs> for Level {
    fn from(args: EntityLevelArgs) -> Level {
        of_entity(args.id, args.resource)
    }
}

/// `entity disable`, `entity enable`, `entity clear-disabled`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityFlagArgs {
    /// Which entity; it need not be created
    pub(crate) id: EntityId,

    /// Only on this resource [default: on every resource]
    #[arg(long, short, value_name = "RESOURCE")]
    pub(crate) resource: Option<ResourceName>,

    /// Refuse an entity that was not created
    #[arg(long)]
    pub(crate) must_exist: bool,
}

impl From<EntityFlagArgs> for LevelArgs {
    fn from(args: EntityFlagArgs) -> LevelArgs {
        LevelArgs { level: of_entity(args.id, args.resource), must_exist: args.must_exist }
    }
}

/// Limits to store at a level.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitsArgs {
    /// A limit as name:rate[/period][:burst], as in tpm:10000/min:15000; may be repeated
    #[arg(long = "limit", short, value_name = "LIMIT", value_delimiter = ',')]
    pub(crate) limits: Vec<Limit>,

    /// Keep the other limits of the level: change or add only those given with -l
    #[arg(long)]
    pub(crate) add: bool,

    /// Remove a limit from the level and keep the others; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) remove: Vec<LimitName>,
}

impl LimitsArgs {
    /// True when the limits of the level are changed or kept, not replaced.
    pub(crate) fn edits(&self) -> bool {
        self.add || !self.remove.is_empty() || self.limits.is_empty()
    }

    /// A new file has no limit to remove, and none to store an outage policy beside.
    pub(super) fn access(&self) -> Access {
        let needs_limits = self.limits.is_empty() || !self.remove.is_empty();
        if needs_limits { Access::Changes } else { Access::SetsUp }
    }

    /// The limits of a level after this change of those it had, or the name of one that is to be
    /// removed and not there.
    pub(crate) fn applied_to(&self, before: &[Limit]) -> Result<Vec<Limit>, LimitName> {
        if !self.edits() {
            return Ok(self.limits.clone());
        }
        if let Some(name) =
            self.remove.iter().find(|name| before.iter().all(|limit| limit.name() != *name))
        {
            return Err(name.clone());
        }
        let given = |limit: &Limit| self.limits.iter().any(|given| given.name() == limit.name());
        let kept =
            before.iter().filter(|limit| !self.remove.contains(limit.name()) && !given(limit));
        Ok(kept.chain(&self.limits).cloned().collect())
    }
}

/// What each limit on its own cannot tell: that a name is given twice.
pub(crate) fn check_limits(limits: &[Limit]) -> Result<(), Failure> {
    domain::check_limits(limits)
        .map_err(|error| Failure::usage(format!("invalid values for --limit: {error}")))
}
