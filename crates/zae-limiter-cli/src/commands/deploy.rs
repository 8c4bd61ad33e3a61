//! `deploy`.

use serde::Serialize;
use zae_limiter_deploy::stack::{Deployed, Outcome};

use super::shared::stacks::{Stacks, Teller};
use crate::args::deploy::DeployArgs;
use crate::exit::Exit;
use crate::table::Text;

#[derive(Serialize)]
struct Form {
    stack: String,
    region: String,
    /// `created`, `updated`, `unchanged`, `begun` or, with `--no-stack`, `ready`.
    outcome: &'static str,
    /// True where the endpoint has no CloudFormation: there is a table, and nothing around it.
    table_only: bool,
    /// The hash of the function's package; null without a function.
    code_sha256: Option<String>,
    /// The hash of the program in it.
    bootstrap_sha256: Option<String>,
    namespace: String,
}

pub(crate) async fn run(stacks: &Stacks<'_>, args: &DeployArgs) -> anyhow::Result<Exit> {
    if args.names_provisioner() {
        stacks.printer.note("there is no provisioner: limits are stored by commands");
    }
    let options = args.options().map_err(|error| stacks.failure(error.into()))?;
    let mut builder = stacks
        .builder()
        .options(options)
        .allow_data_loss(args.allow_data_loss)
        .leave_stack(args.no_stack)
        .wait(args.wait.waits())
        .allow_downgrade(args.allow_downgrade)
        .keep_retention(args.keeps_retention().0, args.keeps_retention().1)
        .namespace(stacks.namespace.as_str());
    if let Some(path) = &args.lambda_binary {
        builder = builder.lambda_binary(path);
    }
    let mut teller = Teller::new(stacks.printer);
    let deployed = builder.run(&mut |progress| teller.tell(&progress)).await;
    let deployed = deployed.map_err(|error| stacks.failure(error))?;
    let form = form(stacks, &deployed);
    stacks.printer.answer(&form, &text(&form))?;
    if deployed.table_only {
        stacks.printer.note(
            "the endpoint has no CloudFormation: there is the table, its version record and its \
             namespaces; no function, policies, alarms, archive or backups",
        );
    }
    if deployed.outcome == Outcome::Begun {
        // A shorter command line would take back the options that it leaves out.
        stacks.printer.note(
            "CloudFormation is at work; the same command line without --no-wait waits and finishes",
        );
    }
    Ok(Exit::Ok)
}

fn form(stacks: &Stacks<'_>, deployed: &Deployed) -> Form {
    Form {
        stack: stacks.stack.clone(),
        region: stacks.region.clone(),
        outcome: deployed.outcome.as_str(),
        table_only: deployed.table_only,
        code_sha256: deployed.code_sha256.clone(),
        bootstrap_sha256: deployed.bootstrap_sha256.clone(),
        namespace: stacks.namespace.to_string(),
    }
}

fn text(form: &Form) -> Text {
    let what = match (form.outcome, form.table_only) {
        ("created", true) => "table made".to_owned(),
        ("unchanged", true) => "table is there".to_owned(),
        ("ready", _) => "table is ready".to_owned(),
        (outcome, _) => outcome.to_owned(),
    };
    Text::of(format!("stack {} in {}: {what}", form.stack, form.region))
}
