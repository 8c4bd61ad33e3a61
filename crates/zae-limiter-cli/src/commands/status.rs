//! `status`: of a file, or of a stack.

use crate::context::Context;
#[cfg(not(feature = "sqlite"))]
use crate::error::Failure;
use crate::exit::Exit;
#[cfg(feature = "dynamodb")]
use crate::settings::StorePlace;

pub(crate) async fn run(context: &Context<'_>) -> anyhow::Result<Exit> {
    match &context.settings.store {
        #[cfg(feature = "dynamodb")]
        StorePlace::Dynamo(place) => super::status_stack::run(context, place).await,
        #[cfg(feature = "sqlite")]
        _ => super::status_file::run(context).await,
        #[cfg(not(feature = "sqlite"))]
        place => Err(Failure::usage(format!("{place} has no status that this build knows")).into()),
    }
}
