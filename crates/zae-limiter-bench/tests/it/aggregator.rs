//! The aggregator as a process is measured: the figures of a debug build on a busy machine mean
//! nothing, but every record is counted.

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The command line beside the benchmark: `cargo test --workspace` has built it.
fn command_line() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_zae-limiter-bench")).with_file_name("zae-limiter");
    if beside.is_file() {
        return Some(beside);
    }
    println!("SKIPPED: {} is not built; cargo test --workspace builds it", beside.display());
    None
}

fn measured(arguments: &[&str]) -> Value {
    let run = Command::new(env!("CARGO_BIN_EXE_zae-limiter-bench"))
        .args(arguments)
        .args(["--output", "json"])
        .env("ZAEL_LOCAL_ENGINE", zae_limiter_testkit::engine::binary())
        .output();
    let output = run.expect("the benchmark can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("figures in JSON")
}

#[test]
fn starts_and_memory_of_the_function() {
    if command_line().is_none() {
        return;
    }
    let found = measured(&["cold", "--rounds", "2", "--records", "40"]);
    let figures = &found["medians"];
    for name in ["ready_ms", "first_answer_ms", "warm_answer_ms", "ready_peak_kib", "peak_kib"] {
        assert!(figures[name].as_f64() > Some(0.0), "{name}: {found}");
    }
    assert!(figures["peak_kib"].as_f64() >= figures["ready_peak_kib"].as_f64(), "{found}");
}

#[test]
fn writes_while_a_worker_counts() {
    if command_line().is_none() {
        return;
    }
    let found = measured(&["trimmed", "--records", "4000"]);
    assert_eq!((&found["counted"], found["rates"].as_array().unwrap().len()), (&4_000.into(), 4));
    assert!(found["ratio"].as_f64() > Some(0.0), "{found}");
}
