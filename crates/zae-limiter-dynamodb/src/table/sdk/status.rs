//! A look at the table as a whole, for operators.

use aws_sdk_dynamodb::types::{BillingMode, TableDescription};
use zae_limiter_store::StoreError;

use super::connect::Builder;
use super::create::{describe, has_ttl};
use crate::records::attr;
use crate::records::item::text_of;
use crate::records::keys;
use crate::table::error::failed;
use crate::table::{Table as _, TableError};

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
    /// Whether the table has a stream.
    pub stream: bool,
    /// The indexes, each with its state.
    pub indexes: Vec<(String, String)>,
}

impl Builder {
    /// Looks at the table. Needs the actions `DescribeTable` and `BatchGetItem`; without
    /// `DescribeTimeToLive` it is not known whether items expire.
    ///
    /// Cost: three requests.
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
        Ok(StackStatus { schema_version, expires, ..described(table.name(), &description) })
    }
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
        stream: description.stream_specification().is_some_and(|stream| stream.stream_enabled()),
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
