//! `loadtest deploy|push|list|delete`: the stack of workers.

use std::path::Path;

use serde::Serialize;
use zae_limiter_deploy::package::{Bootstrap, Package, PackageError};
use zae_limiter_deploy::stack::{Cloud, Deployment, Kind, Outcome, Removal, StackState};
use zae_limiter_deploy::{Architecture, DeployError, LoadTestOptions, loadtest, tags};

use crate::args::deploy::{DeleteArgs, Processor};
use crate::args::loadtest::{PushArgs, WorkersArgs};
use crate::commands::shared::stacks::{Stacks, Teller};
use crate::confirm::{Question, confirm_with};
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text, Tone};

#[derive(Serialize)]
struct Form {
    /// The stack of the workers.
    stack: String,
    /// The table that they load.
    table: String,
    region: String,
    /// `created`, `updated`, `unchanged` or `begun`.
    outcome: &'static str,
    /// The hash of the workers' package.
    code_sha256: String,
}

pub(crate) async fn deploy(stacks: &Stacks<'_>, args: &WorkersArgs) -> anyhow::Result<Exit> {
    let mut options = LoadTestOptions::new(&stacks.stack);
    options.architecture = match args.architecture {
        Processor::X86_64 => Architecture::X86_64,
        Processor::Arm64 => Architecture::Arm64,
    };
    options.memory_mb = args.lambda_memory;
    options.timeout_min = args.lambda_timeout;
    options.role_arn.clone_from(&args.role_arn);
    options.permission_boundary.clone_from(&args.permission_boundary);
    let name = loadtest::stack_of(&stacks.stack);
    options.check(&name).map_err(|error| stacks.failure(error.into()))?;
    let builder = stacks.builder();
    // Workers without a table would be found to be useless by the first run only.
    let status = builder.store().status().await;
    status.map_err(|error| stacks.failure(error.into()))?;
    let cloud = connected(stacks).await?;
    // Asked before the program is packed: an endpoint without CloudFormation has no use for it.
    cloud.find(&name).await.map_err(|error| stacks.failure(error))?;
    note_folder(stacks, &args.code);
    let package = package(args.code.lambda_binary.as_deref(), options.architecture);
    let package = package.map_err(|error| stacks.failure(error.into()))?;
    let deployment = Deployment::of_load_test(&name, &options, &package)
        .map_err(|error| stacks.failure(error))?
        .waits(args.wait.waits());
    told(stacks, &cloud, &deployment, (&name, &package)).await
}

pub(crate) async fn push(stacks: &Stacks<'_>, args: &PushArgs) -> anyhow::Result<Exit> {
    let cloud = connected(stacks).await?;
    let name = loadtest::stack_of(&stacks.stack);
    let state = found(stacks, &cloud, &name).await?;
    note_folder(stacks, args);
    let architecture = match state.parameters.get("Architecture").map(String::as_str) {
        Some("arm64") => Architecture::Arm64,
        _ => Architecture::X86_64,
    };
    let package = package(args.lambda_binary.as_deref(), architecture);
    let package = package.map_err(|error| stacks.failure(error.into()))?;
    told(stacks, &cloud, &Deployment::push(&state, &package), (&name, &package)).await
}

async fn connected(stacks: &Stacks<'_>) -> Result<Cloud, Failure> {
    stacks.cloud().await
}

fn note_folder(stacks: &Stacks<'_>, args: &PushArgs) {
    if let Some(dir) = &args.dir {
        stacks.printer.note(&format!(
            "{} is not read: workers have the scenarios built in, and a run sends a *.toml along",
            dir.display()
        ));
    }
}

fn package(binary: Option<&Path>, architecture: Architecture) -> Result<Package, PackageError> {
    match binary {
        Some(path) => Bootstrap::read(path),
        None => Bootstrap::own(),
    }?
    .pack(architecture)
}

/// The stack of the workers, which must be there.
async fn found(stacks: &Stacks<'_>, cloud: &Cloud, name: &str) -> Result<StackState, Failure> {
    match cloud.describe(name).await {
        Ok(state) => Ok(state),
        Err(error @ DeployError::StackNotFound { .. }) => {
            let again = stacks.command(&["loadtest", "deploy"]);
            Err(stacks.failure(error).hint(format!("{again} makes it")))
        }
        Err(error) => Err(stacks.failure(error)),
    }
}

async fn told(
    stacks: &Stacks<'_>,
    cloud: &Cloud,
    deployment: &Deployment<'_>,
    (name, package): (&str, &Package),
) -> anyhow::Result<Exit> {
    let mut teller = Teller::new(stacks.printer);
    let deployed = deployment.run(cloud, &mut |progress| teller.tell(&progress)).await;
    let (outcome, _) = deployed.map_err(|error| stacks.failure(error))?;
    let form = Form {
        stack: name.to_owned(),
        table: stacks.stack.clone(),
        region: stacks.region.clone(),
        outcome: outcome.as_str(),
        code_sha256: package.sha256.clone(),
    };
    let text = format!("workers {} in {}: {}", form.stack, form.region, form.outcome);
    stacks.printer.answer(&form, &Text::of(text))?;
    if outcome == Outcome::Begun {
        let again = stacks.command(&["loadtest", "deploy"]);
        stacks.printer.note(&format!("CloudFormation is at work; {again} waits and finishes"));
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
struct ListForm {
    region: String,
    stacks: Vec<StackForm>,
}

#[derive(Serialize)]
struct StackForm {
    name: String,
    /// The table that the workers load.
    table: String,
    status: String,
    /// The version of the workers.
    version: Option<String>,
}

pub(crate) async fn list(stacks: &Stacks<'_>) -> anyhow::Result<Exit> {
    let cloud = connected(stacks).await?;
    let found = cloud.list(Kind::LoadTest).await.map_err(|error| stacks.failure(error))?;
    let form =
        ListForm { region: stacks.region.clone(), stacks: found.iter().map(stack_form).collect() };
    let mut table = Table::new(["NAME", "TABLE", "STATUS", "VERSION"]);
    for (stack, state) in form.stacks.iter().zip(&found) {
        let tone = if state.is_whole() { Tone::Good } else { Tone::Warning };
        table.row([
            Cell::plain(&stack.name),
            Cell::plain(&stack.table),
            Cell::toned(&stack.status, tone),
            Cell::plain(stack.version.as_deref().unwrap_or("-")),
        ]);
    }
    if form.stacks.is_empty() {
        stacks.printer.note(&format!("there are no workers in {}", form.region));
    }
    let text = if form.stacks.is_empty() { Text::new() } else { Text::new().table(table) };
    stacks.printer.answer(&form, &text)
}

fn stack_form(state: &StackState) -> StackForm {
    let table = state.parameters.get("TableName").map(String::as_str);
    StackForm {
        name: state.name.clone(),
        table: table.unwrap_or_else(|| loadtest::table_of(&state.name)).to_owned(),
        status: state.status.clone(),
        version: state.tags.get(tags::LAMBDA_VERSION).cloned(),
    }
}

#[derive(Serialize)]
struct DeleteForm {
    stack: String,
    region: String,
    /// False with `--no-wait`: CloudFormation has begun.
    deleted: bool,
}

pub(crate) async fn delete(stacks: &Stacks<'_>, args: &DeleteArgs) -> anyhow::Result<Exit> {
    let cloud = connected(stacks).await?;
    let name = loadtest::stack_of(&stacks.stack);
    // A stack that is not there is an error before a question is asked about it.
    found(stacks, &cloud, &name).await?;
    let what = format!("the workers {name}; the table {} stays", stacks.stack);
    let question = Question { deed: "deletes", what: &what, name: &name };
    confirm_with(stacks.printer, stacks.can_ask, &question, args.confirm)?;
    let waits = args.wait.waits();
    let removal = Removal { stack: &name, kind: Kind::LoadTest, waits };
    let mut teller = Teller::new(stacks.printer);
    let removed = removal.run(&cloud, &mut |progress| teller.tell(&progress)).await;
    removed.map_err(|error| stacks.failure(error))?;
    let said = if waits { "deleted" } else { "is being deleted" };
    let text = Text::of(format!("workers {name}: {said}"));
    let form = DeleteForm { stack: name, region: stacks.region.clone(), deleted: waits };
    stacks.printer.answer(&form, &text)
}
