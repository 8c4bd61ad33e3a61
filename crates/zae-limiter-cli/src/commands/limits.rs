//! What the commands for limits at the four levels share.

use serde::Serialize;
use zae_limiter::core::check_limits;
use zae_limiter::wire::LevelForm;
use zae_limiter::{EntityId, Level, Limit, LimitsChange, OnUnavailable, RateLimiter, ResourceName};

use crate::args::ConfirmArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::{Cell, Text};
use crate::view;

/// What is stored, with where: the words are those of `explain`.
#[derive(Serialize)]
struct Form {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(flatten)]
    config: LevelForm,
}

/// Stores limits at a level and answers with what is stored then.
pub(super) async fn set(
    context: &Context<'_>,
    level: Level,
    limits: Vec<Limit>,
    on_unavailable: Option<OnUnavailable>,
) -> anyhow::Result<Exit> {
    check(&limits)?;
    let limiter = context.open().await?;
    limiter.change_limits(&level, LimitsChange { limits, on_unavailable, expected_version: None }).await?;
    answer(context, &level, &limiter).await
}

/// Answers with what is stored at a level.
pub(super) async fn get(context: &Context<'_>, level: Level) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    answer(context, &level, &limiter).await
}

#[derive(Serialize)]
struct DeletedForm {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    deleted: bool,
}

/// Deletes the limits of a level, once whoever is asked typed `name`.
pub(super) async fn delete(context: &Context<'_>, level: &Level, name: &str, args: ConfirmArgs) -> anyhow::Result<Exit> {
    let what = format!("the limits stored for {level}");
    confirm(context, &Question { deed: "deletes", what: &what, name }, args)?;
    let limiter = context.open().await?;
    let deleted = limiter.delete_limits(level).await?;
    let form = DeletedForm {
        level: level.source().as_str(),
        entity_id: level.entity_id().map(ToString::to_string),
        resource: level.resource_name().map(ToString::to_string),
        deleted,
    };
    let line = if deleted { format!("deleted {what}") } else { format!("nothing to delete: no limits are stored for {level}") };
    context.printer.answer(&form, &Text::new().line(Cell::plain(line)))?;
    Ok(Exit::Ok)
}

/// What each limit on its own can not tell: that a name is given twice.
pub(super) fn check(limits: &[Limit]) -> Result<(), Failure> {
    check_limits(limits).map_err(|error| Failure::usage(format!("invalid values for --limit: {error}")))
}

/// The level of an entity's limits: for one resource, or for all.
pub(super) fn of_entity(entity: EntityId, resource: Option<ResourceName>) -> Level {
    match resource {
        Some(resource) => Level::EntityResource(entity, resource),
        None => Level::Entity(entity),
    }
}

async fn answer(context: &Context<'_>, level: &Level, limiter: &RateLimiter) -> anyhow::Result<Exit> {
    let Some(config) = limiter.level(level).await? else { return Err(nothing_at(level).into()) };
    let form = Form {
        level: level.source().as_str(),
        entity_id: level.entity_id().map(ToString::to_string),
        resource: level.resource_name().map(ToString::to_string),
        config: LevelForm::from(&config),
    };
    context.printer.answer(&form, &view::level(level, &config))?;
    Ok(Exit::Ok)
}

fn nothing_at(level: &Level) -> Failure {
    let command = match level {
        Level::System => "system set-defaults".to_owned(),
        Level::Resource(resource) => format!("resource set-defaults {resource}"),
        Level::Entity(entity) => format!("entity set-limits {entity}"),
        Level::EntityResource(entity, resource) => format!("entity set-limits {entity} -r {resource}"),
    };
    Failure::not_found(format!("nothing is stored at level: {level}")).hint(format!("store limits with `zae-limiter {command} -l rpm:100`"))
}
