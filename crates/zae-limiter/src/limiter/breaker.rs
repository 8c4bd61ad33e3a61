//! The circuit breaker: a dead store is left alone, then probed.
//!
//! Only outages count. Refusals, contention, bad input and missing permissions are answers, not
//! outages.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zae_limiter_store::{Clock, Entropy};

/// Consecutive outages that open the breaker.
const FAILURES_TO_OPEN: u32 = 5;
/// The first pause; doubled with every failed probe.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Counts outages of one store.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// False while the breaker is closed without a failure on record: a healthy call pays for this
    /// one load.
    troubled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// `Some` while open: until when no call is let through, and the pause that led there.
    open: Option<Open>,
    probing: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    until: Duration,
    pause: Duration,
}

impl Breaker {
    /// Asks to call the store. `Err` says for how long the store is left alone.
    pub(crate) fn enter(&self, clock: &dyn Clock) -> Result<Entry<'_>, Duration> {
        if !self.troubled.load(Ordering::Acquire) {
            return Ok(Entry { breaker: self, probe: false, done: false });
        }
        let mut state = self.lock();
        let Some(open) = state.open else {
            return Ok(Entry { breaker: self, probe: false, done: false });
        };
        let now = clock.monotonic();
        if now < open.until {
            return Err(open.until - now);
        }
        if state.probing {
            return Err(PAUSE_MIN);
        }
        state.probing = true;
        Ok(Entry { breaker: self, probe: true, done: false })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A call to the store that the breaker has let through. A call that is dropped without a verdict,
/// because it was cancelled, counts neither way.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    breaker: &'a Breaker,
    probe: bool,
    done: bool,
}

impl Entry<'_> {
    /// The store answered.
    pub(crate) fn answered(mut self) {
        self.done = true;
        if self.breaker.troubled.load(Ordering::Acquire) {
            let mut state = self.breaker.lock();
            // A call that was let in before the breaker opened proves nothing about now.
            if self.probe || state.open.is_none() {
                *state = State::default();
                self.breaker.troubled.store(false, Ordering::Release);
            }
        }
    }

    /// The store is down.
    pub(crate) fn failed(mut self, clock: &dyn Clock, entropy: &dyn Entropy) {
        self.done = true;
        let mut state = self.breaker.lock();
        self.breaker.troubled.store(true, Ordering::Release);
        state.failures = state.failures.saturating_add(1);
        let pause = match state.open {
            Some(open) if self.probe => open.pause.saturating_mul(2).min(PAUSE_MAX),
            Some(_) => return,
            None if state.failures >= FAILURES_TO_OPEN => PAUSE_MIN,
            None => return,
        };
        state.probing = false;
        let until = clock.monotonic().saturating_add(jittered(pause, entropy));
        state.open = Some(Open { until, pause });
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if self.probe && !self.done {
            self.breaker.lock().probing = false;
        }
    }
}

/// Between half and the whole of `pause`, so that processes do not probe in step.
fn jittered(pause: Duration, entropy: &dyn Entropy) -> Duration {
    let half_ms = u64::try_from(pause.as_millis() / 2).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(half_ms + entropy.next_u64() % half_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zae_limiter_core::TimeMs;
    use zae_limiter_store::{ManualClock, SeededEntropy};

    fn open_breaker(clock: &ManualClock, entropy: &SeededEntropy) -> Breaker {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_TO_OPEN {
            breaker.enter(clock).expect("closed").failed(clock, entropy);
        }
        breaker
    }

    #[test]
    fn it_opens_after_repeated_outages_and_probes_once() {
        let (clock, entropy) = (ManualClock::new(TimeMs(0)), SeededEntropy::new(1));
        let breaker = open_breaker(&clock, &entropy);
        let pause = breaker.enter(&clock).expect_err("open");
        assert!(pause <= PAUSE_MIN && pause >= PAUSE_MIN / 2, "{pause:?}");
        clock.advance(PAUSE_MIN);
        let probe = breaker.enter(&clock).expect("half-open lets one through");
        assert!(breaker.enter(&clock).is_err(), "only one probe at a time");
        probe.answered();
        assert!(breaker.enter(&clock).is_ok(), "closed again");
    }

    #[test]
    fn an_answer_in_between_starts_the_count_anew() {
        let (clock, entropy) = (ManualClock::new(TimeMs(0)), SeededEntropy::new(1));
        let breaker = Breaker::default();
        for _ in 0..3 {
            for _ in 0..FAILURES_TO_OPEN - 1 {
                breaker.enter(&clock).expect("closed").failed(&clock, &entropy);
            }
            breaker.enter(&clock).expect("closed").answered();
        }
        assert!(breaker.enter(&clock).is_ok());
    }

    #[test]
    fn failed_probes_wait_longer_up_to_the_maximum() {
        let (clock, entropy) = (ManualClock::new(TimeMs(0)), SeededEntropy::new(1));
        let breaker = open_breaker(&clock, &entropy);
        for _ in 0..10 {
            clock.advance(PAUSE_MAX);
            breaker.enter(&clock).expect("probe").failed(&clock, &entropy);
        }
        let pause = breaker.enter(&clock).expect_err("open");
        assert!(pause <= PAUSE_MAX && pause >= PAUSE_MAX / 2, "{pause:?}");
    }

    #[test]
    fn a_cancelled_probe_lets_the_next_one_through() {
        let (clock, entropy) = (ManualClock::new(TimeMs(0)), SeededEntropy::new(1));
        let breaker = open_breaker(&clock, &entropy);
        clock.advance(PAUSE_MIN);
        drop(breaker.enter(&clock).expect("probe"));
        assert!(breaker.enter(&clock).is_ok());
    }

    #[test]
    fn a_late_answer_from_before_the_outage_does_not_close_it() {
        let (clock, entropy) = (ManualClock::new(TimeMs(0)), SeededEntropy::new(1));
        let breaker = Breaker::default();
        let early = breaker.enter(&clock).expect("closed");
        for _ in 0..FAILURES_TO_OPEN {
            breaker.enter(&clock).expect("closed").failed(&clock, &entropy);
        }
        early.answered();
        assert!(breaker.enter(&clock).is_err());
    }
}
