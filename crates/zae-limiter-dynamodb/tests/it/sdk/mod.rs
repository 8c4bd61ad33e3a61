//! The table over the AWS SDK: what it sends, what it makes of the answers, and every method on a
//! real engine.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod calls;
mod canned;
mod check;
mod credentials;
mod engine;
mod expression;
mod failures;
mod stream;

use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::sdk::{Builder, StaticCredentials};

/// A builder for an endpoint of the test; needs nothing from the environment.
fn builder(endpoint: &str) -> Builder {
    DynamoStore::builder("test", "us-east-1").endpoint_url(endpoint).credentials(
        StaticCredentials {
            access_key_id: "test".to_owned(),
            secret_access_key: "test".to_owned(),
            session_token: None,
        },
    )
}
