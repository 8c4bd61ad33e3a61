//! `entity …`.

use clap::{ArgGroup, Args, Subcommand};
use zae_limiter::{EntityId, Flag, LimitName, ResourceName};

use super::level::{EntityFlagArgs, EntityLevelArgs, LevelArgs, LimitsArgs, of_entity};
use super::shared::{ConfirmArgs, Confirmed, PageArgs};
use super::value::{Pair, ResourceOrAll, version};
use crate::commands::{
    entity_buckets, entity_children, entity_create, entity_delete, entity_list,
    entity_list_resources, entity_reset, entity_show, entity_update, level,
};
use crate::context::{Access, Context};
use crate::exit::Exit;

/// What to do with an entity.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum EntityCommand {
    /// Create an entity; parent and cascade cannot be changed later
    #[command(after_long_help = super::examples::ENTITY_CREATE)]
    Create(EntityCreateArgs),
    /// Show an entity
    #[command(after_long_help = super::examples::ENTITY_SHOW)]
    Show(EntityIdArgs),
    /// List entities; a flag for a single resource is shown by `entity show` and `status`, not here
    #[command(after_long_help = super::examples::ENTITY_LIST)]
    List(EntityListArgs),
    /// Change the display name or the metadata of an entity
    #[command(after_long_help = super::examples::ENTITY_UPDATE)]
    Update(EntityUpdateArgs),
    /// Delete an entity with its buckets and limits; refused while it has children
    #[command(after_long_help = super::examples::ENTITY_DELETE)]
    Delete(Confirmed<EntityIdArgs>),
    /// List the children of an entity
    #[command(after_long_help = super::examples::ENTITY_CHILDREN)]
    Children(EntityPageArgs),
    /// Store limits of an entity, replacing those it had at this level and hiding those of weaker
    /// levels
    #[command(after_long_help = super::examples::ENTITY_SET_LIMITS)]
    SetLimits(EntitySetLimitsArgs),
    /// Show the limits stored for an entity
    #[command(after_long_help = super::examples::ENTITY_GET_LIMITS)]
    GetLimits(EntityLevelArgs),
    /// Delete the limits stored for an entity at this level
    #[command(after_long_help = super::examples::ENTITY_DELETE_LIMITS)]
    DeleteLimits(Confirmed<EntityLevelArgs>),
    /// List the resources for which some entity has limits of its own
    #[command(after_long_help = super::examples::ENTITY_LIST_RESOURCES)]
    ListResources(PageArgs),
    /// Show the buckets of an entity as they are now
    #[command(after_long_help = super::examples::ENTITY_BUCKETS)]
    Buckets(EntityBucketsArgs),
    /// Fill buckets of an entity, forgiving their debt
    #[command(after_long_help = super::examples::ENTITY_RESET)]
    Reset(EntityResetArgs),
    /// Refuse every call of an entity from now on
    #[command(after_long_help = super::examples::ENTITY_DISABLE)]
    Disable(EntityFlagArgs),
    /// Admit an entity again, even on a disabled resource; every ancestor it cascades to has to be
    /// enabled too
    #[command(after_long_help = super::examples::ENTITY_ENABLE)]
    Enable(EntityFlagArgs),
    /// Forget that an entity was disabled or enabled: the resource decides
    #[command(after_long_help = super::examples::ENTITY_CLEAR_DISABLED)]
    ClearDisabled(EntityFlagArgs),
}

impl EntityCommand {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        match self {
            EntityCommand::Create(args) => entity_create::run(context, args).await,
            EntityCommand::Show(args) => entity_show::run(context, args).await,
            EntityCommand::List(args) => entity_list::run(context, args).await,
            EntityCommand::Update(args) => entity_update::run(context, args).await,
            EntityCommand::Delete(args) => entity_delete::run(context, args).await,
            EntityCommand::Children(args) => entity_children::run(context, args).await,
            EntityCommand::SetLimits(EntitySetLimitsArgs { id, resource, limits, must_exist }) => {
                let level = LevelArgs { level: of_entity(id, resource), must_exist };
                level::set(context, level, limits, None).await
            }
            EntityCommand::GetLimits(args) => level::get(context, args.into()).await,
            EntityCommand::DeleteLimits(args) => {
                level::delete(context, args.what.into(), args.confirm).await
            }
            EntityCommand::ListResources(args) => entity_list_resources::run(context, args).await,
            EntityCommand::Buckets(args) => entity_buckets::run(context, args).await,
            EntityCommand::Reset(args) => entity_reset::run(context, args).await,
            EntityCommand::Disable(args) => {
                level::flag(context, args.into(), Some(Flag::Disabled)).await
            }
            EntityCommand::Enable(args) => {
                level::flag(context, args.into(), Some(Flag::Enabled)).await
            }
            EntityCommand::ClearDisabled(args) => level::flag(context, args.into(), None).await,
        }
    }

    pub(super) fn access(&self) -> Access {
        match self {
            EntityCommand::Show(_)
            | EntityCommand::List(_)
            | EntityCommand::Children(_)
            | EntityCommand::GetLimits(_)
            | EntityCommand::ListResources(_)
            | EntityCommand::Buckets(_) => Access::Looks,
            EntityCommand::Create(args) => Access::with_entity(args.parent.is_some()),
            EntityCommand::SetLimits(args) if args.must_exist => Access::Changes,
            EntityCommand::SetLimits(args) => args.limits.access(),
            EntityCommand::Update(_)
            | EntityCommand::Delete(_)
            | EntityCommand::DeleteLimits(_)
            | EntityCommand::Reset(_)
            | EntityCommand::Disable(_)
            | EntityCommand::Enable(_)
            | EntityCommand::ClearDisabled(_) => Access::Changes,
        }
    }
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

/// `entity show`, `entity delete`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityIdArgs {
    /// Which entity
    pub(crate) id: EntityId,
}

/// `entity list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityListArgs {
    /// Only those with limits or a flag of their own for this resource; _default_ for those on
    /// every resource
    #[arg(long, value_name = "RESOURCE")]
    pub(crate) with_custom_limits: Option<ResourceOrAll>,

    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `entity update`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("change").args(["display_name", "metadata", "remove_metadata"]).required(true).multiple(true))]
pub(crate) struct EntityUpdateArgs {
    /// Which entity
    pub(crate) id: EntityId,

    /// What people call it from now on
    #[arg(long, value_name = "TEXT")]
    pub(crate) display_name: Option<String>,

    /// What to remember about it, beside what is remembered already; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,

    /// What to forget about it; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) remove_metadata: Vec<String>,

    /// Only if it still has this version, as `entity show` says [default: the version it has]
    #[arg(long, value_name = "NUMBER", value_parser = version)]
    pub(crate) version: Option<u64>,
}

/// `entity children`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityPageArgs {
    /// Which entity
    pub(crate) id: EntityId,

    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `entity buckets`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityBucketsArgs {
    /// Which entity
    pub(crate) id: EntityId,

    /// Show the shards of every bucket, one by one; for a stack
    #[arg(long)]
    pub(crate) shards: bool,

    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// `entity set-limits`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("change").args(["limits", "remove"]).required(true).multiple(true))]
pub(crate) struct EntitySetLimitsArgs {
    /// Whose limits; the entity need not be created
    pub(crate) id: EntityId,

    /// Only for this resource [default: every resource without limits of its own for the entity]
    #[arg(long, short, value_name = "RESOURCE")]
    pub(crate) resource: Option<ResourceName>,

    #[command(flatten)]
    pub(crate) limits: LimitsArgs,

    /// Refuse an entity that was not created
    #[arg(long)]
    pub(crate) must_exist: bool,
}

/// `entity reset`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EntityResetArgs {
    /// Whose buckets
    pub(crate) id: EntityId,

    /// Only the bucket for this resource [default: all of them]
    #[arg(long, short, value_name = "RESOURCE")]
    pub(crate) resource: Option<ResourceName>,

    /// Only this limit; may be repeated [default: all of them]
    #[arg(long = "limit", alias = "limit-name", short, value_name = "NAME", value_delimiter = ',')]
    pub(crate) limit_names: Vec<LimitName>,

    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}
