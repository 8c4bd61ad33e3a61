//! Which records a Lambda function is to be given: filters of its event source mapping.

use serde_json::{Value, json};
use zae_limiter_dynamodb::stream::{AUDIT, EXPIRER, STATE};

use crate::record::Kind;

/// The filter patterns. A record is delivered if it matches one: buckets that were made or changed,
/// and audit events that have expired. Usage never comes back to the aggregator that writes it.
#[must_use]
pub fn filters() -> [Value; 2] {
    [
        json!({
            "eventName": [Kind::Insert.as_str(), Kind::Modify.as_str()],
            "dynamodb": { "Keys": { "SK": { "S": [STATE] } } },
        }),
        json!({
            "eventName": [Kind::Remove.as_str()],
            "userIdentity": { "type": ["Service"], "principalId": [EXPIRER] },
            "dynamodb": { "Keys": { "SK": { "S": [{ "prefix": AUDIT }] } } },
        }),
    ]
}
