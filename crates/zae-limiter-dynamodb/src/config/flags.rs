//! Bringing a flag to the buckets it covers. The configuration is what counts; buckets carry a
//! copy, because a take reads nothing else.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use smallvec::SmallVec;
use zae_limiter_core::Flag;
use zae_limiter_store::{Level, MemberTake, StoreError, StoreErrorKind};

use super::decisive_flag;
use crate::DynamoStore;
use crate::admin::change::too_busy;
use crate::bucket::image::Image;
use crate::bucket::shard::children;
use crate::bucket::write::{
    BucketWrite, Change, FlagChange, FlagPin, ItemChange, Pins, Purpose, Room,
};
use crate::constants::{ADMIN_ATTEMPTS_MAX, FLAG_PAUSE};
use crate::records::attr;
use crate::records::item::{integer_of, key_of};
use crate::records::keys;
use crate::table::page::Listing;
use crate::table::retry::Refused;
use crate::table::{Index, Item, Key};

const OPERATION: &str = "set_flag";

/// How often the buckets are looked for. Indexes lag behind; a bucket made while the flag was being
/// stored shows up in the second pass, one made later reads the flag itself.
const PASSES: u32 = 2;

/// Buckets written at the same time.
pub(super) const PARALLEL_MAX: usize = 16;

/// The flag of a bucket as it was seen before the configuration was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenFlag {
    is_set: bool,
    count: Option<i64>,
}

impl SeenFlag {
    /// That of an item.
    fn of(item: &Item) -> SeenFlag {
        SeenFlag {
            is_set: item.contains_key(attr::DISABLED),
            count: integer_of(item, attr::FLAG_COUNT),
        }
    }

    /// That of an image.
    pub(crate) fn in_image(image: &Image) -> SeenFlag {
        SeenFlag { is_set: image.flag.blocks(), count: image.flag_count }
    }

    /// That of a bucket which was made, enabled, a moment ago.
    pub(crate) const OF_A_NEW_BUCKET: SeenFlag = SeenFlag { is_set: false, count: None };
}

/// Sets the flag of a bucket. Never makes a bucket.
///
/// The write lands only on the flag that was seen, and moves its count. A writer of a flag reads
/// the bucket first and the configuration afterwards, and a change of the configuration writes the
/// flag of every bucket in any case. So a write that is delayed, or was computed from an older
/// configuration, finds another count and fails. Example: an administrator disables and sees count
/// 3; another one enables, sees count 3 as well and writes 4; the first write arrives now and is
/// refused.
pub(crate) fn write_flag(key: Key, seen: SeenFlag, flag: Flag) -> BucketWrite {
    let SeenFlag { is_set, count } = seen;
    let flag = FlagChange { flag, count: count.unwrap_or(0).saturating_add(1) };
    let change = Change {
        nonce: None,
        pins: Pins { flag: FlagPin::Seen { is_set, count }, ..Pins::THERE },
        lines: SmallVec::new(),
        item: ItemChange { flag: Some(flag), ..ItemChange::only(Room::Uncounted) },
    };
    BucketWrite::change(key, Purpose::Flag, change)
}

impl DynamoStore {
    /// The flag that the configuration has for a bucket that says it is disabled. Where the
    /// configuration says otherwise, the flag was left behind, and is taken away unless somebody is
    /// faster.
    pub(crate) async fn reconcile_flag(
        &self,
        member: &MemberTake<'_>,
        key: &Key,
        image: &Image,
    ) -> Result<Flag, StoreError> {
        let configured = self.configured_flag(member).await?;
        if configured.blocks() {
            return Ok(configured);
        }
        let write = write_flag(key.clone(), SeenFlag::in_image(image), configured);
        match self.shared.persist("consume", || self.table().write_bucket(write.clone())).await {
            Ok(_) => tracing::warn!(
                pk = key.pk,
                "a bucket was disabled against its configuration, and is enabled again"
            ),
            // Somebody else has written the flag, or an earlier attempt of this call has.
            Err(Refused::Condition(_)) => {}
            Err(refused) => return Err(refused.into_error("consume")),
        }
        Ok(configured)
    }

    /// Gives a flag to a bucket that was made a moment ago. Whoever has written the flag since is
    /// followed by what the configuration says then: what was read before may have changed.
    pub(crate) async fn flag_new_bucket(
        &self,
        member: &MemberTake<'_>,
        key: &Key,
        mut flag: Flag,
    ) -> Result<(), StoreError> {
        let mut seen = SeenFlag::OF_A_NEW_BUCKET;
        for attempt in 1..=ADMIN_ATTEMPTS_MAX {
            let write = write_flag(key.clone(), seen, flag);
            let found = match self
                .shared
                .persist("consume", || self.table().write_bucket(write.clone()))
                .await
            {
                Ok(_) => return Ok(()),
                Err(Refused::Condition(found)) => found,
                Err(refused) => return Err(refused.into_error("consume")),
            };
            // Gone already, or somebody has written the flag since.
            let Some(item) = found else { return Ok(()) };
            seen = SeenFlag::of(&item);
            flag = self.configured_flag(member).await?;
            if seen.is_set == flag.blocks() {
                return Ok(());
            }
            self.shared.back_off(attempt).await;
        }
        Err(too_busy("consume"))
    }
}

/// A bucket by the words in its key: other writers accept names that we do not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bucket {
    entity: String,
    resource: String,
}

/// Brings the flag of every bucket a level covers up to date. Returns how many there are: those of
/// the pass that found the most.
pub(super) async fn reach_buckets(store: &DynamoStore, level: &Level) -> Result<u64, StoreError> {
    let mut most = 0;
    for pass in 0..PASSES {
        if pass > 0 {
            store.shared.options.clock.sleep(FLAG_PAUSE).await;
        }
        let mut walk = store.shared.walk(OPERATION, covered_by(store, level).after(None));
        let mut census = Census::default();
        while let Some(items) = walk.next().await? {
            let mut shards: BTreeMap<Bucket, Vec<Key>> = BTreeMap::new();
            let mut last = None;
            for key in items.iter().filter_map(key_of) {
                if let Some((entity, resource, _)) = keys::parse_bucket(&store.id, &key.pk) {
                    let bucket =
                        Bucket { entity: entity.to_owned(), resource: resource.to_owned() };
                    last = Some(bucket.clone());
                    shards.entry(bucket).or_default().push(key);
                }
            }
            census.add(&flag_all(store, shards).await?, last);
        }
        most = census.count.max(most);
    }
    store.shared.caches.forget_buckets();
    Ok(most)
}

/// Counts buckets page by page, without keeping them: a resource may have millions. An index lists
/// the shards of a bucket one after the other, so only the last bucket of a page can go on in the
/// next one.
#[derive(Default)]
struct Census {
    count: u64,
    /// The last bucket listed so far, if it has been counted.
    open: Option<Bucket>,
}

impl Census {
    /// One more page: the buckets of it that are there, and the last one it lists.
    fn add(&mut self, there: &BTreeSet<Bucket>, last: Option<Bucket>) {
        let is_again = self.open.as_ref().is_some_and(|open| there.contains(open));
        self.count += u64::try_from(there.len()).unwrap_or(u64::MAX) - u64::from(is_again);
        if let Some(last) = last {
            let is_counted = there.contains(&last) || self.open.as_ref() == Some(&last);
            self.open = is_counted.then_some(last);
        }
    }
}

/// Where the buckets a level covers are listed.
pub(super) fn covered_by(store: &DynamoStore, level: &Level) -> Listing {
    let buckets = keys::index::BUCKET.to_owned();
    let (index, partition, prefix) = match level {
        Level::EntityResource(entity, resource) => (
            Index::Gsi3,
            keys::index::entity(&store.id, entity),
            keys::index::entity_bucket_prefix(resource),
        ),
        Level::Entity(entity) => (Index::Gsi3, keys::index::entity(&store.id, entity), buckets),
        Level::Resource(resource) => {
            (Index::Gsi2, keys::index::resource(&store.id, resource), buckets)
        }
        // Has no flag; nothing is covered by a partition nobody writes.
        Level::System => (Index::Gsi3, format!("{}/NOTHING#", store.id), buckets),
    };
    Listing { index: Some(index), partition, prefix }
}

/// Writes the flag of each bucket, by its own levels. Returns those that are there.
///
/// Shard 0 comes first, and a shard before those that were split from it: a split needs an enabled
/// donor, so nothing is made behind the walk. The children of a shard follow from its count, not
/// from the index, which may not list them yet. What the index lists beside them comes last.
async fn flag_all(
    store: &DynamoStore,
    shards: BTreeMap<Bucket, Vec<Key>>,
) -> Result<BTreeSet<Bucket>, StoreError> {
    let mut reached = BTreeSet::new();
    let root = |bucket: &Bucket| keys::bucket_of(&store.id, &bucket.entity, &bucket.resource, 0);
    let mut open: Vec<(Bucket, Key)> =
        shards.keys().map(|bucket| (bucket.clone(), root(bucket))).collect();
    let mut visited: BTreeSet<Key> = open.iter().map(|(_, key)| key.clone()).collect();
    let mut listed: Vec<(Bucket, Key)> = shards
        .into_iter()
        .flat_map(|(bucket, keys)| keys.into_iter().map(move |key| (bucket.clone(), key)))
        .collect();
    let mut attempt = 0;
    while !open.is_empty() {
        let flagged = flag_once(store, open, &mut reached).await?;
        if !flagged.lost.is_empty() {
            attempt += 1;
            if attempt > ADMIN_ATTEMPTS_MAX {
                return Err(unreached(too_busy(OPERATION)));
            }
            store.shared.back_off(attempt).await;
        }
        let children = flagged.children.into_iter().filter(|(_, key)| visited.insert(key.clone()));
        open = flagged.lost.into_iter().chain(children).collect();
        if open.is_empty() {
            listed.retain(|(_, key)| visited.insert(key.clone()));
            open = std::mem::take(&mut listed);
        }
    }
    Ok(reached)
}

/// What came of one try.
#[derive(Default)]
struct Flagged {
    /// Those whose flag somebody else has written in between.
    lost: Vec<(Bucket, Key)>,
    /// The shards that were split from those that have the flag now.
    children: Vec<(Bucket, Key)>,
}

impl Flagged {
    fn walk_on(&mut self, store: &DynamoStore, bucket: &Bucket, item: &Item) {
        let shard = key_of(item)
            .and_then(|key| keys::parse_bucket(&store.id, &key.pk).map(|(_, _, shard)| shard));
        let count = integer_of(item, attr::SHARD_COUNT).unwrap_or(1);
        for child in children(shard.unwrap_or(0), count) {
            let key = keys::bucket_of(&store.id, &bucket.entity, &bucket.resource, child);
            self.children.push((bucket.clone(), key));
        }
    }
}

/// One try for each shard: the flag it has, then its configuration, then the write.
async fn flag_once(
    store: &DynamoStore,
    open: Vec<(Bucket, Key)>,
    reached: &mut BTreeSet<Bucket>,
) -> Result<Flagged, StoreError> {
    let keys: Vec<Key> = open.iter().map(|(_, key)| key.clone()).collect();
    let items = store.shared.read_all(OPERATION, &keys).await?;
    let levels = |bucket: &Bucket| {
        let Bucket { entity, resource } = bucket;
        [
            keys::entity_config_of(&store.id, entity, resource),
            keys::entity_config_of(&store.id, entity, keys::ALL_RESOURCES),
            keys::resource_config_of(&store.id, resource),
        ]
    };
    let wanted: BTreeSet<Key> = open.iter().flat_map(|(bucket, _)| levels(bucket)).collect();
    let wanted: Vec<Key> = wanted.into_iter().collect();
    let configs = store.shared.read_all(OPERATION, &wanted).await?;
    let found: BTreeMap<&Key, _> = wanted.iter().zip(&configs).collect();
    let (mut writes, mut flagged) = (Vec::new(), Flagged::default());
    for ((bucket, key), item) in open.into_iter().zip(items) {
        // Forgotten meanwhile; a new one reads the flag itself.
        let Some(item) = item else { continue };
        let stored = levels(&bucket).map(|key| found.get(&key).and_then(|item| item.as_ref()));
        match decisive_flag(stored) {
            Ok(flag) => {
                let flag = flag.map(|(flag, _)| flag).unwrap_or_default();
                writes.push((bucket, write_flag(key, SeenFlag::of(&item), flag)));
            }
            // An entity with a flag of its own that this version does not support: not ours to
            // overrule.
            Err(error) => {
                tracing::warn!(%error, entity = bucket.entity, resource = bucket.resource, "the bucket keeps the flag it has");
                flagged.walk_on(store, &bucket, &item);
                reached.insert(bucket);
            }
        }
    }
    for chunk in writes.chunks(PARALLEL_MAX) {
        // The same write twice is the same write: it may be repeated.
        let sent = chunk.iter().map(|(_, write)| {
            store.shared.persist(OPERATION, || store.table().write_bucket(write.clone()))
        });
        for ((bucket, write), result) in chunk.iter().zip(join_all(sent).await) {
            match result {
                Ok(item) => {
                    flagged.walk_on(store, bucket, &item);
                    reached.insert(bucket.clone());
                }
                Err(Refused::Condition(None)) => {}
                Err(Refused::Condition(Some(_))) => {
                    flagged.lost.push((bucket.clone(), write.key.clone()));
                }
                Err(refused) => return Err(unreached(refused.into_error(OPERATION))),
            }
            store.shared.caches.forget(&write.key.pk);
        }
    }
    Ok(flagged)
}

fn unreached(error: StoreError) -> StoreError {
    let message =
        format!("the flag is stored, but did not reach every bucket ({error}); repeat it");
    StoreError::new(StoreErrorKind::Unavailable, OPERATION, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(entity: char) -> Bucket {
        Bucket { entity: entity.to_string(), resource: "gpt-4".to_owned() }
    }

    /// Each page: the buckets listed, in the order of the index, those that are not there in
    /// capitals.
    #[track_caller]
    fn check(pages: &[&str], expected: u64) {
        let mut census = Census::default();
        for page in pages {
            let there = page.chars().filter(char::is_ascii_lowercase).map(bucket).collect();
            census
                .add(&there, page.chars().last().map(|entity| bucket(entity.to_ascii_lowercase())));
        }
        assert_eq!(census.count, expected, "{pages:?}");
    }

    #[test]
    fn a_bucket_is_counted_once_however_many_pages_list_it() {
        check(&[], 0);
        check(&["", ""], 0);
        check(&["aab"], 2);
        check(&["a", "a", "a"], 1);
        check(&["ab", "bc", "c"], 3);
        // Listed before the one its name sorts behind.
        check(&["ba", "ac"], 3);
        check(&["a", "", "a", "b"], 2);
        // Some of its shards are gone, whichever page lists them.
        check(&["A", "a"], 1);
        check(&["a", "A", "a"], 1);
        check(&["A", "A"], 0);
        check(&["aA", "Ab", "B"], 2);
    }
}
