//! `status`, `backup`, `restore`, `sweep`, and who may look at a file.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

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
    schema      3
    sqlite      [..]
    integrity   sound
    buckets     2
    in debt     1
    last sweep  never
    namespace   default
    disabled    nothing
    ");
    let (exit, json) = sandbox.raw("status --output json");
    let status: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (exit, status["sound"].as_bool(), status["buckets_in_debt"].as_u64()),
        (0, Some(true), Some(1))
    );
    assert!(
        status["file_bytes"].as_u64() > Some(0)
            && status["problems"].as_array().unwrap().is_empty()
    );
    let keys: Vec<&String> = status.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "buckets",
            "buckets_in_debt",
            "disabled",
            "enabled",
            "file_bytes",
            "flags_complete",
            "log_bytes",
            "mode",
            "namespace",
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
    hint: check ZAEL_STORE; the first command that stores something creates it
    ");
    assert_snapshot!(sandbox.run("backup copy.db --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no file [FOLDER]/limits.db","hint":"check ZAEL_STORE; the first command that stores something creates it"}}
    "#);
    assert!(!sandbox.path("limits.db").exists() && !sandbox.path("copy.db").exists());
    assert_snapshot!(sandbox.run("--store memory: status"), @"
    exit 2
    --- stderr
    error: this command works on SQLite files, and memory: is none
    hint: name one with --store sqlite:PATH
    ");
    assert_snapshot!(sandbox.run("--store memory: backup copy.db --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"this command works on SQLite files, and memory: is none","hint":"name one with --store sqlite:PATH"}}
    "#);
}

#[test]
fn looking_at_a_letter() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.path("limits.db"),
        "a letter to my aunt, long enough to look like something".repeat(100),
    )
    .unwrap();
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
        sandbox
            .limiter()
            .acquire(Request::new(format!("key-{key}").as_str(), "gpt-4").take("rpm", 1))
            .unwrap()
            .commit()
            .unwrap();
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

/// The advice for a damaged store, to restore a backup, helps nobody whose backup is damaged; and a
/// copy is not to blame for the file it is made of.
#[test]
fn damage_is_told_of_the_file_that_has_it() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    for key in 0..200 {
        sandbox
            .limiter()
            .acquire(Request::new(format!("key-{key}").as_str(), "gpt-4").take("rpm", 1))
            .unwrap()
            .commit()
            .unwrap();
    }
    assert_eq!(sandbox.raw("backup copy.db").0, 0);
    let mut bytes = std::fs::read(sandbox.path("copy.db")).unwrap();
    let last = bytes.len() - 4096;
    bytes[last..].fill(0x5a);
    std::fs::write(sandbox.path("copy.db"), bytes).unwrap();
    assert_snapshot!(sandbox.run("restore copy.db --yes"), @"
    exit 1
    --- stderr
    error: [FOLDER]/copy.db: the backup is damaged; nothing was changed. Choose another backup
      caused by: database disk image is malformed
    ");
    assert_snapshot!(sandbox.run("--store sqlite:copy.db backup again.db"), @"
    exit 1
    --- stderr
    error: [FOLDER]/copy.db: the file is corrupt; stop every process that uses it and run `zae-limiter --store sqlite:copy.db restore BACKUP`
      caused by: database disk image is malformed
    ");
    assert!(!sandbox.path("again.db").exists());
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=9").0, 0, "the store is as it was");
}

#[test]
fn a_backup_has_everything() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=4");
    let shown = sandbox.run("backup copy.db");
    assert!(shown.starts_with("exit 0\n--- stdout\ncopied to copy.db ("), "{shown}");
    assert!(
        shown.ends_with("--- stderr\nnote: `zae-limiter restore copy.db` brings it back\n"),
        "{shown}"
    );
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
    // The first sweep only looks at the clock: one look is no proof. A day later it is.
    assert_eq!(limiter.sweep(100).unwrap().buckets, 0);
    limiter.close();
    let limiter = sandbox.limiter_at("2026-01-02T00:00:00Z");
    assert_eq!(limiter.sweep(100).unwrap().buckets, 2);
    limiter.close();
    assert!(!sandbox.raw("status").1.contains("never"));
    // Months later the clock has leapt again.
    let (_, said) = sandbox.raw("sweep --output json");
    assert!(said.contains(r#"{"buckets":0,"usage":0,"audit":0,"complete":true}"#), "{said}");
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
    assert!(
        shown.starts_with("exit 0\n--- stdout\nrestored [FOLDER]/limits.db from copy.db ("),
        "{shown}"
    );
    assert!(
        shown.contains("\nthe file it replaced is kept as [FOLDER]/limits.db.replaced-"),
        "{shown}"
    );
    assert_eq!(
        sandbox.raw("acquire key-1 gpt-4 -c rpm=6").0,
        0,
        "as it was when the backup was made"
    );
    let (exit, json) = sandbox.raw("restore copy.db --yes --output json");
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    let bytes = sandbox.path("limits.db").metadata().unwrap().len();
    assert_eq!(
        (exit, answer["from"].as_str(), answer["bytes"].as_u64()),
        (0, Some("copy.db"), Some(bytes))
    );
    assert!(
        answer["replaced"].as_str().is_some_and(|path| std::path::Path::new(path).exists()),
        "{answer}"
    );
}

#[test]
fn a_file_in_use_is_not_restored() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("backup copy.db");
    let limiter = sandbox.limiter();
    assert_snapshot!(sandbox.run("restore copy.db --yes"), @"
    exit 5
    --- stderr
    error: [FOLDER]/limits.db: the file is in use; stop every process that has it open, then try again
    ");
    limiter.close();
    drop(limiter);
    assert_eq!(sandbox.raw("restore copy.db --yes").0, 0);
}

/// A command that has the file open may lose it to `restore` before it asks for a lock. Nothing was
/// decided then, and the same command works on the new file.
#[test]
fn a_command_whose_file_is_replaced_can_be_repeated() {
    let sandbox = Sandbox::with_defaults("rps:1/2sec");
    sandbox.run("backup copy.db");
    sandbox.run("acquire key-1 gpt-4 -c rps=1");
    let words = ["acquire", "key-1", "gpt-4", "-c", "rps=1", "--wait", "20s"];
    let mut waiting = sandbox.command(&words).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut stderr = BufReader::new(waiting.stderr.take().expect("its notes"));
    let mut note = String::new();
    stderr.read_line(&mut note).expect("a note");
    assert!(note.contains("waiting"), "{note}");
    std::fs::rename(sandbox.path("copy.db"), sandbox.path("limits.db")).expect("it is replaced");
    let mut output = waiting.wait_with_output().expect("it ends");
    stderr.read_to_end(&mut output.stderr).expect("an error");
    assert_snapshot!(sandbox.shown(&output), @"
    exit 5
    --- stderr
    error: [FOLDER]/limits.db: the file was deleted or replaced while this process had it open; run the command again
    ");
}

#[test]
fn what_is_no_backup_is_not_restored() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    assert_snapshot!(sandbox.run("restore missing.db --yes"), @"
    exit 1
    --- stderr
    error: [FOLDER]/missing.db: there is no such file; name a backup
    ");
    std::fs::write(sandbox.path("letter.txt"), "a letter to my aunt, long enough".repeat(100))
        .unwrap();
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

/// Each needs something that a new file does not have: it was named by mistake.
#[test]
fn commands_that_change_what_is_there_create_nothing() {
    let sandbox = Sandbox::new();
    for line in CHANGES {
        let shown = sandbox.run(line);
        let expected = "exit 1\n--- stderr\nerror: there is no file [FOLDER]/limits.db\nhint: check ZAEL_STORE; ";
        assert!(shown.starts_with(expected), "{line}: {shown}");
        let shown = sandbox.run(&format!("{line} --store sqlite:typo.db"));
        assert!(
            shown.starts_with(
                "exit 1\n--- stderr\nerror: there is no file typo.db\nhint: check --store; "
            ),
            "{line}: {shown}"
        );
    }
    // Nor does a command in a namespace, which a new file does not have.
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1 -N team-a"), @"
    exit 1
    --- stderr
    error: there is no file [FOLDER]/limits.db
    hint: check ZAEL_STORE; `zae-limiter namespace register team-a` creates it
    ");
    assert_eq!(std::fs::read_dir(sandbox.path(".")).unwrap().count(), 0);
    // The usual file is nobody's typo, and its folder is not created either.
    let sandbox = sandbox.variable("ZAEL_STORE", "");
    let shown = sandbox.run("sweep");
    assert!(
        shown.ends_with("limits.db\nhint: the first command that stores something creates it\n"),
        "{shown}"
    );
    assert_eq!(std::fs::read_dir(sandbox.path(".")).unwrap().count(), 0);
}

const CHANGES: [&str; 22] = [
    "sweep",
    "acquire key-1 gpt-4 -c rpm=1 -l rpm:1 --must-exist",
    "entity create key-1 --parent org-1",
    "entity update key-1 --display-name x",
    "entity delete key-1",
    "entity delete key-1 --yes",
    "entity set-limits key-1 --remove rpm",
    "entity set-limits key-1 -l rpm:1 --must-exist",
    "entity delete-limits key-1 --yes",
    "entity reset key-1 --yes",
    "entity disable key-1",
    "entity enable key-1",
    "entity clear-disabled key-1",
    "resource set-defaults gpt-4 --remove rpm",
    "resource delete-defaults gpt-4 --yes",
    "resource disable gpt-4",
    "resource enable gpt-4",
    "resource clear-disabled gpt-4",
    "system delete-defaults --yes",
    "namespace delete team-a",
    "namespace recover team-a",
    "namespace purge abc --yes",
];

/// A typo in the path is not a reason to create a file, and an auditor needs no permission to
/// write.
#[test]
fn commands_that_only_look_create_nothing() {
    let sandbox = Sandbox::new();
    for line in LOOKS {
        let shown = sandbox.run(line);
        assert!(
            shown.starts_with("exit 1\n--- stderr\nerror: there is no file [FOLDER]/limits.db"),
            "{line}: {shown}"
        );
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
    for line in [
        "entity create key-1",
        "entity set-limits key-1 -l rpm:9/day",
        "resource set-defaults gpt-4 -l rpm:8/day",
    ] {
        assert_eq!(sandbox.raw(line).0, 0, "{line}");
    }
    sandbox.run("acquire key-1 gpt-4 -c rpm=1");
    let permit = |name: &str, mode: u32| {
        std::fs::set_permissions(sandbox.path(name), std::fs::Permissions::from_mode(mode))
            .unwrap();
    };
    ["limits.db", "limits.db-wal", "limits.db-shm"]
        .into_iter()
        .for_each(|name| permit(name, 0o444));
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
