//! The configuration records this process has read, for a while: the record of the namespace, the
//! levels, the records of entities. What many keys share (namespace, system, resource, an ancestor)
//! is read once, not once per key.
//!
//! No record is trusted for a time of its own: the caller says how old an answer may be, and is
//! told how old it is. Records are invalidated by epochs: a read that was on its way while this
//! process changed its record is never used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult, PlaceholderGuard};
use zae_limiter_store::StoreError;

use crate::Shared;
use crate::constants::RECORDS_MAX;
use crate::records::item::key_of;
use crate::table::{Item, Key, Write};

/// Records are spread over this many epochs, so that a change of one invalidates few others.
const EPOCHS: usize = 256;

/// Times a record is waited for that another caller is reading; then it is read all the same.
const FOLLOW_ROUNDS_MAX: u32 = 3;

/// One record as it was read.
#[derive(Debug)]
pub(crate) struct Record {
    /// `None` when there was none.
    pub(crate) item: Option<Item>,
    /// A tick from before the read.
    pub(crate) tick: u64,
    /// When that was, by the monotonic clock.
    pub(crate) read_at: Duration,
    epochs: (u64, u64),
}

/// What is remembered. Bounded.
pub(crate) struct Records {
    records: Cache<Key, Arc<Record>>,
    epoch: AtomicU64,
    epochs: Box<[AtomicU64]>,
}

impl Records {
    pub(crate) fn new() -> Records {
        let epochs = (0..EPOCHS).map(|_| AtomicU64::new(0)).collect();
        Records { records: Cache::new(RECORDS_MAX), epoch: AtomicU64::new(0), epochs }
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets records that this process has changed, or tried to.
    fn forget_key(&self, key: &Key) {
        self.epochs[slot_of(key)].fetch_add(1, Ordering::AcqRel);
    }

    fn epochs(&self, key: &Key) -> (u64, u64) {
        (self.epoch.load(Ordering::Acquire), self.epochs[slot_of(key)].load(Ordering::Acquire))
    }

    fn is_usable(&self, record: &Record, wanted: &Wanted, now: Duration) -> bool {
        record.epochs == self.epochs(&wanted.key)
            && now.saturating_sub(record.read_at) < wanted.age_max
    }

    fn recall(&self, want: &Wanted, now: Duration) -> Recalled<'_> {
        if want.age_max.is_zero() {
            return Recalled::Missing(None);
        }
        self.records.remove_if(&want.key, |record| !self.is_usable(record, want, now));
        match self.records.get_value_or_guard(&want.key, Some(Duration::ZERO)) {
            GuardResult::Value(record) if self.is_usable(&record, want, now) => {
                Recalled::Usable(record)
            }
            GuardResult::Value(_) => Recalled::Missing(None),
            GuardResult::Guard(guard) => Recalled::Missing(Some(guard)),
            GuardResult::Timeout => Recalled::BeingRead,
        }
    }

    /// Keeps a record, unless one that was read later is there already.
    fn keep(&self, key: Key, record: Arc<Record>) {
        if self.records.peek(&key).is_none_or(|there| there.tick <= record.tick) {
            self.records.insert(key, record);
        }
    }
}

/// What is remembered of one record.
enum Recalled<'a> {
    Usable(Arc<Record>),
    /// To be read; with a guard others wait for the answer.
    Missing(Option<Guard<'a>>),
    /// Another caller is reading it.
    BeingRead,
}

/// A record to read, and how old it may be; zero is read in any case.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    pub(crate) age_max: Duration,
}

/// Forgets the records of some writes once these are over, also when their caller went away: they
/// may have landed all the same.
pub(crate) struct Changing<'a> {
    records: &'a Records,
    keys: Vec<Key>,
}

impl<'a> Changing<'a> {
    pub(crate) fn writes(records: &'a Records, writes: &[Write]) -> Changing<'a> {
        let key = |write: &Write| match write {
            Write::Update(update) => Some(update.key.clone()),
            Write::Put(put) => key_of(&put.item),
            Write::Delete(delete) => Some(delete.key.clone()),
            Write::Check(_) | Write::Bucket(_) => None,
        };
        Changing { records, keys: writes.iter().filter_map(key).collect() }
    }

    pub(crate) fn deletes(records: &'a Records, keys: &[Key]) -> Changing<'a> {
        Changing { records, keys: keys.to_vec() }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.records.forget_key(key));
    }
}

type Guard<'a> = PlaceholderGuard<
    'a,
    Key,
    Arc<Record>,
    UnitWeighter,
    quick_cache::DefaultHashBuilder,
    DefaultLifecycle<Key, Arc<Record>>,
>;

impl Shared {
    /// Records by key, in the order asked: those remembered well enough from memory, the others in
    /// one consistent `BatchGetItem`. A record that another caller is reading just now is waited
    /// for instead, so that a crowd of new keys reads the records they share once.
    pub(crate) async fn records(
        &self,
        operation: &'static str,
        wanted: &[Wanted],
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        let memory = &self.caches.records;
        let mut found: Vec<Option<Arc<Record>>> = vec![None; wanted.len()];
        for round in 1..=FOLLOW_ROUNDS_MAX {
            let (mut to_read, mut followed) = (Vec::new(), Vec::new());
            let now = self.options.clock.monotonic();
            for (place, want) in wanted.iter().enumerate() {
                if found[place].is_some() {
                    continue;
                }
                match memory.recall(want, now) {
                    Recalled::Usable(record) => found[place] = Some(record),
                    Recalled::Missing(guard) => to_read.push((place, guard)),
                    Recalled::BeingRead if round < FOLLOW_ROUNDS_MAX => followed.push(place),
                    Recalled::BeingRead => to_read.push((place, None)),
                }
            }
            self.fetch(operation, wanted, to_read, &mut found).await?;
            for place in &followed {
                let want = &wanted[*place];
                // Without an answer the other caller has given up: the next round reads the record,
                // or follows another caller.
                if let Ok(record) = memory.records.get_value_or_guard_async(&want.key).await
                    && memory.is_usable(&record, want, self.options.clock.monotonic())
                {
                    found[*place] = Some(record);
                }
            }
            if followed.is_empty() {
                break;
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Reads some of the records, and keeps them.
    async fn fetch(
        &self,
        operation: &'static str,
        wanted: &[Wanted],
        places: Vec<(usize, Option<Guard<'_>>)>,
        found: &mut [Option<Arc<Record>>],
    ) -> Result<(), StoreError> {
        if places.is_empty() {
            return Ok(());
        }
        let memory = &self.caches.records;
        let keys: Vec<Key> = places.iter().map(|(place, _)| wanted[*place].key.clone()).collect();
        // A stamp is compared with those of other processes: it must be an instant of the table's
        // clock.
        self.ask_the_time().await.map_err(|error| error.during(operation))?;
        // All of these before the read: what is stored from here on is in the answer, or makes it
        // untrusted.
        let (tick, read_at) = (self.caches.tick(self.wall()), self.options.clock.monotonic());
        let epochs: Vec<(u64, u64)> = keys.iter().map(|key| memory.epochs(key)).collect();
        let items = self.read_all(operation, &keys).await?;
        for ((((place, guard), key), epochs), item) in
            places.into_iter().zip(keys).zip(epochs).zip(items)
        {
            let record = Arc::new(Record { item, tick, read_at, epochs });
            found[place] = Some(Arc::clone(&record));
            let is_handed_over =
                guard.is_some_and(|guard| guard.insert(Arc::clone(&record)).is_ok());
            if !is_handed_over {
                memory.keep(key, record);
            }
        }
        Ok(())
    }
}

/// Which of the epochs is a record's.
fn slot_of(key: &Key) -> usize {
    // FNV-1a: only a spread is needed, and the same one in every run, so that a seed replays
    // exactly.
    let bytes = key.pk.bytes().chain([0]).chain(key.sk.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    usize::try_from(hash % EPOCHS as u64).unwrap_or(0)
}
