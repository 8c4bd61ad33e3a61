//! One question to CloudWatch: how far the function is behind the stream. A request of our own,
//! because one question is not worth a crate that everybody builds.

use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::provider::{ProvideCredentials as _, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use aws_smithy_http_client::{Connector, tls};
use aws_smithy_runtime_api::client::http::HttpConnector as _;
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use zae_limiter::domain::rfc3339;
use zae_limiter::{Clock as _, SystemClock, TimeMs};

use crate::error::DeployError;

const OPERATION: &str = "GetMetricStatistics";

/// How far back the question reaches. CloudWatch has the metric some minutes late.
const LOOK_BACK_MS: i64 = 15 * 60 * 1_000;

/// How long the answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The way to CloudWatch.
pub(super) struct Metrics {
    pub(super) region: String,
    /// Another endpoint than the region's own.
    pub(super) endpoint: Option<String>,
    pub(super) credentials: Option<SharedCredentialsProvider>,
}

impl Metrics {
    /// The age of the oldest record that a function was given last, in ms; `None` when it was given
    /// none for a quarter of an hour.
    pub(super) async fn iterator_age_ms(
        &self,
        function: &str,
        now: TimeMs,
    ) -> Result<Option<i64>, DeployError> {
        let since = TimeMs(now.0.saturating_sub(LOOK_BACK_MS));
        let time = |at: TimeMs| rfc3339(at).replace(':', "%3A");
        let body = format!(
            "Action={OPERATION}&Version=2010-08-01&Namespace=AWS%2FLambda&MetricName=IteratorAge\
             &Dimensions.member.1.Name=FunctionName&Dimensions.member.1.Value={function}\
             &StartTime={}&EndTime={}&Period=60&Statistics.member.1=Maximum",
            time(since),
            time(now)
        );
        // The time of this machine, whatever clock the stack has: a test's does not wait.
        let (mut answer, mut late) =
            (pin!(self.post(body, now)), SystemClock::new().sleep(ANSWER_MAX));
        let answer = std::future::poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(answer),
            Poll::Pending => late.as_mut().poll(context).map(|()| {
                let message = format!("no answer within {} s", ANSWER_MAX.as_secs());
                Err(DeployError::Unreachable { operation: OPERATION, message })
            }),
        });
        Ok(newest(&answer.await?))
    }

    async fn post(&self, body: String, now: TimeMs) -> Result<String, DeployError> {
        let unreachable =
            |message: String| DeployError::Unreachable { operation: OPERATION, message };
        let url = match &self.endpoint {
            Some(url) => format!("{}/", url.trim_end_matches('/')),
            None => {
                let china = if self.region.starts_with("cn-") { ".cn" } else { "" };
                format!("https://monitoring.{}.amazonaws.com{china}/", self.region)
            }
        };
        let Some(credentials) = &self.credentials else {
            return Err(unreachable("there are no credentials".to_owned()));
        };
        let credentials = credentials.provide_credentials().await;
        let identity = credentials.map_err(|error| unreachable(format!("credentials: {error}")))?;
        let identity = identity.into();
        let at = UNIX_EPOCH + Duration::from_millis(u64::try_from(now.0).unwrap_or(0));
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("monitoring")
            .time(at)
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| unreachable(error.to_string()))?
            .into();
        let kind = ("content-type", "application/x-www-form-urlencoded");
        let signable = SignableRequest::new(
            "POST",
            &url,
            [kind].into_iter(),
            SignableBody::Bytes(body.as_bytes()),
        );
        let signable = signable.map_err(|error| unreachable(error.to_string()))?;
        let signed = sign(signable, &parameters).map_err(|error| unreachable(error.to_string()))?;
        let (instructions, _) = signed.into_parts();
        let mut request = HttpRequest::new(SdkBody::from(body));
        request.set_method("POST").map_err(|error| unreachable(error.to_string()))?;
        request.set_uri(url.as_str()).map_err(|error| unreachable(error.to_string()))?;
        request.headers_mut().insert(kind.0, kind.1);
        let headers: Vec<(String, String)> = instructions
            .headers()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for (name, value) in headers {
            request.headers_mut().insert(name, value);
        }
        let connector = match url.starts_with("http://") {
            true => Connector::builder().build_http(),
            false => Connector::builder()
                .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
                .build(),
        };
        let response = connector.call(request).await;
        let response = response.map_err(|error| unreachable(error.to_string()))?;
        let status = response.status().as_u16();
        let bytes = ByteStream::new(response.into_body()).collect().await;
        let bytes = bytes.map_err(|error| unreachable(error.to_string()))?.into_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match status {
            200 => Ok(text),
            _ => Err(DeployError::Aws {
                operation: OPERATION,
                code: between(&text, "<Code>", "</Code>").map(str::to_owned),
                message: between(&text, "<Message>", "</Message>")
                    .map_or_else(|| format!("HTTP status {status}"), str::to_owned),
            }),
        }
    }
}

/// The value of the newest minute. CloudWatch lists minutes in any order.
fn newest(answer: &str) -> Option<i64> {
    let points = answer.split("<member>").skip(1).filter_map(|member| {
        let at = between(member, "<Timestamp>", "</Timestamp>")?;
        let value: f64 = between(member, "<Maximum>", "</Maximum>")?.trim().parse().ok()?;
        // A whole number of ms, written as 1234.0 or 1.234E3.
        let whole = (0.0..=9e15).contains(&value).then(|| format!("{value:.0}"))?;
        Some((at, whole.parse().ok()?))
    });
    points.max().map(|(_, value)| value)
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    text.split_once(from)?.1.split_once(to).map(|(found, _)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_minute_counts_whatever_the_order() {
        let point = |at: &str, value: &str| {
            format!(
                "<member><Timestamp>{at}</Timestamp><Maximum>{value}</Maximum>\
                 <Unit>Milliseconds</Unit></member>"
            )
        };
        let answer = [
            point("2026-01-01T10:03:00Z", "1500.0"),
            point("2026-01-01T10:05:00Z", "61000.0"),
            point("2026-01-01T10:04:00Z", "3.5E5"),
        ];
        assert_eq!(newest(&answer.concat()), Some(61_000));
        assert_eq!(newest("<Datapoints/>"), None);
        assert_eq!(newest(&point("2026-01-01T10:03:00Z", "NaN")), None);
    }
}
