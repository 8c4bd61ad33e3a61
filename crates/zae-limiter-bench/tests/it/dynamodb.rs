//! The benchmark of the limiter on DynamoDB runs: every row of ours is measured and every goal that
//! needs no Python is judged. Its figures are not looked at: this is a debug build on a busy
//! machine.

use std::process::Command;

use serde_json::Value;

#[test]
fn every_row_of_ours_is_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zae-limiter-bench"));
    command.args(["dynamodb", "--quick", "--rounds", "1", "--output", "json"]);
    // With it the Python rows would run as well, which this is not about.
    command.env_remove("ZAEL_TEST_PYTHON");
    let output = command.output().expect("the benchmark can be started");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");

    let results: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let missing: Vec<&str> =
        list(&results["missing"]).iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(missing, ["python", "python-sync", "python-64"]);
    assert!(talk.contains("SKIPPED python: not installed: skipped"), "{talk}");
    for row in list(&results["rows"]) {
        let [sample] = &list(&row["samples"])[..] else { panic!("not one sample: {row}") };
        assert!(sample["ops"].as_u64() > Some(0) && sample["cpu_s"].as_f64() > Some(0.0), "{row}");
    }
    for goal in list(&results["goals"]) {
        let is_judged = goal["reached"].is_boolean();
        let needs_python = goal["goal"].as_str().is_some_and(|what| what.starts_with("Python"));
        assert!(is_judged != needs_python, "{goal}");
    }
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}
