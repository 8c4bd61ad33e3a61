//! `loadtest`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

#[cfg(feature = "deploy")]
use super::deploy::{DeleteArgs, Processor, WaitArgs};
use super::value::{count, duration};
#[cfg(feature = "deploy")]
use crate::commands::loadtest::workers;
use crate::commands::loadtest::{compare, page::Page, run, tune};
#[cfg(feature = "deploy")]
use crate::commands::shared::stacks::{Named, Stacks};
use crate::context::{Access, Context};
use crate::exit::Exit;

/// What to do with load tests.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum LoadtestCommand {
    #[command(flatten)]
    Here(RunCommand),
    #[cfg(feature = "deploy")]
    #[command(flatten)]
    Workers(WorkersCommand),
}

/// Runs, and their reports.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// Run a scenario with many users, and tell rate, latencies, refusals and errors
    ///
    /// The scenario stores its limits at the level of its own resource, `loadtest` or
    /// `loadtest-llm`, and calls with entities of its own; they stay in the namespace.
    #[command(after_long_help = super::examples::LOADTEST_RUN)]
    Run(RunArgs),
    /// Find the most users that a store serves without becoming slow
    #[command(after_long_help = super::examples::LOADTEST_TUNE)]
    Tune(TuneArgs),
    /// Run a scenario and show it on a page of this machine while it runs
    #[command(after_long_help = super::examples::LOADTEST_UI)]
    Ui(UiArgs),
    /// Compare two reports that `--json-file` has written
    #[command(after_long_help = super::examples::LOADTEST_COMPARE)]
    Compare(CompareArgs),
}

/// The stack of workers.
#[cfg(feature = "deploy")]
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// Make the workers that load a stack from within AWS, or make them what their options say
    ///
    /// They are one Lambda function in a stack of its own, STACK-loadtest, which may do to the table
    /// of STACK what an application may. They cost nothing while no run calls them.
    #[command(after_long_help = super::examples::LOADTEST_DEPLOY)]
    Deploy(WorkersArgs),
    /// Give the workers this program, and leave everything else as it is
    #[command(after_long_help = super::examples::LOADTEST_PUSH)]
    Push(PushArgs),
    /// List the stacks of workers of a region
    #[command(after_long_help = super::examples::LOADTEST_LIST)]
    List,
    /// Delete the workers; the table that they loaded stays
    #[command(after_long_help = super::examples::LOADTEST_DELETE)]
    Delete(DeleteArgs),
}

impl RunCommand {
    pub(crate) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        match self {
            RunCommand::Run(args) => run::run(context, &args, None).await,
            RunCommand::Ui(args) => {
                // One of several processes is shown on the page of the one that started it.
                let page = match args.run.part {
                    Some(_) => None,
                    None => Some(Page::start(args.port)?),
                };
                run::run(context, &args.run, page).await
            }
            RunCommand::Tune(args) => tune::run(context, &args).await,
            RunCommand::Compare(args) => compare::run(context, &args),
        }
    }

    pub(crate) fn access(&self) -> Access {
        match self {
            RunCommand::Compare(_) => Access::Looks,
            _ => Access::SetsUp,
        }
    }
}

#[cfg(feature = "deploy")]
impl WorkersCommand {
    pub(crate) async fn run(self, stacks: &Stacks<'_>) -> anyhow::Result<Exit> {
        match self {
            WorkersCommand::Deploy(args) => workers::deploy(stacks, &args).await,
            WorkersCommand::Push(args) => workers::push(stacks, &args).await,
            WorkersCommand::List => workers::list(stacks).await,
            WorkersCommand::Delete(args) => workers::delete(stacks, &args).await,
        }
    }

    /// Whether the stack must be named.
    pub(crate) fn named(&self) -> Named {
        match self {
            WorkersCommand::Delete(_) => Named::Required,
            _ => Named::Optional,
        }
    }
}

/// Which scenario.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScenarioArgs {
    /// User classes, by the names of the Python package: SimpleUser, SimpleCascadeUser, MaxRpsUser,
    /// MaxRpsCascadeUser
    #[arg(value_name = "CLASS")]
    pub(crate) classes: Vec<String>,

    /// simple, simple-cascade, max-rps, max-rps-cascade, llm or a file FILE.toml [default: simple]
    #[arg(long, short, value_name = "NAME", conflicts_with_all = ["file", "classes"])]
    pub(crate) scenario: Option<String>,

    /// A file: *.toml, or a path whose stem is simple or max_rps, which stands for the scenarios
    /// that are built in
    #[arg(
        long = "locustfile",
        visible_alias = "file",
        short = 'f',
        value_name = "PATH",
        id = "file"
    )]
    pub(crate) file: Option<PathBuf>,

    /// The folder that the file is in
    #[arg(long = "locustfile-dir", visible_alias = "dir", short = 'C', value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Users of a process or of a run at most.
const USERS_MAX: u32 = zae_limiter_loadtest::engine::USERS_MAX;
/// Lambda workers at most; an account has a thousand at a time unless it asks for more.
#[cfg(feature = "deploy")]
const WORKERS_MAX: u32 = 1_000;
/// Processes at most.
const PROCESSES_MAX: u32 = 256;

/// A run.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) what: ScenarioArgs,

    /// How many users call at the same time, in all processes
    #[arg(long, short, value_name = "COUNT", default_value = "20", value_parser = count::<USERS_MAX>)]
    pub(crate) users: u32,

    /// How long: 30s, 2m, or a bare number of seconds
    #[arg(long, short, value_name = "TIME", default_value = "60", value_parser = seconds)]
    pub(crate) duration: Duration,

    /// Users that start per second; `all` starts all at once
    #[arg(long, short = 'r', value_name = "RATE", default_value = "10", value_parser = spawn_rate)]
    pub(crate) spawn_rate: SpawnRate,

    /// How many processes the users are spread over
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = count::<PROCESSES_MAX>)]
    pub(crate) processes: u32,

    /// Spread the users over so many Lambda workers, which `loadtest deploy` has made
    #[cfg_attr(
        feature = "deploy",
        arg(long, value_name = "COUNT", conflicts_with = "processes", value_parser = count::<WORKERS_MAX>)
    )]
    #[cfg_attr(not(feature = "deploy"), arg(skip))]
    pub(crate) workers: Option<u32>,

    /// Buy tokens ahead of need and serve calls from memory; not for Lambda workers
    #[cfg_attr(feature = "deploy", arg(long, conflicts_with = "workers"))]
    #[cfg_attr(not(feature = "deploy"), arg(long))]
    pub(crate) local_blocks: bool,

    /// How many of a hundred calls may be errors; with more the exit code is 1
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent)]
    pub(crate) max_errors: f64,

    /// Write the report, with its histogram, to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) json_file: Option<PathBuf>,

    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// This process is one of several: its number and how many there are
    #[arg(long, value_name = "K/N", hide = true, value_parser = part)]
    pub(crate) part: Option<(u32, u32)>,
}

/// A run with a page.
#[derive(Args, Clone, Debug)]
pub(crate) struct UiArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// The port of the page, on 127.0.0.1; 0 takes any that is free [default: 8089, or any if that
    /// is in use]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
}

/// A search.
#[derive(Args, Clone, Debug)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) what: ScenarioArgs,

    /// The most users to try
    #[arg(long, value_name = "COUNT", default_value = "40", value_parser = count::<USERS_MAX>)]
    pub(crate) max_users: u32,

    /// How much of the speed of one user must be left: the baseline's p95 divided by the step's
    #[arg(long, value_name = "PART", default_value = "0.8", value_parser = threshold)]
    pub(crate) threshold: f64,

    /// How long a step takes
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = seconds)]
    pub(crate) step_duration: Duration,

    /// How long the baseline with one user takes
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = seconds)]
    pub(crate) baseline_duration: Duration,
}

/// What the workers are.
#[cfg(feature = "deploy")]
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkersArgs {
    #[command(flatten)]
    pub(crate) code: PushArgs,

    /// A worker is stopped after so many minutes, 1 to 15; a run must be shorter
    #[arg(long, value_name = "MINUTES", default_value_t = 5)]
    pub(crate) lambda_timeout: u32,

    /// Memory of a worker in MB, 128 to 10240; 1769 comes with one whole processor
    #[arg(long, value_name = "MB", default_value_t = 1_769)]
    pub(crate) lambda_memory: u32,

    /// The processor of the workers
    #[arg(long, value_name = "NAME", default_value = "x86_64")]
    pub(crate) architecture: Processor,

    /// A role of yours for the workers
    #[arg(long, value_name = "ARN")]
    pub(crate) role_arn: Option<String>,

    /// The permission boundary of the role that is made
    #[arg(long, value_name = "ARN", conflicts_with = "role_arn")]
    pub(crate) permission_boundary: Option<String>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

/// The program that the workers are.
#[cfg(feature = "deploy")]
#[derive(Args, Clone, Debug)]
pub(crate) struct PushArgs {
    /// Accepted for the Python package's command lines: a run sends its scenario along
    #[arg(long = "locustfile-dir", visible_alias = "dir", short = 'C', value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// The program that becomes the workers: a zae-limiter for Amazon Linux 2023 [default: this
    /// one]
    #[arg(long, value_name = "PATH")]
    pub(crate) lambda_binary: Option<PathBuf>,
}

/// Two reports.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// The report before
    pub(crate) before: PathBuf,
    /// The report after
    pub(crate) after: PathBuf,
}

/// Users per second; `None` is all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SpawnRate(pub(crate) Option<f64>);

/// The longest run.
const DURATION_MAX: Duration = Duration::from_secs(24 * 3_600);

/// A duration, or a bare number of seconds; at least one.
fn seconds(text: &str) -> Result<Duration, String> {
    let is_bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let time = if is_bare { duration(&format!("{text}s"))? } else { duration(text)? };
    if time < Duration::from_secs(1) || time > DURATION_MAX {
        return Err("write a time from 1s to 24h".to_owned());
    }
    Ok(time)
}

fn spawn_rate(text: &str) -> Result<SpawnRate, String> {
    if text == "all" {
        return Ok(SpawnRate(None));
    }
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.01);
    rate.map(|rate| SpawnRate(Some(rate)))
        .ok_or_else(|| "write users per second, 0.01 or more, or `all`".to_owned())
}

fn threshold(text: &str) -> Result<f64, String> {
    let part = text.parse::<f64>().ok().filter(|part| *part > 0.0 && *part <= 1.0);
    part.ok_or_else(|| "write a number above 0, up to 1, as in 0.8".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "write a number from 0 to 100, as in 0.5".to_owned())
}

fn part(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parsed.filter(|(k, n): &(u32, u32)| k < n).ok_or_else(|| "write K/N".to_owned())
}
