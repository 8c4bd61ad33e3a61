//! `entity list`.

use zae_limiter::EntityId;

use super::shared::{entities, listing};
use crate::args::entity::EntityListArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: EntityListArgs) -> anyhow::Result<Exit> {
    let page = args.page.request_after::<EntityId>()?;
    let limiter = context.open().await?;
    match args.with_custom_limits {
        None => {
            listing::check_cursor(context, &page, async |id: EntityId| limiter.entity(id).await)
                .await?;
            let page = limiter.entities(&page).await?;
            entities::answer(context, &limiter, page, "no entities").await
        }
        // They need not be created, so the id is all there is.
        Some(resource) => {
            let page = limiter.entities_with_limits(resource.0.as_ref(), &page).await?;
            let nothing = "no entities with limits of their own for this resource";
            listing::names(context, &page, listing::ENTITY, nothing, ToString::to_string)
        }
    }
}
