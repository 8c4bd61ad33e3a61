//! The shell for AWS Lambda: events in, `batchItemFailures` out.
//!
//! Lambda does not say which stream shard a batch is of; all records of a batch are of one. The
//! label of the stream stands for it in names of the archive.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::event::dynamodb::EventRecord;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_runtime::{LambdaEvent, service_fn};
use serde_dynamo::AttributeValue as Delivered;
use serde_json::{Value, json};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_store::{Clock, SystemClock};

use crate::aggregator::Aggregator;
use crate::archive::Archive;
use crate::fold::Poison;
use crate::record::{Item, Kind, Record};
use crate::report::Report;
use crate::settings::Settings;

/// Why the function cannot start, or has ended.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LambdaError(String);

impl LambdaError {
    /// By its text.
    pub fn new(text: impl Into<String>) -> LambdaError {
        LambdaError(text.into())
    }
}

/// How long Lambda may take to hear why a function cannot start. It is on the same machine.
const INIT_ERROR_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the function until Lambda ends it. Settings come from the environment: see
/// [`Settings::from_variables`]; the region from `AWS_REGION`, which Lambda sets.
/// `AWS_ENDPOINT_URL_DYNAMODB` and `AWS_ENDPOINT_URL_S3` name other endpoints, for tests. A
/// function that cannot start tells Lambda why, and returns.
#[expect(clippy::disallowed_methods, reason = "Lambda tells a function its settings by variables")]
pub async fn run_lambda() -> Result<(), LambdaError> {
    let variable = |name: &str| std::env::var(name).ok();
    match prepare(variable).await {
        Ok((aggregator, clock)) => serve(&aggregator, &clock).await,
        Err(error) => Err(cannot_start("Aggregator", error)),
    }
}

/// Tells Lambda that a function cannot start, and why; the error again.
#[expect(clippy::disallowed_methods, reason = "Lambda says by a variable where it listens")]
pub fn cannot_start(function: &str, error: LambdaError) -> LambdaError {
    if let Ok(api) = std::env::var("AWS_LAMBDA_RUNTIME_API") {
        // Who started the process hears of it from its end, too.
        let _ = tell_init_error(&api, function, &error);
    }
    error
}

/// An event of a function, and how long the function may still run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// What Lambda was given.
    pub payload: Value,
    /// `None` where Lambda does not say.
    pub time_left: Option<Duration>,
}

/// Serves events one after the other until Lambda ends the process. An error of the handler is
/// the error of that invocation.
pub async fn serve_events<F>(
    clock: &dyn Clock,
    handle: impl Fn(Event) -> F,
) -> Result<(), LambdaError>
where
    F: Future<Output = Result<Value, LambdaError>>,
{
    let handle = &handle;
    let serve = |event: LambdaEvent<Value>| async move {
        let time_left = time_left(&event, clock);
        let answer = handle(Event { payload: event.payload, time_left }).await;
        answer.map_err(|error| error.0)
    };
    let ended = lambda_runtime::run(service_fn(serve)).await;
    ended.map_err(|error| LambdaError(error.to_string()))
}

/// Everything that is needed before the first event.
async fn prepare(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(Aggregator, Arc<SystemClock>), LambdaError> {
    let wrong = |error: &dyn std::error::Error| LambdaError(error.to_string());
    let settings = Settings::from_variables(&variable).map_err(|error| wrong(&error))?;
    let given = |name: &str| variable(name).filter(|value| !value.is_empty());
    let region = given("AWS_REGION")
        .ok_or_else(|| LambdaError("AWS_REGION: is missing; Lambda sets it".to_owned()))?;
    let mut stack = DynamoStore::builder(settings.table.as_str(), region);
    if let Some(endpoint) = given("AWS_ENDPOINT_URL_DYNAMODB") {
        stack = stack.endpoint_url(endpoint);
    }
    let table = stack.table().await.map_err(|error| wrong(&error))?;
    let clock = Arc::new(SystemClock::new());
    let mut aggregator =
        Aggregator::new(Arc::new(table), settings.clone()).clock(Arc::<SystemClock>::clone(&clock));
    if let Some(bucket) = &settings.archive {
        let config = stack.client_config().await.map_err(|error| wrong(&error))?;
        aggregator =
            aggregator.archive(archive(config, bucket, given("AWS_ENDPOINT_URL_S3").as_deref())?);
    }
    Ok((aggregator, clock))
}

async fn serve(aggregator: &Aggregator, clock: &Arc<SystemClock>) -> Result<(), LambdaError> {
    serve_events(&**clock, |event| async move {
        let (report, answer) = handle(aggregator, &event.payload, event.time_left).await;
        let mut out = std::io::stdout().lock();
        for line in report.lines(&aggregator.settings().table, clock.now()) {
            // A function whose log is gone still counts.
            let _ = writeln!(out, "{line}");
        }
        Ok(answer)
    })
    .await
}

/// Tells Lambda why the function cannot start: `lambda_runtime` tells it nothing before the first
/// event. The answer is awaited, because Lambda ends a process that has told this.
fn tell_init_error(api: &str, function: &str, error: &LambdaError) -> io::Result<()> {
    let address = api.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let mut connection = TcpStream::connect_timeout(&address, INIT_ERROR_TIMEOUT)?;
    connection.set_read_timeout(Some(INIT_ERROR_TIMEOUT))?;
    connection.set_write_timeout(Some(INIT_ERROR_TIMEOUT))?;
    let kind = format!("{function}.CannotStart");
    let body = json!({ "errorMessage": error.0, "errorType": kind, "stackTrace": [] }).to_string();
    let length = body.len();
    let request = format!(
        "POST /2018-06-01/runtime/init/error HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n\
         Lambda-Runtime-Function-Error-Type: {kind}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    connection.write_all(request.as_bytes())?;
    connection.read_to_end(&mut Vec::new()).map(drop)
}

#[cfg(feature = "s3")]
fn archive(
    config: zae_limiter_dynamodb::stream::SdkConfig,
    bucket: &str,
    endpoint_url: Option<&str>,
) -> Result<Arc<dyn Archive>, LambdaError> {
    Ok(Arc::new(crate::s3::S3Archive::new(config, bucket, endpoint_url)))
}

#[cfg(not(feature = "s3"))]
fn archive(
    _: zae_limiter_dynamodb::stream::SdkConfig,
    _: &str,
    _: Option<&str>,
) -> Result<Arc<dyn Archive>, LambdaError> {
    let problem = "ENABLE_ARCHIVAL: this build has no archive (feature `s3`)";
    Err(LambdaError(problem.to_owned()))
}

/// How long the function may still run.
fn time_left(event: &LambdaEvent<Value>, clock: &dyn Clock) -> Option<Duration> {
    let deadline = i64::try_from(event.context.deadline).ok()?;
    u64::try_from(deadline.saturating_sub(clock.now().0)).ok().map(Duration::from_millis)
}

/// Processes one event. Returns what it came to, and the answer for Lambda: everything from the
/// number in `batchItemFailures` on is delivered again.
pub async fn handle(
    aggregator: &Aggregator,
    event: &Value,
    time: Option<Duration>,
) -> (Report, Value) {
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    let delivered = event.get("Records").and_then(Value::as_array);
    for raw in delivered.map(Vec::as_slice).unwrap_or_default() {
        match record_of(raw) {
            Ok(record) => records.push(record),
            Err(why) => unreadable.push(poison_of(raw, why)),
        }
    }
    let report = aggregator.process_within(&records, unreadable, time).await;
    let failures: Vec<Value> =
        report.failures.values().map(|sequence| json!({ "itemIdentifier": sequence })).collect();
    let answer = json!({ "batchItemFailures": failures, "statusCode": 200, "body": report.body() });
    (report, answer)
}

/// A record as Lambda delivers it, or why it is none.
pub fn record_of(raw: &Value) -> Result<Record, String> {
    let read: EventRecord =
        serde_json::from_value(raw.clone()).map_err(|error| error.to_string())?;
    let change = read.change;
    let kind =
        Kind::of(&read.event_name).ok_or_else(|| format!("eventName is {:?}", read.event_name))?;
    let at_s = change.approximate_creation_date_time.timestamp();
    if at_s == 0 {
        return Err("there is no ApproximateCreationDateTime".to_owned());
    }
    let image = |item: serde_dynamo::Item| {
        let item: Item =
            item.into_inner().into_iter().map(|(name, value)| (name, stored(value))).collect();
        (!item.is_empty()).then_some(item)
    };
    let key = |name: &str| match change.keys.get(name) {
        Some(Delivered::S(text)) => Ok(text.clone()),
        _ => Err(format!("there is no key {name}")),
    };
    let key = (key("PK")?, key("SK")?);
    let principal = read.user_identity.map(|identity| identity.principal_id);
    Ok(Record {
        stream_shard: label(raw).to_owned(),
        sequence: change.sequence_number.ok_or("there is no SequenceNumber")?,
        kind,
        at_s,
        key,
        old: image(change.old_image),
        new: image(change.new_image),
        is_expired: principal.as_deref() == Some(crate::EXPIRER),
    })
}

/// A record that cannot be read.
#[must_use]
pub fn poison_of(raw: &Value, why: String) -> Poison {
    let text =
        |pointer: &str| raw.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = text("/dynamodb/SequenceNumber");
    Poison {
        stream_shard: label(raw).to_owned(),
        sequence: if number.is_empty() { text("/eventID") } else { number },
        key: format!("{} {}", text("/dynamodb/Keys/PK/S"), text("/dynamodb/Keys/SK/S")),
        why,
        body: raw.clone(),
    }
}

/// The label of the stream: what its ARN ends with.
fn label(raw: &Value) -> &str {
    let arn = raw.get("eventSourceARN").and_then(Value::as_str).unwrap_or_default();
    arn.rsplit('/').next().filter(|label| !label.is_empty()).unwrap_or("stream")
}

fn stored(value: Delivered) -> AttributeValue {
    match value {
        Delivered::S(text) => AttributeValue::S(text),
        Delivered::N(digits) => AttributeValue::N(digits),
        Delivered::Bool(flag) => AttributeValue::Bool(flag),
        Delivered::Null(flag) => AttributeValue::Null(flag),
        Delivered::B(bytes) => AttributeValue::B(Blob::new(bytes)),
        Delivered::L(values) => AttributeValue::L(values.into_iter().map(stored).collect()),
        Delivered::M(values) => AttributeValue::M(
            values.into_iter().map(|(name, value)| (name, stored(value))).collect(),
        ),
        Delivered::Ss(texts) => AttributeValue::Ss(texts),
        Delivered::Ns(numbers) => AttributeValue::Ns(numbers),
        Delivered::Bs(bytes) => AttributeValue::Bs(bytes.into_iter().map(Blob::new).collect()),
    }
}
