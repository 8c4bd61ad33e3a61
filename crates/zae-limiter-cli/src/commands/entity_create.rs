//! `entity create`.

use std::collections::BTreeMap;

use zae_limiter::wire::EntityForm;
use zae_limiter::{Entity, NewEntity};

use crate::args::{EntityCreateArgs, Pair};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: EntityCreateArgs) -> anyhow::Result<Exit> {
    let metadata = metadata(args.metadata)?;
    let name = args.display_name.unwrap_or_else(|| args.id.to_string());
    Entity::check_text(&name, &metadata).map_err(|error| Failure::usage(error.to_string()))?;
    let limiter = context.open().await?;
    let entity =
        NewEntity { id: args.id, name, parent: args.parent, cascade: args.cascade, metadata };
    let created = limiter.create_entity(entity).await?;
    for warning in &created.warnings {
        context.printer.warning(&warning.to_string());
    }
    context.printer.answer(&EntityForm::from(&created.entity), &view::entity(&created.entity))?;
    Ok(Exit::Ok)
}

/// The pairs as a map, each key once.
pub(super) fn metadata(pairs: Vec<Pair>) -> Result<BTreeMap<String, String>, Failure> {
    let mut metadata = BTreeMap::new();
    for Pair { key, value } in pairs {
        if metadata.insert(key.clone(), value).is_some() {
            return Err(Failure::usage(format!(
                "--metadata gives {key} twice; give each key once"
            )));
        }
    }
    Ok(metadata)
}
