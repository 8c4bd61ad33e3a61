//! `entity delete`.

use serde::Serialize;
use zae_limiter::{ErrorKind, StoreErrorKind};

use crate::args::entity::EntityIdArgs;
use crate::args::shared::Confirmed;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::Text;

#[derive(Serialize)]
struct Form {
    entity_id: String,
    deleted: bool,
    buckets: u64,
    configs: u64,
}

pub(crate) async fn run(
    context: &Context<'_>,
    args: Confirmed<EntityIdArgs>,
) -> anyhow::Result<Exit> {
    let id = args.what.id;
    let what = format!("entity {id} with its buckets and limits");
    confirm(context, &Question { deed: "deletes", what: &what, name: id.as_str() }, args.confirm)?;
    let limiter = context.open().await?;
    let deleted = match limiter.delete_entity(id.clone()).await {
        Err(error) if error.kind() == ErrorKind::Store(StoreErrorKind::NotFound) => {
            return Err(Failure::not_found(format!("there is no entity {id}")).into());
        }
        deleted => deleted?,
    };
    let form = Form {
        entity_id: id.to_string(),
        deleted: true,
        buckets: deleted.buckets,
        configs: deleted.configs,
    };
    let line = format!(
        "deleted {what} (buckets: {}, levels with limits or flags: {})",
        form.buckets, form.configs
    );
    context.printer.answer(&form, &Text::of(line))
}
