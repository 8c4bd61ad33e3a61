//! A queue between processes, in front of SQLite's write lock.
//!
//! With `synchronous` FULL a transaction takes as long as the disk, and a process that tries again
//! and again for SQLite's lock wastes much of that time asleep. So processes first line up at an
//! advisory lock on a file of its own, where the kernel wakes the next one at once. Measured with
//! two processes: a third more commits, equally shared. The gate only orders: SQLite's lock is safe
//! without it, so a process that does not know the gate does no harm.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zae_limiter_store::StoreError;

use crate::connection::{Place, private};
use crate::error::{Outcome, from_io};

/// The suffix of the file at which processes line up.
pub(crate) const GATE_END: &str = ".gate";

/// Where processes line up.
pub(crate) struct Gate {
    file: Arc<File>,
    path: PathBuf,
    line: Arc<Line>,
}

/// Waiting in line blocks without a time limit, so a thread of its own does it, and this process
/// stops listening when its deadline is over. The thread is started when a caller first has to
/// wait.
#[derive(Default)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    turn: Turn,
    has_waiter: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// No caller waits.
    #[default]
    Idle,
    /// The waiter shall get in line, or is in it.
    Wanted,
    /// It was this process's turn: the lock is held for the caller that asked.
    Ours,
    /// The caller that asked has given up; the waiter lets the next process in.
    GivenUp,
}

/// Held during a transaction; dropping it lets the next process in.
pub(crate) struct Pass<'a>(&'a Gate);

impl Gate {
    pub(crate) fn open(place: &Place) -> Result<Gate, StoreError> {
        let mut name = OsString::from(place.path.as_os_str());
        name.push(GATE_END);
        let path = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        private(&mut options);
        let file = options.open(&path).map_err(|error| from_io(error, "open", &path))?;
        Ok(Gate { file: Arc::new(file), path, line: Arc::new(Line::default()) })
    }

    /// Waits for our turn, at most until the deadline; then `None`.
    pub(crate) fn enter(&self, deadline: Duration) -> Outcome<Option<Pass<'_>>> {
        // While the waiter is still in line from an earlier time, only it may take the lock: both
        // share one descriptor.
        if self.line.lock().turn == Turn::Idle {
            match self.file.try_lock() {
                Ok(()) => return Ok(Some(Pass(self))),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(from_io(error, "begin", &self.path).into());
                }
            }
        }
        self.want()?;
        Ok(self.line.wait_for_turn(deadline).then_some(Pass(self)))
    }

    /// Sends the waiter into line.
    fn want(&self) -> Outcome<()> {
        let mut state = self.line.lock();
        if !state.has_waiter {
            let (line, file) = (Arc::clone(&self.line), Arc::clone(&self.file));
            let spawned = std::thread::Builder::new()
                .name("zae-limiter-gate".to_owned())
                .spawn(move || line.wait_at(&file));
            spawned.map_err(|error| from_io(error, "begin", &self.path))?;
            state.has_waiter = true;
        }
        state.turn = Turn::Wanted;
        self.line.changed.notify_all();
        Ok(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The waiter is not joined: it may be in line behind a process that has been stopped.
        self.line.lock().has_waiter = false;
        self.line.changed.notify_all();
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.line.lock().turn = Turn::Idle;
        if let Err(error) = self.0.file.unlock() {
            tracing::debug!(%error, "the gate could not be opened for the next process");
        }
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_turn(&self, deadline: Duration) -> bool {
        let waiting = self
            .changed
            .wait_timeout_while(self.lock(), deadline, |state| state.turn == Turn::Wanted);
        let (mut state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        let ours = state.turn == Turn::Ours;
        if !ours {
            state.turn = Turn::GivenUp;
        }
        ours
    }

    /// The loop of the waiter: it gets in line when a caller asks, until the gate is gone.
    fn wait_at(&self, file: &File) {
        loop {
            let waiting = self
                .changed
                .wait_while(self.lock(), |state| state.turn != Turn::Wanted && state.has_waiter);
            let state = waiting.unwrap_or_else(PoisonError::into_inner);
            if !state.has_waiter {
                return;
            }
            drop(state);
            let locked = file.lock();
            let mut state = self.lock();
            match (state.turn, locked) {
                (Turn::Wanted, Ok(())) => state.turn = Turn::Ours,
                // Without locks on this file system the gate stands open: SQLite's own lock
                // decides.
                (Turn::Wanted, Err(error)) => {
                    tracing::debug!(%error, "the gate does not work");
                    state.turn = Turn::Ours;
                }
                (Turn::GivenUp | Turn::Idle | Turn::Ours, _) => {
                    // An error leaves the lock to the end of the process, which only delays others.
                    let _ = file.unlock();
                    state.turn = Turn::Idle;
                }
            }
            self.changed.notify_all();
        }
    }
}
