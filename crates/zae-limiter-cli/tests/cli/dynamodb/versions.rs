//! `check`, `version` of a stack and `system set-retention`.

use insta::assert_snapshot;
use serde_json::json;

use super::{STACK, Stack};

/// The time that the record was written.
fn masked(shown: &str) -> String {
    let mut out = String::new();
    for line in shown.lines() {
        let line = match line.split_once("\"updated_at\":\"") {
            Some((before, after)) => {
                let after = after.split_once('"').map_or("", |(_, after)| after);
                format!("{before}\"updated_at\":\"[TIME]\"{after}")
            }
            None => line.to_owned(),
        };
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[test]
fn a_stack_of_ours_is_compatible() {
    let stack = Stack::new();
    assert_snapshot!(stack.run("check"), @"");
    assert_snapshot!(masked(&stack.run("check --output json")), @"");
    let endpoint = stack.engine.endpoint().to_owned();
    let version = stack.run(&format!("version --name {STACK} --endpoint-url {endpoint}"));
    assert_eq!(version, stack.run("check"));
    assert_snapshot!(stack.run("version"), @"");
}

#[test]
fn a_stack_that_asks_for_more_is_not() {
    let stack = Stack::new();
    stack.overwrite("_/SYSTEM#", "#VERSION", "min_reader", &json!({"N": "3"}));
    stack.overwrite("_/SYSTEM#", "#VERSION", "min_reader_release", &json!({"S": "0.4.0"}));
    assert_snapshot!(stack.run("check"), @"");
    assert_snapshot!(stack.run("acquire key-1 gpt-4 -c rpm=1 -l rpm:1"), @"");
    stack.overwrite("_/SYSTEM#", "#VERSION", "min_reader", &json!({"N": "2"}));
    stack.overwrite("_/SYSTEM#", "#VERSION", "client_min_version", &json!({"S": "0.18.0"}));
    let (exit, told) = stack.sandbox.raw("check --output json");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((exit, &told["compatible"]), (1, &json!(false)));
    assert!(told["problem"].as_str().is_some_and(|why| why.contains("0.18.0")), "{told}");
    // What is shown is not judged.
    let endpoint = stack.engine.endpoint();
    assert_eq!(
        stack.sandbox.raw(&format!("version --name {STACK} --endpoint-url {endpoint}")).0,
        0
    );
}

#[test]
fn retention_is_stored_with_the_stack() {
    let stack = Stack::new();
    assert_snapshot!(stack.run("system set-retention --usage-days 365"), @"");
    assert_snapshot!(stack.run("system set-retention --audit-days 30 --output json --quiet"), @"");
    assert_snapshot!(stack.run("system set-retention"), @"");
    assert_snapshot!(stack.run("system set-retention --usage-days 0"), @"");
    assert_snapshot!(stack.run("check --store memory:"), @"");
}
