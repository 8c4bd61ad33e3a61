//! Stacks of an older release, on the emulator.

use serde_json::{Value, json};

use super::aws::Aws;
use super::{json as told, killed, sandbox};
use crate::support::Sandbox;

/// Makes a stack of an older release: its template lacks an alarm and a parameter, and its options
/// are not the defaults.
fn make_older(aws: &Aws, sandbox: &Sandbox, stack: &str) {
    let new = zae_limiter_deploy::TEMPLATE;
    let without = |template: &str, from: &str, to: &str| {
        let (before, rest) = template.split_once(from).expect("the beginning");
        let (_, after) = rest.split_once(to).expect("the end");
        format!("{before}{to}{after}")
    };
    let old = without(new, "  DynamoDBTakeThrottleAlarm:\n", "\nOutputs:\n");
    let old = without(&old, "  DynamoDBTakeThrottleAlarmName:\n", "  AuditArchiveBucketName:\n");
    let old = without(&old, "  EnableFolding:\n", "  ResourceIndexProjection:\n");
    let old = old.replace("          ENABLE_FOLDING: {Ref: EnableFolding}\n", "");
    let made = aws.cloudformation(&[
        ("Action", "CreateStack"),
        ("StackName", stack),
        ("TemplateBody", &old),
        ("Capabilities.member.1", "CAPABILITY_NAMED_IAM"),
        ("Parameters.member.1.ParameterKey", "LambdaMemorySize"),
        ("Parameters.member.1.ParameterValue", "512"),
        ("Tags.member.1.Key", "ManagedBy"),
        ("Tags.member.1.Value", "zae-limiter"),
        ("Tags.member.2.Key", "zae-limiter:version"),
        ("Tags.member.2.Value", "0.0.9"),
        ("Tags.member.3.Key", "team"),
        ("Tags.member.3.Value", "limits"),
    ]);
    assert!(made.contains("<StackId>"), "{made}");
    assert_eq!(told(sandbox, "deploy --no-stack")["outcome"], "ready");
}

/// The function is a program that only ends: it is never asked here.
const UPGRADE: &str = "upgrade --lambda-binary /bin/true";
const ALARM: &str = "DynamoDBTakeThrottleAlarm";

fn states(upgraded: &Value) -> Vec<&str> {
    let steps = upgraded["steps"].as_array().expect("steps");
    steps.iter().map(|step| step["state"].as_str().unwrap_or_default()).collect()
}

#[test]
fn an_older_stack_is_upgraded() {
    let Some((sandbox, aws)) = sandbox("older") else { return };
    make_older(&aws, &sandbox, "older");
    let listed = told(&sandbox, "list");
    let version = |listed: &Value| {
        let stacks = listed["stacks"].as_array().cloned().unwrap_or_default();
        stacks.iter().find(|stack| stack["name"] == "older").map(|it| it["version"].clone())
    };
    assert_eq!(version(&listed), Some("0.0.9".into()), "{listed}");
    let upgrade = |flags: &str| told(&sandbox, &format!("{UPGRADE} {flags}"));
    let planned = upgrade("--dry-run");
    let step = &planned["steps"][1];
    assert_eq!(step["state"], "planned", "{planned}");
    let detail = step["detail"].as_str().unwrap_or_default();
    assert!(detail.contains(&format!("+ {ALARM}")), "{detail}");
    assert_eq!(version(&told(&sandbox, "list")), Some("0.0.9".into()), "a dry run changes nothing");
    let done = upgrade("");
    assert_eq!(done["steps"][1]["state"], "done", "{done}");
    assert_eq!(done["steps"][3]["state"], "done", "the record says which function: {done}");
    assert_eq!(version(&told(&sandbox, "list")), Some(env!("CARGO_PKG_VERSION").into()));
    assert_eq!(aws.parameter("older", "LambdaMemorySize"), "512", "its options stay");
    let described = aws.stack("older");
    assert!(described.contains("<Value>limits</Value>"), "its tags, too: {described}");
    assert_eq!(upgrade("")["steps"][1]["state"], "nothing to do");
    assert_eq!(told(&sandbox, "delete --yes")["deleted"], true);
}

/// The template stays as old as it is.
#[test]
fn an_older_stack_gets_its_function_alone() {
    let Some((sandbox, aws)) = sandbox("older-function") else { return };
    make_older(&aws, &sandbox, "older-function");
    let done = told(&sandbox, &format!("{UPGRADE} --lambda-only"));
    assert_eq!(states(&done), ["done", "done", "left out", "done"], "{done}");
    let (function, _) = aws.function("older-function-aggregator");
    assert_eq!(function["MemorySize"], 512, "{function}");
    let has_alarm = || aws.resources("older-function").iter().any(|name| name == ALARM);
    assert!(!has_alarm());
    let again = told(&sandbox, &format!("{UPGRADE} --lambda-only"));
    assert_eq!(again["steps"][1]["detail"], "the function is this program", "{again}");
    let done = told(&sandbox, UPGRADE);
    assert_eq!(states(&done), ["done", "done", "nothing to do", "nothing to do"], "{done}");
    assert!(has_alarm());
    assert_eq!(told(&sandbox, "delete --yes")["deleted"], true);
}

/// Limits as clients before 0.8 stored them, and a version record that knows of no migration.
fn make_rows(aws: &Aws, sandbox: &Sandbox, stack: &str) {
    let namespace = told(sandbox, "namespace show default")["namespace_id"].clone();
    let namespace = namespace.as_str().expect("an id");
    for (place, row, amount) in [
        ("SYSTEM#", "#LIMIT#rpm", "50"),
        ("RESOURCE#gpt-4", "#LIMIT#rpm", "30"),
        ("ENTITY#key", "#LIMIT#gpt-4#rpm", "5"),
    ] {
        let mut item = json!({
            "PK": {"S": format!("{namespace}/{place}")},
            "SK": {"S": row},
            "limit_name": {"S": "rpm"},
            "capacity": {"N": amount},
            "burst": {"N": amount},
            "refill_amount": {"N": amount},
            "refill_period_seconds": {"N": "60"},
        });
        if let Some(entity) = place.strip_prefix("ENTITY#") {
            item["entity_id"] = json!({"S": entity});
        }
        aws.dynamodb("PutItem", &json!({"TableName": stack, "Item": item}));
    }
    let forget = json!({
        "TableName": stack,
        "Key": {"PK": {"S": "_/SYSTEM#"}, "SK": {"S": "#VERSION"}},
        "UpdateExpression": "REMOVE migrated",
    });
    aws.dynamodb("UpdateItem", &forget);
}

/// Killed as it begins or ends each step, an upgrade is finished by the next one.
#[test]
fn an_upgrade_that_is_killed_at_any_step_is_finished_by_the_next() {
    let steps = [
        "uploading the function",
        "planning the change",
        "changing the stack",
        "_COMPLETE AggregatorFunction",
        "UPDATE_COMPLETE killed-upgrade-4",
        ": made",
    ];
    for (place, step) in steps.into_iter().enumerate() {
        let stack = format!("killed-upgrade-{place}");
        let Some((sandbox, aws)) = sandbox(&stack) else { return };
        make_older(&aws, &sandbox, &stack);
        make_rows(&aws, &sandbox, &stack);
        killed(&sandbox, &UPGRADE.split(' ').collect::<Vec<_>>(), step);
        let again = told(&sandbox, UPGRADE);
        let unfinished = ["incomplete", "planned", "left out"];
        assert!(!states(&again).iter().any(|state| unfinished.contains(state)), "{step}: {again}");
        let status = told(&sandbox, "status");
        assert_eq!(status["function_version"], env!("CARGO_PKG_VERSION"), "{step}: {status}");
        assert_eq!(status["sound"], true, "{step}: {status}");
        let key = aws.parameter(&stack, "LambdaCodeKey");
        assert!(key.ends_with(".zip"), "{step}: {key}");
        let (function, _) = aws.function(&format!("{stack}-aggregator"));
        assert_eq!(function["MemorySize"], 512, "{step}: its options stay");
        assert!(aws.resources(&stack).iter().any(|name| name == ALARM), "{step}");
        assert_eq!(told(&sandbox, "check")["migrations"], json!([]), "{step}");
        for (line, capacity) in [
            ("system get-defaults", 50),
            ("resource get-defaults gpt-4", 30),
            ("entity get-limits key -r gpt-4", 5),
        ] {
            let limits = told(&sandbox, line)["limits"].clone();
            assert_eq!(limits[0]["capacity"], capacity, "{step}: {line}: {limits}");
        }
        let third = told(&sandbox, UPGRADE);
        assert_eq!(states(&third)[1..], ["nothing to do"; 3], "{step}: {third}");
        assert_eq!(told(&sandbox, "delete --yes")["deleted"], true, "{step}");
    }
}
