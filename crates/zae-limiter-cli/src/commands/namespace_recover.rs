//! `namespace recover`.

use zae_limiter::wire::NamespaceForm;

use super::namespaces;
use crate::args::NamespaceIdArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: NamespaceIdArgs) -> anyhow::Result<Exit> {
    let limiter = context.open_registry().await?;
    let form = NamespaceForm::from(&limiter.recover_namespace(args.id).await?);
    context.printer.answer(&form, &namespaces::text(&form))?;
    Ok(Exit::Ok)
}
