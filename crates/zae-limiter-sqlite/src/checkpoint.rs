//! Writing the log back into the file, beside the writers.
//!
//! A checkpoint has a thread and a connection of its own, and is always `PASSIVE`: SQLite lets
//! writers append to the log meanwhile, however long the disk takes. But the log is started anew
//! only if nothing was appended since the last page was written back and synced. Under load that
//! never happens by itself, so for the last few pages a writer helps: it holds the write lock and
//! does nothing, for at most [`HOLD_MAX`], or the busy deadline once the log has [`LOG_PAGES_HARD`]
//! pages. On a disk that needs longer the hold is in vain, and the callers lose no more than that
//! time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use crate::connection::{LOG_PAGES_HARD, Place};

/// How long a writer holds the lock for a checkpoint: a tenth of the default deadline of a caller.
pub(crate) const HOLD_MAX: Duration = Duration::from_millis(100);
/// Pages that may be left to write back when a writer is asked to help.
const HOLD_PAGES_MAX: u32 = 1_000;
/// Passes beside the writers before a writer is asked to help, however many pages are left.
const FREE_PASSES_MAX: u32 = 2;
/// How often a writer is asked in one round. The disk has synced the pages that the attempt before
/// left, so the next one has less to do.
const HOLDS_MAX: u32 = 3;

/// The messages between the writers and the thread that writes the log back.
#[derive(Default)]
pub(crate) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
    rounds: AtomicU64,
    holds: AtomicU64,
}

#[derive(Default)]
struct State {
    is_wanted: bool,
    hold: Hold,
    is_closing: bool,
}

/// The help of a writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hold {
    /// No help was asked for.
    #[default]
    None,
    /// The checkpoint has asked a writer to hold the lock.
    Wanted,
    /// A writer holds the lock.
    Held,
    /// The writer could not get the lock, or has let go.
    Over,
}

/// How far one pass came.
struct Pass {
    /// Pages of the log that were there when the pass began.
    log: u32,
    /// Pages of it that are in the file now.
    written_back: u32,
}

impl Checkpoints {
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    pub(crate) fn holds(&self) -> u64 {
        self.holds.load(Ordering::Relaxed)
    }

    /// Asks for a checkpoint, because the log is long.
    pub(crate) fn want(&self) {
        self.lock().is_wanted = true;
        self.changed.notify_all();
    }

    /// Ends the thread after the pass it is in.
    pub(crate) fn close(&self) {
        self.lock().is_closing = true;
        self.changed.notify_all();
    }

    /// The loop of the thread, until the end. `ask` gets a writer to call [`Checkpoints::hold`]
    /// soon.
    pub(crate) fn run(&self, place: &Place, conn: &Connection, ask: impl Fn() -> bool) {
        while self.wait_until_wanted() {
            place.begin_round();
            self.round(place, conn, &ask);
            place.end_round();
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn wait_until_wanted(&self) -> bool {
        let waiting =
            self.changed.wait_while(self.lock(), |state| !state.is_wanted && !state.is_closing);
        let mut state = waiting.unwrap_or_else(PoisonError::into_inner);
        state.is_wanted = false;
        !state.is_closing
    }

    /// Writes the log back until the next commit can start it anew, or until that is not possible
    /// now.
    fn round(&self, place: &Place, conn: &Connection, ask: &impl Fn() -> bool) {
        for _ in 0..HOLDS_MAX {
            for _ in 0..FREE_PASSES_MAX {
                let Some(pass) = self.pass(place, conn) else { return };
                let left = place.log_pages().saturating_sub(pass.written_back);
                // Nothing was appended; or a reader uses an old state of the file, and holding the
                // lock would not help.
                if left == 0 || pass.written_back < pass.log {
                    return;
                }
                if left <= HOLD_PAGES_MAX {
                    break;
                }
            }
            if self.pass_while_held(place, conn, ask) {
                return;
            }
        }
    }

    /// One pass beside the writers. `None` when another process runs a checkpoint, after an error,
    /// and when the store is being closed.
    fn pass(&self, place: &Place, conn: &Connection) -> Option<Pass> {
        if self.lock().is_closing {
            return None;
        }
        match place.checkpoint(conn) {
            Ok(done) => done.map(|(log, written_back)| Pass { log, written_back }),
            Err(failure) => {
                // Nothing is lost: the log only grows until a later attempt succeeds, and the
                // writes report the error.
                tracing::debug!(?failure, "the log could not be written back");
                None
            }
        }
    }

    /// One pass while a writer holds the lock. True when another pass in this round would copy
    /// nothing, or no pass was possible.
    fn pass_while_held(&self, place: &Place, conn: &Connection, ask: &impl Fn() -> bool) -> bool {
        self.lock().hold = Hold::Wanted;
        if !ask() {
            self.lock().hold = Hold::None;
            return true;
        }
        let patience = place.options.busy_deadline.saturating_mul(2);
        let waiting = self.changed.wait_timeout_while(self.lock(), patience, |state| {
            state.hold == Hold::Wanted && !state.is_closing
        });
        let is_held = waiting.unwrap_or_else(PoisonError::into_inner).0.hold == Hold::Held;
        let pass = if is_held { self.pass(place, conn) } else { None };
        let mut state = self.lock();
        let is_in_time = state.hold == Hold::Held;
        state.hold = Hold::None;
        drop(state);
        self.changed.notify_all();
        // Without a pass, and after one that ended while the lock was held, another attempt would
        // find the same.
        pass.is_none() || is_in_time
    }

    /// Waits, with the write lock held by the caller, until the checkpoint is done or has taken too
    /// long.
    pub(crate) fn hold(&self, place: &Place) {
        let mut state = self.lock();
        if state.hold != Hold::Wanted {
            return;
        }
        state.hold = Hold::Held;
        self.holds.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_all();
        // A log of this length is about to fill the disk, which would stop every caller for good.
        let hold_max = if place.log_pages() >= LOG_PAGES_HARD {
            place.options.busy_deadline
        } else {
            HOLD_MAX
        };
        let waiting =
            self.changed.wait_timeout_while(state, hold_max, |state| state.hold == Hold::Held);
        let mut state = waiting.unwrap_or_else(PoisonError::into_inner).0;
        if state.hold == Hold::Held {
            state.hold = Hold::Over;
        }
    }

    /// A writer was asked to help and could not.
    pub(crate) fn cannot_hold(&self) {
        let mut state = self.lock();
        if state.hold == Hold::Wanted {
            state.hold = Hold::Over;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::{fs, thread};

    use tempfile::TempDir;

    use super::*;
    use crate::SqliteOptions;

    /// A file with a log, and the connection that writes both.
    struct Logged {
        folder: TempDir,
        place: Arc<Place>,
        conn: Connection,
    }

    impl Logged {
        fn new() -> Logged {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("limits.db");
            let options = SqliteOptions::new().busy_deadline(Duration::from_millis(200));
            let place = Arc::new(Place::new(&path, options).expect("a place"));
            let conn = place.open_writer().expect("a connection");
            conn.execute_batch("CREATE TABLE filler (bytes BLOB)").expect("a table");
            Logged { folder, place, conn }
        }

        /// Appends about 50 pages to the log.
        fn append(&self) {
            let fill = "INSERT INTO filler VALUES (zeroblob(200000))";
            self.conn.execute_batch(fill).expect("a commit");
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("limits.db")
        }

        /// The length of the file without its log.
        fn bytes(&self) -> u64 {
            fs::metadata(self.path()).expect("a file").len()
        }

        /// How often a round asks for a writer. None can help.
        fn asks(&self) -> u32 {
            let asks = Cell::new(0);
            Checkpoints::default().round(&self.place, &self.conn, &|| {
                asks.set(asks.get() + 1);
                false
            });
            asks.get()
        }
    }

    #[test]
    fn a_log_that_nobody_appends_to_needs_no_writer() {
        let logged = Logged::new();
        logged.append();
        let before = logged.bytes();
        assert_eq!(logged.asks(), 0);
        assert!(logged.bytes() >= before + 200_000, "the log is in the file");
    }

    #[test]
    fn a_log_that_a_reader_needs_is_not_waited_for_by_a_writer() {
        let logged = Logged::new();
        let reader = Connection::open(logged.path()).expect("a connection");
        reader.execute_batch("BEGIN; SELECT count(*) FROM filler").expect("a reader");
        logged.append();
        assert_eq!(logged.asks(), 0);
        drop(reader);
    }

    /// The log as the writer remembers it is longer than what a pass has found: as after commits
    /// beside the pass.
    #[test]
    fn a_log_that_grows_beside_a_pass_needs_a_writer() {
        let logged = Logged::new();
        logged.append();
        let other = Connection::open(logged.path()).expect("a connection");
        other
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE); INSERT INTO filler VALUES ('')")
            .expect("a log of a page");
        assert_eq!(logged.asks(), 1, "one that cannot help is not asked again");
    }

    #[test]
    fn the_last_pages_are_written_back_while_a_writer_holds_the_lock() {
        let logged = Logged::new();
        let (before, checkpoints) = (logged.bytes(), Checkpoints::default());
        logged.append();
        assert_eq!(checkpoints.holds(), 0);
        let mut attempts = 0;
        // A machine that is busy may let the hold pass by.
        while logged.bytes() == before && attempts < 10 {
            thread::scope(|scope| {
                let ask = || {
                    scope.spawn(|| checkpoints.hold(&logged.place));
                    true
                };
                checkpoints.pass_while_held(&logged.place, &logged.conn, &ask);
            });
            attempts += 1;
        }
        assert!(logged.bytes() > before, "{attempts} attempts");
        let holds = checkpoints.holds();
        assert!((1..=attempts).contains(&holds), "{holds} holds in {attempts} attempts");
        checkpoints.hold(&logged.place);
        assert_eq!(checkpoints.holds(), holds, "nobody asks any more");
    }

    #[test]
    fn a_round_is_made_when_it_is_wanted_and_none_after_the_end() {
        let checkpoints = Checkpoints::default();
        checkpoints.want();
        assert!(checkpoints.wait_until_wanted());
        assert!(!checkpoints.lock().is_wanted, "wanted once");
        let Logged { folder, place, conn } = Logged::new();
        thread::scope(|scope| {
            let rounds = || checkpoints.rounds();
            assert_eq!(rounds(), 0);
            let running = scope.spawn(|| {
                let conn = conn;
                checkpoints.run(&place, &conn, || false);
            });
            checkpoints.want();
            while rounds() == 0 && !running.is_finished() {
                thread::yield_now();
            }
            checkpoints.close();
        });
        assert!(!checkpoints.wait_until_wanted());
        assert_eq!(checkpoints.rounds(), 1);
        drop(folder);
    }
}
