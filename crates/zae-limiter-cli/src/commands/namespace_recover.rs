//! `namespace recover`: by id, or by a name that only one deleted namespace had.

use zae_limiter::wire::NamespaceForm;
use zae_limiter::{NamespaceId, RateLimiter};

use super::shared::namespaces;
use crate::args::namespace::NamespaceRecoverArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: NamespaceRecoverArgs) -> anyhow::Result<Exit> {
    let limiter = context.open_registry().await?;
    let id = chosen(&limiter, &args.which).await?;
    let form = NamespaceForm::from(&limiter.recover_namespace(id).await?);
    context.printer.answer(&form, &namespaces::text(&form))
}

/// The id that was given, or that of the one deleted namespace of the name that was given. A text
/// that is both is an id.
async fn chosen(limiter: &RateLimiter, which: &str) -> anyhow::Result<NamespaceId> {
    let orphans = namespaces::orphans(limiter).await?;
    let named: Vec<_> = orphans.iter().filter(|orphan| orphan.name == which).collect();
    match (orphans.iter().find(|orphan| orphan.id == which), named.as_slice()) {
        (Some(orphan), _) => Ok(orphan.id.clone()),
        (None, [orphan]) => Ok(orphan.id.clone()),
        (None, []) if namespaces::in_use(limiter, which).await.is_some() => {
            Err(Failure::usage(format!("namespace {which} is in use; there is nothing to recover"))
                .into())
        }
        (None, []) => Ok(namespaces::id(which)?),
        (None, several) => {
            let told: Vec<String> = several
                .iter()
                .map(|orphan| format!("{} ({})", orphan.id, namespaces::deleted(orphan)))
                .collect();
            let failure =
                Failure::usage(format!("{} deleted namespaces were called {which}", several.len()));
            Err(failure.hint(format!("name one by its id: {}", told.join(", "))).into())
        }
    }
}
