//! The commands on a level of limits: set, get and delete its limits, and flag it as disabled or
//! enabled. `system`, `resource` and `entity` differ in the level that they name.

use serde::Serialize;
use zae_limiter::wire::{FlagForm, LevelForm};
use zae_limiter::{
    ErrorKind, Flag, Level, Limit, LimitName, LimitsChange, OnUnavailable, RateLimiter,
    StoreErrorKind,
};

use super::shared::entities;
use super::shared::lost::{Lost, consequence, lost};
use crate::args::level::{LevelArgs, LimitsArgs, check_limits};
use crate::args::shared::ConfirmArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::settings::StorePlace;
use crate::table::Text;
use crate::view;

/// Attempts to change limits that somebody else changes at the same time.
const TRIES_MAX: u32 = 5;

/// The name of a level, in the words of `explain`.
#[derive(Serialize)]
struct NameForm {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
}

impl From<&Level> for NameForm {
    fn from(level: &Level) -> NameForm {
        NameForm {
            level: level.source().as_str(),
            entity_id: level.entity_id().map(ToString::to_string),
            resource: level.resource_name().map(ToString::to_string),
        }
    }
}

/// What is stored at a level.
#[derive(Serialize)]
struct StoredForm<'a> {
    #[serde(flatten)]
    name: NameForm,
    #[serde(flatten)]
    config: LevelForm,
    #[serde(skip_serializing_if = "<[Lost]>::is_empty")]
    no_longer_limited: &'a [Lost],
}

/// Stores limits at a level and answers with what is stored then, and with what is no longer
/// limited.
pub(crate) async fn set(
    context: &Context<'_>,
    args: LevelArgs,
    limits: LimitsArgs,
    on_unavailable: Option<OnUnavailable>,
) -> anyhow::Result<Exit> {
    check_limits(&limits.limits)?;
    let limiter = context.open().await?;
    entities::check(context, &limiter, &args).await?;
    let (level, edits, mut tries) = (args.level, limits.edits(), 0);
    let lost = loop {
        tries += 1;
        let before = limiter.level(&level).await?.unwrap_or_default();
        let is_policy_alone = limits.limits.is_empty() && limits.remove.is_empty();
        let limits = limits
            .applied_to(&before.limits)
            .map_err(|name| unknown(&level, &name, &before.limits))?;
        check_limits(&limits)?;
        if limits.is_empty() && is_policy_alone {
            return Err(no_limits_yet(&level).into());
        }
        if limits.is_empty() {
            return Err(last_one(context, &level).into());
        }
        let lost = lost(&limiter, &level, &before.limits, &limits).await?;
        // A change that keeps other limits keeps them as they were read, or is tried again.
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
pub(crate) async fn get(context: &Context<'_>, level: Level) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    answer(context, &level, &limiter, &[]).await
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
    let form = StoredForm {
        name: level.into(),
        config: LevelForm::from(&config),
        no_longer_limited: lost,
    };
    context.printer.answer(&form, &view::level(level, &config))
}

#[derive(Serialize)]
struct DeletedForm {
    /// Left out for the system.
    #[serde(flatten)]
    name: Option<NameForm>,
    deleted: bool,
}

/// Deletes the limits of a level, once its name was typed.
pub(crate) async fn delete(
    context: &Context<'_>,
    level: Level,
    args: ConfirmArgs,
) -> anyhow::Result<Exit> {
    let namespace = context.settings.namespace.as_str();
    let name = match &level {
        Level::System => namespace,
        Level::Resource(resource) => resource.as_str(),
        Level::Entity(entity) | Level::EntityResource(entity, _) => entity.as_str(),
    };
    let (what, none) = if level == Level::System {
        let what = format!("the system defaults of namespace {namespace}");
        (what.clone(), what + " are not set")
    } else {
        (format!("the limits stored for {level}"), format!("no limits are stored for {level}"))
    };
    confirm(context, &Question { deed: "deletes", what: &what, name }, args)?;
    let limiter = context.open().await?;
    let deleted = limiter.delete_limits(&level).await?;
    let name = (level != Level::System).then(|| NameForm::from(&level));
    let line =
        if deleted { format!("deleted {what}") } else { format!("nothing to delete: {none}") };
    context.printer.answer(&DeletedForm { name, deleted }, &Text::of(line))?;
    if deleted {
        note_about_caches(context);
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
struct FlaggedForm {
    #[serde(flatten)]
    name: NameForm,
    disabled: Option<FlagForm>,
    buckets: u64,
    /// Left out where every bucket there is was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    binds_within_seconds: Option<u64>,
    /// Members of the chain that are still off, and so refuse the calls of the one that was
    /// enabled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    still_disabled: Vec<String>,
}

/// Sets the flag of a level, or lets the level inherit (`None`).
///
/// The command does not ask: it can be undone, and a runaway client has to be stopped in a hurry.
pub(crate) async fn flag(
    context: &Context<'_>,
    args: LevelArgs,
    flag: Option<Flag>,
) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    entities::check(context, &limiter, &args).await?;
    if matches!(context.settings.store, StorePlace::Dynamo(_)) {
        context
            .printer
            .note("this takes 2s: buckets are looked for twice, because their index lags behind");
        crate::patience::told();
    }
    let level = args.level;
    let reached = limiter.set_flag(&level, flag).await?;
    let done = flag.map_or("cleared the flag of", Flag::as_str);
    let blocks = flag.is_some_and(Flag::blocks);
    let seconds = reached.binds_within.as_secs();
    let form = FlaggedForm {
        name: (&level).into(),
        disabled: flag.map(FlagForm),
        buckets: reached.buckets,
        binds_within_seconds: (seconds > 0).then_some(seconds),
        still_disabled: if blocks { Vec::new() } else { still_disabled(&limiter, &level).await },
    };
    let noun = if form.buckets == 1 { "bucket" } else { "buckets" };
    let rest = form.binds_within_seconds.map_or_else(String::new, |seconds| {
        format!("; any the index does not list yet follow within {seconds} s")
    });
    let line = format!("{done} {level} ({} existing {noun}{rest})", form.buckets);
    context.printer.answer(&form, &Text::of(line))?;
    for who in &form.still_disabled {
        context.printer.warning(&format!("{who}: its calls are still refused"));
    }
    if !blocks {
        note_about_caches(context);
    }
    Ok(Exit::Ok)
}

/// The members of the chain that are disabled, if the level names an entity and a resource. The
/// flag is stored, so a store that cannot answer changes nothing.
async fn still_disabled(limiter: &RateLimiter, level: &Level) -> Vec<String> {
    let Level::EntityResource(entity, resource) = level else { return Vec::new() };
    let Ok(resolved) = limiter.resolve(entity.clone(), resource.clone()).await else {
        return Vec::new();
    };
    let off =
        resolved.members.iter().filter_map(|member| Some((member, member.blocked_by.as_ref()?)));
    off.map(|(member, (flag, by))| match member.entity == *entity {
        true => format!("{entity} is {flag} at level: {by}"),
        false => {
            format!("{entity} cascades to {}, which is {flag} at level: {by}", member.entity)
        }
    })
    .collect()
}

/// Says when others will see a change.
fn note_about_caches(context: &Context<'_>) {
    // Limits from a table that have just expired decide one more take while they are read again.
    let lent = if matches!(context.settings.store, StorePlace::Dynamo(_)) { " and 5s" } else { "" };
    context.printer.note(&format!(
        "running processes see this within their config-cache TTL (60s unless set otherwise){lent}"
    ));
}

fn nothing_at(context: &Context<'_>, level: &Level) -> Failure {
    let set = command(context, level, "set", &["-l", "rpm:100"]);
    Failure::not_found(format!("nothing is stored at level: {level}"))
        .hint(format!("store limits with {set}"))
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
    let delete = command(context, level, "delete", &[]);
    failure.hint(format!("delete the limits of the level with {delete}"))
}

/// The command that sets or deletes the limits of a level, to type.
fn command(context: &Context<'_>, level: &Level, verb: &str, flags: &[&str]) -> String {
    let (defaults, limits) = (format!("{verb}-defaults"), format!("{verb}-limits"));
    let words = match level {
        Level::System => vec!["system", &defaults],
        Level::Resource(resource) => vec!["resource", &defaults, resource.as_str()],
        Level::Entity(entity) => vec!["entity", &limits, entity.as_str()],
        Level::EntityResource(entity, resource) => {
            vec!["entity", &limits, entity.as_str(), "-r", resource.as_str()]
        }
    };
    context.command(&[&words, flags].concat())
}
