//! Signs of life while something takes long, on a terminal only. A thread of its own draws them:
//! the work may block.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zae_limiter::{Clock, SystemClock};

use crate::patience::{self, Speaker};
use crate::printer::{self, Printer};

/// How often the line is drawn. Work that ends before the first time is not worth a word.
const TICK: Duration = Duration::from_millis(500);

/// A line on stderr that tells what goes on and for how long. It goes away with this value.
pub(crate) struct Progress {
    detail: Arc<Mutex<String>>,
    /// `None` when nobody watches.
    drawer: Option<Speaker>,
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

    /// Does some work, and tells meanwhile that `what` goes on.
    pub(crate) async fn during<T>(
        printer: &Printer,
        what: &'static str,
        work: impl Future<Output = T>,
    ) -> T {
        let _progress = Progress::start(printer, what);
        work.await
    }

    /// How far it is, for those who watch.
    pub(crate) fn say(&self, detail: String) {
        if self.drawer.is_none() {
            return;
        }
        *self.detail.lock().unwrap_or_else(PoisonError::into_inner) = detail;
    }
}

fn drawer(what: &'static str, detail: &Arc<Mutex<String>>) -> Option<Speaker> {
    let detail = Arc::clone(detail);
    Speaker::start("progress", move |stopped| {
        let clock = SystemClock::new();
        let mut drawn = false;
        while patience::is_time(stopped, TICK) {
            let detail = detail.lock().unwrap_or_else(PoisonError::into_inner).clone();
            printer::progress(&line(what, clock.monotonic(), &detail));
            drawn = true;
        }
        if drawn {
            printer::progress("");
        }
    })
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
