//! Operations: futures that the simulator polls one step at a time, or drops.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zae_limiter::{
    AcquireError, CommitError, Lease, NewEntity, OnDrop, OnUnavailable, PageRequest, RateLimiter,
    Request,
};
use zae_limiter_core::{EntityId, Limit, ResourceName};
use zae_limiter_store::Level;

use super::world::{ENTITIES, LIMITS, entity, resource};
use crate::oracle::books::OpId;
use crate::oracle::inspect::RESOURCES;
use crate::oracle::lease::LeaseId;
use crate::rng::Rng;

/// What a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) entity: EntityId,
    pub(crate) resource: ResourceName,
    /// Declared limits with whole tokens; each name once.
    pub(crate) amounts: Vec<(String, u64)>,
    pub(crate) limits: Option<Vec<Limit>>,
    pub(crate) fallback: Option<Vec<Limit>>,
    pub(crate) on_drop: OnDrop,
    pub(crate) on_unavailable: Option<OnUnavailable>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) wait: Option<Duration>,
}

impl Ask {
    pub(crate) fn random(rng: &mut Rng) -> Ask {
        let mut names: Vec<&str> = LIMITS.to_vec();
        names.sort_by_cached_key(|name| !(*name == "rpm" || *name == "tpm") && rng.chance(90));
        let count = rng.weighted(&[(5, 1), (5, 2), (1, 3)]);
        let first = usize::from(rng.chance(30));
        let amounts = names
            .into_iter()
            .skip(first)
            .take(count)
            .map(|name| (name.to_owned(), rng.amount()))
            .collect();
        Ask {
            entity: rng.entity(),
            resource: rng.resource(),
            amounts,
            limits: rng.chance(8).then(|| rng.limits()),
            fallback: rng.chance(15).then(|| rng.limits()),
            on_drop: *rng.pick(&[OnDrop::Rollback, OnDrop::Rollback, OnDrop::Commit, OnDrop::Keep]),
            on_unavailable: *rng.pick(&[
                None,
                None,
                Some(OnUnavailable::Allow),
                Some(OnUnavailable::Block),
            ]),
            deadline: rng.chance(10).then(|| Duration::from_millis(rng.between(1, 3_000))),
            wait: rng.chance(8).then(|| rng.pause()),
        }
    }

    /// Makes it one that takes much from one bucket outside of any chain, and gives nothing back by
    /// itself.
    pub(crate) fn drain(&mut self, rng: &mut Rng) {
        (self.entity, self.resource) = (entity(ENTITIES[4]), resource(RESOURCES[0]));
        self.amounts = vec![(LIMITS[0].to_owned(), rng.between(1, 40))];
        (self.limits, self.on_drop, self.wait) = (None, OnDrop::Keep, None);
    }

    pub(crate) fn request(&self) -> Request {
        let mut request =
            Request::new(self.entity.clone(), self.resource.clone()).on_drop(self.on_drop);
        for (name, tokens) in &self.amounts {
            request = request.take(name.as_str(), *tokens);
        }
        if let Some(limits) = &self.limits {
            request = request.limits(limits.clone());
        }
        if let Some(limits) = &self.fallback {
            request = request.fallback_limits(limits.clone());
        }
        if let Some(policy) = self.on_unavailable {
            request = request.on_unavailable(policy);
        }
        if let Some(deadline) = self.deadline {
            request = request.deadline(deadline);
        }
        if let Some(wait) = self.wait {
            request = request.wait(wait);
        }
        request
    }
}

impl Rng {
    /// Tokens: mostly few, sometimes none, sometimes more than any limit here has.
    pub(crate) fn amount(&mut self) -> u64 {
        let (low, high) = self.weighted(&[(2, (0, 0)), (8, (1, 4)), (4, (3, 30)), (1, (20, 200))]);
        self.between(low, high)
    }
}

/// What the work inside `with_lease` does, and how it ends.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) records: Vec<(usize, u64)>,
    pub(crate) pauses: u32,
    pub(crate) end: WorkEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkEnd {
    Ok,
    Err,
    Panic,
}

/// How far the work inside `with_lease` has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) recorded: AtomicBool,
    pub(crate) ended: AtomicBool,
}

/// What an operation is about.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Acquire(Ask),
    /// A lease in a closure.
    With(Ask, Work, Arc<Progress>),
    /// More of a lease.
    Consume(LeaseId, Vec<(String, u64)>),
    Flush(LeaseId),
    Commit(LeaseId),
    Rollback(LeaseId),
    /// Anything that no lease comes of.
    Other,
}

/// How an operation ended.
pub(crate) enum Done {
    Acquired(Result<Lease, AcquireError>),
    /// `Err(None)` is the work's own error.
    Worked(Result<(), Option<AcquireError>>),
    Consumed(Result<(), AcquireError>),
    Settled(Result<(), CommitError>),
    Said(String),
}

pub(crate) type OpFuture = Pin<Box<dyn Future<Output = Done>>>;

pub(crate) struct Op {
    pub(crate) id: OpId,
    /// Which of the clients there are, and its id.
    pub(crate) client: usize,
    pub(crate) client_id: usize,
    pub(crate) task: Task,
    pub(crate) polled: bool,
    pub(crate) began: Duration,
    pub(crate) future: OpFuture,
}

pub(crate) fn acquire(limiter: RateLimiter, request: Request) -> OpFuture {
    Box::pin(async move { Done::Acquired(limiter.acquire(request).await) })
}

/// The work's own error, or why there was no lease.
struct WorkError(Option<AcquireError>);

impl From<AcquireError> for WorkError {
    fn from(error: AcquireError) -> WorkError {
        WorkError(Some(error))
    }
}

pub(crate) fn with_lease(
    limiter: RateLimiter,
    ask: &Ask,
    work: Work,
    progress: Arc<Progress>,
) -> OpFuture {
    let request = ask.request();
    let names: Vec<String> = ask.amounts.iter().map(|(name, _)| name.clone()).collect();
    Box::pin(async move {
        let worked = limiter
            .with_lease(request, async |lease| {
                for (index, tokens) in &work.records {
                    lease.record(&names[*index], *tokens).expect("the limit was declared");
                }
                progress.recorded.store(true, Ordering::Relaxed);
                pauses(work.pauses).await;
                progress.ended.store(true, Ordering::Relaxed);
                match work.end {
                    WorkEnd::Ok => Ok(()),
                    WorkEnd::Err => Err(WorkError(None)),
                    // Without the message that a panic prints.
                    WorkEnd::Panic => std::panic::resume_unwind(Box::new("the work panicked")),
                }
            })
            .await;
        Done::Worked(worked.map_err(|error| error.0))
    })
}

/// Pending for that many polls.
async fn pauses(times: u32) {
    let mut left = times;
    std::future::poll_fn(move |_| {
        if left == 0 {
            return std::task::Poll::Ready(());
        }
        left -= 1;
        std::task::Poll::Pending
    })
    .await;
}

pub(crate) fn consume(lease: Arc<Lease>, amounts: Vec<(String, u64)>) -> OpFuture {
    Box::pin(async move {
        Done::Consumed(
            lease.consume(amounts.iter().map(|(name, tokens)| (name.as_str(), *tokens))).await,
        )
    })
}

pub(crate) fn flush(lease: Arc<Lease>) -> OpFuture {
    Box::pin(async move { Done::Settled(lease.flush().await) })
}

pub(crate) fn commit(lease: Lease) -> OpFuture {
    Box::pin(async move { Done::Settled(lease.commit().await) })
}

pub(crate) fn rollback(lease: Lease) -> OpFuture {
    Box::pin(async move { Done::Settled(lease.rollback().await) })
}

/// Something that needs no lease: administration or a look. Returns what it is called, too.
pub(crate) fn other(limiter: RateLimiter, is_sparse: bool, rng: &mut Rng) -> (String, OpFuture) {
    fn said<T: std::fmt::Debug>(result: Result<T, zae_limiter::Error>) -> Done {
        Done::Said(match result {
            Ok(value) => format!("{value:?}"),
            Err(error) => format!("failed: {error}"),
        })
    }
    let flags = if is_sparse { 16 } else { 7 };
    match rng.weighted(&[
        (9, 0),
        (3, 1),
        (flags, 2),
        (3, 3),
        (3, 4),
        (2, 5),
        (3, 6),
        (7, 7),
        (1, 8),
    ]) {
        0 => {
            let (level, limits) = (rng.limited_level(is_sparse), rng.limits());
            let texts: Vec<String> = limits.iter().map(ToString::to_string).collect();
            (
                format!("set limits of {level} to {texts:?}"),
                Box::pin(async move { said(limiter.set_limits(&level, limits).await) }),
            )
        }
        1 => {
            let level = rng.level();
            (
                format!("delete limits of {level}"),
                Box::pin(async move { said(limiter.delete_limits(&level).await) }),
            )
        }
        2 => flag(limiter, is_sparse, rng),
        3 => {
            let (who, what) = (rng.entity(), rng.resource());
            let only = rng.chance(30).then(|| vec![LIMITS[0].parse().expect("a valid limit name")]);
            let name = format!("reset {who}/{what} {only:?}");
            (name, Box::pin(async move { said(limiter.reset(who, what, only.as_deref()).await) }))
        }
        4 => {
            let child = rng.index(4);
            let parent = (child < 3 && rng.chance(85)).then(|| entity(ENTITIES[child + 1]));
            let new = NewEntity {
                id: entity(ENTITIES[child]),
                name: "somebody".to_owned(),
                parent,
                cascade: rng.chance(85),
                metadata: std::collections::BTreeMap::new(),
            };
            (
                format!("create {} under {:?}", new.id, new.parent),
                Box::pin(async move { said(limiter.create_entity(new).await) }),
            )
        }
        5 => {
            let (who, attempts) = (rng.entity(), rng.between(1, 3));
            let name = format!("delete {who}, up to {attempts} times");
            let delete = async move {
                let mut answer = limiter.delete_entity(who.clone()).await;
                for _ in 1..attempts {
                    // The next attempt goes on where the last one ended.
                    if answer.is_err() {
                        answer = limiter.delete_entity(who.clone()).await;
                    }
                }
                said(answer)
            };
            (name, Box::pin(delete))
        }
        6 => {
            let ask = Ask::random(rng);
            let request = if rng.chance(30) {
                Request::new(ask.entity.clone(), ask.resource.clone())
            } else {
                ask.request()
            };
            let look = async move {
                Done::Said(match limiter.availability(&request).await {
                    Ok(seen) => format!("{:?}", seen.retry_after()),
                    Err(error) => format!("failed: {error}"),
                })
            };
            (format!("look for {}/{} {:?}", ask.entity, ask.resource, ask.amounts), Box::pin(look))
        }
        7 => {
            let steps = u32::try_from(rng.between(1, 80)).unwrap_or(1);
            (
                format!("sweep {steps} steps"),
                Box::pin(async move { said(limiter.sweep(steps).await) }),
            )
        }
        _ => {
            let who = rng.entity();
            (
                format!("list buckets of {who}"),
                Box::pin(async move {
                    said(
                        limiter
                            .buckets(who, &PageRequest::default())
                            .await
                            .map(|page| page.items.len()),
                    )
                }),
            )
        }
    }
}

fn flag(limiter: RateLimiter, is_sparse: bool, rng: &mut Rng) -> (String, OpFuture) {
    let level = match rng.level() {
        // Takes cascade to these entities, whether they have limits of their own or not. Of those
        // without limits only the store knows the flag.
        _ if rng.chance(if is_sparse { 85 } else { 35 }) => {
            Level::Entity(entity(ENTITIES[1 + rng.index(3)]))
        }
        Level::System => Level::Resource(rng.resource()),
        level => level,
    };
    let verb = rng.weighted(&[(4, 0), (3, 1), (4, 2)]);
    let name = format!("{} {level}", ["disable", "enable", "inherit"][verb]);
    let future = async move {
        let answer = match verb {
            0 => limiter.disable(&level).await,
            1 => limiter.enable(&level).await,
            _ => limiter.clear_disabled(&level).await,
        };
        Done::Said(format!("{answer:?}"))
    };
    (name, Box::pin(future))
}
