//! `entity …`.

use clap::{Args, Subcommand};
use zae_limiter::{EntityId, Limit, ResourceName};

use super::Pair;

/// What to do with an entity.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum EntityCommand {
    /// Create an entity; parent and cascade can not be changed later
    Create(EntityCreateArgs),
    /// Show an entity
    Show(EntityShowArgs),
    /// Store limits of an entity, replacing those it had at this level
    SetLimits(EntitySetLimitsArgs),
    /// Show the limits stored for an entity
    GetLimits(EntityGetLimitsArgs),
}

/// `entity create`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityCreateArgs {
    /// What requests call it
    pub(crate) id: EntityId,

    /// What people call it [default: the id]
    #[arg(long, value_name = "TEXT")]
    pub(crate) display_name: Option<String>,

    /// The entity it belongs to, which must exist
    #[arg(long, value_name = "ID")]
    pub(crate) parent: Option<EntityId>,

    /// Take from the parent's limits too
    #[arg(long)]
    pub(crate) cascade: bool,

    /// What to remember about it; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
}

/// `entity show`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityShowArgs {
    /// Which entity
    pub(crate) id: EntityId,
}

/// `entity set-limits`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntitySetLimitsArgs {
    /// Whose limits; the entity need not be created
    pub(crate) id: EntityId,

    /// Only for this resource [default: every resource without limits of its own for the entity]
    #[arg(long, short, value_name = "RESOURCE")]
    pub(crate) resource: Option<ResourceName>,

    /// A limit as name:rate[/period][:burst], as in tpm:10000/min:15000; may be repeated
    #[arg(long = "limit", short, value_name = "LIMIT", required = true)]
    pub(crate) limits: Vec<Limit>,
}

/// `entity get-limits`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityGetLimitsArgs {
    /// Whose limits
    pub(crate) id: EntityId,

    /// Those for this resource [default: those for every resource]
    #[arg(long, short, value_name = "RESOURCE")]
    pub(crate) resource: Option<ResourceName>,
}
