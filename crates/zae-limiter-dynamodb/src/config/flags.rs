//! Bringing a flag to the buckets it covers. The configuration is what counts; buckets carry a copy, because a take reads
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use zae_limiter_store::{Level, StoreError, StoreErrorKind};

use super::decisive_flag;
use crate::constants::FLAG_PAUSE;
use crate::item::{attr, key_of};
use crate::page::{Listing, Walk};
use crate::retry::Refused;
use crate::table::{Action, Condition, Index, Key, Update};
use crate::{DynamoStore, keys};

/// How often the buckets are looked for. Indexes lag behind; a bucket made while the flag was being stored shows up in the
/// second pass, one made later reads the flag itself.
const PASSES: u32 = 2;

/// Buckets written at the same time.
pub(super) const PARALLEL_MAX: usize = 16;

/// Switches a bucket off, or on. Never makes one.
pub(crate) fn write_flag(key: Key, disabled: bool) -> Update {
    let name = attr::DISABLED.into();
    let action = if disabled { Action::Set(name, AttributeValue::Bool(true)) } else { Action::Remove(name) };
    Update { key, actions: vec![action], conditions: vec![Condition::Exists(attr::PK.into())] }
}

/// A bucket by the words in its key: other writers accept names that we do not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bucket {
    entity: String,
    resource: String,
}

/// Brings the flag of every bucket a level covers up to date. Returns how many there are: those of the pass that found the most.
pub(super) async fn reach_buckets(store: &DynamoStore, level: &Level) -> Result<u64, StoreError> {
    let mut most = 0;
    for pass in 0..PASSES {
        if pass > 0 {
            store.shared.options.clock.sleep(FLAG_PAUSE).await;
        }
        let mut walk = Walk::new(&store.shared, "set_disabled", covered_by(store, level).after(None));
        let mut census = Census::default();
        while let Some(items) = walk.next().await? {
            let mut shards: BTreeMap<Bucket, Vec<Key>> = BTreeMap::new();
            let mut last = None;
            for key in items.iter().filter_map(key_of) {
                if let Some((entity, resource, _)) = keys::parse_bucket(&store.id, &key.pk) {
                    let bucket = Bucket { entity: entity.to_owned(), resource: resource.to_owned() };
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

/// Counts buckets page by page, without keeping them: a resource may have millions. An index lists the shards of a bucket one
/// after the other, so only the last bucket of a page can go on in the next one.
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
        Level::EntityResource(entity, resource) => {
            (Index::Gsi3, keys::index::entity(&store.id, entity), keys::index::entity_bucket_prefix(resource))
        }
        Level::Entity(entity) => (Index::Gsi3, keys::index::entity(&store.id, entity), buckets),
        Level::Resource(resource) => (Index::Gsi2, keys::index::resource(&store.id, resource), buckets),
        // Has no flag; nothing is covered by a partition nobody writes.
        Level::System => (Index::Gsi3, format!("{}/NOTHING#", store.id), buckets),
    };
    Listing { index: Some(index), partition, prefix }
}

/// Writes the flag of each bucket, by its own levels. Returns those that are there.
async fn flag_all(store: &DynamoStore, shards: BTreeMap<Bucket, Vec<Key>>) -> Result<BTreeSet<Bucket>, StoreError> {
    const OPERATION: &str = "set_disabled";
    let levels = |bucket: &Bucket| {
        let Bucket { entity, resource } = bucket;
        [
            keys::entity_config_of(&store.id, entity, resource),
            keys::entity_config_of(&store.id, entity, keys::ALL_RESOURCES),
            keys::resource_config_of(&store.id, resource),
        ]
    };
    let wanted: BTreeSet<Key> = shards.keys().flat_map(levels).collect();
    let wanted: Vec<Key> = wanted.into_iter().collect();
    let items = store.shared.read_all(OPERATION, &wanted, true).await?;
    let found: BTreeMap<&Key, _> = wanted.iter().zip(&items).collect();
    let mut writes = Vec::new();
    let mut reached = BTreeSet::new();
    for (bucket, keys) in shards {
        let stored = levels(&bucket).map(|key| found.get(&key).and_then(|item| item.as_ref()));
        match decisive_flag(stored) {
            Ok(flag) => {
                let disabled = flag.is_some_and(|(flag, _)| flag);
                writes.extend(keys.into_iter().map(|key| (bucket.clone(), write_flag(key, disabled))));
            }
            // An entity with a flag of its own that this version does not support: not ours to overrule.
            Err(error) => {
                tracing::warn!(%error, entity = bucket.entity, resource = bucket.resource, "the bucket keeps the flag it has");
                reached.insert(bucket);
            }
        }
    }
    for chunk in writes.chunks(PARALLEL_MAX) {
        // The same write twice is the same write: it may be repeated.
        let sent = chunk.iter().map(|(_, update)| store.shared.persist(OPERATION, || store.table().update(update)));
        for ((bucket, update), result) in chunk.iter().zip(join_all(sent).await) {
            match result {
                Ok(_) => drop(reached.insert(bucket.clone())),
                // It has been forgotten meanwhile, and a new one reads the flag itself.
                Err(Refused::Condition(_)) => {}
                Err(refused) => {
                    let error = refused.into_error(OPERATION);
                    let message = format!("the flag is stored, but did not reach every bucket ({error}); repeat it");
                    return Err(StoreError::new(StoreErrorKind::Unavailable, OPERATION, message).with_source(error));
                }
            }
            store.shared.caches.forget(&update.key.pk);
        }
    }
    Ok(reached)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(entity: char) -> Bucket {
        Bucket { entity: entity.to_string(), resource: "gpt-4".to_owned() }
    }

    /// Each page: the buckets listed, in the order of the index, those that are not there in capitals.
    #[track_caller]
    fn check(pages: &[&str], expected: u64) {
        let mut census = Census::default();
        for page in pages {
            let there = page.chars().filter(char::is_ascii_lowercase).map(bucket).collect();
            census.add(&there, page.chars().last().map(|entity| bucket(entity.to_ascii_lowercase())));
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
