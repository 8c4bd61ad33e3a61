//! One file per command, named `<noun>_<verb>`. Each checks what it can, opens the limiter, does
//! one thing and answers. What several of them need is in `shared`; the commands on a level of
//! limits, which three nouns have, are in `level`.

pub(crate) mod acquire;
#[cfg(feature = "dynamodb")]
pub(crate) mod aggregate;
pub(crate) mod audit_list;
pub(crate) mod available;
#[cfg(feature = "sqlite")]
pub(crate) mod backup;
#[cfg(feature = "deploy")]
mod cfn_template;
#[cfg(feature = "dynamodb")]
pub(crate) mod check;
mod completions;
#[cfg(feature = "deploy")]
mod delete;
#[cfg(feature = "sqlite")]
mod demo;
#[cfg(feature = "deploy")]
mod deploy;
pub(crate) mod entity_buckets;
pub(crate) mod entity_children;
pub(crate) mod entity_create;
pub(crate) mod entity_delete;
pub(crate) mod entity_list;
pub(crate) mod entity_list_resources;
pub(crate) mod entity_reset;
#[cfg(feature = "dynamodb")]
pub(crate) mod entity_shards;
pub(crate) mod entity_show;
pub(crate) mod entity_update;
pub(crate) mod explain;
#[cfg(feature = "deploy")]
mod lambda_export;
pub(crate) mod level;
pub(crate) mod limits;
#[cfg(feature = "deploy")]
mod list;
#[cfg(feature = "loadtest")]
pub(crate) mod loadtest;
#[cfg(feature = "dynamodb")]
pub(crate) mod local_attend;
#[cfg(feature = "dynamodb")]
pub(crate) mod local_down;
#[cfg(feature = "dynamodb")]
pub(crate) mod local_env;
#[cfg(feature = "dynamodb")]
pub(crate) mod local_logs;
#[cfg(feature = "dynamodb")]
pub(crate) mod local_status;
#[cfg(feature = "dynamodb")]
pub(crate) mod local_up;
#[cfg(feature = "man")]
mod man;
pub(crate) mod migrate;
pub(crate) mod namespace_delete;
pub(crate) mod namespace_list;
pub(crate) mod namespace_orphans;
pub(crate) mod namespace_purge;
pub(crate) mod namespace_recover;
pub(crate) mod namespace_register;
pub(crate) mod namespace_show;
mod reference;
pub(crate) mod resource_capacity;
pub(crate) mod resource_list;
#[cfg(feature = "sqlite")]
pub(crate) mod restore;
pub(crate) mod shared;
pub(crate) mod status;
#[cfg(feature = "sqlite")]
mod status_file;
#[cfg(feature = "dynamodb")]
mod status_stack;
pub(crate) mod sweep;
#[cfg(feature = "dynamodb")]
pub(crate) mod system_set_retention;
#[cfg(feature = "deploy")]
mod upgrade;
pub(crate) mod usage_list;
pub(crate) mod usage_summary;
mod version;

use anyhow::Context as _;

#[cfg(feature = "deploy")]
use self::shared::stacks::{Named, Stacks};
use crate::again::Again;
#[cfg(feature = "loadtest")]
use crate::args::loadtest::LoadtestCommand;
use crate::args::migrate::MigrateArgs;
use crate::args::value::StoreUrl;
use crate::args::{Cli, Command, Globals};
use crate::context::{Access, Context};
use crate::error::Failure;
use crate::exit::Exit;
use crate::patience;
use crate::printer::Printer;
use crate::settings::{Environment, Settings, StorePlace};

/// Runs a command. Settings are looked at only by those that need them: a wrong variable does not
/// hide the version.
pub(crate) fn run(cli: Cli, environment: &Environment, printer: &Printer) -> Result<Exit, Failure> {
    let (mut place, again) = (None, Again::new(&cli.globals));
    let ended = dispatch(cli, environment, printer, &mut place);
    ended.map_err(|error| {
        let failure = Failure::of(&error, &again);
        if let ("full", Some(megabytes)) = (failure.kind, environment.file_bound()) {
            return failure.or_hint(|| {
                format!("ZAEL_FILE_MAX_MB lets the file grow to {megabytes} MB; raise it, or sweep")
            });
        }
        match place {
            #[cfg(feature = "dynamodb")]
            Some(StorePlace::Dynamo(place)) if failure.kind == "unavailable" => {
                let message = format!("{}: {}", crate::dynamodb::place(&place), failure.message);
                Failure { message, ..failure }.or_hint(|| crate::dynamodb::hint(&place))
            }
            _ => failure,
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
        #[cfg(feature = "dynamodb")]
        Command::Version if names_stack(&cli.globals) => {
            let mut settings = Settings::new(cli.globals, environment)?;
            crate::dynamodb::prefer_local(&mut settings, environment, printer);
            *place = Some(settings.store.clone());
            let context = Context { settings: &settings, printer, access: Access::Looks };
            block_on(version::of_stack(&context))
        }
        Command::Version => version::run(printer),
        #[cfg(feature = "deploy")]
        Command::LambdaExport(args) => lambda_export::run(printer, &args),
        #[cfg(feature = "deploy")]
        Command::CfnTemplate(args) => cfn_template::run(printer, &args),
        #[cfg(feature = "deploy")]
        Command::Deploy(args) => {
            let _patience = for_stacks(printer);
            let stacks = on_stacks(cli.globals, environment, printer, Named::Optional)?;
            block_on(deploy::run(&stacks, &args))
        }
        #[cfg(feature = "deploy")]
        Command::Delete(args) => {
            let _patience = for_stacks(printer);
            let stacks = on_stacks(cli.globals, environment, printer, Named::Required)?;
            block_on(delete::run(&stacks, &args))
        }
        #[cfg(feature = "deploy")]
        Command::List => {
            let _patience = for_stacks(printer);
            let stacks = on_stacks(cli.globals, environment, printer, Named::Optional)?;
            block_on(list::run(&stacks))
        }
        #[cfg(feature = "deploy")]
        Command::Upgrade(args) => {
            let _patience = for_stacks(printer);
            let stacks = on_stacks(cli.globals, environment, printer, Named::Optional)?;
            block_on(upgrade::run(&stacks, &args))
        }
        Command::Completions(args) => completions::run(printer, args),
        #[cfg(feature = "man")]
        Command::Man(args) => man::run(printer, &args),
        Command::Reference => reference::run(printer),
        #[cfg(feature = "sqlite")]
        Command::Demo(args) => {
            let stack = cli.globals.stack.map(StoreUrl::stack);
            let place = demo::Place::new(cli.globals.store.or(stack), environment)?;
            block_on(demo::run(printer, &place, args))
        }
        #[cfg(feature = "dynamodb")]
        Command::Local(command) => {
            let _patience = (!command.follows())
                .then(|| patience::start(printer, "still waiting for the local engine".into()));
            let local = shared::local::Local::new(printer, &cli.globals, environment)?;
            block_on(command.run(&local))
        }
        #[cfg(all(feature = "deploy", feature = "loadtest"))]
        Command::Loadtest(LoadtestCommand::Workers(command)) => {
            let _patience = for_stacks(printer);
            on_stacks(cli.globals, environment, printer, command.named())
                .and_then(|stacks| block_on(command.run(&stacks)))
        }
        #[cfg(feature = "loadtest")]
        Command::Loadtest(LoadtestCommand::Here(command)) => {
            let settings = Settings::new(cli.globals, environment)?;
            on_store((settings, environment, printer), command.access(), place, |context| {
                block_on(command.run(context))
            })
        }
        Command::Migrate(args) => {
            let (globals, target) = apart(cli.globals, &args);
            #[cfg_attr(not(feature = "dynamodb"), expect(unused_mut, reason = "as in on_store"))]
            let mut target = Settings::new(target, environment)?;
            let source = Settings::new(globals, environment)?;
            #[cfg(feature = "dynamodb")]
            crate::dynamodb::prefer_local(&mut target, environment, printer);
            target.check_place("--to")?;
            let access = migrate::access_to_target(&args);
            let target = Context { settings: &target, printer, access };
            on_store((source, environment, printer), Access::Looks, place, |context| {
                block_on(migrate::run(context, &target, &args))
            })
        }
        Command::Store(command) => {
            let settings = Settings::new(cli.globals, environment)?;
            on_store((settings, environment, printer), command.access(), place, |context| {
                block_on(command.run(context))
            })
        }
    }
}

/// The flags of the source and of the target of a copy. Where the source is no stack, the flags
/// about stacks are the target's.
fn apart(mut source: Globals, args: &MigrateArgs) -> (Globals, Globals) {
    let mut target = Globals {
        store: Some(args.to.clone()),
        stack: None,
        region: None,
        endpoint_url: None,
        namespace: args.to_namespace.clone().or_else(|| source.namespace.clone()),
        ..source.clone()
    };
    let is_file = matches!(source.store, Some(StoreUrl::Sqlite(_) | StoreUrl::Memory));
    if is_file && matches!(args.to, StoreUrl::Dynamo(_)) {
        target.region = source.region.take();
        target.endpoint_url = source.endpoint_url.take();
    }
    (source, target)
}

/// Runs a command on the store that the settings name, and tells which that is.
#[cfg_attr(
    not(feature = "dynamodb"),
    expect(unused_variables, unused_mut, reason = "only there another place may be meant")
)]
fn on_store(
    (mut settings, environment, printer): (Settings, &Environment, &Printer),
    access: Access,
    place: &mut Option<StorePlace>,
    run: impl FnOnce(&Context<'_>) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    let _patience = patience::start(printer, format!("still waiting for {}", settings.store));
    #[cfg(feature = "dynamodb")]
    crate::dynamodb::prefer_local(&mut settings, environment, printer);
    *place = Some(settings.store.clone());
    settings.check_place("--store")?;
    let context = Context { settings: &settings, printer, access };
    // A file that is missing is an error before a question is asked about it.
    if context.access == Access::Changes {
        context.require_file()?;
    }
    run(&context)
}

/// Whether the command line itself names a stack. A variable does not count: the version is asked
/// for where nothing else works.
#[cfg(feature = "dynamodb")]
fn names_stack(globals: &crate::args::Globals) -> bool {
    use crate::args::value::StoreUrl;
    globals.stack.is_some() || matches!(globals.store, Some(StoreUrl::Dynamo(_)))
}

/// A word while nothing is heard of a stack. Once its command has told something, it says itself
/// what it waits for.
#[cfg(feature = "deploy")]
fn for_stacks(printer: &Printer) -> Option<patience::Speaker> {
    patience::start(printer, "still waiting for the stack: its table, or CloudFormation".into())
}

/// The stack that a command is about.
#[cfg(feature = "deploy")]
fn on_stacks<'a>(
    globals: crate::args::Globals,
    environment: &Environment,
    printer: &'a Printer,
    named: Named,
) -> anyhow::Result<Stacks<'a>> {
    Ok(Stacks::new(printer, globals, environment, named)?)
}

fn block_on(command: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime did not start")?;
    runtime.block_on(command)
}
