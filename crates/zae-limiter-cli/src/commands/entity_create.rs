//! `entity create`.

use zae_limiter::wire::EntityForm;
use zae_limiter::{Entity, NewEntity};

use super::shared::entities::metadata;
use crate::args::entity::EntityCreateArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: EntityCreateArgs) -> anyhow::Result<Exit> {
    let metadata = metadata(args.metadata)?;
    let name = args.display_name.unwrap_or_else(|| args.id.to_string());
    Entity::check_text(&name, &metadata).map_err(|error| Failure::usage(error.to_string()))?;
    let limiter = context.open().await?;
    let entity =
        NewEntity { id: args.id, name, parent: args.parent, cascade: args.cascade, metadata };
    let created = limiter.create_entity(entity).await?;
    for warning in &created.warnings {
        context.printer.warning(&warning.to_string());
    }
    context.printer.answer(&EntityForm::from(&created.entity), &view::entity(&created.entity))
}
