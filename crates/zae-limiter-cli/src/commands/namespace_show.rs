//! `namespace show`.

use zae_limiter::wire::NamespaceForm;

use super::shared::namespaces;
use crate::args::namespace::NamespaceNameArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::settings::StorePlace;

pub(crate) async fn run(context: &Context<'_>, args: NamespaceNameArgs) -> anyhow::Result<Exit> {
    let limiter = context.open_registry().await?;
    let Some(namespace) = limiter.namespace_info(args.name.clone()).await? else {
        return Err(namespaces::missing(context, &limiter, &args.name).await.into());
    };
    let form = NamespaceForm::from(&namespace);
    context.printer.answer(&form, &namespaces::text(&form))?;
    if matches!(context.settings.store, StorePlace::Dynamo(_)) {
        context.printer.note(&format!(
            "a role with a policy of namespaces works in this one with the tag: \
             aws iam tag-role --role-name ROLE --tags Key=zael_namespace_id,Value={}",
            namespace.id
        ));
    }
    Ok(Exit::Ok)
}
