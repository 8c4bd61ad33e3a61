//! `delete`.

use serde::Serialize;
use zae_limiter::dynamodb::sdk;
use zae_limiter::{StoreError, StoreErrorKind};
use zae_limiter_deploy::DeployError;
use zae_limiter_deploy::stack::{Kind, Removal};

use super::shared::stacks::{Stacks, Teller};
use crate::args::deploy::DeleteArgs;
use crate::confirm::{Question, confirm_with};
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::Text;

#[derive(Serialize)]
struct Form {
    stack: String,
    region: String,
    /// False with `--no-wait`: CloudFormation has begun.
    deleted: bool,
    /// The bucket with archived audit events, which stays; null when there is none.
    archive_bucket: Option<String>,
}

pub(crate) async fn run(stacks: &Stacks<'_>, args: &DeleteArgs) -> anyhow::Result<Exit> {
    let cloud = stacks.cloud().await?;
    // A stack that is not there is an error before a question is asked about it.
    let found = cloud.describe(&stacks.stack).await;
    let table_only = match found {
        Err(DeployError::NoCloudFormation { endpoint }) => {
            check_table(stacks, endpoint).await?;
            true
        }
        found => found.map(|_| false).map_err(|error| stacks.failure(error))?,
    };
    let (stack, at) = (&stacks.stack, stacks.whereabouts());
    let what = format!("the stack {stack} in {at} with its table and everything in it");
    let question = Question { deed: "deletes", what: &what, name: &stacks.stack };
    confirm_with(stacks.printer, stacks.can_ask, &question, args.confirm)?;
    if table_only {
        return delete_table(stacks).await;
    }
    let waits = args.wait.waits();
    let mut teller = Teller::new(stacks.printer);
    let removal = Removal { stack: &stacks.stack, kind: Kind::Limiter, waits };
    let kept = removal.run(&cloud, &mut |progress| teller.tell(&progress)).await;
    let form = Form {
        stack: stacks.stack.clone(),
        region: stacks.region.clone(),
        deleted: waits,
        archive_bucket: kept.map_err(|error| stacks.failure(error))?,
    };
    let said = if waits { "deleted" } else { "is being deleted" };
    stacks.printer.answer(&form, &Text::of(format!("stack {}: {said}", form.stack)))?;
    if let Some(bucket) = &form.archive_bucket {
        stacks.printer.note(&format!("the archive of audit events stays in the bucket {bucket}"));
    }
    Ok(Exit::Ok)
}

/// A table that goes without a stack must be one of ours, and have none elsewhere.
async fn check_table(stacks: &Stacks<'_>, endpoint: String) -> Result<(), Failure> {
    let told = |error: StoreError| stacks.failure(error.into());
    let operator = stacks.builder().store().operator().await.map_err(told)?;
    let versions = match operator.versions().await {
        Err(error) if error.kind() == StoreErrorKind::NotFound => {
            return Err(Failure::not_found(format!("there is no table {}", stacks.stack)));
        }
        found => found.map_err(told)?,
    };
    match versions {
        Some(versions) if versions.function.is_some() => {
            let stack = stacks.stack.clone();
            Err(stacks.failure(DeployError::Elsewhere { stack, endpoint }))
        }
        Some(_) => Ok(()),
        None => {
            let message = format!("the table {} has no version record of ours", stacks.stack);
            let failure = Failure::of_kind(StoreErrorKind::Incompatible, message);
            Err(failure.hint("it may be somebody else's: whoever made it deletes it"))
        }
    }
}

/// On an endpoint without CloudFormation there is nothing but the table.
async fn delete_table(stacks: &Stacks<'_>) -> anyhow::Result<Exit> {
    let told = |error: StoreError| stacks.failure(error.into());
    let builder = stacks.builder();
    let table = builder.store().table().await.map_err(told)?;
    let clock = &builder.store().options().clock;
    if !sdk::delete_table(&table, &**clock).await.map_err(told)? {
        let failure = Failure::not_found(format!("there is no table {}", stacks.stack));
        return Err(failure.into());
    }
    let form = Form {
        stack: stacks.stack.clone(),
        region: stacks.region.clone(),
        deleted: true,
        archive_bucket: None,
    };
    stacks.printer.answer(&form, &Text::of(format!("table {}: deleted", form.stack)))
}
