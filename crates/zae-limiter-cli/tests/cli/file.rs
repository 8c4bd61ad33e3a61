//! `status`, `backup`, `sweep`.

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
    error: [FOLDER]/limits.db: not a SQLite database; choose another path, or restore a backup if it was one
      caused by: file is not a database
      caused by: Error code 26: file is not a database
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
    assert!(shown.starts_with("exit 0\n--- stdout\ncopied to copy.db (") && shown.ends_with("KiB)\n"), "{shown}");
    assert_eq!(sandbox.raw("--store sqlite:copy.db acquire key-1 gpt-4 -c rpm=7").0, 3);
    assert_snapshot!(sandbox.run("backup copy.db"), @"
    exit 1
    --- stderr
    error: copy.db: the file exists already; choose another path
      caused by: entity already exists
    ");
    assert_snapshot!(sandbox.run("backup nowhere/copy.db"), @"
    exit 1
    --- stderr
    error: nowhere/copy.db.partial: the directory or file does not exist; create it first
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
