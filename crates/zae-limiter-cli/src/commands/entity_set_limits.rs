//! `entity set-limits`.

use super::limits::{self, Order};
use crate::args::EntitySetLimitsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: EntitySetLimitsArgs) -> anyhow::Result<Exit> {
    let level = limits::of_entity(args.id, args.resource);
    limits::set(
        context,
        Order { level, limits: args.limits, on_unavailable: None, must_exist: args.must_exist },
    )
    .await
}
