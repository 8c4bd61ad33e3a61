//! `resource enable`.

use zae_limiter::Level;

use crate::args::ResourceNameArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: ResourceNameArgs) -> anyhow::Result<Exit> {
    super::flags::set(context, Level::Resource(args.name), Some(false), false).await
}
