//! `namespace list`.

use zae_limiter::NamespaceName;
use zae_limiter::wire::NamespaceForm;

use super::listing::{self, Listing};
use super::namespaces;
use crate::args::PageArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: PageArgs) -> anyhow::Result<Exit> {
    let page = args.request_after::<NamespaceName>()?;
    let limiter = context.open_registry().await?;
    listing::check_cursor(context, &page, async |name: NamespaceName| {
        limiter.namespace_info(name).await
    })
    .await?;
    let page = limiter.namespaces(&page).await?;
    let listing = Listing { table: namespaces::table(&page.items), nothing: "no namespaces" };
    listing::answer(context, &page, NamespaceForm::from, listing)
}
