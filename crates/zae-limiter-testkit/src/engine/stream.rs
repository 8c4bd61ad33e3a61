//! The stream of a table, read from its beginning, as an aggregator is given it.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use zae_limiter_aggregator::{EXPIRER, Item, Kind, Record};

use super::Engine;

impl Engine {
    /// Every record that the stream of a table keeps, as the service tells it.
    pub fn stream(&self, table: &str) -> Vec<Value> {
        let call = |operation: &str, body: &Value| self.call(operation, body).ok();
        let streams = call("ListStreams", &json!({ "TableName": table }));
        let arn = &streams["Streams"][0]["StreamArn"];
        let stream = call("DescribeStream", &json!({ "StreamArn": arn }));
        let shard = &stream["StreamDescription"]["Shards"][0]["ShardId"];
        let from =
            json!({ "StreamArn": arn, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON" });
        let mut iterator = call("GetShardIterator", &from)["ShardIterator"].clone();
        let mut records = Vec::new();
        loop {
            let page = call("GetRecords", &json!({ "ShardIterator": iterator }));
            let found = page["Records"].as_array().expect("records");
            if found.is_empty() {
                return records;
            }
            records.extend(found.iter().cloned());
            iterator = page["NextShardIterator"].clone();
        }
    }
}

/// A record as an aggregator takes it.
pub fn record(event: &Value) -> Record {
    let change = &event["dynamodb"];
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    Record {
        stream_shard: "shardId-1".to_owned(),
        sequence: text(&change["SequenceNumber"]),
        kind: Kind::of(event["eventName"].as_str().expect("a text")).expect("a known kind"),
        at_s: seconds(&change["ApproximateCreationDateTime"]),
        key: (text(&change["Keys"]["PK"]["S"]), text(&change["Keys"]["SK"]["S"])),
        old: image(&change["OldImage"]),
        new: image(&change["NewImage"]),
        is_expired: event["userIdentity"]["principalId"] == EXPIRER,
    }
}

/// Whole seconds, of a number that may have a fraction.
fn seconds(time: &Value) -> i64 {
    let text = time.to_string();
    text.split('.').next().and_then(|whole| whole.parse().ok()).expect("a time")
}

fn image(item: &Value) -> Option<Item> {
    let fields = item.as_object()?;
    Some(fields.iter().map(|(name, value)| (name.clone(), value_of(value))).collect())
}

fn value_of(value: &Value) -> AttributeValue {
    let (kind, value) = value.as_object().and_then(|one| one.iter().next()).expect("a value");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = || value.as_array().expect("a list").iter();
    match kind.as_str() {
        "S" => AttributeValue::S(text(value)),
        "N" => AttributeValue::N(text(value)),
        "BOOL" => AttributeValue::Bool(value.as_bool().expect("true or false")),
        "NULL" => AttributeValue::Null(true),
        "M" => AttributeValue::M(image(value).expect("a map")),
        "L" => AttributeValue::L(list().map(value_of).collect()),
        "SS" => AttributeValue::Ss(list().map(text).collect()),
        "NS" => AttributeValue::Ns(list().map(text).collect()),
        other => panic!("a value of kind {other}"),
    }
}
