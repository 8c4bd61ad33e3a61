//! `namespace register`.

use zae_limiter::Page;
use zae_limiter::wire::NamespaceForm;

use super::listing::{self, Listing};
use super::namespaces;
use crate::args::NamespaceRegisterArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: NamespaceRegisterArgs) -> anyhow::Result<Exit> {
    let limiter = context.open_registry().await?;
    let mut registered = Page::empty();
    for name in args.names {
        registered.items.push(limiter.register_namespace(name).await?);
    }
    let listing = Listing { table: namespaces::table(&registered.items), nothing: "no namespaces" };
    listing::answer(context, &registered, NamespaceForm::from, listing)
}
