//! The rows: ours here, those of others in `peers`.

mod memory;
mod processes;
pub(crate) mod sqlite;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous};

use crate::cell::Row;

pub(crate) use memory::BLOCK_ACQUIRE;
#[cfg(feature = "peers")]
pub(crate) use memory::Weight;
#[cfg(feature = "peers")]
pub(crate) use sqlite::CALLERS;
pub(crate) use sqlite::takes;

/// One row of the table, not set up yet.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) make: fn(&Context) -> Result<Box<dyn Row>>,
}

/// In the order in which they run: rows that are compared stand together. Every other round runs
/// backwards.
pub(crate) fn all() -> Vec<Entry> {
    let mut rows = sqlite::rows();
    rows.extend(processes::rows());
    rows.extend(memory::rows());
    #[cfg(feature = "peers")]
    crate::peers::add(&mut rows);
    rows
}

/// What rows share.
pub(crate) struct Context {
    folder: TempDir,
    /// Where large files are kept for the next time, if they are.
    lasting: Option<PathBuf>,
    pub(crate) quick: bool,
    normal: OnceCell<SqliteStore>,
    #[cfg(feature = "peers")]
    pub(crate) redis: OnceCell<Result<crate::peers::Server, String>>,
    pub(crate) canned: OnceCell<Result<crate::dynamodb::Endpoint, String>>,
}

impl Context {
    pub(crate) fn new(
        folder: Option<&Path>,
        lasting: Option<PathBuf>,
        quick: bool,
    ) -> Result<Context> {
        let folder = folder
            .map_or_else(tempfile::tempdir, tempfile::tempdir_in)
            .context("a folder for files")?;
        Ok(Context {
            folder,
            lasting,
            quick,
            normal: OnceCell::new(),
            #[cfg(feature = "peers")]
            redis: OnceCell::new(),
            canned: OnceCell::new(),
        })
    }

    /// A million, or what stands for it when in a hurry.
    pub(crate) fn million(&self) -> usize {
        if self.quick { 100_000 } else { 1_000_000 }
    }

    /// Where a file of this name goes.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where a file of this name goes that takes long to make: where it may be already.
    fn lasting(&self, name: &str) -> PathBuf {
        self.lasting.as_ref().map_or_else(|| self.file(name), |folder| folder.join(name))
    }

    /// The file that the rows with one caller share, also the peer that goes past us.
    fn normal(&self) -> Result<SqliteStore> {
        if let Some(store) = self.normal.get() {
            return Ok(store.clone());
        }
        let store = self.store("normal.db", Synchronous::Normal)?;
        Ok(self.normal.get_or_init(|| store).clone())
    }

    fn store(&self, name: &str, synchronous: Synchronous) -> Result<SqliteStore> {
        open(&self.file(name), synchronous)
    }

    /// The path of the shared file, which exists afterwards.
    #[cfg(feature = "peers")]
    pub(crate) fn normal_path(&self) -> Result<PathBuf> {
        self.normal()?;
        Ok(self.file("normal.db"))
    }
}

fn open(path: &Path, synchronous: Synchronous) -> Result<SqliteStore> {
    SqliteStore::open_with(path, SqliteOptions::new().synchronous(synchronous))
        .context("a database file")
}
