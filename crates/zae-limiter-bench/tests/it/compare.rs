//! Two builds are compared: the real program with itself, and pretended builds whose figures are
//! known.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_zae-limiter-bench");
const WORSE: Option<i32> = Some(3);

fn compare(old: &Path, rest: &[&str]) -> (Output, Value) {
    let output = Command::new(PROGRAM)
        .arg("compare")
        .arg(old)
        .args(rest)
        .args(["--output", "json"])
        .output();
    let output = output.expect("the benchmark can be started");
    let found = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, found)
}

/// The verdicts of a debug build on a busy machine mean nothing, but each row gets one, and what is
/// exact is equal.
#[test]
fn a_build_is_compared_with_itself() {
    let rows = [
        "--quick",
        "--rounds",
        "2",
        "--only",
        "memory-acquire",
        "sqlite-acquire-refused",
        "adjust",
    ];
    let (output, found) = compare(Path::new(PROGRAM), &rows);
    let talk = String::from_utf8_lossy(&output.stderr);
    let names: Vec<&str> =
        list(&found["rows"]).iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["sqlite-acquire-refused", "memory-acquire", "adjust"], "{talk}");
    for row in list(&found["rows"]) {
        assert!(row["failed"].is_null(), "{row}");
        let figures = list(&row["figures"]);
        assert_eq!(figures[0]["figure"], "CPU");
        assert!(
            figures[0]["median"].as_f64() > Some(0.0) && figures[0]["worse"].is_boolean(),
            "{row}"
        );
        for exact in &figures[1..] {
            assert!(exact["old"] == exact["new"] && exact["worse"] == false, "{row}");
        }
    }
    let exact = &list(&found["rows"])[2]["figures"][1];
    assert_eq!(
        *exact,
        json!({ "figure": "requests per op", "old": 2.0, "new": 2.0, "worse": false })
    );
    let is_worse = !list(&found["worse"]).is_empty();
    assert_eq!(output.status.code(), if is_worse { WORSE } else { Some(0) }, "{talk}");
}

/// A program that answers as a build would whose calls cost this much.
fn pretended(folder: &Path, name: &str, (cpu_s, requests): (f64, f64)) -> PathBuf {
    let sample = json!({ "ops": 1000, "cpu_s": cpu_s, "figures": { "requests per op": requests } });
    let round = json!({ "rows": [{ "name": "acquire", "samples": [sample] }], "missing": [] });
    let script = format!(
        "#!/bin/sh\ncase $2 in rows) echo '{{\"rows\":[\"acquire\"]}}';; *) echo '{round}';; esac\n"
    );
    let path = folder.join(name);
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    path
}

fn verdict((old, new): ((f64, f64), (f64, f64))) -> (Option<i32>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (pretended(folder.path(), "old", old), pretended(folder.path(), "new", new));
    let new = new.to_str().expect("a path in UTF-8");
    let (output, found) = compare(&old, &["dynamodb", "--rounds", "3", "--new", new]);
    (output.status.code(), found["worse"].clone())
}

#[test]
fn a_slower_build_is_worse() {
    assert_eq!(verdict(((1.0, 1.0), (1.04, 1.0))), (WORSE, json!(["acquire"])));
}

#[test]
fn a_build_that_sends_more_requests_is_worse() {
    assert_eq!(verdict(((1.0, 1.0), (0.5, 1.01))), (WORSE, json!(["acquire"])));
}

#[test]
fn a_build_within_the_margin_is_not_worse() {
    assert_eq!(verdict(((1.0, 1.0), (1.02, 1.0))), (Some(0), json!([])));
}

#[test]
fn a_build_that_cannot_be_measured_is_an_error_and_not_a_verdict() {
    let folder = tempfile::tempdir().expect("a folder");
    let old = pretended(folder.path(), "old", (1.0, 1.0));
    let new = folder.path().join("new");
    fs::copy(&old, &new).expect("a copy");
    fs::write(&new, "#!/bin/sh\ncase $2 in rows) echo '{\"rows\":[\"acquire\"]}';; *) echo broken >&2; exit 1;; esac\n").expect("a script");
    let (output, found) = compare(
        &old,
        &["dynamodb", "--rounds", "3", "--new", new.to_str().expect("a path in UTF-8")],
    );
    assert_eq!((output.status.code(), &found["failed"]), (Some(1), &json!(["acquire"])));
    assert!(
        found["rows"][0]["failed"].as_str().is_some_and(|why| why.ends_with("failed: broken")),
        "{found}"
    );
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}
