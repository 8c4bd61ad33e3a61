//! `entity children`.

use zae_limiter::EntityId;

use super::shared::entities::{FlaggedForm, flagged};
use super::shared::listing::{self, Listing};
use crate::args::entity::EntityPageArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: EntityPageArgs) -> anyhow::Result<Exit> {
    let page = args.page.request_after::<EntityId>()?;
    let limiter = context.open().await?;
    listing::check_cursor(context, &page, async |id: EntityId| limiter.entity(id).await).await?;
    let page = flagged(&limiter, limiter.children(args.id, &page).await?).await?;
    listing::answer(
        context,
        &page,
        FlaggedForm::from,
        Listing { table: view::entities(&page.items), nothing: "no children" },
    )
}
