//! `entity list-resources`.

use zae_limiter::ResourceName;
use zae_limiter::domain::DEFAULT_RESOURCE;

use super::shared::listing;
use crate::args::shared::PageArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: PageArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let page = limiter.resources_with_entity_limits(&args.request()).await?;
    listing::names(
        context,
        &page,
        listing::RESOURCE,
        "no entity has limits of its own",
        |resource| resource.as_ref().map_or(DEFAULT_RESOURCE, ResourceName::as_str).to_owned(),
    )
}
