//! `entity buckets`.

use zae_limiter::wire::BucketForm;
use zae_limiter::{BucketView, Milli};

use super::shared::listing;
use crate::args::entity::EntityPageArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Table, Tone};

pub(crate) async fn run(context: &Context<'_>, args: EntityPageArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let page = limiter.buckets(args.id, &args.page.request()).await?;
    listing::answer(context, &page, BucketForm::from, table(&page.items), "no buckets")
}

/// One row per limit; whole tokens, rounded towards −∞ as everywhere.
fn table(buckets: &[BucketView]) -> Table {
    let mut table =
        Table::new(["RESOURCE", "LIMIT", "CAPACITY:", "AVAILABLE:", "CONSUMED:", "STATE"]);
    for bucket in buckets {
        for limit in bucket.state.limits() {
            let available = limit.balance.floor_tokens();
            let (state, tone) = match bucket.state.flag {
                flag if flag.blocks() => (flag.as_str(), Tone::Bad),
                _ if available < 0 => ("in debt", Tone::Warning),
                _ => ("-", Tone::Plain),
            };
            table.row([
                Cell::plain(&bucket.resource),
                Cell::plain(&limit.name),
                Cell::plain(Milli(limit.params.capacity_milli).floor_tokens()),
                Cell::left(available),
                Cell::plain(limit.consumed.floor_tokens()),
                Cell::toned(state, tone),
            ]);
        }
    }
    table
}
