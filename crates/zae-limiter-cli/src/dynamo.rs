//! The way to a DynamoDB table: the only file of the command line that knows the backend.

use std::time::Duration;

use zae_limiter::dynamodb::DynamoStore;
use zae_limiter::dynamodb::sdk::Builder;
use zae_limiter::{Error, StoreError, StoreErrorKind};

use crate::args::DynamoPlace;
use crate::error::Failure;

/// Where a stack is when nobody says it.
const REGION: &str = "us-east-1";

/// How long connecting, and one request, may take: three attempts fit into the deadline of an acquire. A service gives up
/// sooner; a person at a terminal, perhaps far from the region, would rather wait.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the address of an engine on this machine begins with.
const LOCAL: [&str; 2] = ["http://127.0.0.1:", "http://localhost:"];

/// A handle on the table of a stack, bound to no namespace yet.
pub(crate) async fn registry(place: &DynamoPlace) -> anyhow::Result<DynamoStore> {
    Ok(builder(place).connect_registry().await.map_err(|error| told(place, &error))?)
}

/// Makes the table of a stack with its version record and its first namespace, where they are missing.
pub(crate) async fn create_stack(place: &DynamoPlace) -> anyhow::Result<()> {
    builder(place).create().await.map_err(Error::from)?;
    Ok(())
}

fn builder(place: &DynamoPlace) -> Builder {
    let builder = DynamoStore::builder(&place.stack, place.region.as_deref().unwrap_or(REGION)).timeouts(PATIENCE, PATIENCE);
    match &place.endpoint_url {
        Some(url) => builder.endpoint_url(url),
        None => builder,
    }
}

/// What stands in the way of reaching a stack, with what to try: a place that can not be was typed wrong, one on this machine
/// may not have been started.
fn told(place: &DynamoPlace, error: &StoreError) -> Failure {
    let is_local = place.endpoint_url.as_deref().is_some_and(|url| LOCAL.iter().any(|host| url.starts_with(host)));
    match error.kind() {
        StoreErrorKind::Invalid => Failure::usage(error.message()),
        StoreErrorKind::Unavailable | StoreErrorKind::NotFound if is_local => {
            let hint = format!("`zae-limiter local up --detach --name {}` starts the local engine with this stack", place.stack);
            Failure::store(error).hint(hint)
        }
        StoreErrorKind::Unavailable => Failure::store(error).hint("check the network, --region and --endpoint-url"),
        _ => Failure::store(error),
    }
}
