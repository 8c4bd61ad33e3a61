//! `entity show`.

use zae_limiter::EntityId;
use zae_limiter::wire::EntityForm;

use crate::args::EntityIdArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: EntityIdArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let Some(entity) = limiter.entity(args.id.clone()).await? else { return Err(missing(&args.id).into()) };
    context.printer.answer(&EntityForm::from(&entity), &view::entity(&entity))?;
    Ok(Exit::Ok)
}

/// Nothing is called so.
pub(super) fn missing(id: &EntityId) -> Failure {
    Failure::not_found(format!("there is no entity {id}")).hint(format!("create it with `zae-limiter entity create {id}`"))
}
