//! What the commands for limits at the four levels share.

use serde::Serialize;
use zae_limiter::domain::check_limits;
use zae_limiter::wire::LevelForm;
use zae_limiter::{
    EntityId, Error, ErrorKind, Level, Limit, LimitName, LimitsChange, OnUnavailable, PageRequest,
    RateLimiter, ResourceName, StoreErrorKind,
};

use crate::args::{ConfirmArgs, LimitsArgs};
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::settings::StorePlace;
use crate::table::{Cell, Text};
use crate::view;

/// What is stored, with where: the words are those of `explain`.
#[derive(Serialize)]
struct Form<'a> {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(flatten)]
    config: LevelForm,
    #[serde(skip_serializing_if = "<[Lost]>::is_empty")]
    no_longer_limited: &'a [Lost],
}

/// A limit that bound before a change and does not bind after it.
#[derive(Serialize)]
struct Lost {
    limit_name: String,
    was: String,
    /// Where it is stored.
    level: String,
    /// True when it is still stored there, and hidden.
    hidden: bool,
}

impl Lost {
    fn words(&self) -> String {
        let Lost { limit_name, was, level, hidden } = self;
        match hidden {
            false => format!("no longer limited here: {limit_name} (was {was})"),
            true => format!(
                "no longer limited here: {limit_name} ({was} at level: {level} is hidden by this level)"
            ),
        }
    }
}

/// What limits that are gone mean for those who call, and for buckets that have them.
fn consequence(lost: &[Lost]) -> Option<String> {
    let mut names: Vec<&str> = lost.iter().map(|lost| lost.limit_name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let it = if names.len() == 1 { "it" } else { "them" };
    let names = names.join(", ");
    let text = || {
        format!(
            "calls that still name {names} fail here; buckets remember what was used of {it} until refilled"
        )
    };
    (!names.is_empty()).then(text)
}

/// Attempts to change limits that somebody else changes at the same time.
const TRIES_MAX: u32 = 5;

/// Resources whose limits are compared with those of an entity.
const RESOURCES_MAX: u32 = 50;

/// What to store at a level.
pub(super) struct Order {
    pub(super) level: Level,
    pub(super) limits: LimitsArgs,
    pub(super) on_unavailable: Option<OnUnavailable>,
    /// Refuse an entity that was not created.
    pub(super) must_exist: bool,
}

/// Stores limits at a level and answers with what is stored then, and with what is no longer
/// limited.
pub(super) async fn set(context: &Context<'_>, order: Order) -> anyhow::Result<Exit> {
    let Order { level, limits, on_unavailable, must_exist } = order;
    check(&limits.limits)?;
    let limiter = context.open().await?;
    if let Some(entity) = level.entity_id() {
        super::entity_show::check(context, &limiter, entity, must_exist).await?;
    }
    let (edits, mut tries) = (limits.edits(), 0);
    let lost = loop {
        tries += 1;
        let before = limiter.level(&level).await?.unwrap_or_default();
        let is_policy_alone = limits.limits.is_empty() && limits.remove.is_empty();
        let limits = limits
            .applied_to(&before.limits)
            .map_err(|name| unknown(&level, &name, &before.limits))?;
        check(&limits)?;
        if limits.is_empty() && is_policy_alone {
            return Err(no_limits_yet(&level).into());
        }
        if limits.is_empty() {
            return Err(last_one(context, &level).into());
        }
        let lost = lost(&limiter, &level, &before.limits, &limits).await?;
        // Whoever keeps what is there must not keep what somebody else has changed meanwhile.
        let expected_version = edits.then_some(before.version);
        match limiter
            .set_limits(&level, LimitsChange { limits, on_unavailable, expected_version })
            .await
        {
            Err(error)
                if error.kind() == ErrorKind::Store(StoreErrorKind::Conflict)
                    && tries < TRIES_MAX => {}
            changed => break changed.map(|_| lost)?,
        }
    };
    let exit = answer(context, &level, &limiter, &lost).await?;
    for lost in &lost {
        context.printer.note(&lost.words());
    }
    if let Some(note) = consequence(&lost) {
        context.printer.note(&note);
    }
    note_about_caches(context);
    Ok(exit)
}

/// Answers with what is stored at a level.
pub(super) async fn get(context: &Context<'_>, level: Level) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    answer(context, &level, &limiter, &[]).await
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
pub(super) async fn delete(
    context: &Context<'_>,
    level: &Level,
    name: &str,
    args: ConfirmArgs,
) -> anyhow::Result<Exit> {
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
    let line = if deleted {
        format!("deleted {what}")
    } else {
        format!("nothing to delete: no limits are stored for {level}")
    };
    context.printer.answer(&form, &Text::new().line(Cell::plain(line)))?;
    if deleted {
        note_about_caches(context);
    }
    Ok(Exit::Ok)
}

/// What each limit on its own cannot tell: that a name is given twice.
pub(super) fn check(limits: &[Limit]) -> Result<(), Failure> {
    check_limits(limits)
        .map_err(|error| Failure::usage(format!("invalid values for --limit: {error}")))
}

/// The level of an entity's limits: for one resource, or for all.
pub(super) fn of_entity(entity: EntityId, resource: Option<ResourceName>) -> Level {
    match resource {
        Some(resource) => Level::EntityResource(entity, resource),
        None => Level::Entity(entity),
    }
}

async fn answer(
    context: &Context<'_>,
    level: &Level,
    limiter: &RateLimiter,
    lost: &[Lost],
) -> anyhow::Result<Exit> {
    let Some(config) = limiter.level(level).await? else {
        return Err(nothing_at(context, level).into());
    };
    let form = Form {
        level: level.source().as_str(),
        entity_id: level.entity_id().map(ToString::to_string),
        resource: level.resource_name().map(ToString::to_string),
        config: LevelForm::from(&config),
        no_longer_limited: lost,
    };
    context.printer.answer(&form, &view::level(level, &config))?;
    Ok(Exit::Ok)
}

fn nothing_at(context: &Context<'_>, level: &Level) -> Failure {
    let set = [command(level, "set"), vec!["-l".into(), "rpm:100".into()]].concat();
    Failure::not_found(format!("nothing is stored at level: {level}"))
        .hint(format!("store limits with {}", line(context, &set)))
}

/// What a change takes away: limits this level had, and limits of weaker levels that it hides. A
/// level hides all limits of weaker ones, not only those it has itself.
async fn lost(
    limiter: &RateLimiter,
    level: &Level,
    before: &[Limit],
    after: &[Limit],
) -> Result<Vec<Lost>, Error> {
    let is_lost = |limit: &&Limit| after.iter().all(|kept| kept.name() != limit.name());
    let told = |limit: &Limit, level: &Level, hidden: bool| Lost {
        limit_name: limit.name().to_string(),
        was: view::rate(limit),
        level: level.to_string(),
        hidden,
    };
    let mut lost: Vec<Lost> =
        before.iter().filter(is_lost).map(|limit| told(limit, level, false)).collect();
    for choice in weaker(limiter, level).await? {
        for level in choice {
            let limits = limiter.level(&level).await?.unwrap_or_default().limits;
            let hidden = limits
                .iter()
                .filter(is_lost)
                .filter(|limit| before.iter().all(|had| had.name() != limit.name()));
            lost.extend(hidden.map(|limit| told(limit, &level, true)));
            // Only the strongest of them would bind.
            if !limits.is_empty() {
                break;
            }
        }
    }
    Ok(lost)
}

/// The levels that would bind without this one: of each list the first that has limits.
async fn weaker(limiter: &RateLimiter, level: &Level) -> Result<Vec<Vec<Level>>, Error> {
    Ok(match level {
        Level::System => Vec::new(),
        Level::Resource(_) => vec![vec![Level::System]],
        Level::EntityResource(entity, resource) => {
            vec![vec![
                Level::Entity(entity.clone()),
                Level::Resource(resource.clone()),
                Level::System,
            ]]
        }
        Level::Entity(_) => {
            let resources =
                limiter.resources_with_defaults(&PageRequest::first(RESOURCES_MAX)).await?.items;
            let resources = resources.into_iter().map(|resource| vec![Level::Resource(resource)]);
            resources.chain([vec![Level::System]]).collect()
        }
    })
}

/// Says when others will see a change.
pub(super) fn note_about_caches(context: &Context<'_>) {
    // Limits from a table that have just expired decide one more take while they are read again.
    let lent = if matches!(context.settings.store, StorePlace::Dynamo(_)) { " and 5s" } else { "" };
    context.printer.note(&format!(
        "running processes see this within their config-cache TTL (60s unless set otherwise){lent}"
    ));
}

fn unknown(level: &Level, name: &LimitName, there: &[Limit]) -> Failure {
    let failure = Failure::not_found(format!(
        "no limit is called {name} at level: {level}; nothing was changed"
    ));
    let names: Vec<&str> = there.iter().map(|limit| limit.name().as_str()).collect();
    match names.is_empty() {
        true => failure.hint("no limits are stored at this level"),
        false => failure.hint(format!("the limits of this level are {}", names.join(", "))),
    }
}

fn no_limits_yet(level: &Level) -> Failure {
    let message = format!(
        "the outage policy is stored beside limits, and none are stored at level: {level}; nothing was changed"
    );
    Failure::usage(message).hint("give limits with it, as in -l rpm:100")
}

fn last_one(context: &Context<'_>, level: &Level) -> Failure {
    let failure =
        Failure::usage("this would remove the last limit of the level; nothing was changed");
    failure.hint(format!(
        "delete the limits of the level with {}",
        line(context, &command(level, "delete"))
    ))
}

/// The words of the command that sets, gets or deletes the limits of a level.
fn command(level: &Level, verb: &str) -> Vec<String> {
    let (defaults, limits) = (format!("{verb}-defaults"), format!("{verb}-limits"));
    match level {
        Level::System => vec!["system".into(), defaults],
        Level::Resource(resource) => vec!["resource".into(), defaults, resource.to_string()],
        Level::Entity(entity) => vec!["entity".into(), limits, entity.to_string()],
        Level::EntityResource(entity, resource) => {
            vec!["entity".into(), limits, entity.to_string(), "-r".into(), resource.to_string()]
        }
    }
}

fn line(context: &Context<'_>, words: &[String]) -> String {
    context.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
}
