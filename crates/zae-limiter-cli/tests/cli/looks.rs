//! Colours, widths, pipes, and data that would like to be more than data.

use std::io::pipe;

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn a_pipe_gets_no_colours_unless_asked_for() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    assert!(!sandbox.run("acquire key-1 gpt-4 -c rpm=11").contains('\u{1b}'));
    assert!(
        sandbox.run("acquire key-1 gpt-4 -c rpm=11 --color always").contains("\u{1b}[1;31mrefused")
    );
    assert!(
        sandbox
            .run("--color always acquire key-1 gpt-4 -c rmp=1")
            .contains("\u{1b}[1;31merror:\u{1b}[0m no limit")
    );
    assert!(!sandbox.run("--color never acquire key-1 gpt-4 -c rpm=11").contains('\u{1b}'));
    assert!(
        !sandbox
            .run("--color always --output json acquire key-1 gpt-4 -c rpm=11")
            .contains('\u{1b}')
    );
}

#[test]
fn no_color_is_honoured_and_a_flag_is_stronger() {
    let sandbox = Sandbox::with_defaults("rpm:10/day").variable("NO_COLOR", "1");
    assert!(!sandbox.run("acquire key-1 gpt-4 -c rpm=11").contains('\u{1b}'));
    assert!(!sandbox.run("acquire key-1 gpt-4 -c rpm=11 --color auto").contains('\u{1b}'));
    assert!(sandbox.run("acquire key-1 gpt-4 -c rpm=11 --color always").contains('\u{1b}'));
}

#[test]
fn colours_change_nothing_but_colours() {
    let sandbox = Sandbox::with_defaults("rpm:10/day tpm:5/day");
    let plain = sandbox.run("available key-1 gpt-4 -c rpm=11");
    let mut colourful = sandbox.run("available key-1 gpt-4 -c rpm=11 --color always");
    for code in ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[1;31m"] {
        colourful = colourful.replace(code, "");
    }
    assert_eq!(colourful, plain);
}

#[test]
fn a_narrow_terminal_gets_blocks_and_loses_nothing() {
    let sandbox = Sandbox::with_defaults("rpm:10/day tpm:5/day").variable("COLUMNS", "40");
    assert_snapshot!(sandbox.run("available key-1 gpt-4"), @"
    exit 0
    --- stdout
    ENTITY     key-1
    LIMIT      rpm
    CAPACITY   10
    AVAILABLE  10
    REQUESTED  0
    WAIT       -

    ENTITY     key-1
    LIMIT      tpm
    CAPACITY   5
    AVAILABLE  5
    REQUESTED  0
    WAIT       -
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
    assert_snapshot!(sandbox.run("system get-defaults"), @"
    exit 0
    --- stdout
    level  system

    LIMIT    RATE  BURST
    rpm    10/day     10
    tpm     5/day      5
    ");
    assert_snapshot!(sandbox.run("explain key-1 gpt-4"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT    RATE  BURST  FROM
    key-1   rpm    10/day     10  system
    key-1   tpm     5/day      5  system

    on unavailable  block
    ");
}

/// Times to the second, and the least important column goes first.
#[test]
fn lists_stay_tables_on_a_narrow_terminal() {
    let sandbox = Sandbox::with_store().variable("COLUMNS", "60");
    assert_eq!(sandbox.raw("entity create key-1").0, 0);
    let titles = |line: &str| {
        sandbox
            .raw(line)
            .1
            .lines()
            .next()
            .expect("a line")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(titles("entity list"), "ENTITY PARENT CASCADE DISABLED NAME");
    assert_eq!(titles("namespace list"), "NAMESPACE ID STATUS DELETED");
    let sandbox = sandbox.variable("COLUMNS", "70");
    let (_, wide) = sandbox.raw("namespace list");
    let created =
        wide.lines().nth(1).and_then(|row| row.split_whitespace().nth(3)).expect("a time");
    assert_eq!(created.len(), "2026-01-02T03:04:05Z".len(), "{wide}");
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let sandbox = Sandbox::with_store();
    let metadata = "note=\u{1b}]0;gotcha\u{7}line\nfeed\u{202e}txt\u{9b}31m";
    let table = sandbox.run_words(&["entity", "create", "key-1", "--metadata", metadata]);
    assert_snapshot!(table, @r"
    exit 0
    --- stdout
    entity    key-1
    name      key-1
    parent    -
    cascade   no
    created   [TIME]
    version   1
    metadata  note=\u{1b}]0;gotcha\u{7}line\nfeed\u{202e}txt\u{9b}31m
    ");
    let json = sandbox.run("entity show key-1 --output json");
    assert_snapshot!(json, @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","name":"key-1","parent_id":null,"cascade":false,"metadata":{"note":"\u001b]0;gotcha\u0007line\nfeed\u202etxt\u009b31m"},"created_at":"[TIME]","version":1,"disabled":null,"disabled_on":{}}
    "#);
    let wrong = sandbox.run_words(&["explain", "key\u{1b}[31m", "gpt-4"]);
    assert_snapshot!(wrong, @r#"
    exit 2
    --- stderr
    error: invalid value 'key' for '<ENTITY>': entity id "key\u{1b}[31m" contains '\u{1b}'; use letters, digits and _ . - : @

    For more information, try '--help'.
    "#);
    for text in [table, json, wrong] {
        assert!(!text.contains(|c: char| c != '\n' && c.is_control()), "{text:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let output = sandbox
        .command(&["acquire", "key-1", "gpt-4", "-c", "rpm=4", "-q"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()),
        (Some(0), "")
    );
    // It was granted and taken all the same.
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=7").0, 3);
}

#[cfg(target_os = "linux")]
#[test]
fn an_answer_that_can_not_be_written_is_an_error() {
    let sandbox = Sandbox::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = sandbox.command(&["version"]).stdout(full).output().unwrap();
    assert_snapshot!(sandbox.shown(&output), @"
    exit 1
    --- stderr
    error: the answer could not be written to stdout
      caused by: No space left on device (os error 28)
    ");
}

#[test]
fn answers_go_to_stdout_and_talk_to_stderr() {
    let sandbox = Sandbox::new();
    let output = sandbox
        .command(&["--store", "memory:", "--output", "json", "entity", "create", "a", "--cascade"])
        .output()
        .unwrap();
    let lines = |bytes: &[u8]| -> Vec<serde_json::Value> {
        String::from_utf8_lossy(bytes)
            .lines()
            .map(|line| serde_json::from_str(line).expect("every line is JSON"))
            .collect()
    };
    let (answers, talk) = (lines(&output.stdout), lines(&output.stderr));
    assert_eq!((answers.len(), answers[0]["entity_id"].as_str()), (1, Some("a")));
    assert!(
        talk.len() == 2 && talk[0]["note"].is_string() && talk[1]["warning"].is_string(),
        "{talk:?}"
    );
}
