//! One file per command, named `<noun>_<verb>`. Each checks what it can, opens the limiter, does
//! one thing and answers.

mod about;
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
pub(crate) mod namespaces;
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
#[cfg(feature = "dynamodb")]
mod status_stack;
mod sweep;
mod system_delete_defaults;
mod system_get_defaults;
mod system_set_defaults;
mod usage;
mod usage_list;
mod usage_summary;
mod version;

use anyhow::Context as _;

use crate::again::Again;
#[cfg(feature = "dynamodb")]
use crate::args::LocalCommand;
use crate::args::{
    Access, AuditCommand, Cli, Command, EntityCommand, NamespaceCommand, ResourceCommand,
    StoreCommand, SystemCommand, UsageCommand,
};
use crate::context::Context;
use crate::error::{Failure, Report};
use crate::exit::Exit;
use crate::patience::Patience;
use crate::printer::Printer;
use crate::settings::{Environment, Settings, StorePlace};

/// What to say about a command of the Python package that is not built yet.
pub(crate) fn coming(command: &str) -> Failure {
    let failure = Failure::usage(format!("`zae-limiter {command}` is not built yet"));
    let instead = match command {
        "deploy" | "delete" | "cfn-template" | "lambda-export" | "upgrade" => {
            "`zae-limiter local up --name STACK` makes a table on this machine; on AWS the Python package deploys it"
        }
        "list" | "check" => "`zae-limiter status --name STACK` looks at one stack",
        "limits" => {
            "set limits level by level with `system set-defaults`, `resource set-defaults` and `entity set-limits`"
        }
        "entity set-parent" | "entity set-cascade" => {
            "an entity keeps its parent and its cascade; delete it and create it again to change them"
        }
        "entity top-up" => "`zae-limiter entity reset` fills a bucket",
        "resource bypass" | "resource set-cascade" => {
            "`zae-limiter resource disable` and `zae-limiter resource enable` are there"
        }
        _ => "`zae-limiter --help` lists what is",
    };
    failure.hint(instead)
}

/// Runs a command. Settings are looked at only by those that need them: a wrong variable does not
/// hide the version.
pub(crate) fn run(cli: Cli, environment: &Environment, printer: &Printer) -> Result<Exit, Report> {
    let (mut place, again) = (None, Again::new(&cli.globals));
    let ended = dispatch(cli, environment, printer, &mut place);
    ended.map_err(|error| {
        let report = Report::of(&error, &again);
        if let ("full", Some(megabytes)) = (report.kind, environment.file_bound()) {
            return report.or_hint(|| {
                format!("ZAEL_FILE_MAX_MB lets the file grow to {megabytes} MB; raise it, or sweep")
            });
        }
        match place {
            #[cfg(feature = "dynamodb")]
            Some(StorePlace::Dynamo(place)) if report.kind == "unavailable" => {
                let message = format!("{}: {}", crate::dynamo::place(&place), report.message);
                Report { message, ..report }.or_hint(|| crate::dynamo::hint(&place))
            }
            _ => report,
        }
    })
}

/// Does what was asked for, and tells on which store.
fn dispatch(
    cli: Cli,
    environment: &Environment,
    printer: &Printer,
    place: &mut Option<StorePlace>,
) -> anyhow::Result<Exit> {
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
        Command::Local(command) => {
            let follows = matches!(&command, LocalCommand::Logs(_))
                || matches!(&command, LocalCommand::Up(args) if args.foreground);
            let _patience = (!follows)
                .then(|| Patience::start(printer, "still waiting for the local engine".into()));
            block_on(local::run(printer, command, &cli.globals, environment))
        }
        Command::Store(command) => {
            #[cfg_attr(
                not(feature = "dynamodb"),
                expect(unused_mut, reason = "only there another place may be meant")
            )]
            let mut settings = Settings::new(cli.globals, environment)?;
            let _patience =
                Patience::start(printer, format!("still waiting for {}", settings.store));
            #[cfg(feature = "dynamodb")]
            crate::dynamo::prefer_local(&mut settings, environment, printer);
            *place = Some(settings.store.clone());
            settings.check_place()?;
            let context = Context { settings: &settings, printer, access: command.access() };
            // Nobody is asked to confirm a change of what is not there.
            if context.access == Access::Changes {
                context.require_file()?;
            }
            block_on(on_store(command, &context))
        }
    }
}

fn block_on(command: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime did not start")?;
    runtime.block_on(command)
}

async fn on_store(command: StoreCommand, context: &Context<'_>) -> anyhow::Result<Exit> {
    match command {
        StoreCommand::Acquire(args) => acquire::run(context, args).await,
        StoreCommand::Available(args) => available::run(context, args).await,
        StoreCommand::Explain(args) => explain::run(context, args).await,
        StoreCommand::Entity(command) => on_entity(command, context).await,
        StoreCommand::Resource(command) => on_resource(command, context).await,
        StoreCommand::System(SystemCommand::SetDefaults(args)) => {
            system_set_defaults::run(context, args).await
        }
        StoreCommand::System(SystemCommand::GetDefaults) => system_get_defaults::run(context).await,
        StoreCommand::System(SystemCommand::DeleteDefaults(args)) => {
            system_delete_defaults::run(context, args).await
        }
        StoreCommand::Namespace(command) => on_namespace(command, context).await,
        StoreCommand::Audit(AuditCommand::List(args)) => audit_list::run(context, args).await,
        StoreCommand::Usage(UsageCommand::List(args)) => usage_list::run(context, args).await,
        StoreCommand::Usage(UsageCommand::Summary(args)) => usage_summary::run(context, args).await,
        StoreCommand::Status => match &context.settings.store {
            #[cfg(feature = "dynamodb")]
            StorePlace::Dynamo(place) => status_stack::run(context, place).await,
            #[cfg(feature = "sqlite")]
            _ => status::run(context).await,
            #[cfg(not(feature = "sqlite"))]
            place => {
                Err(Failure::usage(format!("{place} has no status that this build knows")).into())
            }
        },
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
