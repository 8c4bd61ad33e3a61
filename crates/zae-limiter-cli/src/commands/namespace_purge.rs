//! `namespace purge`.

use serde::Serialize;
use zae_limiter::{NamespaceId, RateLimiter};

use super::shared::namespaces;
use crate::args::namespace::NamespacePurgeArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::Text;

#[derive(Serialize)]
struct Form {
    namespace_id: String,
    purged: bool,
    records: u64,
}

pub(crate) async fn run(context: &Context<'_>, args: NamespacePurgeArgs) -> anyhow::Result<Exit> {
    let limiter = context.open_registry().await?;
    let id = chosen(context, &limiter, &args.id).await?;
    let what = format!("all data of the deleted namespace {id} for good");
    confirm(context, &Question { deed: "erases", what: &what, name: id.as_str() }, args.confirm)?;
    let purged = limiter.purge_namespace(id.clone());
    let records = Progress::during(context.printer, "purging", purged).await?.records;
    let form = Form { namespace_id: id.to_string(), purged: true, records };
    let line = format!("purged namespace {} (records: {})", form.namespace_id, form.records);
    context.printer.answer(&form, &Text::of(line))
}

/// The id that was given. A name is not enough for what cannot be undone: several deleted
/// namespaces may have had it.
async fn chosen(
    context: &Context<'_>,
    limiter: &RateLimiter,
    which: &str,
) -> anyhow::Result<NamespaceId> {
    let orphans = namespaces::orphans(limiter).await?;
    if let Some(orphan) = orphans.iter().find(|orphan| orphan.id == which) {
        return Ok(orphan.id.clone());
    }
    let purge = |id: &NamespaceId| context.command(&["namespace", "purge", id.as_str()]);
    let named: Vec<String> = orphans
        .iter()
        .filter(|orphan| orphan.name == which)
        .map(|orphan| {
            format!("{} purges the one {}", purge(&orphan.id), namespaces::deleted(orphan))
        })
        .collect();
    if !named.is_empty() {
        let failure =
            Failure::usage(format!("a namespace is purged by its id, and {which} is a name"));
        return Err(failure.hint(named.join("; ")).into());
    }
    if let Some(namespace) = namespaces::in_use(limiter, which).await {
        let delete = context.command(&["namespace", "delete", which]);
        let failure = Failure::usage(format!(
            "namespace {which} is in use, and only a deleted namespace is purged, by its id"
        ));
        return Err(failure
            .hint(format!("{delete} deletes it, then {} purges it", purge(&namespace.id)))
            .into());
    }
    Ok(namespaces::id(which)?)
}
