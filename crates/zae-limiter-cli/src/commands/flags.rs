//! What the commands that switch something off and on, and those that show it, share.

use std::pin::Pin;
use std::task::Poll;

use serde::Serialize;
use zae_limiter::{
    EntityId, Error, Level, LevelConfig, Page, PageRequest, RateLimiter, ResourceName,
};

use crate::context::Context;
use crate::exit::Exit;
use crate::settings::StorePlace;
use crate::table::{Cell, Text, Tone};

/// The most levels that are read to find what is switched off.
const LEVELS_MAX: usize = 500;
/// How many levels are read at once: on DynamoDB each is a round trip.
const AT_ONCE: usize = 16;

#[derive(Serialize)]
struct Form {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    disabled: Option<bool>,
    buckets: u64,
    /// Left out where every bucket there is was reached.
    #[serde(skip_serializing_if = "is_zero")]
    binds_within_seconds: u64,
    /// Members of the chain that are still off, and so refuse the calls of the one that was
    /// enabled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    still_disabled: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

/// Disables (`Some(true)`), enables (`Some(false)`) or lets a level inherit (`None`).
///
/// Nobody is asked: it can be undone, and whoever stops a runaway client is in a hurry.
pub(super) async fn set(
    context: &Context<'_>,
    level: Level,
    disabled: Option<bool>,
    must_exist: bool,
) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    if let Some(entity) = level.entity_id() {
        super::entity_show::check(context, &limiter, entity, must_exist).await?;
    }
    if matches!(context.settings.store, StorePlace::Dynamo(_)) {
        context
            .printer
            .note("this takes 2s: buckets are looked for twice, because their index lags behind");
        crate::patience::told();
    }
    let reached = match disabled {
        Some(true) => limiter.disable(&level).await?,
        Some(false) => limiter.enable(&level).await?,
        None => limiter.clear_disabled(&level).await?,
    };
    let (buckets, binds_within_seconds) = (reached.buckets, reached.binds_within.as_secs());
    let form = Form {
        level: level.source().as_str(),
        entity_id: level.entity_id().map(ToString::to_string),
        resource: level.resource_name().map(ToString::to_string),
        disabled,
        buckets,
        binds_within_seconds,
        still_disabled: if disabled == Some(true) {
            Vec::new()
        } else {
            still_disabled(&limiter, &level).await
        },
    };
    let done = match disabled {
        Some(true) => "disabled",
        Some(false) => "enabled",
        None => "cleared the flag of",
    };
    let noun = if buckets == 1 { "bucket" } else { "buckets" };
    let rest = match binds_within_seconds {
        0 => String::new(),
        seconds => format!("; any the index does not list yet follow within {seconds} s"),
    };
    let line = format!("{done} {level} ({buckets} existing {noun}{rest})");
    context.printer.answer(&form, &Text::new().line(Cell::plain(line)))?;
    for who in &form.still_disabled {
        context.printer.warning(&format!("{who}: its calls are still refused"));
    }
    if disabled != Some(true) {
        super::limits::note_about_caches(context);
    }
    Ok(Exit::Ok)
}

/// Whoever of the chain is off, as far as the level names an entity and a resource. What was asked
/// for is done, so a store that cannot tell changes nothing.
async fn still_disabled(limiter: &RateLimiter, level: &Level) -> Vec<String> {
    let (Some(entity), Some(resource)) = (level.entity_id(), level.resource_name()) else {
        return Vec::new();
    };
    let Ok(resolved) = limiter.resolve(entity.clone(), resource.clone()).await else {
        return Vec::new();
    };
    let off =
        resolved.members.iter().filter_map(|member| Some((member, member.disabled_by.as_ref()?)));
    off.map(|(member, by)| match member.entity == *entity {
        true => format!("{entity} is disabled at level: {by}"),
        false => {
            format!("{entity} cascades to {}, which is disabled at level: {by}", member.entity)
        }
    })
    .collect()
}

/// What is switched off in a namespace, and what is switched on against a weaker level.
#[derive(Debug, Default, Serialize)]
pub(super) struct Flags {
    disabled: Vec<String>,
    enabled: Vec<String>,
    /// False when there are more levels than were looked at.
    #[serde(rename = "flags_complete")]
    is_complete: bool,
}

impl Flags {
    /// One line for each kind of flag there is.
    pub(super) fn fields(&self) -> Vec<(&'static str, Cell)> {
        let listed = |levels: &[String]| {
            if levels.is_empty() { "nothing".to_owned() } else { levels.join(", ") }
        };
        let tone = if self.disabled.is_empty() { Tone::Plain } else { Tone::Bad };
        let mut fields = vec![("disabled", Cell::toned(listed(&self.disabled), tone))];
        if !self.enabled.is_empty() {
            fields.push(("enabled", Cell::plain(listed(&self.enabled))));
        }
        if !self.is_complete {
            fields.push((
                "",
                Cell::toned(
                    format!("only the first {LEVELS_MAX} levels were looked at"),
                    Tone::Dim,
                ),
            ));
        }
        fields
    }
}

/// Looks at the levels of the namespace that have something stored, [`LEVELS_MAX`] of them.
pub(super) async fn of_namespace(limiter: &RateLimiter) -> Result<Flags, Error> {
    let mut levels: Vec<Level> = Vec::new();
    let resources = first(async |page| limiter.resources_with_defaults(&page).await).await?;
    levels.extend(resources.into_iter().map(Level::Resource));
    for resource in first(async |page| limiter.resources_with_entity_limits(&page).await).await? {
        if levels.len() > LEVELS_MAX {
            break;
        }
        let entities =
            first(async |page| limiter.entities_with_limits(resource.as_ref(), &page).await)
                .await?;
        levels.extend(
            entities.into_iter().map(|entity| super::limits::of_entity(entity, resource.clone())),
        );
    }
    let is_complete = levels.len() <= LEVELS_MAX;
    levels.truncate(LEVELS_MAX);
    let mut flags = Flags { is_complete, ..Flags::default() };
    for (level, config) in configs(limiter, levels).await? {
        match config.and_then(|config| config.disabled) {
            Some(true) => flags.disabled.push(level.to_string()),
            Some(false) => flags.enabled.push(level.to_string()),
            None => {}
        }
    }
    Ok(flags)
}

/// The flag that each entity has for every resource.
pub(super) async fn of_entities(
    limiter: &RateLimiter,
    entities: &[EntityId],
) -> Result<Vec<Option<bool>>, Error> {
    let levels = entities.iter().cloned().map(Level::Entity).collect();
    let configs = configs(limiter, levels).await?;
    Ok(configs.into_iter().map(|(_, config)| config.and_then(|config| config.disabled)).collect())
}

/// The flags that an entity has for single resources.
pub(super) async fn on_resources(
    limiter: &RateLimiter,
    entity: &EntityId,
) -> Result<Vec<(ResourceName, bool)>, Error> {
    let resources = first(async |page| limiter.resources_with_entity_limits(&page).await).await?;
    let levels = resources
        .into_iter()
        .flatten()
        .map(|resource| Level::EntityResource(entity.clone(), resource));
    let configs = configs(limiter, levels.take(LEVELS_MAX).collect()).await?;
    let flagged = configs
        .into_iter()
        .filter_map(|(level, config)| Some((level.resource_name()?.clone(), config?.disabled?)));
    Ok(flagged.collect())
}

/// One more than [`LEVELS_MAX`] of a listing, to know whether there are more.
async fn first<T>(
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, Error>,
) -> Result<Vec<T>, Error> {
    let size = u32::try_from(LEVELS_MAX + 1).unwrap_or(u32::MAX);
    Ok(list(PageRequest::first(size)).await?.items)
}

/// What is stored at each level, some read at once.
async fn configs(
    limiter: &RateLimiter,
    levels: Vec<Level>,
) -> Result<Vec<(Level, Option<LevelConfig>)>, Error> {
    let mut found = Vec::with_capacity(levels.len());
    for chunk in levels.chunks(AT_ONCE) {
        let read = all(chunk.iter().map(|level| limiter.level(level))).await;
        for (level, config) in chunk.iter().zip(read) {
            found.push((level.clone(), config?));
        }
    }
    Ok(found)
}

/// What comes of futures that are polled together, in their order.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<Result<Pin<Box<F>>, F::Output>> =
        futures.map(|future| Ok(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        let mut is_over = true;
        for slot in &mut pending {
            if let Ok(future) = slot {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *slot = Err(output),
                    Poll::Pending => is_over = false,
                }
            }
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    pending.into_iter().filter_map(Result::err).collect()
}
