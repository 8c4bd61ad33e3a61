//! The failures of a SQLite file, mapped once. The only file that names errors of `rusqlite`.

use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::ffi;
use rusqlite::{Error as SqlError, ErrorCode};
use zae_limiter_store::{StoreError, StoreErrorKind};

/// Why a piece of work inside a transaction ended. The difference matters to a batch: a refusal
/// concerns one caller, a failure of SQLite concerns the transaction and all its callers.
#[derive(Debug)]
pub(crate) enum Failure {
    /// This one request cannot be done; the transaction goes on.
    Refused(StoreError),
    /// SQLite failed; the transaction is rolled back.
    Sql(SqlError),
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Failure {
        Failure::Sql(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::Refused(error)
    }
}

impl Failure {
    /// The contract's error, as seen from `operation` on the file at `path`.
    pub(crate) fn into_store_error(self, operation: &'static str, path: &Path) -> StoreError {
        match self {
            Failure::Refused(error) => error.during(operation),
            Failure::Sql(error) => from_sql(error, operation, path),
        }
    }

    /// The same for the file at `path` that is being restored: the advice for a damaged store, to
    /// restore one, is of no use.
    pub(crate) fn into_backup_error(self, operation: &'static str, path: &Path) -> StoreError {
        match self {
            Failure::Sql(error) if is_damage(&error) => {
                let message = format!(
                    "{}: the backup is damaged; nothing was changed. Choose another backup",
                    path.display()
                );
                StoreError::new(StoreErrorKind::Corrupt, operation, message)
                    .with_source(Cause::of(error))
            }
            other => other.into_store_error(operation, path),
        }
    }
}

/// True when SQLite found pages that cannot be right.
pub(crate) fn is_damage(error: &SqlError) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Separates the failure of one request from the failure of its whole transaction. A row that
/// cannot be read concerns the callers of its bucket; an error of SQLite itself concerns all
/// callers.
pub(crate) fn split<T>(
    outcome: Outcome<T>,
    operation: &'static str,
    path: &Path,
) -> Outcome<Result<T, StoreError>> {
    match outcome {
        Ok(value) => Ok(Ok(value)),
        Err(failure @ Failure::Sql(SqlError::SqliteFailure(..))) => Err(failure),
        Err(failure) => Ok(Err(failure.into_store_error(operation, path))),
    }
}

/// The operation of a refusal inside a transaction, until [`Failure::into_store_error`] names it.
const HERE: &str = "sqlite";

/// A refusal without an operation yet.
pub(crate) fn refused(kind: StoreErrorKind, message: impl Into<String>) -> Failure {
    Failure::Refused(StoreError::new(kind, HERE, message))
}

/// The error of every operation of a handle whose namespace was deleted or purged.
pub(crate) fn namespace_gone() -> Failure {
    StoreError::namespace_gone(HERE).into()
}

/// The same error for another caller of a failed batch. Its cause stays with the first.
pub(crate) fn copy_of(error: &StoreError) -> StoreError {
    StoreError::new(error.kind(), error.operation(), error.message())
}

/// Turns "no row" into `None`.
pub(crate) fn optional<T>(result: Result<T, SqlError>) -> Result<Option<T>, SqlError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(SqlError::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True when SQLite could not read or write the file, for any reason.
pub(crate) fn blames_disk(error: &SqlError) -> bool {
    match error {
        SqlError::SqliteFailure(failure, _) => {
            matches!(failure.code, ErrorCode::SystemIoFailure | ErrorCode::CannotOpen)
                || failure.extended_code == ffi::SQLITE_READONLY_DBMOVED
        }
        _ => false,
    }
}

/// True when another process holds the lock that was asked for.
pub(crate) fn is_busy(error: &SqlError) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::FileLockingProtocolFailed)
    )
}

/// A stored value that this version cannot have written.
pub(crate) fn corrupt_value(
    column: usize,
    what: &'static str,
    cause: impl std::fmt::Display,
) -> SqlError {
    SqlError::FromSqlConversionFailure(
        column,
        rusqlite::types::Type::Text,
        format!("{what}: {cause}").into(),
    )
}

/// The lock was not free within the deadline.
pub(crate) fn busy(operation: &'static str, path: &Path, waited: Duration) -> StoreError {
    let (shown, ms) = (path.display(), waited.as_millis());
    let message = format!(
        "{shown}: others, of this process or another, held the write lock for more than {ms} ms; nothing was written. Retry, or raise busy_deadline"
    );
    StoreError::new(StoreErrorKind::Busy, operation, message)
}

/// An operation that has waited for its turn until its caller gave up.
pub(crate) fn late(operation: &'static str, path: &Path, waited: Duration) -> StoreError {
    let (shown, ms) = (path.display(), waited.as_millis());
    let message = format!(
        "{shown}: too many operations wait, this one for more than {ms} ms; nothing was written. Retry later, or raise take_deadline"
    );
    StoreError::new(StoreErrorKind::Busy, operation, message)
}

/// A thread of the store is not there any more, or could not answer.
pub(crate) fn thread_ended(operation: &'static str, message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Internal, operation, format!("{message}; please report this"))
}

/// The writer thread ended without an answer.
pub(crate) fn lost(operation: &'static str) -> StoreError {
    thread_ended(operation, "the writer thread ended before it answered")
}

/// A thread of the store does not start.
pub(crate) fn no_thread(operation: &'static str, error: io::Error) -> StoreError {
    let message = "a thread of the store could not be started; free some threads";
    StoreError::new(StoreErrorKind::Unavailable, operation, message).with_source(error)
}

/// A write through a handle that was opened for reading.
pub(crate) fn opened_read_only(operation: &'static str, path: &Path) -> StoreError {
    let message = format!(
        "{}: opened for reading only; open it without read_only() to write",
        path.display()
    );
    StoreError::new(StoreErrorKind::ReadOnly, operation, message)
}

/// A failure of the file system, before SQLite comes into play.
pub(crate) fn from_io(error: io::Error, operation: &'static str, path: &Path) -> StoreError {
    use io::ErrorKind as Io;
    let (kind, message) = match error.kind() {
        Io::NotFound => {
            (StoreErrorKind::NotFound, "the directory or file does not exist; create it first")
        }
        Io::PermissionDenied => (StoreErrorKind::Denied, DENIED),
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => {
            (StoreErrorKind::Full, "the disk is full; make room and try again")
        }
        Io::ReadOnlyFilesystem => (
            StoreErrorKind::ReadOnly,
            "the file system is read-only; remount it, or open with read_only()",
        ),
        Io::AlreadyExists => {
            (StoreErrorKind::AlreadyExists, "the file exists already; choose another path")
        }
        Io::IsADirectory | Io::NotADirectory | Io::InvalidFilename => {
            (StoreErrorKind::Invalid, "not a path for a file; name a file in an existing directory")
        }
        _ => (StoreErrorKind::Unavailable, "the file system failed"),
    };
    let message = format!("{}: {message}", path.display());
    let told = StoreError::new(kind, operation, message);
    // An error of our own making has nothing to add.
    if error.raw_os_error().is_some() { told.with_source(error) } else { told }
}

/// The text of SQLite, once: its own error and the cause of that error say the same.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cause(String);

impl Cause {
    fn of(error: SqlError) -> Cause {
        Cause(error.to_string())
    }
}

const RESTORE: &str = "stop every process that uses it and run `zae-limiter restore BACKUP`";
const DENIED: &str = "permission denied; let this user read and write the file and its directory";

fn from_sql(error: SqlError, operation: &'static str, path: &Path) -> StoreError {
    let shown = path.display();
    let (kind, message) = match &error {
        SqlError::SqliteFailure(failure, _) => {
            // The error of the file system for the path tells more than "unable to open database
            // file".
            if failure.code == ErrorCode::CannotOpen
                && let Some(better) = why_it_does_not_open(operation, path)
            {
                return better.with_source(Cause::of(error));
            }
            let (kind, message) = classify(*failure);
            (kind, format!("{shown}: {message}"))
        }
        SqlError::FromSqlConversionFailure(..)
        | SqlError::IntegralValueOutOfRange(..)
        | SqlError::Utf8Error(..)
        | SqlError::InvalidColumnType(..) => {
            (StoreErrorKind::Corrupt, format!("{shown}: a stored value cannot be right; {RESTORE}"))
        }
        _ => (
            StoreErrorKind::Internal,
            format!("{shown}: the backend used SQLite wrongly; please report this"),
        ),
    };
    StoreError::new(kind, operation, message).with_source(Cause::of(error))
}

/// Kind and advice for a result code of SQLite. Extended codes come first where they tell more.
fn classify(failure: ffi::Error) -> (StoreErrorKind, String) {
    use StoreErrorKind::{
        Busy, Corrupt, Denied, Full, Incompatible, Internal, Invalid, ReadOnly, Unavailable,
    };
    let (kind, message) = match (failure.extended_code, failure.code) {
        (ffi::SQLITE_READONLY_DIRECTORY, _) => (
            Denied,
            "its directory is not writable, which the write-ahead log needs; change its mode",
        ),
        (ffi::SQLITE_IOERR_CORRUPTFS, _) => (
            Corrupt,
            "the file system is corrupt; check the disk, then run `zae-limiter restore BACKUP`",
        ),
        (_, ErrorCode::DatabaseCorrupt) => {
            return (Corrupt, format!("the file is corrupt; {RESTORE}"));
        }
        (_, ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            (Denied, DENIED)
        }
        (_, ErrorCode::CannotOpen) => (
            Denied,
            "the file cannot be opened; let this user read and write the file and its directory",
        ),
        (_, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        | (_, ErrorCode::FileLockingProtocolFailed) => {
            (Busy, "another process holds a lock; nothing was written. Retry")
        }
        (_, ErrorCode::DiskFull) => {
            (Full, "the disk is full; nothing was written. Make room and try again")
        }
        (_, ErrorCode::ReadOnly) => (
            ReadOnly,
            "the file is read-only; nothing was written. Change its mode, or open it with read_only()",
        ),
        (_, ErrorCode::NotADatabase) => (
            Incompatible,
            "not a SQLite database; choose another path, or run `zae-limiter restore BACKUP` if it was one",
        ),
        (_, ErrorCode::SystemIoFailure) => {
            (Unavailable, "the disk failed to read or write; check it, then try again")
        }
        (_, ErrorCode::OutOfMemory) => (Unavailable, "out of memory"),
        (_, ErrorCode::TooBig) => {
            (Invalid, "a value is larger than SQLite stores; make it smaller")
        }
        _ => (Internal, "SQLite refused a statement of the backend; please report this"),
    };
    (kind, message.to_owned())
}

fn why_it_does_not_open(operation: &'static str, path: &Path) -> Option<StoreError> {
    if path.is_dir() {
        return Some(from_io(io::ErrorKind::IsADirectory.into(), operation, path));
    }
    match path.metadata() {
        Ok(_) => None,
        Err(error) => Some(from_io(error, operation, path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: i32, kind: StoreErrorKind) {
        let failure = Failure::Sql(SqlError::SqliteFailure(ffi::Error::new(code), None));
        let error = failure.into_store_error("consume", Path::new("/"));
        assert_eq!((error.kind(), error.operation()), (kind, "consume"), "{code}");
        assert!(error.message().starts_with("/: "), "{error}");
    }

    #[test]
    fn every_failure_a_user_can_act_on_has_its_kind() {
        check(ffi::SQLITE_BUSY, StoreErrorKind::Busy);
        check(ffi::SQLITE_BUSY_RECOVERY, StoreErrorKind::Busy);
        check(ffi::SQLITE_PROTOCOL, StoreErrorKind::Busy);
        check(ffi::SQLITE_FULL, StoreErrorKind::Full);
        check(ffi::SQLITE_READONLY, StoreErrorKind::ReadOnly);
        check(ffi::SQLITE_READONLY_DIRECTORY, StoreErrorKind::Denied);
        check(ffi::SQLITE_CORRUPT, StoreErrorKind::Corrupt);
        check(ffi::SQLITE_IOERR_CORRUPTFS, StoreErrorKind::Corrupt);
        check(ffi::SQLITE_NOTADB, StoreErrorKind::Incompatible);
        check(ffi::SQLITE_PERM, StoreErrorKind::Denied);
        check(ffi::SQLITE_CANTOPEN, StoreErrorKind::Invalid);
        check(ffi::SQLITE_IOERR_FSYNC, StoreErrorKind::Unavailable);
        check(ffi::SQLITE_NOMEM, StoreErrorKind::Unavailable);
        check(ffi::SQLITE_CONSTRAINT_CHECK, StoreErrorKind::Internal);
        check(ffi::SQLITE_ERROR, StoreErrorKind::Internal);
    }

    #[test]
    fn the_cause_is_kept_and_not_repeated() {
        let failure = Failure::Sql(SqlError::SqliteFailure(
            ffi::Error::new(ffi::SQLITE_FULL),
            Some("database or disk is full".into()),
        ));
        let error = failure.into_store_error("adjust", Path::new("x.db"));
        assert_eq!(
            error.to_string(),
            "adjust: x.db: the disk is full; nothing was written. Make room and try again"
        );
        assert!(std::error::Error::source(&error).is_some());
    }
}
