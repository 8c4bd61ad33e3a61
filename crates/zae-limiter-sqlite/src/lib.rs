//! The SQLite backend of zae-limiter: one file, shared by several processes, nothing to install.
//!
//! ```
//! use zae_limiter_core::{Limit, LimitSource, Milli, Take, TimeMs};
//! use zae_limiter_sqlite::SqliteStore;
//! use zae_limiter_store::{
//!     BucketStore, ConsumeOutcome, ConsumeRequest, DEFAULT_NAMESPACE, LimitsInForce, MemberTake,
//! };
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("limits.db");
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let store = SqliteStore::open(path)?;
//! let limits = LimitsInForce::new([Limit::per_minute("rpm", 60)?], LimitSource::Call);
//! let (entity, resource) = ("key-1".parse()?, "gpt-4".parse()?);
//! let takes = [Take { limit: 0, amount: Milli::from_tokens(1) }];
//! let member = MemberTake {
//!     entity: &entity,
//!     resource: &resource,
//!     limits: &limits,
//!     takes: &takes,
//!     absent: &[],
//! };
//! let outcome = store.consume(&ConsumeRequest::new(&[member], TimeMs(0))).await?;
//! assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The key decision: SQLite keeps the rows and the locks, the core decides. A take reads its
//! buckets, asks [`zae_limiter_store::chain`] and writes them back inside one `BEGIN IMMEDIATE`
//! transaction, so there is one copy of the maths and nothing to undo. Callers that would wait for
//! each other share a transaction (`writer.rs`).
//!
//! Cost of a take by a lone caller: one transaction with one write per member, about 10 µs, and one
//! read per member unless this store was the last to write to the file and remembers the bucket
//! (`transaction.rs`). A refusal writes nothing. Reads use connections of their own and never wait
//! for writers. Lookups and a lone caller's takes run in the poll of their future and block it for
//! microseconds. Listings and usage run on a thread of their own, page by page, and end when nobody
//! waits.
//!
//! Threads, each started when it is first needed: one decides for those who would wait for each
//! other and does long pieces of work in steps (`writer.rs`), one writes the log back into the file
//! (`checkpoint.rs`), one reads (`reader.rs`).

mod bucket;
mod checkpoint;
mod config;
mod connection;
mod copy;
mod entity;
mod error;
mod filesystem;
mod gate;
mod handle;
mod history;
mod inspect;
mod job;
mod managed;
mod namespace;
mod options;
mod pack;
mod page;
mod query;
mod queue;
mod reader;
mod rows;
mod schema;
mod spread;
mod sweep;
mod transaction;
mod usage;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use zae_limiter_core::{NamespaceId, NamespaceName, TimeMs};
use zae_limiter_store::{Capabilities, DEFAULT_NAMESPACE, Store, StoreError, StoreFuture, Swept};

pub use copy::Restored;
pub use inspect::FileStatus;
pub use options::{BUSY_DEADLINE, SqliteOptions, Synchronous, TAKE_DEADLINE, USAGE_ROWS_MAX};
pub use writer::WriterStats;

use connection::{Place, finish};
use error::{Failure, Outcome, lost, opened_read_only};
use handle::WriterHandle;
use job::Work;
use reader::Reader;
use writer::lock;

/// Connections for reading that are kept open between reads.
const IDLE_READERS_MAX: usize = 4;

/// The key of a namespace that is not there: no row has it.
const NO_NAMESPACE: i64 = 0;

/// The SQLite backend, bound to one namespace (`default` at first). A clone is another handle to
/// the same file.
///
/// The last handle finishes the queued jobs and closes the file when it is dropped. That blocks for
/// as long as the disk takes, and while other processes hold the lock up to the busy deadline.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
    /// The key of the namespace in its rows; never used twice.
    key: i64,
    name: NamespaceName,
    /// `None` when there was no namespace of that name.
    id: Option<NamespaceId>,
}

struct Shared {
    place: Arc<Place>,
    /// Before the writer, because they are closed first: the last connection writes the log back,
    /// which a reader cannot.
    readers: Mutex<Vec<Connection>>,
    /// Reads that may take a while.
    reader: Reader,
    /// `None` when the file was opened for reading.
    writer: Option<WriterHandle>,
}

impl SqliteStore {
    /// Opens a file, and creates it if it does not exist; its directory must. Blocks for as long as
    /// the disk takes.
    ///
    /// `NotFound` for a missing directory, `Denied` for a missing permission, `Incompatible` for a
    /// file that is not ours or is too new, `Corrupt`, `ReadOnly`, `Full` and `Busy` as they say.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        SqliteStore::open_with(path, SqliteOptions::new())
    }

    /// As [`SqliteStore::open`], with options.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: SqliteOptions,
    ) -> Result<SqliteStore, StoreError> {
        let read_only = options.read_only;
        let place = Arc::new(Place::new(path.as_ref(), options)?);
        let failed = |failure: Failure| place.error(failure, "open");
        let (writer, readers) = if read_only {
            (None, vec![place.open_reader().map_err(failed)?])
        } else {
            let conn = place.open_writer().map_err(failed)?;
            (Some(WriterHandle::new(Arc::clone(&place), conn)?), Vec::new())
        };
        let shared = Shared {
            place: Arc::clone(&place),
            readers: Mutex::new(readers),
            reader: Reader::default(),
            writer,
        };
        let name: NamespaceName =
            DEFAULT_NAMESPACE.parse().expect("the word is a valid namespace name");
        let mut store = SqliteStore { shared: Arc::new(shared), key: NO_NAMESPACE, name, id: None };
        // The default namespace may be deleted; then this handle still serves to register, recover
        // and look at namespaces.
        if let Some((key, id)) = store.read("open", |conn| namespace::find(conn, &store.name))? {
            (store.key, store.id) = (key, Some(id));
        }
        Ok(store)
    }

    /// How the writer has worked since the store was opened.
    #[must_use]
    pub fn writer_stats(&self) -> WriterStats {
        self.shared.writer.as_ref().map(WriterHandle::stats).unwrap_or_default()
    }

    fn path(&self) -> &Path {
        &self.shared.place.path
    }

    fn writer(&self, operation: &'static str) -> Result<&WriterHandle, StoreError> {
        self.shared.writer.as_ref().ok_or_else(|| opened_read_only(operation, self.path()))
    }

    fn error(&self, failure: Failure, operation: &'static str) -> StoreError {
        self.shared.place.error(failure, operation)
    }

    /// Does `work` in a transaction of its own, after everything that was queued before.
    async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (job, answer) = Work::job(operation, work);
        self.writer(operation)?.submit(job, operation)?;
        answer.await.unwrap_or_else(|_| Err(lost(operation)))
    }

    /// Does one step of a long piece of work in a transaction of its own. Steps give way to
    /// everything else, here and in other processes.
    async fn write_step<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (job, answer) = Work::job(operation, work);
        self.writer(operation)?.submit_step(job, operation)?;
        answer.await.unwrap_or_else(|_| Err(lost(operation)))
    }

    /// A consistent read: sees everything that was acknowledged before it.
    fn read<T>(
        &self,
        operation: &'static str,
        look: impl FnOnce(&Connection) -> Outcome<T>,
    ) -> Result<T, StoreError> {
        let idle = self.lock_readers().pop();
        let conn = idle
            .map_or_else(|| self.shared.place.open_reader(), Ok)
            .map_err(|failure| self.error(failure, operation))?;
        let result = query::change(&conn, "BEGIN", []).and_then(|_| {
            self.shared.place.require_same_file()?;
            schema::require_current(&conn, self.path())?;
            look(&conn)
        });
        let result = finish(&conn, result).map_err(|failure| self.error(failure, operation));
        let mut readers = self.lock_readers();
        if conn.is_autocommit() && readers.len() < IDLE_READERS_MAX {
            readers.push(conn);
        }
        result
    }

    /// A read that needs an active namespace.
    fn read_active<T>(
        &self,
        operation: &'static str,
        look: impl FnOnce(&Connection) -> Outcome<T>,
    ) -> Result<T, StoreError> {
        self.read(operation, |conn| {
            config::generation(conn, self.key)?;
            look(conn)
        })
    }

    fn lock_readers(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        lock(&self.shared.readers)
    }
}

impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimum("sqlite");
        capabilities.exact = true;
        capabilities.atomic_chains = true;
        capabilities.immediate_usage = true;
        capabilities.durable = true;
        capabilities.shared = true;
        capabilities.whole_buckets = true;
        capabilities.sweeps = true;
        capabilities.lends = true;
        capabilities
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.read("ping", |conn| {
                query::value::<i64>(conn, "SELECT count(*) FROM meta", []).map(|_| ())
            })?;
            // A read succeeds while another process holds the write lock, and says nothing about
            // takes; a transaction that writes nothing does. A full disk shows only when a page is
            // written.
            if self.shared.writer.is_some() { self.write("ping", |_| Ok(())).await } else { Ok(()) }
        })
    }

    fn sweep_horizon(&self, now: TimeMs) -> StoreFuture<'_, Option<TimeMs>> {
        Box::pin(self.write("sweep", move |conn| sweep::horizon(conn, now, false)))
    }

    fn sweep(&self, now: TimeMs, steps_max: u32) -> StoreFuture<'_, Swept> {
        Box::pin(self.sweep_steps(now, steps_max))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path())
            .field("namespace", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads inside each other, `depth` of them: each needs a connection of its own.
    fn read_at_once(store: &SqliteStore, depth: usize) {
        if depth > 0 {
            let read = store.read("test", |_| {
                read_at_once(store, depth - 1);
                Ok(())
            });
            read.expect("a file that can be read");
        }
    }

    #[test]
    fn a_few_connections_are_kept_for_the_next_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path().join("limits.db")).expect("a store");
        for (at_once, kept) in [(1, 1), (3, 3), (IDLE_READERS_MAX + 2, IDLE_READERS_MAX)] {
            read_at_once(&store, at_once);
            assert_eq!(store.lock_readers().len(), kept, "after {at_once} reads at once");
        }
    }

    #[test]
    fn a_store_says_which_file_and_which_namespace_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path().join("limits.db")).expect("a store");
        let said = format!("{store:?}");
        assert!(said.contains("limits.db") && said.contains("default"), "{said}");
    }
}
