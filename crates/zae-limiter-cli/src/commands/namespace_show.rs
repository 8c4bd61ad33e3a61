//! `namespace show`.

use zae_limiter::NamespaceName;
use zae_limiter::wire::NamespaceForm;

use super::namespaces;
use crate::args::NamespaceNameArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: NamespaceNameArgs) -> anyhow::Result<Exit> {
    let limiter = context.open_registry().await?;
    let Some(namespace) = limiter.show_namespace(args.name.clone()).await? else { return Err(missing(&args.name).into()) };
    let form = NamespaceForm::from(&namespace);
    context.printer.answer(&form, &namespaces::text(&form))?;
    Ok(Exit::Ok)
}

/// Nothing in use is called so.
pub(super) fn missing(name: &NamespaceName) -> Failure {
    let failure = Failure::not_found(format!("there is no namespace {name} in use"));
    failure.hint(format!("register it with `zae-limiter namespace register {name}`, or look at `zae-limiter namespace orphans`"))
}
