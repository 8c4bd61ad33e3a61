//! What is disabled and enabled, for the commands that show it.

use futures_util::future::join_all;
use serde::{Serialize, Serializer};
use zae_limiter::{
    EntityId, Error, Flag, Level, LevelConfig, Page, PageRequest, RateLimiter, ResourceName,
};

use crate::args::level::of_entity;
use crate::table::{Cell, Fields, Tone};
use crate::view;

/// The most levels that are read to find what is disabled.
const LEVELS_MAX: usize = 500;
/// How many levels are read at once: on DynamoDB each is a round trip.
const AT_ONCE: usize = 16;

/// What is disabled in a namespace, and what is enabled against a weaker level.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Flags {
    #[serde(flatten, serialize_with = "by_flag")]
    levels: Vec<(Level, Flag)>,
    /// False when there are more levels than were looked at.
    #[serde(rename = "flags_complete")]
    is_complete: bool,
}

/// The levels that have a flag, in words.
fn with(levels: &[(Level, Flag)], wanted: Flag) -> Vec<String> {
    let found = levels.iter().filter(|(_, flag)| *flag == wanted);
    found.map(|(level, _)| level.to_string()).collect()
}

/// A list for each kind of flag, under its word.
fn by_flag<S: Serializer>(levels: &[(Level, Flag)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Flag::ALL.map(|flag| (flag.as_str(), with(levels, flag))))
}

impl Flags {
    /// One line for each kind of flag there is.
    pub(crate) fn fields(&self) -> Fields {
        let mut fields = Fields::new();
        for flag in Flag::ALL {
            let cell = match with(&self.levels, flag) {
                none if none.is_empty() && flag == Flag::Disabled => Cell::plain("nothing"),
                none if none.is_empty() => continue,
                levels => Cell::toned(levels.join(", "), view::tone(flag)),
            };
            fields.push((flag.as_str(), cell));
        }
        if !self.is_complete {
            let bound = format!("only the first {LEVELS_MAX} levels were looked at");
            fields.push(("", Cell::toned(bound, Tone::Dim)));
        }
        fields
    }
}

/// Looks at the levels of the namespace that have something stored, [`LEVELS_MAX`] of them.
pub(crate) async fn of_namespace(limiter: &RateLimiter) -> Result<Flags, Error> {
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
        levels.extend(entities.into_iter().map(|entity| of_entity(entity, resource.clone())));
    }
    let is_complete = levels.len() <= LEVELS_MAX;
    levels.truncate(LEVELS_MAX);
    let configs = configs(limiter, levels).await?;
    let flagged = configs.into_iter().filter_map(|(level, config)| Some((level, config?.flag?)));
    Ok(Flags { levels: flagged.collect(), is_complete })
}

/// The flag that each entity has for every resource.
pub(crate) async fn of_entities(
    limiter: &RateLimiter,
    entities: &[EntityId],
) -> Result<Vec<Option<Flag>>, Error> {
    let levels = entities.iter().cloned().map(Level::Entity).collect();
    let configs = configs(limiter, levels).await?;
    Ok(configs.into_iter().map(|(_, config)| config.and_then(|config| config.flag)).collect())
}

/// The flags that an entity has for single resources.
pub(crate) async fn on_resources(
    limiter: &RateLimiter,
    entity: &EntityId,
) -> Result<Vec<(ResourceName, Flag)>, Error> {
    let resources = first(async |page| limiter.resources_with_entity_limits(&page).await).await?;
    let levels = resources
        .into_iter()
        .flatten()
        .map(|resource| Level::EntityResource(entity.clone(), resource));
    let configs = configs(limiter, levels.take(LEVELS_MAX).collect()).await?;
    let flagged = configs
        .into_iter()
        .filter_map(|(level, config)| Some((level.resource_name()?.clone(), config?.flag?)));
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
        let read = join_all(chunk.iter().map(|level| limiter.level(level))).await;
        for (level, config) in chunk.iter().zip(read) {
            found.push((level.clone(), config?));
        }
    }
    Ok(found)
}
