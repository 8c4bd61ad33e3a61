//! `entity list-resources`.

use serde::Serialize;
use zae_limiter::ResourceName;
use zae_limiter::domain::DEFAULT_RESOURCE;

use super::listing::{self, Listing};
use crate::args::PageArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Align, Cell, Table};

#[derive(Serialize)]
struct Form {
    resource: String,
}

pub(crate) async fn run(context: &Context<'_>, args: PageArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let page = limiter.resources_with_entity_limits(&args.request()).await?;
    let name = |resource: &Option<ResourceName>| {
        resource.as_ref().map_or(DEFAULT_RESOURCE, ResourceName::as_str).to_owned()
    };
    let mut table = Table::new([("RESOURCE", Align::Left)]);
    page.items.iter().for_each(|resource| table.row([Cell::plain(name(resource))]));
    let listing = Listing { table, nothing: "no entity has limits of its own" };
    listing::answer(context, &page, |resource| Form { resource: name(resource) }, listing)
}
