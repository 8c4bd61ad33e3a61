//! `resource list`.

use zae_limiter::ResourceName;

use super::shared::listing;
use crate::args::shared::PageArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: PageArgs) -> anyhow::Result<Exit> {
    let page = args.request_after::<ResourceName>()?;
    let limiter = context.open().await?;
    let page = limiter.resources_with_defaults(&page).await?;
    let nothing = "no resource has limits of its own";
    listing::names(context, &page, listing::RESOURCE, nothing, ToString::to_string)
}
