//! The program as Lambda starts it: no arguments, `_HANDLER=aggregator`, Lambda's own variables,
//! and events that were recorded.
//!
//! The files beside this one are what an event source mapping delivers. Their records are those of
//! `acquire`, `entity create` and an expiry on the local engine, the namespace replaced by a word;
//! those of `poison.json` were damaged by hand.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Output;

use serde_json::{Value, json};
use zae_limiter_testkit::aws::lambda::{Function, Said};
use zae_limiter_testkit::aws::objects::Objects;
use zae_limiter_testkit::engine::Engine;

use crate::support::Sandbox;

const TABLE: &str = "aggregated";

/// An engine with a table, and what the function is told.
struct Stack {
    engine: Engine,
    sandbox: Sandbox,
}

impl Stack {
    fn new() -> Stack {
        let engine = Engine::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(engine.stack(TABLE).create()).expect("the table is created");
        let store = format!("dynamodb:{TABLE}?region=us-east-1&endpoint={}", engine.endpoint());
        Stack { sandbox: Sandbox::new().variable("ZAEL_STORE", &store), engine }
    }

    /// Started with nothing in its environment but what Lambda and these variables say.
    fn start(&self, variables: &[(&str, &str)]) -> Function {
        let mut command = self.sandbox.command::<&str>(&[]);
        command.env_clear().envs([
            ("_HANDLER", "aggregator"),
            ("AWS_ENDPOINT_URL_DYNAMODB", self.engine.endpoint()),
            ("TABLE_NAME", TABLE),
            ("SNAPSHOT_WINDOWS", "hourly,daily,monthly"),
            ("SNAPSHOT_TTL_DAYS", "30"),
            ("ENABLE_ARCHIVAL", "false"),
        ]);
        Function::start(command.envs(variables.iter().copied()))
    }

    /// A recorded event, as if it were of this table.
    fn event(&self, name: &str) -> Value {
        let text = match name {
            "success" => include_str!("lambda/success.json"),
            "partial" => include_str!("lambda/partial.json"),
            "poison" => include_str!("lambda/poison.json"),
            _ => include_str!("lambda/empty.json"),
        };
        let namespace = self.json("namespace show default");
        let text = text.replace("NAMESPACE", namespace["namespace_id"].as_str().unwrap());
        serde_json::from_str(&text).unwrap()
    }

    fn json(&self, line: &str) -> Value {
        let (exit, json) = self.sandbox.raw(&format!("{line} --quiet --output json"));
        assert_eq!(exit, 0, "{line}: {json}");
        serde_json::from_str(&json).unwrap()
    }

    /// What an entity has used by every kind of window, which must agree: calls, tokens, takes.
    #[track_caller]
    fn used(&self, entity: &str) -> [i64; 3] {
        let of = |window: &str| {
            let list = self.json(&format!("usage list -e {entity} --window {window}"));
            let mut sums = [0; 3];
            for item in list["items"].as_array().unwrap() {
                let counters = &item["counters"];
                let values = [&counters["rpm"], &counters["tpm"], &item["total_events"]];
                sums.iter_mut()
                    .zip(values)
                    .for_each(|(sum, one)| *sum += one.as_i64().unwrap_or(0));
            }
            sums
        };
        let hourly = of("hourly");
        assert_eq!((of("daily"), of("monthly")), (hourly, hourly));
        hourly
    }
}

fn number(event: &Value, record: usize) -> Value {
    event["Records"][record]["dynamodb"]["SequenceNumber"].clone()
}

/// The log: every line of it is JSON.
fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"));
    text.lines().map(line).collect()
}

fn summaries(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["message"] == "batch processed").collect()
}

#[test]
fn recorded_events_are_counted_once_and_told_in_lines_of_json() {
    let stack = Stack::new();
    let function = stack.start(&[]);
    let success = function.invoke(&stack.event("success"));
    assert_eq!(success["batchItemFailures"], json!([]), "{success}");
    let body = &success["body"];
    assert_eq!([&body["processed"], &body["buckets"], &body["takes"]], [13, 13, 9]);
    assert_eq!((&body["poison"], &body["error_count"]), (&json!(0), &json!(0)), "{success}");
    assert_eq!(stack.used("key-1"), [5, 270, 5]);
    // One chain of three was refused: neither tokens nor the take remain.
    assert_eq!((stack.used("key-2"), stack.used("org")), ([2, 10, 2], [2, 10, 2]));

    let again = function.invoke(&stack.event("success"));
    let told = [&again["body"]["counted"], &again["body"]["repeated"]];
    assert_eq!(told, [&json!(0), &body["counted"]]);
    let empty = function.invoke(&stack.event("empty"));
    assert_eq!((&empty["batchItemFailures"], &empty["body"]["processed"]), (&json!([]), &json!(0)));

    // What cannot be read of a record stops nothing, and the rest of it counts.
    let poison = function.invoke(&stack.event("poison"));
    assert_eq!(poison["batchItemFailures"], json!([]), "{poison}");
    let body = &poison["body"];
    assert_eq!([&body["processed"], &body["poison"], &body["takes"]], [4, 4, 2], "{poison}");
    assert_eq!(stack.used("key-3"), [2, 0, 2]);

    function.signal("TERM");
    let ended = function.wait();
    assert_eq!(ended.status.signal(), Some(15), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    let lines = lines(&ended);
    let told = summaries(&lines);
    assert_eq!(
        told.iter().map(|line| &line["level"]).collect::<Vec<_>>(),
        ["INFO", "INFO", "INFO", "ERROR"]
    );
    assert_eq!(told.iter().map(|line| &line["processed"]).collect::<Vec<_>>(), [13, 13, 0, 4]);
    let metrics = lines.iter().filter(|line| line["_aws"].is_object()).count();
    assert_eq!((metrics, lines.len()), (4, 8), "a summary and its metrics for each batch");
}

#[test]
fn a_table_that_is_gone_is_a_partial_failure() {
    let stack = Stack::new();
    let event = stack.event("partial");
    let function = stack.start(&[]);
    stack.engine.call("DeleteTable", &json!({ "TableName": TABLE })).ok();
    // Without an archive the expired events between are done with.
    let mut without = event.clone();
    without["Records"].as_array_mut().unwrap().remove(0);
    let failed = function.invoke(&without);
    assert_eq!(failed["batchItemFailures"], json!([{ "itemIdentifier": number(&event, 6) }]));
    let all = function.invoke(&event);
    assert_eq!(all["batchItemFailures"], json!([{ "itemIdentifier": number(&event, 0) }]));
    let lines = lines(&function.end());
    assert!(summaries(&lines).iter().all(|line| line["level"] == "ERROR"), "{lines:?}");
}

#[test]
fn an_archive_that_refuses_is_a_partial_failure_and_no_loss() {
    let (stack, server) = (Stack::new(), Objects::start());
    let function = stack.start(&[
        ("ENABLE_ARCHIVAL", "true"),
        ("ARCHIVE_BUCKET_NAME", "kept"),
        ("AWS_ENDPOINT_URL_S3", server.endpoint()),
    ]);
    function.invoke(&stack.event("success"));
    let event = stack.event("partial");
    server.refuse(Some("503 Slow Down"));
    let failed = function.invoke(&event);
    assert_eq!(failed["batchItemFailures"], json!([{ "itemIdentifier": number(&event, 1) }]));
    let body = &failed["body"];
    assert_eq!([&body["events_expired"], &body["events_archived"]], [5, 0], "{failed}");
    assert!(body["errors"][0].as_str().unwrap().contains("was not archived"), "{failed}");
    assert_eq!(stack.used("key-3"), [1, 7, 1], "what is behind it is counted");

    // Lambda delivers from there on.
    server.refuse(None);
    let mut rest = event.clone();
    rest["Records"].as_array_mut().unwrap().remove(0);
    for _ in 0..2 {
        let done = function.invoke(&rest);
        assert_eq!(done["batchItemFailures"], json!([]), "{done}");
        let body = &done["body"];
        assert_eq!([&body["events_archived"], &body["objects"], &body["counted"]], [5, 1, 0]);
    }
    assert_eq!((server.counts().0, stack.used("key-3")), (2, [1, 7, 1]));
    let objects = server.all();
    let (name, stored) = objects.iter().next().unwrap();
    let (first, last) = (number(&event, 1), number(&event, 5));
    assert_eq!(
        (objects.len(), name.as_str()),
        (
            1,
            format!(
                "kept/audit/year=2026/month=11/day=18/2026-11-18T04-01-26.279-{}-{}.jsonl.gz",
                first.as_str().unwrap(),
                last.as_str().unwrap()
            )
            .as_str()
        )
    );
    assert_eq!(stored.headers["content-encoding"], "gzip");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&stored.bytes[..]).read_to_string(&mut text).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let actions: Vec<&Value> = events.iter().map(|event| &event["action"]).collect();
    assert_eq!(
        actions,
        ["namespace_registered", "limits_set", "entity_created", "entity_created", "limits_set"]
    );

    let letters = function.invoke(&stack.event("poison"));
    assert_eq!(letters["body"]["letters"], 2, "one of each item: {letters}");
    let names: Vec<String> =
        server.all().into_keys().filter(|name| name.starts_with("kept/dead-letter/")).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(String::from_utf8_lossy(&function.end().stderr), "");
}

#[test]
fn what_cannot_start_tells_lambda_why() {
    let stack = Stack::new();
    for (variable, value, why) in [
        ("TABLE_NAME", "", "TABLE_NAME: is missing; it names the table whose stream is read"),
        (
            "SNAPSHOT_WINDOWS",
            "hourly,weekly",
            "SNAPSHOT_WINDOWS: usage window \"weekly\" is unknown; use hourly, daily or monthly",
        ),
        (
            "SNAPSHOT_TTL_DAYS",
            "soon",
            "SNAPSHOT_TTL_DAYS: \"soon\" is no number of days from 1 to 36500",
        ),
        ("ENABLE_ARCHIVAL", "maybe", "ENABLE_ARCHIVAL: \"maybe\" is neither true nor false"),
        ("ENABLE_ARCHIVAL", "true", "ARCHIVE_BUCKET_NAME: is missing, and ENABLE_ARCHIVAL is true"),
    ] {
        let function = stack.start(&[(variable, value)]);
        let Said::InitError(told) = function.says() else { panic!("{variable} is not told") };
        assert_eq!(
            (&told["errorMessage"], &told["errorType"]),
            (&json!(why), &json!("Aggregator.CannotStart"))
        );
        let ended = function.wait();
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(1), 0), "{ended:?}");
        let said: Value = serde_json::from_slice(&ended.stderr).unwrap();
        assert_eq!(said["error"]["message"], why);
    }
}
