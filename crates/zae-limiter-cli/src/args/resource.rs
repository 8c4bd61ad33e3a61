//! `resource …`.

use clap::{Args, Subcommand};
use zae_limiter::{Limit, ResourceName};

/// What to do with a resource.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ResourceCommand {
    /// Store limits of a resource, replacing those it had
    SetDefaults(ResourceSetDefaultsArgs),
    /// Show the limits stored for a resource
    GetDefaults(ResourceGetDefaultsArgs),
}

/// `resource set-defaults`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ResourceSetDefaultsArgs {
    /// Which resource
    pub(crate) name: ResourceName,

    /// A limit as name:rate[/period][:burst], as in tpm:10000/min:15000; may be repeated
    #[arg(long = "limit", short, value_name = "LIMIT", required = true)]
    pub(crate) limits: Vec<Limit>,
}

/// `resource get-defaults`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ResourceGetDefaultsArgs {
    /// Which resource
    pub(crate) name: ResourceName,
}
