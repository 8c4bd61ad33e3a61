//! `system …`.

use clap::{Args, Subcommand, ValueEnum};
use zae_limiter::{Limit, OnUnavailable};

use super::ConfirmArgs;

/// What to do with the whole namespace.
#[derive(Clone, Debug, Subcommand)]
#[expect(clippy::enum_variant_names, reason = "these are the words of the command line")]
pub(crate) enum SystemCommand {
    /// Store limits for everyone without stronger ones, replacing those there were
    SetDefaults(SystemSetDefaultsArgs),
    /// Show the limits stored for everyone
    GetDefaults,
    /// Delete the limits and the outage policy stored for everyone
    DeleteDefaults(SystemDeleteDefaultsArgs),
}

/// `system set-defaults`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SystemSetDefaultsArgs {
    /// A limit as name:rate[/period][:burst], as in tpm:10000/min:15000; may be repeated
    #[arg(long = "limit", short, value_name = "LIMIT", required = true)]
    pub(crate) limits: Vec<Limit>,

    /// What to do with calls while the store is down [default: as stored, else block]
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
