//! Making the changes of a plan. What is about to be managed is written down first, so that an
//! apply that is killed half way is known, and finished, by the next one.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt as _};
use zae_limiter::{
    EntityId, EntityUpdate, Error, ErrorKind, Flag, LimitsChange, NewEntity, RateLimiter,
    StoreErrorKind,
};

use crate::manifest::{EntitySpec, Place};
use crate::plan::{Change, Plan, Sign};

/// Changes that are under way at once. More would only wait for each other: every change of a
/// namespace checks that the namespace is there.
const WRITES_AT_ONCE: usize = 4;

/// Attempts at a change that finds the store busy.
const TRIES_MAX: u32 = 5;

/// The longest reason, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 1024;

/// How to apply.
#[derive(Default)]
pub struct Apply<'a> {
    /// Why, for the audit log.
    pub reason: Option<String>,
    /// Called after each change, with how many are made and how many there are.
    pub progress: Option<&'a (dyn Fn(usize, usize) + Send + Sync)>,
}

impl Apply<'_> {
    /// With a reason, and without progress.
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Apply<'static> {
        Apply { reason: Some(reason.into()), progress: None }
    }
}

/// What an apply has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Changes that were made.
    pub changes: usize,
    /// Buckets that were there and got another flag.
    pub buckets: u64,
}

/// An apply that ended early. What it has changed stays; applying again goes on.
#[derive(Debug, thiserror::Error)]
#[error("{made} of {total} changes were made, then {}: {source}", .at.as_deref().unwrap_or("the store failed"))]
pub struct ApplyError {
    /// Changes that were made.
    pub made: usize,
    /// Changes there were to make.
    pub total: usize,
    /// The change that failed; `None` before the first and after the last.
    pub at: Option<String>,
    /// What the store says.
    pub source: Error,
}

/// Makes the changes of a plan, and remembers what is managed then. A plan that changes nothing
/// writes nothing.
///
/// The order: limits from the system down, flags that disable, entities with parents first, other
/// flags, and last what is removed. A level that somebody else has changed since the plan was made
/// ends the apply with `Conflict`.
pub async fn apply(
    limiter: &RateLimiter,
    plan: &Plan,
    how: &Apply<'_>,
) -> Result<Applied, ApplyError> {
    let mut applied = Applied::default();
    if plan.is_empty() {
        return Ok(applied);
    }
    let total = plan.changes.len();
    let failed = |made: usize, at: Option<&Change>, source: Error| ApplyError {
        made,
        total,
        at: at.map(ToString::to_string),
        source,
    };
    let mut managed = plan.before.with(&plan.after);
    let begun = details(plan, how, "begun");
    managed.store(limiter, true, &begun).await.map_err(|error| failed(0, None, error))?;
    for phase in phases(&plan.changes) {
        let mut made = stream::iter(phase)
            .map(|change| async move { (change, make(limiter, change).await) })
            .buffer_unordered(WRITES_AT_ONCE);
        while let Some((change, outcome)) = made.next().await {
            let buckets = outcome.map_err(|error| failed(applied.changes, Some(change), error))?;
            applied.changes += 1;
            applied.buckets += buckets;
            if let Some(progress) = how.progress {
                progress(applied.changes, total);
            }
        }
    }
    managed.places.clone_from(&plan.after.places);
    let done = details(plan, how, "done");
    let stored = managed.store(limiter, false, &done).await;
    stored.map_err(|error| failed(applied.changes, None, error))?;
    Ok(applied)
}

/// What the audit log tells, by name.
fn details(plan: &Plan, how: &Apply<'_>, state: &str) -> Vec<(String, String)> {
    let mut details = vec![
        ("added".to_owned(), plan.count(Sign::Add).to_string()),
        ("apply".to_owned(), state.to_owned()),
        ("changed".to_owned(), plan.count(Sign::Change).to_string()),
    ];
    let reason = how.reason.as_ref().map(|reason| {
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        ("reason".to_owned(), reason[..end].to_owned())
    });
    details.extend(reason);
    details.push(("removed".to_owned(), plan.count(Sign::Remove).to_string()));
    details
}

/// The changes in steps; those of one step may be made in any order.
fn phases(changes: &[Change]) -> Vec<Vec<&Change>> {
    let mut phases: BTreeMap<(u8, usize), Vec<&Change>> = BTreeMap::new();
    let created: BTreeMap<&EntityId, &EntitySpec> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Create { id, spec } => Some((id, spec)),
            _ => None,
        })
        .collect();
    let deleted: BTreeMap<&EntityId, Option<&EntityId>> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Delete { before } => Some((&before.id, before.parent.as_ref())),
            _ => None,
        })
        .collect();
    for change in changes {
        let step = match change {
            // Before the flags: a flag gives its level a new version, and the plan knows the old.
            Change::Limits { place, after, .. } if !after.is_empty() => (0, depth_of(place)),
            Change::Flag { after: Some(Flag::Disabled), .. } => (1, 0),
            Change::Create { id, .. } => {
                let parent = |id: &EntityId| created.get(id).and_then(|spec| spec.parent.as_ref());
                (2, generations(id, parent))
            }
            Change::Update { .. } => (3, 0),
            Change::Flag { after: Some(Flag::Enabled), .. } => (4, 0),
            Change::Flag { after: None, .. } | Change::Limits { .. } => (5, 0),
            Change::Delete { before } => {
                let parent = |id: &EntityId| deleted.get(id).copied().flatten();
                // Children first: those with the most ancestors.
                (6, usize::MAX - generations(&before.id, parent))
            }
        };
        phases.entry(step).or_default().push(change);
    }
    phases.into_values().collect()
}

fn depth_of(place: &Place) -> usize {
    usize::from(place.entity.is_some()) * 2 + usize::from(place.resource.is_some())
}

/// How many ancestors of an entity are among those that a step of the parents is known of.
fn generations<'a>(
    id: &'a EntityId,
    parent: impl Fn(&'a EntityId) -> Option<&'a EntityId>,
) -> usize {
    // A plan has no circles; a bound all the same.
    const GENERATIONS_MAX: usize = 1_000_000;
    let ancestors = std::iter::successors(parent(id), |id| parent(id));
    ancestors.take(GENERATIONS_MAX).count()
}

/// Makes one change; how many buckets a flag has reached.
async fn make(limiter: &RateLimiter, change: &Change) -> Result<u64, Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        match attempt(limiter, change).await {
            // The store has waited already, and says so when others are in the way.
            Err(error) if error.kind() == ErrorKind::Store(StoreErrorKind::Busy) => {
                if tries >= TRIES_MAX {
                    return Err(error);
                }
            }
            outcome => return outcome,
        }
    }
}

async fn attempt(limiter: &RateLimiter, change: &Change) -> Result<u64, Error> {
    match change {
        Change::Limits { place, after, .. } if after.is_empty() => {
            limiter.delete_limits(&place.level()).await?;
        }
        Change::Limits { place, after, policy, version, .. } => {
            let change = LimitsChange {
                limits: after.clone(),
                on_unavailable: policy.as_ref().map(|(_, new)| *new),
                expected_version: Some(*version),
            };
            limiter.set_limits(&place.level(), change).await?;
        }
        Change::Flag { place, after, .. } => {
            return Ok(limiter.set_flag(&place.level(), *after).await?.buckets);
        }
        Change::Create { id, spec } => {
            let entity = NewEntity {
                id: id.clone(),
                name: spec.name.clone().unwrap_or_else(|| id.to_string()),
                parent: spec.parent.clone(),
                cascade: spec.cascade,
                metadata: spec.metadata.clone().unwrap_or_default(),
            };
            // Somebody else may have created the entity meanwhile, just as it is wanted.
            limiter.ensure_entity(entity).await?;
        }
        Change::Update { before, name, metadata } => {
            let update = EntityUpdate { name: name.clone(), metadata: metadata.clone() };
            limiter.update_entity(before.id.clone(), before.version, update).await?;
        }
        Change::Delete { before } => {
            limiter.delete_entity(before.id.clone()).await?;
        }
    }
    Ok(0)
}
