//! `entity reset`.

use serde::Serialize;
use zae_limiter::{LimitName, ResourceName};

use super::shared::listing::walk;
use crate::args::entity::EntityResetArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text};

/// Pages of buckets one reset may go over.
const PAGES_MAX: usize = 10_000;

#[derive(Serialize)]
struct Form {
    entity_id: String,
    buckets: Vec<BucketForm>,
}

#[derive(Serialize)]
struct BucketForm {
    resource: String,
    limits: Vec<GainForm>,
}

#[derive(Serialize)]
struct GainForm {
    limit_name: String,
    /// Whole tokens.
    gained: i64,
}

pub(crate) async fn run(context: &Context<'_>, args: EntityResetArgs) -> anyhow::Result<Exit> {
    let what = match &args.resource {
        Some(resource) => format!("the bucket of {} for {resource} (forgiving its debt)", args.id),
        None => format!("every bucket of {} (forgiving its debt)", args.id),
    };
    confirm(
        context,
        &Question { deed: "fills", what: &what, name: args.id.as_str() },
        args.confirm,
    )?;
    let limiter = context.open().await?;
    let resources = match args.resource {
        Some(resource) => vec![resource],
        None => {
            let list = async |page| limiter.buckets(args.id.clone(), &page).await;
            let (buckets, _) = walk(PAGES_MAX, list).await?;
            buckets.into_iter().map(|bucket| bucket.resource).collect()
        }
    };
    let only = (!args.limit_names.is_empty()).then_some(args.limit_names.as_slice());
    let mut form = Form { entity_id: args.id.to_string(), buckets: Vec::new() };
    for resource in resources {
        if let Some(gained) = limiter.reset(args.id.clone(), resource.clone(), only).await? {
            form.buckets.push(bucket(&resource, gained));
        }
    }
    check_names(context, &args.limit_names, &form)?;
    context.printer.answer(&form, &text(&form))
}

fn bucket(resource: &ResourceName, gained: Vec<(LimitName, i64)>) -> BucketForm {
    let limit =
        |(name, gained): (LimitName, i64)| GainForm { limit_name: name.to_string(), gained };
    BucketForm { resource: resource.to_string(), limits: gained.into_iter().map(limit).collect() }
}

/// Refuses a name that no bucket has: it is a typo, and the caller believes that something was
/// filled.
fn check_names(context: &Context<'_>, names: &[LimitName], form: &Form) -> Result<(), Failure> {
    let has = |name: &&LimitName| {
        form.buckets
            .iter()
            .flat_map(|bucket| &bucket.limits)
            .any(|limit| *name == limit.limit_name.as_str())
    };
    match names.iter().find(|name| !has(name)) {
        Some(name) if !form.buckets.is_empty() => {
            let failure = Failure::not_found(format!(
                "no bucket of {} has a limit called {name}",
                form.entity_id
            ));
            Err(failure.hint(format!(
                "{} shows the limits there are",
                context.command(&["entity", "buckets", &form.entity_id])
            )))
        }
        _ => Ok(()),
    }
}

fn text(form: &Form) -> Text {
    let mut table = Table::new(["RESOURCE", "LIMIT", "GAINED:"]);
    for bucket in &form.buckets {
        for limit in &bucket.limits {
            table.row([
                Cell::plain(&bucket.resource),
                Cell::plain(&limit.limit_name),
                Cell::plain(limit.gained),
            ]);
        }
    }
    Text::new().table_or(table, "nothing to fill: there is no such bucket")
}
