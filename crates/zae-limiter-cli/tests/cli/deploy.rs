//! Stacks on AWS: `cfn-template`, `deploy`, `delete`, `list`, `upgrade`.

mod emulator;
mod flags;
mod unharmed;

use serde_json::Value;

use crate::support::Sandbox;

#[test]
fn the_template_is_printed_as_it_is() {
    let sandbox = Sandbox::new();
    let (exit, printed) = sandbox.raw("cfn-template");
    assert_eq!(exit, 0);
    assert!(printed.starts_with("AWSTemplateFormatVersion: '2010-09-09'\n"));
    assert!(printed.contains("\n  RateLimitsTable:\n") && printed.ends_with('\n'));
    let (exit, json) = sandbox.raw("cfn-template --output json");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((exit, json["template"].as_str()), (0, Some(&*printed)));
    assert!(!sandbox.path("limits.db").exists());
}

#[test]
fn the_template_is_written_to_a_file() {
    let sandbox = Sandbox::new();
    let (_, printed) = sandbox.raw("cfn-template");
    let path = sandbox.path("template.yaml");
    let words = ["cfn-template", "-o", path.to_str().expect("a path")];
    let shown = sandbox.run_words(&words);
    assert!(shown.starts_with("exit 0\n--- stdout\nwrote "), "{shown}");
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), printed);
    let nowhere = sandbox.path("missing/template.yaml");
    let shown = sandbox.run_words(&["cfn-template", "-o", nowhere.to_str().expect("a path")]);
    assert!(shown.starts_with("exit 1\n") && shown.contains("could not be written"), "{shown}");
}

fn local(sandbox: &Sandbox, line: &str) -> (i32, Value) {
    let (exit, json) = sandbox.raw(&format!("{line} --output json"));
    (exit, serde_json::from_str(&json).unwrap_or_default())
}

/// An engine that speaks DynamoDB and nothing else.
#[test]
fn an_endpoint_without_cloudformation_gets_the_table_only() {
    let engine = zae_limiter_testkit::engine::Engine::start();
    let sandbox = Sandbox::new()
        .variable("ZAEL_STORE", "")
        .variable("ZAEL_STACK", "my-app")
        .variable("AWS_ENDPOINT_URL", engine.endpoint());
    let (exit, first) = local(&sandbox, "deploy -N tenant-a");
    assert_eq!(
        (exit, &first["outcome"], &first["table_only"]),
        (0, &"created".into(), &true.into())
    );
    assert_eq!(first["code_sha256"], Value::Null);
    let (exit, second) = local(&sandbox, "deploy -N tenant-a");
    assert_eq!((exit, &second["outcome"]), (0, &"unchanged".into()));
    let shown = sandbox.run("deploy");
    assert!(shown.contains("has no CloudFormation: there is the table"), "{shown}");
    assert_eq!(sandbox.raw("system set-defaults -l rpm:10 -N tenant-a").0, 0);
    assert_eq!(sandbox.raw("acquire key gpt-4 -c rpm=1 -N tenant-a").0, 0);
    let (exit, status) = local(&sandbox, "status");
    assert_eq!((exit, &status["stack_status"]), (0, &Value::Null));
    assert!(status["latency_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{status}");
    let (exit, upgraded) = local(&sandbox, "upgrade");
    assert_eq!((exit, &upgraded["steps"][1]["state"]), (0, &"left out".into()));
    let shown = sandbox.run("list");
    assert!(shown.starts_with("exit 1\n") && shown.contains("has no CloudFormation"), "{shown}");
    let shown = sandbox.run("delete");
    assert!(shown.starts_with("exit 2\n") && shown.contains("pass --yes"), "{shown}");
    let (exit, deleted) = local(&sandbox, "delete --yes");
    assert_eq!((exit, &deleted["deleted"]), (0, &true.into()));
    assert_eq!(sandbox.raw("delete --yes").0, 1, "there is none any more");
}

#[test]
fn wrong_options_are_named_and_nothing_is_sent() {
    let sandbox = Sandbox::new()
        .variable("ZAEL_STORE", "")
        .variable("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    for (line, said) in [
        ("deploy --lambda-timeout 901", "--lambda-timeout \"901\": use 1 to 900 seconds"),
        ("deploy --lambda-memory 64", "--lambda-memory \"64\": use 128 to 3008 MB"),
        ("deploy --log-retention-days 31", "--log-retention-days \"31\": CloudWatch keeps logs"),
        ("deploy --snapshot-windows weekly", "--snapshot-windows \"weekly\":"),
        ("deploy --tag broken", "--tag \"broken\": write it as key=value"),
        ("deploy --no-iam --create-iam-roles", "--create-iam-roles"),
        ("deploy --name x", "use at least 3"),
        ("delete --yes", "no stack is named"),
    ] {
        let shown = sandbox.run(line);
        assert!(shown.starts_with("exit 2\n") && shown.contains(said), "{line}: {shown}");
    }
    let nowhere = sandbox.path("no-program").display().to_string();
    let shown = sandbox.run(&format!("lambda-export --lambda-binary {nowhere} --info"));
    assert!(shown.starts_with("exit 1\n"), "{shown}");
}
