//! The settler: the one background task of a limiter. It finishes the work that callers left:
//! leases dropped without commit or rollback, writes in flight whose caller went away, charges that
//! failed.
//!
//! The queue of the settler is bounded. A job that does not fit is counted as abandoned, and its
//! tokens stay spent: a lost job never mints.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use zae_limiter_store::{BoxFuture, Clock, ConsumeOutcome, Entropy, Grant, Store};

use super::settlement::{AdjustInFlight, Settlement};
use crate::deadline::timeout;
use crate::limiter::{Amounts, ConsumeInFlight, Plan};
use crate::metrics;

/// Jobs that may wait.
const QUEUE_MAX: usize = 4096;
/// Jobs worked on at once.
const IN_FLIGHT_MAX: usize = 64;
/// Times one settlement is sent, over about half a minute: long enough for a store to restart.
const ATTEMPTS_MAX: u32 = 14;
/// Pause before the second attempt; doubled each time up to the longest, jittered.
const PAUSE_MS: u64 = 50;
/// The longest pause.
const PAUSE_MS_MAX: u64 = 5_000;
/// How long one write is waited for.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// Work for the settler.
pub(crate) enum Job {
    /// Write this.
    Settle { store: Arc<dyn Store>, settlement: Settlement },
    /// A consume whose caller went away: if it was granted, give it back.
    GiveBack {
        store: Arc<dyn Store>,
        consume: ConsumeInFlight,
        plan: Arc<Plan>,
        operation: u64,
        amounts: Amounts,
    },
    /// A settlement that was being written when its caller went away.
    Finish { store: Arc<dyn Store>, adjust: AdjustInFlight, settlement: Settlement },
    /// A read that was begun beside a take and outlasted it, or what local blocks do behind a
    /// request: no caller waits for it.
    Read(BoxFuture<'static, ()>),
}

/// Counts of what the settler has done since the limiter was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Background settlements completed.
    pub settled: u64,
    /// Jobs that found the queue full, or were being worked on when the runtime ended: what they
    /// held stays spent.
    pub abandoned: u64,
    /// Bucket updates dropped: refunds of unknown outcome, and writes that ran out of retries.
    pub lost: u64,
    /// Jobs still waiting or in flight.
    pub pending: u64,
}

/// The handle to the settler. Its task lives on a runtime; when that ends, the jobs that wait are
/// taken over by a task on the next runtime from which a job is handed over or drained. The task
/// ends when the handle is gone and nothing is left to do.
#[derive(Debug)]
pub(crate) struct Settler {
    desk: Arc<Desk>,
}

/// The state that the handle and the task share. Locks are held for a moment, never while a job is
/// polled or dropped.
struct Desk {
    jobs: Mutex<Jobs>,
    tally: Tally,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

struct Jobs {
    waiting: VecDeque<Job>,
    /// Wakes the task when there is a job.
    waker: Option<Waker>,
    /// True while a task works on the jobs.
    is_staffed: bool,
    /// True while the handle exists.
    is_open: bool,
}

#[derive(Debug, Default)]
struct Tally {
    pending: AtomicU64,
    settled: AtomicU64,
    abandoned: AtomicU64,
    lost: AtomicU64,
    idle: Notify,
    closed: AtomicBool,
}

impl Settler {
    /// Starts the task on `runtime`.
    pub(crate) fn start(
        runtime: &Handle,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Settler {
        let jobs = Jobs { waiting: VecDeque::new(), waker: None, is_staffed: false, is_open: true };
        let desk =
            Arc::new(Desk { jobs: Mutex::new(jobs), tally: Tally::default(), clock, entropy });
        desk.staff(runtime);
        Settler { desk }
    }

    /// Hands over a job; never blocks, so it can be called from `Drop`.
    pub(crate) fn submit(&self, job: Job) {
        self.desk.submit(job);
    }

    /// A way to hand over what no caller waits for, while the settler exists.
    pub(crate) fn behind(&self) -> impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static {
        let desk = Arc::downgrade(&self.desk);
        move |work| {
            if let Some(desk) = desk.upgrade() {
                desk.submit(Job::Read(work));
            }
        }
    }

    /// Waits until nothing is pending, at most `deadline`.
    pub(crate) async fn drain(&self, deadline: Duration) -> Settled {
        let all_done = async {
            loop {
                let idle = self.desk.tally.idle.notified();
                let mut idle = std::pin::pin!(idle);
                // Registered before the check, so that no job that ends in between is missed.
                idle.as_mut().enable();
                if self.desk.tally.pending.load(Ordering::Acquire) == 0 {
                    return;
                }
                self.desk.call();
                idle.await;
            }
        };
        timeout(&*self.desk.clock, deadline, all_done).await;
        self.settled()
    }

    pub(crate) fn settled(&self) -> Settled {
        let tally = &self.desk.tally;
        Settled {
            settled: tally.settled.load(Ordering::Acquire),
            abandoned: tally.abandoned.load(Ordering::Acquire),
            lost: tally.lost.load(Ordering::Acquire),
            pending: tally.pending.load(Ordering::Acquire),
        }
    }

    /// Counts bucket changes that were given up outside of the task.
    pub(crate) fn count_lost(&self, count: usize) {
        self.desk.tally.lose(count);
    }

    /// Marks the limiter closed; true the first time.
    pub(crate) fn close(&self) -> bool {
        !self.desk.tally.closed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.desk.tally.closed.load(Ordering::Acquire)
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        let (waker, unstaffed) = {
            let mut jobs = self.desk.lock();
            jobs.is_open = false;
            let unstaffed =
                if jobs.is_staffed { VecDeque::new() } else { std::mem::take(&mut jobs.waiting) };
            (jobs.waker.take(), unstaffed)
        };
        waker.into_iter().for_each(Waker::wake);
        // Without a task the runtime has ended, and the limiter was used on no other since.
        unstaffed.iter().for_each(|job| self.desk.abandon(job.is_read()));
    }
}

impl Job {
    fn is_read(&self) -> bool {
        matches!(self, Job::Read(_))
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: &Arc<Desk>, job: Job) {
        self.tally.pending.fetch_add(1, Ordering::AcqRel);
        metrics::settler_job_began();
        let refused = {
            let mut jobs = self.lock();
            // No caller waits for a read. Without a task a queued read would keep its limiter alive
            // for ever.
            if jobs.waiting.len() >= QUEUE_MAX || (job.is_read() && !jobs.is_staffed) {
                Some(job)
            } else {
                jobs.waiting.push_back(job);
                None
            }
        };
        match refused {
            Some(job) => self.abandon(job.is_read()),
            None => self.call(),
        }
    }

    /// Wakes the task; puts a new one on the runtime of the caller when the last one has ended with
    /// its runtime. Outside of a runtime the jobs wait until a limiter is used on one.
    fn call(self: &Arc<Desk>) {
        let (waker, is_staffed) = {
            let mut jobs = self.lock();
            (jobs.waker.take(), jobs.is_staffed)
        };
        waker.into_iter().for_each(Waker::wake);
        if !is_staffed && let Ok(runtime) = Handle::try_current() {
            self.staff(&runtime);
        }
    }

    fn staff(self: &Arc<Desk>, runtime: &Handle) {
        if !std::mem::replace(&mut self.lock().is_staffed, true) {
            // The shift exists before it is spawned: a runtime that has ended drops it at once, and
            // the drop signs it off.
            runtime.spawn(Shift { desk: Arc::clone(self), in_flight: Vec::new() }.work());
        }
    }

    /// One job is given up.
    fn abandon(&self, is_read: bool) {
        if !is_read {
            self.tally.abandoned.fetch_add(1, Ordering::AcqRel);
            metrics::count(metrics::ABANDONED);
        }
        self.tally.done();
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl Tally {
    fn done(&self) {
        metrics::settler_job_ended();
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }

    fn lose(&self, count: usize) {
        if count > 0 {
            self.lost.fetch_add(count as u64, Ordering::AcqRel);
            metrics::lost(count as u64);
        }
    }
}

/// One task at work, on one runtime.
struct Shift {
    desk: Arc<Desk>,
    in_flight: Vec<InWork>,
}

struct InWork {
    is_read: bool,
    work: BoxFuture<'static, ()>,
}

impl Shift {
    /// Takes jobs while there is room and polls those in flight, all in one task: a store that
    /// hangs on one write must not hold up the others.
    async fn work(mut self) {
        std::future::poll_fn(move |context| {
            loop {
                let is_open = self.take_jobs(context);
                let before = self.in_flight.len();
                self.in_flight.retain_mut(|job| job.work.as_mut().poll(context).is_pending());
                if self.in_flight.is_empty() && !is_open {
                    return Poll::Ready(());
                }
                // Only an ended job makes room for another look at the queue.
                if self.in_flight.len() == before {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    /// False when the handle is gone and no job waits.
    fn take_jobs(&mut self, context: &mut Context<'_>) -> bool {
        let mut jobs = self.desk.lock();
        // Registered under the lock under which jobs are queued, so that no job is missed.
        jobs.waker = Some(context.waker().clone());
        while self.in_flight.len() < IN_FLIGHT_MAX
            && let Some(job) = jobs.waiting.pop_front()
        {
            let worker = Worker { desk: Arc::clone(&self.desk) };
            self.in_flight
                .push(InWork { is_read: job.is_read(), work: Box::pin(worker.work(job)) });
        }
        jobs.is_open || !jobs.waiting.is_empty()
    }
}

/// A task ends with its runtime, or when nothing is left to do. The jobs it was working on cannot
/// go on elsewhere and are counted as abandoned; the jobs that wait are left to the next task.
impl Drop for Shift {
    fn drop(&mut self) {
        let (waker, reads) = {
            let mut jobs = self.desk.lock();
            jobs.is_staffed = false;
            let (reads, waiting): (VecDeque<Job>, VecDeque<Job>) =
                std::mem::take(&mut jobs.waiting).into_iter().partition(Job::is_read);
            jobs.waiting = waiting;
            (jobs.waker.take(), reads)
        };
        drop(waker);
        reads.iter().for_each(|read| self.desk.abandon(read.is_read()));
        for job in self.in_flight.drain(..) {
            let is_read = job.is_read;
            drop(job);
            self.desk.abandon(is_read);
        }
        // A caller that drains on another runtime starts a task there.
        self.desk.tally.idle.notify_waiters();
    }
}

/// The tools for one job.
struct Worker {
    desk: Arc<Desk>,
}

impl Worker {
    async fn work(self, job: Job) {
        match job {
            Job::Settle { store, settlement } => self.settle(&store, settlement).await,
            Job::GiveBack { store, consume, plan, operation, amounts } => {
                let refund = |mut grant: Grant| {
                    let mut refund = Settlement::default();
                    let back = amounts.iter().map(|amount| amount.negated()).collect();
                    refund.add((&plan, operation), &back, &mut grant.places);
                    refund
                };
                match timeout(&*self.desk.clock, WRITE_DEADLINE, consume).await {
                    Some(Ok(ConsumeOutcome::Granted(grant))) => {
                        self.settle(&store, refund(grant)).await
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) if !error.fate_unknown() => {}
                    // The fate of the take is unknown. Giving back tokens that were not taken would
                    // mint, so they stay spent.
                    Some(Err(_)) | None => {
                        let parts = refund(Grant::default()).parts;
                        self.desk.tally.lose(parts.iter().map(|part| part.deltas.len()).sum());
                    }
                }
            }
            Job::Finish { store, adjust, settlement } => {
                let results =
                    timeout(&*self.desk.clock, WRITE_DEADLINE, adjust).await.unwrap_or_default();
                let (rest, given_up) = settlement.after(&results);
                self.desk.tally.lose(given_up);
                self.settle(&store, rest).await;
            }
            Job::Read(read) => {
                timeout(&*self.desk.clock, WRITE_DEADLINE, read).await;
            }
        }
        self.desk.tally.settled.fetch_add(1, Ordering::AcqRel);
        metrics::count(metrics::SETTLED);
        self.desk.tally.done();
    }

    async fn settle(&self, store: &Arc<dyn Store>, mut settlement: Settlement) {
        for attempt in 0..ATTEMPTS_MAX {
            if settlement.is_empty() {
                return;
            }
            if attempt > 0 {
                let pause_ms = (PAUSE_MS << (attempt - 1)).min(PAUSE_MS_MAX);
                self.desk
                    .clock
                    .sleep(Duration::from_millis(
                        pause_ms / 2 + self.desk.entropy.next_u64() % pause_ms,
                    ))
                    .await;
            }
            let sent = settlement.send(Arc::clone(store), self.desk.clock.now());
            let results =
                timeout(&*self.desk.clock, WRITE_DEADLINE, sent).await.unwrap_or_default();
            let (rest, given_up) = settlement.after(&results);
            self.desk.tally.lose(given_up);
            settlement = rest;
        }
        self.desk.tally.lose(settlement.parts.iter().map(|part| part.deltas.len()).sum());
    }
}
