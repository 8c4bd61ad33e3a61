//! The status of the file as a whole.

use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use zae_limiter_core::TimeMs;
use zae_limiter_store::StoreError;

use crate::SqliteStore;
use crate::connection::with_suffix;
use crate::error::{Outcome, from_io};
use crate::query;
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
    /// Its mode, as `chmod` counts; `None` where files have no modes.
    pub mode: Option<u32>,
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
    /// The problems of the file; empty when it is sound.
    pub problems: Vec<String>,
}

impl SqliteStore {
    /// Looks at the whole file. Blocks, reads every page and takes as long as that takes; writers
    /// go on meanwhile.
    pub fn status(&self, now: TimeMs) -> Result<FileStatus, StoreError> {
        let path = self.path();
        let log = with_suffix(path, "-wal");
        let file = fs::metadata(path).map_err(|error| from_io(error, "status", path))?;
        self.read("status", |conn| {
            let (buckets, buckets_in_debt) = count_buckets(conn, now)?;
            Ok(FileStatus {
                path: path.to_owned(),
                file_bytes: file.len(),
                mode: mode(&file),
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
}

#[cfg(unix)]
fn mode(file: &fs::Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    Some(file.permissions().mode() & 0o7777)
}

#[cfg(not(unix))]
fn mode(_file: &fs::Metadata) -> Option<u32> {
    None
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
    Ok(query::value(conn, "SELECT value FROM meta WHERE name='swept_at'", [])?.map(TimeMs))
}

pub(crate) fn check_integrity(conn: &Connection) -> Outcome<Vec<String>> {
    let mut problems = Vec::new();
    conn.pragma(None, "integrity_check", PROBLEMS_MAX, |row| {
        problems.push(row.get::<_, String>(0)?);
        Ok(())
    })?;
    problems.retain(|problem| problem != "ok");
    Ok(problems)
}
