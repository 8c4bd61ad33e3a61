//! `namespace register`.

use zae_limiter::{Error, NamespaceName, Page};

use super::shared::namespaces;
use crate::args::namespace::NamespaceRegisterArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;

pub(crate) async fn run(
    context: &Context<'_>,
    args: NamespaceRegisterArgs,
) -> anyhow::Result<Exit> {
    let limiter = context.open_registry().await?;
    let mut registered = Page::empty();
    for name in &args.names {
        match limiter.register_namespace(name.clone()).await {
            Err(error) if !registered.items.is_empty() => {
                return Err(half_way(&args.names, registered.items.len(), &error).into());
            }
            namespace => registered.items.push(namespace?),
        }
    }
    // The names are registered: a store that cannot list deleted namespaces changes nothing.
    let orphans = namespaces::orphans(&limiter).await.unwrap_or_default();
    for namespace in &registered.items {
        if let Some(orphan) = orphans.iter().find(|orphan| orphan.name == namespace.name) {
            let (name, id) = (&orphan.name, &orphan.id);
            context.printer.note(&format!(
                "another namespace {name} was {}, and its data is kept; {} and {} bring that one back instead",
                namespaces::deleted(orphan),
                context.command(&["namespace", "delete", name.as_str()]),
                context.command(&["namespace", "recover", id.as_str()]),
            ));
        }
    }
    namespaces::answer(context, &registered, "no namespaces")
}

/// Each is registered by a write of its own: what a store says about the one that failed is not
/// true of all.
fn half_way(names: &[NamespaceName], done: usize, error: &Error) -> Failure {
    let why = match error {
        Error::Store(error) => error.message().replace("; nothing was written", ""),
        other => other.to_string(),
    };
    let (all, name) = (names.len(), &names[done]);
    let message = format!(
        "{done} of {all} namespaces were registered, in their order; repeat the command for the rest: those that are registered stay as \
         they are. {name} failed: {why}"
    );
    Failure::of_error(error, message)
}
