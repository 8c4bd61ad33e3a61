//! Backups and restores in an operator's hands: odd paths, two at once, crashes, files in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{START, Scratch, child_command, limits, my_role, runtime, take};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::{StoreError, StoreErrorKind};

/// The test of this file that a child process runs.
const CHILD: &str = "copies::child_process";

fn kind_of<T>(result: Result<T, StoreError>) -> Result<(), StoreErrorKind> {
    result.map(|_| ()).map_err(|error| error.kind())
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|file| file.expect("a file").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

/// A store with a take of 10 out of 60, and a backup of it.
fn with_backup(scratch: &Scratch) -> (SqliteStore, PathBuf) {
    let store = scratch.open();
    runtime().block_on(take(&store, "key", &limits("rpm:60/min"), 10, START));
    let backup = scratch.directory.path().join("backup.db");
    store.backup_to(&backup).expect("a backup");
    (store, backup)
}

/// How much is left of 60 after one more.
fn left(store: &SqliteStore) -> Option<i64> {
    runtime().block_on(take(store, "key", &limits("rpm:60/min"), 1, START))
}

fn restore(from: &Path, scratch: &Scratch) -> Result<zae_limiter_sqlite::Restored, StoreError> {
    SqliteStore::restore(from, scratch.path(), SqliteOptions::new())
}

// ------------------------------------------------------------------------------------------ backup

/// The partial copy of `limits` used to be `limits.partial`, which was emptied and deleted when it
/// was the store itself.
#[test]
fn a_backup_never_touches_the_store_itself() {
    let scratch = Scratch::new();
    let folder = scratch.directory.path();
    let live = folder.join("limits.partial");
    let store = SqliteStore::open(&live).expect("a store");
    assert_eq!(left(&store), Some(59));
    store.backup_to(folder.join("limits")).expect("a backup");
    for end in ["", "-wal", "-shm", "-journal", ".gate"] {
        let target = folder.join(format!("limits.partial{end}"));
        assert_eq!(kind_of(store.backup_to(&target)), Err(StoreErrorKind::Invalid), "{end}");
    }
    drop(store);
    let store = SqliteStore::open(&live).expect("the store is still there");
    assert_eq!(left(&store), Some(58));
    assert!(store.status(START).expect("a status").problems.is_empty());
}

#[cfg(unix)]
#[test]
fn a_backup_follows_no_link() {
    let scratch = Scratch::new();
    let folder = scratch.directory.path();
    let (store, _) = with_backup(&scratch);
    fs::write(folder.join("precious"), "mine").expect("a file");
    for link in ["copy.db", "copy.db.partial", "dangling.db"] {
        let leads_to = if link == "dangling.db" { "nowhere" } else { "precious" };
        std::os::unix::fs::symlink(folder.join(leads_to), folder.join(link)).expect("a link");
    }
    assert_eq!(
        kind_of(store.backup_to(folder.join("copy.db"))),
        Err(StoreErrorKind::AlreadyExists)
    );
    assert_eq!(
        kind_of(store.backup_to(folder.join("dangling.db"))),
        Err(StoreErrorKind::AlreadyExists)
    );
    assert_eq!(fs::read_to_string(folder.join("precious")).expect("the file"), "mine");
    assert!(!folder.join("nowhere").exists());
    // The same file by another way.
    std::os::unix::fs::symlink(folder, folder.join("here")).expect("a link");
    assert_eq!(
        kind_of(store.backup_to(folder.join("here/limits.db-wal"))),
        Err(StoreErrorKind::Invalid)
    );
}

/// A relative path that begins with `file:` is a path, not a URI. The working folder belongs to the
/// process, so a child does it.
#[test]
fn a_backup_path_is_no_uri() {
    let scratch = Scratch::new();
    drop(with_backup(&scratch));
    let mut child = child_command(CHILD, "uri", &scratch.path());
    assert!(child.current_dir(scratch.directory.path()).status().expect("a child").success());
    assert_eq!(
        names(scratch.directory.path()),
        ["backup.db", "file:copy.db", "limits.db", "limits.db-shm", "limits.db-wal"]
    );
    let copy =
        SqliteStore::open(scratch.directory.path().join("file:copy.db")).expect("a whole store");
    assert_eq!(left(&copy), Some(49));
}

#[test]
fn of_two_backups_to_one_target_one_is_made() {
    let scratch = Scratch::new();
    let (store, _) = with_backup(&scratch);
    for round in 0..20 {
        let target = scratch.directory.path().join(format!("copy-{round}.db"));
        let results: Vec<_> = std::thread::scope(|scope| {
            let start = || scope.spawn(|| kind_of(store.backup_to(&target)));
            let threads: Vec<_> = (0..4).map(|_| start()).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        assert!(
            results
                .iter()
                .all(|result| matches!(result, Ok(()) | Err(StoreErrorKind::AlreadyExists))),
            "{results:?}"
        );
        assert_eq!(left(&SqliteStore::open(&target).expect("a whole store")), Some(49));
    }
    assert!(!names(scratch.directory.path()).iter().any(|name| name.ends_with(".partial")));
}

// ----------------------------------------------------------------------------------------- restore

#[test]
fn a_restore_brings_back_what_was_there() {
    let scratch = Scratch::new();
    let (store, backup) = with_backup(&scratch);
    assert_eq!(left(&store), Some(49));
    drop(store);
    let restored = restore(&backup, &scratch).expect("a restore");
    assert_eq!(restored.bytes, fs::metadata(scratch.path()).expect("a file").len());
    assert_eq!(left(&scratch.open()), Some(49), "as it was at the moment of the backup");
    let replaced = restored.replaced.expect("the old file is kept");
    assert_eq!(
        left(&SqliteStore::open(replaced).expect("a store")),
        Some(48),
        "with everything that was in its log"
    );
    assert!(!names(scratch.directory.path()).iter().any(|name| name.ends_with(".partial")));
}

/// A log of 1.5 MB is left by a process that was killed. It used to be replayed onto a backup that
/// was copied over the file.
#[test]
fn a_restore_after_a_crash_is_not_undone_by_the_old_log() {
    let scratch = Scratch::new();
    let (store, backup) = with_backup(&scratch);
    drop(store);
    let killed = child_command(CHILD, "write-and-die", &scratch.path()).status().expect("a child");
    assert!(!killed.success(), "it has killed itself");
    let log = fs::metadata(scratch.directory.path().join("limits.db-wal")).expect("a log").len();
    assert!(log > 100_000, "{log}");
    restore(&backup, &scratch).expect("a restore");
    let store = scratch.open();
    assert!(store.status(START).expect("a status").problems.is_empty());
    assert_eq!(left(&store), Some(49));
}

#[test]
fn a_file_in_use_is_not_replaced() {
    let scratch = Scratch::new();
    let (store, backup) = with_backup(&scratch);
    assert_eq!(left(&store), Some(49));
    let here = restore(&backup, &scratch).expect_err("this process has it open");
    assert_eq!(here.kind(), StoreErrorKind::Busy);
    assert!(here.message().contains("in use"), "{here}");
    // Another process.
    let status = child_command(CHILD, "restore-busy", &scratch.path()).status().expect("a child");
    assert!(status.success());
    assert_eq!(left(&store), Some(48), "nothing was lost");
    drop(store);
    let status = child_command(CHILD, "restore", &scratch.path()).status().expect("a child");
    assert!(status.success());
    assert_eq!(left(&scratch.open()), Some(49));
}

#[test]
fn a_damaged_file_is_replaced() {
    let scratch = Scratch::new();
    let (store, backup) = with_backup(&scratch);
    drop(store);
    for (round, damage) in [(0, 0..100_usize), (1, 2000..9000)] {
        let mut bytes = fs::read(scratch.path()).expect("a file");
        bytes[damage].fill(0x5a);
        fs::write(scratch.path(), &bytes).expect("damage");
        fs::write(scratch.directory.path().join("limits.db-wal"), [7; 5000])
            .expect("a log of nothing");
        let restored =
            restore(&backup, &scratch).unwrap_or_else(|error| panic!("{round}: {error}"));
        assert!(restored.replaced.is_some());
        let store = scratch.open();
        assert!(store.status(START).expect("a status").problems.is_empty());
        assert_eq!(left(&store), Some(49));
    }
}

#[test]
fn a_missing_file_is_restored_without_its_old_log() {
    let scratch = Scratch::new();
    let (store, backup) = with_backup(&scratch);
    drop(store);
    child_command(CHILD, "write-and-die", &scratch.path()).status().expect("a child");
    fs::remove_file(scratch.path()).expect("the file is deleted, its log is not");
    assert_eq!(restore(&backup, &scratch).expect("a restore").replaced, None);
    let store = scratch.open();
    assert!(store.status(START).expect("a status").problems.is_empty());
    assert_eq!(left(&store), Some(49));
}

/// What cannot be a backup is refused before anything changes.
#[test]
fn a_bad_backup_changes_nothing() {
    let scratch = Scratch::new();
    let folder = scratch.directory.path();
    let (store, backup) = with_backup(&scratch);
    drop(store);
    let before = names(folder);
    let check = |from: &str, expected: StoreErrorKind| {
        assert_eq!(kind_of(restore(&folder.join(from), &scratch)), Err(expected), "{from}");
        assert!(left(&SqliteStore::open(scratch.path()).expect("the store")).is_some(), "{from}");
    };
    check("missing.db", StoreErrorKind::NotFound);
    check("limits.db", StoreErrorKind::Invalid);
    check("limits.db-wal", StoreErrorKind::Invalid);
    assert_eq!(names(folder), before);
    fs::write(folder.join("letter.txt"), "to my aunt, ".repeat(1000)).expect("a letter");
    check("letter.txt", StoreErrorKind::Incompatible);
    fs::write(folder.join("empty.db"), "").expect("a file");
    check("empty.db", StoreErrorKind::Incompatible);
    let foreign = rusqlite::Connection::open(folder.join("foreign.db")).expect("a database");
    foreign.execute_batch("CREATE TABLE notes (x)").expect("a table");
    check("foreign.db", StoreErrorKind::Incompatible);
    let newer = rusqlite::Connection::open(&backup).expect("a database");
    newer.execute_batch("PRAGMA user_version = 999").expect("a version");
    drop(newer);
    check("backup.db", StoreErrorKind::Incompatible);
    let mut bytes = fs::read(folder.join("limits.db")).expect("a file");
    bytes[5000..].fill(0x5a);
    fs::write(folder.join("damaged.db"), bytes).expect("a damaged copy");
    check("damaged.db", StoreErrorKind::Corrupt);
    assert!(
        !names(folder).iter().any(|name| name.ends_with(".partial") || name.contains("replaced"))
    );
}

#[test]
fn child_process() {
    let Some((role, path)) = my_role() else { return };
    let backup = path.with_file_name("backup.db");
    match role.as_str() {
        "uri" => {
            SqliteStore::open(path).expect("a store").backup_to("file:copy.db").expect("a backup")
        }
        "restore" => {
            SqliteStore::restore(backup, path, SqliteOptions::new()).expect("a restore");
        }
        "restore-busy" => {
            let result = SqliteStore::restore(backup, path, SqliteOptions::new());
            assert_eq!(kind_of(result), Err(StoreErrorKind::Busy));
        }
        "write-and-die" => {
            let store = SqliteStore::open(path).expect("a store");
            for _ in 0..100 {
                runtime().block_on(take(&store, "other", &limits("rpd:1000/day"), 1, START));
            }
            Command::new("kill")
                .args(["-9", &std::process::id().to_string()])
                .status()
                .expect("kill");
            std::process::abort();
        }
        other => panic!("no such role: {other}"),
    }
}
