//! `entity get-limits`.

use crate::args::EntityLevelArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: EntityLevelArgs) -> anyhow::Result<Exit> {
    super::limits::get(context, super::limits::of_entity(args.id, args.resource)).await
}
