//! Buckets: the hot path. A take goes down this list and the answer comes back up.
//!
//! | file | what it does |
//! |---|---|
//! | `chain.rs` | takes from every bucket of a chain or from none |
//! | `take.rs` | one bucket: sends what `debit.rs` chooses until there is an answer |
//! | `debit.rs`, `refill.rs` | which write takes, given what is known of the bucket; pure |
//! | `operation.rs` | the time, the nonce and the memory of an operation |
//! | `exchange.rs` | sends a write and hears what its answer proves |
//! | `write.rs`, `render.rs` | a write as a value, and as a request; `writers.rs` is the registry |
//! | `image.rs`, `cache.rs` | a bucket as it was seen, and what the process remembers |
//! | `settle.rs`, `charge.rs`, `credit.rs` | after the fact: charging and giving back |
//! | `lend.rs`, `loans.rs` | lending to local blocks; what is lent, as it is stored |
//! | `create.rs`, `reset.rs` | a bucket that is not there; filling one by order |
//! | `adopt.rs` | buckets and usage of another store |
//! | `gather.rs`, `send_all.rs`, `tree.rs` | taking from a bucket with several shards; what is remembered of them |
//! | `shard.rs`, `moves.rs`, `reshape.rs` | shares of shards; moving tokens between them, pure and sent |
//! | `waits.rs` | what shards can serve together, and when; pure |
//! | `upkeep.rs`, `views.rs` | what an aggregator does to shards; what an operator sees of them |
//! | `report.rs` | balances and waits for the caller; looking without taking |

mod adopt;
mod cache;
mod chain;
mod charge;
mod create;
mod credit;
mod debit;
mod exchange;
mod expiry;
mod gather;
pub(crate) mod image;
mod lend;
pub(crate) mod loans;
pub(crate) mod moves;
pub(crate) mod operation;
mod refill;
pub(crate) mod render;
mod report;
mod reset;
mod reshape;
mod send_all;
mod settle;
pub(crate) mod shard;
pub(crate) mod take;
mod tree;
pub mod upkeep;
mod views;
mod waits;
pub mod write;
pub mod writers;

use futures_util::future::join_all;
use zae_limiter_core::{EntityId, Report, ResourceName, TimeMs};
use zae_limiter_store::{
    Adjusted, Adopted, Adoption, BoxFuture, BucketDelta, BucketStore, BucketView, Change,
    ConsumeOutcome, ConsumeRequest, Grant, MemberTake, Order, Page, PageRequest, Provisioned,
    ResetRequest, Restored, StoreError, StoreFuture,
};

pub(crate) use cache::Caches;
pub use cache::Counters;
pub use views::{HotBucket, Hottest, ShardLimit, ShardView};

use crate::DynamoStore;
use crate::records::item::{key_of, text_of};
use crate::records::{attr, keys};
use crate::table::page::Listing;
use crate::table::{Index, Item, Key};
use image::Image;

impl BucketStore for DynamoStore {
    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        let Some(caller) = request.members.first().map(|member| member.entity) else {
            return Box::pin(async {
                request.check("consume").map(|()| ConsumeOutcome::Granted(Grant::default()))
            });
        };
        if request.members.iter().any(MemberTake::is_unlimited) {
            return Box::pin(self.with_limited_members(request, DynamoStore::consume_limited));
        }
        self.consume_limited(request, caller)
    }

    fn peek<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        if request.members.iter().any(MemberTake::is_unlimited) {
            return Box::pin(
                self.with_limited_members(request, |store, limited, _| store.peek(limited)),
            );
        }
        Box::pin(async move {
            request.check("peek")?;
            self.peek_chain(request).await
        })
    }

    fn provision<'a>(&'a self, order: &'a Order<'a>, now: TimeMs) -> StoreFuture<'a, Provisioned> {
        Box::pin(self.lend(order, now))
    }

    fn settle<'a>(
        &'a self,
        entity: &'a EntityId,
        resource: &'a ResourceName,
        report: &'a Report,
        now: TimeMs,
    ) -> StoreFuture<'a, ()> {
        Box::pin(self.end_loan(entity, resource, report, now))
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        Box::pin(async move {
            let moment = self.moment(now);
            if let Err(error) = self.shared.ask_the_time().await {
                // The use is charged all the same, by the time that was last heard.
                tracing::debug!(%error, "the table did not tell its time");
            }
            join_all(deltas.iter().map(|delta| self.settle_delta(delta, moment))).await
        })
    }

    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Option<Restored>> {
        Box::pin(self.reset_bucket(request, change))
    }

    fn buckets<'a>(
        &'a self,
        entity: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>> {
        let partition = keys::index::entity(&self.id, entity);
        Box::pin(self.list_buckets("buckets", (Index::Gsi3, attr::GSI3SK), partition, page))
    }

    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>> {
        let partition = keys::index::resource(&self.id, resource);
        let index = (Index::Gsi2, attr::GSI2SK);
        Box::pin(self.list_buckets("resource_buckets", index, partition, page))
    }

    fn namespace_buckets<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<BucketView>> {
        let index = (Index::Gsi4, attr::GSI4SK);
        Box::pin(self.list_buckets("namespace_buckets", index, self.id.to_string(), page))
    }

    fn adopt<'a>(
        &'a self,
        adoption: &'a Adoption<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Vec<Adopted>> {
        Box::pin(self.adopt_all(adoption, change))
    }
}

impl DynamoStore {
    /// One page of buckets: keys from an index, then the items themselves, because indexes lag and
    /// may hold only keys.
    async fn list_buckets(
        &self,
        operation: &'static str,
        (index, sort_key): (Index, &str),
        partition: String,
        page: &PageRequest,
    ) -> Result<Page<BucketView>, StoreError> {
        let prefix = keys::index::BUCKET.to_owned();
        let listing = Listing { index: Some(index), partition, prefix };
        let named = |item: &Item| {
            let name = text_of(item, sort_key)
                .and_then(|sort| sort.strip_prefix(keys::index::BUCKET))
                .unwrap_or_default();
            Ok((name.to_owned(), key_of(item).filter(|_| name.ends_with("#0"))))
        };
        let found = self.shared.list(operation, &listing, page, named).await?;
        let items = self.shared.read_all(operation, &found.items).await?;
        let mut views = Vec::with_capacity(items.len());
        for (key, item) in found.items.iter().zip(&items) {
            let Some(item) = item else { continue };
            let view =
                self.bucket_view(key, item).await.map_err(|error| error.during(operation))?;
            views.extend(view);
        }
        Ok(Page { items: views, next: found.next })
    }

    /// A bucket, all its shards together. `None` for one whose names this version does not accept.
    async fn bucket_view(&self, key: &Key, item: &Item) -> Result<Option<BucketView>, StoreError> {
        let Some((entity, resource, _)) = keys::parse_bucket(&self.id, &key.pk) else {
            return Ok(None);
        };
        let (Ok(entity), Ok(resource)) = (entity.parse(), resource.parse()) else {
            tracing::warn!(pk = %key.pk, "a bucket with names this version does not accept is left out");
            return Ok(None);
        };
        let root = Image::parse(item)?;
        if root.standing.is_alone() || !root.standing.is_possible() {
            return Ok(Some(BucketView { entity, resource, state: root.view() }));
        }
        let whose = self.whose(entity.as_str(), resource.as_str());
        // Of one moment: a fold in between would show a part of the bucket.
        let moment = self.moment(self.shared.options.clock.now());
        let looks = self.read_shards(&whose, moment).await?.unwrap_or_default();
        let mut images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
        if images.is_empty() {
            images.push(&root);
        }
        let latest = images.iter().map(|image| image.refilled_at).max().unwrap_or_default();
        let whole = moves::whole(&images, latest).unwrap_or(root);
        Ok(Some(BucketView { entity, resource, state: whole.view() }))
    }
}
