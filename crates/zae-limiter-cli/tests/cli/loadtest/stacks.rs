//! On a stack of the local engine, which also dies in the middle.

use zae_limiter_testkit::engine::Engine;

use super::*;

const TABLE: &str = "loaded";

pub(super) fn stack() -> (Engine, Sandbox) {
    let engine = Engine::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(engine.stack(TABLE).create()).expect("the table is created");
    let store = format!("dynamodb:{TABLE}?region=us-east-1&endpoint={}", engine.endpoint());
    let sandbox = Sandbox::new()
        .variable("ZAEL_STORE", &store)
        .variable("AWS_ACCESS_KEY_ID", "key")
        .variable("AWS_SECRET_ACCESS_KEY", "secret");
    (engine, sandbox)
}

#[test]
fn a_store_that_dies_in_the_middle_is_told_as_errors() {
    let (engine, sandbox) = stack();
    let line = "loadtest run --scenario simple -u 4 -d 4 --spawn-rate all --output json";
    let mut run = Running::start(&sandbox, line);
    run.hears(" users, ");
    engine.kill();
    let output = run.ends();
    let report = report_of(&output);
    let total = &report["total"];
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(total["granted"].as_u64().unwrap() > 0, "{total}");
    assert!(total["errors_by_kind"]["unavailable"].as_u64().unwrap() > 0, "{total}");
    assert_eq!(report["complete"], true, "it ran for its time");
    // Nothing that was due is missing: calls are granted, failed or were never sent.
    let told: u64 = ["granted", "refused", "errors", "unsent"]
        .iter()
        .map(|it| total[it].as_u64().unwrap())
        .sum();
    assert_eq!(told, 4 * 40, "{total}");
}

#[test]
fn a_store_that_is_not_there_is_an_error_at_once() {
    let (engine, sandbox) = stack();
    engine.kill();
    let (exit, told) = stderr(&sandbox, "loadtest run --scenario max-rps -u 2 -d 60");
    assert_ne!(exit, 0, "{told}");
    assert!(told.contains("cannot be reached") || told.contains("unavailable"), "{told}");
}

#[cfg(feature = "deploy")]
#[test]
fn an_endpoint_without_cloudformation_has_no_workers() {
    let (_engine, sandbox) = stack();
    for line in [
        "loadtest run --workers 3 --duration 5",
        "loadtest deploy",
        "loadtest push",
        "loadtest list",
        "loadtest delete --yes",
    ] {
        let (exit, told) = stderr(&sandbox, line);
        assert_eq!(exit, 1, "{line}: {told}");
        assert!(told.contains("has no CloudFormation"), "{line}: {told}");
    }
}
