//! The command line as typed: clap types only, one file per noun, and beside the verbs of each noun
//! the commands that run them and what they do to a file. Nothing here reads the environment or
//! does I/O.

pub(crate) mod acquire;
#[cfg(feature = "dynamodb")]
pub(crate) mod aggregate;
mod coming;
#[cfg(feature = "deploy")]
pub(crate) mod deploy;
pub(crate) mod entity;
mod examples;
pub(crate) mod file;
pub(crate) mod history;
#[cfg(feature = "deploy")]
pub(crate) mod lambda_export;
pub(crate) mod level;
pub(crate) mod limits;
#[cfg(feature = "loadtest")]
pub(crate) mod loadtest;
#[cfg(feature = "dynamodb")]
pub(crate) mod local;
pub(crate) mod migrate;
pub(crate) mod namespace;
pub(crate) mod resource;
pub(crate) mod shared;
pub(crate) mod system;
pub(crate) mod value;

use std::ffi::OsString;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use zae_limiter::{NamespaceName, Principal};

use self::acquire::{AcquireArgs, AvailableArgs, ExplainArgs};
#[cfg(feature = "dynamodb")]
use self::aggregate::AggregateArgs;
#[cfg(feature = "deploy")]
use self::deploy::{CfnTemplateArgs, DeleteArgs, DeployArgs, UpgradeArgs};
use self::entity::EntityCommand;
use self::file::CompletionsArgs;
#[cfg(feature = "man")]
use self::file::ManArgs;
#[cfg(feature = "sqlite")]
use self::file::{BackupArgs, DemoArgs, RestoreArgs};
use self::history::{AuditCommand, UsageCommand};
#[cfg(feature = "deploy")]
use self::lambda_export::LambdaExportArgs;
use self::limits::LimitsCommand;
#[cfg(feature = "loadtest")]
use self::loadtest::LoadtestCommand;
#[cfg(feature = "dynamodb")]
use self::local::LocalCommand;
use self::migrate::MigrateArgs;
use self::namespace::NamespaceCommand;
use self::resource::ResourceCommand;
use self::system::SystemCommand;
use self::value::StoreUrl;
use crate::commands::{self, available, explain, status, sweep};
#[cfg(feature = "sqlite")]
use crate::commands::{backup, restore};
use crate::context::{Access, Context};
use crate::error::Failure;
use crate::exit::Exit;

const GLOBAL: &str = "Global options";

/// A rate limiter for calls whose cost is known only afterwards
#[derive(Clone, Debug, Parser)]
#[command(name = "zae-limiter", version, after_help = AFTER)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Below the list of commands.
const AFTER: &str = "\
Exit codes: 0 done or granted, 1 error, 2 wrong usage, 3 refused by a limit, 4 disabled by an administrator, 5 busy: nothing was \
decided, try again, 6 differs (`limits diff`).

Variables: ZAEL_STORE, ZAEL_STACK and ZAEL_NAMESPACE stand for --store, --name and --namespace; ZAEL_FILE_MAX_MB is how many \
megabytes (of 1024 KiB, 1 to 65535) the file of an SQLite store may grow to, without it as many as there are; ZAEL_SHARDS_MAX \
is how many shards this process gives a hot bucket of a stack at most, 1 while processes of a version before shards run; \
ZAEL_LOCAL_ENGINE names the program that `local up` starts.

-h is short, --help also shows the global options and examples.";

/// Accepted before and after the command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Globals {
    /// Where limits live: sqlite:PATH, dynamodb:STACK or memory: [env: ZAEL_STORE] [default: a file
    /// in your data directory]
    #[arg(long, value_name = "URL", global = true, help_heading = GLOBAL, hide_short_help = true)]
    pub(crate) store: Option<StoreUrl>,

    /// Short for --store dynamodb:STACK [env: ZAEL_STACK]
    #[arg(id = "stack", long = "name", short = 'n', value_name = "STACK", global = true, help_heading = GLOBAL, hide_short_help = true, conflicts_with = "store")]
    pub(crate) stack: Option<String>,

    /// The AWS region of the stack [env: AWS_REGION] [default: us-east-1]
    #[arg(long, value_name = "REGION", global = true, help_heading = GLOBAL, hide_short_help = true)]
    pub(crate) region: Option<String>,

    /// Custom DynamoDB endpoint, e.g. http://127.0.0.1:8000 [env: AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL", global = true, help_heading = GLOBAL, hide_short_help = true)]
    pub(crate) endpoint_url: Option<String>,

    /// The tenant to work in [env: ZAEL_NAMESPACE] [default: default]
    #[arg(long, short = 'N', value_name = "NAME", global = true, help_heading = GLOBAL, hide_short_help = true)]
    pub(crate) namespace: Option<NamespaceName>,

    /// How answers are printed [default: table]
    #[arg(long, value_name = "FORM", global = true, help_heading = GLOBAL, hide_short_help = true)]
    pub(crate) output: Option<Output>,

    /// Print answers and errors only: no notes, warnings or hints
    #[arg(long, short, global = true, help_heading = GLOBAL, hide_short_help = true)]
    pub(crate) quiet: bool,

    /// When to use colours [env: NO_COLOR] [default: auto]
    #[arg(long, value_name = "WHEN", global = true, help_heading = GLOBAL, hide_short_help = true)]
    pub(crate) color: Option<Color>,

    /// Who changes something, for the audit log [default: the user of the operating system]
    #[arg(long, value_name = "NAME", global = true, help_heading = GLOBAL, hide_short_help = true)]
    pub(crate) principal: Option<Principal>,
}

/// How answers are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    // For people. No doc comments here and below: clap would print each value on a line of its own.
    #[default]
    Table,
    // One object on one line.
    Json,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    // On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    // Even into a pipe.
    Always,
    // Not at all.
    Never,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Store(StoreCommand),
    /// Copy a namespace to another store: limits, flags, entities, buckets and usage
    ///
    /// The source is --store or --name, as everywhere; both may be any store. Only what the target
    /// does not have is made: limits, buckets and hours of usage that are there stay as they are. So
    /// a copy that was cut off is finished by the same command, and one that is repeated copies
    /// nothing. Balances travel with the time they were refilled at, debts too.
    ///
    /// Calls that the source serves after its buckets were read are not carried. Stop the callers,
    /// copy, and start them on the target; or copy while they run, and accept that the target knows
    /// nothing of the last seconds.
    #[command(after_long_help = examples::MIGRATE)]
    Migrate(MigrateArgs),
    /// Measure the limiter on this store
    #[cfg(feature = "loadtest")]
    #[command(subcommand)]
    Loadtest(LoadtestCommand),
    /// Watch a simulated LLM gateway at work, on a fresh file
    #[cfg(feature = "sqlite")]
    #[command(after_long_help = examples::DEMO)]
    Demo(DemoArgs),
    /// A DynamoDB-compatible engine on this machine, for development and tests
    #[cfg(feature = "dynamodb")]
    #[command(subcommand)]
    Local(LocalCommand),
    /// Make a stack on AWS, or make it what its options say
    ///
    /// A change goes through a change set: what will change is shown first, and a change that would
    /// lose data is refused. Options that are not given are at their defaults, also on a stack that
    /// is there. Run again after an interruption, it goes on where it was.
    #[cfg(feature = "deploy")]
    #[command(after_long_help = examples::DEPLOY)]
    Deploy(Box<DeployArgs>),
    /// Delete a stack with its table and everything in it
    #[cfg(feature = "deploy")]
    #[command(after_long_help = examples::DELETE)]
    Delete(DeleteArgs),
    /// List the stacks of a region
    #[cfg(feature = "deploy")]
    #[command(after_long_help = examples::LIST)]
    List,
    /// Bring template, function and table of a stack to this release
    #[cfg(feature = "deploy")]
    #[command(after_long_help = examples::UPGRADE)]
    Upgrade(UpgradeArgs),
    /// Print the CloudFormation template of a stack
    #[cfg(feature = "deploy")]
    #[command(after_long_help = examples::CFN_TEMPLATE)]
    CfnTemplate(CfnTemplateArgs),
    /// Print a completion script for a shell
    #[command(after_long_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Write the package that a Lambda function runs: this program, as a zip
    ///
    /// The package is made of this very program, or of the one that --lambda-binary names, without
    /// its symbols. It runs on the runtime provided.al2023; what does not run there is refused.
    #[cfg(feature = "deploy")]
    #[command(after_long_help = examples::LAMBDA_EXPORT)]
    LambdaExport(LambdaExportArgs),
    /// Print the version; with --name also what the stack has and asks of its clients
    #[command(after_long_help = examples::VERSION)]
    Version,
    /// Print the manual page of a command; with --dir write the pages of all
    #[cfg(feature = "man")]
    #[command(after_long_help = examples::MAN)]
    Man(ManArgs),
    /// Print docs/cli.md
    #[command(hide = true)]
    Reference,
}

/// What to do with a store.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Take from every limit of the chain, or from none
    #[command(after_long_help = examples::ACQUIRE)]
    Acquire(AcquireArgs),
    /// Look at what is left, and whether a request would pass; takes nothing
    #[command(after_long_help = examples::AVAILABLE)]
    Available(AvailableArgs),
    /// Show which limits apply to a call, and which level supplied them
    #[command(after_long_help = examples::EXPLAIN)]
    Explain(ExplainArgs),
    /// Entities: users, API keys, projects
    #[command(subcommand)]
    Entity(EntityCommand),
    /// Limits of a resource
    #[command(subcommand)]
    Resource(ResourceCommand),
    /// Limits of the whole namespace
    #[command(subcommand)]
    System(SystemCommand),
    /// Limits as files: limits, flags and entities of a namespace under version control
    #[command(subcommand)]
    Limits(LimitsCommand),
    /// Namespaces: isolated tenants in one store; --namespace has no effect here
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// The audit log: who changed what
    #[command(subcommand)]
    Audit(AuditCommand),
    /// The usage history: what was used when
    #[command(subcommand)]
    Usage(UsageCommand),
    /// Count the usage of a DynamoDB stack from its stream, until it is stopped
    ///
    /// Two at once count once. `local up` runs one for each of its stacks; on AWS the same runs as
    /// a Lambda.
    #[cfg(feature = "dynamodb")]
    #[command(after_long_help = examples::AGGREGATE)]
    Aggregate(AggregateArgs),
    /// Check the file (sizes, schema, integrity, buckets, debts, last sweep) or the stack (state,
    /// schema, indexes, stream, worker, hottest buckets), and list what is disabled; exit code 1 if
    /// it is damaged
    #[command(after_long_help = examples::STATUS)]
    Status,
    /// Check whether this program can work on a DynamoDB stack; exit code 1 if not
    #[cfg(feature = "dynamodb")]
    #[command(after_long_help = examples::CHECK)]
    Check,
    /// Copy the file while it is in use; `restore` brings the copy back
    #[cfg(feature = "sqlite")]
    #[command(after_long_help = examples::BACKUP)]
    Backup(BackupArgs),
    /// Put a backup in the place of the file, which nobody may have open; the old file is kept
    ///
    /// The backup is checked first. Never copy a backup over the file by hand: the log beside it
    /// would be replayed onto the copy and destroy it.
    #[cfg(feature = "sqlite")]
    #[command(after_long_help = examples::RESTORE)]
    Restore(RestoreArgs),
    /// Delete idle full buckets and expired history (also happens automatically)
    #[command(after_long_help = examples::SWEEP)]
    Sweep,
}

impl StoreCommand {
    pub(crate) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        match self {
            StoreCommand::Acquire(args) => commands::acquire::run(context, args).await,
            StoreCommand::Available(args) => available::run(context, args).await,
            StoreCommand::Explain(args) => explain::run(context, args).await,
            StoreCommand::Entity(command) => command.run(context).await,
            StoreCommand::Resource(command) => command.run(context).await,
            StoreCommand::System(command) => command.run(context).await,
            StoreCommand::Limits(command) => command.run(context).await,
            StoreCommand::Namespace(command) => command.run(context).await,
            StoreCommand::Audit(command) => command.run(context).await,
            StoreCommand::Usage(command) => command.run(context).await,
            #[cfg(feature = "dynamodb")]
            StoreCommand::Aggregate(args) => commands::aggregate::run(context, args).await,
            StoreCommand::Status => status::run(context).await,
            #[cfg(feature = "dynamodb")]
            StoreCommand::Check => commands::check::run(context).await,
            #[cfg(feature = "sqlite")]
            StoreCommand::Backup(args) => backup::run(context, &args).await,
            #[cfg(feature = "sqlite")]
            StoreCommand::Restore(args) => restore::run(context, &args).await,
            StoreCommand::Sweep => sweep::run(context).await,
        }
    }

    /// What the command does to a file.
    pub(crate) fn access(&self) -> Access {
        match self {
            StoreCommand::Available(_)
            | StoreCommand::Explain(_)
            | StoreCommand::Audit(_)
            | StoreCommand::Usage(_)
            | StoreCommand::Status => Access::Looks,
            StoreCommand::Acquire(args) => Access::with_entity(args.must_exist),
            StoreCommand::Entity(command) => command.access(),
            StoreCommand::Resource(command) => command.access(),
            StoreCommand::System(command) => command.access(),
            StoreCommand::Limits(command) => command.access(),
            StoreCommand::Namespace(command) => command.access(),
            StoreCommand::Sweep => Access::Changes,
            // Refuses every file, there or not.
            #[cfg(feature = "dynamodb")]
            StoreCommand::Check => Access::Looks,
            #[cfg(feature = "dynamodb")]
            StoreCommand::Aggregate(_) => Access::SetsUp,
            #[cfg(feature = "sqlite")]
            StoreCommand::Backup(_) => Access::Looks,
            #[cfg(feature = "sqlite")]
            StoreCommand::Restore(_) => Access::SetsUp,
        }
    }
}

/// What to say about a command line that calls a command which is not built yet.
pub(crate) fn coming(arguments: &[OsString]) -> Option<Failure> {
    coming::refusal(&definition(), arguments)
}

/// The whole definition.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

/// Reads a command line; help is wrapped to `width` columns.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    width: usize,
) -> Result<Cli, clap::Error> {
    let mut command = definition().term_width(width);
    let arguments = files_named(&command, arguments.into_iter().collect());
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Commands whose `--output`, as the Python package has it, names a file.
const TO_A_FILE: [&str; 2] = ["cfn-template", "lambda-export"];

/// The same arguments, in which the `--output` of a file is `--file`: elsewhere here `--output` is
/// the form of answers. A form is a form all the same.
fn files_named(definition: &clap::Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let words = coming::words(definition, &arguments);
    if !words.first().is_some_and(|word| TO_A_FILE.contains(word)) {
        return arguments;
    }
    let is_form = |word: &str| Output::from_str(word, false).is_ok();
    for at in 1..arguments.len() {
        let next = arguments.get(at + 1).and_then(|next| next.to_str()).map(str::to_owned);
        let Some(word) = arguments[at].to_str() else { continue };
        let renamed = match word.strip_prefix("--output") {
            Some("") if next.is_some_and(|next| !is_form(&next)) => "--file".to_owned(),
            Some(rest) if rest.strip_prefix('=').is_some_and(|file| !is_form(file)) => {
                format!("--file{rest}")
            }
            _ => continue,
        };
        arguments[at] = renamed.into();
    }
    arguments
}

/// The form of answers that a command line asks for which is wrong in some other place.
pub(crate) fn output_in(arguments: impl IntoIterator<Item = OsString>) -> Option<Output> {
    let arguments: Vec<String> =
        arguments.into_iter().filter_map(|argument| argument.into_string().ok()).collect();
    let spelled = |word: &str| Output::from_str(word, false).ok();
    let joined =
        arguments.iter().find_map(|argument| argument.strip_prefix("--output=").and_then(spelled));
    joined.or_else(|| {
        arguments.windows(2).find(|pair| pair[0] == "--output").and_then(|pair| spelled(&pair[1]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, String> {
        parse(line.split(' ').map(OsString::from), 100).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_are_accepted_before_and_after_the_command() {
        for line in [
            "zae-limiter -N team -q --output json --store memory: --color never --principal ops system get-defaults",
            "zae-limiter system get-defaults -N team -q --output json --store memory: --color never --principal ops",
            "zae-limiter -N team --output json system --quiet --store memory: get-defaults --color never --principal ops",
        ] {
            let globals = parsed(line).unwrap().globals;
            assert_eq!(globals.namespace.unwrap(), "team");
            assert_eq!(globals.principal.unwrap(), "ops");
            assert_eq!((globals.output, globals.color), (Some(Output::Json), Some(Color::Never)));
            assert_eq!((globals.store, globals.quiet), (Some(StoreUrl::Memory), true));
        }
    }

    #[test]
    fn what_is_not_given_stays_open_for_the_environment() {
        let globals = parsed("zae-limiter version").unwrap().globals;
        assert!(
            globals.store.is_none()
                && globals.namespace.is_none()
                && globals.output.is_none()
                && globals.color.is_none()
        );
    }

    #[cfg(feature = "deploy")]
    #[test]
    fn an_output_that_is_no_form_is_a_file_where_one_is_written() {
        for (line, file, form) in [
            ("z lambda-export", "lambda.zip", None),
            ("z lambda-export --output a.zip", "a.zip", None),
            ("z lambda-export --output=a.zip --output json", "a.zip", Some(Output::Json)),
            ("z --output json lambda-export -o a.zip", "a.zip", Some(Output::Json)),
        ] {
            let cli = parsed(line).unwrap();
            let Command::LambdaExport(args) = cli.command else { panic!("{line}") };
            assert_eq!((args.file.to_str(), cli.globals.output), (Some(file), form), "{line}");
        }
        assert!(parsed("z version --output a.zip").unwrap_err().contains("a.zip"));
    }

    #[test]
    fn names_are_checked_while_parsing() {
        let error = parsed("zae-limiter explain a#b gpt-4").unwrap_err();
        assert!(error.contains("'<ENTITY>'") && error.contains("use letters, digits"), "{error}");
    }
}
