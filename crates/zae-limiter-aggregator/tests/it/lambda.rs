//! The shell for Lambda: recorded events, and the function as Lambda starts it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};
use zae_limiter_aggregator::{Kind, handle, poison_of, record_of, run_lambda};

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

// ------------------------------------------------------------------ the function as Lambda starts it

const RUNTIME_API: &str = "AWS_LAMBDA_RUNTIME_API";

/// What the test below starts as a process of its own: nothing by itself.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the parent tells by a variable")]
async fn the_function_itself() {
    if std::env::var_os(RUNTIME_API).is_some() {
        run_lambda().await.unwrap();
    }
}

/// One request on a connection of its own: its first line and its body.
fn receive(stream: &TcpStream) -> Option<(String, String)> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first.trim_end().to_owned(), String::from_utf8(body).ok()?))
}

fn answer(mut stream: &TcpStream, status: &str, headers: &str, body: &str) {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nContent-Type: application/json\r\nConnection: close\r\n{headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
}

/// The part of Lambda that hands out events and takes answers.
fn runtime_api(events: Receiver<Value>, answers: Sender<(String, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || {
        let mut count = 0;
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let Some((first, body)) = receive(&stream) else { continue };
            if first.contains("/runtime/invocation/next") {
                let Ok(event) = events.recv() else { return };
                count += 1;
                // Far in the future: 2100.
                let headers = format!(
                    "Lambda-Runtime-Aws-Request-Id: r{count}\r\nLambda-Runtime-Deadline-Ms: 4102444800000\r\n\
                     Lambda-Runtime-Invoked-Function-Arn: arn:aws:lambda:us-east-1:1:function:f\r\n\
                     Lambda-Runtime-Trace-Id: t\r\n"
                );
                answer(&stream, "200 OK", &headers, &event.to_string());
            } else {
                answer(&stream, "202 Accepted", "", "{}");
                if answers.send((first, body)).is_err() {
                    return;
                }
            }
        }
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    address
}

struct Function {
    child: Child,
    events: Sender<Value>,
    answers: Receiver<(String, String)>,
}

impl Function {
    fn start(endpoint: &str, table: &str) -> Function {
        let ((events, received), (answering, answers)) = (channel(), channel());
        let address = runtime_api(received, answering);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lambda::the_function_itself", "--nocapture"])
            .env(RUNTIME_API, address)
            .envs([
                ("AWS_LAMBDA_FUNCTION_NAME", "f"),
                ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128"),
                ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
                ("AWS_LAMBDA_LOG_STREAM_NAME", "s"),
                ("AWS_LAMBDA_LOG_GROUP_NAME", "g"),
                ("AWS_REGION", "us-east-1"),
                ("AWS_ENDPOINT_URL_DYNAMODB", endpoint),
                ("TABLE_NAME", table),
                ("SNAPSHOT_WINDOWS", "hourly,daily,monthly"),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Function { child, events, answers }
    }

    /// The answer to an event.
    fn invoke(&self, event: Value) -> Value {
        self.events.send(event).unwrap();
        let (first, body) = self.answers.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(first.contains("/response"), "{first}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Ends it. What it logged.
    fn end(mut self) -> VecDeque<Value> {
        self.child.kill().unwrap();
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.child.wait().unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

#[tokio::test]
async fn the_function_as_lambda_starts_it() {
    let world = World::new().await;
    for tokens in [10, 20, 30] {
        world.take("user", tokens).await;
    }
    let function = Function::start(world.engine.endpoint(), crate::engine::STACK);
    let records = world.records();
    let first = function.invoke(json!({ "Records": records }));
    assert_eq!(first["batchItemFailures"], json!([]));
    assert_eq!(first["body"]["processed"], records.len());
    assert_eq!(first["body"]["poison"], 0, "{first}");
    assert!(first["body"]["snapshots_updated"].as_u64().unwrap() >= 3, "{first}");
    let again = function.invoke(json!({ "Records": records }));
    assert_eq!(
        (&again["body"]["counted"], &again["body"]["repeated"]),
        (&json!(0), &first["body"]["counted"])
    );
    assert_eq!(function.invoke(json!({ "Records": [] }))["body"]["processed"], 0);
    let poisoned =
        function.invoke(json!({ "Records": [{ "dynamodb": { "SequenceNumber": "5" } }] }));
    assert_eq!(
        (&poisoned["batchItemFailures"], &poisoned["body"]["poison"]),
        (&json!([]), &json!(1))
    );

    let usage = world.usage().await;
    assert!(usage.values().any(|(used, _)| used.get("tpm") == Some(&60_000)), "{usage:?}");

    // The table goes away: everything that counts is to be delivered again.
    world.engine.call("DeleteTable", &json!({ "TableName": crate::engine::STACK })).ok();
    let failed = function.invoke(json!({ "Records": records }));
    let of_buckets =
        records.iter().find(|record| record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE");
    let lowest = &of_buckets.unwrap()["dynamodb"]["SequenceNumber"];
    assert_eq!(failed["batchItemFailures"], json!([{ "itemIdentifier": lowest }]));

    let lines = function.end();
    let summaries = lines.iter().filter(|line| line["message"] == "batch processed").count();
    assert_eq!(summaries, 5);
    assert!(lines.iter().any(|line| line["_aws"].is_object()));
    assert_eq!(lines.iter().filter(|line| line["level"] == "ERROR").count(), 2);
}
