//! Where limits live: the usual file, a named one, memory, namespaces.

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn the_usual_file_is_created_with_its_folder_and_named_once() {
    let sandbox = Sandbox::new().variable("ZAEL_STORE", "").variable("XDG_DATA_HOME", "");
    let folder = sandbox.path("data");
    let sandbox = sandbox.variable("XDG_DATA_HOME", &folder.display().to_string());
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1"), @"
    exit 0
    --- stdout
    level    system
    version  1

    LIMIT   RATE  BURST
    rpm    1/min      1
    --- stderr
    note: created [FOLDER]/data/zae-limiter/limits.db
    ");
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1"), @"
    exit 0
    --- stdout
    level    system
    version  2

    LIMIT   RATE  BURST
    rpm    1/min      1
    ");
    assert!(folder.join("zae-limiter").join("limits.db").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn without_xdg_the_file_is_below_the_home_directory() {
    use std::os::unix::fs::PermissionsExt;

    let sandbox = Sandbox::new().variable("ZAEL_STORE", "");
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"system","limits":[{"name":"rpm","capacity":1,"refill_amount":1,"refill_period_seconds":60,"text":"rpm:1/min"}],"disabled":null,"on_unavailable":null,"version":1}
    --- stderr
    {"note":"created [FOLDER]/.local/share/zae-limiter/limits.db"}
    "#);
    let folder = sandbox.path(".local/share/zae-limiter");
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(folder.join("limits.db").metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_named_file_is_created_but_not_its_folder() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1 --store sqlite:other.db"), @"
    exit 0
    --- stdout
    level    system
    version  1

    LIMIT   RATE  BURST
    rpm    1/min      1
    --- stderr
    note: created other.db
    ");
    assert!(sandbox.path("other.db").exists() && !sandbox.path("limits.db").exists());
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1 --store sqlite:nowhere/other.db"), @"
    exit 1
    --- stderr
    error: [FOLDER]/nowhere/other.db: the directory or file does not exist; create it first
      caused by: No such file or directory (os error 2)
    ");
    assert!(!sandbox.path("nowhere").exists());
}

#[test]
fn quiet_says_nothing_about_it() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("--quiet acquire key-1 gpt-4 -c rpm=1 -l rpm:5/day"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm           5          4          1  -
    ");
}

#[test]
fn memory_is_forgotten() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("--store memory: acquire key-1 gpt-4 -c rpm=1 -l rpm:5/day"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm           5          4          1  -
    --- stderr
    note: memory: is forgotten when this command ends
    ");
    assert_snapshot!(sandbox.run("--store memory: system set-defaults -l rpm:5/day --output json"), @r#"
    exit 0
    --- stdout
    {"level":"system","limits":[{"name":"rpm","capacity":5,"refill_amount":5,"refill_period_seconds":86400,"text":"rpm:5/day"}],"disabled":null,"on_unavailable":null,"version":1}
    --- stderr
    {"note":"memory: is forgotten when this command ends"}
    "#);
    assert_snapshot!(sandbox.run("--store memory: system get-defaults -q"), @"
    exit 1
    --- stderr
    error: nothing is stored at level: system
    ");
    assert!(!sandbox.path("limits.db").exists());
}

#[test]
fn a_file_that_is_something_else() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("limits.db"), "a letter to my aunt, long enough to look like something".repeat(100)).unwrap();
    assert_snapshot!(sandbox.run("system get-defaults"), @"
    exit 1
    --- stderr
    error: [FOLDER]/limits.db: not a SQLite database; choose another path, or run `zae-limiter restore BACKUP` if it was one
      caused by: file is not a database
    ");
    assert_snapshot!(sandbox.run("system get-defaults --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"incompatible","message":"[FOLDER]/limits.db: not a SQLite database; choose another path, or run `zae-limiter restore BACKUP` if it was one","causes":["file is not a database"]}}
    "#);
}

#[test]
fn the_variable_for_the_store_is_checked() {
    let sandbox = Sandbox::new().variable("ZAEL_STORE", "postgres:x");
    assert_snapshot!(sandbox.run("system get-defaults"), @"
    exit 2
    --- stderr
    error: invalid value 'postgres:x' for the variable ZAEL_STORE: use sqlite:PATH, dynamodb:STACK or memory:
    ");
    assert_snapshot!(sandbox.run("system get-defaults --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"invalid value 'postgres:x' for the variable ZAEL_STORE: use sqlite:PATH, dynamodb:STACK or memory:"}}
    "#);
    assert_eq!(sandbox.raw("--store memory: system set-defaults -l rpm:1").0, 0);
}

#[test]
fn a_namespace_must_be_registered_and_is_a_world_of_its_own() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    assert_snapshot!(sandbox.run("-N team-a system get-defaults"), @r#"
    exit 1
    --- stderr
    error: namespace "team-a" is not registered; register it first
    "#);
    sandbox.limiter().register_namespace("team-a").unwrap();
    assert_snapshot!(sandbox.run("-N team-a system get-defaults"), @"
    exit 1
    --- stderr
    error: nothing is stored at level: system
    hint: store limits with `zae-limiter system set-defaults -l rpm:100`
    ");
    assert_eq!(sandbox.raw("system set-defaults -l rpm:3/day --namespace team-a").0, 0);
    let sandbox = sandbox.variable("ZAEL_NAMESPACE", "team-a");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=3").0, 0);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=3").0, 3);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=3 -N default").0, 0);
    let sandbox = sandbox.variable("ZAEL_NAMESPACE", "team a");
    assert_snapshot!(sandbox.run("system get-defaults"), @r#"
    exit 2
    --- stderr
    error: invalid value 'team a' for the variable ZAEL_NAMESPACE: namespace "team a" contains ' '; use letters, digits and _ . -
    "#);
}
