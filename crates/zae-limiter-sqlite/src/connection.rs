//! Opening the file, its settings, and waiting for other processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, DEFAULT_NAME, FileControl, OpenFlags};
use zae_limiter_core::TimeMs;
use zae_limiter_store::{StoreError, StoreErrorKind};

use crate::error::{Failure, Outcome, blames_disk, busy, from_io, is_busy, refused};
use crate::filesystem::network_file_system;
use crate::options::{SqliteOptions, Synchronous};
use crate::schema;
use crate::writer::lock;

/// Pages of write-ahead log after which it is written back. Measured: 8000 instead of the usual
/// 1000 is half as fast again with a million keys, at a log of 32 MB.
const CHECKPOINT_PAGES: u32 = 8_000;
/// How much a log that could not be started anew grows before it is written back again.
const CHECKPOINT_AGAIN_PAGES: u32 = 2_000;
/// A log of 1 GB. From here on writers wait for the disk, however long it takes, rather than fill
/// it.
pub(crate) const LOG_PAGES_HARD: u32 = 262_144;
/// The bytes of the log that are kept for reuse: at least a full log, because a growing one costs
/// twice as much per durable commit.
const LOG_BYTES_KEPT: i64 = 64 << 20;
/// Memory for pages, per connection.
const CACHE_KIB: i64 = 16 << 10;
/// Statements kept prepared; more than the backend has.
const STATEMENTS_MAX: usize = 128;
/// How long to sleep between two attempts at a lock, on average. SQLite's own handler backs off to
/// 100 ms, which starves a process that competes with a busy one.
const PAUSE_MICROS: u64 = 50;

/// How often a lone caller looks whether the path still leads to the file that is open. Batches and
/// reads always look: a look costs a microsecond.
const LOOK_MS: u64 = 1_000;

/// The file and the options it was opened with, for every connection to it.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) options: SqliteOptions,
    /// How often a lock had to be waited for.
    pub(crate) pauses: AtomicU64,
    /// The length of the log after the last commit of this process.
    log_pages: AtomicU32,
    /// The length at which the log is to be written back; `u32::MAX` while a checkpoint runs.
    log_pages_max: AtomicU32,
    /// The file that was opened, which may not be the one that the path leads to later.
    file: OnceLock<FileId>,
    /// The time of the operation that last found the file in its place.
    looked_at: AtomicI64,
    /// The longest the log has been.
    pub(crate) log_pages_peak: AtomicU32,
}

/// Device and inode number of a file. `None` for a missing file, and on systems other than Unix,
/// where an open file keeps its name.
type FileId = Option<(u64, u64)>;

/// Held while a file is created and opened. Closing any descriptor of a file drops all POSIX locks
/// of the process on it, SQLite's included, so no thread may open a file between its creation here
/// and the closing of that descriptor.
pub(crate) static OPENING: Mutex<()> = Mutex::new(());

impl Place {
    pub(crate) fn new(path: &Path, options: SqliteOptions) -> Result<Place, StoreError> {
        // An absolute path cannot be mistaken for a URI, and survives a change of directory.
        let path = std::path::absolute(path).map_err(|error| from_io(error, "open", path))?;
        Ok(Place {
            path,
            options,
            pauses: AtomicU64::new(0),
            log_pages: AtomicU32::new(0),
            log_pages_max: AtomicU32::new(CHECKPOINT_PAGES),
            log_pages_peak: AtomicU32::new(0),
            file: OnceLock::new(),
            looked_at: AtomicI64::new(i64::MIN),
        })
    }

    /// Opens the file for writing, creates it if needed, and brings its schema up to date.
    pub(crate) fn open_writer(self: &Arc<Self>) -> Outcome<Connection> {
        let _opening = lock(&OPENING);
        if let Some(network) = network_file_system(&self.path) {
            let message = format!(
                "{}: on a network file system ({network}), where locks between processes do not work; use a local disk",
                self.path.display()
            );
            return Err(refused(StoreErrorKind::Invalid, message));
        }
        self.create_private()?;
        self.note_file();
        let mut conn = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        if conn.is_readonly("main")? {
            let message = format!(
                "{}: the file is read-only; change its mode, or open it with read_only()",
                self.path.display()
            );
            return Err(refused(StoreErrorKind::ReadOnly, message));
        }
        schema::check(&conn, &self.path)?;
        // A restore may have put another file in its place while this process waited for the lock.
        // A log beside the new file that belongs to the old one would destroy it.
        self.require_same_file()?;
        if schema::is_empty(&conn)? {
            // SQLite accepts `auto_vacuum` only for a file without content.
            conn.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        self.switch_to_log(&conn)?;
        set_up_writer(&conn, &self.options)?;
        if schema::version(&conn)? < schema::current_version() {
            if !self.begin_waiting(&conn, self.options.busy_deadline)? {
                return Err(Failure::Refused(busy("open", &self.path, self.options.busy_deadline)));
            }
            let migrated = schema::migrate(&conn, self);
            finish(&conn, migrated)?;
        }
        // From here on the writer decides by itself how long to wait.
        conn.busy_handler(None::<fn(i32) -> bool>)?;
        // Instead of SQLite's automatic checkpoints, which would make some caller wait for the
        // disk.
        let place = Arc::clone(self);
        conn.wal_hook(Some(move |_: &mut Wal, pages: i32| {
            place.note_log(u32::try_from(pages).unwrap_or(0));
            Ok(())
        }))?;
        Ok(conn)
    }

    /// Opens the file to write its log back.
    pub(crate) fn open_checkpointer(self: &Arc<Self>) -> Outcome<Connection> {
        let mut conn = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        self.require_same_file()?;
        set_up_writer(&conn, &self.options)?;
        // A checkpoint of another process is not waited for.
        conn.busy_handler(None::<fn(i32) -> bool>)?;
        Ok(conn)
    }

    /// Opens the file for reading.
    pub(crate) fn open_reader(self: &Arc<Self>) -> Outcome<Connection> {
        // Reports a replaced or unlinked file as such, not as "not found".
        self.require_same_file()?;
        self.note_file();
        let conn = self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        schema::check(&conn, &self.path)?;
        self.require_same_file()?;
        schema::require_current(&conn, &self.path)?;
        conn.pragma_update(None, "query_only", true)?;
        Ok(conn)
    }

    /// Remembers the file that is about to be opened first.
    fn note_file(&self) {
        self.file.get_or_init(|| file_id(&self.path));
    }

    /// The contract's error, as seen from `operation`. SQLite blames the disk when the file under a
    /// handle was replaced, because the log beside the path is another file's: so the file is
    /// looked at before the disk is blamed.
    pub(crate) fn error(&self, failure: Failure, operation: &'static str) -> StoreError {
        let told = match failure {
            Failure::Sql(error) if blames_disk(&error) => {
                self.require_same_file().err().unwrap_or(Failure::Sql(error))
            }
            other => other,
        };
        told.into_store_error(operation, &self.path)
    }

    /// Fails once the path leads to another file or to none. SQLite does not check this: two
    /// processes would go on with a file each, and a limit of 60 a minute would admit 120.
    pub(crate) fn require_same_file(&self) -> Outcome<()> {
        if self.file.get().is_none_or(|file| *file == file_id(&self.path)) {
            return Ok(());
        }
        let message = format!(
            "{}: the file was deleted or replaced while this process had it open; restart the process, or open the store anew",
            self.path.display()
        );
        Err(refused(StoreErrorKind::State, message))
    }

    /// As [`Place::require_same_file`], at most once a second by the time of the operations.
    pub(crate) fn look_now_and_then(&self, now: TimeMs) -> Outcome<()> {
        if now.0.abs_diff(self.looked_at.load(Ordering::Relaxed)) >= LOOK_MS {
            self.require_same_file()?;
            self.looked_at.store(now.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// `BEGIN IMMEDIATE`, once. False when another process writes.
    pub(crate) fn begin_now(&self, conn: &Connection) -> Outcome<bool> {
        if !conn.is_autocommit() {
            // A caller panicked in the middle of a transaction: nothing of it may stay.
            conn.prepare_cached("ROLLBACK")?.execute([])?;
        }
        match conn.prepare_cached("BEGIN IMMEDIATE")?.execute([]) {
            Ok(_) => Ok(true),
            Err(error) if is_busy(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// `BEGIN IMMEDIATE`, waiting for other processes until the deadline. False when it is over.
    pub(crate) fn begin_waiting(&self, conn: &Connection, deadline: Duration) -> Outcome<bool> {
        let started = self.options.clock.monotonic();
        for attempt in 0..attempts_max(deadline) {
            if self.begin_now(conn)? {
                return Ok(true);
            }
            if !self.pause(attempt, started, deadline) {
                break;
            }
        }
        Ok(false)
    }

    /// Turns write-ahead logging on. SQLite does not call its busy handler here when several
    /// processes make one file, because waiting would be a deadlock. So the switch is tried again,
    /// until the deadline.
    fn switch_to_log(&self, conn: &Connection) -> Outcome<()> {
        let started = self.options.clock.monotonic();
        for attempt in 0..attempts_max(self.options.busy_deadline) {
            match conn
                .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))
            {
                Ok(mode) if mode == "wal" => return Ok(()),
                Ok(mode) => {
                    let message = format!(
                        "write-ahead logging is not possible on this file system (journal mode stays {mode}); use a local disk"
                    );
                    return Err(refused(StoreErrorKind::Invalid, message));
                }
                Err(error)
                    if is_busy(&error)
                        && self.pause(attempt, started, self.options.busy_deadline) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::Refused(busy("open", &self.path, self.options.busy_deadline)))
    }

    /// True when the log should be written back into the file.
    pub(crate) fn is_log_long(&self) -> bool {
        self.log_pages.load(Ordering::Relaxed) >= self.log_pages_max.load(Ordering::Relaxed)
    }

    /// The length of the log after the last commit of this process.
    pub(crate) fn log_pages(&self) -> u32 {
        self.log_pages.load(Ordering::Relaxed)
    }

    /// Remembers the length of the log after a commit.
    fn note_log(&self, pages: u32) {
        if pages < self.log_pages.swap(pages, Ordering::Relaxed) {
            // The log was started anew.
            self.log_pages_max.store(CHECKPOINT_PAGES, Ordering::Relaxed);
        }
        if pages > self.log_pages_peak.load(Ordering::Relaxed) {
            self.log_pages_peak.store(pages, Ordering::Relaxed);
        }
    }

    /// The log is about to be written back: no caller need ask for that meanwhile.
    pub(crate) fn begin_round(&self) {
        self.log_pages_max.store(u32::MAX, Ordering::Relaxed);
    }

    /// The log was written back. If readers keep SQLite from starting it anew, it is written back
    /// again when it has grown.
    pub(crate) fn end_round(&self) {
        let again = self.log_pages().saturating_add(CHECKPOINT_AGAIN_PAGES);
        self.log_pages_max.store(again.max(CHECKPOINT_PAGES), Ordering::Relaxed);
    }

    /// Writes the log back as far as no reader needs it, beside the writers. Waits for the disk.
    /// Returns how many pages the log had and how many of them are in the file now, or `None` when
    /// another process writes the log back.
    pub(crate) fn checkpoint(&self, conn: &Connection) -> Outcome<Option<(u32, u32)>> {
        match conn.wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::PASSIVE) {
            Ok((log, written_back)) => Ok(Some((
                u32::try_from(log).unwrap_or(0),
                u32::try_from(written_back).unwrap_or(0),
            ))),
            Err(error) if is_busy(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the file for its owner only, if it does not exist. SQLite gives its log the same
    /// mode.
    fn create_private(&self) -> Outcome<()> {
        let mut options = fs::OpenOptions::new();
        // Never opens an existing file: see `OPENING`.
        options.write(true).create_new(true);
        private(&mut options);
        match options.open(&self.path) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(from_io(error, "open", &self.path).into()),
        }
    }

    pub(crate) fn connect(self: &Arc<Self>, access: OpenFlags) -> Outcome<Connection> {
        let mut conn =
            Connection::open_with_flags(&self.path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        let place = Arc::clone(self);
        let mut started = Duration::ZERO;
        conn.busy_handler(Some(move |count: i32| {
            if count == 0 {
                started = place.options.clock.monotonic();
            }
            let attempt = u64::try_from(count).unwrap_or(0);
            let deadline = place.options.busy_deadline;
            attempt < attempts_max(deadline) && place.pause(attempt, started, deadline)
        }))?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        // Plans must not depend on the values that are bound, or a join is planned anew on every
        // run (20 times the cost).
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        Ok(conn)
    }

    /// Sleeps a little. Returns false, without sleeping, when the deadline is over.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that sleeps: SQLite offers no way to wait for a lock fairly"
    )]
    pub(crate) fn pause(&self, attempt: u64, started: Duration, deadline: Duration) -> bool {
        let waited = self.options.clock.monotonic().saturating_sub(started);
        if waited >= deadline {
            return false;
        }
        if attempt == 0 {
            self.pauses.fetch_add(1, Ordering::Relaxed);
        }
        // Between half and one and a half of a pause, so that two processes do not keep in step.
        let jitter = self.options.entropy.next_u64() % 1_000;
        let micros = PAUSE_MICROS / 2 + PAUSE_MICROS * jitter / 1_000;
        std::thread::sleep(Duration::from_micros(micros));
        true
    }
}

/// Bounds every wait also when the clock stands still, as a manual one does.
fn attempts_max(deadline: Duration) -> u64 {
    let pauses = deadline.as_micros() / u128::from(PAUSE_MICROS);
    u64::try_from(pauses).unwrap_or(u64::MAX).saturating_add(1)
}

/// Commits what succeeded, rolls back what did not.
pub(crate) fn finish<T>(conn: &Connection, result: Outcome<T>) -> Outcome<T> {
    let result = result.and_then(|value| {
        conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(value)
    });
    if result.is_err() {
        roll_back(conn);
    }
    result
}

/// Ends a transaction without a trace. SQLite may have done it already, as it does when the disk is
/// full.
pub(crate) fn roll_back(conn: &Connection) {
    if !conn.is_autocommit()
        && let Err(error) =
            conn.prepare_cached("ROLLBACK").and_then(|mut statement| statement.execute([]))
    {
        tracing::debug!(%error, "a rollback failed; the next transaction tries again");
    }
}

/// Makes files that are created with `options` readable and writable by their owner only.
pub(crate) fn private(options: &mut fs::OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    #[cfg(not(unix))]
    let _ = options;
}

#[cfg(unix)]
fn file_id(path: &Path) -> FileId {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn file_id(_path: &Path) -> FileId {
    None
}

/// The path with `suffix` appended to the file name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn set_up_writer(conn: &Connection, options: &SqliteOptions) -> Outcome<()> {
    let synchronous = match options.synchronous {
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    conn.pragma_update(None, "synchronous", synchronous)?;
    // On macOS a plain sync does not reach the disk.
    let reaches_disk = options.synchronous == Synchronous::Full;
    conn.pragma_update(None, "fullfsync", reaches_disk)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    let _: i64 =
        conn.pragma_update_and_check(None, "journal_size_limit", LOG_BYTES_KEPT, |row| row.get(0))?;
    if let Some(pages) = options.pages_max {
        let _: i64 =
            conn.pragma_update_and_check(None, "max_page_count", pages, |row| row.get(0))?;
    }
    // Without this the last close deletes the log and its index: a user who may only read could not
    // open the file any more, and a process whose file was replaced would delete those of its
    // successor. SQLite still empties the log then.
    conn.file_control(DEFAULT_NAME, FileControl::PersistWal(&mut 1))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rusqlite::{Error as SqlError, ffi};

    use super::*;

    /// A take beside a restore: the file is another one by the time SQLite cannot read the old.
    #[cfg(unix)]
    #[test]
    fn the_disk_is_not_blamed_for_a_file_that_was_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("limits.db");
        let place = Arc::new(Place::new(&path, SqliteOptions::new()).expect("a place"));
        let conn = place.open_writer().expect("a connection");
        let kind_of = |code| {
            let failure = SqlError::SqliteFailure(ffi::Error::new(code), None);
            place.error(failure.into(), "consume").kind()
        };
        assert_eq!(kind_of(ffi::SQLITE_IOERR_SHORT_READ), StoreErrorKind::Unavailable);
        fs::write(folder.path().join("backup.db"), "another file").expect("a file");
        fs::rename(folder.path().join("backup.db"), &path).expect("a restore");
        for code in [
            ffi::SQLITE_IOERR_SHORT_READ,
            ffi::SQLITE_IOERR_SHMMAP,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_READONLY_DBMOVED,
        ] {
            assert_eq!(kind_of(code), StoreErrorKind::State, "{code}");
        }
        assert_eq!(
            kind_of(ffi::SQLITE_FULL),
            StoreErrorKind::Full,
            "the disk is full all the same"
        );
        drop(conn);
    }

    /// A plain sync of macOS ends in the memory of the disk.
    #[test]
    fn what_must_be_on_the_disk_is_synced_in_full() {
        for (synchronous, expected) in [(Synchronous::Normal, 0), (Synchronous::Full, 1)] {
            let folder = tempfile::tempdir().expect("a folder");
            let conn = Connection::open(folder.path().join("limits.db")).expect("a database");
            set_up_writer(&conn, &SqliteOptions::new().synchronous(synchronous))
                .expect("its settings");
            let found: i64 =
                conn.pragma_query_value(None, "fullfsync", |row| row.get(0)).expect("a setting");
            assert_eq!(found, expected, "{synchronous:?}");
        }
    }
}
