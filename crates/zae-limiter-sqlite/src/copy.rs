//! Copies of the whole file: making one while others write, and putting one in the place of the
//! file.
//!
//! Both write a file with a random name beside the target first, check it, and give it its name in
//! the last step. A failure before that step leaves nothing behind, and one after it leaves the
//! complete copy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use zae_limiter_store::{StoreError, StoreErrorKind};

use crate::SqliteStore;
use crate::connection::{OPENING, Place, private, with_suffix};
use crate::error::{Failure, Outcome, from_io, is_busy, is_damage, refused};
use crate::gate::GATE_END;
use crate::inspect::check_integrity;
use crate::options::SqliteOptions;
use crate::schema;
use crate::writer::lock;

/// The files that SQLite keeps beside a database, by the ends of their names.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// How long a restore waits for a process that is about to end.
const IN_USE_WAIT: Duration = Duration::from_secs(1);

/// The result of [`SqliteStore::restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The size of the file that is now in place.
    pub bytes: u64,
    /// The version of its schema. An older one is brought up to date when the file is next opened
    /// for writing.
    pub schema_version: u32,
    /// Where the file that was replaced is kept; `None` when there was none, or the file system
    /// knows no links.
    pub replaced: Option<PathBuf>,
}

impl SqliteStore {
    /// Copies the file as it is at this moment to `target`, which must not exist. Blocks; writers
    /// go on meanwhile. The copy is complete or not there, also after a crash, and only its owner
    /// can read it. Of two copies to one target at the same moment one is made and the other fails
    /// with `AlreadyExists`.
    pub fn backup_to(&self, target: impl AsRef<Path>) -> Result<(), StoreError> {
        const OPERATION: &str = "backup";
        let place = &self.shared.place;
        // An absolute path cannot be mistaken for a URI.
        let target = absolute(target.as_ref(), OPERATION)?;
        if belongs_to(&target, &place.path) {
            let message = format!(
                "{}: this is the store itself, or its log; choose another path",
                target.display()
            );
            return Err(StoreError::new(StoreErrorKind::Invalid, OPERATION, message));
        }
        if is_there(&target) {
            return Err(exists(OPERATION, &target));
        }
        let staged = Staged::beside(&target, &place.options, OPERATION)?;
        let failed = |failure: Failure| place.error(failure, OPERATION);
        let conn = place.open_reader().map_err(failed)?;
        staged.fill_from(&conn, OPERATION, failed)?;
        let _opening = lock(&OPENING);
        staged.publish_new(&target, OPERATION)
    }

    /// Puts the backup at `from` in the place of the store at `to`. Blocks.
    ///
    /// The backup is copied and checked first: whether it is sound, ours, and of a version that
    /// this process knows. While another handle or process has `to` open, this fails with `Busy`
    /// and changes nothing. A crash leaves the old file or the new one, never the new one with the
    /// log of the old. The old file is kept, see [`Restored::replaced`].
    ///
    /// `to` may be missing, or so damaged that it is no database any more; whether another process
    /// has such a file open cannot be known. A process that does notices the exchange within a
    /// second and stops working on the old file.
    pub fn restore(
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: SqliteOptions,
    ) -> Result<Restored, StoreError> {
        const OPERATION: &str = "restore";
        let from = absolute(from.as_ref(), OPERATION)?;
        let to = absolute(to.as_ref(), OPERATION)?;
        if belongs_to(&from, &to) || same_file(&from, &to) {
            let message =
                format!("{}: this is the store itself, or its log; name a backup", from.display());
            return Err(StoreError::new(StoreErrorKind::Invalid, OPERATION, message));
        }
        if fs::symlink_metadata(&to).is_ok_and(|found| !found.is_file()) {
            let message = format!(
                "{}: not a plain file; name the file itself, not a link or a folder",
                to.display()
            );
            return Err(StoreError::new(StoreErrorKind::Invalid, OPERATION, message));
        }
        let failed = |failure: Failure| failure.into_backup_error(OPERATION, &from);
        let source = Arc::new(Place::new(&from, options.clone())?);
        let conn = open_backup(&source).map_err(failed)?;
        let staged = Staged::beside(&to, &options, OPERATION)?;
        staged.fill_from(&conn, OPERATION, failed)?;
        drop(conn);
        let (bytes, schema_version) = staged.inspect(&from).map_err(failed)?;
        let replaced = put_in_place(staged, &to, &options, OPERATION)?;
        Ok(Restored { bytes, schema_version, replaced })
    }
}

/// Opens a backup for reading. Refuses a file that is not ours or too new, before anything is
/// copied.
fn open_backup(source: &Arc<Place>) -> Outcome<Connection> {
    let shown = source.path.display();
    if !source.path.is_file() {
        let message = format!("{shown}: there is no such file; name a backup");
        return Err(refused(StoreErrorKind::NotFound, message));
    }
    let no_backup = || {
        let message = format!("{shown}: not a backup of a store; name another file");
        refused(StoreErrorKind::Incompatible, message)
    };
    let checked = source.connect(OpenFlags::SQLITE_OPEN_READ_ONLY).and_then(|conn| {
        schema::check(&conn, &source.path)?;
        Ok((schema::version(&conn)?, conn))
    });
    match checked {
        Ok((0, _)) => Err(no_backup()),
        // The copy is made anew row by row and would hide damage to an index.
        Ok((_, conn)) => require_sound(&conn, &source.path).map(|()| conn),
        Err(Failure::Sql(error)) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            Err(no_backup())
        }
        Err(failure) => Err(failure),
    }
}

fn require_sound(conn: &Connection, from: &Path) -> Outcome<()> {
    match check_integrity(conn)?.first() {
        None => Ok(()),
        Some(problem) => {
            // The first line names the database.
            let problem = problem.lines().find(|line| !line.starts_with("***")).unwrap_or(problem);
            let message = format!(
                "{}: the backup is damaged ({problem}); nothing was changed. Choose another backup",
                from.display()
            );
            Err(refused(StoreErrorKind::Corrupt, message))
        }
    }
}

/// Exchanges the file at `to` for the staged one, while no process can open it.
fn put_in_place(
    staged: Staged,
    to: &Path,
    options: &SqliteOptions,
    operation: &'static str,
) -> Result<Option<PathBuf>, StoreError> {
    // No thread of this process opens a file meanwhile.
    let _opening = lock(&OPENING);
    if !is_there(to) {
        // A log without its file would be replayed onto the new one.
        remove_companions(to, operation)?;
        staged.publish_new(to, operation)?;
        return Ok(None);
    }
    let lock = lock_whole_file(to).map_err(|failure| failure.into_store_error(operation, to))?;
    let kept = with_suffix(to, &format!(".replaced-{:016x}", options.entropy.next_u64()));
    let replaced = match fs::hard_link(to, &kept) {
        Ok(()) => Some(kept),
        Err(error) => {
            tracing::debug!(%error, "the replaced file is not kept");
            None
        }
    };
    // The lock has emptied and removed the log of a sound file. The log of a damaged file cannot be
    // applied.
    remove_companions(to, operation)?;
    staged.replace(to, operation)?;
    drop(lock);
    Ok(replaced)
}

/// Locks out all other connections, and writes the log back for good: from here on the file has no
/// log, so that a process that has opened it and waits for the lock does not make a new log beside
/// its successor. `None` for a file that SQLite cannot read, and so cannot lock.
fn lock_whole_file(path: &Path) -> Outcome<Option<Connection>> {
    let conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    conn.busy_timeout(IN_USE_WAIT)?;
    let locked = conn.execute_batch(
        "PRAGMA locking_mode=exclusive; PRAGMA journal_mode=delete; BEGIN EXCLUSIVE",
    );
    match locked {
        Ok(()) => Ok(Some(conn)),
        Err(error) if is_busy(&error) => {
            let message = format!(
                "{}: the file is in use; stop every process that has it open, then try again",
                path.display()
            );
            Err(refused(StoreErrorKind::Busy, message))
        }
        Err(error) if is_damage(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A file that is being written under a name of its own. Removed unless it was published.
struct Staged {
    path: PathBuf,
    file: fs::File,
    published: bool,
}

impl Staged {
    /// Creates an empty file beside `target`, its owner's only, that did not exist before.
    fn beside(
        target: &Path,
        options: &SqliteOptions,
        operation: &'static str,
    ) -> Result<Staged, StoreError> {
        let path = with_suffix(target, &format!(".{:016x}.partial", options.entropy.next_u64()));
        let mut creation = fs::OpenOptions::new();
        // Never opens what exists, and so follows no link.
        creation.read(true).write(true).create_new(true);
        private(&mut creation);
        match creation.open(&path) {
            Ok(file) => Ok(Staged { path, file, published: false }),
            Err(error) => Err(from_io(error, operation, target)),
        }
    }

    /// Copies everything `conn` sees into the file, and waits until the disk has it. `damaged`
    /// tells of damage, which is that of the original: the copy is new.
    fn fill_from(
        &self,
        conn: &Connection,
        operation: &'static str,
        damaged: impl Fn(Failure) -> StoreError,
    ) -> Result<(), StoreError> {
        let Some(text) = self.path.to_str() else {
            return Err(from_io(io::ErrorKind::InvalidFilename.into(), operation, &self.path));
        };
        // VACUUM cannot run inside a transaction; it makes one of its own. The original is still
        // safe: the connection was opened for reading.
        conn.pragma_update(None, "query_only", false)
            .and_then(|()| conn.execute("VACUUM INTO ?1", [text]))
            .map_err(|error| match is_damage(&error) {
                true => damaged(error.into()),
                false => Failure::from(error).into_store_error(operation, &self.path),
            })?;
        self.file.sync_all().map_err(|error| from_io(error, operation, &self.path))
    }

    /// Size and schema version of the copy, once it is known to be sound.
    fn inspect(&self, from: &Path) -> Outcome<(u64, u32)> {
        let conn = Connection::open_with_flags(
            &self.path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        require_sound(&conn, from)?;
        let bytes =
            self.file.metadata().map_err(|error| from_io(error, "restore", &self.path))?.len();
        Ok((bytes, schema::version(&conn)?))
    }

    /// Gives the file its name, unless that was taken meanwhile.
    fn publish_new(mut self, target: &Path, operation: &'static str) -> Result<(), StoreError> {
        match fs::hard_link(&self.path, target) {
            // The partial name goes with `self`.
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(exists(operation, target));
            }
            // Not every file system knows links. Without them there is a moment in which two copies
            // to one target could both find it free.
            Err(_) if is_there(target) => return Err(exists(operation, target)),
            Err(_) => {
                fs::rename(&self.path, target)
                    .map_err(|error| from_io(error, operation, target))?;
                self.published = true;
            }
        }
        sync_folder(target, operation)
    }

    /// Gives the file its name, in the place of the file that had it.
    fn replace(mut self, target: &Path, operation: &'static str) -> Result<(), StoreError> {
        fs::rename(&self.path, target).map_err(|error| from_io(error, operation, target))?;
        self.published = true;
        sync_folder(target, operation)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(%error, path = %self.path.display(), "an unfinished copy is left behind");
        }
    }
}

fn absolute(path: &Path, operation: &'static str) -> Result<PathBuf, StoreError> {
    std::path::absolute(path).map_err(|error| from_io(error, operation, path))
}

/// True if something has this name, even a link that leads nowhere.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn exists(operation: &'static str, path: &Path) -> StoreError {
    from_io(io::ErrorKind::AlreadyExists.into(), operation, path)
}

/// Whether `path` names the database `store`, or a file that is kept beside it, now or later.
fn belongs_to(path: &Path, store: &Path) -> bool {
    let (path, store) = (resolved(path), resolved(store));
    path == store
        || COMPANIONS.iter().chain([&GATE_END]).any(|end| path == with_suffix(&store, end))
}

/// The path without links in its folder; the file itself need not exist.
fn resolved(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    fs::canonicalize(one).is_ok_and(|one| fs::canonicalize(other).is_ok_and(|other| one == other))
}

fn remove_companions(path: &Path, operation: &'static str) -> Result<(), StoreError> {
    for end in COMPANIONS {
        let companion = with_suffix(path, end);
        match fs::remove_file(&companion) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(from_io(error, operation, &companion)),
        }
    }
    Ok(())
}

/// Syncs the folder of `path`: only then is a new name on the disk.
fn sync_folder(path: &Path, operation: &'static str) -> Result<(), StoreError> {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| from_io(error, operation, folder))?;
    }
    #[cfg(not(unix))]
    let _ = (path, operation);
    Ok(())
}
