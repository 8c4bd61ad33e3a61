//! `entity delete-limits`.

use crate::args::EntityDeleteLimitsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(
    context: &Context<'_>,
    args: EntityDeleteLimitsArgs,
) -> anyhow::Result<Exit> {
    let name = args.level.id.to_string();
    let level = super::limits::of_entity(args.level.id, args.level.resource);
    super::limits::delete(context, &level, &name, args.confirm).await
}
