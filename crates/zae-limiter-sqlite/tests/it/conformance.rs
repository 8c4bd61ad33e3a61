//! The conformance suite, with both kinds of commit.

use std::sync::Arc;

use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use zae_limiter_store::conformance::Harness;
use zae_limiter_store::{BoxFuture, Store};

/// One file in a directory of its own.
struct OneFile {
    directory: tempfile::TempDir,
    synchronous: Synchronous,
}

impl OneFile {
    fn with(synchronous: Synchronous) -> OneFile {
        OneFile { directory: tempfile::tempdir().expect("a directory"), synchronous }
    }

    fn open(&self) -> Arc<dyn Store> {
        let options = SqliteOptions::new().synchronous(self.synchronous);
        Arc::new(
            SqliteStore::open_with(self.directory.path().join("limits.db"), options)
                .expect("a store"),
        )
    }
}

impl Harness for OneFile {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async { self.open() })
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async { Some(self.open()) })
    }
}

mod normal {
    use super::{OneFile, Synchronous};

    zae_limiter_store::conformance_suite!(super::OneFile::with(super::Synchronous::Normal));

    #[test]
    fn nothing_is_skipped() {
        let store = OneFile::with(Synchronous::Normal).open();
        let skipped: Vec<_> = zae_limiter_store::conformance::skipped(&store.capabilities())
            .map(|case| case.name)
            .collect();
        assert!(skipped.is_empty(), "{skipped:?}");
    }
}

mod full {
    zae_limiter_store::conformance_suite!(super::OneFile::with(super::Synchronous::Full));
}
