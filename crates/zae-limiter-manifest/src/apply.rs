//! Making the changes of a plan. What is about to be managed is written down first, so that an
//! apply that is killed half way is known, and finished, by the next one. Before every change the
//! mark of this apply is looked at: one that another has taken over stops.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt as _};
use zae_limiter::store::{Entropy, SystemEntropy};
use zae_limiter::{
    Clock, EntityId, EntityUpdate, Error, ErrorKind, Invalid, LevelConfig, LimitsChange, NewEntity,
    RateLimiter, StoreError, StoreErrorKind, SystemClock,
};

use crate::hold::{Details, Hold, Look, Stop, is_conflict};
use crate::live::Live;
use crate::manifest::{EntitySpec, Place};
use crate::mark::{Mark, Watched, cut, watch};
use crate::plan::{Change, Plan, PlanError, Sign, sorted};

/// Changes that are under way at once. More would only wait for each other: every change of a
/// namespace checks that the namespace is there.
const WRITES_AT_ONCE: usize = 4;

/// Attempts at a change that finds the store busy.
const TRIES_MAX: u32 = 5;

/// How long the last writes of an apply that lost its mark may be under way: as long one that takes
/// over waits before it compares.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// How often an apply compares again that finds the one before has ended meanwhile.
const COMPARES_MAX: u32 = 5;

/// The longest reason, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 1024;

/// What to do about an apply that has begun and not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// Watch whether it is still at work ([`watch`]), and go on from there if it is not.
    #[default]
    Watch,
    /// Go on from there at once. The caller knows that it is gone, or wants it to stop. Refused if
    /// it has given a sign of life since the plan was made.
    Now,
}

/// How to apply.
pub struct Apply<'a> {
    /// Why, for every event in the audit log.
    pub reason: Option<String>,
    /// Called after each change, with how many are made and how many there are.
    pub progress: Option<&'a (dyn Fn(usize, usize) + Send + Sync)>,
    /// True when this apply shall end: no further change begins, and the mark is laid down.
    pub stopped: Option<&'a (dyn Fn() -> bool + Send + Sync)>,
    /// Who applies, in words for others who come in between: a person, a machine, a pipeline.
    pub who: String,
    /// The process that applies, in words that a program on the same machine understands.
    pub process: Option<String>,
    /// What to do about another one who has not ended.
    pub over: Over,
    /// The clock of signs of life.
    pub clock: Arc<dyn Clock>,
    /// What tells two applies apart.
    pub entropy: Arc<dyn Entropy>,
}

impl Default for Apply<'_> {
    fn default() -> Self {
        Apply {
            reason: None,
            progress: None,
            stopped: None,
            who: "a program".to_owned(),
            process: None,
            over: Over::default(),
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
        }
    }
}

impl Apply<'_> {
    /// With a reason, and without progress.
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Apply<'static> {
        Apply { reason: Some(reason.into()), ..Apply::default() }
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
pub struct ApplyError {
    /// Changes that were made.
    pub made: usize,
    /// Changes there were to make.
    pub total: usize,
    /// The change that failed; `None` before the first and after the last.
    pub at: Option<String>,
    /// The apply that is at work: before the first change, this one was refused; after it, this one
    /// was taken for gone and has stopped.
    pub other: Option<Mark>,
    /// Another apply is the reason, whether or not its mark is known.
    pub overlaps: bool,
    /// The caller wanted it ([`Apply::stopped`]).
    pub stopped: bool,
    /// What the store says; a `Conflict` when another apply is the reason.
    pub source: Error,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ApplyError { made, total, at, source, .. } = self;
        // An error of the store begins with the name of an operation, for programmers.
        let said = match source {
            Error::Store(error) => error.message().to_owned(),
            other => other.to_string(),
        };
        match at {
            _ if self.overlaps || self.stopped => f.write_str(&said),
            Some(at) => write!(f, "{made} of {total} changes were made, then {at}: {said}"),
            None if *made == 0 => write!(f, "no change was made: {said}"),
            None => write!(
                f,
                "{made} of {total} changes were made, and then it could not be written down what is \
                 managed: {said}"
            ),
        }
    }
}

impl ApplyError {
    fn new(made: usize, total: usize, at: Option<String>, stop: Stop) -> ApplyError {
        let conflict = |message: String| {
            Error::from(StoreError::new(StoreErrorKind::Conflict, "limits_apply", message))
        };
        let overlaps = matches!(stop, Stop::Held(_) | Stop::Lost(_));
        let stopped = matches!(stop, Stop::Asked);
        let (other, source) = match stop {
            Stop::Failed(error) => (None, error),
            Stop::Asked => {
                let message = format!("stopped after {made} of {total} changes");
                (None, Invalid::Refused(message).into())
            }
            Stop::Held(mark) => {
                let message =
                    format!("another apply is at work: {}; nothing was changed", mark.in_words());
                (Some(mark), conflict(message))
            }
            Stop::Lost(mark) => {
                let by = mark.as_ref().map(|mark| format!(", by {}", mark.in_words()));
                let message = format!(
                    "this apply was taken for gone and its work taken over{}; it has stopped after \
                     {made} of {total} changes",
                    by.unwrap_or_default()
                );
                (mark, conflict(message))
            }
        };
        ApplyError { made, total, at, other, overlaps, stopped, source }
    }
}

/// Makes the changes of a plan, and remembers what is managed then. A plan that changes nothing
/// writes nothing.
///
/// The order: limits from the system down, flags that disable, entities with parents first, other
/// flags, and last what is removed. A level that somebody else has changed since the plan was made
/// ends the apply with `Conflict`, and so does another apply that is at work. One that takes over
/// compares again when it has the mark and the last writes of the one before have ended. Changes
/// that have begun when another one fails are ended, not dropped.
///
/// Cost: one write before and one after the changes, one read before each of them (two before flags
/// and removals), and a write every ten seconds, as a sign of life.
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
    if plan.held().is_some() && how.over == Over::Watch {
        let watched = watch(limiter, plan, &*how.clock).await;
        let stop = match watched {
            Ok(Watched::AtWork(mark)) => Some(Stop::Held(mark)),
            // One that has ended has left another version, which is found out by the first write.
            Ok(Watched::Gone | Watched::Ended) => None,
            Err(error) => Some(Stop::Failed(error)),
        };
        if let Some(stop) = stop {
            return Err(ApplyError::new(0, total, None, stop));
        }
    }
    let mut again = None;
    for _ in 0..COMPARES_MAX {
        let current = again.as_ref().unwrap_or(plan);
        match hold_and_work(limiter, current, how, &mut applied).await {
            Ok(()) => return Ok(applied),
            Err(Ended::For(error)) => return Err(error),
            // The one before was still at work when the plan was made, and has ended since.
            Err(Ended::Moved(error)) if plan.held().is_none() => return Err(error),
            Err(Ended::Moved(_)) => {}
        }
        let failed = |stop| ApplyError::new(applied.changes, total, None, stop);
        let compared = compared_again(limiter, plan).await.map_err(failed)?;
        if compared.is_empty() {
            return Ok(applied);
        }
        if let Some(mark) = compared.held() {
            return Err(failed(Stop::Held(mark.clone())));
        }
        again = Some(compared);
    }
    let message = "the store changes as fast as it is compared";
    let error = StoreError::new(StoreErrorKind::Conflict, "limits_apply", message);
    Err(ApplyError::new(applied.changes, total, None, Stop::Failed(error.into())))
}

/// The plan for what the store has by now.
async fn compared_again(limiter: &RateLimiter, plan: &Plan) -> Result<Plan, Stop> {
    let live = Live::read(limiter, &plan.asked.manifest).await?;
    plan.compared_again(&live).map_err(|error| Stop::Failed(unfit(&error)))
}

fn unfit(error: &PlanError) -> Error {
    Error::from(Invalid::Refused(error.to_string()))
}

/// How one plan under one mark ended early.
enum Ended {
    /// For this reason.
    For(ApplyError),
    /// Before it had the mark: what was read is old.
    Moved(ApplyError),
}

/// One plan under one mark.
async fn hold_and_work(
    limiter: &RateLimiter,
    plan: &Plan,
    how: &Apply<'_>,
    applied: &mut Applied,
) -> Result<(), Ended> {
    let managed = plan.before.with(&plan.after);
    let mark = Mark::new(&how.who, how.process.as_deref(), how.clock.now(), &*how.entropy);
    let mut hold = Hold::new(limiter, &*how.clock, mark, managed, reason(how));
    let mut total = plan.changes.len();
    if let Err(stop) = hold.begin(&details(plan, how, "begun")).await {
        let has_moved = matches!(&stop, Stop::Failed(error) if is_conflict(error));
        if matches!(stop, Stop::Failed(_)) {
            hold.lay_down().await;
        }
        let error = ApplyError::new(0, total, None, stop);
        return Err(if has_moved { Ended::Moved(error) } else { Ended::For(error) });
    }
    match work(&mut hold, limiter, plan, how, (applied, &mut total)).await {
        Ok(()) => Ok(()),
        Err((at, stop)) => {
            if matches!(stop, Stop::Failed(_) | Stop::Asked) {
                hold.lay_down().await;
            }
            Err(Ended::For(ApplyError::new(applied.changes, total, at, stop)))
        }
    }
}

/// Where an apply ended early, and why.
type Cut = (Option<String>, Stop);

/// Makes the changes, and lays the mark down.
async fn work(
    hold: &mut Hold<'_>,
    limiter: &RateLimiter,
    plan: &Plan,
    how: &Apply<'_>,
    (applied, total): (&mut Applied, &mut usize),
) -> Result<(), Cut> {
    let nowhere = |stop| (None, stop);
    // Every change tells the reason, too.
    let told = how.reason.as_ref().map(|reason| limiter.with_reason(reason));
    let limiter = told.as_ref().unwrap_or(limiter);
    let again;
    let plan = match plan.held() {
        None => plan,
        // Until its mark was taken, the one before was still writing: places that this plan found
        // as in the file may be others by now. From here on a change that meets another one ends
        // this apply, whoever has made it.
        Some(_) => {
            how.clock.sleep(UNDER_WAY).await;
            again = compared_again(limiter, plan).await.map_err(nowhere)?;
            *total = again.changes.len();
            &again
        }
    };
    let mut beat = hold.beat();
    let mut failed = None;
    for phase in phases(&plan.changes) {
        let look = hold.look();
        let is_over = AtomicBool::new(false);
        let goes_on = || !is_over.load(Relaxed) && !how.stopped.is_some_and(|stopped| stopped());
        let mut made = stream::iter(phase.into_iter().take_while(|_| goes_on()))
            .map(|change| {
                let look = look.clone();
                async move { (change, make(limiter, change, &look).await) }
            })
            .buffer_unordered(WRITES_AT_ONCE);
        loop {
            match select(made.next(), &mut beat).await {
                Either::Left((None, _)) => break,
                Either::Left((Some((_, Ok(buckets))), _)) => {
                    applied.buckets += buckets;
                    applied.changes += 1;
                    if let Some(progress) = how.progress {
                        progress(applied.changes, *total);
                    }
                }
                // Changes that have begun are not dropped half way.
                Either::Left((Some((change, Err(stop))), _)) => {
                    is_over.store(true, Relaxed);
                    failed.get_or_insert_with(|| (Some(change.to_string()), stop));
                }
                Either::Right((Ok(version), _)) => {
                    hold.has_beaten(version);
                    beat = hold.beat();
                }
                Either::Right((Err(stop), _)) => {
                    is_over.store(true, Relaxed);
                    failed.get_or_insert((None, stop));
                    beat = Box::pin(std::future::pending());
                }
            }
        }
        drop(made);
        if let Some(cut) = failed.take() {
            return Err(cut);
        }
        if applied.changes < *total && how.stopped.is_some_and(|stopped| stopped()) {
            return Err((None, Stop::Asked));
        }
    }
    // A sign of life that is under way may still land; the last write knows its own.
    drop(beat);
    if plan.is_resumed() {
        applied.buckets += finish_flags(hold, limiter, plan).await?;
    }
    hold.end(&plan.after, &details(plan, how, "done")).await.map_err(nowhere)
}

/// Sets the flags once more that an apply before has stored: where buckets are visited one by one,
/// it may have been cut off before it was with all of them.
async fn finish_flags(hold: &Hold<'_>, limiter: &RateLimiter, plan: &Plan) -> Result<u64, Cut> {
    if !limiter.capabilities().remote {
        return Ok(0);
    }
    let is_made = |place: &Place| {
        let of_this = |change: &Change| change.what() == "flag" && change.place() == *place;
        plan.changes.iter().any(of_this)
    };
    let mut buckets = 0;
    for (place, spec) in &plan.asked.manifest.levels {
        let Some(flag) = spec.flag.filter(|_| !is_made(place)) else { continue };
        let change = Change::Flag { place: place.clone(), before: Some(flag), after: Some(flag) };
        let made = make(limiter, &change, &hold.look()).await;
        buckets += made.map_err(|stop| (Some(change.to_string()), stop))?;
    }
    Ok(buckets)
}

/// The reason as the audit log has it.
fn reason(how: &Apply<'_>) -> Option<(String, String)> {
    let reason = how.reason.as_ref()?;
    Some(("reason".to_owned(), cut(reason, REASON_BYTES_MAX).to_owned()))
}

/// What the audit log tells, by name.
fn details(plan: &Plan, how: &Apply<'_>, state: &str) -> Details {
    let mut details = vec![
        ("added".to_owned(), plan.count(Sign::Add).to_string()),
        ("apply".to_owned(), state.to_owned()),
        ("changed".to_owned(), plan.count(Sign::Change).to_string()),
    ];
    details.extend(reason(how));
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
            Change::Delete { before, .. } => Some((&before.id, before.parent.as_ref())),
            _ => None,
        })
        .collect();
    for change in changes {
        let step = match change {
            // Before the flags: a flag gives its level a new version, and the plan knows the old.
            Change::Limits { place, after, .. } if !after.is_empty() => (0, depth_of(place)),
            Change::Flag { after: Some(flag), .. } if flag.blocks() => (1, 0),
            Change::Create { id, .. } => {
                let parent = |id: &EntityId| created.get(id).and_then(|spec| spec.parent.as_ref());
                (2, generations(id, parent))
            }
            Change::Update { .. } => (3, 0),
            Change::Flag { after: Some(_), .. } => (4, 0),
            Change::Flag { after: None, .. } | Change::Limits { .. } => (5, 0),
            Change::Delete { before, .. } => {
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

/// Flags and removals have no version that the store compares, so what they are about is looked at
/// right before: what somebody has set by hand since the plan was made stays. False when there is
/// nothing left to do.
async fn check_unchanged(limiter: &RateLimiter, change: &Change) -> Result<bool, Error> {
    let is_as_read = match change {
        Change::Flag { place, before, after } => {
            let found = limiter.level(&place.level()).await?.and_then(|level| level.flag);
            found == *before || found == *after
        }
        Change::Limits { place, before, after, .. } if after.is_empty() => {
            let found = limiter.level(&place.level()).await?;
            let found = found.map(|level| sorted(&level.limits)).unwrap_or_default();
            found.is_empty() || found == sorted(before)
        }
        Change::Delete { before, along } => {
            let Some(found) = limiter.entity(before.id.clone()).await? else { return Ok(false) };
            // An entity that is created anew never has a version of before.
            let mut is_as_read = found.version == before.version;
            let own = Place::entity(before.id.clone(), None);
            let is_bare = !along.iter().any(|(place, _)| *place == own);
            let bare = is_bare.then(|| (own, LevelConfig::default()));
            for (place, level) in along.iter().chain(&bare) {
                let found = limiter.level(&place.level()).await?.unwrap_or_default();
                is_as_read &=
                    found.flag == level.flag && sorted(&found.limits) == sorted(&level.limits);
            }
            is_as_read
        }
        _ => true,
    };
    if is_as_read {
        return Ok(true);
    }
    let message = "somebody changed it since the plan was made; it stays as it is";
    Err(StoreError::new(StoreErrorKind::Conflict, "limits_apply", message).into())
}

/// Makes one change; how many buckets a flag has reached.
async fn make(limiter: &RateLimiter, change: &Change, look: &Look<'_>) -> Result<u64, Stop> {
    let mut tries = 0;
    loop {
        tries += 1;
        let checked = check_unchanged(limiter, change).await;
        // Last: nothing comes between this look and the write. One that lost its mark has met the
        // changes of whoever has it, and says so.
        look.still().await?;
        if !checked? {
            return Ok(0);
        }
        match attempt(limiter, change).await {
            // The store has waited already, and says so when others are in the way.
            Err(error) if error.kind() == ErrorKind::Store(StoreErrorKind::Busy) => {
                if tries >= TRIES_MAX {
                    return Err(error.into());
                }
            }
            outcome => return Ok(outcome?),
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
        Change::Delete { before, .. } => {
            limiter.delete_entity(before.id.clone()).await?;
        }
    }
    Ok(0)
}
