//! What the commands for namespaces share.

use zae_limiter::domain::rfc3339;
use zae_limiter::wire::NamespaceForm;
use zae_limiter::{
    Error, NameError, Namespace, NamespaceId, NamespaceName, NamespaceStatus, Page, RateLimiter,
};

use super::listing::{self, walk};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text};
use crate::view;

/// Pages of namespaces that are looked through for one.
const PAGES_MAX: usize = 20;

/// The deleted namespaces that can be recovered.
pub(crate) async fn orphans(limiter: &RateLimiter) -> Result<Vec<Namespace>, Error> {
    let (mut found, _) =
        walk(PAGES_MAX, async |page| limiter.orphan_namespaces(&page).await).await?;
    found.retain(|orphan| orphan.status == NamespaceStatus::Deleted);
    Ok(found)
}

/// Whether some namespace, deleted or in use, has this id; true where there are too many to tell.
pub(crate) async fn is_known(limiter: &RateLimiter, id: &str) -> Result<bool, Error> {
    let is_among = |(found, is_all): (Vec<Namespace>, bool)| {
        !is_all || found.iter().any(|namespace| namespace.id == id)
    };
    Ok(is_among(walk(PAGES_MAX, async |page| limiter.orphan_namespaces(&page).await).await?)
        || is_among(walk(PAGES_MAX, async |page| limiter.namespaces(&page).await).await?))
}

/// No namespace in use has this name. A deleted namespace that had the name is mentioned:
/// registering the name anew makes an empty namespace, and the old one can then no longer be
/// recovered under it.
pub(crate) async fn missing(
    context: &Context<'_>,
    limiter: &RateLimiter,
    name: &NamespaceName,
) -> Failure {
    // The first error is the news, not that the registry could not be read.
    let orphans = orphans(limiter).await.unwrap_or_default();
    let last =
        orphans.iter().filter(|orphan| orphan.name == *name).max_by_key(|orphan| orphan.deleted_at);
    match last {
        Some(orphan) => {
            let failure = Failure::not_found(format!("namespace {name} was {}", deleted(orphan)));
            failure.hint(format!(
                "{} brings it back with its data",
                context.command(&["namespace", "recover", orphan.id.as_str()])
            ))
        }
        None => {
            let failure = Failure::not_found(format!("there is no namespace {name}"));
            failure.hint(format!(
                "register it with {}; {} shows those there are",
                context.command(&["namespace", "register", name.as_str()]),
                context.command(&["namespace", "list"]),
            ))
        }
    }
}

/// The namespace in use that is called so.
pub(crate) async fn in_use(limiter: &RateLimiter, name: &str) -> Option<Namespace> {
    let name = name.parse::<NamespaceName>().ok()?;
    limiter.namespace_info(name).await.ok().flatten()
}

/// The text as an id. The store says what is wrong with an id that nothing has.
pub(crate) fn id(text: &str) -> Result<NamespaceId, Failure> {
    text.parse().map_err(|error: NameError| Failure::usage(error.to_string()))
}

/// When it was deleted.
pub(crate) fn deleted(orphan: &Namespace) -> String {
    orphan
        .deleted_at
        .map_or_else(|| "deleted".to_owned(), |at| format!("deleted at {}", rfc3339(at)))
}

/// Answers with a page of namespaces.
pub(crate) fn answer(
    context: &Context<'_>,
    page: &Page<Namespace>,
    nothing: &str,
) -> anyhow::Result<Exit> {
    listing::answer(context, page, NamespaceForm::from, table(&page.items), nothing)
}

/// Namespaces, one per row.
fn table(namespaces: &[Namespace]) -> Table {
    let mut table =
        Table::new(["NAMESPACE", "ID", "STATUS", "CREATED", "DELETED"]).may_lack(&["CREATED"]);
    for namespace in namespaces.iter().map(NamespaceForm::from) {
        table.row([
            Cell::plain(&namespace.name),
            Cell::plain(&namespace.namespace_id),
            Cell::plain(namespace.status),
            Cell::plain(view::second(&namespace.created_at)),
            Cell::plain(namespace.deleted_at.as_deref().map_or("-".to_owned(), view::second)),
        ]);
    }
    table
}

/// One namespace.
pub(crate) fn text(form: &NamespaceForm) -> Text {
    Text::new().fields(vec![
        ("namespace", Cell::plain(&form.name)),
        ("id", Cell::plain(&form.namespace_id)),
        ("status", Cell::plain(form.status)),
        ("created", Cell::plain(&form.created_at)),
    ])
}
