//! The stream over the SDK, by replies as AWS gives them: the local engine gives the worker no
//! occasion to be wrong about these.

use serde_json::{Value, json};
use zae_limiter_aggregator::{SdkStreams, StreamError, Streams as _};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_testkit::aws::replies::Replies;

const ARN: &str = "arn:aws:dynamodb:us-east-1:123456789012:table/stack/stream/2026-01-31";

/// A server that knows the table and its stream.
fn stack() -> Replies {
    let table = json!({"Table": {
        "TableName": "stack",
        "TableStatus": "ACTIVE",
        "StreamSpecification": {"StreamEnabled": true, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        "LatestStreamArn": ARN,
    }});
    let ttl = json!({"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}});
    let none = json!({"Responses": {}, "UnprocessedKeys": {}});
    let empty = json!({"Items": [], "Count": 0, "ScannedCount": 0});
    let ok = |replies: Replies, action: &str, body: Value| {
        replies.whole(action, "200 OK", &body.to_string())
    };
    let replies = ok(Replies::start(), "DescribeTable", table);
    let replies = ok(replies, "DescribeTimeToLive", ttl);
    let replies = ok(replies, "BatchGetItem", none);
    ok(replies, "Query", empty)
}

async fn streams(replies: &Replies) -> SdkStreams {
    let builder = DynamoStore::builder("stack", "us-east-1").endpoint_url(replies.endpoint());
    SdkStreams::connect(&builder).await.unwrap()
}

/// A record that is gone ends no worker, and an iterator that has expired is no loss.
#[tokio::test]
async fn what_the_service_says_of_a_read_is_told_apart() {
    let answer = async |code: &str| {
        let body = json!({
            "__type": format!("com.amazonaws.dynamodb.v20120810#{code}"),
            "message": "so it is",
        });
        let replies = stack().whole("GetRecords", "400 Bad Request", &body.to_string());
        streams(&replies).await.read("s", "i").await.unwrap_err()
    };
    assert_eq!(answer("TrimmedDataAccessException").await, StreamError::Trimmed);
    assert_eq!(answer("ExpiredIteratorException").await, StreamError::Expired);
    let missing = answer("ResourceNotFoundException").await;
    assert!(matches!(missing, StreamError::Missing(_)), "{missing}");
    for code in ["AccessDeniedException", "ValidationException", "ExpiredTokenException"] {
        let refused = answer(code).await;
        assert!(matches!(refused, StreamError::Refused(_)), "{code}: {refused}");
    }
    for code in ["LimitExceededException", "InternalServerError", "NewException"] {
        let passing = answer(code).await;
        assert!(matches!(passing, StreamError::Passing(_)), "{code}: {passing}");
    }
}

/// An administrator who deletes an audit event must not have it archived as one whose time had
/// come.
#[tokio::test]
async fn only_what_the_service_itself_removed_has_expired() {
    let record = |number: u32, identity: Value| {
        json!({
            "eventID": number.to_string(),
            "eventName": "REMOVE",
            "dynamodb": {
                "ApproximateCreationDateTime": 1_769_900_400,
                "Keys": {"PK": {"S": "ns/AUDIT#key"}, "SK": {"S": format!("#AUDIT#{number}")}},
                "SequenceNumber": format!("{number:021}"),
            },
            "userIdentity": identity,
        })
    };
    let by = |id: &str, kind: &str| json!({"PrincipalId": id, "Type": kind});
    let service = "dynamodb.amazonaws.com";
    let records = [
        record(1, by(service, "Service")),
        record(2, by(service, "User")),
        record(3, by("lambda.amazonaws.com", "Service")),
        record(4, json!({"PrincipalId": service})),
        record(5, json!({"Type": "Service"})),
        record(6, Value::Null),
    ];
    let body = json!({"Records": records, "NextShardIterator": "j"}).to_string();
    let replies = stack().whole("GetRecords", "200 OK", &body);
    let batch = streams(&replies).await.read("s", "i").await.unwrap();
    assert_eq!((batch.poison.len(), batch.next.as_deref()), (0, Some("j")));
    let expired: Vec<bool> = batch.records.iter().map(|record| record.is_expired).collect();
    assert_eq!(expired, [true, false, false, false, false, false]);
}

/// Another program that answers on this machine may keep its records for others.
#[tokio::test]
async fn only_an_engine_of_our_name_is_asked_to_forget() {
    for (name, is_ours) in
        [(json!("zae-limiter-local"), true), (json!("ministack"), false), (Value::Null, false)]
    {
        let health = json!({"name": name, "tables": []}).to_string();
        let replies = stack().whole("GET", "200 OK", &health).whole(
            "POST",
            "200 OK",
            &json!({"deleted": 7}).to_string(),
        );
        let streams = streams(&replies).await;
        assert_eq!((streams.trims(), streams.pace().is_zero()), (is_ours, is_ours), "{name}");
        let trimmed = streams.trim("s", "000000000000000000100").await.unwrap();
        assert_eq!(trimmed, if is_ours { 7 } else { 0 }, "{name}");
        assert_eq!(replies.asked("POST").len(), usize::from(is_ours), "{name}");
    }
}
