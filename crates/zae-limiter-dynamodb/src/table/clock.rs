//! The table's clock, as far as the dates of its answers tell it.
//!
//! Every instant that is written to a shared table is one of the table's clock: processes whose own
//! clocks are wrong, or are stepped while they run, then still agree. The `Date` of an answer says
//! what time the table had; the monotonic clock says what has passed since. The wall clock of the
//! process chooses only within that span.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use zae_limiter_core::TimeMs;
use zae_limiter_store::Clock;

use crate::constants::{
    CLOCK_DRIFT_MAX_MS, CLOCK_SAMPLE_AGE_MAX, CLOCK_SAMPLE_EVERY, CLOCK_TOLERANCE_MS,
    CLOCK_TRIP_MAX,
};

/// `Date` is cut to whole seconds: the moment it means lies up to this much later.
const DATE_RESOLUTION_MS: i64 = 999;

/// The table's clock shows a time between these two, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Not before this.
    pub earliest: TimeMs,
    /// Not after this.
    pub latest: TimeMs,
}

impl Span {
    /// The instant of a local clock, as far as the table's clock lets it count.
    #[must_use]
    pub fn correct(self, at: TimeMs) -> TimeMs {
        let first = self.earliest.0.saturating_sub(CLOCK_TOLERANCE_MS);
        let last = self.latest.0.saturating_add(CLOCK_TOLERANCE_MS);
        TimeMs(at.0.max(first).min(last))
    }
}

/// What is known of the table's clock at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableTime {
    /// No clock to compare with: the local clock is believed.
    Local,
    /// No answer has told the time, or not recently, or the local clocks have disagreed since: any
    /// request tells it again. The span is what the last answer and the monotonic clock say.
    Doubtful(Option<Span>),
    /// It is certain.
    Within(Span),
}

impl TableTime {
    /// What can be said of the table's clock, certain or not.
    #[must_use]
    pub fn span(self) -> Option<Span> {
        match self {
            TableTime::Local => None,
            TableTime::Doubtful(span) => span,
            TableTime::Within(span) => Some(span),
        }
    }

    /// The instant of a local clock, as far as the table's clock lets it count.
    #[must_use]
    pub fn correct(self, at: TimeMs) -> TimeMs {
        self.span().map_or(at, |span| span.correct(at))
    }
}

/// When a request was sent, by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SentAt(pub(crate) Duration);

/// What the date of one answer says.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The table's clock when the answer came.
    span: Span,
    received: Duration,
    /// The wall clock when the answer came.
    wall: TimeMs,
    /// The answer took so long that its date says little.
    is_slow: bool,
}

impl Sample {
    /// The table's clock at a later moment of the monotonic one.
    fn span_at(&self, monotonic: Duration) -> Span {
        let passed_ms = whole_ms(monotonic.saturating_sub(self.received));
        Span {
            earliest: self.span.earliest.plus_ms(passed_ms),
            latest: self.span.latest.plus_ms(passed_ms),
        }
    }
}

/// Follows the table's clock by the dates of its answers. A clone follows the same one.
#[derive(Clone)]
pub struct DateWatch {
    clock: Arc<dyn Clock>,
    heard: Arc<RwLock<Heard>>,
}

/// What the answers have told so far.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    last: Option<Sample>,
    /// The latest answer that was looked at had no date.
    is_silent: bool,
}

impl DateWatch {
    /// Compares with this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> DateWatch {
        DateWatch { clock, heard: Arc::default() }
    }

    fn heard(&self) -> Heard {
        *self.heard.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, heard: Heard) {
        *self.heard.write().unwrap_or_else(PoisonError::into_inner) = heard;
    }

    /// True when it is time to look at the date of an answer again.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let passed =
            self.heard().last.map(|last| self.clock.monotonic().saturating_sub(last.received));
        passed.is_none_or(|passed| passed >= CLOCK_SAMPLE_EVERY)
            || matches!(self.time(), TableTime::Doubtful(_))
    }

    /// A request is about to be sent.
    #[must_use]
    pub fn sent(&self) -> SentAt {
        SentAt(self.clock.monotonic())
    }

    /// Its answer has come, dated `date_ms`.
    pub fn answered(&self, SentAt(sent): SentAt, date_ms: i64) {
        let (received, wall) = (self.clock.monotonic(), self.clock.now());
        let trip = received.saturating_sub(sent);
        let mut span = Span {
            earliest: TimeMs(date_ms),
            latest: TimeMs(date_ms.saturating_add(DATE_RESOLUTION_MS)).plus_ms(whole_ms(trip)),
        };
        let is_slow = trip > CLOCK_TRIP_MAX;
        if is_slow {
            if matches!(self.time(), TableTime::Within(_)) {
                // A slow answer says less than what is known.
                return;
            }
            // The time lies in both spans; where they have nothing in common, the monotonic clock
            // has stood still meanwhile.
            let known = self.heard().last.map(|last| last.span_at(received));
            let common = known.map(|known| Span {
                earliest: span.earliest.max(known.earliest),
                latest: span.latest.min(known.latest),
            });
            span = common.filter(|common| common.earliest <= common.latest).unwrap_or(span);
        }
        self.hear(Heard { last: Some(Sample { span, received, wall, is_slow }), is_silent: false });
    }

    /// An answer has come without a date. A table that tells no time cannot be asked for it.
    pub fn answered_without_date(&self) {
        self.hear(Heard { is_silent: true, ..self.heard() });
    }

    /// What is known of the table's clock now.
    #[must_use]
    pub fn time(&self) -> TableTime {
        let heard = self.heard();
        let doubtful =
            |span| if heard.is_silent { TableTime::Local } else { TableTime::Doubtful(span) };
        let Some(last) = heard.last else { return doubtful(None) };
        let monotonic = self.clock.monotonic();
        let (passed, span) = (monotonic.saturating_sub(last.received), last.span_at(monotonic));
        // Two clocks that have gone different ways since: one was stepped, or the other stood still
        // while the machine slept.
        let drift_ms = self.clock.now().since(last.wall).saturating_sub(whole_ms(passed));
        if last.is_slow
            || passed > CLOCK_SAMPLE_AGE_MAX
            || drift_ms.saturating_abs() > CLOCK_DRIFT_MAX_MS
        {
            return doubtful(Some(span));
        }
        TableTime::Within(span)
    }
}

impl fmt::Debug for DateWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DateWatch").field("heard", &self.heard()).finish_non_exhaustive()
    }
}

/// Whole milliseconds, at most as many as there can be.
pub(crate) fn whole_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use zae_limiter_store::ManualClock;

    use super::*;

    const DATE: i64 = 1_767_261_600_000;

    fn span(earliest: i64, latest: i64) -> Span {
        Span { earliest: TimeMs(DATE + earliest), latest: TimeMs(DATE + latest) }
    }

    fn ask(watch: &DateWatch, clock: &ManualClock, trip: Duration, date_ms: i64) {
        let sent = watch.sent();
        clock.advance(trip);
        watch.answered(sent, date_ms);
    }

    fn watched(now: i64) -> (ManualClock, DateWatch) {
        let clock = ManualClock::new(TimeMs(now));
        (clock.clone(), DateWatch::new(Arc::new(clock)))
    }

    #[test]
    fn a_date_and_the_time_since_bound_the_tables_clock() {
        let (clock, watch) = watched(DATE + 86_400_000);
        assert_eq!(watch.time(), TableTime::Doubtful(None), "nobody has told yet");
        ask(&watch, &clock, Duration::from_millis(20), DATE);
        assert_eq!(watch.time(), TableTime::Within(span(0, 999 + 20)));
        clock.advance(Duration::from_millis(500));
        assert_eq!(watch.time(), TableTime::Within(span(500, 1_519)));
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_nothing_and_asks_again() {
        for step_ms in [-31_536_000_000, -1_001, 1_001, 240_000, 315_360_000_000] {
            let (clock, watch) = watched(DATE);
            ask(&watch, &clock, Duration::ZERO, DATE);
            assert!(!watch.is_due(), "just asked");
            clock.step_to(TimeMs(DATE + step_ms));
            assert_eq!(
                watch.time(),
                TableTime::Doubtful(Some(span(0, 999))),
                "stepped by {step_ms} ms"
            );
            assert!(watch.is_due(), "stepped by {step_ms} ms");
            ask(&watch, &clock, Duration::ZERO, DATE);
            assert_eq!(
                watch.time(),
                TableTime::Within(span(0, 999)),
                "asked again after {step_ms} ms"
            );
        }
    }

    #[test]
    fn what_was_heard_long_ago_is_asked_again() {
        let (clock, watch) = watched(DATE);
        ask(&watch, &clock, Duration::ZERO, DATE);
        clock.advance(CLOCK_SAMPLE_AGE_MAX);
        assert!(matches!(watch.time(), TableTime::Within(_)));
        clock.advance(Duration::from_millis(1));
        assert!(matches!(watch.time(), TableTime::Doubtful(Some(_))));
    }

    #[test]
    fn a_table_that_tells_no_time_is_asked_once() {
        let (clock, watch) = watched(DATE);
        watch.answered_without_date();
        assert_eq!(watch.time(), TableTime::Local);
        ask(&watch, &clock, Duration::ZERO, DATE);
        watch.answered_without_date();
        assert!(matches!(watch.time(), TableTime::Within(_)), "what was told still counts");
        clock.step_to(TimeMs(0));
        assert_eq!(watch.time(), TableTime::Local, "nobody can say any more");
    }

    #[test]
    fn a_slow_answer_replaces_only_what_is_doubtful() {
        let (clock, watch) = watched(DATE);
        ask(&watch, &clock, Duration::ZERO, DATE);
        let slow = CLOCK_TRIP_MAX + Duration::from_millis(1);
        ask(&watch, &clock, slow, DATE + 2_000);
        assert_eq!(
            watch.time(),
            TableTime::Within(span(1_001, 2_000)),
            "the first answer, and the time since"
        );
        clock.step_to(TimeMs(DATE - 60_000));
        ask(&watch, &clock, slow, DATE + 2_000);
        assert_eq!(
            watch.time(),
            TableTime::Doubtful(Some(span(2_002, 3_001))),
            "what both say, and not certain yet"
        );
        // The machine has slept: the slow answer is all there is.
        ask(&watch, &clock, slow, DATE + 600_000);
        assert_eq!(watch.time(), TableTime::Doubtful(Some(span(600_000, 600_999 + 1_001))));
        ask(&watch, &clock, Duration::ZERO, DATE + 600_000);
        assert!(matches!(watch.time(), TableTime::Within(_)));
    }

    #[test]
    fn only_what_is_far_off_is_corrected() {
        let span = span(0, 999);
        for (at, wanted) in [
            (0, 0),
            (-1_000, -1_000),
            (1_999, 1_999),
            (-1_001, -1_000),
            (2_000, 1_999),
            (-86_400_000, -1_000),
        ] {
            assert_eq!(span.correct(TimeMs(DATE + at)), TimeMs(DATE + wanted), "{at} ms");
        }
        assert_eq!(span.correct(TimeMs(i64::MAX)), TimeMs(DATE + 1_999));
        assert_eq!(span.correct(TimeMs(i64::MIN)), TimeMs(DATE - 1_000));
    }
}
