//! `resource set-defaults`.

use zae_limiter::Level;

use super::limits::{self, Order};
use crate::args::ResourceSetDefaultsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(
    context: &Context<'_>,
    args: ResourceSetDefaultsArgs,
) -> anyhow::Result<Exit> {
    let level = Level::Resource(args.name);
    limits::set(
        context,
        Order { level, limits: args.limits, on_unavailable: None, must_exist: false },
    )
    .await
}
