//! `demo`: its structure. Its numbers depend on the clock.

use std::path::Path;

use insta::assert_snapshot;
use serde_json::Value;

use crate::support::Sandbox;

#[test]
fn plain_lines_then_the_board_the_charts_and_what_to_try() {
    let sandbox = Sandbox::new();
    let (exit, text) = sandbox.raw("demo --seconds 1 --store sqlite:demo.db");
    assert_eq!(exit, 0, "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let (events, rest) = text.split_once("\n\n").expect("a blank line after the events");
    assert!(
        events.lines().any(|line| line.contains("granted:") && line.contains("tokens estimated")),
        "{text}"
    );
    assert!(events.lines().any(|line| line.contains("refused: rpm of batch-3, wait ")), "{text}");
    assert!(rest.starts_with("a gateway for gpt-4: 1 of 1 s\n\nENTITY "), "{text}");
    for id in ["acme", "acme-web", "web-1", "web-2", "acme-batch", "batch-1", "batch-2", "batch-3"]
    {
        let rows = rest.lines().filter(|line| line.split_whitespace().next() == Some(id)).count();
        assert_eq!(rows, 3, "one row in the table and one in each chart for {id}:\n{text}");
    }
    let tail: Vec<&str> = rest.lines().rev().take(4).collect();
    assert!(tail[3].starts_with("file ") && tail[3].ends_with("demo.db"), "{text}");
    assert!(tail[2].starts_with("try next ") && tail[2].contains("--store sqlite:"), "{text}");
}

#[test]
fn what_it_tells_to_try_works() {
    let sandbox = Sandbox::new();
    let (exit, json) = sandbox.raw("demo --seconds 1 --store sqlite:demo.db --output json");
    let answer: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (exit, answer["seconds"].as_u64(), answer["resource"].as_str()),
        (0, Some(1), Some("gpt-4"))
    );
    let commands = answer["next_commands"].as_array().unwrap();
    assert_eq!(commands.len(), 3);
    for command in commands {
        let words: Vec<&str> = command.as_str().unwrap().split(' ').skip(1).collect();
        let output = sandbox.command(&words).output().unwrap();
        assert!(
            matches!(output.status.code(), Some(0 | 3)) && !output.stdout.is_empty(),
            "{words:?}: {output:?}"
        );
    }
}

#[test]
fn cascades_add_up_and_the_file_agrees() {
    let sandbox = Sandbox::new();
    let (_, json) = sandbox.raw("demo --seconds 1 --store sqlite:demo.db --output json");
    let answer: Value = serde_json::from_str(&json).unwrap();
    let of = |id: &str, field: &str| {
        let entities = answer["entities"].as_array().unwrap();
        entities.iter().find(|entity| entity["entity_id"] == id).unwrap()[field].as_u64().unwrap()
    };
    for field in ["granted", "tokens_used"] {
        assert_eq!(of("acme", field), of("acme-web", field) + of("acme-batch", field), "{json}");
        assert_eq!(of("acme-web", field), of("web-1", field) + of("web-2", field), "{json}");
    }
    assert!(of("batch-3", "refused") >= 1, "{json}");
    let usage =
        answer["usage"].as_array().unwrap().iter().filter(|usage| usage["entity_id"] == "acme");
    let stored: u64 = usage.map(|usage| usage["counters"]["tpm"].as_u64().unwrap()).sum();
    assert_eq!(stored, of("acme", "tokens_used"), "{json}");
}

#[test]
fn without_a_store_a_temporary_folder_is_used_and_never_the_usual_one() {
    let sandbox = Sandbox::with_store();
    let folder = sandbox.path("tmp");
    std::fs::create_dir(&folder).unwrap();
    let sandbox = sandbox.variable("TMPDIR", &folder.display().to_string());
    let (exit, json) = sandbox.raw("demo --seconds 1 --output json");
    let answer: Value = serde_json::from_str(&json).unwrap();
    let path = Path::new(answer["path"].as_str().unwrap());
    assert!(exit == 0 && path.exists(), "{json}");
    if cfg!(unix) {
        assert!(path.starts_with(&folder), "{json}");
    }
    assert_eq!(sandbox.raw("entity list").1, "no entities\n", "ZAEL_STORE is not for playing");
}

#[test]
fn quiet_says_only_the_end() {
    let sandbox = Sandbox::new();
    let (_, text) = sandbox.raw("demo --seconds 1 --quiet --store sqlite:demo.db");
    assert!(text.starts_with("a gateway for gpt-4"), "{text}");
}

#[test]
fn demos_that_are_none() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("demo --seconds 0"), @"
    exit 2
    --- stderr
    error: invalid value '0' for '--seconds <COUNT>': write a whole number from 1 to 3600

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("demo --store memory:"), @"
    exit 2
    --- stderr
    error: the demo needs a file
    hint: leave --store away, or name a new file
    ");
    assert_snapshot!(sandbox.run("demo --store sqlite:limits.db --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"limits.db exists, and the demo begins with a fresh file","hint":"leave --store away, or name a new file"}}
    "#);
}
