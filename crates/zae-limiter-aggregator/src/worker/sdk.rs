//! The stream over the AWS SDK.

use std::pin::pin;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue as Value;
use aws_sdk_dynamodbstreams::Client;
use aws_sdk_dynamodbstreams::config::retry::RetryConfig;
use aws_sdk_dynamodbstreams::config::timeout::TimeoutConfig;
use aws_sdk_dynamodbstreams::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodbstreams::types::{
    AttributeValue, OperationType, Record as SdkRecord, ShardIteratorType,
};
use futures_util::future::{Either, select};
use serde_json::json;
use zae_limiter_dynamodb::sdk::{Builder, StreamState};
use zae_limiter_store::{BoxFuture, StoreError, StoreErrorKind};

use super::engine::LocalEngine;
use super::streams::{Batch, ShardPage, StreamError, StreamShard, Streams};
use crate::fold::Poison;
use crate::record::{Item, Kind, Record};

/// Records asked for at once: the most that the service gives.
const BATCH_MAX: i32 = 1_000;

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// How long one request may take. A batch has up to a megabyte.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// The service allows five reads a second and shard.
const PACE: Duration = Duration::from_millis(200);

/// The stream of a table of DynamoDB, or of an engine that speaks its language.
pub struct SdkStreams {
    client: Client,
    arn: String,
    table: String,
    /// Our own engine, which forgets what is counted.
    engine: Option<LocalEngine>,
}

impl SdkStreams {
    /// Reaches the stream of the table of a stack. `NotFound` when the table or its stream is
    /// missing, `Incompatible` when the stream does not show both images.
    ///
    /// Cost: four requests to the table; to a loopback address one more, which asks whether it is
    /// our own engine that answers.
    pub async fn connect(builder: &Builder) -> Result<SdkStreams, StoreError> {
        let status = builder.status().await?;
        let table = status.table;
        let not_found = |message: String| {
            Err(StoreError::new(StoreErrorKind::NotFound, "connect_stream", message))
        };
        let incompatible = |view: String| {
            let message = format!(
                "the stream of table {table:?} shows {view}, and usage is counted only from one \
                 with NEW_AND_OLD_IMAGES"
            );
            Err(StoreError::new(StoreErrorKind::Incompatible, "connect_stream", message))
        };
        let arn = match (status.stream, status.stream_arn) {
            (StreamState::Other(view), _) => return incompatible(view),
            (StreamState::On | StreamState::Added, Some(arn)) => arn,
            _ => return not_found(format!("table {table:?} has no stream")),
        };
        let config = builder.client_config().await?;
        let engine = match config.endpoint_url() {
            Some(url) => {
                let patience = builder.options().clock.sleep(CONNECT_MAX);
                match select(pin!(LocalEngine::at(url)), patience).await {
                    Either::Left((engine, _)) => engine,
                    Either::Right(_) => None,
                }
            }
            None => None,
        };
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_MAX)
            .operation_attempt_timeout(ATTEMPT_MAX)
            .build();
        let config = aws_sdk_dynamodbstreams::config::Builder::from(&config)
            .timeout_config(timeouts)
            .retry_config(RetryConfig::disabled());
        Ok(SdkStreams { client: Client::from_conf(config.build()), arn, table, engine })
    }

    /// True when what is counted is trimmed: on our own engine only.
    #[must_use]
    pub fn trims(&self) -> bool {
        self.engine.is_some()
    }
}

impl Streams for SdkStreams {
    fn shards<'a>(
        &'a self,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<ShardPage, StreamError>> {
        Box::pin(async move {
            let request = self.client.describe_stream().stream_arn(&self.arn);
            let request = request.set_exclusive_start_shard_id(after.map(str::to_owned));
            let described = request.send().await.map_err(classify)?.stream_description;
            let described = described.ok_or_else(|| silent("DescribeStream", "a stream"))?;
            let shard = |shard: aws_sdk_dynamodbstreams::types::Shard| {
                let range = shard.sequence_number_range;
                let first = range.and_then(|range| range.starting_sequence_number);
                Some(StreamShard { id: shard.shard_id?, parent: shard.parent_shard_id, first })
            };
            Ok(ShardPage {
                shards: described
                    .shards
                    .unwrap_or_default()
                    .into_iter()
                    .filter_map(shard)
                    .collect(),
                last: described.last_evaluated_shard_id,
            })
        })
    }

    fn iterator<'a>(
        &'a self,
        shard: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<String, StreamError>> {
        Box::pin(async move {
            let kind = match after {
                Some(_) => ShardIteratorType::AfterSequenceNumber,
                None => ShardIteratorType::TrimHorizon,
            };
            let request = self.client.get_shard_iterator().stream_arn(&self.arn).shard_id(shard);
            let request =
                request.shard_iterator_type(kind).set_sequence_number(after.map(str::to_owned));
            let found = request.send().await.map_err(classify)?.shard_iterator;
            found.ok_or_else(|| silent("GetShardIterator", "an iterator"))
        })
    }

    fn read<'a>(
        &'a self,
        shard: &'a str,
        iterator: &'a str,
    ) -> BoxFuture<'a, Result<Batch, StreamError>> {
        Box::pin(async move {
            let request = self.client.get_records().shard_iterator(iterator).limit(BATCH_MAX);
            let output = request.send().await.map_err(classify)?;
            let mut batch = Batch { next: output.next_shard_iterator, ..Batch::default() };
            for record in output.records.unwrap_or_default() {
                match record_of(shard, record) {
                    Ok(record) => batch.records.push(record),
                    Err(poison) => batch.poison.push(*poison),
                }
            }
            Ok(batch)
        })
    }

    fn pace(&self) -> Duration {
        if self.engine.is_some() { Duration::ZERO } else { PACE }
    }

    fn trim<'a>(
        &'a self,
        _shard: &'a str,
        below: &'a str,
    ) -> BoxFuture<'a, Result<u64, StreamError>> {
        Box::pin(async move {
            match &self.engine {
                Some(engine) => engine.trim(&self.table, below).await,
                None => Ok(0),
            }
        })
    }
}

fn silent(operation: &str, what: &str) -> StreamError {
    StreamError::Passing(format!("{operation} answered without {what}"))
}

/// What a failed request means. Whatever is not known may pass.
fn classify<E>(error: SdkError<E>) -> StreamError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code).map(str::to_owned);
    let text = || DisplayErrorContext(&error).to_string();
    match code.as_deref() {
        Some("TrimmedDataAccessException") => StreamError::Trimmed,
        Some("ExpiredIteratorException") => StreamError::Expired,
        Some("ResourceNotFoundException") => StreamError::Missing(text()),
        Some(
            "AccessDeniedException"
            | "ValidationException"
            | "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "ExpiredTokenException",
        ) => StreamError::Refused(text()),
        _ => StreamError::Passing(text()),
    }
}

/// A record as the aggregator reads it, or why it cannot be read.
fn record_of(shard: &str, record: SdkRecord) -> Result<Record, Box<Poison>> {
    let is_expired = record.user_identity.as_ref().is_some_and(|identity| {
        identity.principal_id.as_deref() == Some(crate::EXPIRER)
            && identity.r#type.as_deref() == Some("Service")
    });
    let kind = record.event_name.as_ref().map(OperationType::as_str);
    let body = record
        .dynamodb
        .unwrap_or_else(|| aws_sdk_dynamodbstreams::types::StreamRecord::builder().build());
    let sequence = body.sequence_number.unwrap_or_default();
    let keys = body.keys.map(item).transpose();
    let poison = |why: String, key: String| {
        Box::new(Poison {
            stream_shard: shard.to_owned(),
            sequence: sequence.clone(),
            key,
            why,
            body: json!({ "kind": kind }),
        })
    };
    let keys = keys.map_err(|why| poison(why, "?".to_owned()))?.unwrap_or_default();
    let text = |name: &str| match keys.get(name) {
        Some(Value::S(text)) => Some(text.clone()),
        _ => None,
    };
    let (Some(pk), Some(sk)) = (text("PK"), text("SK")) else {
        return Err(poison("the record has no key of ours".to_owned(), "?".to_owned()));
    };
    let named = || format!("{pk} {sk}");
    let image = |image: Option<_>| image.map(item).transpose().map_err(|why| poison(why, named()));
    let kind = kind.and_then(Kind::of);
    let kind = kind.ok_or_else(|| poison("it is not known what happened".to_owned(), named()))?;
    let at = body.approximate_creation_date_time;
    let at_s = at.ok_or_else(|| poison("the record has no time".to_owned(), named()))?.secs();
    let (old, new) = (image(body.old_image)?, image(body.new_image)?);
    Ok(Record {
        stream_shard: shard.to_owned(),
        sequence: sequence.clone(),
        kind,
        at_s,
        key: (pk.clone(), sk.clone()),
        old,
        new,
        is_expired,
    })
}

fn item(image: std::collections::HashMap<String, AttributeValue>) -> Result<Item, String> {
    image.into_iter().map(|(name, found)| Ok((name, value(found)?))).collect()
}

/// The same value in the words of the other client.
fn value(found: AttributeValue) -> Result<Value, String> {
    Ok(match found {
        AttributeValue::S(text) => Value::S(text),
        AttributeValue::N(digits) => Value::N(digits),
        AttributeValue::B(bytes) => Value::B(bytes),
        AttributeValue::Bool(flag) => Value::Bool(flag),
        AttributeValue::Null(null) => Value::Null(null),
        AttributeValue::Ss(texts) => Value::Ss(texts),
        AttributeValue::Ns(numbers) => Value::Ns(numbers),
        AttributeValue::Bs(blobs) => Value::Bs(blobs),
        AttributeValue::L(values) => {
            Value::L(values.into_iter().map(value).collect::<Result<_, _>>()?)
        }
        AttributeValue::M(values) => Value::M(item(values)?),
        other => return Err(format!("a value of a kind that is not known: {other:?}")),
    })
}

impl std::fmt::Debug for SdkStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SdkStreams").field("arn", &self.arn).finish_non_exhaustive()
    }
}
