//! `system …`.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use zae_limiter::OnUnavailable;

use super::{ConfirmArgs, LimitsArgs};

/// What to do with the whole namespace.
#[derive(Clone, Debug, Subcommand)]
#[expect(clippy::enum_variant_names, reason = "these are the words of the command line")]
pub(crate) enum SystemCommand {
    /// Store limits for everyone without stronger ones, replacing those there were
    #[command(after_long_help = super::examples::SYSTEM_SET_DEFAULTS)]
    SetDefaults(SystemSetDefaultsArgs),
    /// Show the limits stored for everyone
    GetDefaults,
    /// Delete the limits and the outage policy stored for everyone
    DeleteDefaults(SystemDeleteDefaultsArgs),
}

/// `system set-defaults`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("change").args(["limits", "remove", "on_unavailable"]).required(true).multiple(true))]
pub(crate) struct SystemSetDefaultsArgs {
    #[command(flatten)]
    pub(crate) limits: LimitsArgs,

    /// What to do with calls while the store is down; without limits it keeps those there are
    /// [default: as stored, else block]
    #[arg(long, value_name = "POLICY")]
    pub(crate) on_unavailable: Option<Policy>,
}

/// `system delete-defaults`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SystemDeleteDefaultsArgs {
    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}

/// What to do while the store is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    Allow,
    Block,
}

impl From<Policy> for OnUnavailable {
    fn from(policy: Policy) -> OnUnavailable {
        match policy {
            Policy::Allow => OnUnavailable::Allow,
            Policy::Block => OnUnavailable::Block,
        }
    }
}
