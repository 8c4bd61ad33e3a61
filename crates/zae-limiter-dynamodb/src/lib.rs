//! The DynamoDB backend of zae-limiter: one table, shared by any number of processes and with the
//! Python package.
//!
//! The key decision: nothing is read before it is written. A take is one conditional `UpdateItem`
//! whose condition is the decision; when it fails, the image that comes back decides the next
//! write. Every write of a bucket is a value (`bucket/write.rs`), so tests inspect it and the
//! simulator replays it.
//!
//! Five rooms: `bucket` (takes, charges, credits), `config` (limits
//! and flags), `admin` (entities, namespaces, history), `records` (keys, attributes, items),
//! `table` (requests, retries, the AWS SDK). The rooms know each other: a flag of `config` is a
//! write of `bucket`, and `table` renders a bucket write at the last moment.
//!
//! Cost of a warm take: one `UpdateItem` per member of the chain, in parallel, no read; one write
//! unit each up to ids of 64 bytes and three short limits (`docs/dynamodb.md`).

// Simulators and benchmarks look into the rooms that the feature `testing` opens. Without the
// feature the same items are private, and some of them are used by nobody.
#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, dead_code))]

mod admin;
mod config;
mod options;
#[cfg(feature = "stream")]
#[doc(hidden)]
pub mod stream;

// Rooms that are public, and hidden, with the feature `testing` alone. Each is written out twice: a
// macro would hide the files from rustfmt.
#[cfg(not(feature = "testing"))]
mod bucket;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod bucket;
#[cfg(not(feature = "testing"))]
mod constants;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod constants;
#[cfg(not(feature = "testing"))]
mod records;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod records;
#[cfg(not(feature = "testing"))]
mod table;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod table;

use std::fmt;
use std::sync::Arc;

use zae_limiter_core::{NamespaceName, TimeMs};
use zae_limiter_store::{Capabilities, Store, StoreError, StoreFuture, Swept};

pub use admin::migrate::{MIGRATIONS, Migrated, Migration, Progress, Step};
pub use admin::operator::Operator;
pub use admin::version::{Retention, Versions};
pub use bucket::{Counters, HotBucket, Hottest, ShardLimit, ShardView};
pub use options::{CascadeWrites, DynamoOptions};
pub use table::sdk;

use admin::version::{Remembered, default_namespace};
use bucket::Caches;
use records::keys;
use table::{Table, clock};

/// The DynamoDB backend, bound to one namespace. A clone is another handle to the same table.
#[derive(Clone)]
pub struct DynamoStore {
    shared: Arc<Shared>,
    name: NamespaceName,
    /// The opaque id all keys of the namespace begin with.
    id: Arc<str>,
}

struct Shared {
    table: Arc<dyn Table>,
    options: DynamoOptions,
    caches: Caches,
    /// What was last read of the version record.
    version: Remembered,
    /// Tells the numbered operations of this process from those of others.
    seed: u64,
}

impl Shared {
    fn new(table: Arc<dyn Table>, options: DynamoOptions) -> Shared {
        let (caches, seed) = (Caches::new(&options), options.entropy.next_u64());
        Shared { table, options, caches, version: Remembered::default(), seed }
    }

    /// An instant of the local clock, as far as the table's clock lets it count. A clock that is
    /// far ahead would move refill instants into the future of every other process, a clock that is
    /// far behind would let a take pass that the bucket has no room for, and either would make one
    /// configuration look newer than another.
    fn corrected(&self, at: TimeMs) -> TimeMs {
        self.table.time().correct(at)
    }

    /// The present instant, as far as the table's clock lets it count.
    fn wall(&self) -> TimeMs {
        self.corrected(self.options.clock.now())
    }

    /// Asks the table for the time when the time is doubtful: before an instant is written, not by
    /// the request that writes it. Costs one small read, or up to three where answers are slow. A
    /// table that tells no time is believed to have the local time. `None` when the table was
    /// asked: time has passed since the caller read its clock.
    async fn ask_the_time(&self) -> Result<Option<clock::TableTime>, StoreError> {
        for asked in 0..constants::CLOCK_ASKED_MAX {
            match self.table.time() {
                clock::TableTime::Doubtful(_) => Box::pin(self.ping()).await?,
                time @ (clock::TableTime::Local | clock::TableTime::Within(_)) => {
                    return Ok((asked == 0).then_some(time));
                }
            }
        }
        Ok(None)
    }
}

impl DynamoStore {
    /// Binds to a namespace of a table that has been initialised. `NotFound` when the table, its
    /// version record or the namespace is missing, `Incompatible` for a schema of another major
    /// version and for a table that asks for newer clients, `Invalid` for options that cannot be
    /// right.
    ///
    /// Cost: one `BatchGetItem`.
    pub async fn on_table(
        table: Arc<dyn Table>,
        options: DynamoOptions,
        namespace: &NamespaceName,
    ) -> Result<DynamoStore, StoreError> {
        options.check("connect")?;
        let shared = Arc::new(Shared::new(table, options));
        let id = shared.check_and_find(namespace).await?;
        Ok(DynamoStore { shared, name: namespace.clone(), id })
    }

    /// A handle for the registry of namespaces. Bound to `default` if that namespace exists, else
    /// to none: every call about a namespace then answers `NotFound`.
    ///
    /// Cost: one read.
    pub async fn registry_on(
        table: Arc<dyn Table>,
        options: DynamoOptions,
    ) -> Result<DynamoStore, StoreError> {
        options.check("connect")?;
        let shared = Arc::new(Shared::new(table, options));
        let name = default_namespace();
        let found = shared.check_and_look_for(&name).await?;
        let id = found.unwrap_or_else(|| Arc::from(keys::NO_NAMESPACE));
        Ok(DynamoStore { shared, name, id })
    }

    /// Counts of the outcomes this process could not be sure of, and of what it decided alone.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.caches.tally.read()
    }

    fn table(&self) -> &dyn Table {
        &*self.shared.table
    }
}

impl fmt::Debug for DynamoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoStore")
            .field("namespace", &self.name)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Store for DynamoStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimum("dynamodb");
        let is_whole = self.shared.options.born_split == 1;
        capabilities.exact = is_whole && self.shared.options.fast_grace_ms == 0;
        capabilities.durable = true;
        capabilities.shared = true;
        capabilities.remote = true;
        // Few buckets are ever split, and those that are not are whole.
        capabilities.whole_buckets = is_whole;
        capabilities.lends = true;
        capabilities
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.shared.ping())
    }

    /// The table's clock.
    fn store_time(&self, now: TimeMs) -> StoreFuture<'_, TimeMs> {
        Box::pin(self.table_time(now))
    }

    /// DynamoDB deletes expired items by itself, within two days of their `ttl`. The store has
    /// nothing to do.
    fn sweep(&self, _now: TimeMs, _steps_max: u32) -> StoreFuture<'_, Swept> {
        Box::pin(async { Ok(Swept { complete: true, ..Swept::default() }) })
    }
}
