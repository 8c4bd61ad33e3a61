//! Takes beside an administrator: the figures of a debug build mean nothing, but every piece of
//! work is done and nobody is refused.

use std::process::Command;

use serde_json::Value;

#[test]
fn nobody_is_refused_beside_an_administrator() {
    let run = Command::new(env!("CARGO_BIN_EXE_zae-limiter-bench"))
        .args(["beside", "--buckets", "2000", "--output", "json"])
        .output();
    let output = run.expect("the benchmark can be started");
    let talk = String::from_utf8_lossy(&output.stderr);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let rows = found["rows"].as_array().cloned().unwrap_or_default();
    assert_eq!(rows.len(), 6, "{talk}");
    for row in rows {
        assert_eq!(row["not_granted"], 0, "{row}");
        // On a busy machine no take begins within the few milliseconds of the shortest work.
        let is_long = row["seconds"].as_f64() > Some(0.1);
        assert!(!is_long || row["takes_per_s"].as_f64() > Some(0.0), "{row}");
    }
}
