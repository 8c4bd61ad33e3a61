//! `entity list`.

use serde::Serialize;
use zae_limiter::{EntityId, Page};

use super::shared::entities::{FlaggedForm, flagged};
use super::shared::listing::{self, Listing};
use crate::args::entity::EntityListArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Align, Cell, Table};
use crate::view;

/// An entity with limits of its own; it need not be created, so its id is all there is.
#[derive(Serialize)]
struct IdForm {
    entity_id: String,
}

pub(crate) async fn run(context: &Context<'_>, args: EntityListArgs) -> anyhow::Result<Exit> {
    let page = args.page.request_after::<EntityId>()?;
    let limiter = context.open().await?;
    match args.with_custom_limits {
        None => {
            listing::check_cursor(context, &page, async |id: EntityId| limiter.entity(id).await)
                .await?;
            let page = flagged(&limiter, limiter.entities(&page).await?).await?;
            let listing = Listing { table: view::entities(&page.items), nothing: "no entities" };
            listing::answer(context, &page, FlaggedForm::from, listing)
        }
        Some(resource) => {
            let page: Page<EntityId> =
                limiter.entities_with_limits(resource.0.as_ref(), &page).await?;
            let mut table = Table::new([("ENTITY", Align::Left)]);
            page.items.iter().for_each(|id| table.row([Cell::plain(id)]));
            let listing = Listing {
                table,
                nothing: "no entities with limits of their own for this resource",
            };
            listing::answer(context, &page, |id| IdForm { entity_id: id.to_string() }, listing)
        }
    }
}
