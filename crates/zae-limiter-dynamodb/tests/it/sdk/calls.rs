//! What is sent, and what is made of answers engines do not give.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use zae_limiter_core::TimeMs;
use zae_limiter_dynamodb::sdk::CallLog;
use zae_limiter_dynamodb::table::clock::{Span, TableTime};
use zae_limiter_dynamodb::table::{
    Action, Comparison, Condition, Index, Item, Key, Query, Sort, Table, Update, compare,
    compare_with, text,
};
use zae_limiter_store::ManualClock;

use crate::sdk::builder;
use crate::sdk::canned::{Reply, Server};

fn key(pk: &str) -> Key {
    Key { pk: pk.to_owned(), sk: "#STATE".into() }
}

fn update() -> Update {
    Update {
        key: key("p"),
        actions: vec![
            Action::Add("b_rpm_tk".into(), -1000),
            Action::Set("lw".into(), text("nonce")),
        ],
        conditions: vec![
            compare("b_rpm_tk", Comparison::Ge, 1000),
            Condition::Absent("ttl".into()),
            compare_with("lw", Comparison::Ne, text("nonce")),
        ],
    }
}

async fn one_update(server: &Server, observed: bool) -> Value {
    let table = builder(&server.endpoint).table().await.unwrap();
    let table = if observed { table.observed_by(Arc::new(CallLog::new())) } else { table };
    table.update(&update()).await.unwrap();
    server.seen().pop().unwrap().body
}

#[tokio::test]
async fn an_update_asks_for_the_image_either_way() {
    let server = Server::start(Reply::ok(&json!({"Attributes": {"b_rpm_tk": {"N": "5"}}})));
    let sent = one_update(&server, false).await;
    let wanted = json!({
        "TableName": "test",
        "Key": {"PK": {"S": "p"}, "SK": {"S": "#STATE"}},
        "UpdateExpression": "SET lw=:0 ADD b_rpm_tk :1",
        "ConditionExpression": "b_rpm_tk>=:2 AND attribute_not_exists(#0) AND lw<>:0",
        "ExpressionAttributeNames": {"#0": "ttl"},
        "ExpressionAttributeValues": {":0": {"S": "nonce"}, ":1": {"N": "-1000"}, ":2": {"N": "1000"}},
        "ReturnValues": "ALL_NEW",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    });
    assert_eq!(sent, wanted);
}

#[tokio::test]
async fn only_who_is_watched_asks_for_the_price() {
    let server = Server::start(Reply::ok(&json!({})));
    assert_eq!(one_update(&server, false).await.get("ReturnConsumedCapacity"), None);
    assert_eq!(one_update(&server, true).await["ReturnConsumedCapacity"], "INDEXES");
}

#[tokio::test]
async fn the_price_includes_the_indexes() {
    let capacity = json!({"TableName": "test", "CapacityUnits": 3.0, "Table": {"CapacityUnits": 1.0}, "GlobalSecondaryIndexes": {"GSI2": {"CapacityUnits": 2.0}}});
    let server = Server::start(Reply::ok(&json!({"Attributes": {}, "ConsumedCapacity": capacity})));
    let log = Arc::new(CallLog::new());
    let table = builder(&server.endpoint).observer(log.clone()).table().await.unwrap();
    table.update(&update()).await.unwrap();
    let calls = log.take();
    assert_eq!(calls.len(), 1);
    let call = &calls[0];
    assert_eq!(
        (call.operation, call.failure, call.read_units, call.write_units, call.index_units),
        ("UpdateItem", None, 0.0, 3.0, 2.0)
    );
}

#[tokio::test]
async fn a_failure_is_observed_too() {
    let server = Server::start(Reply::error(400, "ThrottlingException"));
    let log = Arc::new(CallLog::new());
    let table = builder(&server.endpoint).observer(log.clone()).table().await.unwrap();
    table.update(&update()).await.unwrap_err();
    assert_eq!(
        log.take().iter().map(|call| call.failure).collect::<Vec<_>>(),
        [Some("not_applied")]
    );
}

#[tokio::test]
async fn keys_the_table_did_not_get_to_come_back() {
    let server = Server::start(Reply::ok(&json!({
        "Responses": {"test": [{"PK": {"S": "a"}, "SK": {"S": "#STATE"}}]},
        "UnprocessedKeys": {"test": {"Keys": [{"PK": {"S": "b"}, "SK": {"S": "#STATE"}}], "ConsistentRead": true}},
    })));
    let table = builder(&server.endpoint).table().await.unwrap();
    let page = table.batch_get(&[key("a"), key("b")], true).await.unwrap();
    assert_eq!(
        page.items,
        [Item::from([("PK".to_owned(), text("a")), ("SK".to_owned(), text("#STATE"))])]
    );
    assert_eq!(page.unprocessed, [key("b")]);
    assert_eq!(server.seen()[0].body["RequestItems"]["test"]["ConsistentRead"], true);
}

#[tokio::test]
async fn deletes_the_table_did_not_get_to_come_back() {
    let open = json!({"DeleteRequest": {"Key": {"PK": {"S": "b"}, "SK": {"S": "#STATE"}}}});
    let server = Server::start(Reply::ok(&json!({"UnprocessedItems": {"test": [open]}})));
    let table = builder(&server.endpoint).table().await.unwrap();
    assert_eq!(table.delete_batch(&[key("a"), key("b")]).await.unwrap(), [key("b")]);
}

#[tokio::test]
async fn an_index_is_never_read_consistently() {
    let server = Server::start(Reply::ok(&json!({"Items": [], "Count": 0})));
    let table = builder(&server.endpoint).table().await.unwrap();
    let query = |index| Query {
        index,
        partition: "p".to_owned(),
        sort: Sort::Prefix("BUCKET#".to_owned()),
        start: Some(Item::from([("PK".to_owned(), text("x"))])),
        limit: Some(7),
        ascending: false,
        consistent: true,
    };
    table.query(&query(None)).await.unwrap();
    table.query(&query(Some(Index::Gsi3))).await.unwrap();
    let seen = server.seen();
    assert_eq!((seen[0].operation.as_str(), seen.len()), ("Query", 2));
    assert_eq!(seen[0].body["ConsistentRead"], true);
    assert_eq!(seen[0].body["KeyConditionExpression"], "PK=:p AND begins_with(SK,:s)");
    assert_eq!(seen[1].body.get("ConsistentRead"), None);
    assert_eq!(seen[1].body["IndexName"], "GSI3");
    assert_eq!(seen[1].body["KeyConditionExpression"], "GSI3PK=:p AND begins_with(GSI3SK,:s)");
    assert_eq!(seen[1].body["ExclusiveStartKey"], json!({"PK": {"S": "x"}}));
    assert_eq!(
        (&seen[1].body["Limit"], &seen[1].body["ScanIndexForward"]),
        (&json!(7), &json!(false))
    );
}

#[tokio::test]
async fn connections_are_used_again_by_takes_and_by_administration() {
    let server = Server::start(Reply::ok(&json!({})));
    let table = builder(&server.endpoint)
        .timeouts(Duration::from_secs(5), Duration::from_secs(2))
        .table()
        .await
        .unwrap();
    const CALLS: usize = 64;
    for _ in 0..3 {
        let update = update();
        let calls = (0..CALLS).map(|_| table.update(&update));
        for result in futures_util::future::join_all(calls).await {
            result.unwrap();
        }
        table.delete_batch(&[key("a")]).await.unwrap();
    }
    assert_eq!(server.seen().len(), 3 * (CALLS + 1));
    assert!(
        server.connections() <= CALLS + 1,
        "{} connections for {CALLS} calls at once",
        server.connections()
    );
}

#[tokio::test]
async fn the_first_request_may_take_longer() {
    // Until there was an answer, the timeout of a take does not count; what is not answered then
    // takes that of administration. An answer that is there already beats any timeout, so the
    // server is silent.
    let server = Server::start(Reply::OneUpdate);
    let table = builder(&server.endpoint)
        .timeouts(Duration::from_secs(1), Duration::from_nanos(1))
        .table()
        .await
        .unwrap();
    table.update(&update()).await.unwrap();
    assert!(table.update(&update()).await.is_err());
    assert_eq!(table.delete_batch(&[key("a")]).await.unwrap(), []);
}

/// The date the server tells, as the local clock would say it.
const DATE: &str = "Thu, 01 Jan 2026 10:00:00 GMT";
const DATE_MS: i64 = 1_767_261_600_000;

async fn corrected_at(now_ms: i64) -> TimeMs {
    let server =
        Server::start(Reply::Answer { status: 200, body: "{}".to_owned(), date: Some(DATE) });
    let clock = Arc::new(ManualClock::new(TimeMs(now_ms)));
    let table = builder(&server.endpoint).clock(clock).table().await.unwrap();
    assert_eq!(table.time(), TableTime::Doubtful(None));
    table.update(&update()).await.unwrap();
    table.time().span().unwrap().correct(TimeMs(now_ms))
}

#[tokio::test]
async fn the_clock_is_compared_with_the_tables() {
    assert_eq!(corrected_at(DATE_MS + 700).await, TimeMs(DATE_MS + 700));
    assert_eq!(corrected_at(DATE_MS + 10_000).await, TimeMs(DATE_MS + 1_999));
    assert_eq!(corrected_at(DATE_MS - 10_000).await, TimeMs(DATE_MS - 1_000));
}

#[tokio::test]
async fn the_latest_answer_counts_and_a_trusted_clock_is_left_alone() {
    let server =
        Server::start(Reply::Answer { status: 200, body: "{}".to_owned(), date: Some(DATE) });
    let clock = ManualClock::new(TimeMs(DATE_MS + 10_000));
    let table = builder(&server.endpoint).clock(Arc::new(clock.clone())).table().await.unwrap();
    let trusting = builder(&server.endpoint)
        .clock(Arc::new(clock.clone()))
        .trust_local_clock()
        .table()
        .await
        .unwrap();
    table.update(&update()).await.unwrap();
    clock.step_to(TimeMs(DATE_MS));
    assert!(matches!(table.time(), TableTime::Doubtful(Some(_))), "stepped since");
    table.update(&update()).await.unwrap();
    trusting.update(&update()).await.unwrap();
    let span = Span { earliest: TimeMs(DATE_MS), latest: TimeMs(DATE_MS + 999) };
    assert_eq!((table.time(), trusting.time()), (TableTime::Within(span), TableTime::Local));
}

#[tokio::test]
async fn what_can_not_be_right_fails_before_anything_is_sent() {
    let endpoint = "http://localhost:8000";
    for (builder, wanted) in [
        (
            zae_limiter_dynamodb::DynamoStore::builder("my_stack", "us-east-1")
                .endpoint_url(endpoint),
            "my_stack",
        ),
        (
            zae_limiter_dynamodb::DynamoStore::builder("stack", "US East").endpoint_url(endpoint),
            "US East",
        ),
        (
            zae_limiter_dynamodb::DynamoStore::builder("stack", "us-east-1")
                .endpoint_url("localhost:8000"),
            "localhost:8000",
        ),
        (builder(endpoint).timeouts(Duration::ZERO, Duration::ZERO), "timeouts"),
    ] {
        let error = builder.table().await.unwrap_err();
        assert_eq!(error.kind(), zae_limiter_store::StoreErrorKind::Invalid);
        assert!(error.message().contains(wanted), "{error}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let shown = format!("{:?}", builder("http://localhost:8000"));
    assert!(shown.contains("us-east-1") && !shown.contains("secret"), "{shown}");
}
