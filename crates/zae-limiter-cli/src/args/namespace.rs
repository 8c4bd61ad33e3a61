//! `namespace …`. The registry is common to all tenants of a store, so --namespace does not matter here.

use clap::{Args, Subcommand};
use zae_limiter::{NamespaceId, NamespaceName};

use super::{ConfirmArgs, PageArgs};

/// What to do with a tenant.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// Register namespaces; one that is registered already stays as it is
    Register(NamespaceRegisterArgs),
    /// List the namespaces in use
    List(PageArgs),
    /// Show a namespace in use
    Show(NamespaceNameArgs),
    /// Delete a namespace: its data stays until it is purged, and can be recovered
    Delete(NamespaceDeleteArgs),
    /// Bring a deleted namespace back
    Recover(NamespaceIdArgs),
    /// List the deleted namespaces whose data is still there
    Orphans(PageArgs),
    /// Erase the data of a deleted namespace for good
    Purge(NamespacePurgeArgs),
}

/// `namespace register`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespaceRegisterArgs {
    /// What to call them
    #[arg(required = true)]
    pub(crate) names: Vec<NamespaceName>,
}

/// `namespace show`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespaceNameArgs {
    /// Which namespace
    pub(crate) name: NamespaceName,
}

/// `namespace delete`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespaceDeleteArgs {
    /// Which namespace
    pub(crate) name: NamespaceName,

    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}

/// `namespace recover`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespaceIdArgs {
    /// Which namespace: the id that `namespace orphans` lists
    pub(crate) id: NamespaceId,
}

/// `namespace purge`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespacePurgeArgs {
    /// Which namespace: the id that `namespace orphans` lists
    pub(crate) id: NamespaceId,

    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}
