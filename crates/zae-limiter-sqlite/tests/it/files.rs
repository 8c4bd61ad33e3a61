//! The file as such: who may read it, what is in it, how it is copied.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{START, Scratch, at, change, entity, gpt, limits, runtime, take, try_take};
use zae_limiter_core::{Flag, Milli, UsageWindow};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous, WriterStats};
use zae_limiter_store::{
    BucketDelta, BucketStore, ConfigStore, Delta, HistoryStore, Level, NamespaceStore, PageRequest,
    SeededEntropy, Store, StoreErrorKind, UsageQuery,
};

/// A page of the log, with its header.
const PAGE_BYTES: u64 = 4096 + 24;

#[test]
fn every_file_is_its_owners_only() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open_with(SqliteOptions::new().synchronous(Synchronous::Full));
        take(&store, "key", &limits("rpm:60/min"), 1, START).await;
        store.backup_to(scratch.directory.path().join("copy.db")).expect("a copy");
        let mut names = Vec::new();
        for file in fs::read_dir(scratch.directory.path()).expect("a directory") {
            let file = file.expect("a file");
            assert_eq!(
                file.metadata().expect("metadata").permissions().mode() & 0o777,
                0o600,
                "{file:?}"
            );
            names.push(file.file_name().into_string().expect("a name"));
        }
        names.sort();
        assert_eq!(
            names,
            ["copy.db", "limits.db", "limits.db-shm", "limits.db-wal", "limits.db.gate"]
        );
    });
}

/// SQLite empties the log on the last close and leaves it there, with its index: whoever may only
/// read needs both.
#[test]
fn the_log_outlives_the_last_handle() {
    let scratch = Scratch::new();
    runtime()
        .block_on(async { take(&scratch.open(), "key", &limits("rpm:60/min"), 1, START).await });
    let log = fs::metadata(scratch.directory.path().join("limits.db-wal")).expect("a log");
    assert_eq!(log.len(), 0);
    assert!(scratch.directory.path().join("limits.db-shm").exists());
    assert_eq!(
        runtime().block_on(take(&scratch.open(), "key", &limits("rpm:60/min"), 1, START)),
        Some(58)
    );
}

/// The log is written back by the thread, so a caller who works inline never waits for the disk.
/// Then it is started anew: not always after the first round, because a disk that needs longer than
/// a writer waits for it wins nothing by a round.
#[test]
fn the_log_stays_short() {
    const COMMITS_MAX: u64 = 100_000;
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpd = limits("rpd:1000000/day");
        let (mut commits, mut log_bytes) = (0, 0);
        while log_bytes >= commits * PAGE_BYTES && commits < COMMITS_MAX {
            let rounds = store.writer_stats().checkpoints;
            while store.writer_stats().checkpoints == rounds && commits < COMMITS_MAX {
                take(&store, "key", &rpd, 1, START).await;
                commits += 1;
            }
            // Should it have been started anew, the next commit does not lengthen it.
            take(&store, "key", &rpd, 1, START).await;
            commits += 1;
            log_bytes = store.status(START).expect("a status").log_bytes;
        }
        assert!(
            log_bytes < commits * PAGE_BYTES,
            "{commits} commits of a page, and a log of {log_bytes} bytes"
        );
    });
}

/// 64 MB: what the log of a crowd never exceeds on a disk that is fast enough for it.
const LOG_PAGES_MAX: u64 = (64 << 20) / PAGE_BYTES;

/// A crowd never pauses by itself, so the log is started anew only because a writer holds the lock
/// for the last pages of it. The tests beside this one use the disk too: of three crowds one has a
/// disk that is fast enough.
#[test]
fn the_log_of_a_crowd_stays_short() {
    let mut stats = Vec::new();
    for _ in 0..3 {
        let one = crowd();
        assert!(one.checkpoints >= 3 && one.holds > 0, "{one:?}");
        if one.log_pages_peak <= LOG_PAGES_MAX {
            return;
        }
        stats.push(one);
    }
    panic!("{stats:?}");
}

#[expect(clippy::disallowed_methods, reason = "tests may spawn")]
fn crowd() -> WriterStats {
    const CALLERS: u64 = 64;
    const TAKES_MAX: u64 = 20_000;
    let scratch = Scratch::new();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let store = scratch.open();
    runtime.block_on(async {
        let callers = (0..CALLERS).map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                let (rpd, mut takes) = (limits("rpd:1000000/day"), 0);
                while store.writer_stats().checkpoints < 3 && takes < TAKES_MAX {
                    // Far apart, so that each take writes a page of its own.
                    take(&store, &format!("{}-{caller}", takes % 500), &rpd, 1, START).await;
                    takes += 1;
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.expect("no panic");
        }
    });
    store.writer_stats()
}

/// Somebody who reads all the time keeps the log from being started anew. It is then written back
/// now and then, not at every commit, and started anew when the reader has gone.
#[test]
fn a_reader_does_not_make_every_commit_slow() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpd = limits("rpd:1000000/day");
        take(&store, "key", &rpd, 1, START).await;
        let reader = scratch.sqlite();
        reader.execute_batch("BEGIN; SELECT count(*) FROM bucket").expect("a read transaction");
        // The thread works at its own pace, so as many takes as it needs, within reason.
        let until = async |checkpoints: u64| {
            let mut commits = 0;
            while store.writer_stats().checkpoints < checkpoints && commits < 200_000 {
                take(&store, "key", &rpd, 1, START).await;
                commits += 1;
            }
            commits
        };
        let commits = until(2).await;
        let before = store.writer_stats().checkpoints;
        assert!(before >= 2 && before * 500 < commits, "{before} checkpoints in {commits} commits");
        reader.execute_batch("COMMIT").expect("the reader goes");
        // One may have begun beside the reader, and the disk may be too slow for the next ones.
        for rounds in 1..=10 {
            until(before + rounds).await;
            let long = store.status(START).expect("a status").log_bytes;
            for _ in 0..1_000 {
                take(&store, "key", &rpd, 1, START).await;
            }
            if store.status(START).expect("a status").log_bytes < long + 500 * PAGE_BYTES {
                return;
            }
        }
        panic!("the log is not used again from its start");
    });
}

#[test]
fn the_settings_are_those_that_were_measured() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let read = |pragma: &str| -> String {
        let conn = scratch.sqlite();
        conn.query_row(&format!("SELECT CAST({pragma} AS TEXT) FROM pragma_{pragma}"), [], |row| {
            row.get(0)
        })
        .expect("a setting")
    };
    assert_eq!(read("journal_mode"), "wal");
    assert_eq!(read("application_id"), i32::from_be_bytes(*b"zael").to_string());
    let status = store.status(START).expect("a status");
    assert_eq!(read("user_version"), status.schema_version.to_string());
}

#[test]
fn a_status_counts_what_there_is() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpm = limits("rpm:60/min");
        for id in ["a", "b", "c"] {
            take(&store, id, &rpm, 60, START).await;
        }
        let (entity, resource) = (entity("c"), gpt());
        let deltas = [Delta { limit: 0, amount: Milli::from_tokens(30) }];
        store
            .adjust(
                &[BucketDelta {
                    entity: &entity,
                    resource: &resource,
                    limits: &rpm,
                    deltas: &deltas,
                    operation: 0,
                    take: 0,
                    place: 0,
                }],
                START,
            )
            .await;
        let status = store.status(START).expect("a status");
        assert_eq!((status.buckets, status.buckets_in_debt), (3, 1));
        assert_eq!(status.sqlite_version, rusqlite::version());
        assert_eq!((status.path.as_path(), status.swept_at), (scratch.path().as_path(), None));
        assert!(status.file_bytes > 0 && status.log_bytes > 0 && status.problems.is_empty());
        assert_eq!(
            store.status(at(31_000)).expect("a status").buckets_in_debt,
            0,
            "the debt has been paid by then"
        );
        store.sweep(at(1), 100).await.expect("a sweep");
        assert_eq!(store.status(START).expect("a status").swept_at, Some(at(1)));
    });
}

#[test]
fn a_copy_is_a_whole_store() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpm = limits("rpm:60/min");
        take(&store, "key", &rpm, 10, START).await;
        store
            .set_flag(&Level::Resource(gpt()), Some(Flag::Enabled), &change(1))
            .await
            .expect("a change");
        let target = scratch.directory.path().join("copy.db");
        store.backup_to(&target).expect("a copy");
        take(&store, "key", &rpm, 10, START).await;
        let copy = SqliteStore::open(&target).expect("a store");
        assert_eq!(
            take(&copy, "key", &rpm, 1, START).await,
            Some(49),
            "as it was at the moment of the copy"
        );
        assert!(copy.level(&Level::Resource(gpt())).await.expect("a read").is_some());
        assert!(copy.status(START).expect("a status").problems.is_empty());
        let again = store.backup_to(&target).expect_err("the target exists");
        assert_eq!(again.kind(), StoreErrorKind::AlreadyExists);
        let nowhere = store
            .backup_to(scratch.directory.path().join("no/where.db"))
            .expect_err("no such directory");
        assert_eq!(nowhere.kind(), StoreErrorKind::NotFound);
        assert!(!scratch.directory.path().join("copy.db.partial").exists());
    });
}

/// The id of the first namespace comes from the entropy that was injected.
#[test]
fn the_default_namespace_has_a_random_id() {
    let id_of = |entropy: Option<u64>| {
        let scratch = Scratch::new();
        let mut options = SqliteOptions::new();
        if let Some(seed) = entropy {
            options = options.entropy(std::sync::Arc::new(SeededEntropy::new(seed)));
        }
        let store = scratch.open_with(options);
        let name = store.current_namespace();
        let namespace =
            runtime().block_on(store.namespace(&name)).expect("a read").expect("it is registered");
        assert_eq!(name.as_str(), "default");
        namespace.id.to_string()
    };
    assert_eq!(id_of(Some(7)), id_of(Some(7)));
    assert_ne!(id_of(Some(7)), id_of(Some(8)));
    assert_ne!(id_of(None), id_of(None));
}

/// Without its namespace a handle can still be opened: to recover it.
#[test]
fn a_deleted_default_namespace_can_be_recovered() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpm = limits("rpm:60/min");
        take(&store, "key", &rpm, 1, START).await;
        let name = store.current_namespace();
        assert!(store.delete_namespace(&name, &change(1)).await.expect("a deletion"));
        drop(store);
        let store = scratch.open();
        assert_eq!(
            try_take(&store, "key", &rpm, 1, START).await.map_err(|error| error.kind()),
            Err(StoreErrorKind::NotFound)
        );
        let orphan = store
            .orphan_namespaces(&PageRequest::default())
            .await
            .expect("a listing")
            .items
            .remove(0);
        store.recover_namespace(&orphan.id, &change(2)).await.expect("a recovery");
        assert_eq!(take(&scratch.open(), "key", &rpm, 1, START).await, Some(58));
    });
}

/// Purging a large namespace takes many transactions, and leaves nothing.
#[test]
fn a_large_namespace_is_purged_in_steps() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let (name, id) = ("tenant".parse().expect("a name"), "t-1".parse().expect("an id"));
        store.register_namespace(&name, &id, &change(1)).await.expect("a namespace");
        let tenant = store.in_namespace(&name).expect("a handle");
        for number in 0..1200 {
            take(&tenant, &format!("key-{number}"), &limits("rpm:60/min"), 1, START).await;
        }
        store.delete_namespace(&name, &change(2)).await.expect("a deletion");
        let before = store.writer_stats().tasks;
        let purged = store.purge_namespace(&id, &change(3)).await.expect("a purge");
        assert_eq!(purged.records, 1202, "the buckets, and two audit events");
        assert!(store.writer_stats().tasks - before >= 5, "bounded transactions");
        let taken =
            store.register_namespace(&name, &id, &change(4)).await.map_err(|error| error.kind());
        assert_eq!(
            taken.map(|_| ()),
            Err(StoreErrorKind::AlreadyExists),
            "an id is never used again"
        );
    });
}

/// Amounts beyond what a sum can hold stay at the bound, in the history too.
#[test]
fn huge_usage_saturates() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let huge = limits("tpd:1000000000000000/sec");
        for hour in 0..4 {
            for second in 0..9 {
                let granted = take(
                    &store,
                    "key",
                    &huge,
                    1_000_000_000_000_000,
                    at(hour * 3_600_000 + second * 1000),
                )
                .await;
                assert_eq!(granted, Some(0));
            }
        }
        let query = UsageQuery {
            entity: Some(entity("key")),
            resource: None,
            window: UsageWindow::Daily,
            from: None,
            until: None,
            page: PageRequest::default(),
        };
        let usage = store.usage(&query).await.expect("a query").items;
        assert_eq!((usage[0].counters[0].1, usage[0].events), (Milli(i64::MAX), 36));
    });
}

/// A process that works on a file which has lost its name would let everything through once more,
/// beside the process that made the file anew.
#[cfg(unix)]
#[test]
fn a_file_that_was_deleted_or_replaced_is_noticed() {
    let rpm = limits("rpm:60/min");
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        runtime().block_on(async {
            let old = scratch.open_with(SqliteOptions::new().synchronous(synchronous));
            assert_eq!(take(&old, "key", &rpm, 60, START).await, Some(0));
            for end in ["", "-wal", "-shm"] {
                fs::remove_file(scratch.directory.path().join(format!("limits.db{end}")))
                    .expect("deleted");
            }
            for replaced in [false, true] {
                let new = replaced.then(|| scratch.open());
                if let Some(new) = &new {
                    assert_eq!(take(new, "key", &rpm, 60, START).await, Some(0));
                }
                for seconds in [1, 2, 60] {
                    let error = try_take(&old, "key", &rpm, 1, at(seconds * 1000))
                        .await
                        .expect_err("another file, or none");
                    assert_eq!(error.kind(), StoreErrorKind::State, "{error}");
                    assert!(error.message().contains("restart"), "{error}");
                }
                let look = old
                    .buckets(&entity("key"), &PageRequest::default())
                    .await
                    .expect_err("another file, or none");
                assert_eq!(look.kind(), StoreErrorKind::State);
                let change = old
                    .set_flag(&Level::System, Some(Flag::Disabled), &change(1))
                    .await
                    .expect_err("another file, or none");
                assert_eq!(change.kind(), StoreErrorKind::State);
            }
            // Letting go of the old file does no harm to the new one.
            drop(old);
            let new = scratch.open();
            assert_eq!(take(&new, "key", &rpm, 60, START).await, None);
            assert!(new.status(START).expect("a status").problems.is_empty());
        });
    }
}

/// A process of an older version must not write into a file that a newer one has migrated
/// meanwhile.
#[test]
fn a_file_that_was_migrated_meanwhile_is_noticed() {
    let rpm = limits("rpm:60/min");
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        runtime().block_on(async {
            let old = scratch.open_with(SqliteOptions::new().synchronous(synchronous));
            assert_eq!(take(&old, "key", &rpm, 1, START).await, Some(59));
            let ours = old.status(START).expect("a status").schema_version;
            let migrate = |version: u32| {
                let sql = format!("PRAGMA user_version = {version}");
                scratch.sqlite().execute_batch(&sql).expect("another version");
            };
            migrate(99);
            for _ in 0..2 {
                let error = try_take(&old, "key", &rpm, 1, START).await.expect_err("a newer file");
                assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{error}");
                assert!(error.message().contains("upgrade this process"), "{error}");
            }
            let look = old
                .buckets(&entity("key"), &PageRequest::default())
                .await
                .expect_err("a newer file");
            assert_eq!(look.kind(), StoreErrorKind::Incompatible);
            let change = old
                .set_flag(&Level::System, Some(Flag::Disabled), &change(1))
                .await
                .expect_err("a newer file");
            assert_eq!(change.kind(), StoreErrorKind::Incompatible);
            migrate(ours);
            assert_eq!(
                take(&old, "key", &rpm, 1, START).await,
                Some(58),
                "nothing was written meanwhile"
            );
        });
    }
}
