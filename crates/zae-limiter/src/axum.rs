//! Feature `axum`: an [`AcquireError`] is a response, so that a handler refuses with `?`.
//!
//! ```
//! use axum::response::{AppendHeaders, IntoResponse};
//! use zae_limiter::{AcquireError, RateLimiter, Request as Admission, headers};
//!
//! async fn chat(limiter: RateLimiter) -> Result<impl IntoResponse, AcquireError> {
//!     let request = Admission::new("key-1", "gpt-4").take("rpm", 1);
//!     let lease = limiter.acquire(request).await?; // 429, 503, ...
//!     let left = headers::granted(lease.statuses());
//!     if let Err(error) = lease.commit().await {
//!         eprintln!("settled in the background: {error}");
//!     }
//!     Ok((AppendHeaders(left), "hello"))
//! }
//! ```

use ::axum::http::header::CONTENT_TYPE;
use ::axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use ::axum::response::{IntoResponse, Response};
use zae_limiter_core::RateLimitExceeded;

use crate::{AcquireError, headers};

/// The problem type of a refusal in the draft that defines the `RateLimit` headers.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The status of [`AcquireError::http_status`], the headers of [`headers::of`] and a body of type
/// `application/problem+json` (RFC 9457). The body tells the client what it can act on; of failures
/// behind the limiter (5xx) it names none.
impl IntoResponse for AcquireError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut fields: HeaderMap = headers::of(&self).into_iter().filter_map(field).collect();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        (status, fields, problem(&self, status)).into_response()
    }
}

/// Limit names are tokens and values are ASCII, so nothing is lost.
fn field((name, value): headers::Header) -> Option<(HeaderName, HeaderValue)> {
    Some((name.parse().ok()?, value.parse().ok()?))
}

fn problem(error: &AcquireError, status: StatusCode) -> String {
    let by_limits = error.exceeded().filter(|exceeded| exceeded.violations().next().is_some());
    let kind = by_limits.map_or("about:blank", |_| QUOTA_EXCEEDED);
    let mut members = vec![
        format!("\"type\":{}", quoted(kind)),
        format!("\"title\":{}", quoted(status.canonical_reason().unwrap_or("error"))),
        format!("\"status\":{}", status.as_u16()),
    ];
    if status.is_client_error() {
        members.push(format!("\"detail\":{}", quoted(&error.to_string())));
    }
    if let Some(exceeded) = by_limits {
        members.push(format!("\"violated-policies\":[{}]", violated(exceeded).join(",")));
    }
    format!("{{{}}}", members.join(","))
}

/// The names of the limits that refused, each once, as in the headers.
fn violated(exceeded: &RateLimitExceeded) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for status in exceeded.violations() {
        let name = quoted(status.limit.name().as_str());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(control)))
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
