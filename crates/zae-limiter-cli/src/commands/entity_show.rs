//! `entity show`.

use zae_limiter::wire::EntityForm;

use crate::args::EntityShowArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: EntityShowArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let Some(entity) = limiter.entity(args.id.clone()).await? else {
        let failure = Failure::not_found(format!("there is no entity {}", args.id));
        return Err(failure.hint(format!("create it with `zae-limiter entity create {}`", args.id)).into());
    };
    context.printer.answer(&EntityForm::from(&entity), &view::entity(&entity))?;
    Ok(Exit::Ok)
}
