//! The shell for Lambda: recorded events, and the function as Lambda starts it.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use zae_limiter_aggregator::{Kind, handle, poison_of, record_of, run_lambda};
use zae_limiter_testkit::aws::lambda::Function;

use crate::engine::World;
use crate::rig::Rig;

/// A record as Lambda delivers it.
fn delivered(namespace: &str, sequence: &str, before: Option<i64>, after: i64) -> Value {
    let pk = format!("{namespace}/BUCKET#user#gpt-4#0");
    let image = |used: i64| {
        json!({
            "PK": { "S": pk }, "SK": { "S": "#STATE" }, "entity_id": { "S": "user" },
            "rf": { "N": "1767261600000" }, "shard_count": { "N": "1" }, "cascade": { "BOOL": false },
            "parent_id": { "NULL": true }, "ret": { "SS": ["old"] },
            "b_tpm_tc": { "N": used.to_string() }, "b_wcu_tc": { "N": used.to_string() },
        })
    };
    let mut change = json!({
        "ApproximateCreationDateTime": 1_767_261_600.0,
        "Keys": { "PK": { "S": pk }, "SK": { "S": "#STATE" } },
        "NewImage": image(after),
        "SequenceNumber": sequence,
        "SizeBytes": 321,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    });
    if let Some(before) = before {
        change["OldImage"] = image(before);
    }
    json!({
        "eventID": format!("e{sequence}"),
        "eventName": if before.is_some() { "MODIFY" } else { "INSERT" },
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "dynamodb": change,
        "eventSourceARN": "arn:aws:dynamodb:us-east-1:1:table/stack/stream/2026-01-01T00:00:00.000",
    })
}

#[test]
fn a_record_is_read() {
    let record = record_of(&delivered("ns", "123", Some(1_000), 2_000)).unwrap();
    assert_eq!((record.sequence.as_str(), record.kind), ("123", Kind::Modify));
    assert_eq!((record.at_s, record.is_expired), (1_767_261_600, false));
    assert_eq!(record.stream_shard, "2026-01-01T00:00:00.000");
    assert_eq!(record.key, ("ns/BUCKET#user#gpt-4#0".to_owned(), "#STATE".to_owned()));
    assert_eq!(record.old.unwrap()["b_tpm_tc"].as_n().unwrap(), "1000");
    assert_eq!(record.new.unwrap()["ret"].as_ss().unwrap(), &["old"]);

    let mut removed = delivered("ns", "124", Some(1), 2);
    removed["eventName"] = json!("REMOVE");
    removed["dynamodb"].as_object_mut().unwrap().remove("NewImage");
    removed["userIdentity"] = json!({ "type": "Service", "principalId": "dynamodb.amazonaws.com" });
    let record = record_of(&removed).unwrap();
    assert!(record.is_expired && record.new.is_none() && record.kind == Kind::Remove);
    removed["userIdentity"]["principalId"] = json!("somebody");
    assert!(!record_of(&removed).unwrap().is_expired);
}

#[test]
fn a_record_that_is_none_is_poison() {
    let good = delivered("ns", "123", None, 2_000);
    for (pointer, why) in [
        ("/dynamodb/SequenceNumber", "there is no SequenceNumber"),
        ("/dynamodb/ApproximateCreationDateTime", "there is no ApproximateCreationDateTime"),
        ("/dynamodb/Keys/SK", "there is no key SK"),
        ("/eventName", "missing field `eventName`"),
    ] {
        let mut bad = good.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = bad.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
        parent.as_object_mut().unwrap().remove(name);
        assert_eq!(record_of(&bad).unwrap_err(), why, "{pointer}");
    }
    let mut bad = good.clone();
    bad["eventName"] = json!("TRUNCATE");
    assert_eq!(record_of(&bad).unwrap_err(), "eventName is \"TRUNCATE\"");
    let poison = poison_of(&bad, "x".to_owned());
    assert_eq!((poison.sequence.as_str(), poison.body), ("123", bad));
    assert_eq!(poison.key, "ns/BUCKET#user#gpt-4#0 #STATE");
}

/// Success, poison among good records, partial failure, an empty batch.
#[tokio::test]
async fn an_event_is_answered() {
    let rig = Rig::new().await;
    let ns = rig.namespace.as_str();
    let aggregator = rig.aggregator(rig.table.client(1));
    let mut broken = delivered(ns, "12", Some(1_000), 2_000);
    broken["dynamodb"]["NewImage"]["b_tpm_tc"] = json!({ "N": 5 });
    let event = json!({ "Records": [
        delivered(ns, "9", None, 1_000), broken, delivered(ns, "15", Some(2_000), 3_000),
    ] });
    let (report, answer) = handle(&aggregator, &event, Some(Duration::from_secs(60))).await;
    assert_eq!(answer["batchItemFailures"], json!([]));
    assert_eq!(answer["body"], report.body());
    assert_eq!((report.records, report.poison, report.takes, report.snapshots), (3, 1, 2, 3));

    for empty in [json!({ "Records": [] }), json!({}), json!(null)] {
        let (report, answer) = handle(&aggregator, &empty, None).await;
        assert_eq!((report.records, &answer["batchItemFailures"]), (0, &json!([])));
    }

    let down = zae_limiter_testkit::table::Faults::by(|asked| match asked.operation() {
        zae_limiter_testkit::table::Operation::Update => {
            zae_limiter_testkit::table::Fate::Unreachable
        }
        _ => zae_limiter_testkit::table::Fate::Pass,
    });
    let unlucky = rig.aggregator(rig.table.client(2).with_faults(down));
    let mut quiet = delivered(ns, "16", Some(3_000), 3_000);
    quiet["eventID"] = json!("a refill");
    let event = json!({ "Records": [
        quiet, delivered(ns, "102", Some(4_000), 5_000), delivered(ns, "99", Some(3_000), 4_000),
    ] });
    let (_, answer) = handle(&unlucky, &event, None).await;
    assert_eq!(answer["batchItemFailures"], json!([{ "itemIdentifier": "99" }]));
}

// ------------------------------------------------------------------ the function as Lambda starts
// it

const RUNTIME_API: &str = "AWS_LAMBDA_RUNTIME_API";

/// What the test below starts as a process of its own: nothing by itself.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the parent tells by a variable")]
async fn the_function_itself() {
    if std::env::var_os(RUNTIME_API).is_some() {
        run_lambda().await.unwrap();
    }
}

/// This very binary, with the table of a world.
fn start(world: &World) -> Function {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "lambda::the_function_itself", "--nocapture"]).envs([
        ("AWS_ENDPOINT_URL_DYNAMODB", world.engine.endpoint()),
        ("TABLE_NAME", &world.stack),
        ("SNAPSHOT_WINDOWS", "hourly,daily,monthly"),
    ]);
    Function::start(&mut command)
}

#[tokio::test]
async fn the_function_as_lambda_starts_it() {
    let world = World::new().await;
    for tokens in [10, 20, 30] {
        world.take("user", tokens).await;
    }
    let function = start(&world);
    let records = world.records();
    let first = function.invoke(&json!({ "Records": records }));
    assert_eq!(first["batchItemFailures"], json!([]));
    assert_eq!(first["body"]["processed"], records.len());
    assert_eq!(first["body"]["poison"], 0, "{first}");
    assert!(first["body"]["snapshots_updated"].as_u64().unwrap() >= 3, "{first}");
    let again = function.invoke(&json!({ "Records": records }));
    assert_eq!(
        (&again["body"]["counted"], &again["body"]["repeated"]),
        (&json!(0), &first["body"]["counted"])
    );
    assert_eq!(function.invoke(&json!({ "Records": [] }))["body"]["processed"], 0);
    let poisoned =
        function.invoke(&json!({ "Records": [{ "dynamodb": { "SequenceNumber": "5" } }] }));
    assert_eq!(
        (&poisoned["batchItemFailures"], &poisoned["body"]["poison"]),
        (&json!([]), &json!(1))
    );

    let usage = world.usage().await;
    assert!(usage.values().any(|(used, _)| used.get("tpm") == Some(&60_000)), "{usage:?}");

    // The table goes away: everything that counts is to be delivered again.
    world.engine.call("DeleteTable", &json!({ "TableName": world.stack })).ok();
    let failed = function.invoke(&json!({ "Records": records }));
    let of_buckets =
        records.iter().find(|record| record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE");
    let lowest = &of_buckets.unwrap()["dynamodb"]["SequenceNumber"];
    assert_eq!(failed["batchItemFailures"], json!([{ "itemIdentifier": lowest }]));

    let text = String::from_utf8(function.end().stdout).unwrap();
    let lines: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let summaries = lines.iter().filter(|line| line["message"] == "batch processed").count();
    assert_eq!(summaries, 5);
    assert!(lines.iter().any(|line| line["_aws"].is_object()));
    assert_eq!(lines.iter().filter(|line| line["level"] == "ERROR").count(), 2);
}
