//! Buckets of several shards: what moves tokens between them, who makes that happen, and what is
//! held against it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use zae_limiter_dynamodb::bucket::write::{BucketWrite, Pin as Pinned, Shape};
use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_dynamodb::constants::{SHARE_MIN_MILLI, WCU_NEEDED_MILLI};
use zae_limiter_dynamodb::table::{
    Action, Comparison, Condition, Item, Key, Put, Table, Update, Write, compare, number,
};
use zae_limiter_store::Clock;

use super::stream::AGGREGATOR;
use super::{Knowledge, Scene, events};
use crate::oracle::Broken;
use crate::oracle::books::Books;
use crate::oracle::journal::finish;
use crate::oracle::protocol::ideal::IdealBucket;
use crate::oracle::protocol::instant::Instant;
use crate::oracle::protocol::ledger::Amounts;
use crate::oracle::protocol::moves::{Parted, check_fold};
use crate::oracle::protocol::share::{Place, SHARDS_MAX};
use crate::oracle::protocol::stored::{self, Stored};
use crate::oracle::protocol::whole::{Leaves, Whole, tree};
use crate::oracle::protocol::writer::{place, takes};
use crate::rng::Rng;
use crate::table::{Call, Change, Fate, Request, Told};

/// Of a hundred moments, those at which somebody begins to split or to fold.
const BEGINS: u64 = 45;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Splits and folds under way.
pub(super) struct Upkeep(Mutex<(Rng, Vec<Work>)>);

impl Upkeep {
    pub(super) fn new(rng: Rng) -> Upkeep {
        Upkeep(Mutex::new((rng, Vec::new())))
    }

    fn lock(&self) -> MutexGuard<'_, (Rng, Vec<Work>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bucket a shard belongs to, and its number.
pub(super) fn bucket_and_shard(pk: &str) -> Option<(&str, i64)> {
    let (bucket, shard) = pk.rsplit_once('#')?;
    Some((bucket, shard.parse().ok()?))
}

/// True for writers that move tokens between shards, and remove those that are left over.
pub(super) fn moves(writer: Writer) -> bool {
    use Writer::{Fold, FoldChild, Prune, Split, SplitChild};
    matches!(writer, Split | SplitChild | Fold | FoldChild | Prune)
}

/// Who writes, and whether a call of the store makes it do so.
type By = (u32, bool);

/// The writes of one call to buckets.
type Legs<'a> = [(Option<&'a BucketWrite>, &'a Change)];

fn of_writer<'a>(legs: &Legs<'a>, writer: Writer) -> Option<&'a Change> {
    legs.iter().find(|(write, _)| write.is_some_and(|it| it.writer() == writer)).map(|leg| leg.1)
}

fn read(item: &Option<Item>) -> Result<Stored, Broken> {
    stored::read(item.as_ref().ok_or("a shard that is not there")?)
}

impl Scene {
    /// Splits and folds go on, and now and then one begins.
    pub(super) fn keep_up(&self, books: &Books) {
        self.tick();
        if !self.is_sharded {
            return self.look(books);
        }
        let mut upkeep = self.upkeep.lock();
        let (rng, works) = &mut *upkeep;
        if rng.chance(BEGINS) && works.len() < 4 {
            works.extend(self.begin(rng));
        }
        let mut context = Context::from_waker(Waker::noop());
        works.retain_mut(|work| {
            let polls = rng.between(1, 6);
            // Some processes stop in the middle.
            !rng.chance(2) && (0..polls).all(|_| work.as_mut().poll(&mut context) == Poll::Pending)
        });
        drop(upkeep);
        self.look(books);
    }

    /// Somebody begins to split a shard, or to fold a bucket.
    fn begin(&self, rng: &mut Rng) -> Option<Work> {
        let known = self.lock();
        let buckets: Vec<(&String, &Leaves)> =
            known.leaves.iter().filter(|(_, leaves)| leaves.contains_key(&0)).collect();
        let (bucket, leaves) = *buckets.get(rng.index(buckets.len()))?;
        let shards: Vec<i64> = tree(leaves)
            .into_iter()
            .filter(|(place, like)| *place == like.place)
            .map(|(place, _)| place.shard)
            .collect();
        let is_fold = shards.len() > 1 && rng.chance(30);
        let shard = *shards.get(rng.index(shards.len()))?;
        let (pk, place) = (format!("{bucket}#{shard}"), rng.index(known.stores.len()));
        let (_, store, clock) = known.stores.get(place)?;
        let (store, now) = (store.clone(), clock.now());
        Some(Box::pin(async move {
            // Whether it was done is seen on the table.
            drop(match is_fold {
                true => store.fold_now(&pk, now).await,
                false => store.split_now(&pk, now).await,
            });
        }))
    }

    /// A shard is like this now.
    pub(super) fn note_leaf(
        &self,
        known: &mut Knowledge,
        pk: &str,
        (before, after): (Option<&Stored>, Option<&Stored>),
        what: Option<(Writer, &Amounts)>,
    ) -> Result<(), Broken> {
        let Some((bucket, shard)) = bucket_and_shard(pk).filter(|_| self.may_split()) else {
            return Ok(());
        };
        let Knowledge { leaves, wholes, ideals, .. } = known;
        let leaves = leaves.entry(bucket.to_owned()).or_default();
        if let Some(whole) = wholes.get_mut(bucket) {
            whole.wait(leaves, self.truth.now().0);
        }
        let was_in = tree(leaves).iter().any(|(place, _)| place.shard == shard);
        match after {
            Some(after) => drop(leaves.insert(shard, after.clone())),
            None => {
                leaves.remove(&shard);
                wholes.remove(bucket);
            }
        }
        let Some(whole) = wholes.get_mut(bucket).filter(|_| was_in) else { return Ok(()) };
        match (before, after, what) {
            (Some(before), Some(after), Some(what)) => {
                whole.landed(what, (before, after), leaves, |name| {
                    allowed(ideals, bucket, leaves, name)
                })
            }
            // Shard 0 was made again.
            (None, Some(_), Some(_)) => {
                wholes.remove(bucket);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Holds all shards of the buckets of a call to their ideal buckets.
    pub(super) fn check_wholes(&self, known: &Knowledge, legs: &Legs<'_>) -> Result<(), Broken> {
        for (_, change) in legs {
            let Some((bucket, _)) = bucket_and_shard(&change.key.pk) else { continue };
            if let (Some(whole), Some(leaves)) =
                (known.wholes.get(bucket), known.leaves.get(bucket))
            {
                whole
                    .check(leaves, |name| allowed(&known.ideals, bucket, leaves, name))
                    .map_err(|broken| format!("{bucket}: {broken}"))?;
            }
        }
        Ok(())
    }

    /// An entity goes with all shards of its buckets, or not at all.
    pub(super) fn check_deleted(&self, known: &Knowledge, legs: &Legs<'_>) -> Result<(), Broken> {
        for (write, change) in legs {
            let is_deleted = write.is_some_and(|write| write.writer() == Writer::Delete);
            let Some((bucket, _)) = bucket_and_shard(&change.key.pk).filter(|_| is_deleted) else {
                continue;
            };
            let Some(leaves) = known.leaves.get(bucket) else { continue };
            for (place, like) in tree(leaves) {
                let pk = format!("{bucket}#{}", place.shard);
                if place == like.place && !legs.iter().any(|(_, change)| change.key.pk == pk) {
                    return Err(format!("{bucket} is deleted without its shard {}", place.shard));
                }
            }
        }
        Ok(())
    }

    /// Checks a transaction that moves tokens between shards.
    pub(super) fn check_moved(
        &self,
        known: &mut Knowledge,
        by: By,
        legs: &Legs<'_>,
    ) -> Result<(), Broken> {
        for (write, _) in legs {
            let writer = write.ok_or("shards were changed by no writer of the registry")?.writer();
            known.coverage.writers[place(writer)] += 1;
        }
        if let Some(donor) = of_writer(legs, Writer::Split) {
            let child = of_writer(legs, Writer::SplitChild).ok_or("a split without a child")?;
            return self.check_split(known, by, (donor, child));
        }
        if let Some(root) = of_writer(legs, Writer::Fold) {
            return self.check_folded(known, root, legs);
        }
        match legs {
            [(_, change)] if of_writer(legs, Writer::Prune).is_some() => {
                self.check_pruned(known, change)
            }
            _ => Err(format!("shards were moved by {legs:?}")),
        }
    }

    fn check_split(
        &self,
        known: &mut Knowledge,
        (client, is_of_a_call): By,
        (donor, child): (&Change, &Change),
    ) -> Result<(), Broken> {
        let truth = self.truth.now().0;
        if child.before.is_some() {
            return Err("a split replaced a shard".to_owned());
        }
        let (bucket, _) = bucket_and_shard(&donor.key.pk).ok_or("not a bucket")?;
        let (before, after) = (read(&donor.before)?, read(&donor.after)?);
        let made = read(&child.after)?;
        let Knowledge { leaves, wholes, ideals, instants, coverage, administration, .. } = known;
        let leaves = leaves.entry(bucket.to_owned()).or_default();
        // An aggregator is not told of another least share.
        let share_min = match client {
            AGGREGATOR => SHARE_MIN_MILLI,
            _ => self.share_min_milli,
        };
        let parted = Parted {
            before: &before,
            after: &after,
            child: &made,
            instant: instants.entry(donor.key.pk.clone()).or_default(),
            divided_from: i128::from(SHARDS_MAX) * i128::from(share_min),
        };
        parted.check()?;
        let counts = &mut coverage.shards;
        let is_repair = parted.is_repair();
        counts.repairs += u64::from(is_repair);
        counts.splits += u64::from(!is_repair);
        counts.pressed += u64::from(!is_repair && is_of_a_call);
        counts.pinned += u64::from(!after.place.pinned.is_empty());
        let is_burdened = before.limits.values().any(|limit| limit.gap > 0 || limit.balance < 0);
        counts.burdened += u64::from(is_burdened);
        let ideal = ideals.entry(donor.key.pk.clone()).or_default();
        if before.place.is_alone() {
            wholes.insert(bucket.to_owned(), Whole::new(ideal, truth));
        } else if let Some(whole) = wholes.get_mut(bucket) {
            whole.wait(leaves, truth);
        }
        let other = ideal.part(&after, &made, truth);
        ideals.insert(child.key.pk.clone(), other);
        administration.parted(&donor.key.pk, &child.key.pk);
        for (change, stored) in [(donor, after), (child, made)] {
            // A repair leaves the count: whoever has an image of before it may still write.
            let instant = instants.entry(change.key.pk.clone()).or_default();
            if !is_repair {
                *instant = Instant::default();
            }
            instant.note(&stored);
            leaves.insert(stored.place.shard, stored);
        }
        Ok(())
    }

    fn check_folded(
        &self,
        known: &mut Knowledge,
        root: &Change,
        legs: &Legs<'_>,
    ) -> Result<(), Broken> {
        let truth = self.truth.now().0;
        let (bucket, _) = bucket_and_shard(&root.key.pk).ok_or("not a bucket")?;
        let after = read(&root.after)?;
        let nothing = Instant::default();
        let before = legs.iter().map(|(_, change)| read(&change.before));
        let before = before.collect::<Result<Vec<Stored>, Broken>>()?;
        let Knowledge { leaves, wholes, ideals, instants, coverage, administration, .. } = known;
        let leaves = leaves.entry(bucket.to_owned()).or_default();
        let seen = legs.iter().map(|(_, change)| instants.get(&change.key.pk).unwrap_or(&nothing));
        let pairs: Vec<(&Stored, &Instant)> = before.iter().zip(seen).collect();
        check_fold(&pairs, &after, tree(leaves).len())?;
        coverage.shards.folds += 1;
        if let Some(whole) = wholes.get_mut(bucket) {
            whole.wait(leaves, truth);
        }
        let folded = legs.iter().filter_map(|(_, change)| ideals.get(&change.key.pk));
        let mut ideal = IdealBucket::collect(folded, &after, truth)?;
        for (_, change) in legs {
            ideals.remove(&change.key.pk);
            instants.remove(&change.key.pk);
            if change.after.is_none() {
                administration.gone(&change.key.pk);
            }
        }
        for shard in &before {
            leaves.remove(&shard.place.shard);
        }
        instants.entry(root.key.pk.clone()).or_default().note(&after);
        leaves.insert(0, after);
        if let Some(whole) = wholes.get(bucket) {
            whole.meters().for_each(|(name, meter)| ideal.admitted(name, meter));
        }
        ideals.insert(root.key.pk.clone(), ideal);
        if let Some(whole) = wholes.remove(bucket) {
            whole.check(leaves, |name| allowed(ideals, bucket, leaves, name))?;
        }
        Ok(())
    }

    fn check_pruned(&self, known: &mut Knowledge, change: &Change) -> Result<(), Broken> {
        let (bucket, shard) = bucket_and_shard(&change.key.pk).ok_or("not a bucket")?;
        let leaves = known.leaves.entry(bucket.to_owned()).or_default();
        let is_part =
            tree(leaves).iter().any(|(place, like)| place.shard == shard && *place == like.place);
        // A foreign writer may make a shard, and raise the count over it while somebody prunes it.
        if is_part && !known.strange.contains(bucket) {
            return Err(format!("shard {shard} belongs to its bucket, and was removed"));
        }
        leaves.remove(&shard);
        known.ideals.remove(&change.key.pk);
        known.instants.remove(&change.key.pk);
        known.administration.gone(&change.key.pk);
        known.coverage.shards.prunes += 1;
        Ok(())
    }

    /// A foreign writer has changed a shard, raised its count, or made one. True if that is all
    /// there is to know of it.
    pub(super) fn note_foreign(
        &self,
        known: &mut Knowledge,
        pk: &str,
        (before, after): (Option<&Stored>, &Stored),
        amounts: &Amounts,
    ) -> Result<bool, Broken> {
        let truth = self.truth.now().0;
        let Some((bucket, _)) = bucket_and_shard(pk).filter(|_| self.may_split()) else {
            return Ok(false);
        };
        known.strange.insert(bucket.to_owned());
        let is_raised = before.is_some_and(|before| before.place != after.place);
        known.coverage.shards.raised += u64::from(is_raised);
        if is_raised || before.is_none() {
            let Knowledge { wholes, ideals, instants, .. } = known;
            let ideal = ideals.entry(pk.to_owned()).or_default();
            if is_raised && !wholes.contains_key(bucket) {
                wholes.insert(bucket.to_owned(), Whole::new(ideal, truth));
            }
            match before {
                Some(_) => ideal.recount(after, truth),
                None => *ideal = IdealBucket::found(after, truth),
            }
            let mut instant = Instant::default();
            instant.note(after);
            instants.insert(pk.to_owned(), instant);
        }
        // A stranger may take, and be wrong: nothing here counts as a take.
        self.note_leaf(known, pk, (before, Some(after)), before.map(|_| (Writer::Flag, amounts)))?;
        let Knowledge { wholes, leaves, .. } = known;
        if let (Some(whole), Some(leaves)) = (wholes.get_mut(bucket), leaves.get(bucket)) {
            whole.foreign(leaves);
        }
        Ok(is_raised || before.is_none())
    }

    /// Counts what a write of ours did to one of several shards.
    pub(super) fn count_shard(&self, known: &mut Knowledge, writer: Writer, after: &Stored) {
        if after.place.is_alone() {
            return;
        }
        let counts = &mut known.coverage.shards;
        counts.takes += u64::from(takes(writer));
        counts.syncs += u64::from(matches!(writer, Writer::Sync | Writer::SyncOnly));
        counts.flags += u64::from(writer == Writer::Flag);
    }

    /// A crowd that nobody here simulates has written a shard so often that it takes no more writes
    /// for some time.
    pub(super) fn press(&self, rng: &mut Rng) -> String {
        let Some((key, found)) = self.some_shard(rng, |_| true) else {
            return "no bucket".to_owned();
        };
        let Some(mut item) = self.table.get(&key) else { return "no bucket".to_owned() };
        // A second has room for a thousand writes, so a millisecond gains a write.
        let gained = self.truth.now().0.saturating_sub(found.refilled_at).max(0) * 1_000;
        let more = *rng.pick(&[1, 400_000, 3_000_000]);
        item.insert("b_wcu_tk".to_owned(), number(WCU_NEEDED_MILLI - gained - more));
        self.table.insert(&item);
        format!("a crowd writes {}", key.pk)
    }

    /// As the Python package doubles a bucket: the count of shard 0, and nothing else.
    pub(super) fn foreign_count(&self, rng: &mut Rng) -> String {
        let Some((key, found)) = self.some_shard(rng, |place| place.shard == 0) else {
            return "no bucket".to_owned();
        };
        let count = found.place.count;
        let update = Update {
            actions: vec![Action::Set("shard_count".into(), number(2 * count))],
            conditions: vec![compare("shard_count", Comparison::Eq, count)],
            key,
        };
        let answer = finish(self.table.client(events::FOREIGN).update(&update));
        format!("a stranger doubles {count} shards of {}: {}", update.key.pk, answer.is_ok())
    }

    /// As the Python package makes a shard that it does not find, although nobody gave it a part:
    /// one that is missing, or one that belongs to no bucket. It has none of our stamps.
    pub(super) fn foreign_shard(&self, rng: &mut Rng) -> String {
        let missing = self.missing_shard(rng).filter(|_| rng.chance(70));
        let other = || {
            let (key, found) = self.some_shard(rng, |_| true)?;
            Some((key, found.place.child()))
        };
        let Some((key, place)) = missing.or_else(other) else { return "no bucket".to_owned() };
        let Some(mut item) = self.table.get(&key) else { return "no bucket".to_owned() };
        let Some((bucket, _)) = bucket_and_shard(&key.pk) else { return "no bucket".to_owned() };
        let pk = format!("{bucket}#{}", place.shard);
        item.insert("PK".to_owned(), aws_sdk_dynamodb::types::AttributeValue::S(pk.clone()));
        item.insert("shard_count".to_owned(), number(place.count));
        for ours in ["ttl", "ca", "er", "fv", "ln", "lw", "pin", "rmf", "sp", "tx", "un", "wx"] {
            item.remove(ours);
        }
        let is_ours = |name: &str| ["_fu", "_gp", "_rm"].iter().any(|end| name.ends_with(end));
        item.retain(|name, _| !is_ours(name));
        let put = Put { item, conditions: vec![Condition::Absent("PK".into())] };
        let answer = finish(self.table.client(events::FOREIGN).put(&put));
        format!("a stranger makes {pk}: {}", answer.is_ok())
    }

    /// A shard that its donor says should be there, and is not; the donor's key.
    fn missing_shard(&self, rng: &mut Rng) -> Option<(Key, Place)> {
        let known = self.lock();
        let mut found: Vec<(Key, Place)> = Vec::new();
        for (bucket, leaves) in &known.leaves {
            let missing = tree(leaves).into_iter().filter(|(place, like)| *place != like.place);
            found.extend(missing.map(|(place, like)| {
                let pk = format!("{bucket}#{}", like.place.shard);
                (Key { pk, sk: "#STATE".into() }, place)
            }));
        }
        let place = rng.index(found.len());
        (!found.is_empty()).then(|| found.swap_remove(place))
    }

    /// A shard that can be split.
    fn some_shard(&self, rng: &mut Rng, wanted: impl Fn(&Place) -> bool) -> Option<(Key, Stored)> {
        let known = self.lock();
        let mut found: Vec<(Key, Stored)> = Vec::new();
        for (bucket, leaves) in &known.leaves {
            let members = tree(leaves).into_iter().filter(|(place, like)| {
                *place == like.place && place.count < SHARDS_MAX && wanted(place)
            });
            found.extend(members.map(|(place, like)| {
                let pk = format!("{bucket}#{}", place.shard);
                (Key { pk, sk: "#STATE".into() }, like.clone())
            }));
        }
        let place = rng.index(found.len());
        (!found.is_empty()).then(|| found.swap_remove(place))
    }
}

/// Counts the writes of a call that lost, and whose sender knew an older tree: the item has another
/// count or another era than was pinned, or a fold has taken it away. Splits that lose a race are
/// not counted.
pub(super) fn note_stale(known: &mut Knowledge, call: &Call) {
    let is_decided = match call.told {
        Told::Condition => true,
        // Without a look at the table, a fault has named a leg.
        Told::Canceled => call.fate == Fate::Pass,
        _ => false,
    };
    let writes: Vec<&BucketWrite> = match &call.request {
        Request::Bucket(write) if is_decided => vec![write],
        Request::Transact(writes, _) if is_decided => {
            let legs = writes.iter().filter_map(|write| match write {
                Write::Bucket(write) => Some(&**write),
                _ => None,
            });
            legs.collect()
        }
        _ => return,
    };
    let Knowledge { leaves, coverage, .. } = known;
    let counts = &mut coverage.shards;
    for write in writes.into_iter().filter(|write| !moves(write.writer())) {
        let Shape::Change(change) = &write.shape else { continue };
        let pins = &change.pins;
        let Some((bucket, shard)) = bucket_and_shard(&write.key.pk) else { continue };
        let (Some(leaves), Some(count)) = (leaves.get(bucket), pins.shard_count) else {
            continue;
        };
        let is_other_era = |era: i64| match pins.era {
            Pinned::Any => false,
            Pinned::Absent => era != 0,
            Pinned::Is(pinned) => pinned != era,
        };
        match (leaves.get(&shard), leaves.get(&0)) {
            (Some(found), _) if found.place.count != count => match count {
                1 => counts.taken_for_one += 1,
                _ => counts.other_count += 1,
            },
            (Some(found), _) => counts.other_era += u64::from(is_other_era(found.place.era)),
            // A fold leaves its mark on shard 0; a shard may also never have been there.
            (None, Some(root)) => counts.taken_away += u64::from(is_other_era(root.place.era)),
            (None, None) => {}
        }
    }
}

/// What all shards may differ by together, of one limit.
fn allowed(
    ideals: &std::collections::BTreeMap<String, IdealBucket>,
    bucket: &str,
    leaves: &Leaves,
    name: &str,
) -> i128 {
    let shards = leaves.keys().filter_map(|shard| ideals.get(&format!("{bucket}#{shard}")));
    shards.map(|ideal| ideal.allowed(name)).sum()
}
