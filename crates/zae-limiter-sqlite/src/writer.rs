//! The one connection that writes: a lone caller uses it at once, everybody else shares transactions.
//!
//! With `synchronous` NORMAL a caller who finds the connection free, nobody waiting and no other process writing does its
//! work right there, in the first poll: handing it to a thread would cost twice as much as the work. Everybody else, and
//! everybody with FULL, queues up for the writer thread, which takes all who wait into one transaction. Each bucket is then
//! read once and written once, however many callers ask for it, and all of them wait for one commit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use zae_limiter_core::TimeMs;
use zae_limiter_store::{StoreError, StoreErrorKind};

use crate::connection::{Place, finish, roll_back};
use crate::error::{Failure, Outcome, copy_of};
use crate::gate::Gate;
use crate::job::{Answer, Job};
use crate::options::Synchronous;
use crate::schema;
use crate::sweep::Sweeper;
use crate::working::Working;

/// Callers that may wait at once; beyond that they are told that the store is busy.
pub(crate) const QUEUE_MAX: usize = 65_536;
/// Operations in one transaction.
const BATCH_OPERATIONS_MAX: usize = 256;
/// Time spent deciding in one transaction, so that other processes get their turn.
const BATCH_TIME_MAX: Duration = Duration::from_millis(5);
/// Batches with one caller in a row after which the crowd counts as gone. One is not enough: when many share a bucket, some
/// batch always has a single caller, and everybody would pay for a transaction of their own again. A caller who is alone again
/// pays for a few hand-overs.
const CALM_BATCHES: u32 = 16;

/// How the writer has worked since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterStats {
    /// Operations done by their caller, without the thread.
    pub inline: u64,
    /// Operations that went through the queue.
    pub queued: u64,
    /// Transactions the thread made of them.
    pub batches: u64,
    /// Administrative and maintenance transactions.
    pub tasks: u64,
    /// How often the write-ahead log was written back.
    pub checkpoints: u64,
    /// Bucket rows written.
    pub rows_written: u64,
    /// Locks of other processes that had to be waited for.
    pub waits: u64,
}

pub(crate) struct Writer {
    place: Arc<Place>,
    session: Mutex<Session>,
    queue: Mutex<Queue>,
    /// Told about new jobs, a long log and the end, but only while the thread sleeps: see [`Writer::rouse`].
    wake: Condvar,
    /// Jobs that were submitted and not done yet. While there are any, nobody works inline: they would overtake.
    unfinished_jobs: AtomicUsize,
    /// One of the last batches had more than one caller. While that goes on, sharing transactions is cheaper than working
    /// inline.
    crowded: AtomicBool,
    gate: Option<Gate>,
    pub(crate) sweeper: Sweeper,
    inline: AtomicU64,
    queued: AtomicU64,
    batches: AtomicU64,
    tasks: AtomicU64,
    checkpoints: AtomicU64,
    rows_written: AtomicU64,
}

/// What only the holder of the lock may use.
struct Session {
    conn: Connection,
    working: Working,
    /// The operations of the batch that is being worked off; kept for its memory.
    batch: VecDeque<Job>,
    /// Batches with one caller since the last with more.
    calm: u32,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// A lone caller found the log too long; it does not wait for the disk itself.
    is_log_long: bool,
    /// The thread waits to be woken. Whoever wakes it takes this back, so that nobody else does.
    sleeping: bool,
    /// The last handle is gone: finish what is queued, then end.
    closing: bool,
    /// The thread is gone although nobody asked: a bug.
    broken: bool,
}

impl Writer {
    fn new(place: Arc<Place>, conn: Connection) -> Result<Writer, StoreError> {
        let gate = match place.options.synchronous {
            Synchronous::Normal => None,
            Synchronous::Full => Some(Gate::open(&place)?),
        };
        Ok(Writer {
            sweeper: Sweeper::new(&place.options),
            place,
            session: Mutex::new(Session { conn, working: Working::default(), batch: VecDeque::new(), calm: CALM_BATCHES }),
            queue: Mutex::new(Queue::default()),
            wake: Condvar::new(),
            unfinished_jobs: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
            gate,
            inline: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            tasks: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            rows_written: AtomicU64::new(0),
        })
    }

    /// Works at once if nothing stands in the way; `None` when the work must queue.
    fn inline<T>(&self, work: impl FnOnce(&Connection, &mut Working) -> Outcome<T>) -> Option<Outcome<T>> {
        let must_queue = self.place.options.synchronous != Synchronous::Normal || self.crowded.load(Ordering::Relaxed);
        if must_queue || self.unfinished_jobs.load(Ordering::Acquire) > 0 {
            return None;
        }
        let mut session = match self.session.try_lock() {
            Ok(session) => session,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        match self.place.begin_now(&session.conn) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(failure) => return Some(Err(failure)),
        }
        self.inline.fetch_add(1, Ordering::Relaxed);
        let Session { conn, working, .. } = &mut *session;
        let path = &self.place.path;
        let current = if working.begin(conn) { schema::require_current(conn, path) } else { Ok(()) };
        let result = current.and_then(|()| work(conn, working));
        Some(self.conclude(conn, working, result))
    }

    /// What the thread does until the end: waits for jobs, and does them.
    fn run(&self) {
        let _guard = BrokenOnPanic(self);
        while let Some(waiting) = self.wait_for_jobs() {
            if waiting > 0 {
                self.serve(waiting);
            }
            if self.place.is_log_long() {
                self.checkpoint();
            }
        }
    }

    /// Wakes the thread if it sleeps, after a change of the queue. To be called with the lock that the change was made
    /// under: the thread goes to sleep under the same lock, and only when it saw nothing to do. Waking costs a call of the
    /// kernel even when nobody sleeps, so a thread that is awake is left alone.
    fn rouse(&self, mut queue: MutexGuard<'_, Queue>) {
        let sleeping = std::mem::take(&mut queue.sleeping);
        drop(queue);
        if sleeping {
            self.wake.notify_one();
        }
    }

    /// How many wait, or `None` when there is nothing left to do for ever.
    fn wait_for_jobs(&self) -> Option<usize> {
        let mut queue = lock(&self.queue);
        while queue.jobs.is_empty() && !queue.is_log_long {
            if queue.closing {
                return None;
            }
            queue.sleeping = true;
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            // Also when nobody asked: whoever comes now finds the thread awake, and the loop looks at the queue again.
            queue.sleeping = false;
        }
        queue.is_log_long = false;
        Some(queue.jobs.len())
    }

    /// Writes the log back. Whoever wants to write meanwhile queues up, without blocking.
    fn checkpoint(&self) {
        let session = lock(&self.session);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        if let Err(failure) = self.place.checkpoint(&session.conn) {
            // Nothing is lost: the log only grows until a later attempt succeeds, and writes say what is wrong.
            tracing::debug!(?failure, "the log could not be written back");
        }
    }

    /// One transaction: a single task, or as many operations as wait.
    fn serve(&self, waiting: usize) {
        let mut session = lock(&self.session);
        let answers = match self.begin(&session.conn) {
            Ok(_pass) => self.transact(&mut session),
            // Only those who have waited all along are told; who came later waits on.
            Err(failure) => {
                let jobs: Vec<Job> = lock(&self.queue).jobs.drain(..waiting).collect();
                self.fail(jobs.into_iter().map(Answer::unfinished).collect(), failure)
            }
        };
        drop(session);
        // Before the answers: a lone caller may be back before this thread goes on, and should find the way clear.
        self.unfinished_jobs.fetch_sub(answers.len(), Ordering::Release);
        answers.into_iter().for_each(Answer::send);
    }

    /// Begins a transaction, after those processes that queue at the gate. Nothing begins on a file that was replaced, or
    /// migrated by a newer process.
    fn begin(&self, conn: &Connection) -> Outcome<Option<crate::gate::Pass<'_>>> {
        let pass = match &self.gate {
            Some(gate) => Some(gate.enter(&self.place)?),
            None => None,
        };
        self.place.require_same_file()?;
        self.place.begin_waiting(conn)?;
        match schema::require_current(conn, &self.place.path) {
            Ok(()) => Ok(pass),
            Err(failure) => finish(conn, Err(failure)),
        }
    }

    fn transact(&self, session: &mut Session) -> Vec<Answer> {
        let Session { conn, working, batch, calm } = session;
        let task = lock(&self.queue).jobs.pop_front_if(|job| matches!(job, Job::Task(_)));
        if let Some(task) = task {
            self.tasks.fetch_add(1, Ordering::Relaxed);
            working.forget();
            let mut answer = Answer::unfinished(task);
            // Alone in its transaction: whatever it did before it failed is rolled back.
            let result = answer.run_task(conn);
            return match finish(conn, result) {
                Ok(()) => vec![answer],
                Err(failure) => self.fail(vec![answer], failure),
            };
        }
        working.begin(conn);
        self.take_batch(batch);
        let mut answers = Vec::with_capacity(batch.len());
        let result = self.work_off(conn, working, batch, &mut answers);
        self.put_back(batch);
        *calm = if answers.len() > 1 { 0 } else { calm.saturating_add(1) };
        self.crowded.store(*calm < CALM_BATCHES, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.queued.fetch_add(answers.len() as u64, Ordering::Relaxed);
        match self.conclude(conn, working, result) {
            Ok(()) => answers,
            Err(failure) => self.fail(answers, failure),
        }
    }

    /// Everybody who waits, up to the first task, within the bounds of a batch. Whoever comes later is in the next batch:
    /// while one half of the callers is served, the other half comes back, and nobody sleeps.
    fn take_batch(&self, batch: &mut VecDeque<Job>) {
        let mut queue = lock(&self.queue);
        let operations = queue.jobs.iter().take(BATCH_OPERATIONS_MAX).take_while(|job| !matches!(job, Job::Task(_))).count();
        if operations == queue.jobs.len() {
            std::mem::swap(&mut queue.jobs, batch);
        } else {
            batch.extend(queue.jobs.drain(..operations));
        }
    }

    /// Those whose turn did not come are the first of the next batch.
    fn put_back(&self, batch: &mut VecDeque<Job>) {
        if !batch.is_empty() {
            let mut queue = lock(&self.queue);
            batch.drain(..).rev().for_each(|job| queue.jobs.push_front(job));
        }
    }

    /// Decides for everybody in the batch, as long as there is time.
    fn work_off(&self, conn: &Connection, working: &mut Working, batch: &mut VecDeque<Job>, answers: &mut Vec<Answer>) -> Outcome<()> {
        let started = self.place.options.clock.monotonic();
        while let Some(job) = batch.pop_front() {
            let (answer, result) = Answer::decide(job, conn, working, &self.place.path);
            answers.push(answer);
            result?;
            if self.place.options.clock.monotonic().saturating_sub(started) >= BATCH_TIME_MAX {
                break;
            }
        }
        Ok(())
    }

    /// The whole transaction failed: nothing of it was applied, and everybody in it is told so.
    fn fail(&self, mut answers: Vec<Answer>, failure: Failure) -> Vec<Answer> {
        let mut error = Some(failure.into_store_error("write", &self.place.path));
        let copies: Vec<StoreError> = answers.iter().skip(1).filter_map(|_| error.as_ref().map(copy_of)).collect();
        for (answer, error) in answers.iter_mut().zip(error.take().into_iter().chain(copies)) {
            answer.fail(error);
        }
        answers
    }

    /// Writes what was decided and commits, or leaves no trace. A transaction that changed nothing ends without a write.
    fn conclude<T>(&self, conn: &Connection, working: &mut Working, result: Outcome<T>) -> Outcome<T> {
        if result.is_ok() && !working.is_dirty() {
            roll_back(conn);
            working.keep(conn);
            return result;
        }
        let flushed = result.and_then(|value| Ok((value, working.flush(conn)?)));
        let (value, rows) = finish(conn, flushed)?;
        working.keep(conn);
        self.rows_written.fetch_add(rows, Ordering::Relaxed);
        Ok(value)
    }
}

/// The writer as the handles of a store hold it. Dropping it finishes what is queued and ends the thread.
pub(crate) struct WriterHandle {
    writer: Arc<Writer>,
    /// Started when it is first needed: a lone caller never needs it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WriterHandle {
    pub(crate) fn new(place: Arc<Place>, conn: Connection) -> Result<WriterHandle, StoreError> {
        Ok(WriterHandle { writer: Arc::new(Writer::new(place, conn)?), thread: Mutex::new(None) })
    }

    /// Works at once if nothing stands in the way; `None` when the work must be submitted.
    pub(crate) fn inline<T>(&self, now: TimeMs, work: impl FnOnce(&Connection, &mut Working) -> Outcome<T>) -> Option<Outcome<T>> {
        if let Err(failure) = self.writer.place.look_now_and_then(now) {
            return Some(Err(failure));
        }
        let result = self.writer.inline(work)?;
        self.sweep_if_due(now);
        if self.writer.place.is_log_long() {
            self.ask_for_checkpoint();
        }
        Some(result)
    }

    /// Queues an operation for the thread.
    pub(crate) fn submit_operation(&self, now: TimeMs, job: Job, operation: &'static str) -> Result<(), StoreError> {
        self.submit(job, operation)?;
        self.sweep_if_due(now);
        Ok(())
    }

    /// Queues a job for the thread.
    pub(crate) fn submit(&self, job: Job, operation: &'static str) -> Result<(), StoreError> {
        self.start_thread(operation)?;
        let mut queue = lock(&self.writer.queue);
        if queue.broken {
            return Err(StoreError::new(StoreErrorKind::Internal, operation, "the writer thread has ended; please report this"));
        }
        if queue.jobs.len() >= QUEUE_MAX {
            let message = format!("{QUEUE_MAX} operations wait already; nothing was written. Retry later");
            return Err(StoreError::new(StoreErrorKind::Busy, operation, message));
        }
        self.writer.unfinished_jobs.fetch_add(1, Ordering::AcqRel);
        queue.jobs.push_back(job);
        self.writer.rouse(queue);
        Ok(())
    }

    pub(crate) fn sweeper(&self) -> &Sweeper {
        &self.writer.sweeper
    }

    pub(crate) fn stats(&self) -> WriterStats {
        let writer = &self.writer;
        WriterStats {
            inline: writer.inline.load(Ordering::Relaxed),
            queued: writer.queued.load(Ordering::Relaxed),
            batches: writer.batches.load(Ordering::Relaxed),
            tasks: writer.tasks.load(Ordering::Relaxed),
            checkpoints: writer.checkpoints.load(Ordering::Relaxed),
            rows_written: writer.rows_written.load(Ordering::Relaxed),
            waits: writer.place.pauses.load(Ordering::Relaxed),
        }
    }

    fn ask_for_checkpoint(&self) {
        match self.start_thread("checkpoint") {
            Ok(()) => {
                let mut queue = lock(&self.writer.queue);
                queue.is_log_long = true;
                self.writer.rouse(queue);
            }
            Err(error) => tracing::debug!(%error, "a checkpoint was put off"),
        }
    }

    /// Lets the thread forget a little of what may be forgotten, now and then.
    fn sweep_if_due(&self, now: TimeMs) {
        if self.writer.sweeper.is_due(now, || self.writer.place.options.clock.monotonic()) {
            let step = self.writer.sweeper.background_step(now);
            if let Err(error) = self.submit(step, "sweep") {
                tracing::debug!(%error, "a sweep was put off");
            }
        }
    }

    fn start_thread(&self, operation: &'static str) -> Result<(), StoreError> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let writer = Arc::clone(&self.writer);
            let started = std::thread::Builder::new().name("zae-limiter-sqlite".to_owned()).spawn(move || writer.run());
            let unavailable = |error| {
                StoreError::new(StoreErrorKind::Unavailable, operation, "the writer thread could not be started; free some threads")
                    .with_source(error)
            };
            *thread = Some(started.map_err(unavailable)?);
        }
        Ok(())
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        let mut queue = lock(&self.writer.queue);
        queue.closing = true;
        self.writer.rouse(queue);
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            tracing::debug!("the writer thread had panicked");
        }
    }
}

/// Makes a panic of the thread known, so that nobody queues for ever.
struct BrokenOnPanic<'a>(&'a Writer);

impl Drop for BrokenOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut queue = lock(&self.0.queue);
            queue.broken = true;
            // Dropping a job tells its caller that there will be no answer.
            queue.jobs.clear();
            drop(queue);
            lock(&self.0.session).batch.clear();
        }
    }
}

/// A lock whose holder panicked is taken all the same: a transaction that was left open is rolled back before the next.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
