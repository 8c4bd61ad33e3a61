//! Every class of failure, made by the SDK itself from what a server does.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::json;
use zae_limiter_dynamodb::sdk::SdkTable;
use zae_limiter_dynamodb::table::{
    Action, Cancellation, Delete, Item, Key, Put, Table, TableError, Update, Write, compare, number,
};

use crate::sdk::builder;
use crate::sdk::canned::{Reply, Server};

async fn table(endpoint: &str) -> SdkTable {
    builder(endpoint)
        .timeouts(Duration::from_millis(300), Duration::from_millis(500))
        .table()
        .await
        .unwrap()
}

fn key() -> Key {
    Key { pk: "a/BUCKET#e#r#0".to_owned(), sk: "#STATE".into() }
}

fn update() -> Update {
    Update {
        key: key(),
        actions: vec![Action::Add("b_rpm_tk".into(), -1000)],
        conditions: vec![compare("b_rpm_tk", zae_limiter_dynamodb::table::Comparison::Ge, 1000)],
    }
}

/// The answer to an update, and the proof that it was sent once.
async fn update_gets(reply: Reply) -> TableError {
    let server = Server::start(reply);
    let error = table(&server.endpoint).await.update(&update()).await.unwrap_err();
    assert!(server.connections() <= 1, "sent more than once");
    assert!(server.seen().len() <= 1, "sent more than once: {:?}", server.seen());
    error
}

async fn transact_gets(reply: Reply) -> TableError {
    let server = Server::start(reply);
    let writes = [
        Write::Update(update()),
        Write::Put(Put { item: Item::from([("PK".to_owned(), number(1))]), conditions: vec![] }),
        Write::Delete(Delete { key: key(), conditions: vec![] }),
    ];
    let error = table(&server.endpoint).await.transact(&writes, "token").await.unwrap_err();
    assert_eq!(server.seen().len(), 1, "sent more than once");
    error
}

macro_rules! assert_class {
    ($error:expr, $class:pat) => {{
        let error = $error;
        assert!(matches!(&error, $class), "{error:?} is not {}", stringify!($class));
    }};
}

#[tokio::test]
async fn a_failed_condition_hands_back_the_item() {
    let body = json!({"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", "message": "no", "Item": {"rf": {"N": "7"}}});
    match update_gets(Reply::answer(400, body.to_string())).await {
        TableError::Condition(Some(item)) => {
            assert_eq!(item, Item::from([("rf".to_owned(), number(7))]))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_failed_condition_without_an_item_hands_back_none() {
    assert_class!(
        update_gets(Reply::error(400, "ConditionalCheckFailedException")).await,
        TableError::Condition(None)
    );
    let empty = json!({"__type": "ConditionalCheckFailedException", "Item": {}});
    assert_class!(
        update_gets(Reply::answer(400, empty.to_string())).await,
        TableError::Condition(None)
    );
}

#[tokio::test]
async fn throttles_and_conflicts_prove_that_nothing_was_applied() {
    for code in [
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
    ] {
        match update_gets(Reply::error(400, code)).await {
            TableError::NotApplied(why) => assert!(why.contains(code), "{why}"),
            other => panic!("{code}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_transaction_in_progress_may_still_be_applied() {
    assert_class!(
        transact_gets(Reply::error(400, "TransactionInProgressException")).await,
        TableError::Unknown(_)
    );
}

#[tokio::test]
async fn a_cancelled_transaction_has_a_reason_per_leg() {
    let body = json!({
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "message": "cancelled",
        "CancellationReasons": [{"Code": "ConditionalCheckFailed", "Item": {"rf": {"N": "7"}}}, {"Code": "None"}, {"Code": "TransactionConflict"}],
    });
    match transact_gets(Reply::answer(400, body.to_string())).await {
        TableError::Canceled(reasons) => {
            let image = Item::from([("rf".to_owned(), number(7))]);
            assert_eq!(
                reasons,
                [
                    Cancellation::Condition(Some(image)),
                    Cancellation::Innocent,
                    Cancellation::Conflict
                ]
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_other_reason_of_a_leg() {
    let body = json!({
        "__type": "TransactionCanceledException",
        "CancellationReasons": [{"Code": "ThrottlingError"}, {"Code": "ProvisionedThroughputExceeded"}, {"Code": "ValidationError", "Message": "too big"}],
    });
    match transact_gets(Reply::answer(400, body.to_string())).await {
        TableError::Canceled(reasons) => {
            let bug = Cancellation::Rejected("ValidationError: too big".to_owned());
            assert_eq!(reasons, [Cancellation::Throttled, Cancellation::Throttled, bug]);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn reasons_that_do_not_match_the_legs_stand_for_nothing() {
    let short = json!({"__type": "TransactionCanceledException", "CancellationReasons": [{"Code": "ConditionalCheckFailed"}]});
    assert_class!(
        transact_gets(Reply::answer(400, short.to_string())).await,
        TableError::NotApplied(_)
    );
    assert_class!(
        transact_gets(Reply::error(400, "TransactionCanceledException")).await,
        TableError::NotApplied(_)
    );
}

#[tokio::test]
async fn a_refused_connection_was_never_used() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    assert_class!(
        table(&endpoint).await.update(&update()).await.unwrap_err(),
        TableError::Unreachable(_)
    );
}

#[tokio::test]
async fn a_host_without_an_address_was_never_reached() {
    assert_class!(
        table("http://no-such-host.invalid:8000").await.update(&update()).await.unwrap_err(),
        TableError::Unreachable(_)
    );
}

#[tokio::test]
async fn a_connection_that_is_not_made_in_time_was_never_used() {
    // It waits for the other side's part of the TLS handshake.
    let server = Server::start(Reply::Hang);
    let endpoint = server.endpoint.replace("http://", "https://");
    assert_class!(
        table(&endpoint).await.update(&update()).await.unwrap_err(),
        TableError::Unreachable(_)
    );
}

#[tokio::test]
async fn a_connection_that_speaks_no_tls_was_never_used() {
    let server = Server::start(Reply::Slam);
    let endpoint = server.endpoint.replace("http://", "https://");
    assert_class!(
        table(&endpoint).await.update(&update()).await.unwrap_err(),
        TableError::Unreachable(_)
    );
}

#[tokio::test]
async fn a_request_without_its_answer_may_have_been_applied() {
    for reply in [Reply::Close, Reply::Half, Reply::Hang, Reply::Slam] {
        let error = update_gets(reply.clone()).await;
        assert!(matches!(error, TableError::Unknown(_)), "{reply:?}: {error:?}");
    }
}

#[tokio::test]
async fn an_answer_of_the_500_kind_may_have_been_applied() {
    for (status, code) in
        [(500, "InternalServerError"), (503, "ServiceUnavailable"), (500, "SomethingNew")]
    {
        assert_class!(update_gets(Reply::error(status, code)).await, TableError::Unknown(_));
    }
    assert_class!(
        update_gets(Reply::answer(502, "<html>bad gateway</html>")).await,
        TableError::Unknown(_)
    );
}

#[tokio::test]
async fn an_answer_nobody_can_read_may_have_been_applied() {
    assert_class!(
        update_gets(Reply::answer(200, "{\"Attributes\": 7")).await,
        TableError::Unknown(_)
    );
}

#[tokio::test]
async fn missing_permission_says_what_to_do() {
    for (code, advice) in [
        ("AccessDeniedException", "grant"),
        ("UnrecognizedClientException", "access key"),
        ("ExpiredTokenException", "log in again"),
        ("InvalidSignatureException", "clock"),
    ] {
        match update_gets(Reply::error(400, code)).await {
            TableError::Denied(why) => assert!(why.contains(code) && why.contains(advice), "{why}"),
            other => panic!("{code}: {other:?}"),
        }
    }
    assert_class!(
        update_gets(Reply::answer(403, "<html>forbidden</html>")).await,
        TableError::Denied(_)
    );
}

#[tokio::test]
async fn a_table_that_is_not_there() {
    assert_class!(
        update_gets(Reply::error(400, "ResourceNotFoundException")).await,
        TableError::NoTable(_)
    );
}

#[tokio::test]
async fn what_the_table_does_not_accept_was_not_applied() {
    for code in [
        "ValidationException",
        "ItemCollectionSizeLimitExceededException",
        "SerializationException",
        "SomethingNewException",
    ] {
        match update_gets(Reply::error(400, code)).await {
            TableError::Rejected(why) => assert!(why.contains(code), "{why}"),
            other => panic!("{code}: {other:?}"),
        }
    }
    assert_class!(
        transact_gets(Reply::error(400, "IdempotentParameterMismatchException")).await,
        TableError::Rejected(_)
    );
    assert_class!(update_gets(Reply::answer(413, "too large")).await, TableError::Rejected(_));
}

#[tokio::test]
async fn bounds_are_kept_before_anything_is_sent() {
    let server = Server::start(Reply::Close);
    let table = table(&server.endpoint).await;
    let keys = |count: usize| {
        (0..count).map(|n| Key { pk: n.to_string(), sk: "s".into() }).collect::<Vec<_>>()
    };
    assert_class!(table.batch_get(&keys(101), false).await.unwrap_err(), TableError::Rejected(_));
    assert_class!(table.delete_batch(&keys(26)).await.unwrap_err(), TableError::Rejected(_));
    assert_class!(table.batch_get(&[], false).await.unwrap_err(), TableError::Rejected(_));
    let legs: Vec<Write> = keys(101)
        .into_iter()
        .map(|key| Write::Delete(Delete { key, conditions: vec![] }))
        .collect();
    assert_class!(table.transact(&legs, "token").await.unwrap_err(), TableError::Rejected(_));
    assert_eq!(server.connections(), 0);
}

/// The standard chain reads the environment of the process, so the test runs itself again in an
/// empty one.
#[test]
#[expect(clippy::disallowed_methods, reason = "tells the inner run from the outer one")]
fn missing_credentials_are_missing_permission() {
    const INNER: &str = "ZAEL_TEST_WITHOUT_CREDENTIALS";
    if std::env::var_os(INNER).is_none() {
        let name = "sdk::failures::missing_credentials_are_missing_permission";
        let mut inner = std::process::Command::new(std::env::current_exe().unwrap());
        inner
            .args(["--exact", name])
            .env_clear()
            .env(INNER, "1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("HOME", "/nonexistent");
        let output = inner.output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{told}");
        return;
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let table =
            zae_limiter_dynamodb::DynamoStore::builder("test", "us-east-1").table().await.unwrap();
        match table.update(&update()).await.unwrap_err() {
            TableError::Denied(why) => assert!(why.contains("AWS_PROFILE"), "{why}"),
            other => panic!("{other:?}"),
        }
    });
}
