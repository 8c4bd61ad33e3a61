//! `resource list`.

use serde::Serialize;
use zae_limiter::ResourceName;

use super::shared::listing::{self, Listing};
use crate::args::shared::PageArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Align, Cell, Table};

#[derive(Serialize)]
struct Form {
    resource: String,
}

pub(crate) async fn run(context: &Context<'_>, args: PageArgs) -> anyhow::Result<Exit> {
    let page = args.request_after::<ResourceName>()?;
    let limiter = context.open().await?;
    let page = limiter.resources_with_defaults(&page).await?;
    let mut table = Table::new([("RESOURCE", Align::Left)]);
    page.items.iter().for_each(|resource| table.row([Cell::plain(resource)]));
    let listing = Listing { table, nothing: "no resource has limits of its own" };
    listing::answer(context, &page, |resource| Form { resource: resource.to_string() }, listing)
}
