//! `entity update`: reads, changes, writes back if nobody else did meanwhile.

use std::collections::BTreeMap;

use zae_limiter::wire::EntityForm;
use zae_limiter::{Entity, EntityUpdate, ErrorKind, StoreErrorKind};

use super::shared::entities::{metadata, missing};
use crate::args::entity::EntityUpdateArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: EntityUpdateArgs) -> anyhow::Result<Exit> {
    let added = metadata(args.metadata)?;
    if let Some(key) = args.remove_metadata.iter().find(|key| added.contains_key(*key)) {
        return Err(Failure::usage(format!(
            "--metadata and --remove-metadata both name {key}; choose one"
        ))
        .into());
    }
    let limiter = context.open().await?;
    let Some(entity) = limiter.entity(args.id.clone()).await? else {
        return Err(missing(context, &args.id).into());
    };
    let changed = changed(&entity.metadata, added, &args.remove_metadata);
    let name = args.display_name.as_deref().unwrap_or(&entity.name);
    Entity::check_text(name, changed.as_ref().unwrap_or(&entity.metadata))
        .map_err(|error| Failure::usage(error.to_string()))?;
    let update = EntityUpdate { name: args.display_name, metadata: changed };
    let version = args.version.unwrap_or(entity.version);
    let updated = match limiter.update_entity(args.id.clone(), version, update).await {
        Err(error) if error.kind() == ErrorKind::Store(StoreErrorKind::Conflict) => {
            return Err(conflict(
                context.command(&["entity", "show", args.id.as_str()]),
                &entity,
                version,
            )
            .into());
        }
        updated => updated?,
    };
    context.printer.answer(&EntityForm::from(&updated), &view::entity(&updated))
}

/// The metadata afterwards; `None` when it is not to be changed.
fn changed(
    before: &BTreeMap<String, String>,
    added: BTreeMap<String, String>,
    removed: &[String],
) -> Option<BTreeMap<String, String>> {
    if added.is_empty() && removed.is_empty() {
        return None;
    }
    let mut metadata = before.clone();
    metadata.retain(|key, _| !removed.contains(key));
    metadata.extend(added);
    Some(metadata)
}

fn conflict(show: String, entity: &Entity, expected: u64) -> Failure {
    let id = &entity.id;
    let message = if entity.version == expected {
        format!("somebody else changed entity {id} at the same moment; nothing was changed")
    } else {
        format!("entity {id} has version {}, not {expected}; nothing was changed", entity.version)
    };
    Failure::conflict(message).hint(format!("look at it with {show}, then decide again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_race_is_not_blamed_on_the_version() {
        let entity = Entity {
            id: "key-1".parse().unwrap(),
            name: "One".into(),
            parent: None,
            cascade: false,
            metadata: BTreeMap::new(),
            created_at: zae_limiter::TimeMs(0),
            version: 3,
        };
        assert!(conflict(String::new(), &entity, 2).to_string().contains("has version 3, not 2"));
        assert!(conflict(String::new(), &entity, 3).to_string().contains("at the same moment"));
    }

    #[test]
    fn metadata_is_changed_key_by_key() {
        let pairs = |text: &str| -> BTreeMap<String, String> {
            text.split_whitespace()
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (key.into(), value.into()))
                .collect()
        };
        let before = pairs("a=1 b=2");
        assert_eq!(changed(&before, pairs(""), &[]), None);
        assert_eq!(changed(&before, pairs("b=3 c=4"), &[]), Some(pairs("a=1 b=3 c=4")));
        assert_eq!(
            changed(&before, pairs("c=4"), &["a".into(), "x".into()]),
            Some(pairs("b=2 c=4"))
        );
        assert_eq!(changed(&before, pairs(""), &["a".into(), "b".into()]), Some(pairs("")));
    }
}
