//! Reads that take longer than a moment, on a thread of their own.
//!
//! A lookup of a few rows is done in the poll of its future: handing it over would cost more than
//! the work. A listing may go over many rows, and on the worker of an async runtime everything else
//! would stand still meanwhile, so it is done here, one page at a time. A caller that stops waiting
//! stops its read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;
use zae_limiter_store::StoreError;

use crate::SqliteStore;
use crate::connection::{Place, finish};
use crate::error::{Outcome, no_thread, thread_ended};
use crate::query;
use crate::schema;
use crate::writer::lock;

/// Steps of SQLite's machine between two looks at whether anybody still waits: about a millisecond.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

/// Does one read with the connection of the thread; the failure is that of the connection.
type Read = Box<dyn FnOnce(Outcome<&mut Connection>) + Send>;

/// The thread, started when it is first needed.
#[derive(Default)]
pub(crate) struct Reader(Mutex<Option<(Sender<Read>, JoinHandle<()>)>>);

impl Reader {
    fn submit(
        &self,
        place: &Arc<Place>,
        operation: &'static str,
        read: Read,
    ) -> Result<(), StoreError> {
        let mut thread = lock(&self.0);
        if thread.is_none() {
            let (sender, receiver) = channel();
            let place = Arc::clone(place);
            let started = std::thread::Builder::new()
                .name("zae-limiter-reads".to_owned())
                .spawn(move || run(&place, &receiver));
            *thread = Some((sender, started.map_err(|error| no_thread(operation, error))?));
        }
        let ended = || thread_ended(operation, "the thread for reading has ended");
        thread.as_ref().and_then(|(sender, _)| sender.send(read).ok()).ok_or_else(ended)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let thread = lock(&self.0).take();
        if let Some((sender, thread)) = thread {
            drop(sender);
            if thread.join().is_err() {
                tracing::debug!("the thread for reading had panicked");
            }
        }
    }
}

/// The loop of the thread, until the store is closed.
fn run(place: &Arc<Place>, reads: &Receiver<Read>) {
    let mut conn = None;
    for read in reads {
        if conn.is_none() {
            match place.open_reader() {
                Ok(opened) => conn = Some(opened),
                Err(failure) => {
                    read(Err(failure));
                    continue;
                }
            }
        }
        if let Some(conn) = &mut conn {
            read(Ok(conn));
        }
        // The next read begins outside of a transaction, also after a failure.
        conn = conn.filter(Connection::is_autocommit);
    }
}

/// Tells the thread that the caller waits no longer.
struct GoneOnDrop(Arc<AtomicBool>);

impl Drop for GoneOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl SqliteStore {
    /// A consistent read on the thread for reading. Dropped, it ends there too.
    pub(crate) async fn read_apart<T: Send + 'static>(
        &self,
        operation: &'static str,
        look: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let gone = GoneOnDrop(Arc::default());
        let (is_gone, place) = (Arc::clone(&gone.0), Arc::clone(&self.shared.place));
        let read = move |conn: Outcome<&mut Connection>| {
            if !is_gone.load(Ordering::Relaxed) {
                // The caller may be gone; then the answer is dropped.
                let _ = reply.send(conn.and_then(|conn| {
                    interruptible(conn, is_gone, |conn| {
                        place.require_same_file()?;
                        schema::require_current(conn, &place.path)?;
                        look(conn)
                    })
                }));
            }
        };
        self.shared.reader.submit(&self.shared.place, operation, Box::new(read))?;
        let lost = |_| thread_ended(operation, "the thread for reading ended before it answered");
        let result = answer.await.map_err(lost)?;
        result.map_err(|failure| self.error(failure, operation))
    }

    /// As [`SqliteStore::read_apart`], in an active namespace.
    pub(crate) async fn read_active_apart<T: Send + 'static>(
        &self,
        operation: &'static str,
        look: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let ns = self.key;
        self.read_apart(operation, move |conn| {
            crate::config::generation(conn, ns)?;
            look(conn)
        })
        .await
    }
}

/// Reads in a transaction that ends when the caller waits no longer.
fn interruptible<T>(
    conn: &mut Connection,
    is_gone: Arc<AtomicBool>,
    look: impl FnOnce(&Connection) -> Outcome<T>,
) -> Outcome<T> {
    conn.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || is_gone.load(Ordering::Relaxed)))?;
    let result = query::change(conn, "BEGIN", []).and_then(|_| look(conn));
    let result = finish(conn, result);
    conn.progress_handler(0, None::<fn() -> bool>)?;
    result
}
