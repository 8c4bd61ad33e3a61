//! The settler: the one background task of a limiter. It finishes what callers left unfinished.
//!
//! Leases dropped without commit or rollback, writes in flight whose caller went away, charges that failed. Its queue is
//! bounded; what does not fit is counted as abandoned, and its tokens stay spent: never the other direction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use zae_limiter_store::{BoxFuture, Clock, ConsumeOutcome, Entropy, Store};

use crate::inflight::within;
use crate::metrics;
use crate::plan::{AdjustInFlight, ConsumeInFlight, Settlement};

/// Jobs that may wait.
const QUEUE_MAX: usize = 4096;
/// Jobs worked on at once.
const IN_FLIGHT_MAX: usize = 64;
/// Times one settlement is sent: over about half a minute, so that a store that restarts loses nothing.
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
    GiveBack { store: Arc<dyn Store>, consume: ConsumeInFlight, refund: Settlement },
    /// A settlement that was being written when its caller went away.
    Finish { store: Arc<dyn Store>, adjust: AdjustInFlight, settlement: Settlement },
    /// A read that was begun beside a take and outlasted it.
    Read(BoxFuture<'static, ()>),
}

/// What became of everything left to the settler, since the limiter was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Background settlements completed.
    pub settled: u64,
    /// Jobs that found the queue full or the settler gone: what they held stays spent.
    pub abandoned: u64,
    /// Bucket updates dropped: refunds of unknown outcome, and writes that ran out of retries.
    pub lost: u64,
    /// Jobs still waiting or in flight.
    pub pending: u64,
}

/// The handle to the settler task; the task ends when the last handle is gone and the queue is empty.
#[derive(Debug)]
pub(crate) struct Settler {
    queue: mpsc::Sender<Job>,
    tally: Arc<Tally>,
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
    pub(crate) fn start(runtime: &tokio::runtime::Handle, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Settler {
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        let tally = Arc::new(Tally::default());
        runtime.spawn(run(jobs, Worker { clock, entropy, tally: Arc::clone(&tally) }));
        Settler { queue, tally }
    }

    /// Hands over a job; never blocks, so it can be called from `Drop`.
    pub(crate) fn submit(&self, job: Job) {
        self.tally.pending.fetch_add(1, Ordering::AcqRel);
        metrics::settler_job_began();
        if self.queue.try_send(job).is_err() {
            self.tally.abandoned.fetch_add(1, Ordering::AcqRel);
            metrics::abandoned();
            self.tally.done();
        }
    }

    /// Waits until nothing is pending.
    pub(crate) async fn drain(&self) -> Settled {
        loop {
            let idle = self.tally.idle.notified();
            let mut idle = std::pin::pin!(idle);
            // Registered before the check, so that a job that ends in between is not missed.
            idle.as_mut().enable();
            if self.tally.pending.load(Ordering::Acquire) == 0 {
                return self.settled();
            }
            idle.await;
        }
    }

    pub(crate) fn settled(&self) -> Settled {
        Settled {
            settled: self.tally.settled.load(Ordering::Acquire),
            abandoned: self.tally.abandoned.load(Ordering::Acquire),
            lost: self.tally.lost.load(Ordering::Acquire),
            pending: self.tally.pending.load(Ordering::Acquire),
        }
    }

    /// Counts bucket changes that were given up outside of the task.
    pub(crate) fn count_lost(&self, count: usize) {
        self.tally.lose(count);
    }

    /// Marks the limiter closed; true the first time.
    pub(crate) fn close(&self) -> bool {
        !self.tally.closed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.tally.closed.load(Ordering::Acquire)
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

/// What the task works with.
#[derive(Clone)]
struct Worker {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    tally: Arc<Tally>,
}

/// Takes jobs while there is room and polls those in flight, all in one task: a store that hangs on one write must not hold
/// up the others.
async fn run(mut jobs: mpsc::Receiver<Job>, worker: Worker) {
    let mut in_flight: Vec<BoxFuture<'static, ()>> = Vec::new();
    let mut open = true;
    std::future::poll_fn(|context| {
        loop {
            while open && in_flight.len() < IN_FLIGHT_MAX {
                match jobs.poll_recv(context) {
                    Poll::Ready(Some(job)) => in_flight.push(Box::pin(worker.clone().work(job))),
                    Poll::Ready(None) => open = false,
                    Poll::Pending => break,
                }
            }
            let before = in_flight.len();
            in_flight.retain_mut(|job| job.as_mut().poll(context).is_pending());
            if in_flight.is_empty() && !open {
                return Poll::Ready(());
            }
            // Only an ended job makes room for another look at the queue.
            if in_flight.len() == before || !open {
                return Poll::Pending;
            }
        }
    })
    .await;
}

impl Worker {
    async fn work(self, job: Job) {
        match job {
            Job::Settle { store, settlement } => self.settle(&store, settlement).await,
            Job::GiveBack { store, consume, refund } => match within(&*self.clock, WRITE_DEADLINE, consume).await {
                Some(Ok(ConsumeOutcome::Granted(_))) => self.settle(&store, refund).await,
                Some(Ok(_)) => {}
                Some(Err(error)) if !error.fate_unknown() => {}
                // Taken or not, nobody knows: giving back what was not taken would mint, so it stays spent.
                Some(Err(_)) | None => self.tally.lose(refund.parts.iter().map(|part| part.deltas.len()).sum()),
            },
            Job::Finish { store, adjust, settlement } => {
                let results = within(&*self.clock, WRITE_DEADLINE, adjust).await.unwrap_or_default();
                let (rest, given_up) = settlement.after(&results);
                self.tally.lose(given_up);
                self.settle(&store, rest).await;
            }
            Job::Read(read) => {
                within(&*self.clock, WRITE_DEADLINE, read).await;
            }
        }
        self.tally.settled.fetch_add(1, Ordering::AcqRel);
        metrics::settled();
        self.tally.done();
    }

    async fn settle(&self, store: &Arc<dyn Store>, mut settlement: Settlement) {
        for attempt in 0..ATTEMPTS_MAX {
            if settlement.is_empty() {
                return;
            }
            if attempt > 0 {
                let pause_ms = (PAUSE_MS << (attempt - 1)).min(PAUSE_MS_MAX);
                self.clock.sleep(Duration::from_millis(pause_ms / 2 + self.entropy.next_u64() % pause_ms)).await;
            }
            let sent = settlement.send(Arc::clone(store), self.clock.now());
            let results = within(&*self.clock, WRITE_DEADLINE, sent).await.unwrap_or_default();
            let (rest, given_up) = settlement.after(&results);
            self.tally.lose(given_up);
            settlement = rest;
        }
        self.tally.lose(settlement.parts.iter().map(|part| part.deltas.len()).sum());
    }
}
