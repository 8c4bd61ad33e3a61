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

use crate::args::{Command, EntityCommand, ResourceCommand, SystemCommand};
use crate::context::Context;
use crate::exit::Exit;

/// Runs a command.
pub(crate) async fn run(command: Command, context: &Context<'_>) -> anyhow::Result<Exit> {
    match command {
        Command::Acquire(args) => acquire::run(context, args).await,
        Command::Available(args) => available::run(context, args).await,
        Command::Explain(args) => explain::run(context, args).await,
        Command::Entity(EntityCommand::Create(args)) => entity_create::run(context, args).await,
        Command::Entity(EntityCommand::Show(args)) => entity_show::run(context, args).await,
        Command::Entity(EntityCommand::SetLimits(args)) => entity_set_limits::run(context, args).await,
        Command::Entity(EntityCommand::GetLimits(args)) => entity_get_limits::run(context, args).await,
        Command::Resource(ResourceCommand::SetDefaults(args)) => resource_set_defaults::run(context, args).await,
        Command::Resource(ResourceCommand::GetDefaults(args)) => resource_get_defaults::run(context, args).await,
        Command::System(SystemCommand::SetDefaults(args)) => system_set_defaults::run(context, args).await,
        Command::System(SystemCommand::GetDefaults) => system_get_defaults::run(context).await,
        Command::System(SystemCommand::DeleteDefaults(args)) => system_delete_defaults::run(context, args).await,
        Command::Version => version::run(context),
    }
}
