//! Shards on an engine: its figures mean nothing, but every row is measured and nothing is left
//! behind.

use std::process::Command;

use serde_json::Value;
use zae_limiter_testkit::engine::Engine;

#[tokio::test]
async fn every_row_is_measured_and_nothing_is_left_behind() {
    let engine = Engine::start();
    let store = engine.stack("bench").create().await.expect("the stack is made");
    let run = Command::new(env!("CARGO_BIN_EXE_zae-limiter-bench"))
        .args(["shards", "--name", "bench", "--endpoint", engine.endpoint()])
        .args(["--takes", "5", "--callers", "4", "--handles", "2", "--seconds", "1"])
        .args(["--output", "json"])
        .envs([("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x")])
        .output();
    let output = run.expect("the benchmark can be started");
    let talk = String::from_utf8_lossy(&output.stderr);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let rows = found["rows"].as_array().cloned().unwrap_or_default();
    let calls: Vec<_> =
        rows.iter().map(|row| (row["row"].as_str(), row["calls"].as_u64())).collect();
    let expected =
        [("take", 5), ("split", 31), ("take-sharded", 5), ("gather", 10), ("refusal", 3)];
    assert_eq!(calls, expected.map(|(row, calls)| (Some(row), Some(calls))), "{talk}");
    assert!(found["crowd"]["granted"].as_u64() > Some(0), "{found}");
    assert_eq!(found["crowd"]["failed"], 0, "{found}");
    let hottest = store.hottest(10).await.expect("the engine answers");
    assert!(hottest.buckets.is_empty(), "{hottest:?}");
}
