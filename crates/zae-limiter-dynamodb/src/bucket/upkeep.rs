//! What an aggregator does to buckets ahead of their takes: refilling, splitting, levelling and
//! folding (rules S14, S6). Each is one attempt by the rules of every other writer; a lost race is
//! silence. Nothing here is needed for a decision to be right.

use std::collections::BTreeMap;
use std::sync::Arc;

use zae_limiter_core::{Milli, TimeMs};
use zae_limiter_store::StoreError;

use crate::admin::version::default_namespace;
use crate::bucket::image::{Image, ImageLimit};
use crate::bucket::moves::Whose;
use crate::bucket::operation::Moment;
use crate::bucket::refill::{MustBeAbsent, Refill};
use crate::bucket::reshape::Moved;
use crate::bucket::shard::donor;
use crate::bucket::write::{Cost, Purpose};
use crate::constants::{FOLD_AFTER_MS, SHARDS_MAX, WCU_MILLI};
use crate::options::DynamoOptions;
use crate::table::error::failed;
use crate::table::{Item, Key, Table, TableError};
use crate::{DynamoStore, Shared};

/// A refill is made from an image that is at most this old, by its refill instant or its record.
pub const REFILL_IMAGE_AGE_MAX_S: i64 = 2;

/// Looks after the buckets of all namespaces of a table.
#[derive(Clone)]
pub struct Upkeep {
    shared: Arc<Shared>,
}

/// Which bucket, by the words of its keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketName {
    /// The opaque id of the namespace.
    pub namespace: String,
    /// The entity, as stored.
    pub entity: String,
    /// The resource, as stored.
    pub resource: String,
}

impl Upkeep {
    /// On a table that others use.
    pub fn new(table: Arc<dyn Table>, options: DynamoOptions) -> Upkeep {
        Upkeep { shared: Arc::new(Shared::new(table, options)) }
    }

    fn store(&self, bucket: &BucketName) -> (DynamoStore, Whose) {
        let id: Arc<str> = Arc::from(bucket.namespace.as_str());
        let store = DynamoStore { shared: Arc::clone(&self.shared), name: default_namespace(), id };
        let whose = store.whose(&bucket.entity, &bucket.resource);
        (store, whose)
    }

    async fn now(&self, store: &DynamoStore) -> Result<(Moment, TimeMs), StoreError> {
        self.shared.ask_the_time().await?;
        let moment = store.moment(self.shared.options.clock.now());
        Ok((moment, store.now(moment)))
    }

    /// Refills every limit of a shard, if it has less of a limit than was just `taken` of it, in
    /// millitokens, and something has accrued: a client with an older image then needs no refill of
    /// its own. Returns whether it was written.
    pub async fn refill(
        &self,
        bucket: &BucketName,
        shard: u32,
        item: &Item,
        taken: &BTreeMap<String, i64>,
    ) -> Result<bool, StoreError> {
        let (store, whose) = self.store(bucket);
        let image = Image::parse(item)?;
        let is_plain = image.unsupported.is_none()
            && !image.flag.blocks()
            && image.mark.is_none()
            && image.stubs.is_empty();
        let (_, now) = self.now(&store).await?;
        let is_short = |limit: &ImageLimit| {
            let taken = taken.get(limit.name.as_str()).copied().unwrap_or(0);
            let gained = limit.effective.accrual(now.since(image.refilled_at), limit.remainder).0;
            !limit.retired && limit.balance < Milli(taken) && gained > 0
        };
        if !is_plain || !image.limits.iter().any(is_short) {
            return Ok(false);
        }
        let key = whose.key(shard);
        let refill = Refill {
            key: &key,
            purpose: Purpose::Upkeep,
            image: &image,
            target: None,
            amounts: &[],
            loan: None,
            nonce: None,
            must_be_absent: MustBeAbsent::default(),
            cost: Cost::ONE,
            now,
        };
        match self.shared.table.write_bucket(refill.build()?).await {
            Ok(_) => Ok(true),
            Err(TableError::Condition(_) | TableError::Unknown(_)) => Ok(false),
            Err(error) => Err(failed("upkeep", error)),
        }
    }

    /// Splits a shard. Returns whether it was split.
    pub async fn split(&self, bucket: &BucketName, shard: u32) -> Result<bool, StoreError> {
        let (store, whose) = self.store(bucket);
        let (moment, _) = self.now(&store).await?;
        is_done(store.split(&whose.key(shard), moment).await?)
    }

    /// Splits the shards that have split less often than shard 0, and makes those that a foreign
    /// writer has left out, until all have the count of shard 0: the Python package makes what it
    /// does not find, full. Returns how many were made.
    pub async fn level(&self, bucket: &BucketName) -> Result<u64, StoreError> {
        let (store, whose) = self.store(bucket);
        let (moment, _) = self.now(&store).await?;
        let mut made = 0;
        // Each turn makes at least one shard, or is the last.
        for _ in 0..2 * SHARDS_MAX {
            let keys: Vec<Key> = (0..SHARDS_MAX).map(|shard| whose.key(shard)).collect();
            let items = self.shared.read_all("upkeep", &keys).await?;
            let images: Vec<Option<Image>> = items
                .iter()
                .map(|item| item.as_ref().map(Image::parse).transpose())
                .collect::<Result<_, _>>()?;
            let count_of = |shard: u32| {
                images
                    .get(shard as usize)
                    .and_then(Option::as_ref)
                    .map(|image| image.standing.count)
            };
            let Some(target) = count_of(0).filter(|count| *count > 1) else { break };
            let shards = u32::try_from(target).unwrap_or(0).min(SHARDS_MAX);
            let late =
                (0..shards).find(|shard| count_of(*shard).is_some_and(|count| count < target));
            let is_missing = |shard: &u32| {
                let due = count_of(donor(*shard)).is_some_and(|count| count > i64::from(*shard));
                count_of(*shard).is_none() && due
            };
            let moved = match (late, (1..shards).find(is_missing)) {
                (_, Some(missing)) => {
                    store.repair(&whose.key(donor(missing)), missing, moment).await?
                }
                (Some(shard), None) => store.split(&whose.key(shard), moment).await?,
                (None, None) => break,
            };
            if !is_done(moved)? {
                break;
            }
            made += 1;
        }
        Ok(made)
    }

    /// Folds all shards of a bucket (rule S6) if none was split for a while and each has nearly all
    /// of its room for writes. Returns whether it was folded.
    pub async fn fold(&self, bucket: &BucketName) -> Result<bool, StoreError> {
        let (store, whose) = self.store(bucket);
        let (moment, now) = self.now(&store).await?;
        let Some(looks) = store.read_shards(&whose, moment).await? else { return Ok(false) };
        let is_quiet = |image: &Image| {
            image.split_at.is_none_or(|at| now.since(at) >= FOLD_AFTER_MS)
                && image.room_at(now) >= WCU_MILLI / 10 * 9
        };
        if !looks.iter().all(|look| look.image.as_ref().is_some_and(is_quiet)) {
            return Ok(false);
        }
        is_done(store.fold(&whose, &looks, moment).await?)
    }
}

/// Whether tokens were moved. A missing permission is an error: unlike a take, upkeep has nothing
/// else to do, and whoever runs it can grant it.
fn is_done(moved: Moved) -> Result<bool, StoreError> {
    match moved {
        Moved::Done => Ok(true),
        Moved::Not | Moved::Taken => Ok(false),
        Moved::Denied(why) => Err(failed("upkeep", TableError::Denied(why))),
    }
}
