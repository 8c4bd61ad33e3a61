//! `resource …`.

use clap::{ArgGroup, Args, Subcommand};
use zae_limiter::{LimitName, ResourceName};

use super::value::count;
use super::{ConfirmArgs, LimitsArgs, PageArgs};

/// What to do with a resource.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ResourceCommand {
    /// Store limits of a resource, replacing those it had and hiding those of the system
    #[command(after_long_help = super::examples::RESOURCE_SET_DEFAULTS)]
    SetDefaults(ResourceSetDefaultsArgs),
    /// Show the limits stored for a resource
    GetDefaults(ResourceNameArgs),
    /// Delete the limits stored for a resource
    DeleteDefaults(ResourceDeleteDefaultsArgs),
    /// List the resources with limits or a flag of their own
    List(PageArgs),
    /// Sum up what is left of a limit over all entities; reads every bucket of the resource
    Capacity(ResourceCapacityArgs),
    /// Refuse every call of a resource from now on
    Disable(ResourceNameArgs),
    /// Admit calls of a resource again
    Enable(ResourceNameArgs),
    /// Forget that a resource was disabled or enabled
    ClearDisabled(ResourceNameArgs),
}

/// `resource set-defaults`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("change").args(["limits", "remove"]).required(true).multiple(true))]
pub(crate) struct ResourceSetDefaultsArgs {
    /// Which resource
    pub(crate) name: ResourceName,

    #[command(flatten)]
    pub(crate) limits: LimitsArgs,
}

/// `resource get-defaults`, `resource disable`, `resource enable`, `resource clear-disabled`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ResourceNameArgs {
    /// Which resource
    pub(crate) name: ResourceName,
}

/// `resource delete-defaults`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ResourceDeleteDefaultsArgs {
    /// Which resource
    pub(crate) name: ResourceName,

    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}

/// `resource capacity`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ResourceCapacityArgs {
    /// Which resource
    pub(crate) name: ResourceName,
    /// Which limit
    #[arg(value_name = "LIMIT")]
    pub(crate) limit_name: LimitName,

    /// Only entities without a parent: with cascades they already count what their children take
    #[arg(long)]
    pub(crate) parents_only: bool,

    /// Show at most so many entities, those with the smallest share left first; the sums are over
    /// all
    #[arg(id = "max", long = "max", alias = "limit", value_name = "COUNT", default_value_t = 20, value_parser = count::<1_000_000>)]
    pub(crate) limit: u32,
}
