//! The way to a DynamoDB table: the only file of the command line that knows the backend.

use zae_limiter::Error;
use zae_limiter::dynamodb::DynamoStore;
use zae_limiter::dynamodb::sdk::Builder;

use crate::args::DynamoPlace;

/// Where a stack is when nobody says it.
const REGION: &str = "us-east-1";

/// A handle on the table of a stack, bound to no namespace yet.
pub(crate) async fn registry(place: &DynamoPlace) -> anyhow::Result<DynamoStore> {
    Ok(builder(place).connect_registry().await.map_err(Error::from)?)
}

/// Makes the table of a stack with its version record and its first namespace, where they are missing.
pub(crate) async fn create_stack(place: &DynamoPlace) -> anyhow::Result<()> {
    builder(place).create().await.map_err(Error::from)?;
    Ok(())
}

fn builder(place: &DynamoPlace) -> Builder {
    let builder = DynamoStore::builder(&place.stack, place.region.as_deref().unwrap_or(REGION));
    match &place.endpoint_url {
        Some(url) => builder.endpoint_url(url),
        None => builder,
    }
}
