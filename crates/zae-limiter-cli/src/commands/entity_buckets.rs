//! `entity buckets`.

use zae_limiter::wire::BucketForm;
use zae_limiter::{BucketView, Flag, Milli};

use super::shared::listing;
use crate::args::entity::EntityBucketsArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
#[cfg(feature = "dynamodb")]
use crate::settings::StorePlace;
use crate::table::{Cell, Table, Tone};

pub(crate) async fn run(context: &Context<'_>, args: EntityBucketsArgs) -> anyhow::Result<Exit> {
    if args.shards {
        return match &context.settings.store {
            #[cfg(feature = "dynamodb")]
            StorePlace::Dynamo(place) => super::entity_shards::run(context, place, args).await,
            place => Err(Failure::usage(format!(
                "--shards shows over how many items a stack spreads a bucket; {place} keeps it in one piece"
            ))
            .hint("name a stack with --name, or leave --shards out")
            .into()),
        };
    }
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
            table.row([
                Cell::plain(&bucket.resource),
                Cell::plain(&limit.name),
                Cell::plain(Milli(limit.params.capacity_milli).floor_tokens()),
                Cell::left(available),
                Cell::plain(limit.consumed.floor_tokens()),
                state(bucket.state.flag, available),
            ]);
        }
    }
    table
}

pub(crate) fn state(flag: Flag, available: i64) -> Cell {
    match flag.blocks() {
        true => Cell::toned(flag, Tone::Bad),
        false if available < 0 => Cell::toned("in debt", Tone::Warning),
        false => Cell::plain("-"),
    }
}
