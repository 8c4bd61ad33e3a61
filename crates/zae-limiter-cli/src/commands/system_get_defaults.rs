//! `system get-defaults`.

use zae_limiter::Level;

use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>) -> anyhow::Result<Exit> {
    super::limits::get(context, Level::System).await
}
