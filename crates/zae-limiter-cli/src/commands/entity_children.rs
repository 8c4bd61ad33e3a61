//! `entity children`.

use zae_limiter::wire::EntityForm;

use super::listing::{self, Listing};
use crate::args::EntityPageArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: EntityPageArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let page = limiter.children(args.id, &args.page.request()).await?;
    listing::answer(context, &page, EntityForm::from, Listing { table: view::entities(&page.items), nothing: "no children" })
}
