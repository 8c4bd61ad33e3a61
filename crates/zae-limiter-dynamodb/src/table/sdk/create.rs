//! Making the table, for engines without CloudFormation.

use std::time::Duration;

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType, StreamSpecification, StreamViewType, TableDescription,
    TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
};
use zae_limiter_store::{Clock, StoreError, StoreErrorKind};

use super::classify::classify;
use super::{SdkTable, index_name, key_names};
use crate::table::error::failed;
use crate::table::{Index, TableError};

/// The attribute DynamoDB forgets items by.
const TTL_ATTRIBUTE: &str = "ttl";

/// Times the table is asked whether it is ready.
const READY_POLLS_MAX: u32 = 120;

/// First pause between two such questions; doubles.
const READY_PAUSE_FIRST: Duration = Duration::from_millis(100);

/// Longest pause between two such questions.
const READY_PAUSE_MAX: Duration = Duration::from_millis(1_000);

const INDEXES: [Index; 4] = [Index::Gsi1, Index::Gsi2, Index::Gsi3, Index::Gsi4];

/// Which attributes GSI2 keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gsi2Projection {
    /// Only keys: a take costs one write unit, and buckets found by resource are read by key.
    #[default]
    KeysOnly,
    /// Everything, as the Python package does: every take also rewrites the index.
    All,
}

/// Whether the table has a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// No stream is made: usage is not counted. One that is there stays.
    Off,
    /// Old and new images, for the aggregator. A table that is there without a stream gets one.
    #[default]
    On,
}

/// The stream of a table, as [`create_table`] leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamState {
    /// The table has no stream.
    Off,
    /// The stream has old and new images, as the aggregator needs them.
    On,
    /// The same; the table was there without a stream and was given it by this call. What was
    /// written before is not in it.
    Added,
    /// The stream shows something else, named by its view type, and stays: another program reads
    /// it. The aggregator cannot count by it.
    Other(String),
}

/// What [`create_table`] makes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TableOptions {
    /// Which attributes GSI2 keeps.
    pub gsi2: Gsi2Projection,
    /// Whether the table has a stream.
    pub stream: Stream,
}

impl TableOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> TableOptions {
        TableOptions::default()
    }

    /// Which attributes GSI2 keeps.
    #[must_use]
    pub fn gsi2(mut self, projection: Gsi2Projection) -> TableOptions {
        self.gsi2 = projection;
        self
    }

    /// Whether the table has a stream.
    #[must_use]
    pub fn stream(mut self, stream: Stream) -> TableOptions {
        self.stream = stream;
        self
    }
}

/// Makes the table with its indexes, pay per request, expiry by `ttl` enabled, and waits until
/// it is ready. No local indexes: they would tie all items of a partition to one machine. A table
/// that is there already stays as it is, apart from `ttl` and a stream that it lacks;
/// `Incompatible` when it has other keys or lacks an index. Returns what stream the table has.
///
/// Cost: three or four requests, one more where a stream is added, and more while the table is not
/// ready.
pub async fn create_table(
    table: &SdkTable,
    options: &TableOptions,
    clock: &dyn Clock,
) -> Result<StreamState, StoreError> {
    let operation = "create_table";
    match request(table, options)
        .map_err(|error| failed(operation, TableError::Rejected(error.to_string())))?
        .send()
        .await
        .map_err(classify)
    {
        Ok(_) => {}
        // The table is there, or another process is making it.
        Err(TableError::NotApplied(why)) if why.starts_with("ResourceInUseException") => {}
        Err(error) => return Err(failed(operation, error)),
    }
    let ready = |described| match described {
        // A table that is being changed serves requests.
        Ok(TableDescription {
            table_status: Some(TableStatus::Active | TableStatus::Updating),
            ..
        }) => described.map(Some),
        // Right after its creation not every machine knows the table yet.
        Err(TableError::NoTable(_)) => Ok(None),
        other => other.map(|_| None),
    };
    let description = poll(table, clock, (operation, "not ready"), ready).await?;
    check_schema(table, &description)?;
    enable_ttl(table).await.map_err(|error| failed(operation, error))?;
    match (stream_of(&description), options.stream) {
        (StreamState::Off, Stream::On) => add_stream(table, clock).await,
        (found, _) => Ok(found),
    }
}

/// The stream that a table has.
pub(super) fn stream_of(description: &TableDescription) -> StreamState {
    let specification = description.stream_specification();
    match specification.filter(|stream| stream.stream_enabled()).map(|it| it.stream_view_type()) {
        None => StreamState::Off,
        Some(Some(StreamViewType::NewAndOldImages)) => StreamState::On,
        Some(other) => {
            StreamState::Other(other.map_or("unknown", StreamViewType::as_str).to_owned())
        }
    }
}

/// Gives a stream to a table that has none, and waits until the table says so.
async fn add_stream(table: &SdkTable, clock: &dyn Clock) -> Result<StreamState, StoreError> {
    let operation = "add_stream";
    let specification = stream_specification()
        .map_err(|error| failed(operation, TableError::Rejected(error.to_string())))?;
    let result = table
        .client()
        .update_table()
        .table_name(table.name())
        .stream_specification(specification)
        .send()
        .await
        .map_err(classify);
    let has_one = |described: Result<TableDescription, TableError>| {
        described.map(|found| match stream_of(&found) {
            StreamState::Off => None,
            StreamState::On => Some(StreamState::Added),
            other => Some(other),
        })
    };
    match result {
        Ok(_) | Err(TableError::Unknown(_)) => {}
        // Another process may have added the stream meanwhile, which DynamoDB answers with an
        // error.
        Err(error) => {
            return match has_one(describe(table).await) {
                Ok(Some(found)) => Ok(found),
                _ => Err(failed(operation, error)),
            };
        }
    }
    poll(table, clock, (operation, "without its stream"), has_one).await
}

fn stream_specification() -> Result<StreamSpecification, BuildError> {
    StreamSpecification::builder()
        .stream_enabled(true)
        .stream_view_type(StreamViewType::NewAndOldImages)
        .build()
}

/// Deletes the table with everything in it, and waits until it is gone. False when there was none.
///
/// Cost: two requests, and more while it is not gone.
pub async fn delete_table(table: &SdkTable, clock: &dyn Clock) -> Result<bool, StoreError> {
    let operation = "delete_table";
    match table.client().delete_table().table_name(table.name()).send().await.map_err(classify) {
        Ok(_) => {}
        Err(TableError::NoTable(_)) => return Ok(false),
        Err(error) => return Err(failed(operation, error)),
    }
    let is_gone = |described| match described {
        Err(TableError::NoTable(_)) => Ok(Some(true)),
        other => other.map(|_| None),
    };
    poll(table, clock, (operation, "being deleted"), is_gone).await
}

/// Asks what the table is until `answer` says what comes of it.
async fn poll<T>(
    table: &SdkTable,
    clock: &dyn Clock,
    (operation, still): (&'static str, &str),
    answer: impl Fn(Result<TableDescription, TableError>) -> Result<Option<T>, TableError>,
) -> Result<T, StoreError> {
    for poll in 0..READY_POLLS_MAX {
        match answer(describe(table).await) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None)
            | Err(
                TableError::NotApplied(_) | TableError::Unreachable(_) | TableError::Unknown(_),
            ) => {}
            Err(error) => return Err(failed(operation, error)),
        }
        clock.sleep(READY_PAUSE_FIRST.saturating_mul(1 << poll.min(8)).min(READY_PAUSE_MAX)).await;
    }
    let message = format!("table {:?} is still {still}; look again later", table.name());
    Err(StoreError::new(StoreErrorKind::Busy, operation, message))
}

fn request(
    table: &SdkTable,
    options: &TableOptions,
) -> Result<aws_sdk_dynamodb::operation::create_table::builders::CreateTableFluentBuilder, BuildError>
{
    let mut request = table
        .client()
        .create_table()
        .table_name(table.name())
        .billing_mode(BillingMode::PayPerRequest)
        .set_key_schema(Some(key_schema(None)?))
        .set_attribute_definitions(Some(attributes(None)?));
    for index in INDEXES {
        for attribute in attributes(Some(index))? {
            request = request.attribute_definitions(attribute);
        }
        let projection = match (index, options.gsi2) {
            (Index::Gsi1, _) | (Index::Gsi2, Gsi2Projection::All) => ProjectionType::All,
            (Index::Gsi2, Gsi2Projection::KeysOnly) | (Index::Gsi3 | Index::Gsi4, _) => {
                ProjectionType::KeysOnly
            }
        };
        let index = GlobalSecondaryIndex::builder()
            .index_name(index_name(index))
            .set_key_schema(Some(key_schema(Some(index))?))
            .projection(Projection::builder().projection_type(projection).build());
        request = request.global_secondary_indexes(index.build()?);
    }
    if options.stream == Stream::On {
        request = request.stream_specification(stream_specification()?);
    }
    Ok(request)
}

fn key_schema(index: Option<Index>) -> Result<Vec<KeySchemaElement>, BuildError> {
    let (partition, sort) = key_names(index);
    [(partition, KeyType::Hash), (sort, KeyType::Range)]
        .into_iter()
        .map(|(name, kind)| KeySchemaElement::builder().attribute_name(name).key_type(kind).build())
        .collect()
}

fn attributes(index: Option<Index>) -> Result<Vec<AttributeDefinition>, BuildError> {
    let (partition, sort) = key_names(index);
    [partition, sort]
        .into_iter()
        .map(|name| {
            AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(ScalarAttributeType::S)
                .build()
        })
        .collect()
}

pub(super) async fn describe(table: &SdkTable) -> Result<TableDescription, TableError> {
    let output =
        table.client().describe_table().table_name(table.name()).send().await.map_err(classify)?;
    output
        .table
        .ok_or_else(|| TableError::Unknown("DescribeTable answered without a table".to_owned()))
}

fn check_schema(table: &SdkTable, description: &TableDescription) -> Result<(), StoreError> {
    let incompatible = |what: &str| {
        let message = format!(
            "table {:?} exists and is not one of ours: {what}; choose another stack name",
            table.name()
        );
        Err(StoreError::new(StoreErrorKind::Incompatible, "create_table", message))
    };
    if !has_keys(description.key_schema(), None) {
        return incompatible("its keys are not PK and SK");
    }
    for index in INDEXES {
        let found = description
            .global_secondary_indexes()
            .iter()
            .find(|found| found.index_name() == Some(index_name(index)));
        if !found.is_some_and(|found| has_keys(found.key_schema(), Some(index))) {
            return incompatible(&format!(
                "it lacks the index {}, or that has other keys",
                index_name(index)
            ));
        }
    }
    Ok(())
}

fn has_keys(schema: &[KeySchemaElement], index: Option<Index>) -> bool {
    let (partition, sort) = key_names(index);
    let has = |name: &str, kind: &KeyType| {
        schema.iter().any(|element| element.attribute_name() == name && element.key_type() == kind)
    };
    schema.len() == 2 && has(partition, &KeyType::Hash) && has(sort, &KeyType::Range)
}

async fn enable_ttl(table: &SdkTable) -> Result<(), TableError> {
    if has_ttl(table).await? {
        return Ok(());
    }
    let specification =
        TimeToLiveSpecification::builder().enabled(true).attribute_name(TTL_ATTRIBUTE).build();
    let specification = specification.map_err(|error| TableError::Rejected(error.to_string()))?;
    let result = table
        .client()
        .update_time_to_live()
        .table_name(table.name())
        .time_to_live_specification(specification)
        .send()
        .await;
    match result.map_err(classify) {
        Ok(_) => Ok(()),
        // Another process may have enabled it meanwhile, which DynamoDB answers with an error.
        Err(error) => match has_ttl(table).await {
            Ok(true) => Ok(()),
            _ => Err(error),
        },
    }
}

pub(super) async fn has_ttl(table: &SdkTable) -> Result<bool, TableError> {
    let output = table
        .client()
        .describe_time_to_live()
        .table_name(table.name())
        .send()
        .await
        .map_err(classify)?;
    let Some(description) = output.time_to_live_description else { return Ok(false) };
    let enabled = matches!(
        description.time_to_live_status,
        Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
    );
    Ok(enabled && description.attribute_name.as_deref() == Some(TTL_ATTRIBUTE))
}
