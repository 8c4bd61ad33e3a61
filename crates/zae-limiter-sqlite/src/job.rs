//! The jobs that callers queue for the writer thread, and their answers.

use std::path::Path;

use rusqlite::Connection;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use zae_limiter_core::{EntityId, ResourceName, Take, TimeMs};
use zae_limiter_store::{
    Adjusted, BucketDelta, ConsumeOutcome, ConsumeRequest, Delta, LimitsInForce, MemberTake,
    StoreError,
};

use crate::error::{Outcome, split};
use crate::transaction::Transaction;

/// Work for the writer thread. A job owns its data, because its caller may have gone.
pub(crate) enum Job {
    /// A decision over a chain.
    Consume(Box<ConsumeJob>, oneshot::Sender<Box<ConsumeJob>>),
    /// Corrections of several buckets.
    Adjust(AdjustJob),
    /// Anything else, alone in a transaction of its own.
    Task(Box<dyn Task>),
}

impl Job {
    /// True when the caller of a take has gone, and its work is of no use to others. A correction
    /// reports usage that has happened already, and an administrator's change is wanted whether or
    /// not its caller learns of it.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(self, Job::Consume(_, reply) if reply.is_closed())
    }
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;
type Receipt<T> = oneshot::Receiver<Result<T, StoreError>>;

/// A take, which goes to the thread and comes back with the result. A pointer is cheaper to move
/// than an outcome, and memory is cheaper to free on the thread that allocated it.
pub(crate) struct ConsumeJob {
    ns: i64,
    members: SmallVec<[OwnedMember; 2]>,
    now: TimeMs,
    /// `None` until it is decided.
    pub(crate) result: Option<Result<ConsumeOutcome, StoreError>>,
}

struct OwnedMember {
    entity: EntityId,
    resource: ResourceName,
    limits: LimitsInForce,
    takes: SmallVec<[Take; 4]>,
}

impl ConsumeJob {
    pub(crate) fn job(
        ns: i64,
        request: &ConsumeRequest<'_>,
    ) -> (Job, oneshot::Receiver<Box<ConsumeJob>>) {
        let owned = |member: &MemberTake<'_>| OwnedMember {
            entity: member.entity.clone(),
            resource: member.resource.clone(),
            limits: member.limits.clone(),
            takes: SmallVec::from_slice(member.takes),
        };
        let (reply, receipt) = oneshot::channel();
        let members = request.members.iter().map(owned).collect();
        (
            Job::Consume(
                Box::new(ConsumeJob { ns, members, now: request.now, result: None }),
                reply,
            ),
            receipt,
        )
    }

    fn decide(&self, conn: &Connection, transaction: &mut Transaction) -> Outcome<ConsumeOutcome> {
        let members: SmallVec<[MemberTake<'_>; 2]> = self
            .members
            .iter()
            .map(|member| MemberTake {
                entity: &member.entity,
                resource: &member.resource,
                limits: &member.limits,
                takes: &member.takes,
                absent: &[],
            })
            .collect();
        transaction.consume(conn, self.ns, &members, self.now)
    }
}

pub(crate) struct AdjustJob {
    ns: i64,
    deltas: Vec<OwnedDelta>,
    now: TimeMs,
    reply: Reply<Vec<Result<Adjusted, StoreError>>>,
}

struct OwnedDelta {
    entity: EntityId,
    resource: ResourceName,
    limits: LimitsInForce,
    deltas: SmallVec<[Delta; 4]>,
}

impl AdjustJob {
    pub(crate) fn job(
        ns: i64,
        deltas: &[BucketDelta<'_>],
        now: TimeMs,
    ) -> (Job, Receipt<Vec<Result<Adjusted, StoreError>>>) {
        let owned = |delta: &BucketDelta<'_>| OwnedDelta {
            entity: delta.entity.clone(),
            resource: delta.resource.clone(),
            limits: delta.limits.clone(),
            deltas: SmallVec::from_slice(delta.deltas),
        };
        let (reply, receipt) = oneshot::channel();
        (
            Job::Adjust(AdjustJob { ns, deltas: deltas.iter().map(owned).collect(), now, reply }),
            receipt,
        )
    }

    fn apply(
        &self,
        conn: &Connection,
        transaction: &mut Transaction,
        path: &Path,
    ) -> Outcome<Vec<Result<Adjusted, StoreError>>> {
        let mut results = Vec::with_capacity(self.deltas.len());
        for delta in &self.deltas {
            let OwnedDelta { entity, resource, limits, deltas } = delta;
            // Only stores that lose answers look at the operation.
            let borrowed =
                BucketDelta { entity, resource, limits, deltas, operation: 0, take: 0, place: 0 };
            results.push(split(
                transaction.adjust(conn, self.ns, &borrowed, self.now),
                "adjust",
                path,
            )?);
        }
        Ok(results)
    }
}

/// Work that is not a decision.
pub(crate) trait Task: Send {
    /// Does the work, inside a transaction.
    fn run(&mut self, conn: &Connection) -> Outcome<()>;

    /// Tells the caller, once the transaction is committed (`Ok`) or rolled back.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// A closure as a task.
pub(crate) struct Work<T, F> {
    operation: &'static str,
    work: Option<F>,
    value: Option<T>,
    reply: Reply<T>,
}

impl<T, F> Work<T, F>
where
    T: Send + 'static,
    F: FnOnce(&Connection) -> Outcome<T> + Send + 'static,
{
    pub(crate) fn job(operation: &'static str, work: F) -> (Job, Receipt<T>) {
        let (reply, receipt) = oneshot::channel();
        (Job::Task(Box::new(Work { operation, work: Some(work), value: None, reply })), receipt)
    }
}

impl<T, F> Task for Work<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> Outcome<T> + Send,
{
    fn run(&mut self, conn: &Connection) -> Outcome<()> {
        if let Some(work) = self.work.take() {
            self.value = Some(work(conn)?);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let result = match (committed, self.value) {
            (Ok(()), Some(value)) => Ok(value),
            // Without a value and without an error the caller sees that there is no answer.
            (Ok(()), None) => return,
            (Err(error), _) => Err(error.during(self.operation)),
        };
        // The caller may have gone; the change stays.
        let _ = self.reply.send(result);
    }
}

/// An answer that is held back until the transaction has been committed.
pub(crate) enum Answer {
    Consume(Box<ConsumeJob>, oneshot::Sender<Box<ConsumeJob>>),
    Adjust(
        Reply<Vec<Result<Adjusted, StoreError>>>,
        Option<Result<Vec<Result<Adjusted, StoreError>>, StoreError>>,
    ),
    Task(Box<dyn Task>, Result<(), StoreError>),
}

impl Answer {
    /// The answer to a job that nothing has been done for.
    pub(crate) fn unfinished(job: Job) -> Answer {
        match job {
            Job::Consume(job, reply) => Answer::Consume(job, reply),
            Job::Adjust(job) => Answer::Adjust(job.reply, None),
            Job::Task(task) => Answer::Task(task, Ok(())),
        }
    }

    /// Does the work of an operation. The error is the transaction's; what went wrong for this
    /// caller alone is in the answer.
    pub(crate) fn decide(
        job: Job,
        conn: &Connection,
        transaction: &mut Transaction,
        path: &Path,
    ) -> (Answer, Outcome<()>) {
        match job {
            Job::Consume(mut job, reply) => {
                let decided = split(job.decide(conn, transaction), "consume", path)
                    .map(|result| job.result = Some(result));
                (Answer::Consume(job, reply), decided)
            }
            Job::Adjust(job) => match job.apply(conn, transaction, path) {
                Ok(results) => (Answer::Adjust(job.reply, Some(Ok(results))), Ok(())),
                Err(failure) => (Answer::Adjust(job.reply, None), Err(failure)),
            },
            Job::Task(mut task) => {
                let result = task.run(conn);
                (Answer::Task(task, Ok(())), result)
            }
        }
    }

    /// Does the work of a task.
    pub(crate) fn run_task(&mut self, conn: &Connection) -> Outcome<()> {
        match self {
            Answer::Task(task, _) => task.run(conn),
            Answer::Consume(..) | Answer::Adjust(..) => Ok(()),
        }
    }

    /// Nothing of the transaction was applied.
    pub(crate) fn fail(&mut self, error: StoreError) {
        match self {
            Answer::Consume(job, _) => job.result = Some(Err(error.during("consume"))),
            Answer::Adjust(_, result) => *result = Some(Err(error.during("adjust"))),
            Answer::Task(_, result) => *result = Err(error),
        }
    }

    /// Sends the answer. A caller that has gone gets none; the change stays.
    pub(crate) fn send(self) {
        match self {
            Answer::Consume(job, reply) => drop(reply.send(job)),
            Answer::Adjust(reply, Some(result)) => drop(reply.send(result)),
            Answer::Task(task, result) => task.answer(result),
            Answer::Adjust(_, None) => {}
        }
    }
}
