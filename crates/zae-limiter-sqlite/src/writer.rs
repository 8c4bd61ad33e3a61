//! The one connection that writes: a lone caller uses it at once, all other callers share
//! transactions.
//!
//! With `synchronous` NORMAL a caller that finds the connection free, no job waiting and no other
//! process writing does its work right there, in the first poll: handing it to a thread would cost
//! twice as much as the work. All other callers, and all callers with FULL, queue up for the writer
//! thread, which takes all jobs that wait into one transaction. Each bucket is then read once and
//! written once, however many callers ask for it, and all of them wait for one commit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rusqlite::Connection;
use zae_limiter_store::StoreError;

use crate::checkpoint::Checkpoints;
use crate::connection::{Place, finish, roll_back};
use crate::error::{Failure, Outcome, busy, copy_of, late};
use crate::gate::{Gate, Pass};
use crate::job::{Answer, Job, Work};
use crate::options::Synchronous;
use crate::queue::{Queue, Todo, Waiting};
use crate::schema;
use crate::spread;
use crate::sweep::{self, Sweeper};
use crate::transaction::Transaction;

/// Time spent deciding in one transaction, so that other processes get their turn.
const BATCH_TIME_MAX: Duration = Duration::from_millis(5);
/// Batches with one caller in a row after which the crowd counts as gone. One is not enough: when
/// many callers share a bucket, some batch always has a single caller, and every caller would pay
/// for a transaction of its own again. A caller that is alone again pays for a few hand-overs.
const CALM_BATCHES: u32 = 16;
/// How long a step of a long piece of work waits for other processes before it lets the jobs of
/// this process go first.
const STEP_PATIENCE: Duration = Duration::from_millis(50);
/// The shortest wait for other processes, so that many callers that wait are not refused one by
/// one.
const PATIENCE_MIN: Duration = Duration::from_millis(10);

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
    /// The most rows that one of these has written.
    pub task_rows_max: u64,
    /// Takes that were not decided, because their caller had gone.
    pub dropped: u64,
    /// How often the write-ahead log was written back.
    pub checkpoints: u64,
    /// Times a writer held the lock for a checkpoint, at most 0.1 s each unless the log is about to
    /// fill the disk.
    pub holds: u64,
    /// The longest the log has been, in pages of 4 KiB, after a commit of this store.
    pub log_pages_peak: u64,
    /// Bucket rows written.
    pub rows_written: u64,
    /// Locks of other processes that had to be waited for.
    pub waits: u64,
}

pub(crate) struct Writer {
    pub(crate) place: Arc<Place>,
    session: Mutex<Session>,
    pub(crate) queue: Mutex<Queue>,
    /// Told about new jobs, a checkpoint that wants help and the end, but only while the thread
    /// sleeps: see [`Writer::rouse`].
    wake: Condvar,
    pub(crate) checkpoints: Checkpoints,
    /// Jobs that were submitted and not done yet. While there are any, no caller works inline: it
    /// would overtake them.
    pub(crate) unfinished_jobs: AtomicUsize,
    /// One of the last batches had more than one caller. While that goes on, sharing transactions
    /// is cheaper than working inline.
    crowded: AtomicBool,
    gate: Option<Gate>,
    pub(crate) sweeper: Sweeper,
    /// Something is still to reach many buckets: see `spread.rs`.
    pub(crate) spreading: Arc<AtomicBool>,
    inline: AtomicU64,
    queued: AtomicU64,
    batches: AtomicU64,
    tasks: AtomicU64,
    task_rows_max: AtomicU64,
    dropped: AtomicU64,
    rows_written: AtomicU64,
}

/// The state that only the holder of the lock may use.
struct Session {
    conn: Connection,
    transaction: Transaction,
    /// The operations of the present batch; kept between batches to reuse its allocation.
    batch: VecDeque<Waiting>,
    /// Batches with one caller since the last with more.
    calm: u32,
}

impl Writer {
    pub(crate) fn new(place: Arc<Place>, conn: Connection) -> Result<Writer, StoreError> {
        let gate = match place.options.synchronous {
            Synchronous::Normal => None,
            Synchronous::Full => Some(Gate::open(&place)?),
        };
        Ok(Writer {
            sweeper: Sweeper::new(&place.options),
            place,
            session: Mutex::new(Session {
                conn,
                transaction: Transaction::default(),
                batch: VecDeque::new(),
                calm: CALM_BATCHES,
            }),
            queue: Mutex::new(Queue::default()),
            wake: Condvar::new(),
            checkpoints: Checkpoints::default(),
            unfinished_jobs: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
            gate,
            spreading: Arc::new(AtomicBool::new(false)),
            inline: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            tasks: AtomicU64::new(0),
            task_rows_max: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            rows_written: AtomicU64::new(0),
        })
    }

    /// Works at once if nothing stands in the way; `None` when the work must queue.
    pub(crate) fn inline<T>(
        &self,
        work: impl FnOnce(&Connection, &mut Transaction) -> Outcome<T>,
    ) -> Option<Outcome<T>> {
        let must_queue = self.place.options.synchronous != Synchronous::Normal
            || self.crowded.load(Ordering::Relaxed);
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
        let Session { conn, transaction, .. } = &mut *session;
        let path = &self.place.path;
        let current =
            if transaction.begin(conn) { schema::require_current(conn, path) } else { Ok(()) };
        let result = current.and_then(|()| work(conn, transaction));
        let result = self.conclude(conn, transaction, result);
        self.note_spreading(transaction);
        Some(result)
    }

    /// The loop of the thread, until the end: it waits for work and does it. `log_is_long` is told
    /// when the log should be written back.
    pub(crate) fn run(&self, log_is_long: impl Fn()) {
        let _guard = BrokenOnPanic(self);
        while let Some(todo) = self.wait_for_work() {
            match todo {
                Todo::Hold => self.hold(),
                Todo::Step(step) => self.step(step),
                Todo::Jobs => self.serve(),
            }
            if self.place.is_log_long() {
                log_is_long();
            }
        }
    }

    /// Wakes the thread if it sleeps, after a change of the queue. To be called with the lock that
    /// the change was made under: the thread goes to sleep under the same lock, and only when it
    /// saw nothing to do. Waking costs a call of the kernel even when no thread sleeps, so a thread
    /// that is awake is left alone.
    pub(crate) fn rouse(&self, mut queue: MutexGuard<'_, Queue>) {
        let sleeping = std::mem::take(&mut queue.sleeping);
        drop(queue);
        if sleeping {
            self.wake.notify_one();
        }
    }

    /// The next work, or `None` at the end.
    fn wait_for_work(&self) -> Option<Todo> {
        let now = || self.place.options.clock.monotonic();
        let mut queue = lock(&self.queue);
        loop {
            if queue.steps.is_empty() && !queue.closing && self.spreading.load(Ordering::Relaxed) {
                queue.steps.push_back(Waiting { job: self.spread_step(), expires: Duration::MAX });
            }
            if let Some(todo) = queue.next(now) {
                return Some(todo);
            }
            if queue.closing {
                return None;
            }
            queue.sleeping = true;
            queue = match queue.pause(now) {
                Some(pause) => {
                    self.wake.wait_timeout(queue, pause).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
            // Also after a timeout: a caller that comes now finds the thread awake, and the loop
            // looks at the queue again.
            queue.sleeping = false;
        }
    }

    /// A step of the sweep by a store that was not open long enough to do one otherwise: a file
    /// that is only ever opened for a moment must not grow for ever.
    pub(crate) fn sweep_at_close(&self) {
        let Some(now) = self.sweeper.owed_at_close(self.now()) else { return };
        let session = &mut *lock(&self.session);
        let swept = sweep::is_due_in_file(&session.conn, now).and_then(|is_due| {
            if !is_due || self.begin(&session.conn, STEP_PATIENCE)?.is_none() {
                return Ok(());
            }
            let result = self.sweeper.closing_step(&session.conn, now);
            finish(&session.conn, result)
        });
        if let Err(failure) = swept {
            tracing::debug!(?failure, "a sweep was put off");
        }
    }

    /// Holds the lock for a checkpoint: see `checkpoint.rs`.
    fn hold(&self) {
        let session = lock(&self.session);
        match self.begin(&session.conn, STEP_PATIENCE) {
            Ok(Some(_pass)) => {
                self.checkpoints.hold(&self.place);
                roll_back(&session.conn);
            }
            Ok(None) => self.checkpoints.cannot_hold(),
            Err(failure) => {
                tracing::debug!(?failure, "a checkpoint goes without help");
                self.checkpoints.cannot_hold();
            }
        }
    }

    /// One transaction: a single task, or as many operations as wait.
    fn serve(&self) {
        let mut session = lock(&self.session);
        let (first, now) = (lock(&self.queue).first_expiry().unwrap_or_default(), self.now());
        let answers = match self.begin(&session.conn, first.saturating_sub(now).max(PATIENCE_MIN)) {
            Ok(Some(_pass)) => self.transact(&mut session),
            // Only the callers that have waited long enough get an error; later ones wait on.
            Ok(None) => {
                let expired = lock(&self.queue).take_expired(first.max(self.now()));
                expired.into_iter().map(|waiting| self.turn_away(waiting.job, busy)).collect()
            }
            Err(failure) => {
                let jobs: Vec<Waiting> = lock(&self.queue).jobs.drain(..).collect();
                self.fail(
                    jobs.into_iter().map(|waiting| Answer::unfinished(waiting.job)).collect(),
                    failure,
                )
            }
        };
        drop(session);
        // This comes before the answers: a lone caller may be back before this thread goes on, and
        // should be able to work inline.
        self.unfinished_jobs.fetch_sub(answers.len(), Ordering::Release);
        answers.into_iter().for_each(Answer::send);
    }

    /// One step of a long piece of work. Jobs that wait for the lock come first, here and in other
    /// processes.
    fn step(&self, waiting: Waiting) {
        let session = &mut *lock(&self.session);
        let begun = self.begin(&session.conn, STEP_PATIENCE);
        let started = self.now();
        let answers = match begun {
            Ok(Some(_pass)) => self.transact_task(session, waiting.job),
            Ok(None) if started < waiting.expires => {
                lock(&self.queue).steps.push_front(waiting);
                return;
            }
            Ok(None) => vec![self.turn_away(waiting.job, busy)],
            Err(failure) => self.fail(vec![Answer::unfinished(waiting.job)], failure),
        };
        let ended = self.now();
        lock(&self.queue).rest_after_step(ended, ended.saturating_sub(started));
        answers.into_iter().for_each(Answer::send);
    }

    /// Begins a transaction, after those processes that queue at the gate; `None` when that takes
    /// longer than `patience`. Nothing begins on a file that was replaced, or migrated by a newer
    /// process.
    fn begin(&self, conn: &Connection, patience: Duration) -> Outcome<Option<Begun<'_>>> {
        let pass = match &self.gate {
            Some(gate) => match gate.enter(patience)? {
                Some(pass) => Some(pass),
                None => return Ok(None),
            },
            None => None,
        };
        self.place.require_same_file()?;
        if !self.place.begin_waiting(conn, patience)? {
            return Ok(None);
        }
        match schema::require_current(conn, &self.place.path) {
            Ok(()) => Ok(Some(Begun { _pass: pass })),
            Err(failure) => finish(conn, Err(failure)),
        }
    }

    fn transact(&self, session: &mut Session) -> Vec<Answer> {
        let task =
            lock(&self.queue).jobs.pop_front_if(|waiting| matches!(waiting.job, Job::Task(_)));
        if let Some(task) = task {
            return self.transact_task(session, task.job);
        }
        let Session { conn, transaction, batch, calm } = session;
        transaction.begin(conn);
        lock(&self.queue).take_batch(batch);
        let mut answers = Vec::with_capacity(batch.len());
        let result = self.work_off(conn, transaction, batch, &mut answers);
        self.put_back(batch);
        *calm = if answers.len() > 1 { 0 } else { calm.saturating_add(1) };
        self.crowded.store(*calm < CALM_BATCHES, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.queued.fetch_add(answers.len() as u64, Ordering::Relaxed);
        let result = self.conclude(conn, transaction, result);
        self.note_spreading(transaction);
        match result {
            Ok(()) => answers,
            Err(failure) => self.fail(answers, failure),
        }
    }

    /// Lets the thread continue a change that the transaction found unfinished.
    fn note_spreading(&self, transaction: &Transaction) {
        if transaction.is_spreading() {
            self.spreading.store(true, Ordering::Relaxed);
        }
    }

    fn spread_step(&self) -> Job {
        let spreading = Arc::clone(&self.spreading);
        let (job, _nobody_waits) = Work::job("spread", move |conn| {
            // Cleared first: if the step fails, the next take that finds a `spread` row in its
            // namespace starts another.
            spreading.store(false, Ordering::Relaxed);
            let is_left = spread::step(conn)?;
            spreading.store(is_left, Ordering::Relaxed);
            Ok(())
        });
        job
    }

    /// Runs a task alone in its transaction: a task that fails is rolled back whole.
    fn transact_task(&self, session: &mut Session, task: Job) -> Vec<Answer> {
        let Session { conn, transaction, .. } = session;
        self.tasks.fetch_add(1, Ordering::Relaxed);
        transaction.forget();
        let mut answer = Answer::unfinished(task);
        let before = conn.total_changes();
        let result = answer.run_task(conn);
        self.task_rows_max
            .fetch_max(conn.total_changes().saturating_sub(before), Ordering::Relaxed);
        match finish(conn, result) {
            Ok(()) => vec![answer],
            Err(failure) => self.fail(vec![answer], failure),
        }
    }

    /// Returns the jobs that were not reached to the front of the queue.
    fn put_back(&self, batch: &mut VecDeque<Waiting>) {
        if !batch.is_empty() {
            let mut queue = lock(&self.queue);
            batch.drain(..).rev().for_each(|waiting| queue.jobs.push_front(waiting));
        }
    }

    /// Decides the jobs of the batch, as long as there is time.
    fn work_off(
        &self,
        conn: &Connection,
        transaction: &mut Transaction,
        batch: &mut VecDeque<Waiting>,
        answers: &mut Vec<Answer>,
    ) -> Outcome<()> {
        let started = self.now();
        while let Some(Waiting { job, expires }) = batch.pop_front() {
            // A caller that has gone could not use its grant, and would never give it back.
            let is_late = expires < started && matches!(job, Job::Consume(..));
            if is_late || job.is_abandoned() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                answers.push(self.turn_away(job, late));
                continue;
            }
            let (answer, result) = Answer::decide(job, conn, transaction, &self.place.path);
            answers.push(answer);
            result?;
            if self.now().saturating_sub(started) >= BATCH_TIME_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Answers a job without doing its work; `why` makes the error.
    fn turn_away(
        &self,
        job: Job,
        why: fn(&'static str, &std::path::Path, Duration) -> StoreError,
    ) -> Answer {
        let patience = self.patience_of(&job);
        let mut answer = Answer::unfinished(job);
        answer.fail(why("begin", &self.place.path, patience));
        answer
    }

    /// How long the caller of a job waits.
    pub(crate) fn patience_of(&self, job: &Job) -> Duration {
        let options = &self.place.options;
        match job {
            Job::Consume(..) => options.take_deadline.min(options.busy_deadline),
            Job::Adjust(_) | Job::Task(_) => options.busy_deadline,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.place.options.clock.monotonic()
    }

    /// The whole transaction failed: nothing of it was applied, and all its callers get the error.
    fn fail(&self, mut answers: Vec<Answer>, failure: Failure) -> Vec<Answer> {
        let mut error = Some(self.place.error(failure, "write"));
        let copies: Vec<StoreError> =
            answers.iter().skip(1).filter_map(|_| error.as_ref().map(copy_of)).collect();
        for (answer, error) in answers.iter_mut().zip(error.take().into_iter().chain(copies)) {
            answer.fail(error);
        }
        answers
    }

    /// Writes the decisions and commits, or leaves no trace. A transaction that changed nothing
    /// ends without a write.
    fn conclude<T>(
        &self,
        conn: &Connection,
        transaction: &mut Transaction,
        result: Outcome<T>,
    ) -> Outcome<T> {
        if result.is_ok() && !transaction.is_dirty() {
            roll_back(conn);
            transaction.keep(conn);
            return result;
        }
        let flushed = result.and_then(|value| Ok((value, transaction.flush(conn)?)));
        let (value, rows) = finish(conn, flushed)?;
        transaction.keep(conn);
        self.rows_written.fetch_add(rows, Ordering::Relaxed);
        Ok(value)
    }

    pub(crate) fn stats(&self) -> WriterStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WriterStats {
            inline: read(&self.inline),
            queued: read(&self.queued),
            batches: read(&self.batches),
            tasks: read(&self.tasks),
            task_rows_max: read(&self.task_rows_max),
            dropped: read(&self.dropped),
            checkpoints: self.checkpoints.rounds(),
            holds: self.checkpoints.holds(),
            log_pages_peak: self.place.log_pages_peak.load(Ordering::Relaxed).into(),
            rows_written: read(&self.rows_written),
            waits: read(&self.place.pauses),
        }
    }
}

/// A transaction that has begun; dropping this lets the next process in.
struct Begun<'a> {
    _pass: Option<Pass<'a>>,
}

/// Makes a panic of the thread known, so that no caller queues for ever.
struct BrokenOnPanic<'a>(&'a Writer);

impl Drop for BrokenOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut queue = lock(&self.0.queue);
            queue.broken = true;
            // Dropping a job tells its caller that there will be no answer.
            queue.jobs.clear();
            queue.steps.clear();
            drop(queue);
            lock(&self.0.session).batch.clear();
        }
    }
}

/// A lock whose holder panicked is taken all the same: a transaction that was left open is rolled
/// back before the next.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
