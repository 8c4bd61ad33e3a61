//! Looking at the file as a whole, and copying it.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use zae_limiter_core::TimeMs;
use zae_limiter_store::StoreError;

use crate::SqliteStore;
use crate::connection::private;
use crate::error::{Failure, Outcome, from_io, optional};
use crate::rows::{bucket_columns, bucket_from_row};
use crate::schema;

/// How many problems an integrity check names.
const PROBLEMS_MAX: u32 = 100;

/// What [`SqliteStore::status`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStatus {
    /// Where the file is.
    pub path: PathBuf,
    /// Its size.
    pub file_bytes: u64,
    /// The size of its write-ahead log.
    pub log_bytes: u64,
    /// The version of its schema.
    pub schema_version: u32,
    /// The version of SQLite in this process.
    pub sqlite_version: String,
    /// Buckets, of all namespaces.
    pub buckets: u64,
    /// Buckets that owe tokens.
    pub buckets_in_debt: u64,
    /// When everything was last swept.
    pub swept_at: Option<TimeMs>,
    /// What is wrong with the file; empty when it is sound.
    pub problems: Vec<String>,
}

impl SqliteStore {
    /// Looks at the whole file. Blocks, reads every page and takes as long as that takes; writers go on meanwhile.
    pub fn status(&self, now: TimeMs) -> Result<FileStatus, StoreError> {
        let path = self.path();
        let log = with_suffix(path, "-wal");
        let file_bytes = fs::metadata(path).map_err(|error| from_io(error, "status", path))?.len();
        self.read("status", |conn| {
            let (buckets, buckets_in_debt) = count_buckets(conn, now)?;
            Ok(FileStatus {
                path: path.to_owned(),
                file_bytes,
                // Without a log nothing has been written since it was last emptied.
                log_bytes: fs::metadata(&log).map_or(0, |metadata| metadata.len()),
                schema_version: schema::version(conn)?,
                sqlite_version: rusqlite::version().to_owned(),
                buckets,
                buckets_in_debt,
                swept_at: swept_at(conn)?,
                problems: check_integrity(conn)?,
            })
        })
    }

    /// Copies the file as it is at this moment to `target`, which must not exist. Blocks; writers go on meanwhile. The copy
    /// is complete or not there, whatever happens in between.
    pub fn backup_to(&self, target: impl AsRef<Path>) -> Result<(), StoreError> {
        const OPERATION: &str = "backup";
        let target = target.as_ref();
        if target.exists() {
            return Err(from_io(std::io::ErrorKind::AlreadyExists.into(), OPERATION, target));
        }
        let partial = with_suffix(target, ".partial");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        private(&mut options);
        let file = options.open(&partial).map_err(|error| from_io(error, OPERATION, &partial))?;
        let copied = self
            .copy_into(&partial)
            .and_then(|()| file.sync_all().and_then(|()| fs::rename(&partial, target)).map_err(|error| from_io(error, OPERATION, target)));
        if copied.is_err() {
            // What is left of a failed copy is of no use to anybody.
            let _ = fs::remove_file(&partial);
        }
        copied
    }

    fn copy_into(&self, partial: &Path) -> Result<(), StoreError> {
        // VACUUM can not run inside a transaction; it makes one of its own.
        let failed = |failure: Failure| failure.into_store_error("backup", partial);
        let conn = self.shared.place.open_reader().map_err(failed)?;
        let Some(text) = partial.to_str() else {
            return Err(from_io(std::io::ErrorKind::InvalidFilename.into(), "backup", partial));
        };
        // The connection still can not write to the original: it was opened for reading.
        conn.pragma_update(None, "query_only", false)
            .and_then(|()| conn.execute("VACUUM INTO ?1", [text]))
            .map_err(|error| failed(error.into()))?;
        Ok(())
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn count_buckets(conn: &Connection, now: TimeMs) -> Outcome<(u64, u64)> {
    let mut statement = conn.prepare(concat!("SELECT ", bucket_columns!(), " FROM bucket b"))?;
    let mut rows = statement.query([])?;
    let (mut buckets, mut in_debt) = (0, 0);
    while let Some(row) = rows.next()? {
        buckets += 1;
        in_debt += u64::from(bucket_from_row(row, 0, &[])?.in_debt_at(now));
    }
    Ok((buckets, in_debt))
}

fn swept_at(conn: &Connection) -> Outcome<Option<TimeMs>> {
    Ok(optional(conn.query_row("SELECT value FROM meta WHERE name='swept_at'", [], |row| row.get(0)))?.map(TimeMs))
}

fn check_integrity(conn: &Connection) -> Outcome<Vec<String>> {
    let mut problems = Vec::new();
    conn.pragma(None, "integrity_check", PROBLEMS_MAX, |row| {
        problems.push(row.get::<_, String>(0)?);
        Ok(())
    })?;
    problems.retain(|problem| problem != "ok");
    Ok(problems)
}
