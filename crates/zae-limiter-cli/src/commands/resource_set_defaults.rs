//! `resource set-defaults`.

use zae_limiter::Level;

use crate::args::ResourceSetDefaultsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: ResourceSetDefaultsArgs) -> anyhow::Result<Exit> {
    super::limits::set(context, Level::Resource(args.name), args.limits, None).await
}
