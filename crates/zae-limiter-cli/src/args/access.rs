//! What each command does to a file: whether it may create one.

use super::{
    EntityCommand, LimitsArgs, NamespaceCommand, ResourceCommand, StoreCommand, SystemCommand,
};

/// What a command does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It never writes: it needs no more than permission to read, and creates no file.
    Looks,
    /// It changes or deletes what is there. A file that is not there was named by mistake, and is
    /// not created.
    Changes,
    /// It stores something new, and creates the file if need be.
    SetsUp,
}

impl StoreCommand {
    /// What the command does to a file.
    pub(crate) fn access(&self) -> Access {
        match self {
            StoreCommand::Available(_)
            | StoreCommand::Explain(_)
            | StoreCommand::Audit(_)
            | StoreCommand::Usage(_)
            | StoreCommand::Status => Access::Looks,
            StoreCommand::Acquire(args) => needs_entity(args.must_exist),
            StoreCommand::Entity(command) => of_entity(command),
            StoreCommand::Resource(command) => of_resource(command),
            StoreCommand::System(command) => of_system(command),
            StoreCommand::Namespace(command) => of_namespace(command),
            StoreCommand::Sweep => Access::Changes,
            #[cfg(feature = "sqlite")]
            StoreCommand::Backup(_) => Access::Looks,
            #[cfg(feature = "sqlite")]
            StoreCommand::Restore(_) => Access::SetsUp,
        }
    }
}

fn of_entity(command: &EntityCommand) -> Access {
    match command {
        EntityCommand::Show(_)
        | EntityCommand::List(_)
        | EntityCommand::Children(_)
        | EntityCommand::GetLimits(_)
        | EntityCommand::ListResources(_)
        | EntityCommand::Buckets(_) => Access::Looks,
        EntityCommand::Create(args) => needs_entity(args.parent.is_some()),
        EntityCommand::SetLimits(args) if args.must_exist => Access::Changes,
        EntityCommand::SetLimits(args) => of_limits(&args.limits),
        EntityCommand::Update(_)
        | EntityCommand::Delete(_)
        | EntityCommand::DeleteLimits(_)
        | EntityCommand::Reset(_)
        | EntityCommand::Disable(_)
        | EntityCommand::Enable(_)
        | EntityCommand::ClearDisabled(_) => Access::Changes,
    }
}

fn of_resource(command: &ResourceCommand) -> Access {
    match command {
        ResourceCommand::GetDefaults(_)
        | ResourceCommand::List(_)
        | ResourceCommand::Capacity(_) => Access::Looks,
        ResourceCommand::SetDefaults(args) => of_limits(&args.limits),
        ResourceCommand::DeleteDefaults(_)
        | ResourceCommand::Disable(_)
        | ResourceCommand::Enable(_)
        | ResourceCommand::ClearDisabled(_) => Access::Changes,
    }
}

fn of_system(command: &SystemCommand) -> Access {
    match command {
        SystemCommand::GetDefaults => Access::Looks,
        // The outage policy alone is stored beside limits, which a new file does not have.
        SystemCommand::SetDefaults(args) if args.limits.limits.is_empty() => Access::Changes,
        SystemCommand::SetDefaults(args) => of_limits(&args.limits),
        SystemCommand::DeleteDefaults(_) => Access::Changes,
    }
}

fn of_namespace(command: &NamespaceCommand) -> Access {
    match command {
        NamespaceCommand::List(_) | NamespaceCommand::Show(_) | NamespaceCommand::Orphans(_) => {
            Access::Looks
        }
        NamespaceCommand::Register(_) => Access::SetsUp,
        NamespaceCommand::Delete(_) | NamespaceCommand::Recover(_) | NamespaceCommand::Purge(_) => {
            Access::Changes
        }
    }
}

/// A new file has no entity to find.
fn needs_entity(is_needed: bool) -> Access {
    if is_needed { Access::Changes } else { Access::SetsUp }
}

/// A new file has no limit to remove.
fn of_limits(limits: &LimitsArgs) -> Access {
    if limits.remove.is_empty() { Access::SetsUp } else { Access::Changes }
}
