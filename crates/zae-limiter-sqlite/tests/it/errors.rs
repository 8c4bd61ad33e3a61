//! Everything that can be wrong with a file: each has its kind, and a message that names the file
//! and the fix.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use crate::common::{
    START, Scratch, at, bucket, child_command, limits, my_role, runtime, take, try_take,
};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use zae_limiter_store::{BucketStore, ConfigStore, PageRequest, Store, StoreError, StoreErrorKind};

/// The test of this file that a child process runs.
const CHILD: &str = "errors::child_process";

#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: StoreErrorKind, words: &[&str]) {
    let error = result.expect_err("an error");
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is missing in: {error}");
    }
}

#[test]
fn a_missing_directory() {
    let scratch = Scratch::new();
    let path = scratch.directory.path().join("no/where.db");
    fails(SqliteStore::open(&path), StoreErrorKind::NotFound, &["no/where.db", "create it first"]);
    let options = SqliteOptions::new().read_only();
    fails(SqliteStore::open_with(&path, options), StoreErrorKind::NotFound, &["no/where.db"]);
}

#[test]
fn a_directory_is_not_a_file() {
    let scratch = Scratch::new();
    fails(SqliteStore::open(scratch.directory.path()), StoreErrorKind::Invalid, &["name a file"]);
}

#[test]
fn not_a_database() {
    let scratch = Scratch::new();
    fs::write(scratch.path(), "rpm: 60\n".repeat(1000)).expect("a file");
    fails(
        SqliteStore::open(scratch.path()),
        StoreErrorKind::Incompatible,
        &["limits.db", "not a SQLite database"],
    );
    assert_eq!(fs::read(scratch.path()).expect("still there").len(), 8000, "left as it was");
}

#[test]
fn a_database_of_somebody_else() {
    let scratch = Scratch::new();
    scratch.sqlite().execute_batch("CREATE TABLE theirs (x)").expect("a table");
    fails(
        SqliteStore::open(scratch.path()),
        StoreErrorKind::Incompatible,
        &["another application", "choose another path"],
    );
    let other = Scratch::new();
    other
        .sqlite()
        .execute_batch("PRAGMA application_id = 7; CREATE TABLE theirs (x)")
        .expect("a table");
    fails(SqliteStore::open(other.path()), StoreErrorKind::Incompatible, &["0x00000007"]);
    let mode: String =
        other.sqlite().query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("a mode");
    assert_eq!(mode, "delete", "left as it was");
}

#[test]
fn a_newer_file_names_both_versions() {
    let scratch = Scratch::new();
    drop(scratch.open());
    scratch.sqlite().execute_batch("PRAGMA user_version = 99").expect("a version");
    fails(
        SqliteStore::open(scratch.path()),
        StoreErrorKind::Incompatible,
        &["version 99", "up to 3", "upgrade"],
    );
}

#[test]
fn an_older_file_is_migrated_by_a_writer_only() {
    let scratch = Scratch::new();
    // What a process leaves that was killed before it had migrated a new file: version 0.
    fs::write(scratch.path(), "").expect("a file");
    let options = SqliteOptions::new().read_only();
    let ours = Scratch::new().open().status(START).expect("a status").schema_version;
    fails(
        SqliteStore::open_with(scratch.path(), options.clone()),
        StoreErrorKind::Incompatible,
        &["version 0", &format!("version {ours}"), "migrate"],
    );
    assert_eq!(scratch.open().status(START).expect("a status").schema_version, ours);
    assert!(SqliteStore::open_with(scratch.path(), options).is_ok());
}

#[test]
fn a_reader_writes_nothing() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let writer = scratch.open();
        let rpm = limits("rpm:60/min");
        take(&writer, "key", &rpm, 10, START).await;
        let reader = scratch.open_with(SqliteOptions::new().read_only());
        assert_eq!(bucket(&reader, "key").await, bucket(&writer, "key").await);
        fails(
            try_take(&reader, "key", &rpm, 1, START).await,
            StoreErrorKind::ReadOnly,
            &["limits.db", "read_only()"],
        );
        fails(reader.sweep(START, 1).await, StoreErrorKind::ReadOnly, &[]);
        assert!(reader.ping().await.is_ok());
    });
}

#[test]
fn a_damaged_page() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let rpm = limits("rpm:60/min");
        let store = scratch.open();
        for number in 0..500 {
            take(&store, &format!("key-{number}"), &rpm, 1, START).await;
        }
        drop(store);
        // Everything into the main file, then noise over all pages but the first ones, which hold
        // the schema and the small tables.
        scratch.sqlite().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("a checkpoint");
        let size = fs::metadata(scratch.path()).expect("a file").len();
        let file = fs::OpenOptions::new().write(true).open(scratch.path()).expect("a file");
        for offset in (4096 * 28..size).step_by(512) {
            file.write_all_at(&[0xA5; 200], offset).expect("a write");
        }
        drop(file);
        let store = scratch.open();
        fails(
            store.buckets(&crate::common::entity("key-7"), &PageRequest::default()).await,
            StoreErrorKind::Corrupt,
            &["limits.db", "zae-limiter restore"],
        );
        fails(
            try_take(&store, "key-7", &rpm, 1, START).await,
            StoreErrorKind::Corrupt,
            &["limits.db", "zae-limiter restore"],
        );
    });
}

/// One row that cannot be right is the problem of those who ask for it.
#[test]
fn a_damaged_row_harms_nobody_else() {
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        runtime().block_on(async {
            let store = scratch.open_with(SqliteOptions::new().synchronous(synchronous));
            let rpm = limits("rpm:60/min");
            for id in ["good", "bad"] {
                take(&store, id, &rpm, 1, START).await;
            }
            scratch
                .sqlite()
                .execute("UPDATE bucket SET limits = x'0105' WHERE entity = 'bad'", [])
                .expect("a change");
            // Both wait for the lock, and so get into one transaction.
            let other = scratch.sqlite();
            other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
            let let_go = async { other.execute_batch("COMMIT").expect("let go") };
            let (good, bad, ()) = tokio::join!(
                try_take(&store, "good", &rpm, 1, START),
                try_take(&store, "bad", &rpm, 1, START),
                let_go
            );
            fails(bad, StoreErrorKind::Corrupt, &["consume", "limits.db", "zae-limiter restore"]);
            assert!(good.is_ok(), "{good:?}");
            assert!(
                store.sweep(at(86_400_000), 100).await.expect("a sweep").complete,
                "a sweep gets past it"
            );
        });
    }
}

#[test]
fn a_full_disk() {
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        runtime().block_on(async {
            let rpm = limits("rpm:60/min");
            let options = SqliteOptions::new().synchronous(synchronous);
            let store = scratch.open_with(options.clone().pages_max(40));
            let mut granted = 0;
            let error = loop {
                match try_take(&store, &format!("key-{granted}"), &rpm, 1, START).await {
                    Ok(_) => granted += 1,
                    Err(error) => break error,
                }
                assert!(granted < 10_000, "the bound does not hold");
            };
            fails::<()>(Err(error), StoreErrorKind::Full, &["limits.db", "Make room"]);
            let id = crate::common::entity(&format!("key-{granted}"));
            assert!(
                store
                    .buckets(&id, &PageRequest::default())
                    .await
                    .expect("a listing")
                    .items
                    .is_empty(),
                "nothing was applied"
            );
            // What needs no room goes on, and with room everything does.
            assert_eq!(take(&store, "key-0", &rpm, 1, START).await, Some(58));
            drop(store);
            let store = scratch.open_with(options);
            assert_eq!(take(&store, &format!("key-{granted}"), &rpm, 1, START).await, Some(59));
            assert!(store.status(START).expect("a status").problems.is_empty());
        });
    }
}

/// All of a batch or nothing of it: each caller is told, and what is stored is what was granted.
#[test]
fn a_disk_that_fills_up_under_a_crowd() {
    const CALLERS: usize = 2000;
    let scratch = Scratch::new();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    runtime.block_on(async {
        let store =
            scratch.open_with(SqliteOptions::new().synchronous(Synchronous::Full).pages_max(40));
        let tasks: Vec<_> = (0..CALLERS)
            .map(|number| {
                let store = store.clone();
                async move {
                    try_take(&store, &format!("key-{number}"), &limits("rpm:60/min"), 1, START)
                        .await
                }
            })
            .map(spawn)
            .collect();
        let (mut granted, mut full) = (0, 0);
        for task in tasks {
            match task.await.expect("no panic") {
                Ok(_) => granted += 1,
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
                    full += 1;
                }
            }
        }
        assert!(full > 0, "the disk was meant to be too small");
        let stored: i64 = scratch
            .sqlite()
            .query_row("SELECT count(*) FROM bucket", [], |row| row.get(0))
            .expect("a count");
        assert_eq!(stored, granted, "what was granted is stored, and nothing else");
    });
}

#[expect(clippy::disallowed_methods, reason = "tests may spawn")]
fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(work)
}

#[test]
fn a_lock_that_is_not_let_go() {
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        runtime().block_on(async {
            let rpm = limits("rpm:60/min");
            let options = SqliteOptions::new()
                .synchronous(synchronous)
                .busy_deadline(Duration::from_millis(60));
            let store = scratch.open_with(options);
            take(&store, "key", &rpm, 1, START).await;
            let other = scratch.sqlite();
            other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
            let result = try_take(&store, "key", &rpm, 1, START).await;
            assert!(result.as_ref().is_err_and(StoreError::is_retryable), "{result:?}");
            fails(
                result,
                StoreErrorKind::Busy,
                &["consume", "limits.db", "60 ms", "busy_deadline"],
            );
            let refusals = store.adjust(&[], START).await;
            assert!(refusals.is_empty());
            fails(
                store
                    .delete_limits(&zae_limiter_store::Level::System, &crate::common::change(1))
                    .await,
                StoreErrorKind::Busy,
                &["delete_limits"],
            );
            // Whoever asks whether the store is available asks for takes.
            fails(store.ping().await, StoreErrorKind::Busy, &["ping"]);
            // Readers do not care, and others may open the file.
            assert!(bucket(&store, "key").await.is_some());
            assert!(SqliteStore::open(scratch.path()).is_ok());
            other.execute_batch("COMMIT").expect("let go");
            assert_eq!(
                take(&store, "key", &rpm, 1, START).await,
                Some(58),
                "the refused take took nothing"
            );
        });
    }
}

#[test]
fn a_gate_that_is_not_opened() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let rpm = limits("rpm:60/min");
        let options = SqliteOptions::new()
            .synchronous(Synchronous::Full)
            .busy_deadline(Duration::from_millis(60));
        let store = scratch.open_with(options);
        take(&store, "key", &rpm, 1, START).await;
        let gate =
            fs::File::open(scratch.directory.path().join("limits.db.gate")).expect("the gate");
        gate.try_lock().expect("nobody keeps the gate when there is nothing to do");
        fails(try_take(&store, "key", &rpm, 1, START).await, StoreErrorKind::Busy, &["60 ms"]);
        fails(try_take(&store, "key", &rpm, 1, START).await, StoreErrorKind::Busy, &["60 ms"]);
        gate.unlock().expect("the lock");
        assert_eq!(take(&store, "key", &rpm, 1, START).await, Some(58), "the line has moved on");
        gate.try_lock().expect("nobody keeps the gate when there is nothing to do");
    });
}

/// Runs the child as a user without rights. A superuser may do everything, so the child is started
/// as nobody.
#[track_caller]
fn as_nobody(role: &str, path: &Path) {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let mut command = child_command(CHILD, role, path);
    let is_superuser = fs::metadata("/proc/self")
        .is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0);
    if is_superuser {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.stdout(std::process::Stdio::piped()).output().expect("a child process");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{role}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

#[test]
fn a_file_that_may_not_be_read() {
    let scratch = Scratch::new();
    drop(scratch.open());
    set_mode(scratch.directory.path(), 0o755);
    set_mode(&scratch.path(), 0o000);
    as_nobody("denied", &scratch.path());
}

#[test]
fn a_file_that_may_not_be_written() {
    let scratch = Scratch::new();
    runtime().block_on(take(&scratch.open(), "key", &limits("rpm:60/min"), 1, START));
    for name in ["limits.db", "limits.db-wal", "limits.db-shm"] {
        set_mode(&scratch.directory.path().join(name), 0o444);
    }
    set_mode(scratch.directory.path(), 0o555);
    as_nobody("read_only", &scratch.path());
    set_mode(scratch.directory.path(), 0o755);
}

#[test]
fn a_directory_that_may_not_be_written() {
    let scratch = Scratch::new();
    set_mode(scratch.directory.path(), 0o555);
    as_nobody("no_new_file", &scratch.path());
    set_mode(scratch.directory.path(), 0o755);
}

#[test]
fn child_process() {
    let Some((role, path)) = my_role() else { return };
    match role.as_str() {
        "denied" => {
            fails(SqliteStore::open(path), StoreErrorKind::Denied, &["limits.db", "let this user"])
        }
        "no_new_file" => {
            fails(SqliteStore::open(path), StoreErrorKind::Denied, &["limits.db", "permission"])
        }
        "read_only" => {
            fails(
                SqliteStore::open(&path),
                StoreErrorKind::ReadOnly,
                &["limits.db", "read_only()"],
            );
            let reader =
                SqliteStore::open_with(&path, SqliteOptions::new().read_only()).expect("a reader");
            assert!(runtime().block_on(bucket(&reader, "key")).is_some());
        }
        other => panic!("there is no role {other}"),
    }
}
