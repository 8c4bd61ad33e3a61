//! What a batch of records comes to: usage, expired audit events, poison, and the last image of
//! each bucket. Pure: the same records always come to the same.
//!
//! | record | counts |
//! |---|---|
//! | a bucket made or changed | what its counters grew by; a counter that was not there grew from 0 |
//! | a bucket changed, with another mark of an undone take | the same, booked in the windows of that take |
//! | a bucket removed | nothing: its use was counted when it happened |
//! | an audit event removed by its expiry | archived |
//! | anything else | nothing |
//!
//! Which snapshots a record counts in depends on the record alone, and the records of one bucket
//! item come in the order of their numbers. So the records of the item that a snapshot has counted
//! are always those up to a number, also when an undone take belongs to an earlier window: that
//! number is the watermark ([`SnapshotWrite::marks`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;
use zae_limiter_core::{FOLDED, TimeMs, UsageWindow};
use zae_limiter_dynamodb::stream::{
    self, Item, Mark, REFILLED_AT, SHARD_COUNT, Snapshot, SnapshotWrite, UNDONE, WCU,
    WCU_PER_WRITE_MILLI, whole_number,
};

use crate::record::{Kind, Record, padded};

/// Microseconds of a second: the unit in which an undone take is marked.
const SECOND_US: i64 = 1_000_000;

/// A take is undone within a day, or the instant it names is not believed.
const UNDONE_AGO_MAX_S: i64 = 86_400;

/// What a batch comes to.
#[derive(Debug, Default)]
pub struct Batch {
    /// Usage by snapshot, in the order of their keys.
    pub snapshots: Vec<Counted>,
    /// Audit events that have expired, in the order they came.
    pub removed: Vec<Removed>,
    /// Records that cannot be read, at most one of each item.
    pub poison: Vec<Poison>,
    /// How many records cannot be read.
    pub poisoned: u64,
    /// The buckets that were written, each with its last image, in the order they first came.
    pub leaves: Vec<Leaf>,
    /// How many takes there were, less those undone.
    pub takes: i64,
    /// How many records were of buckets.
    pub buckets: u64,
    /// How many records were of something else.
    pub others: u64,
}

/// The records that count in one snapshot.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Which snapshot.
    pub snapshot: Snapshot,
    /// By bucket shard, and in the order of the stream.
    pub uses: Vec<Arc<Use>>,
}

/// What one record counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The shard of the bucket.
    pub shard: u32,
    /// The number of the record, padded.
    pub number: String,
    /// The stream shard of the record.
    pub stream_shard: String,
    /// The number of the record as the stream writes it.
    pub sequence: String,
    /// Millitokens by limit, none of them zero.
    pub used: Vec<(String, i64)>,
    /// How many takes; −1 for one that was undone.
    pub takes: i64,
}

/// An audit event that has expired.
#[derive(Clone, Debug, PartialEq)]
pub struct Removed {
    /// The stream shard of the record.
    pub stream_shard: String,
    /// The number of the record as the stream writes it.
    pub sequence: String,
    /// The namespace of the event.
    pub namespace: String,
    /// When it happened.
    pub at: TimeMs,
    /// The event as it was stored.
    pub event: Item,
}

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Poison {
    /// The stream shard of the record.
    pub stream_shard: String,
    /// The number of the record as the stream writes it.
    pub sequence: String,
    /// The key of its item, for people.
    pub key: String,
    /// What is wrong.
    pub why: String,
    /// The record itself.
    pub body: Value,
}

/// A bucket item that was written, for upkeep.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// Partition and sort key.
    pub key: (String, String),
    /// The id of the namespace.
    pub namespace: String,
    /// The entity, as stored.
    pub entity: String,
    /// The resource, as stored.
    pub resource: String,
    /// The shard of the bucket.
    pub shard: u32,
    /// The last image.
    pub image: Item,
    /// How many records the batch has of it.
    pub records: u64,
    /// The write units of those records: one per KiB begun.
    pub units: u64,
    /// When the first and the last record were written, in s.
    pub at_s: (i64, i64),
    /// The refill instant before the first record (of the first image, if the item was made) and
    /// after the last, in ms.
    pub refilled_ms: (i64, i64),
    /// The count of shards before the first record and after the last.
    pub shard_count: (i64, i64),
    /// Millitokens taken by limit; what was given back is not subtracted.
    pub taken: BTreeMap<String, i64>,
}

/// Folds a batch. The records of one stream shard come in the order of the stream.
#[must_use]
pub fn fold(records: &[Record], windows: &[UsageWindow]) -> Batch {
    let mut folder = Folder::default();
    for record in records {
        folder.take(record, windows);
    }
    folder.into_batch()
}

/// The sum of what records count, for one write.
#[must_use]
pub fn sum<'a>(uses: impl IntoIterator<Item = &'a Use>, expires_s: i64) -> SnapshotWrite {
    let mut write = SnapshotWrite { expires_s, ..SnapshotWrite::default() };
    for counted in uses {
        for (limit, milli) in &counted.used {
            let sum = write.used.entry(limit.clone()).or_default();
            *sum = sum.saturating_add(*milli);
        }
        write.takes = write.takes.saturating_add(counted.takes);
        let number = &counted.number;
        let new = || Mark { first: number.clone(), last: number.clone() };
        let mark = write.marks.entry(counted.shard).or_insert_with(new);
        mark.first = mark.first.clone().min(number.clone());
        mark.last = mark.last.clone().max(number.clone());
    }
    write
}

#[derive(Default)]
struct Folder {
    batch: Batch,
    snapshots: BTreeMap<Snapshot, Vec<Arc<Use>>>,
    /// By key, where among the leaves.
    leaves: HashMap<(String, String), usize>,
    poisoned: HashSet<(String, String)>,
}

/// What a bucket's record says.
#[derive(Default)]
struct Read {
    used: Vec<(String, i64)>,
    takes: i64,
    is_undo: bool,
    /// What cannot be read.
    wrong: Option<String>,
}

impl Folder {
    fn take(&mut self, record: &Record, windows: &[UsageWindow]) {
        let sk = &record.key.1;
        if sk == stream::STATE {
            self.bucket(record, windows);
        } else if sk.starts_with(stream::AUDIT) && record.kind == Kind::Remove && record.is_expired
        {
            self.removed(record);
        } else {
            self.batch.others += 1;
        }
    }

    fn bucket(&mut self, record: &Record, windows: &[UsageWindow]) {
        let pk = record.key.0.as_str();
        let namespace = stream::namespace_of(pk);
        let parsed = namespace.and_then(|namespace| {
            let (entity, resource, shard) = stream::parse_bucket(namespace, pk)?;
            Some((namespace, entity, resource, shard))
        });
        // A key of another shape is another product's, or another version's.
        let Some((namespace, entity, resource, shard)) = parsed else {
            self.batch.others += 1;
            return;
        };
        self.batch.buckets += 1;
        if record.kind == Kind::Remove {
            self.forget(&record.key);
            return;
        }
        let Some(number) = padded(&record.sequence) else {
            return self.poison(record, format!("the number {:?} is none", record.sequence));
        };
        let Some(new) = &record.new else {
            return self.poison(record, "there is no image of the item".to_owned());
        };
        let mut read = read(record.old.as_ref(), new);
        if let Some(wrong) = read.wrong.take() {
            self.poison(record, wrong);
        }
        self.batch.takes = self.batch.takes.saturating_add(read.takes);
        self.leaf(record, new, &read, (namespace, entity, resource, shard));
        if read.used.is_empty() && read.takes == 0 {
            return;
        }
        let at_s = if read.is_undo { undone_at(record, new) } else { record.at_s };
        let at = TimeMs(at_s.saturating_mul(1_000));
        let counted = Arc::new(Use {
            shard,
            number,
            stream_shard: record.stream_shard.clone(),
            sequence: record.sequence.clone(),
            used: read.used,
            takes: read.takes,
        });
        for window in windows {
            let snapshot = Snapshot {
                namespace: namespace.to_owned(),
                entity: entity.to_owned(),
                resource: resource.to_owned(),
                window: *window,
                start: window.start_of(at),
            };
            self.snapshots.entry(snapshot).or_default().push(Arc::clone(&counted));
        }
    }

    fn leaf(
        &mut self,
        record: &Record,
        new: &Item,
        read: &Read,
        (namespace, entity, resource, shard): (&str, &str, &str, u32),
    ) {
        let number = |item: Option<&Item>, name: &str| item.and_then(|item| integer(item, name));
        let before = record.old.as_ref().or(Some(new));
        let index = *self.leaves.entry(record.key.clone()).or_insert_with(|| {
            self.batch.leaves.push(Leaf {
                key: record.key.clone(),
                namespace: namespace.to_owned(),
                entity: entity.to_owned(),
                resource: resource.to_owned(),
                shard,
                image: Item::new(),
                records: 0,
                units: 0,
                at_s: (record.at_s, record.at_s),
                refilled_ms: (number(before, REFILLED_AT).unwrap_or(0), 0),
                shard_count: (number(before, SHARD_COUNT).unwrap_or(1), 1),
                taken: BTreeMap::new(),
            });
            self.batch.leaves.len() - 1
        });
        let leaf = &mut self.batch.leaves[index];
        leaf.image.clone_from(new);
        leaf.records += 1;
        leaf.units += units(new);
        leaf.at_s.1 = record.at_s;
        leaf.refilled_ms.1 = number(Some(new), REFILLED_AT).unwrap_or(0);
        leaf.shard_count.1 = number(Some(new), SHARD_COUNT).unwrap_or(1);
        for (limit, milli) in read.used.iter().filter(|(_, milli)| *milli > 0) {
            let taken = leaf.taken.entry(limit.clone()).or_default();
            *taken = taken.saturating_add(*milli);
        }
    }

    /// A bucket that is gone needs no upkeep.
    fn forget(&mut self, key: &(String, String)) {
        if let Some(index) = self.leaves.remove(key) {
            self.batch.leaves[index].records = 0;
        }
    }

    fn removed(&mut self, record: &Record) {
        let Some(event) = &record.old else {
            return self.poison(record, "there is no image of the event".to_owned());
        };
        let namespace = stream::namespace_of(&record.key.0);
        let Some((namespace, at)) = namespace.zip(stream::audit_time(event)) else {
            return self.poison(record, "the event has no time".to_owned());
        };
        self.batch.removed.push(Removed {
            stream_shard: record.stream_shard.clone(),
            sequence: record.sequence.clone(),
            namespace: namespace.to_owned(),
            at: TimeMs(at),
            event: event.clone(),
        });
    }

    fn poison(&mut self, record: &Record, why: String) {
        self.batch.poisoned += 1;
        if self.poisoned.insert(record.key.clone()) {
            self.batch.poison.push(Poison {
                stream_shard: record.stream_shard.clone(),
                sequence: record.sequence.clone(),
                key: format!("{} {}", record.key.0, record.key.1),
                why,
                body: record.to_json(),
            });
        }
    }

    fn into_batch(mut self) -> Batch {
        self.batch.leaves.retain(|leaf| leaf.records > 0);
        let counted = |(snapshot, mut uses): (Snapshot, Vec<Arc<Use>>)| {
            // A record that was delivered twice in one batch counts once.
            uses.sort_by(|a, b| (a.shard, &a.number).cmp(&(b.shard, &b.number)));
            uses.dedup_by(|a, b| (a.shard, &a.number) == (b.shard, &b.number));
            Counted { snapshot, uses }
        };
        self.batch.snapshots = self.snapshots.into_iter().map(counted).collect();
        self.batch
    }
}

/// What the counters of a bucket grew by. A counter that cannot be read counts nothing; the others
/// do.
fn read(old: Option<&Item>, new: &Item) -> Read {
    let mark = |item: &Item| integer(item, UNDONE);
    // A part of a gathered take is undone without an event of its own: the mark alone says it.
    let is_marked = old.is_some_and(|old| mark(new).is_some() && mark(old) != mark(new));
    let mut read = Read { is_undo: is_marked, ..Read::default() };
    let mut names: Vec<&str> = new.keys().filter_map(|name| stream::limit_of_used(name)).collect();
    names.sort_unstable();
    for limit in names.into_iter().filter(|limit| *limit != FOLDED) {
        let attribute = stream::used_of(limit);
        let grown = match grown(old, new, &attribute) {
            Ok(grown) => grown,
            Err(wrong) => {
                read.wrong.get_or_insert(wrong);
                continue;
            }
        };
        if limit == WCU {
            read.takes = grown / WCU_PER_WRITE_MILLI;
            read.is_undo |= grown < 0;
        } else if grown != 0 {
            read.used.push((limit.to_owned(), grown));
        }
    }
    read
}

fn grown(old: Option<&Item>, new: &Item, attribute: &str) -> Result<i64, String> {
    let counter = |item: &Item| match item.get(attribute) {
        None => Ok(0),
        Some(AttributeValue::N(digits)) => whole_number(digits)
            .ok_or_else(|| format!("{attribute} is {digits}, which is out of range")),
        Some(_) => Err(format!("{attribute} is no number")),
    };
    let (before, after) = (old.map_or(Ok(0), counter)?, counter(new)?);
    after.checked_sub(before).ok_or_else(|| format!("{attribute} grew out of range"))
}

/// When the take happened that a record undoes, in s; the record's own time when the item does not
/// say it, or says what cannot be.
fn undone_at(record: &Record, new: &Item) -> i64 {
    let said = integer(new, UNDONE).map(|at_us| at_us.div_euclid(SECOND_US).min(record.at_s));
    said.filter(|at_s| record.at_s.saturating_sub(*at_s) <= UNDONE_AGO_MAX_S).unwrap_or(record.at_s)
}

pub(crate) fn integer(item: &Item, name: &str) -> Option<i64> {
    match item.get(name) {
        Some(AttributeValue::N(digits)) => whole_number(digits),
        _ => None,
    }
}

/// The write units an item of this size costs, about: names, digits and texts.
fn units(item: &Item) -> u64 {
    let size = |value: &AttributeValue| match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len() / 2 + 2,
        AttributeValue::Ss(texts) => texts.iter().map(String::len).sum(),
        _ => 1,
    };
    let bytes: usize = item.iter().map(|(name, value)| name.len() + size(value)).sum();
    u64::try_from(bytes.div_ceil(1_024)).unwrap_or(u64::MAX).max(1)
}
