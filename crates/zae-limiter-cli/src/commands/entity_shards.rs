//! `entity buckets --shards`: the items that a bucket of a stack is spread over.

use serde::Serialize;
use zae_limiter::domain::rfc3339;
use zae_limiter::dynamodb::ShardView;
use zae_limiter::wire::{BucketForm, BucketLimitForm, FlagForm};
use zae_limiter::{BucketView, Error, Page};

use super::entity_buckets::state;
use super::shared::listing;
use crate::args::entity::EntityBucketsArgs;
use crate::args::value::DynamoPlace;
use crate::context::Context;
use crate::dynamodb;
use crate::exit::Exit;
use crate::table::{Cell, Table};

/// A bucket with its shards.
#[derive(Serialize)]
struct Form {
    #[serde(flatten)]
    bucket: BucketForm,
    shards: Vec<ShardForm>,
}

#[derive(Serialize)]
struct ShardForm {
    shard: u32,
    /// How many shards the bucket would have if all had split as often as this one.
    of: i64,
    disabled: FlagForm,
    refilled_at: String,
    limits: Vec<BucketLimitForm>,
}

/// Lists buckets with the shards of each, as they are now.
pub(crate) async fn run(
    context: &Context<'_>,
    place: &DynamoPlace,
    args: EntityBucketsArgs,
) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let page = limiter.buckets(args.id, &args.page.request()).await?;
    let store = dynamodb::store(place, context.settings).await?;
    let mut split = Vec::with_capacity(page.items.len());
    for bucket in page.items {
        let shards = store.shards(&bucket.entity, &bucket.resource).await.map_err(Error::from)?;
        split.push((bucket, shards));
    }
    let page = Page { items: split, next: page.next };
    listing::answer(context, &page, form, table(&page.items), "no buckets")
}

fn form((bucket, shards): &(BucketView, Vec<ShardView>)) -> Form {
    let shard = |view: &ShardView| ShardForm {
        shard: view.shard,
        of: view.count,
        disabled: FlagForm(view.flag),
        refilled_at: rfc3339(view.refilled_at),
        limits: view
            .limits
            .iter()
            .map(|limit| BucketLimitForm {
                limit_name: limit.name.to_string(),
                capacity_milli: limit.capacity.0,
                available_milli: limit.balance.0,
                consumed_milli: limit.consumed.0,
            })
            .collect(),
    };
    Form { bucket: BucketForm::from(bucket), shards: shards.iter().map(shard).collect() }
}

fn table(buckets: &[(BucketView, Vec<ShardView>)]) -> Table {
    let mut table =
        Table::new(["RESOURCE", "SHARD", "LIMIT", "CAPACITY:", "AVAILABLE:", "CONSUMED:", "STATE"]);
    for (bucket, shards) in buckets {
        for shard in shards {
            for limit in &shard.limits {
                let available = limit.balance.floor_tokens();
                table.row([
                    Cell::plain(&bucket.resource),
                    Cell::plain(format!("{} of {}", shard.shard, shard.count)),
                    Cell::plain(&limit.name),
                    Cell::plain(limit.capacity.floor_tokens()),
                    Cell::left(available),
                    Cell::plain(limit.consumed.floor_tokens()),
                    state(shard.flag, available),
                ]);
            }
        }
    }
    table
}
