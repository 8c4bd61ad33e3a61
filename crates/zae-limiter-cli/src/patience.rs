//! A word on stderr about work that takes long and has no progress line. A thread of its own says
//! the word, because the work may block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::printer::Printer;

/// How long a command may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// True once something else tells what goes on: a progress line, or a note about a wait.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Says that something else tells what goes on from now on.
pub(crate) fn told() {
    IS_TOLD.store(true, Ordering::Relaxed);
}

/// Speaks once when the work is not over in time. Goes away with this value.
pub(crate) struct Patience(Option<(Sender<()>, JoinHandle<()>)>);

impl Patience {
    /// Begins to wait; `what` is said then, as in "waiting for the stack demo".
    pub(crate) fn start(printer: &Printer, what: String) -> Patience {
        let (stop, stopped) = mpsc::channel();
        let printer = Printer::new(printer.looks());
        let speak = move || {
            if stopped.recv_timeout(SILENCE_MAX) == Err(RecvTimeoutError::Timeout)
                && !IS_TOLD.load(Ordering::Relaxed)
            {
                printer.note(&what);
            }
        };
        // Without a thread nothing is said, and the work goes on all the same.
        Patience(
            Builder::new().name("patience".into()).spawn(speak).ok().map(|thread| (stop, thread)),
        )
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // It only speaks: there is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}
