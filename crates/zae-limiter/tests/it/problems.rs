//! Feature `axum`: what a refusal looks like as a response.

use axum::response::IntoResponse;
use zae_limiter::{AcquireError, Invalid};

/// A store puts its own words into a refusal, line ends and quotes included.
#[tokio::test]
async fn a_problem_is_json_whatever_the_store_says() {
    let words = "a \"quoted\" \\ word,\na second line, a tab\t, an escape \u{1b}[0m and é";
    let refused = AcquireError::Invalid(Invalid::Refused(words.to_owned()));
    let response = refused.into_response();
    assert_eq!(response.status(), 400);
    let body = axum::body::to_bytes(response.into_body(), 10_000).await.expect("a body");
    let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(problem["detail"], words);
}
