//! `system set-defaults`.

use zae_limiter::Level;

use super::limits::{self, Order};
use crate::args::SystemSetDefaultsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(
    context: &Context<'_>,
    args: SystemSetDefaultsArgs,
) -> anyhow::Result<Exit> {
    let on_unavailable = args.on_unavailable.map(Into::into);
    limits::set(
        context,
        Order { level: Level::System, limits: args.limits, on_unavailable, must_exist: false },
    )
    .await
}
