//! `audit …` and `usage …`.

use clap::{ArgGroup, Args, Subcommand};
use zae_limiter::{EntityId, ResourceName, UsageWindow};

use super::shared::PageArgs;
use super::value::{Moment, moment, word};
use crate::commands::{audit_list, usage_list, usage_summary};
use crate::context::Context;
use crate::exit::Exit;

/// What to do with the audit log.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List who changed what, newest first; without a filter in the whole namespace
    #[command(after_long_help = super::examples::AUDIT_LIST)]
    List(AuditListArgs),
}

impl AuditCommand {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        match self {
            AuditCommand::List(args) => audit_list::run(context, args).await,
        }
    }
}

/// `audit list`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("subject"))]
pub(crate) struct AuditListArgs {
    /// Changes of this entity and its limits
    #[arg(long, short, value_name = "ID", group = "subject", alias = "entity")]
    pub(crate) entity_id: Option<EntityId>,

    /// Changes of this resource's limits
    #[arg(long, short, value_name = "NAME", group = "subject")]
    pub(crate) resource: Option<ResourceName>,

    /// Changes of the system's limits and of namespaces
    #[arg(long, group = "subject")]
    pub(crate) system: bool,

    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// What to do with the usage history.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum UsageCommand {
    /// List what was used in each window, oldest first; without a filter in the whole namespace
    #[command(after_long_help = super::examples::USAGE_LIST)]
    List(UsageListArgs),
    /// Sum up what was used
    #[command(after_long_help = super::examples::USAGE_SUMMARY)]
    Summary(UsageQueryArgs),
}

impl UsageCommand {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        match self {
            UsageCommand::List(args) => usage_list::run(context, args).await,
            UsageCommand::Summary(args) => usage_summary::run(context, args).await,
        }
    }
}

/// `usage summary`, and what `usage list` shares with it.
#[derive(Args, Clone, Debug)]
pub(crate) struct UsageQueryArgs {
    /// Of this entity [default: of all]
    #[arg(long, short, value_name = "ID", alias = "entity")]
    pub(crate) entity_id: Option<EntityId>,

    /// Of this resource [default: of all]
    #[arg(long, short, value_name = "RESOURCE")]
    pub(crate) resource: Option<ResourceName>,

    /// How long a window is
    #[arg(long, short, value_name = "WINDOW", default_value = "hourly", value_parser = word::<UsageWindow>(UsageWindow::ALL.map(UsageWindow::as_str)))]
    pub(crate) window: UsageWindow,

    /// Windows that start at this time or later: 2026-01-31 or 2026-01-31T14:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) start: Option<Moment>,

    /// Windows that start before this time; a date counts with its whole day
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) end: Option<Moment>,
}

/// `usage list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct UsageListArgs {
    #[command(flatten)]
    pub(crate) query: UsageQueryArgs,

    /// Draw every window instead of listing a page of them, one chart per limit
    #[arg(long, short, conflicts_with_all = ["max", "cursor"])]
    pub(crate) plot: bool,

    #[command(flatten)]
    pub(crate) page: PageArgs,
}
