//! The worker on the real engine.

use std::sync::Arc;

use serde_json::{Value, json};
use zae_limiter_aggregator::{Aggregator, SdkStreams, Settings, Worker};
use zae_limiter_dynamodb::sdk::{Builder, Stream, TableOptions};
use zae_limiter_store::StoreErrorKind;
use zae_limiter_testkit::engine::Engine;

const TABLE: &str = "test";

async fn worker(builder: &Builder) -> Worker {
    let streams = SdkStreams::connect(builder).await.unwrap();
    let table = Arc::new(builder.table().await.unwrap());
    let aggregator = Aggregator::new(table.clone(), Settings::new(TABLE));
    Worker::new(Arc::new(streams), table, aggregator)
}

/// The id of the namespace `default`.
fn namespace(engine: &Engine) -> String {
    let key = json!({"PK": {"S": "_/SYSTEM#"}, "SK": {"S": "#NAMESPACE#default"}});
    let found = engine.call("GetItem", &json!({"TableName": TABLE, "Key": key})).ok();
    found["Item"]["namespace_id"]["S"].as_str().unwrap().to_owned()
}

fn take(engine: &Engine, namespace: &str, entity: &str, milli: i64) {
    let pk = format!("{namespace}/BUCKET#{entity}#gpt-4#0");
    let update = json!({
        "TableName": TABLE,
        "Key": {"PK": {"S": pk}, "SK": {"S": "#STATE"}},
        "UpdateExpression": "ADD b_rpm_tc :used, b_wcu_tc :write",
        "ExpressionAttributeValues": {
            ":used": {"N": milli.to_string()}, ":write": {"N": "1000"},
        },
    });
    engine.call("UpdateItem", &update).ok();
}

/// What the daily snapshots of an entity say: millitokens and takes.
fn used(engine: &Engine, namespace: &str, entity: &str) -> (i64, i64) {
    let query = json!({
        "TableName": TABLE,
        "KeyConditionExpression": "PK = :pk AND begins_with(SK, :sk)",
        "ExpressionAttributeValues": {
            ":pk": {"S": format!("{namespace}/ENTITY#{entity}")}, ":sk": {"S": "#USAGE#gpt-4#"},
        },
    });
    let found = engine.call("Query", &query).ok();
    let number =
        |item: &Value, name: &str| -> i64 { item[name]["N"].as_str().unwrap().parse().unwrap() };
    // A day has no hour in its key.
    let is_daily = |item: &&Value| !item["SK"]["S"].as_str().unwrap().contains('T');
    let daily: Vec<&Value> = found["Items"].as_array().unwrap().iter().filter(is_daily).collect();
    let sum = |name: &str| daily.iter().map(|item| number(item, name)).sum();
    (sum("rpm#m"), sum("total_events"))
}

/// How many records the stream of the engine keeps.
fn kept(engine: &Engine) -> usize {
    let table = engine.call("DescribeTable", &json!({"TableName": TABLE})).ok();
    let arn = table["Table"]["LatestStreamArn"].clone();
    let stream = engine.call("DescribeStream", &json!({"StreamArn": arn})).ok();
    let shard = stream["StreamDescription"]["Shards"][0]["ShardId"].clone();
    let first = json!({"StreamArn": arn, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"});
    let mut iterator = engine.call("GetShardIterator", &first).ok()["ShardIterator"].clone();
    let mut count = 0;
    loop {
        let page = engine.call("GetRecords", &json!({"ShardIterator": iterator})).ok();
        match page["Records"].as_array().unwrap().len() {
            0 => return count,
            records => count += records,
        }
        iterator = page["NextShardIterator"].clone();
    }
}

#[tokio::test]
async fn what_is_taken_is_counted_once_and_the_stream_stays_short() {
    const TAKES: i64 = 3_000;
    let engine = Engine::start();
    let builder = engine.stack(TABLE);
    builder.clone().create().await.unwrap();
    let namespace = namespace(&engine);
    let (mut first, mut second) = (worker(&builder).await, worker(&builder).await);
    for number in 0..TAKES {
        take(&engine, &namespace, ["a", "b"][usize::from(number % 3 == 0)], 1_001);
        if number % 500 == 499 {
            first.turn().await.unwrap();
            second.turn().await.unwrap();
        }
    }
    first.drain(|_| {}).await.unwrap();
    second.drain(|_| {}).await.unwrap();
    worker(&builder).await.drain(|_| {}).await.unwrap();
    assert_eq!(used(&engine, &namespace, "a"), (2_000 * 1_001, 2_000));
    assert_eq!(used(&engine, &namespace, "b"), (1_000 * 1_001, 1_000));
    assert!(first.totals().trimmed >= 2_000, "{:?}", first.totals());
    assert!(kept(&engine) < 1_000, "{} records stay", kept(&engine));
    let gaps = first.totals().usage_gaps + second.totals().usage_gaps;
    assert_eq!(gaps, 0, "what the worker trims itself is no gap");
}

#[tokio::test]
async fn records_that_are_gone_are_a_gap_and_the_rest_is_counted() {
    let engine = Engine::start();
    let builder = engine.stack(TABLE);
    builder.clone().create().await.unwrap();
    let namespace = namespace(&engine);
    take(&engine, &namespace, "a", 1_000);
    worker(&builder).await.drain(|_| {}).await.unwrap();
    take(&engine, &namespace, "a", 1_000);
    engine.trim_streams();
    take(&engine, &namespace, "a", 1_000);
    let mut next = worker(&builder).await;
    next.drain(|_| {}).await.unwrap();
    assert_eq!((next.totals().usage_gaps, used(&engine, &namespace, "a").0), (1, 2_000));
    assert_eq!(builder.status().await.unwrap().worker.unwrap().gaps, 1);
    let mut last = worker(&builder).await;
    last.drain(|_| {}).await.unwrap();
    assert_eq!(last.totals().usage_gaps, 0);
}

#[tokio::test]
async fn a_stream_that_cannot_be_counted_from_says_why() {
    let engine = Engine::start();
    let builder = engine.stack(TABLE);
    let missing = SdkStreams::connect(&builder).await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::NotFound, "{missing}");
    let options = TableOptions::new().stream(Stream::Off);
    builder.clone().table_options(options).create().await.unwrap();
    let none = SdkStreams::connect(&builder).await.unwrap_err();
    assert_eq!(none.kind(), StoreErrorKind::NotFound);
    assert!(none.message().contains("has no stream"), "{none}");
    let stream = json!({"StreamEnabled": true, "StreamViewType": "KEYS_ONLY"});
    engine.call("UpdateTable", &json!({"TableName": TABLE, "StreamSpecification": stream})).ok();
    let other = SdkStreams::connect(&builder).await.unwrap_err();
    assert_eq!(other.kind(), StoreErrorKind::Incompatible);
    assert!(other.message().contains("KEYS_ONLY"), "{other}");
}

#[tokio::test]
async fn only_our_own_engine_is_asked_to_forget() {
    let engine = Engine::start();
    let builder = engine.stack(TABLE);
    builder.clone().create().await.unwrap();
    assert!(SdkStreams::connect(&builder).await.unwrap().trims());
}
