//! `entity set-limits`.

use crate::args::EntitySetLimitsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: EntitySetLimitsArgs) -> anyhow::Result<Exit> {
    super::limits::set(context, super::limits::of_entity(args.id, args.resource), args.limits, None).await
}
