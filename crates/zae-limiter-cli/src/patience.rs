//! A word on stderr about work that takes long and has no progress line. A thread of its own says
//! the word, because the work may block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
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

/// Says `what` once, as in "waiting for the stack demo", when the work is not over in time. Waits
/// as long as the value lives.
pub(crate) fn start(printer: &Printer, what: String) -> Option<Speaker> {
    let printer = Printer::new(printer.looks());
    Speaker::start("patience", move |stopped| {
        if is_time(stopped, SILENCE_MAX) && !IS_TOLD.load(Ordering::Relaxed) {
            printer.note(&what);
        }
    })
}

/// True when a speaker was not stopped for so long.
pub(crate) fn is_time(stopped: &Receiver<()>, silence: Duration) -> bool {
    stopped.recv_timeout(silence) == Err(RecvTimeoutError::Timeout)
}

/// A thread that speaks beside the work, and stops with this value.
pub(crate) struct Speaker(Option<(Sender<()>, JoinHandle<()>)>);

impl Speaker {
    /// Starts the thread. Without a thread nothing is said, and the work goes on all the same.
    pub(crate) fn start(
        name: &str,
        speak: impl FnOnce(&Receiver<()>) + Send + 'static,
    ) -> Option<Speaker> {
        let (stop, stopped) = mpsc::channel();
        let thread = Builder::new().name(name.into()).spawn(move || speak(&stopped)).ok()?;
        Some(Speaker(Some((stop, thread))))
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // It only speaks: there is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}
