//! The writer as the handles of a store hold it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;
use zae_limiter_core::TimeMs;
use zae_limiter_store::{StoreError, StoreErrorKind};

use crate::connection::Place;
use crate::error::{Outcome, no_thread, thread_ended};
use crate::job::Job;
use crate::queue::{QUEUE_MAX, Queue, Waiting};
use crate::sweep::Sweeper;
use crate::transaction::Transaction;
use crate::writer::{Writer, WriterStats, lock};

/// Starts the threads when they are first needed, and ends them. A lone caller never needs the one
/// that decides, and needs the one that writes the log back only once the log is long. Dropping it
/// finishes the jobs that wait.
pub(crate) struct WriterHandle(Arc<Threads>);

struct Threads {
    writer: Arc<Writer>,
    deciding: Mutex<Thread>,
    checkpointing: Mutex<Thread>,
}

#[derive(Default)]
enum Thread {
    #[default]
    NotNeeded,
    Running(JoinHandle<()>),
    /// The store is being closed.
    Ended,
}

impl WriterHandle {
    pub(crate) fn new(place: Arc<Place>, conn: Connection) -> Result<WriterHandle, StoreError> {
        let writer = Arc::new(Writer::new(place, conn)?);
        Ok(WriterHandle(Arc::new(Threads {
            writer,
            deciding: Mutex::default(),
            checkpointing: Mutex::default(),
        })))
    }

    /// Works at once if nothing stands in the way; `None` when the work must be submitted.
    pub(crate) fn inline<T>(
        &self,
        now: TimeMs,
        work: impl FnOnce(&Connection, &mut Transaction) -> Outcome<T>,
    ) -> Option<Outcome<T>> {
        if let Err(failure) = self.0.writer.place.look_now_and_then(now) {
            return Some(Err(failure));
        }
        let result = self.0.writer.inline(work)?;
        self.sweep_if_due(now);
        if self.0.writer.place.is_log_long() {
            self.0.checkpoint();
        }
        if self.0.writer.spreading.load(Ordering::Relaxed) {
            self.spread();
        }
        Some(result)
    }

    /// Queues an operation for the thread.
    pub(crate) fn submit_operation(
        &self,
        now: TimeMs,
        job: Job,
        operation: &'static str,
    ) -> Result<(), StoreError> {
        self.submit(job, operation)?;
        self.sweep_if_due(now);
        Ok(())
    }

    /// Queues a job for the thread.
    pub(crate) fn submit(&self, job: Job, operation: &'static str) -> Result<(), StoreError> {
        self.enqueue(job, operation, |queue, waiting| {
            if queue.jobs.len() >= QUEUE_MAX {
                let message = format!(
                    "{QUEUE_MAX} operations wait already; nothing was written. Retry later"
                );
                return Err(StoreError::new(StoreErrorKind::Busy, operation, message));
            }
            self.0.writer.unfinished_jobs.fetch_add(1, Ordering::AcqRel);
            queue.jobs.push_back(waiting);
            Ok(())
        })
    }

    /// Queues one step of a long piece of work, which gives way to everything else.
    pub(crate) fn submit_step(&self, job: Job, operation: &'static str) -> Result<(), StoreError> {
        self.enqueue(job, operation, |queue, waiting| {
            queue.steps.push_back(waiting);
            Ok(())
        })
    }

    fn enqueue(
        &self,
        job: Job,
        operation: &'static str,
        push: impl FnOnce(&mut Queue, Waiting) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.0.start_deciding(operation)?;
        let writer = &self.0.writer;
        let expires = writer.now().saturating_add(writer.patience_of(&job));
        let mut queue = lock(&writer.queue);
        if queue.broken {
            return Err(thread_ended(operation, "the writer thread has ended"));
        }
        push(&mut queue, Waiting { job, expires })?;
        writer.rouse(queue);
        Ok(())
    }

    /// Lets the thread go on with a change that has not reached all its buckets.
    pub(crate) fn spread(&self) {
        self.0.writer.spreading.store(true, Ordering::Relaxed);
        match self.0.start_deciding("spread") {
            Ok(()) => self.0.writer.rouse(lock(&self.0.writer.queue)),
            Err(error) => tracing::debug!(%error, "a change reaches its buckets later"),
        }
    }

    pub(crate) fn sweeper(&self) -> &Sweeper {
        &self.0.writer.sweeper
    }

    pub(crate) fn stats(&self) -> WriterStats {
        self.0.writer.stats()
    }

    /// Lets the thread do a step of the sweep, now and then.
    fn sweep_if_due(&self, now: TimeMs) {
        if self.0.writer.sweeper.is_due(now, || self.0.writer.now()) {
            let step = self.0.writer.sweeper.background_step(now);
            if let Err(error) = self.submit_step(step, "sweep") {
                tracing::debug!(%error, "a sweep was put off");
            }
        }
    }
}

impl Threads {
    fn start_deciding(self: &Arc<Self>, operation: &'static str) -> Result<(), StoreError> {
        let threads = Arc::downgrade(self);
        let writer = Arc::clone(&self.writer);
        let log_is_long = move || {
            if let Some(threads) = threads.upgrade() {
                threads.checkpoint();
            }
        };
        start(&self.deciding, "zae-limiter-sqlite", operation, move || writer.run(log_is_long))
    }

    /// Has the log written back, beside everything else.
    fn checkpoint(self: &Arc<Self>) {
        let (threads, writer) = (Arc::downgrade(self), Arc::clone(&self.writer));
        let run = move || {
            let conn = match writer.place.open_checkpointer() {
                Ok(conn) => conn,
                Err(failure) => return tracing::debug!(?failure, "the log cannot be written back"),
            };
            let ask = || threads.upgrade().is_some_and(|threads| threads.ask_to_hold());
            writer.checkpoints.run(&writer.place, &conn, ask);
        };
        match start(&self.checkpointing, "zae-limiter-log", "checkpoint", run) {
            Ok(()) => self.writer.checkpoints.want(),
            Err(error) => tracing::debug!(%error, "a checkpoint was put off"),
        }
    }

    /// Asks the thread that decides to hold the lock for a checkpoint; false when there is none.
    fn ask_to_hold(self: &Arc<Self>) -> bool {
        if self.start_deciding("checkpoint").is_err() {
            return false;
        }
        let mut queue = lock(&self.writer.queue);
        queue.is_hold_wanted = true;
        self.writer.rouse(queue);
        true
    }
}

fn start(
    thread: &Mutex<Thread>,
    name: &str,
    operation: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> Result<(), StoreError> {
    let mut thread = lock(thread);
    match *thread {
        Thread::Running(_) => return Ok(()),
        Thread::NotNeeded => {}
        Thread::Ended => {
            let message = "the store is being closed";
            return Err(StoreError::new(StoreErrorKind::Internal, operation, message));
        }
    }
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    *thread = Thread::Running(started.map_err(|error| no_thread(operation, error))?);
    Ok(())
}

fn end(thread: &Mutex<Thread>) {
    let thread = std::mem::replace(&mut *lock(thread), Thread::Ended);
    if let Thread::Running(thread) = thread
        && thread.join().is_err()
    {
        tracing::debug!("a thread of the store had panicked");
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        // The checkpoint first: it may wait for the other thread to hold the lock.
        self.0.writer.checkpoints.close();
        end(&self.0.checkpointing);
        let mut queue = lock(&self.0.writer.queue);
        queue.closing = true;
        self.0.writer.rouse(queue);
        end(&self.0.deciding);
        self.0.writer.sweep_at_close();
    }
}
