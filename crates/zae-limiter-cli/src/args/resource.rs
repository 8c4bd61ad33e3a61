//! `resource …`.

use clap::{ArgGroup, Args, Subcommand};
use zae_limiter::{Flag, Level, LimitName, ResourceName};

use super::level::{LimitsArgs, ResourceLevelArgs};
use super::shared::{Confirmed, PageArgs};
use super::value::count;
use crate::commands::{level, resource_capacity, resource_list};
use crate::context::{Access, Context};
use crate::exit::Exit;

/// What to do with a resource.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ResourceCommand {
    /// Store limits of a resource, replacing those it had and hiding those of the system
    #[command(after_long_help = super::examples::RESOURCE_SET_DEFAULTS)]
    SetDefaults(ResourceSetDefaultsArgs),
    /// Show the limits stored for a resource
    #[command(after_long_help = super::examples::RESOURCE_GET_DEFAULTS)]
    GetDefaults(ResourceLevelArgs),
    /// Delete the limits stored for a resource
    #[command(after_long_help = super::examples::RESOURCE_DELETE_DEFAULTS)]
    DeleteDefaults(Confirmed<ResourceLevelArgs>),
    /// List the resources with limits or a flag of their own
    #[command(after_long_help = super::examples::RESOURCE_LIST)]
    List(PageArgs),
    /// Sum up what is left of a limit over all entities; reads every bucket of the resource
    #[command(after_long_help = super::examples::RESOURCE_CAPACITY)]
    Capacity(ResourceCapacityArgs),
    /// Refuse every call of a resource from now on
    #[command(after_long_help = super::examples::RESOURCE_DISABLE)]
    Disable(ResourceLevelArgs),
    /// Admit calls of a resource again
    #[command(after_long_help = super::examples::RESOURCE_ENABLE)]
    Enable(ResourceLevelArgs),
    /// Forget that a resource was disabled or enabled
    #[command(after_long_help = super::examples::RESOURCE_CLEAR_DISABLED)]
    ClearDisabled(ResourceLevelArgs),
}

impl ResourceCommand {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        let flag = async |args: ResourceLevelArgs, of| {
            level::flag(context, Level::from(args).into(), of).await
        };
        match self {
            ResourceCommand::SetDefaults(args) => {
                level::set(context, Level::Resource(args.name).into(), args.limits, None).await
            }
            ResourceCommand::GetDefaults(args) => level::get(context, args.into()).await,
            ResourceCommand::DeleteDefaults(args) => {
                level::delete(context, args.what.into(), args.confirm).await
            }
            ResourceCommand::List(args) => resource_list::run(context, args).await,
            ResourceCommand::Capacity(args) => resource_capacity::run(context, args).await,
            ResourceCommand::Disable(args) => flag(args, Some(Flag::Disabled)).await,
            ResourceCommand::Enable(args) => flag(args, Some(Flag::Enabled)).await,
            ResourceCommand::ClearDisabled(args) => flag(args, None).await,
        }
    }

    pub(super) fn access(&self) -> Access {
        match self {
            ResourceCommand::GetDefaults(_)
            | ResourceCommand::List(_)
            | ResourceCommand::Capacity(_) => Access::Looks,
            ResourceCommand::SetDefaults(args) => args.limits.access(),
            ResourceCommand::DeleteDefaults(_)
            | ResourceCommand::Disable(_)
            | ResourceCommand::Enable(_)
            | ResourceCommand::ClearDisabled(_) => Access::Changes,
        }
    }
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
