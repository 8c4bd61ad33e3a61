//! The worker of `local up`: it counts, comes back, and ends with the engine.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::rig::{Local, wait};
use crate::support::Sandbox;

/// An engine with the stack `demo` and limits in it.
fn demo() -> Local {
    let mut local = Local::new();
    local.0.forget("ZAEL_STORE");
    local.json("local up --port 0 --name demo");
    assert_eq!(local.0.raw("--name demo system set-defaults -l rpm:100000/day").0, 0);
    local
}

/// What the hours of an entity sum up to, in tokens.
fn used(local: &Local, entity: &str) -> i64 {
    let list = local.json(&format!("--name demo usage list -e {entity} --quiet"));
    let items = list["items"].as_array().expect("a list");
    items.iter().map(|item| item["counters"]["rpm"].as_i64().unwrap_or(0)).sum()
}

fn take(local: &Local, entity: &str, tokens: i64) {
    let line = format!("--name demo acquire {entity} gpt-4 -c rpm={tokens} --quiet");
    assert_eq!(local.0.raw(&line).0, 0);
}

fn worker(local: &Local) -> Value {
    local.json("local status")["worker"].clone()
}

fn pid(value: &Value) -> String {
    value.as_u64().expect("a process").to_string()
}

fn kill(pid: &str) {
    let killed = Command::new("kill").args(["-9", pid]).status().expect("kill");
    assert!(killed.success());
}

/// Whether a process lives. One that nobody has waited for yet does not.
fn lives(pid: &str) -> bool {
    let state = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().expect("ps");
    let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

/// What is promised of the worker with its usual options: so long after the last take.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// How often is looked. A look starts a process, which takes time from the worker.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The numbers at the ends of the bars of a chart, summed up; `None` where there is no such chart.
fn drawn(plot: &str, title: &str) -> Option<i64> {
    let rows = plot.lines().skip_while(|line| *line != title).skip(1);
    let rows = rows.take_while(|line| !line.is_empty() && !line.starts_with("---"));
    let bars: Vec<&str> = rows.filter(|line| !line.starts_with('…')).collect();
    let number = |row: &&str| row.rsplit(' ').next().and_then(|word| word.parse::<i64>().ok());
    let numbers: Option<Vec<i64>> = bars.iter().map(number).collect();
    numbers.filter(|numbers| !numbers.is_empty()).map(|numbers| numbers.iter().sum())
}

#[expect(clippy::disallowed_methods, reason = "another process keeps the real time")]
fn now() -> Instant {
    Instant::now()
}

/// The walk of the README: `usage list --plot` shows the exact number within ten seconds of the
/// last take.
#[test]
fn what_is_acquired_is_shown_exactly_some_seconds_later() {
    let local = demo();
    for call in 1..=20 {
        take(&local, "key-1", call % 3 + 1);
    }
    let began = now();
    let sum: i64 = (1..=20).map(|call| call % 3 + 1).sum();
    let title = "rpm hourly of key-1 on all resources";
    loop {
        let plot = local.0.run("--name demo usage list --plot -e key-1");
        let shown = drawn(&plot, title);
        let passed = began.elapsed();
        assert!(passed <= SHOWN_WITHIN, "after {passed:?} {shown:?} of {sum}: {plot}");
        assert!(shown.is_none_or(|shown| shown <= sum), "{shown:?} of {sum}: {plot}");
        if shown == Some(sum) {
            break;
        }
        wait(LOOK_EVERY);
    }
    let summary = local.json("--name demo usage summary -e key-1 --window monthly");
    assert_eq!(summary["limits"][0]["total"], sum);
    let status = local.json("--name demo status");
    assert_eq!(
        (&status["stream"], &status["stream_view"]),
        (&true.into(), &"NEW_AND_OLD_IMAGES".into())
    );
    assert_eq!(status["worker"]["usage_gaps"], 0);
    // Nothing is counted that was not taken.
    let _ = local.json("--name demo aggregate --once");
    assert_eq!(used(&local, "key-1"), sum);
}

/// What an entity has used by windows of a kind, and its takes.
fn counted(sandbox: &Sandbox, store: &str, entity: &str, window: &str) -> (i64, i64) {
    let line = format!("{store} usage list -e {entity} --window {window} --quiet --output json");
    let (exit, json) = sandbox.raw(line.trim_start());
    assert_eq!(exit, 0, "{json}");
    let list: Value = serde_json::from_str(&json).expect("JSON");
    let items = list["items"].as_array().expect("a list");
    let sum =
        |of: fn(&Value) -> &Value| items.iter().map(|item| of(item).as_i64().unwrap_or(0)).sum();
    (sum(|item| &item["counters"]["rpm"]), sum(|item| &item["total_events"]))
}

/// A take that was granted is one event, on a table as on a file: not the settling of a lease that
/// used more, less or nothing, not a refusal, not a chain that an ancestor refused.
#[test]
fn every_take_that_was_granted_is_one_event() {
    const SCRIPT: [(i32, &str); 17] = [
        (0, "entity create org"),
        (0, "entity create key-2 --parent org --cascade"),
        (0, "entity set-limits org -l rpm:3/day"),
        (0, "acquire key-1 gpt-4 -c rpm=1"),
        (0, "acquire key-1 gpt-4 -c rpm=2"),
        (0, "acquire key-1 gpt-4 -c rpm=3"),
        (0, "acquire key-1 gpt-4 -c rpm=4 --record rpm=9"),
        (0, "acquire key-1 gpt-4 -c rpm=4 --record rpm=1"),
        (0, "acquire key-1 gpt-4 -c rpm=4 --record rpm=0"),
        (3, "acquire key-1 gpt-4 -c rpm=200000"),
        (0, "acquire key-2 gpt-4 -c rpm=1"),
        (0, "acquire key-2 gpt-4 -c rpm=1"),
        (3, "acquire key-2 gpt-4 -c rpm=2"),
        (0, "acquire key-2 gpt-4 -c rpm=1"),
        (3, "acquire key-2 gpt-4 -c rpm=1"),
        (3, "acquire key-2 gpt-4 -c rpm=1"),
        (0, "acquire key-1 gpt-4 -c rpm=5"),
    ];
    const EXPECTED: [(&str, (i64, i64)); 3] =
        [("key-1", (21, 7)), ("key-2", (3, 3)), ("org", (3, 3))];
    let (local, file) = (demo(), Sandbox::with_defaults("rpm:100000/day"));
    for (exit, line) in SCRIPT {
        assert_eq!(local.0.raw(&format!("--name demo {line} --quiet")).0, exit, "{line}");
        assert_eq!(file.raw(&format!("{line} --quiet")).0, exit, "{line}, on a file");
    }
    let is_counted = |local: &Local| {
        EXPECTED.iter().all(|(entity, (used, _))| {
            counted(&local.0, "--name demo", entity, "monthly").0 == *used
        })
    };
    local.eventually("the count", is_counted);
    // Everything is read; what was undone takes its event with it.
    let _ = local.json("--name demo aggregate --once");
    for window in ["hourly", "daily", "monthly"] {
        for (entity, expected) in EXPECTED {
            let on_table = counted(&local.0, "--name demo", entity, window);
            assert_eq!(on_table, expected, "{entity}, {window}");
            let on_file = counted(&file, "", entity, window);
            assert_eq!(on_file, expected, "{entity}, {window}, on a file");
        }
    }
}

#[test]
fn a_worker_that_is_killed_comes_back_and_loses_nothing() {
    let local = demo();
    take(&local, "key-1", 1);
    let first = worker(&local);
    kill(&pid(&first["workers"][0]["pid"]));
    for _ in 0..5 {
        take(&local, "key-1", 1);
    }
    local.eventually("the next worker", |local| {
        let now = worker(local);
        now["pid"] == first["pid"] && now["workers"][0]["restarts"].as_u64() >= Some(1)
    });
    local.eventually("the count", |local| used(local, "key-1") == 6);
    // Why it ended is in the log, and who keeps it is in the status.
    let log = local.0.run("local logs --worker");
    assert!(log.contains("the worker of demo ended (signal: 9 (SIGKILL)); the next "), "{log}");
    let shown = local.0.run("local status");
    let (workers, supervisor) = shown.split_once("; supervisor: process ").expect("who keeps it");
    assert!(workers.contains("demo (process ") && workers.ends_with(", started again once)"));
    assert!(supervisor.starts_with(&pid(&first["pid"])), "{shown}");
}

#[test]
fn down_ends_the_worker_and_up_starts_it_again() {
    let local = demo();
    local.json("local up --name second");
    let report = worker(&local);
    let stacks: Vec<&Value> =
        report["workers"].as_array().unwrap().iter().map(|worker| &worker["stack"]).collect();
    assert_eq!(stacks, ["demo", "second"]);
    let pids: Vec<String> =
        [&report["pid"], &report["workers"][0]["pid"], &report["workers"][1]["pid"]]
            .map(pid)
            .into();
    assert!(pids.iter().all(|pid| lives(pid)));
    take(&local, "key-1", 2);
    let down = local.json("local down");
    assert_eq!((&down["stopped"], &down["worker_stopped"]), (&true.into(), &true.into()));
    assert!(!pids.iter().any(|pid| lives(pid)), "{pids:?}");
    // Without a name it counts for the stacks that were created here.
    local.json("local up --port 0");
    take(&local, "key-1", 3);
    local.eventually("the count", |local| used(local, "key-1") == 5);
    assert_eq!(worker(&local)["workers"].as_array().unwrap().len(), 2);
}

#[test]
fn down_ends_both_after_either_was_killed() {
    for killed in ["engine", "supervisor", "worker"] {
        let local = demo();
        let report = worker(&local);
        let (engine, supervisor) = (local.state()["pid"].to_string(), pid(&report["pid"]));
        let worker = pid(&report["workers"][0]["pid"]);
        kill(match killed {
            "engine" => &engine,
            "supervisor" => &supervisor,
            _ => &worker,
        });
        assert_eq!(local.0.raw("local down").0, 0, "{killed}");
        for pid in [&engine, &supervisor, &worker] {
            assert!(!lives(pid), "{killed} was killed, and {pid} lives");
        }
    }
}

#[test]
fn a_supervisor_that_was_killed_is_started_by_the_next_up() {
    let local = demo();
    let first = worker(&local);
    kill(&pid(&first["pid"]));
    local.eventually("its end", |local| worker(local).is_null());
    let status = local.0.run("local status");
    assert!(status.contains("none: their supervisor has ended; `local up` starts it"), "{status}");
    take(&local, "key-1", 4);
    local.json("local up --name demo");
    let next = worker(&local);
    assert_ne!(next["pid"], first["pid"]);
    local.eventually("the count", |local| used(local, "key-1") == 4);
}

#[test]
fn a_table_without_a_stream_gets_one_and_says_so() {
    let local = demo();
    let off = serde_json::json!({"StreamEnabled": false});
    let update = serde_json::json!({"TableName": "demo", "StreamSpecification": off});
    call(&local, "UpdateTable", &update);
    let list = local.json("--name demo usage list -q");
    assert!(list["note"].as_str().unwrap().contains("has none: `zae-limiter local up --name demo"));
    let (exit, _) = local.0.raw("--name demo aggregate --once");
    assert_eq!(exit, 1);
    let up = local.0.run("local up --name demo");
    assert!(up.contains("note: the stack demo had no stream and has one now"), "{up}");
    take(&local, "key-1", 4);
    local.eventually("the count", |local| used(local, "key-1") == 4);
}

/// One request to the engine, as any AWS tool would make it.
fn call(local: &Local, operation: &str, body: &Value) {
    use std::io::{Read as _, Write as _};

    let port = u16::try_from(local.port()).expect("a port");
    let mut connection = std::net::TcpStream::connect(("127.0.0.1", port)).expect("the engine");
    let body = body.to_string();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\
         Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: DynamoDB_20120810.{operation}\r\n\
         X-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256 \
         Credential=test/20260101/us-east-1/dynamodb/aws4_request, \
         SignedHeaders=host;x-amz-date, Signature=0\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn aggregate_is_for_stacks_and_ends_at_a_signal() {
    let sandbox = Sandbox::with_store();
    insta::assert_snapshot!(sandbox.run("aggregate --once"), @"
    exit 2
    --- stderr
    error: the file [FOLDER]/limits.db has no stream: it counts usage by itself
    hint: name a DynamoDB stack with --name STACK
    ");
    let local = demo();
    // Without the worker of `local up`, which has the stream.
    kill(&pid(&worker(&local)["pid"]));
    local.eventually("its end", |local| worker(local).is_null());
    take(&local, "key-1", 4);
    let child = local.spawn("--name demo aggregate --output json");
    local.eventually("the count", |local| used(local, "key-1") == 4);
    let ended = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(ended.expect("kill").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert_eq!(summary["usage_gaps"], 0);
    // Its lease was given back: the next one counts at once.
    take(&local, "key-1", 1);
    let once = local.json("--name demo aggregate --once");
    assert_eq!(once["stream_shards_elsewhere"], 0);
    assert_eq!(used(&local, "key-1"), 5);
}
