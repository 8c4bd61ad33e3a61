//! `namespace …`. The registry is common to all namespaces of a store, so `--namespace` does not
//! matter here.

use clap::{Args, Subcommand};
use zae_limiter::NamespaceName;

use super::shared::{ConfirmArgs, PageArgs};
use crate::commands::{
    namespace_delete, namespace_list, namespace_orphans, namespace_purge, namespace_recover,
    namespace_register, namespace_show,
};
use crate::context::{Access, Context};
use crate::exit::Exit;

/// What to do with a namespace.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// Register namespaces; one that is registered already stays as it is
    #[command(after_long_help = super::examples::NAMESPACE_REGISTER)]
    Register(NamespaceRegisterArgs),
    /// List the namespaces in use
    #[command(after_long_help = super::examples::NAMESPACE_LIST)]
    List(PageArgs),
    /// Show a namespace in use
    #[command(after_long_help = super::examples::NAMESPACE_SHOW)]
    Show(NamespaceNameArgs),
    /// Delete a namespace; `namespace recover` brings it back until it is purged
    #[command(after_long_help = super::examples::NAMESPACE_DELETE)]
    Delete(NamespaceDeleteArgs),
    /// Bring a deleted namespace back
    #[command(after_long_help = super::examples::NAMESPACE_RECOVER)]
    Recover(NamespaceRecoverArgs),
    /// List the deleted namespaces whose data is still there
    #[command(after_long_help = super::examples::NAMESPACE_ORPHANS)]
    Orphans(PageArgs),
    /// Erase the data of a deleted namespace for good
    #[command(after_long_help = super::examples::NAMESPACE_PURGE)]
    Purge(NamespacePurgeArgs),
}

impl NamespaceCommand {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        match self {
            NamespaceCommand::Register(args) => namespace_register::run(context, args).await,
            NamespaceCommand::List(args) => namespace_list::run(context, args).await,
            NamespaceCommand::Show(args) => namespace_show::run(context, args).await,
            NamespaceCommand::Delete(args) => namespace_delete::run(context, args).await,
            NamespaceCommand::Recover(args) => namespace_recover::run(context, args).await,
            NamespaceCommand::Orphans(args) => namespace_orphans::run(context, args).await,
            NamespaceCommand::Purge(args) => namespace_purge::run(context, args).await,
        }
    }

    pub(super) fn access(&self) -> Access {
        match self {
            NamespaceCommand::List(_)
            | NamespaceCommand::Show(_)
            | NamespaceCommand::Orphans(_) => Access::Looks,
            NamespaceCommand::Register(_) => Access::SetsUp,
            NamespaceCommand::Delete(_)
            | NamespaceCommand::Recover(_)
            | NamespaceCommand::Purge(_) => Access::Changes,
        }
    }
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

    /// Do not ask; only the deletion of the namespace default is asked about
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// `namespace recover`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespaceRecoverArgs {
    /// Which namespace: the id that `namespace orphans` lists, or the name if only one deleted
    /// namespace had it
    #[arg(value_name = "ID|NAME")]
    pub(crate) which: String,
}

/// `namespace purge`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespacePurgeArgs {
    /// Which namespace: the id that `namespace orphans` lists
    #[arg(value_name = "ID")]
    pub(crate) id: String,

    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}
