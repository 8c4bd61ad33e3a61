//! `entity get-limits`.

use crate::args::EntityGetLimitsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: EntityGetLimitsArgs) -> anyhow::Result<Exit> {
    super::limits::get(context, super::limits::of_entity(args.id, args.resource)).await
}
