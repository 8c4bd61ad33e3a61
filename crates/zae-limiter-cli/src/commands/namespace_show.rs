//! `namespace show`.

use zae_limiter::wire::NamespaceForm;

use super::shared::namespaces;
use crate::args::namespace::NamespaceNameArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: NamespaceNameArgs) -> anyhow::Result<Exit> {
    let limiter = context.open_registry().await?;
    let Some(namespace) = limiter.namespace_info(args.name.clone()).await? else {
        return Err(namespaces::missing(context, &limiter, &args.name).await.into());
    };
    let form = NamespaceForm::from(&namespace);
    context.printer.answer(&form, &namespaces::text(&form))
}
