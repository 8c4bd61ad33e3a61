//! What could be passed over in silence has a word: cursors and resources that nobody has, settings
//! beside which nothing is set.

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn a_cursor_that_names_nothing_is_told() {
    let sandbox = Sandbox::with_store();
    for line in
        ["entity create key-1", "entity create key-2 --parent key-1", "namespace register team-a"]
    {
        assert_eq!(sandbox.raw(line).0, 0);
    }
    assert_snapshot!(sandbox.run("entity list --cursor bogus -q"), @"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  CREATED  NAME
    key-1   -       no       -         [TIME]  key-1
    key-2   key-1   no       -         [TIME]  key-2
    ");
    let warning = "\n--- stderr\nwarning: nothing is called bogus, which --cursor names; the list begins where it would be\n";
    for line in [
        "entity list --cursor bogus",
        "entity children key-1 --cursor bogus",
        "namespace list --cursor bogus",
    ] {
        let shown = sandbox.run(line);
        assert!(shown.starts_with("exit 0\n") && shown.ends_with(warning), "{line}: {shown}");
    }
    for line in ["entity list --cursor key-1", "namespace list --cursor default"] {
        let shown = sandbox.run(line);
        assert!(shown.starts_with("exit 0\n") && !shown.contains("stderr"), "{line}: {shown}");
    }
    // A text that is no name was never printed as a cursor; a file says so as a table does.
    for listing in [
        "entity list",
        "entity children key-1",
        "namespace list",
        "namespace orphans",
        "resource list",
    ] {
        let words: Vec<&str> = listing.split(' ').chain(["--cursor", "not a cursor"]).collect();
        let expected = "exit 2\n--- stderr\nerror: invalid value 'not a cursor' for '--cursor <CURSOR>': this listing prints no such cursor\n";
        let shown = sandbox.run_words(&words);
        assert!(shown.starts_with(expected), "{listing}: {shown}");
    }
}

/// Ids are in no order that anybody knows: a page after one that does not exist would leave out
/// some deleted namespaces, and nobody could say which.
#[test]
fn a_cursor_that_is_the_id_of_no_namespace_is_refused() {
    let sandbox = Sandbox::with_store();
    for line in ["namespace register team-a team-b", "namespace delete team-a"] {
        assert_eq!(sandbox.raw(line).0, 0);
    }
    let (_, orphans) = sandbox.raw("namespace orphans --output json");
    let orphans: serde_json::Value = serde_json::from_str(&orphans).expect("JSON");
    let deleted = orphans["items"][0]["namespace_id"].as_str().expect("an id").to_owned();
    assert_snapshot!(sandbox.run("namespace orphans --cursor bogus"), @"
    exit 2
    --- stderr
    error: invalid value 'bogus' for '--cursor <CURSOR>': this listing prints no such cursor
    hint: give the cursor that the page before printed, or begin without --cursor
    ");
    assert_eq!(sandbox.raw(&format!("namespace orphans --cursor {deleted}")).0, 0);
    // It may have been recovered since the page before.
    assert_eq!(sandbox.raw(&format!("namespace recover {deleted}")).0, 0);
    assert_eq!(sandbox.raw(&format!("namespace orphans --cursor {deleted}")).0, 0);
}

#[test]
fn the_capacity_of_a_typo_is_told() {
    let sandbox = Sandbox::with_store();
    sandbox.run("resource set-defaults gpt-4 -l rpm:9/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=1");
    let shown = sandbox.run("resource capacity gpt4 rpm");
    let warning = "warning: no entity has taken from a limit rpm on gpt4 yet; is gpt-4 meant, which has limits?\n";
    assert!(shown.starts_with("exit 0\n") && shown.ends_with(warning), "{shown}");
    assert!(!sandbox.run("resource capacity gpt-4 rpm").contains("warning"));
}

#[test]
fn the_outage_policy_is_set_alone() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("system set-defaults --on-unavailable allow"), @"
    exit 2
    --- stderr
    error: the outage policy is stored beside limits, and none are stored at level: system; nothing was changed
    hint: give limits with it, as in -l rpm:100
    ");
    sandbox.run("system set-defaults -l rpm:10/day -l tpm:100/day");
    assert_snapshot!(sandbox.run("system set-defaults --on-unavailable allow -q"), @"
    exit 0
    --- stdout
    level           system
    on unavailable  allow

    LIMIT     RATE  BURST
    rpm     10/day     10
    tpm    100/day    100
    ");
    assert_eq!(sandbox.raw("entity set-limits key-1 --add").0, 2, "nothing to add");
    assert_eq!(sandbox.raw("resource set-defaults gpt-4").0, 2);
}

#[test]
fn a_limit_that_is_not_there_leads_to_those_that_are() {
    let sandbox = Sandbox::with_defaults("rpm:10/day tpm:100/day");
    assert_snapshot!(sandbox.run("system set-defaults --remove nope"), @"
    exit 1
    --- stderr
    error: no limit is called nope at level: system; nothing was changed
    hint: the limits of this level are rpm, tpm
    ");
    assert_snapshot!(sandbox.run("entity set-limits key-1 --remove nope -q"), @"
    exit 1
    --- stderr
    error: no limit is called nope at level: entity key-1; nothing was changed
    ");
    assert!(
        sandbox
            .run("entity set-limits key-1 --remove nope")
            .ends_with("hint: no limits are stored at this level\n")
    );
}

#[test]
fn purging_by_name_leads_to_the_id() {
    let sandbox = Sandbox::with_store();
    assert_eq!(sandbox.raw("namespace register team.a").0, 0);
    let id = sandbox.limiter().namespace_info("team.a").unwrap().unwrap().id.to_string();
    let run = |line: &str| sandbox.run(line).replace(&id, "[ID]");
    assert_snapshot!(run("namespace purge team.a --yes"), @"
    exit 2
    --- stderr
    error: namespace team.a is in use, and only a deleted namespace is purged, by its id
    hint: `zae-limiter namespace delete team.a` deletes it, then `zae-limiter namespace purge [ID]` purges it
    ");
    assert_eq!(sandbox.raw("namespace delete team.a").0, 0);
    assert_snapshot!(run("namespace purge team.a --yes"), @"
    exit 2
    --- stderr
    error: a namespace is purged by its id, and team.a is a name
    hint: `zae-limiter namespace purge [ID]` purges the one deleted at [TIME]
    ");
    assert_eq!(sandbox.raw(&format!("namespace purge {id} --yes")).0, 0);
    assert_snapshot!(run("namespace purge team.a --yes"), @r#"
    exit 2
    --- stderr
    error: namespace id "team.a" contains '.'; use letters, digits and _ -
    "#);
}

#[test]
fn two_variables_for_the_store_are_one_too_many() {
    let sandbox = Sandbox::with_store()
        .variable("ZAEL_STORE", "sqlite:limits.db")
        .variable("ZAEL_STACK", "demo");
    assert_snapshot!(sandbox.run("entity list"), @"
    exit 2
    --- stderr
    error: ZAEL_STORE is sqlite:limits.db and ZAEL_STACK is demo: each names another store
    hint: unset one of these variables, or name the store with --store or --name
    ");
    assert_eq!(sandbox.raw("entity list --store sqlite:limits.db").0, 0, "a flag decides");
    // A stack that is named twice is one stack: then only its endpoint is wrong.
    let sandbox = sandbox.variable("ZAEL_STORE", "dynamodb:demo?endpoint=nowhere");
    let shown = sandbox.run("entity list");
    assert!(
        shown.contains("endpoint_url \"nowhere\"") || shown.contains("DynamoDB is not built in"),
        "{shown}"
    );
}

#[test]
fn a_folder_is_no_store() {
    let sandbox = Sandbox::new().variable("ZAEL_STORE", "sqlite:.");
    for line in ["status", "entity list", "sweep", "system set-defaults -l rpm:1", "backup copy.db"]
    {
        let shown = sandbox.run(line);
        let expected = "exit 2\n--- stderr\nerror: ZAEL_STORE names ., which is a folder\nhint: name a file in it, as in sqlite:./limits.db\n";
        assert_eq!(shown, expected, "{line}");
    }
    assert!(
        sandbox
            .run("status --store sqlite:..")
            .contains("error: --store names .., which is a folder\n")
    );
}

#[test]
fn a_wrong_bound_for_the_file_is_told_with_the_right_ones() {
    for wrong in ["0", "abc", "65536", "+1"] {
        let shown = Sandbox::new().variable("ZAEL_FILE_MAX_MB", wrong).run("entity list");
        let why = "write a whole number of megabytes from 1 to 65535, or unset the variable";
        assert_eq!(
            shown,
            format!(
                "exit 2\n--- stderr\nerror: invalid value '{wrong}' for the variable ZAEL_FILE_MAX_MB: {why}\n"
            )
        );
    }
}

/// Advice to call a method is for programs.
#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_written_is_told_in_words_of_the_command_line() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    let sandbox = Sandbox::with_store();
    let permit = |name: &str, mode| {
        std::fs::set_permissions(sandbox.path(name), std::fs::Permissions::from_mode(mode)).unwrap()
    };
    ["limits.db", "limits.db-wal", "limits.db-shm"]
        .into_iter()
        .for_each(|name| permit(name, 0o444));
    permit(".", 0o755);
    let mut command = sandbox.command(&["entity", "create", "key-1"]);
    // Modes mean nothing to the superuser, who may become somebody else.
    if std::fs::OpenOptions::new().append(true).open(sandbox.path("limits.db")).is_ok() {
        command.uid(65_534);
    }
    assert_snapshot!(sandbox.shown(&command.output().unwrap()), @"
    exit 1
    --- stderr
    error: [FOLDER]/limits.db: the file is read-only; change its mode
    ");
}

/// Who did what is a table on a terminal of 120 columns.
#[test]
fn the_audit_log_fits_a_terminal() {
    let sandbox = Sandbox::with_store();
    for line in [
        "system set-defaults -l rpm:1000/day -l tpm:100000/min:150000 -l rpd:10000/day --on-unavailable allow",
        "entity create organization-1",
        "entity create project-key-1 --parent organization-1 --cascade --metadata tier=gold --metadata region=somewhere-1",
        "entity set-limits project-key-1 -r gpt-4 -l rpm:5/day -l tpm:5000/min -l rpd:9/day",
    ] {
        assert_eq!(sandbox.raw(line).0, 0, "{line}");
    }
    let wide = sandbox.raw("audit list").1;
    assert!(wide.lines().any(|line| line.chars().count() > 120), "{wide}");
    let sandbox = sandbox.variable("COLUMNS", "120");
    let shown = sandbox.raw("audit list").1;
    assert!(
        shown.starts_with(
            "TIME                  SUBJECT         ACTION          WHO     RESOURCE  DETAILS\n"
        ),
        "{shown}"
    );
    assert!(shown.lines().all(|line| line.chars().count() <= 120), "{shown}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&shown), words(&wide), "nothing is left out");
}
