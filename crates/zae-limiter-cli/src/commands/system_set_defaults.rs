//! `system set-defaults`.

use zae_limiter::Level;

use crate::args::SystemSetDefaultsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: SystemSetDefaultsArgs) -> anyhow::Result<Exit> {
    super::limits::set(context, Level::System, args.limits, args.on_unavailable.map(Into::into)).await
}
