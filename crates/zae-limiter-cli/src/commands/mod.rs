//! One file per command, named `<noun>_<verb>`. Each checks what it can, opens the limiter, does one thing and answers.

mod acquire;
mod available;
mod entity_create;
mod entity_get_limits;
mod entity_set_limits;
mod entity_show;
mod explain;
mod limits;
mod resource_get_defaults;
mod resource_set_defaults;
mod system_delete_defaults;
mod system_get_defaults;
mod system_set_defaults;
mod version;

use anyhow::Context as _;

use crate::args::{Cli, Command, EntityCommand, ResourceCommand, StoreCommand, SystemCommand};
use crate::context::Context;
use crate::exit::Exit;
use crate::printer::Printer;
use crate::settings::{Environment, Settings};

/// Runs a command. Settings are looked at only by those that need them: a wrong variable does not hide the version.
pub(crate) fn run(cli: Cli, environment: &Environment, printer: &Printer) -> anyhow::Result<Exit> {
    match cli.command {
        Command::Version => version::run(printer),
        Command::Store(command) => {
            let settings = Settings::new(cli.globals, environment)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().context("the runtime did not start")?;
            runtime.block_on(on_store(command, &Context { settings: &settings, printer }))
        }
    }
}

async fn on_store(command: StoreCommand, context: &Context<'_>) -> anyhow::Result<Exit> {
    match command {
        StoreCommand::Acquire(args) => acquire::run(context, args).await,
        StoreCommand::Available(args) => available::run(context, args).await,
        StoreCommand::Explain(args) => explain::run(context, args).await,
        StoreCommand::Entity(EntityCommand::Create(args)) => entity_create::run(context, args).await,
        StoreCommand::Entity(EntityCommand::Show(args)) => entity_show::run(context, args).await,
        StoreCommand::Entity(EntityCommand::SetLimits(args)) => entity_set_limits::run(context, args).await,
        StoreCommand::Entity(EntityCommand::GetLimits(args)) => entity_get_limits::run(context, args).await,
        StoreCommand::Resource(ResourceCommand::SetDefaults(args)) => resource_set_defaults::run(context, args).await,
        StoreCommand::Resource(ResourceCommand::GetDefaults(args)) => resource_get_defaults::run(context, args).await,
        StoreCommand::System(SystemCommand::SetDefaults(args)) => system_set_defaults::run(context, args).await,
        StoreCommand::System(SystemCommand::GetDefaults) => system_get_defaults::run(context).await,
        StoreCommand::System(SystemCommand::DeleteDefaults(args)) => system_delete_defaults::run(context, args).await,
    }
}
