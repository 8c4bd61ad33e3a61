//! One file per command, named `<noun>_<verb>`. Each checks what it can, opens the limiter, does one thing and answers.

mod acquire;
mod audit_list;
mod available;
#[cfg(feature = "sqlite")]
mod backup;
mod completions;
#[cfg(feature = "sqlite")]
mod demo;
mod entity_buckets;
mod entity_children;
mod entity_clear_disabled;
mod entity_create;
mod entity_delete;
mod entity_delete_limits;
mod entity_disable;
mod entity_enable;
mod entity_get_limits;
mod entity_list;
mod entity_list_resources;
mod entity_reset;
mod entity_set_limits;
mod entity_show;
mod entity_update;
mod explain;
mod flags;
mod limits;
mod listing;
#[cfg(feature = "dynamodb")]
mod local;
#[cfg(feature = "dynamodb")]
mod local_down;
#[cfg(feature = "dynamodb")]
mod local_env;
#[cfg(feature = "dynamodb")]
mod local_logs;
#[cfg(feature = "dynamodb")]
mod local_status;
#[cfg(feature = "dynamodb")]
mod local_up;
mod namespace_delete;
mod namespace_list;
mod namespace_orphans;
mod namespace_purge;
mod namespace_recover;
mod namespace_register;
mod namespace_show;
mod namespaces;
mod reference;
mod resource_capacity;
mod resource_clear_disabled;
mod resource_delete_defaults;
mod resource_disable;
mod resource_enable;
mod resource_get_defaults;
mod resource_list;
mod resource_set_defaults;
#[cfg(feature = "sqlite")]
mod restore;
#[cfg(feature = "sqlite")]
mod status;
mod sweep;
mod system_delete_defaults;
mod system_get_defaults;
mod system_set_defaults;
mod usage;
mod usage_list;
mod usage_summary;
mod version;

use anyhow::Context as _;

use crate::args::{
    AuditCommand, Cli, Command, EntityCommand, NamespaceCommand, ResourceCommand, StoreCommand, SystemCommand, UsageCommand,
};
use crate::context::Context;
use crate::exit::Exit;
use crate::printer::Printer;
use crate::settings::{Environment, Settings};

/// Runs a command. Settings are looked at only by those that need them: a wrong variable does not hide the version.
pub(crate) fn run(cli: Cli, environment: &Environment, printer: &Printer) -> anyhow::Result<Exit> {
    match cli.command {
        Command::Version => version::run(printer),
        Command::Completions(args) => completions::run(printer, args),
        Command::Reference => reference::run(printer),
        #[cfg(feature = "sqlite")]
        Command::Demo(args) => {
            let place = demo::Place::new(cli.globals.store, environment)?;
            block_on(demo::run(printer, &place, args))
        }
        #[cfg(feature = "dynamodb")]
        Command::Local(command) => block_on(local::run(printer, command, &cli.globals, environment)),
        Command::Store(command) => {
            let settings = Settings::new(cli.globals, environment)?;
            let only_looks = command.only_looks();
            block_on(on_store(command, &Context { settings: &settings, printer, only_looks }))
        }
    }
}

fn block_on(command: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime did not start")?;
    runtime.block_on(command)
}

async fn on_store(command: StoreCommand, context: &Context<'_>) -> anyhow::Result<Exit> {
    match command {
        StoreCommand::Acquire(args) => acquire::run(context, args).await,
        StoreCommand::Available(args) => available::run(context, args).await,
        StoreCommand::Explain(args) => explain::run(context, args).await,
        StoreCommand::Entity(command) => on_entity(command, context).await,
        StoreCommand::Resource(command) => on_resource(command, context).await,
        StoreCommand::System(SystemCommand::SetDefaults(args)) => system_set_defaults::run(context, args).await,
        StoreCommand::System(SystemCommand::GetDefaults) => system_get_defaults::run(context).await,
        StoreCommand::System(SystemCommand::DeleteDefaults(args)) => system_delete_defaults::run(context, args).await,
        StoreCommand::Namespace(command) => on_namespace(command, context).await,
        StoreCommand::Audit(AuditCommand::List(args)) => audit_list::run(context, args).await,
        StoreCommand::Usage(UsageCommand::List(args)) => usage_list::run(context, args).await,
        StoreCommand::Usage(UsageCommand::Summary(args)) => usage_summary::run(context, args).await,
        #[cfg(feature = "sqlite")]
        StoreCommand::Status => status::run(context),
        #[cfg(feature = "sqlite")]
        StoreCommand::Backup(args) => backup::run(context, &args),
        #[cfg(feature = "sqlite")]
        StoreCommand::Restore(args) => restore::run(context, &args),
        StoreCommand::Sweep => sweep::run(context).await,
    }
}

async fn on_entity(command: EntityCommand, context: &Context<'_>) -> anyhow::Result<Exit> {
    match command {
        EntityCommand::Create(args) => entity_create::run(context, args).await,
        EntityCommand::Show(args) => entity_show::run(context, args).await,
        EntityCommand::List(args) => entity_list::run(context, args).await,
        EntityCommand::Update(args) => entity_update::run(context, args).await,
        EntityCommand::Delete(args) => entity_delete::run(context, args).await,
        EntityCommand::Children(args) => entity_children::run(context, args).await,
        EntityCommand::SetLimits(args) => entity_set_limits::run(context, args).await,
        EntityCommand::GetLimits(args) => entity_get_limits::run(context, args).await,
        EntityCommand::DeleteLimits(args) => entity_delete_limits::run(context, args).await,
        EntityCommand::ListResources(args) => entity_list_resources::run(context, args).await,
        EntityCommand::Buckets(args) => entity_buckets::run(context, args).await,
        EntityCommand::Reset(args) => entity_reset::run(context, args).await,
        EntityCommand::Disable(args) => entity_disable::run(context, args).await,
        EntityCommand::Enable(args) => entity_enable::run(context, args).await,
        EntityCommand::ClearDisabled(args) => entity_clear_disabled::run(context, args).await,
    }
}

async fn on_resource(command: ResourceCommand, context: &Context<'_>) -> anyhow::Result<Exit> {
    match command {
        ResourceCommand::SetDefaults(args) => resource_set_defaults::run(context, args).await,
        ResourceCommand::GetDefaults(args) => resource_get_defaults::run(context, args).await,
        ResourceCommand::DeleteDefaults(args) => resource_delete_defaults::run(context, args).await,
        ResourceCommand::List(args) => resource_list::run(context, args).await,
        ResourceCommand::Capacity(args) => resource_capacity::run(context, args).await,
        ResourceCommand::Disable(args) => resource_disable::run(context, args).await,
        ResourceCommand::Enable(args) => resource_enable::run(context, args).await,
        ResourceCommand::ClearDisabled(args) => resource_clear_disabled::run(context, args).await,
    }
}

async fn on_namespace(command: NamespaceCommand, context: &Context<'_>) -> anyhow::Result<Exit> {
    match command {
        NamespaceCommand::Register(args) => namespace_register::run(context, args).await,
        NamespaceCommand::List(args) => namespace_list::run(context, args).await,
        NamespaceCommand::Show(args) => namespace_show::run(context, args).await,
        NamespaceCommand::Delete(args) => namespace_delete::run(context, args).await,
        NamespaceCommand::Recover(args) => namespace_recover::run(context, args).await,
        NamespaceCommand::Orphans(args) => namespace_orphans::run(context, args).await,
        NamespaceCommand::Purge(args) => namespace_purge::run(context, args).await,
    }
}
