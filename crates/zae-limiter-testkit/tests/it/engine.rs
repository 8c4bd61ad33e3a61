//! The DynamoDB-compatible server that other tests stand on.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use zae_limiter_testkit::engine::{self, Engine};

const TABLE: &str = "table";
const NOW: u64 = 1_800_000_000;

fn create(engine: &Engine) {
    let table = json!({
        "TableName": TABLE,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "PK", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "PK", "KeyType": "HASH"}],
        "StreamSpecification": {"StreamEnabled": true, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    });
    engine.call("CreateTable", &table).ok();
    let ttl = json!({"TableName": TABLE, "TimeToLiveSpecification": {"Enabled": true, "AttributeName": "ttl"}});
    engine.call("UpdateTimeToLive", &ttl).ok();
}

fn item(key: &str, ttl: u64) -> Value {
    json!({"PK": {"S": key}, "ttl": {"N": ttl.to_string()}, "tokens": {"N": "0"}})
}

fn put(engine: &Engine, key: &str, ttl: u64) {
    engine.call("PutItem", &json!({"TableName": TABLE, "Item": item(key, ttl)})).ok();
}

fn keys(engine: &Engine) -> Vec<String> {
    let found = engine.call("Scan", &json!({"TableName": TABLE, "ConsistentRead": true})).ok();
    let mut keys: Vec<String> = list(&found["Items"])
        .iter()
        .map(|item| item["PK"]["S"].as_str().expect("a key").to_owned())
        .collect();
    keys.sort();
    keys
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

/// The engine lists a table before it has made it; whoever asks for its health then must not be
/// told that it has none.
#[test]
fn its_health_is_good_while_tables_come_and_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = Engine::start_on(&folder.path().join("engine.db"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                engine.health();
            }
        });
        for _ in 0..40 {
            create(&engine);
            engine.call("DeleteTable", &json!({"TableName": TABLE})).ok();
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

/// Every record of the table's one shard.
fn records(engine: &Engine) -> Vec<Value> {
    let streams = engine.call("ListStreams", &json!({"TableName": TABLE})).ok();
    let arn = &streams["Streams"][0]["StreamArn"];
    let stream = engine.call("DescribeStream", &json!({"StreamArn": arn})).ok();
    let shard = &stream["StreamDescription"]["Shards"][0]["ShardId"];
    let from = json!({"StreamArn": arn, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"});
    let iterator = engine.call("GetShardIterator", &from).ok();
    let records =
        engine.call("GetRecords", &json!({"ShardIterator": iterator["ShardIterator"]})).ok();
    list(&records["Records"]).clone()
}

fn run(arguments: &[&OsStr]) -> Output {
    Command::new(engine::binary()).args(arguments).output().expect("it can be started")
}

#[test]
fn it_starts_empty_and_says_so() {
    let engine = Engine::start();
    assert!(engine.can_sweep());
    let health = engine.health();
    assert_eq!(
        (&health["name"], &health["data"], &health["tables"]),
        (&json!("zae-limiter-local"), &json!("memory"), &json!([]))
    );
    create(&engine);
    put(&engine, "one", NOW);
    assert_eq!(engine.health()["tables"], json!([{"name": TABLE, "items": 1}]));
}

#[test]
fn a_failed_condition_names_itself() {
    let engine = Engine::start();
    create(&engine);
    put(&engine, "one", NOW);
    let again = json!({"TableName": TABLE, "Item": item("one", NOW), "ConditionExpression": "attribute_not_exists(PK)"});
    let answer = engine.call("PutItem", &again);
    assert_eq!((answer.status, answer.error()), (400, Some("ConditionalCheckFailedException")));
}

#[test]
fn two_at_a_time_do_not_meet() {
    let (one, two) = (Engine::start(), Engine::start());
    assert_ne!(one.endpoint(), two.endpoint());
    create(&one);
    create(&two);
    put(&one, "one", NOW);
    put(&two, "two", NOW);
    assert_eq!(keys(&one), ["one"]);
    assert_eq!(keys(&two), ["two"]);
}

#[test]
fn a_data_file_survives_a_restart_and_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("engine.db");
    let engine = Engine::start_on(&data);
    create(&engine);
    put(&engine, "a", NOW);
    assert!(engine.stop().success());

    let engine = Engine::start_on(&data);
    let mut expected = vec![String::from("a")];
    for number in 0..50 {
        put(&engine, &format!("b{number:02}"), NOW);
        expected.push(format!("b{number:02}"));
    }
    engine.kill();

    let engine = Engine::start_on(&data);
    assert_eq!(engine.health()["data"], "file");
    assert_eq!(keys(&engine), expected);
    assert_eq!(records(&engine).len(), expected.len());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_data_file_is_not_shared() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("engine.db");
    let _engine = Engine::start_on(&data);
    let second =
        run(&[OsStr::new("--port"), OsStr::new("0"), OsStr::new("--data"), data.as_os_str()]);
    let complaint = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && complaint.contains("in use"), "{complaint}");
}

#[test]
fn a_sweep_deletes_expired_items_only_and_signs_them() {
    let engine = Engine::start();
    create(&engine);
    put(&engine, "expired", NOW - 1);
    put(&engine, "last second", NOW);
    put(&engine, "later", NOW + 1);
    assert_eq!(engine.sweep_ttl_at(NOW - 1), 0);
    assert_eq!(engine.sweep_ttl_at(NOW), 1);
    assert_eq!(keys(&engine), ["last second", "later"]);

    let records = records(&engine);
    let last = records.last().expect("a record of the deletion");
    assert_eq!(last["eventName"], "REMOVE");
    assert_eq!(last["dynamodb"]["OldImage"], item("expired", NOW - 1));
    // Unlike the service's streams API, which writes `Type` and `PrincipalId`: an SDK reads an
    // identity without members.
    assert_eq!(
        last["userIdentity"],
        json!({"type": "Service", "principalId": "dynamodb.amazonaws.com"})
    );
}

#[test]
fn trimmed_records_are_gone_and_later_ones_go_on() {
    let engine = Engine::start();
    create(&engine);
    put(&engine, "one", NOW);
    let before = records(&engine)[0]["dynamodb"]["SequenceNumber"].as_str().unwrap().to_owned();
    assert_eq!(engine.trim_streams(), 1);
    assert_eq!(records(&engine), Vec::<Value>::new());
    put(&engine, "two", NOW);
    let after = records(&engine)[0]["dynamodb"]["SequenceNumber"].as_str().unwrap().to_owned();
    assert!(after > before, "{after} comes after {before}");
}

/// The engine without our index took six times as long for a write after 6000 of them.
#[test]
#[expect(clippy::disallowed_methods, reason = "how long a write takes is what is tested")]
fn streams_stay_fast() {
    const BATCH: usize = 25;
    let engine = Engine::start();
    create(&engine);
    let mut batches: Vec<Duration> = Vec::new();
    for batch in 0..6000 / BATCH {
        let write = |number: usize| json!({"PutRequest": {"Item": item(&format!("{batch}-{number}"), NOW)}});
        let batch = json!({"RequestItems": {TABLE: (0..BATCH).map(write).collect::<Vec<_>>()}});
        let started = std::time::Instant::now();
        engine.call("BatchWriteItem", &batch).ok();
        batches.push(started.elapsed());
    }
    // The best of each thousand: what else the machine does slows some down, never all.
    let best = |batches: &[Duration]| *batches.iter().min().expect("batches");
    let (first, last) = (best(&batches[..1000 / BATCH]), best(&batches[5000 / BATCH..]));
    assert!(
        last.as_secs_f64() < first.as_secs_f64() * 2.5,
        "{first:?} for {BATCH} writes at first, {last:?} at last"
    );
    assert_eq!(engine.trim_streams(), 6000);
}

#[test]
fn other_machines_are_refused_unless_asked_for() {
    let refused =
        run(&[OsStr::new("--host"), OsStr::new("0.0.0.0"), OsStr::new("--port"), OsStr::new("0")]);
    assert_eq!(refused.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(complaint.contains("--allow-remote"), "{complaint}");
}

#[test]
fn the_port_file_holds_the_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("port");
    let engine = Engine::start_with(&[OsStr::new("--port-file"), path.as_os_str()]);
    assert_eq!(
        format!("http://{}", fs::read_to_string(&path).unwrap().trim_end()),
        engine.endpoint()
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left there");
    let port = engine.endpoint().rsplit(':').next().unwrap();
    let second = run(&[OsStr::new("--port"), OsStr::new(port)]);
    let complaint = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && complaint.contains("choose another --port"), "{complaint}");
}

#[test]
#[cfg(unix)]
fn a_signal_ends_it_in_order() {
    for signal in ["-TERM", "-INT"] {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start_on(&folder.path().join("engine.db"));
        create(&engine);
        let pid = engine.health()["pid"].to_string();
        // An idle connection does not keep it.
        let _idle = TcpStream::connect(engine.endpoint().strip_prefix("http://").unwrap()).unwrap();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        assert!(engine.wait().success(), "{signal}");
        assert!(!folder.path().join("engine.db-wal").exists(), "{signal}: the log is written back");
    }
}

#[test]
fn a_request_ends_it_in_order_and_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start_on(&folder.path().join("engine.db"));
    create(&engine);
    put(&engine, "one", NOW);
    let _idle = TcpStream::connect(engine.endpoint().strip_prefix("http://").unwrap()).unwrap();
    let pid = engine.health()["pid"].clone();
    let ask = |head: &str| {
        let mut connection =
            TcpStream::connect(engine.endpoint().strip_prefix("http://").unwrap()).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        connection.write_all(format!("{head}\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    // Neither a page in a browser nor a look at the address ends it.
    assert!(
        ask("POST /_zae/shutdown HTTP/1.1\r\nOrigin: http://example.org")
            .starts_with("HTTP/1.1 403 ")
    );
    assert!(ask("GET /_zae/shutdown HTTP/1.1").starts_with("HTTP/1.1 405 "));
    assert_eq!(keys(&engine), ["one"]);

    let answer = ask("POST /_zae/shutdown HTTP/1.1");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body, json!({"stopping": true, "pid": pid}));
    assert!(engine.wait().success());
    assert!(!folder.path().join("engine.db-wal").exists(), "the log is written back");
}

#[test]
fn bad_input_does_not_hurt_it() {
    let engine = Engine::start();
    create(&engine);
    let host = engine.endpoint().strip_prefix("http://").unwrap();
    let post = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let inputs: Vec<Vec<u8>> = vec![
        vec![],
        vec![0; 1000],
        (0..=255).cycle().take(100_000).collect(),
        b"GET /_za".to_vec(),
        b"GET /_zae/".to_vec(),
        b"POST /_zae/sweep-ttl HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n".to_vec(),
        b"POST /_zae/sweep-ttl HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{".to_vec(),
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{".to_vec(),
        post("/_zae/sweep-ttl", "{\"now\": -1}").into(),
        post("/_zae/trim-streams", "nonsense").into(),
        post("/_zae/nothing", "").into(),
        format!("GET /_zae/health HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(10_000)).into(),
        post("/", &"x".repeat(17 << 20)).into(),
    ];
    for input in inputs {
        let mut connection = TcpStream::connect(host).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // It may hang up on us while we still talk.
        let _ = connection.write_all(&input);
        let _ = connection.shutdown(Shutdown::Write);
        let _ = connection.read_to_end(&mut Vec::new());
    }
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    for body in [
        json!(null),
        json!([]),
        json!({"TableName": 5}),
        json!({"TableName": TABLE, "Item": {"PK": {"S": deep}}, "X": 1}),
    ] {
        let answer = engine.call("PutItem", &body);
        assert!(answer.status < 500, "{answer:?}");
    }
    assert_eq!(engine.call("NoSuchThing", &json!({})).error(), Some("UnknownOperationException"));
    put(&engine, "still there", NOW);
    assert!(keys(&engine).contains(&String::from("still there")));
    assert_eq!(engine.health()["tables"][0]["name"], TABLE);
}
