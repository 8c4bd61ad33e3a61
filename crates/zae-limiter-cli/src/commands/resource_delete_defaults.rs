//! `resource delete-defaults`.

use zae_limiter::Level;

use crate::args::ResourceDeleteDefaultsArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(
    context: &Context<'_>,
    args: ResourceDeleteDefaultsArgs,
) -> anyhow::Result<Exit> {
    let name = args.name.to_string();
    super::limits::delete(context, &Level::Resource(args.name), &name, args.confirm).await
}
