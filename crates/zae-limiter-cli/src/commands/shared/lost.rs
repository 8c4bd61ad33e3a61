//! What a change of limits takes away.

use serde::Serialize;
use zae_limiter::{Error, Level, Limit, PageRequest, RateLimiter};

use crate::view;

/// Resources whose limits are compared with those of an entity.
const RESOURCES_MAX: u32 = 50;

/// A limit that bound before a change and does not bind after it.
#[derive(Serialize)]
pub(crate) struct Lost {
    limit_name: String,
    was: String,
    /// Where it is stored.
    level: String,
    /// True when it is still stored there, and hidden.
    hidden: bool,
}

impl Lost {
    pub(crate) fn words(&self) -> String {
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
pub(crate) fn consequence(lost: &[Lost]) -> Option<String> {
    let mut names: Vec<&str> = lost.iter().map(|lost| lost.limit_name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let it = if names.len() == 1 { "it" } else { "them" };
    let names = names.join(", ");
    let text = || {
        format!(
            "calls that still name {names} fail here, unless they cascade to an entity that has {it}; \
             buckets remember what was used of {it} until refilled"
        )
    };
    (!names.is_empty()).then(text)
}

/// What a change takes away: limits this level had, and limits of weaker levels that it hides. A
/// level hides all limits of weaker ones, not only those it has itself.
pub(crate) async fn lost(
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

/// Lists of weaker levels; in each, the first level with limits would decide instead.
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
