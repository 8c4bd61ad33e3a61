//! What an operator sees of shards: those of one bucket, and the buckets that have any.

use std::collections::BTreeMap;
use std::time::Duration;

use zae_limiter_core::{EntityId, Flag, LimitName, Milli, ResourceName, TimeMs};
use zae_limiter_store::StoreError;

use crate::DynamoStore;
use crate::bucket::image::Image;
use crate::constants::SHARDS_MAX;
use crate::records::item::key_of;
use crate::records::keys;
use crate::table::{Index, Key, Query, Sort};

/// Keys that a search for buckets with shards goes over: about 20 MB of the index.
const KEYS_MAX: usize = 100_000;

/// Buckets with shards that are watched: the first in the order of their keys.
const BUCKETS_MAX: usize = 100;

/// How long they are watched.
const WATCHED: Duration = Duration::from_secs(1);

/// One shard of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardView {
    /// Its number.
    pub shard: u32,
    /// How many shards the bucket would have if all had split as often as this one.
    pub count: i64,
    /// The flag in force.
    pub flag: Flag,
    /// When it was last refilled by a write.
    pub refilled_at: TimeMs,
    /// Its part of every limit in force.
    pub limits: Vec<ShardLimit>,
}

/// The part of a limit that a shard has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardLimit {
    /// The name of the limit.
    pub name: LimitName,
    /// The most this shard can have.
    pub capacity: Milli,
    /// What it has now: what has accrued since the last refill is in it.
    pub balance: Milli,
    /// Net consumption on this shard since it exists.
    pub consumed: Milli,
}

/// Buckets with shards, the one that is written most often first.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Hottest {
    /// The buckets.
    pub buckets: Vec<HotBucket>,
    /// False where the search has stopped before it had seen everything.
    pub is_complete: bool,
}

/// A bucket with shards.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HotBucket {
    /// Its owner.
    pub entity: EntityId,
    /// Its resource.
    pub resource: ResourceName,
    /// How many shards it has.
    pub shards: usize,
    /// Takes, and writes that failed, in a second of watching.
    pub writes_per_second: f64,
}

impl DynamoStore {
    /// The shards of a bucket, one for a bucket that was not split, none for one that does not
    /// exist. Not a view of one moment.
    ///
    /// Cost: one `BatchGetItem` of 32 keys.
    pub async fn shards(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
    ) -> Result<Vec<ShardView>, StoreError> {
        let keys: Vec<Key> =
            (0..SHARDS_MAX).map(|shard| keys::bucket(&self.id, entity, resource, shard)).collect();
        let items = self.shared.read_all("shards", &keys).await?;
        let now = self.shared.wall();
        items.iter().flatten().map(|item| Ok(ShardView::of(&Image::parse(item)?, now))).collect()
    }

    /// Buckets of the namespace that have several shards, watched for a second: the `most` hottest
    /// of them. The index lags: a bucket that was split a moment ago may be missing.
    ///
    /// Cost: the keys of the namespace's buckets, up to 100 000, and two reads of every shard of up
    /// to 100 buckets.
    pub async fn hottest(&self, most: usize) -> Result<Hottest, StoreError> {
        let (found, is_complete) = self.split_buckets().await?;
        if found.is_empty() {
            return Ok(Hottest { buckets: Vec::new(), is_complete });
        }
        let before = self.written(&found).await?;
        let clock = &self.shared.options.clock;
        let began = clock.now();
        clock.sleep(WATCHED).await;
        let after = self.written(&found).await?;
        let seconds = clock.now().since(began).max(1) as f64 / 1_000.0;
        let per_second = |shards: &[(i64, i64)]| {
            // A shard that was made again begins with nothing.
            let writes: i64 = shards.iter().map(|(before, after)| (after - before).max(0)).sum();
            writes as f64 / 1_000.0 / seconds
        };
        let mut buckets: Vec<HotBucket> = found
            .into_iter()
            .zip(before.iter().zip(&after))
            .filter_map(|(((entity, resource), shards), (before, after))| {
                let pairs: Vec<(i64, i64)> =
                    before.iter().zip(after).filter_map(|(b, a)| Some(((*b)?, (*a)?))).collect();
                Some(HotBucket {
                    entity: entity.parse().ok()?,
                    resource: resource.parse().ok()?,
                    shards: shards.len(),
                    writes_per_second: per_second(&pairs),
                })
            })
            .collect();
        buckets.sort_by(|one, other| other.writes_per_second.total_cmp(&one.writes_per_second));
        buckets.truncate(most);
        Ok(Hottest { buckets, is_complete })
    }

    /// Buckets that the index lists with more than one shard, and whether the search saw all.
    async fn split_buckets(&self) -> Result<(SplitBuckets, bool), StoreError> {
        let sort = Sort::Prefix(keys::index::BUCKET.to_owned());
        let query = Query::of(Some(Index::Gsi4), self.id.to_string(), sort);
        let mut walk = self.shared.walk("hottest", query);
        let (mut found, mut seen, mut is_complete) = (SplitBuckets::new(), 0, true);
        while let Some(items) = walk.next().await? {
            seen += items.len();
            for key in items.iter().filter_map(key_of) {
                let Some((entity, resource, shard)) = keys::parse_bucket(&self.id, &key.pk) else {
                    continue;
                };
                // Shard 0 comes first in the index.
                let name = (entity.to_owned(), resource.to_owned());
                if shard > 0 && shard < SHARDS_MAX {
                    found.entry(name).or_insert_with(|| vec![0]).push(shard);
                }
            }
            if seen >= KEYS_MAX || found.len() > BUCKETS_MAX {
                is_complete = found.len() <= BUCKETS_MAX && walk.is_over();
                break;
            }
        }
        while found.len() > BUCKETS_MAX {
            found.pop_last();
        }
        Ok((found, is_complete))
    }

    /// How often each shard was written so far, in thousandths.
    async fn written(&self, found: &SplitBuckets) -> Result<Vec<Vec<Option<i64>>>, StoreError> {
        let keys: Vec<Key> = found
            .iter()
            .flat_map(|((entity, resource), shards)| {
                let whose = self.whose(entity, resource);
                shards.iter().map(move |shard| whose.key(*shard))
            })
            .collect();
        let mut items = self.shared.read_all("hottest", &keys).await?.into_iter();
        let writes = |item: Option<_>| Some(Image::parse(&item?).ok()?.writes_milli);
        let of_one = |shards: &Vec<u32>| items.by_ref().take(shards.len()).map(writes).collect();
        Ok(found.values().map(of_one).collect())
    }
}

/// Entity and resource of buckets with shards, and the numbers of these.
type SplitBuckets = BTreeMap<(String, String), Vec<u32>>;

impl ShardView {
    fn of(image: &Image, now: TimeMs) -> ShardView {
        let limits = image.limits.iter().filter(|limit| !limit.retired);
        ShardView {
            shard: image.standing.shard,
            count: image.standing.count,
            flag: image.flag,
            refilled_at: image.refilled_at,
            limits: limits
                .map(|limit| ShardLimit {
                    name: limit.name.clone(),
                    capacity: limit.effective.full(),
                    balance: image.accrued(limit, now).min(limit.effective.full()),
                    consumed: limit.used,
                })
                .collect(),
        }
    }
}
