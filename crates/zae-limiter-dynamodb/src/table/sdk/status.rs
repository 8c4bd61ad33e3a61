//! A look at the table as a whole, for operators.

use aws_sdk_dynamodb::types::{BillingMode, TableDescription};
use zae_limiter_core::TimeMs;
use zae_limiter_store::StoreError;

use super::SdkTable;
use super::connect::Builder;
use super::create::{StreamState, describe, has_ttl, stream_of};
use crate::constants::CHECKPOINT_PAGES_MAX;
use crate::records::attr;
use crate::records::checkpoint::{Checkpoint, LEASE_MS, checkpoints};
use crate::records::item::text_of;
use crate::records::keys;
use crate::table::error::failed;
use crate::table::{Query, Table as _, TableError};

/// The table of a stack as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackStatus {
    /// The name of the table.
    pub table: String,
    /// What the table says it is doing: `ACTIVE` when it serves requests.
    pub state: String,
    /// The version of the schema; `None` for a table that was never initialised.
    pub schema_version: Option<String>,
    /// Items, as DynamoDB counted them some hours ago.
    pub items: u64,
    /// Size in bytes, as DynamoDB measured it some hours ago.
    pub bytes: u64,
    /// True when requests are paid for one by one, false when throughput is provisioned.
    pub on_demand: bool,
    /// Whether items expire by their `ttl`; `None` when the caller lacks the permission to ask.
    pub expires: Option<bool>,
    /// The stream of the table.
    pub stream: StreamState,
    /// The address of the stream.
    pub stream_arn: Option<String>,
    /// What workers that read the stream have left in the table; `None` when there was none for
    /// three days. An aggregator that runs as a Lambda leaves nothing here.
    pub worker: Option<WorkerStatus>,
    /// The indexes, each with its state.
    pub indexes: Vec<(String, String)>,
}

/// What the workers that read the stream have left in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// When one of them last gave a sign of life.
    pub seen_at: TimeMs,
    /// How far the slowest of them was behind the stream then, in ms; 0 when everything was read.
    pub behind_ms: i64,
    /// How often records were gone before they were read: their use is not in the history.
    pub gaps: i64,
    /// How many shards of the stream are being read.
    pub stream_shards: usize,
}

impl WorkerStatus {
    /// True when no worker gave a sign of life for two leases, which it renews every five seconds:
    /// probably none runs.
    #[must_use]
    pub fn is_silent(&self, now: TimeMs) -> bool {
        now.since(self.seen_at) > 2 * LEASE_MS
    }

    fn of(found: &[Checkpoint]) -> Option<WorkerStatus> {
        let open = || found.iter().filter(|checkpoint| !checkpoint.is_done);
        Some(WorkerStatus {
            seen_at: found.iter().map(Checkpoint::seen_at).max()?,
            behind_ms: open().map(|checkpoint| checkpoint.late_ms).max().unwrap_or(0),
            gaps: found.iter().map(|checkpoint| checkpoint.gaps).sum(),
            stream_shards: open().count(),
        })
    }
}

impl Builder {
    /// Looks at the table. Needs the actions `DescribeTable` and `BatchGetItem`; without
    /// `DescribeTimeToLive` it is not known whether items expire.
    ///
    /// Cost: four requests.
    pub async fn status(&self) -> Result<StackStatus, StoreError> {
        const OPERATION: &str = "status";
        let table = self.table().await?;
        let description = describe(&table).await.map_err(|error| failed(OPERATION, error))?;
        let expires = match has_ttl(&table).await {
            Ok(expires) => Some(expires),
            Err(TableError::Denied(_)) => None,
            Err(error) => return Err(failed(OPERATION, error)),
        };
        let version = table
            .batch_get(&[keys::version()], true)
            .await
            .map_err(|error| failed(OPERATION, error))?;
        let schema_version = version
            .items
            .first()
            .and_then(|item| text_of(item, attr::SCHEMA_VERSION))
            .map(str::to_owned);
        let worker =
            WorkerStatus::of(&read(&table).await.map_err(|error| failed(OPERATION, error))?);
        let described = described(table.name(), &description);
        Ok(StackStatus { schema_version, expires, worker, ..described })
    }
}

/// The checkpoints of the table. One that cannot be asked for them has none to show.
async fn read(table: &SdkTable) -> Result<Vec<Checkpoint>, TableError> {
    let (mut found, mut query) = (Vec::new(), checkpoints());
    for _ in 0..CHECKPOINT_PAGES_MAX {
        let page = match table.query(&query).await {
            Err(TableError::Denied(_)) => return Ok(found),
            page => page?,
        };
        found.extend(page.items.iter().filter_map(Checkpoint::of));
        match page.last {
            Some(last) => query = Query { start: Some(last), ..query },
            None => break,
        }
    }
    Ok(found)
}

fn described(name: &str, description: &TableDescription) -> StackStatus {
    let state = |state: Option<&str>| state.unwrap_or("unknown").to_owned();
    let billing = description.billing_mode_summary().and_then(|summary| summary.billing_mode());
    let count = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
    let indexes = description.global_secondary_indexes().iter();
    StackStatus {
        table: name.to_owned(),
        state: state(description.table_status().map(|status| status.as_str())),
        schema_version: None,
        items: count(description.item_count()),
        bytes: count(description.table_size_bytes()),
        on_demand: billing == Some(&BillingMode::PayPerRequest),
        expires: None,
        stream: stream_of(description),
        stream_arn: description.latest_stream_arn().map(str::to_owned),
        worker: None,
        indexes: indexes
            .map(|index| {
                (
                    state(index.index_name()),
                    state(index.index_status().map(|status| status.as_str())),
                )
            })
            .collect(),
    }
}
