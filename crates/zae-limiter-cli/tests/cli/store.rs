//! Where limits live: the usual file, a named one, memory, namespaces.

use insta::assert_snapshot;
use zae_limiter::NewEntity;
use zae_limiter::blocking::RateLimiter;

use crate::support::Sandbox;

#[test]
fn the_usual_file_is_created_with_its_folder_and_named_once() {
    let sandbox = Sandbox::new().variable("ZAEL_STORE", "").variable("XDG_DATA_HOME", "");
    let folder = sandbox.path("data");
    let sandbox = sandbox.variable("XDG_DATA_HOME", &folder.display().to_string());
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1"), @"
    exit 0
    --- stdout
    level  system

    LIMIT   RATE  BURST
    rpm    1/min      1
    --- stderr
    note: created [FOLDER]/data/zae-limiter/limits.db
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1"), @"
    exit 0
    --- stdout
    level  system

    LIMIT   RATE  BURST
    rpm    1/min      1
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
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
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
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
    level  system

    LIMIT   RATE  BURST
    rpm    1/min      1
    --- stderr
    note: created other.db
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
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
    note: key-1 is not a created entity; its limits come from this call
    ");
    assert_snapshot!(sandbox.run("--store memory: system set-defaults -l rpm:5/day --output json"), @r#"
    exit 0
    --- stdout
    {"level":"system","limits":[{"name":"rpm","capacity":5,"refill_amount":5,"refill_period_seconds":86400,"text":"rpm:5/day"}],"disabled":null,"on_unavailable":null,"version":1}
    --- stderr
    {"note":"memory: is forgotten when this command ends"}
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
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
    std::fs::write(
        sandbox.path("limits.db"),
        "a letter to my aunt, long enough to look like something".repeat(100),
    )
    .unwrap();
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
    assert_snapshot!(sandbox.run("-N team-a system get-defaults"), @"
    exit 1
    --- stderr
    error: there is no namespace team-a
    hint: register it with `zae-limiter namespace register team-a`; `zae-limiter namespace list` shows those there are
    ");
    sandbox.limiter().register_namespace("team-a").unwrap();
    assert_snapshot!(sandbox.run("-N team-a system get-defaults"), @"
    exit 1
    --- stderr
    error: nothing is stored at level: system
    hint: store limits with `zae-limiter -N team-a system set-defaults -l rpm:100`
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

/// A store whose file is full of entities with this much about them, and may not grow.
fn full(stuffing: &str) -> Sandbox {
    let sandbox = Sandbox::with_store();
    let options = zae_limiter::sqlite::SqliteOptions::new().pages_max(256);
    let store = zae_limiter::sqlite::SqliteStore::open_with(sandbox.path("limits.db"), options)
        .expect("the file opens");
    let limiter =
        RateLimiter::build(zae_limiter::RateLimiter::builder(store)).expect("the limiter is built");
    let is_stored = |index: u32| {
        limiter
            .create_entity(NewEntity::new(format!("key-{index}")).metadata("stuffing", stuffing))
            .is_ok()
    };
    let stored = (0..2_000).take_while(|index| is_stored(*index)).count();
    assert!((100..1_000).contains(&stored), "a megabyte holds {stored} entities of a kilobyte");
    limiter.close();
    sandbox.variable("ZAEL_FILE_MAX_MB", "1")
}

/// Each name is a write of its own: the store's "nothing was written" is true of one of them.
#[test]
fn registering_many_namespaces_half_way_says_how_many() {
    let sandbox = full(&"x".repeat(1_000));
    for index in 0..20 {
        assert_eq!(sandbox.raw(&format!("entity delete key-{index} --yes")).0, 0, "room for some");
    }
    let names: Vec<String> = (0..1_000).map(|index| format!("team-{index}")).collect();
    let line = format!("namespace register {}", names.join(" "));
    let shown = sandbox.run(&line);
    let (_, list) = sandbox.raw("namespace list --max 1000 --output json");
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    // Without the namespace default.
    let done = list["items"].as_array().unwrap().len() - 1;
    assert!((1..1_000).contains(&done), "{done}");
    let said = format!(
        "exit 1\n--- stderr\nerror: {done} of 1000 namespaces were registered, in their order; repeat the command"
    );
    assert!(
        shown.starts_with(&said) && shown.contains(&format!(" team-{done} failed: ")),
        "{shown}"
    );
    assert!(!shown.contains("nothing was written"), "{shown}");
    assert!(
        shown.contains("limits.db: the disk is full") && shown.contains("hint: ZAEL_FILE_MAX_MB"),
        "{shown}"
    );
    // What it says is true.
    let sandbox = sandbox.variable("ZAEL_FILE_MAX_MB", "9");
    assert_eq!(sandbox.raw(&line).0, 0);
}

/// A file that may not grow any more says so; whoever gives it more room goes on.
#[test]
fn the_size_of_a_file_can_be_bounded() {
    let stuffing = "x".repeat(1_000);
    let sandbox = full(&stuffing);
    let create =
        |id: &str| sandbox.run(&format!("entity create {id} --metadata stuffing={stuffing}"));
    let shown = (0..9)
        .map(|index| create(&format!("more-{index}")))
        .find(|shown| !shown.starts_with("exit 0"));
    assert_snapshot!(shown.expect("the file is full"), @"
    exit 1
    --- stderr
    error: [FOLDER]/limits.db: the disk is full; nothing was written. Make room and try again
      caused by: database or disk is full
    hint: ZAEL_FILE_MAX_MB lets the file grow to 1 MB; raise it, or sweep
    ");
    assert_eq!(sandbox.raw("entity list").0, 0, "what is there can be looked at");
    let (exit, answer) = sandbox.raw("--help");
    assert!(exit == 0 && answer.contains("ZAEL_FILE_MAX_MB"), "{answer}");
    let sandbox = sandbox.variable("ZAEL_FILE_MAX_MB", "2");
    assert_eq!(sandbox.raw("entity create roomy").0, 0);
    for wrong in ["0", "many", "65536"] {
        let sandbox = Sandbox::new().variable("ZAEL_FILE_MAX_MB", wrong);
        let shown = sandbox.run("system set-defaults -l rpm:1");
        let said = format!(
            "exit 2\n--- stderr\nerror: invalid value '{wrong}' for the variable ZAEL_FILE_MAX_MB: "
        );
        assert!(shown.starts_with(&said), "{shown}");
        assert!(!sandbox.path("limits.db").exists());
    }
}
