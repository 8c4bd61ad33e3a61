//! `namespace list`.

use zae_limiter::NamespaceName;

use super::shared::{listing, namespaces};
use crate::args::shared::PageArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: PageArgs) -> anyhow::Result<Exit> {
    let page = args.request_after::<NamespaceName>()?;
    let limiter = context.open_registry().await?;
    listing::check_cursor(context, &page, async |name: NamespaceName| {
        limiter.namespace_info(name).await
    })
    .await?;
    namespaces::answer(context, &limiter.namespaces(&page).await?, "no namespaces")
}
