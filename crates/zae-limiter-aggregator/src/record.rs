//! One record of the table's stream, whoever delivered it.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Map, Value, json};

pub use zae_limiter_dynamodb::stream::Item;

/// What happened to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The item was made.
    Insert,
    /// The item was changed.
    Modify,
    /// The item was removed.
    Remove,
}

impl Kind {
    /// The word of the stream.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Insert => "INSERT",
            Kind::Modify => "MODIFY",
            Kind::Remove => "REMOVE",
        }
    }

    /// The kind a word of the stream names.
    #[must_use]
    pub fn of(word: &str) -> Option<Kind> {
        [Kind::Insert, Kind::Modify, Kind::Remove].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A record of the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The stream shard it was read from, or any word that is the same on every delivery.
    pub stream_shard: String,
    /// Its number in the stream: digits.
    pub sequence: String,
    /// What happened.
    pub kind: Kind,
    /// `ApproximateCreationDateTime`, in whole seconds since 1970.
    pub at_s: i64,
    /// Partition and sort key.
    pub key: (String, String),
    /// The item before; `None` for one that was made.
    pub old: Option<Item>,
    /// The item after; `None` for one that was removed.
    pub new: Option<Item>,
    /// True when the item was removed because its time had come: by the principal
    /// [`EXPIRER`](crate::EXPIRER).
    pub is_expired: bool,
}

impl Record {
    /// The record as JSON, for people: values as DynamoDB writes them, in a fixed order.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let image = |item: &Option<Item>| item.as_ref().map_or(Value::Null, typed_item);
        json!({
            "kind": self.kind.as_str(),
            "stream_shard": self.stream_shard,
            "sequence": self.sequence,
            "at_s": self.at_s,
            "pk": self.key.0,
            "sk": self.key.1,
            "expired": self.is_expired,
            "old": image(&self.old),
            "new": image(&self.new),
        })
    }
}

/// An item with the types of its values: `{"n": {"N": "5"}}`.
fn typed_item(item: &Item) -> Value {
    let sorted: BTreeMap<_, _> = item.iter().collect();
    Value::Object(sorted.into_iter().map(|(name, value)| (name.clone(), typed(value))).collect())
}

fn typed(value: &AttributeValue) -> Value {
    let one = |name: &str, value: Value| Value::Object(Map::from_iter([(name.to_owned(), value)]));
    match value {
        AttributeValue::S(text) => one("S", json!(text)),
        AttributeValue::N(digits) => one("N", json!(digits)),
        AttributeValue::Bool(flag) => one("BOOL", json!(flag)),
        AttributeValue::Null(flag) => one("NULL", json!(flag)),
        AttributeValue::L(values) => one("L", values.iter().map(typed).collect()),
        AttributeValue::M(values) => one("M", typed_item(values)),
        AttributeValue::Ss(values) => one("SS", json!(values)),
        AttributeValue::Ns(values) => one("NS", json!(values)),
        AttributeValue::B(bytes) => one("B", json!(hexadecimal(bytes.as_ref()))),
        other => one("?", json!(format!("{other:?}"))),
    }
}

/// A value as plain JSON. Numbers that are no whole ones of 64 bits stay text: none is rounded.
pub(crate) fn plain(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => json!(text),
        AttributeValue::N(digits) => {
            digits.parse::<i64>().map_or_else(|_| json!(digits), Value::from)
        }
        AttributeValue::Bool(flag) => json!(flag),
        AttributeValue::Null(_) => Value::Null,
        AttributeValue::L(values) => values.iter().map(plain).collect(),
        AttributeValue::M(values) => {
            let sorted: BTreeMap<_, _> = values.iter().collect();
            Value::Object(
                sorted.into_iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
            )
        }
        AttributeValue::Ss(values) | AttributeValue::Ns(values) => json!(values),
        AttributeValue::B(bytes) => json!(hexadecimal(bytes.as_ref())),
        other => json!(format!("{other:?}")),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The width of a padded number. Those of the service have 21 to 40 digits.
pub const SEQUENCE_DIGITS: usize = 40;

/// A number of the stream in the form that sorts as text; `None` for what is no such number.
#[must_use]
pub fn padded(sequence: &str) -> Option<String> {
    let fits = (1..=SEQUENCE_DIGITS).contains(&sequence.len());
    let digits = sequence.bytes().all(|digit| digit.is_ascii_digit());
    (fits && digits).then(|| format!("{sequence:0>SEQUENCE_DIGITS$}"))
}
