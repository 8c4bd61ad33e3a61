//! `entity children`.

use zae_limiter::EntityId;

use super::shared::{entities, listing};
use crate::args::entity::EntityPageArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: EntityPageArgs) -> anyhow::Result<Exit> {
    let page = args.page.request_after::<EntityId>()?;
    let limiter = context.open().await?;
    listing::check_cursor(context, &page, async |id: EntityId| limiter.entity(id).await).await?;
    let page = limiter.children(args.id, &page).await?;
    entities::answer(context, &limiter, page, "no children").await
}
