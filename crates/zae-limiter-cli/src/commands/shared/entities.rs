//! What the commands for entities share, and those that name one.

use std::collections::BTreeMap;

use serde::Serialize;
use zae_limiter::wire::{EntityForm, FlagForm};
use zae_limiter::{Entity, EntityId, Flag, Page, RateLimiter};

use super::flags;
use super::listing;
use crate::args::level::LevelArgs;
use crate::args::value::Pair;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::view;

/// The failure for an entity that does not exist.
pub(crate) fn missing(context: &Context<'_>, id: &EntityId) -> Failure {
    let create = context.command(&["entity", "create", id.as_str()]);
    Failure::not_found(format!("there is no entity {id}")).hint(format!("create it with {create}"))
}

/// Refuses an entity that was not created.
pub(crate) async fn require(
    context: &Context<'_>,
    limiter: &RateLimiter,
    id: &EntityId,
) -> anyhow::Result<()> {
    match limiter.entity(id.clone()).await? {
        Some(_) => Ok(()),
        None => Err(missing(context, id).into()),
    }
}

/// Whether the entity of a level was created: it need not be, but a name nobody created is often a
/// typo.
pub(crate) async fn check(
    context: &Context<'_>,
    limiter: &RateLimiter,
    args: &LevelArgs,
) -> anyhow::Result<()> {
    let Some(id) = args.level.entity_id() else { return Ok(()) };
    if args.must_exist {
        return require(context, limiter, id).await;
    }
    if limiter.entity(id.clone()).await?.is_none() {
        context.printer.note(&format!(
            "{id} is not a created entity; it is remembered under this name all the same"
        ));
    }
    Ok(())
}

/// The pairs as a map, each key once.
pub(crate) fn metadata(pairs: Vec<Pair>) -> Result<BTreeMap<String, String>, Failure> {
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

/// An entity with its flag for every resource; null inherits.
#[derive(Serialize)]
struct FlaggedForm {
    #[serde(flatten)]
    entity: EntityForm,
    disabled: Option<FlagForm>,
}

impl From<&(Entity, Option<Flag>)> for FlaggedForm {
    fn from((entity, flag): &(Entity, Option<Flag>)) -> FlaggedForm {
        FlaggedForm { entity: EntityForm::from(entity), disabled: flag.map(FlagForm) }
    }
}

/// Answers with a page of entities and their flags.
pub(crate) async fn answer(
    context: &Context<'_>,
    limiter: &RateLimiter,
    page: Page<Entity>,
    nothing: &str,
) -> anyhow::Result<Exit> {
    let ids: Vec<EntityId> = page.items.iter().map(|entity| entity.id.clone()).collect();
    let flags = flags::of_entities(limiter, &ids).await?;
    let page = Page { items: page.items.into_iter().zip(flags).collect(), next: page.next };
    listing::answer(context, &page, FlaggedForm::from, view::entities(&page.items), nothing)
}
