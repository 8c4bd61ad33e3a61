//! `upgrade`: the template, the function and the table of a stack as this release has them.

use std::sync::Arc;

use serde::Serialize;
use zae_limiter::StoreErrorKind;
use zae_limiter::dynamodb::{Migration, Operator, Progress, Versions};
use zae_limiter_deploy::package::Bootstrap;
use zae_limiter_deploy::stack::{Change, Cloud, Deployment, Maker, Outcome, StackState};
use zae_limiter_deploy::{Architecture, DeployError};

use super::shared::stacks::{Stacks, Teller};
use crate::args::deploy::UpgradeArgs;
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text, Tone};

#[derive(Serialize)]
struct Form {
    stack: String,
    region: String,
    /// In the order in which they are done.
    steps: Vec<Step>,
    dry_run: bool,
}

#[derive(Serialize)]
struct Step {
    step: &'static str,
    /// `done`, `incomplete`, `nothing to do`, `left out` or `planned`.
    state: &'static str,
    detail: String,
}

impl Step {
    fn new(step: &'static str, state: &'static str, detail: impl Into<String>) -> Step {
        Step { step, state, detail: detail.into() }
    }
}

pub(crate) async fn run(stacks: &Stacks<'_>, args: &UpgradeArgs) -> anyhow::Result<Exit> {
    let told = |error: DeployError| stacks.failure(error);
    // A program that is named must be one, whether a function needs it or not.
    if let Some(path) = &args.lambda_binary {
        Bootstrap::read(path).map_err(|error| told(error.into()))?;
    }
    let builder = stacks.builder();
    let table = builder.store().table().await.map_err(|error| told(error.into()))?;
    let operator = Operator::on_table(Arc::new(table), builder.store().options().clone());
    let versions = operator.versions().await.map_err(|error| told(error.into()))?;
    let Some(versions) = versions else {
        return Err(without_record(stacks).await.into());
    };
    if let Some(problem) = versions.incompatibility() {
        return Err(Failure::of_kind(StoreErrorKind::Incompatible, problem).into());
    }
    if let (true, Some(function)) = (versions.is_served_by_newer(), &versions.function)
        && !args.force
    {
        let (stack, function) = (stacks.stack.clone(), function.clone());
        return Err(told(DeployError::Newer { stack, function }).into());
    }
    let mut steps = vec![Step::new("versions", "done", said(&versions))];
    let cloud = stacks.cloud().await?;
    let mut has_function = false;
    let mut teller = Teller::new(stacks.printer);
    // What somebody else is doing to the stack is waited for: its parameters stay as they make them.
    match cloud.rested(&stacks.stack, true, &mut |progress| teller.tell(&progress)).await {
        // Its table is brought up to date all the same: rows of old clients are in tables that the
        // Python package made.
        Ok(Some(state)) if is_left_out(&state, args) => {
            let why = state.maker().why_not().unwrap_or_default();
            steps.push(Step::new("stack", "left out", why));
        }
        Ok(Some(state)) => {
            let (step, packed) = infrastructure(stacks, args, &cloud, &state).await?;
            has_function = packed;
            steps.push(step);
        }
        Ok(None) => steps.push(Step::new("stack", "left out", "no stack has this table")),
        Err(DeployError::NoCloudFormation { .. }) => {
            steps.push(Step::new("stack", "left out", "the endpoint has no CloudFormation"));
        }
        Err(error) => return Err(told(error).into()),
    }
    if args.lambda_only {
        steps.push(Step::new("migrations", "left out", "--lambda-only"));
    } else {
        steps.push(migrations(stacks, args, &operator).await?);
    }
    steps.push(record(stacks, args, &operator, (&versions, has_function)).await?);
    let form = Form {
        stack: stacks.stack.clone(),
        region: stacks.region.clone(),
        steps,
        dry_run: args.dry_run,
    };
    stacks.printer.answer(&form, &text(&form))?;
    let is_whole = form.steps.iter().all(|step| step.state != "incomplete");
    Ok(if is_whole { Exit::Ok } else { Exit::Error })
}

/// A table without a version record, and who makes one. The stack stays as it is: it was deployed
/// with options that nobody has repeated here.
async fn without_record(stacks: &Stacks<'_>) -> Failure {
    let failure = Failure::not_found(format!("stack {} has no version record", stacks.stack));
    let state = match stacks.cloud().await {
        Ok(cloud) => cloud.find(&stacks.stack).await.ok().flatten(),
        Err(_) => None,
    };
    match state.map(|state| state.maker()) {
        Some(Maker::Python) => failure.hint("the upgrade of the Python package makes it"),
        _ => failure.hint(format!("{} makes it", stacks.command(&["deploy", "--no-stack"]))),
    }
}

fn said(versions: &Versions) -> String {
    let function = versions.function.as_deref().unwrap_or("none");
    let program = env!("CARGO_PKG_VERSION");
    format!("schema {}, function {function}, this program {program}", versions.schema)
}

/// Whether a stack belongs to another tool that is known, and its table is to be looked at only.
fn is_left_out(state: &StackState, args: &UpgradeArgs) -> bool {
    matches!(state.maker(), Maker::Python | Maker::OtherTool) && !args.lambda_only
}

/// Template and function, through a change set; and whether there is to be a function.
async fn infrastructure(
    stacks: &Stacks<'_>,
    args: &UpgradeArgs,
    cloud: &Cloud,
    state: &StackState,
) -> anyhow::Result<(Step, bool)> {
    let told = |error: DeployError| stacks.failure(error);
    let parameter = |name: &str| state.parameters.get(name).map(String::as_str);
    let has_role = parameter("EnableIAM") == Some("true")
        || parameter("AggregatorRoleArn").is_some_and(|arn| !arn.is_empty());
    let package = match parameter("EnableAggregator") == Some("true") && has_role {
        false => None,
        true => {
            let architecture = match parameter("Architecture") {
                Some("arm64") => Architecture::Arm64,
                _ => Architecture::X86_64,
            };
            let bootstrap = match &args.lambda_binary {
                Some(path) => Bootstrap::read(path),
                None => Bootstrap::own(),
            };
            let packed = bootstrap.and_then(|bootstrap| bootstrap.pack(architecture));
            Some(packed.map_err(|error| told(error.into()))?)
        }
    };
    let key = package.as_ref().map_or(String::new(), |package| package.key());
    let is_current = parameter("LambdaCodeKey") == Some(key.as_str());
    if args.lambda_only && is_current && !args.force {
        let step = Step::new("stack", "nothing to do", "the function is this program");
        return Ok((step, package.is_some()));
    }
    let deployment = Deployment::upgrade(state, package.as_ref(), args.lambda_only)
        .map_err(told)?
        .may_lose_data(args.allow_data_loss);
    let mut teller = Teller::new(stacks.printer);
    if args.dry_run {
        let planned = deployment.preview(cloud, &mut |progress| teller.tell(&progress)).await;
        return Ok((planned_step(planned.map_err(told)?, args), package.is_some()));
    }
    let (outcome, _) =
        deployment.run(cloud, &mut |progress| teller.tell(&progress)).await.map_err(told)?;
    let step = match outcome {
        Outcome::Unchanged => {
            Step::new("stack", "nothing to do", "template and function are these")
        }
        _ => Step::new("stack", "done", if key.is_empty() { "template" } else { key.as_str() }),
    };
    Ok((step, package.is_some()))
}

/// What a change set would do, in one line.
fn planned_step(changes: Option<Vec<Change>>, args: &UpgradeArgs) -> Step {
    let Some(changes) = changes else {
        return Step::new("stack", "nothing to do", "template and function are these");
    };
    let lost: Vec<&str> = changes
        .iter()
        .filter(|change| change.loses_data())
        .map(|change| change.resource.as_str())
        .collect();
    let mut detail = match changes.is_empty() {
        true => "no resource, only what the stack tells".to_owned(),
        false => changes
            .iter()
            .map(|change| format!("{} {}", change.sign(), change.resource))
            .collect::<Vec<_>>()
            .join(", "),
    };
    if !lost.is_empty() && !args.allow_data_loss {
        detail = format!("{detail}; refused without --allow-data-loss: {}", lost.join(", "));
    }
    Step::new("stack", "planned", detail)
}

/// What is stored in older forms.
async fn migrations(
    stacks: &Stacks<'_>,
    args: &UpgradeArgs,
    operator: &Operator,
) -> anyhow::Result<Step> {
    let told = |error: zae_limiter::StoreError| stacks.failure(error.into());
    let open: Vec<Migration> = operator.migrations().await.map_err(told)?;
    if open.is_empty() && !args.force {
        return Ok(Step::new("migrations", "nothing to do", ""));
    }
    let names: Vec<&str> = open.iter().map(|migration| migration.name).collect();
    let names = if names.is_empty() { "none was open".to_owned() } else { names.join(", ") };
    if args.dry_run {
        let steps = operator.plan().await.map_err(told)?;
        let detail = format!("{names}: {} changes", steps.len());
        return Ok(Step::new("migrations", "planned", detail));
    }
    let migrated = operator.migrate(|progress| tell(stacks, progress)).await.map_err(told)?;
    let mut detail = format!("{names}: {} levels made", migrated.made);
    for (count, what) in [
        (migrated.superseded, "out of date"),
        (migrated.left, "left as they are"),
        (migrated.orphans, "of namespaces that are not registered"),
    ] {
        if count > 0 {
            detail.push_str(&format!(", {count} {what}"));
        }
    }
    Ok(Step::new("migrations", if migrated.complete { "done" } else { "incomplete" }, detail))
}

fn tell(stacks: &Stacks<'_>, progress: &Progress) {
    match progress {
        Progress::Made(step) => stacks.printer.note(&format!("{}: made", step.target)),
        Progress::Superseded(step) => {
            stacks.printer.note(&format!("{}: out of date", step.target));
        }
        Progress::Left(step) => {
            let why = step.problem.as_deref().unwrap_or("it is not known why");
            stacks.printer.warning(&format!("{}: stays: {why}", step.target));
        }
        _ => {}
    }
}

/// Says in the table which function serves it. What the record says decides, not what the steps
/// before did: an upgrade that was killed in between is finished by the next one.
async fn record(
    stacks: &Stacks<'_>,
    args: &UpgradeArgs,
    operator: &Operator,
    (versions, has_function): (&Versions, bool),
) -> anyhow::Result<Step> {
    let program = env!("CARGO_PKG_VERSION");
    if !has_function || versions.function.as_deref() == Some(program) {
        return Ok(Step::new("version record", "nothing to do", ""));
    }
    let detail = format!("function {program}");
    if args.dry_run {
        return Ok(Step::new("version record", "planned", detail));
    }
    let stamped = operator.stamp_function(Some(program)).await;
    stamped.map_err(|error| stacks.failure(error.into()))?;
    Ok(Step::new("version record", "done", detail))
}

fn text(form: &Form) -> Text {
    let mut table = Table::new(["STEP", "STATE", "DETAIL"]).may_wrap();
    for step in &form.steps {
        let tone = if step.state == "done" { Tone::Good } else { Tone::Plain };
        table.row([
            Cell::plain(step.step),
            Cell::toned(step.state, tone),
            Cell::plain(&step.detail),
        ]);
    }
    Text::new().table(table)
}
