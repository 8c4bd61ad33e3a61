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
    assert_snapshot!(stack.run("check"), @"
    exit 0
    --- stdout
    stack             cli
    client            [VERSION], reads level 2
    asks for          level 2 (since [VERSION])
    python asked for  0.17.0
    schema            0.10.0
    function          none
    python lambda     none
    usage kept        not stored: 90 days
    audit kept        not stored: 90 days
    compatible        yes
    ");
    assert_snapshot!(masked(&stack.run("check --output json")), @r#"
    exit 0
    --- stdout
    {"stack":"cli","version":"[VERSION]","reader":2,"min_reader":2,"min_reader_release":"[VERSION]","reads_python":"0.17.0","client_min_version":"0.17.0","schema_version":"0.10.0","lambda_version":null,"function_version":null,"usage_retention_days":null,"audit_retention_days":null,"migrations":[],"updated_at":"[TIME]","updated_by":"client:[VERSION]","compatible":true,"problem":null}
    "#);
    let endpoint = stack.engine.endpoint().to_owned();
    let version = stack.run(&format!("version --name {STACK} --endpoint-url {endpoint}"));
    assert_eq!(version, stack.run("check"));
    assert_snapshot!(stack.run("version"), @"
    exit 0
    --- stdout
    zae-limiter [VERSION]
    ");
}

#[test]
fn a_stack_that_asks_for_more_is_not() {
    let stack = Stack::new();
    stack.overwrite("_/SYSTEM#", "#VERSION", "min_reader", &json!({"N": "3"}));
    stack.overwrite("_/SYSTEM#", "#VERSION", "min_reader_release", &json!({"S": "0.4.0"}));
    assert_snapshot!(stack.run("check"), @"
    exit 1
    --- stdout
    stack             cli
    client            [VERSION], reads level 2
    asks for          level 3 (since 0.4.0)
    python asked for  0.17.0
    schema            0.10.0
    function          none
    python lambda     none
    usage kept        not stored: 90 days
    audit kept        not stored: 90 days
    compatible        no: the table needs readers of level 3, and this release ([VERSION]) is one of level 2: use release 0.4.0 or a later one
    ");
    assert_snapshot!(stack.run("acquire key-1 gpt-4 -c rpm=1 -l rpm:1"), @"
    exit 1
    --- stderr
    error: the table needs readers of level 3, and this release ([VERSION]) is one of level 2: use release 0.4.0 or a later one
    ");
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
    assert_snapshot!(stack.run("system set-retention --usage-days 365"), @"
    exit 0
    --- stdout
    usage is kept for 365 days, audit events for 90
    --- stderr
    note: what was written before keeps its own time
    ");
    assert_snapshot!(stack.run("system set-retention --audit-days 30 --output json --quiet"), @r#"
    exit 0
    --- stdout
    {"stack":"cli","usage_retention_days":365,"audit_retention_days":30}
    "#);
    assert_snapshot!(stack.run("system set-retention"), @"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      <--usage-days <COUNT>|--audit-days <COUNT>>

    Usage: zae-limiter system set-retention <--usage-days <COUNT>|--audit-days <COUNT>>

    For more information, try '--help'.
    ");
    assert_snapshot!(stack.run("system set-retention --usage-days 0"), @"
    exit 2
    --- stderr
    error: invalid value '0' for '--usage-days <COUNT>': write a whole number from 1 to 36500

    For more information, try '--help'.
    ");
    assert_snapshot!(stack.run("check --store memory:"), @"
    exit 2
    --- stderr
    error: this command works on a DynamoDB stack, not on the memory
    hint: name one with --name STACK
    ");
}
