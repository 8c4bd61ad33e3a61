//! Signs of life while something takes long, on a terminal only. A thread of its own draws them:
//! the work may block.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use zae_limiter::{Clock, SystemClock};

use crate::patience;
use crate::printer::{self, Printer};

/// How often the line is drawn. Work that ends before the first time is not worth a word.
const TICK: Duration = Duration::from_millis(500);

/// A line on stderr that tells what goes on and for how long. It goes away with this value.
pub(crate) struct Progress {
    detail: Arc<Mutex<String>>,
    /// `None` when nobody watches.
    drawer: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins to tell that `what` goes on, as in "purging".
    pub(crate) fn start(printer: &Printer, what: &'static str) -> Progress {
        let detail = Arc::new(Mutex::new(String::new()));
        let drawer = if printer.looks().progress { drawer(what, &detail) } else { None };
        if drawer.is_some() {
            patience::told();
        }
        Progress { detail, drawer }
    }

    /// How far it is.
    pub(crate) fn say(&self, detail: String) {
        *self.detail.lock().unwrap_or_else(PoisonError::into_inner) = detail;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.drawer.take() {
            drop(stop);
            // It only draws: there is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}

/// Without a thread nothing is drawn, and the work goes on all the same.
fn drawer(what: &'static str, detail: &Arc<Mutex<String>>) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = mpsc::channel();
    let detail = Arc::clone(detail);
    let draw = move || {
        let clock = SystemClock::new();
        let mut drawn = false;
        while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            let detail = detail.lock().unwrap_or_else(PoisonError::into_inner).clone();
            printer::progress(&line(what, clock.monotonic(), &detail));
            drawn = true;
        }
        if drawn {
            printer::progress("");
        }
    };
    let thread = Builder::new().name("progress".into()).spawn(draw).ok()?;
    Some((stop, thread))
}

fn line(what: &str, elapsed: Duration, detail: &str) -> String {
    let separator = if detail.is_empty() { "" } else { ", " };
    format!("{what}: {}s{separator}{detail}", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_and_for_how_long() {
        assert_eq!(line("purging", Duration::from_millis(2_900), ""), "purging: 2s");
        assert_eq!(
            line("sweeping", Duration::from_secs(61), "12 buckets"),
            "sweeping: 61s, 12 buckets"
        );
    }

    #[test]
    fn without_a_watcher_nothing_is_started() {
        let environment = crate::settings::Environment::default();
        let looks = crate::settings::Looks::new(&crate::args::Globals::default(), &environment);
        let progress = Progress::start(&Printer::new(looks), "purging");
        progress.say("half".into());
        assert!(progress.drawer.is_none());
    }
}
