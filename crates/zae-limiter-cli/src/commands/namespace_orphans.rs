//! `namespace orphans`.

use zae_limiter::NamespaceId;

use super::shared::namespaces;
use crate::args::shared::{PageArgs, no_such_cursor};
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: PageArgs) -> anyhow::Result<Exit> {
    let page = args.request_after::<NamespaceId>()?;
    let limiter = context.open_registry().await?;
    if let Some(cursor) = page.cursor()
        && !namespaces::is_known(&limiter, &cursor.0).await?
    {
        return Err(no_such_cursor(&cursor.0).into());
    }
    namespaces::answer(context, &limiter.orphan_namespaces(&page).await?, "no deleted namespaces")
}
