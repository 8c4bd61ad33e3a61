//! `status`, `backup`, `restore`, `sweep`, and who may look at a file.

use insta::assert_snapshot;
use zae_limiter::Request;

use crate::support::{Sandbox, parsed};

/// Sizes depend on how SQLite lays things out.
fn without_sizes(text: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for line in &mut lines {
        for label in ["size        ", "log         ", "sqlite      "] {
            if line.starts_with(label) {
                *line = format!("{label}[..]");
            }
        }
    }
    lines.join("\n")
}

#[test]
fn a_sound_file() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=1 --record rpm=20");
    sandbox.run("acquire key-2 gpt-4 -c rpm=1");
    assert_snapshot!(without_sizes(&sandbox.run("status")), @"
    exit 0
    --- stdout
    file        [FOLDER]/limits.db
    size        [..]
    log         [..]
    mode        0600
    schema      1
    sqlite      [..]
    integrity   sound
    buckets     2
    in debt     1
    last sweep  never
    ");
    let (exit, json) = sandbox.raw("status --output json");
    let status: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((exit, status["sound"].as_bool(), status["buckets_in_debt"].as_u64()), (0, Some(true), Some(1)));
    assert!(status["file_bytes"].as_u64() > Some(0) && status["problems"].as_array().unwrap().is_empty());
    let keys: Vec<&String> = status.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "buckets",
            "buckets_in_debt",
            "file_bytes",
            "log_bytes",
            "mode",
            "path",
            "problems",
            "schema_version",
            "sound",
            "sqlite_version",
            "swept_at"
        ]
    );
}

#[test]
fn looking_creates_nothing() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("status"), @"
    exit 1
    --- stderr
    error: there is no file [FOLDER]/limits.db
    hint: the first command that stores something creates it
    ");
    assert_snapshot!(sandbox.run("backup copy.db --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no file [FOLDER]/limits.db","hint":"the first command that stores something creates it"}}
    "#);
    assert!(!sandbox.path("limits.db").exists() && !sandbox.path("copy.db").exists());
    assert_snapshot!(sandbox.run("--store memory: status"), @"
    exit 2
    --- stderr
    error: memory: is no file
    hint: name one with --store sqlite:PATH
    ");
    assert_snapshot!(sandbox.run("--store memory: backup copy.db --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"memory: is no file","hint":"name one with --store sqlite:PATH"}}
    "#);
}

#[test]
fn looking_at_a_letter() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("limits.db"), "a letter to my aunt, long enough to look like something".repeat(100)).unwrap();
    assert_snapshot!(sandbox.run("status"), @"
    exit 1
    --- stderr
    error: [FOLDER]/limits.db: not a SQLite database; choose another path, or run `zae-limiter restore BACKUP` if it was one
      caused by: file is not a database
    ");
}

#[test]
fn a_damaged_file_is_told_and_exits_with_1() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    for key in 0..200 {
        sandbox.limiter().acquire(Request::new(format!("key-{key}").as_str(), "gpt-4").take("rpm", 1)).unwrap().commit().unwrap();
    }
    // A copy has everything in one file.
    assert_eq!(sandbox.raw("backup copy.db").0, 0);
    let path = sandbox.path("copy.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 4096 / 2 * 4096;
    bytes[middle..].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let shown = sandbox.run("--store sqlite:copy.db status");
    assert!(shown.starts_with("exit 1\n"), "{shown}");
}

#[test]
fn a_backup_has_everything() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=4");
    let shown = sandbox.run("backup copy.db");
    assert!(shown.starts_with("exit 0\n--- stdout\ncopied to copy.db ("), "{shown}");
    assert!(shown.ends_with("--- stderr\nnote: `zae-limiter restore copy.db` brings it back\n"), "{shown}");
    assert_eq!(sandbox.raw("--store sqlite:copy.db acquire key-1 gpt-4 -c rpm=7").0, 3);
    assert_snapshot!(sandbox.run("backup copy.db"), @"
    exit 1
    --- stderr
    error: [FOLDER]/copy.db: the file exists already; choose another path
    ");
    assert_snapshot!(sandbox.run("backup nowhere/copy.db"), @"
    exit 1
    --- stderr
    error: [FOLDER]/nowhere/copy.db: the directory or file does not exist; create it first
      caused by: No such file or directory (os error 2)
    ");
    let (_, json) = sandbox.raw("backup other.db --output json");
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(answer["path"], "other.db");
    assert_eq!(answer["bytes"].as_u64(), Some(sandbox.path("other.db").metadata().unwrap().len()));
}

#[test]
fn a_sweep_forgets_what_is_old() {
    let sandbox = Sandbox::with_store();
    let limiter = sandbox.limiter_at("2026-01-01T00:00:00Z");
    for key in ["key-1", "key-2"] {
        let request = Request::new(key, "gpt-4").take("rpm", 1).limits([parsed("rpm:5")]);
        limiter.acquire(request).unwrap().commit().unwrap();
    }
    limiter.close();
    assert_snapshot!(sandbox.run("sweep"), @"
    exit 0
    --- stdout
    forgotten (buckets: 2, usage rows: 2, audit events: 0)
    ");
    assert_snapshot!(sandbox.run("sweep --output json"), @r#"
    exit 0
    --- stdout
    {"buckets":0,"usage":0,"audit":0,"complete":true}
    "#);
    assert!(!sandbox.raw("status").1.contains("never"));
}

/// The old log must not be replayed onto the backup, and the old file is kept.
#[test]
fn a_restore_brings_a_backup_back() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=4");
    sandbox.run("backup copy.db");
    sandbox.run("acquire key-1 gpt-4 -c rpm=6");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 3);
    assert_snapshot!(sandbox.run("restore copy.db"), @"
    exit 2
    --- stderr
    error: this replaces [FOLDER]/limits.db by copy.db and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    let shown = sandbox.run("restore copy.db --yes");
    assert!(shown.starts_with("exit 0\n--- stdout\nrestored [FOLDER]/limits.db from copy.db ("), "{shown}");
    assert!(shown.contains("\nthe file it replaced is kept as [FOLDER]/limits.db.replaced-"), "{shown}");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=6").0, 0, "as it was when the backup was made");
    let (exit, json) = sandbox.raw("restore copy.db --yes --output json");
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    let bytes = sandbox.path("limits.db").metadata().unwrap().len();
    assert_eq!((exit, answer["from"].as_str(), answer["bytes"].as_u64()), (0, Some("copy.db"), Some(bytes)));
    assert!(answer["replaced"].as_str().is_some_and(|path| std::path::Path::new(path).exists()), "{answer}");
}

#[test]
fn a_file_in_use_is_not_restored() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("backup copy.db");
    let limiter = sandbox.limiter();
    assert_snapshot!(sandbox.run("restore copy.db --yes"), @"
    exit 1
    --- stderr
    error: [FOLDER]/limits.db: the file is in use; stop every process that has it open, then try again
    ");
    limiter.close();
    drop(limiter);
    assert_eq!(sandbox.raw("restore copy.db --yes").0, 0);
}

#[test]
fn what_is_no_backup_is_not_restored() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    assert_snapshot!(sandbox.run("restore missing.db --yes"), @"
    exit 1
    --- stderr
    error: [FOLDER]/missing.db: there is no such file; name a backup
    ");
    std::fs::write(sandbox.path("letter.txt"), "a letter to my aunt, long enough".repeat(100)).unwrap();
    assert_snapshot!(sandbox.run("restore letter.txt --yes --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"incompatible","message":"[FOLDER]/letter.txt: not a backup of a store; name another file"}}
    "#);
    assert_snapshot!(sandbox.run("restore limits.db --yes"), @"
    exit 1
    --- stderr
    error: [FOLDER]/limits.db: this is the store itself, or its log; name a backup
    ");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 0);
}

/// A typo in the path is not a reason to create a file, and an auditor needs no permission to write.
#[test]
fn commands_that_only_look_create_nothing() {
    let sandbox = Sandbox::new();
    for line in LOOKS {
        let shown = sandbox.run(line);
        assert!(shown.starts_with("exit 1\n--- stderr\nerror: there is no file [FOLDER]/limits.db"), "{line}: {shown}");
    }
    assert_eq!(std::fs::read_dir(sandbox.path(".")).unwrap().count(), 0);
}

const LOOKS: [&str; 17] = [
    "available key-1 gpt-4",
    "explain key-1 gpt-4",
    "entity show key-1",
    "entity list",
    "entity children key-1",
    "entity get-limits key-1",
    "entity list-resources",
    "entity buckets key-1",
    "resource get-defaults gpt-4",
    "resource list",
    "resource capacity gpt-4 rpm",
    "system get-defaults",
    "namespace list",
    "namespace show default",
    "namespace orphans",
    "audit list --entity-id key-1",
    "usage list --entity-id key-1",
];

#[cfg(unix)]
#[test]
fn commands_that_only_look_need_only_read() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    let sandbox = Sandbox::with_defaults("rpm:10/day");
    for line in ["entity create key-1", "entity set-limits key-1 -l rpm:9/day", "resource set-defaults gpt-4 -l rpm:8/day"] {
        assert_eq!(sandbox.raw(line).0, 0, "{line}");
    }
    sandbox.run("acquire key-1 gpt-4 -c rpm=1");
    let permit = |name: &str, mode: u32| {
        std::fs::set_permissions(sandbox.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    ["limits.db", "limits.db-wal", "limits.db-shm"].into_iter().for_each(|name| permit(name, 0o444));
    permit(".", 0o555);
    // Modes mean nothing to the superuser, who may become somebody else.
    let is_superuser = std::fs::write(sandbox.path("probe"), "").is_ok();
    for line in LOOKS {
        let mut command = sandbox.command(&line.split_whitespace().collect::<Vec<_>>());
        if is_superuser {
            command.uid(65_534);
        }
        let shown = sandbox.shown(&command.output().unwrap());
        assert!(shown.starts_with("exit 0\n"), "{line}: {shown}");
    }
    permit(".", 0o755);
}
