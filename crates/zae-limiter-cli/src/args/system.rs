//! `system …`.

use clap::{ArgGroup, Args, Subcommand};
use zae_limiter::{Level, OnUnavailable};

use super::level::LimitsArgs;
use super::shared::ConfirmArgs;
use super::value::word;
use crate::commands::level;
use crate::context::{Access, Context};
use crate::exit::Exit;

/// What to do with the whole namespace.
#[derive(Clone, Debug, Subcommand)]
#[cfg_attr(
    not(feature = "dynamodb"),
    expect(clippy::enum_variant_names, reason = "these are the words of the command line")
)]
pub(crate) enum SystemCommand {
    /// Store limits for everyone without stronger ones, replacing those there were
    #[command(after_long_help = super::examples::SYSTEM_SET_DEFAULTS)]
    SetDefaults(SystemSetDefaultsArgs),
    /// Show the limits stored for everyone
    #[command(after_long_help = super::examples::SYSTEM_GET_DEFAULTS)]
    GetDefaults,
    /// Delete the limits and the outage policy stored for everyone
    #[command(after_long_help = super::examples::SYSTEM_DELETE_DEFAULTS)]
    DeleteDefaults(ConfirmArgs),
    /// Set for how many days a DynamoDB stack keeps usage and audit events, in all namespaces
    ///
    /// What is written from now on is kept that long; what is there keeps its own time. Clients and
    /// aggregators follow within five minutes.
    #[cfg(feature = "dynamodb")]
    #[command(after_long_help = super::examples::SYSTEM_SET_RETENTION)]
    SetRetention(SetRetentionArgs),
}

impl SystemCommand {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        match self {
            SystemCommand::SetDefaults(args) => {
                level::set(context, Level::System.into(), args.limits, args.on_unavailable).await
            }
            SystemCommand::GetDefaults => level::get(context, Level::System).await,
            SystemCommand::DeleteDefaults(args) => {
                level::delete(context, Level::System, args).await
            }
            #[cfg(feature = "dynamodb")]
            SystemCommand::SetRetention(args) => {
                crate::commands::system_set_retention::run(context, args).await
            }
        }
    }

    pub(super) fn access(&self) -> Access {
        match self {
            SystemCommand::GetDefaults => Access::Looks,
            SystemCommand::SetDefaults(args) => args.limits.access(),
            SystemCommand::DeleteDefaults(_) => Access::Changes,
            #[cfg(feature = "dynamodb")]
            SystemCommand::SetRetention(_) => Access::Changes,
        }
    }
}

/// `system set-retention`.
#[cfg(feature = "dynamodb")]
#[derive(Args, Clone, Copy, Debug)]
#[command(group = ArgGroup::new("days").args(["usage_days", "audit_days"]).required(true).multiple(true))]
pub(crate) struct SetRetentionArgs {
    /// Days that snapshots of usage are kept, from 1 to 36500 [default: as stored, else 90]
    #[arg(long, value_name = "COUNT", value_parser = super::value::count::<36_500>)]
    pub(crate) usage_days: Option<u32>,

    /// Days that audit events are kept, from 1 to 36500 [default: as stored, else 90]
    #[arg(long, value_name = "COUNT", value_parser = super::value::count::<36_500>)]
    pub(crate) audit_days: Option<u32>,
}

/// `system set-defaults`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("change").args(["limits", "remove", "on_unavailable"]).required(true).multiple(true))]
pub(crate) struct SystemSetDefaultsArgs {
    #[command(flatten)]
    pub(crate) limits: LimitsArgs,

    /// What to do with calls while the store is down; without limits it keeps those there are
    /// [default: as stored, else block]
    #[arg(long, value_name = "POLICY", value_parser = word::<OnUnavailable>(["allow", "block"]))]
    pub(crate) on_unavailable: Option<OnUnavailable>,
}
