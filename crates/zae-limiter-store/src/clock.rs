//! Injected time.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use zae_limiter_core::TimeMs;

use crate::BoxFuture;

#[cfg_attr(target_os = "linux", path = "clock/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "clock/portable.rs")]
mod real;

/// The source of time. It has two readings, because they answer different questions: the wall clock
/// is shared by processes and may be stepped; the monotonic one only measures.
pub trait Clock: Send + Sync {
    /// Wall time, by which buckets refill.
    fn now(&self) -> TimeMs;

    /// Time since some fixed moment in this process, for caches, deadlines and breakers.
    fn monotonic(&self) -> Duration;

    /// A reading that costs less and is never before [`Clock::monotonic`]: up to 20 ms ahead. For
    /// what is looked at with every call and may end that much early.
    fn monotonic_at_most(&self) -> Duration {
        self.monotonic()
    }

    /// Waits.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The real clock. Sleeping needs a tokio runtime.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: real::Monotonic,
}

impl SystemClock {
    /// The real clock.
    #[must_use]
    pub fn new() -> SystemClock {
        SystemClock { started: real::monotonic() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> TimeMs {
        real::now()
    }

    fn monotonic(&self) -> Duration {
        real::since(self.started, real::monotonic())
    }

    fn monotonic_at_most(&self) -> Duration {
        real::since(self.started, real::monotonic_at_most())
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock that moves only when told to, for tests. Clones share the same time;
/// [`advance`](ManualClock::advance) wakes the sleepers whose time has come, so a request that
/// waits needs no real time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    shared: Arc<Mutex<ManualTime>>,
}

#[derive(Debug)]
struct ManualTime {
    wall: TimeMs,
    monotonic: Duration,
    sleepers: Vec<(Duration, Waker)>,
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn new(now: TimeMs) -> ManualClock {
        ManualClock {
            shared: Arc::new(Mutex::new(ManualTime {
                wall: now,
                monotonic: Duration::ZERO,
                sleepers: Vec::new(),
            })),
        }
    }

    /// Lets time pass, and wakes the sleepers whose time has come.
    pub fn advance(&self, by: Duration) {
        let woken = {
            let mut time = self.lock();
            time.monotonic += by;
            time.wall = time.wall.plus_ms(i64::try_from(by.as_millis()).unwrap_or(i64::MAX));
            let now = time.monotonic;
            let (woken, asleep) = std::mem::take(&mut time.sleepers)
                .into_iter()
                .partition(|(until, _)| *until <= now);
            time.sleepers = asleep;
            let woken: Vec<(Duration, Waker)> = woken;
            woken
        };
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Steps the wall clock, as an operator or NTP would. No time passes.
    pub fn step_to(&self, now: TimeMs) {
        self.lock().wall = now;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualTime> {
        self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn poll_until(&self, until: Duration, context: &Context<'_>) -> Poll<()> {
        let mut time = self.lock();
        if time.monotonic >= until {
            return Poll::Ready(());
        }
        if !time
            .sleepers
            .iter()
            .any(|(when, waker)| *when == until && waker.will_wake(context.waker()))
        {
            time.sleepers.push((until, context.waker().clone()));
        }
        Poll::Pending
    }
}

impl Clock for ManualClock {
    fn now(&self) -> TimeMs {
        self.lock().wall
    }

    fn monotonic(&self) -> Duration {
        self.lock().monotonic
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        let until = self.monotonic().saturating_add(duration);
        Box::pin(std::future::poll_fn(move |context| clock.poll_until(until, context)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[test]
    fn a_sleeper_wakes_when_its_time_has_come() {
        let clock = ManualClock::new(TimeMs(1000));
        let mut sleep = clock.sleep(Duration::from_millis(50));
        let mut context = Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        clock.advance(Duration::from_millis(49));
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        clock.advance(Duration::from_millis(1));
        assert!(sleep.as_mut().poll(&mut context).is_ready());
        assert_eq!(clock.now(), TimeMs(1050));
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Counter(AtomicU32);

    impl Wake for Counter {
        fn wake(self: Arc<Counter>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn every_sleeper_is_woken_once_however_often_it_was_polled() {
        let clock = ManualClock::new(TimeMs(1000));
        let counters = [Arc::new(Counter::default()), Arc::new(Counter::default())];
        let woken = || counters.each_ref().map(|counter| counter.0.load(Ordering::Relaxed));
        let sleepers = [(0, 50), (0, 80), (1, 50)];
        let mut asleep = sleepers.map(|(_, ms)| clock.sleep(Duration::from_millis(ms)));
        for (sleep, (counter, _)) in asleep.iter_mut().zip(sleepers) {
            let waker = Waker::from(Arc::clone(&counters[counter]));
            let mut context = Context::from_waker(&waker);
            for _ in 0..2 {
                assert!(sleep.as_mut().poll(&mut context).is_pending());
            }
        }
        clock.advance(Duration::from_millis(50));
        assert_eq!(woken(), [1, 1]);
        clock.advance(Duration::from_millis(30));
        assert_eq!(woken(), [2, 1]);
    }

    #[test]
    fn the_real_clock_tells_the_time_and_goes_on() {
        let clock = SystemClock::new();
        // 2026-01-01T10:00:00Z, and the year 2200.
        assert!((TimeMs(1_767_261_600_000)..TimeMs(7_258_118_400_000)).contains(&clock.now()));
        let first = clock.monotonic();
        assert!((0..10_000_000).any(|_| clock.monotonic() > first), "time does not stand still");
    }

    #[test]
    fn the_cheap_reading_is_not_before_the_exact_one_and_little_ahead() {
        let clock = SystemClock::new();
        for _ in 0..100_000 {
            let before = clock.monotonic();
            let at_most = clock.monotonic_at_most();
            let after = clock.monotonic();
            assert!(before <= at_most, "{before:?} {at_most:?}");
            assert!(at_most <= after + Duration::from_millis(20), "{at_most:?} {after:?}");
        }
        let manual = ManualClock::new(TimeMs(0));
        manual.advance(Duration::from_millis(7));
        assert_eq!(manual.monotonic_at_most(), Duration::from_millis(7));
    }

    #[test]
    fn stepping_the_wall_clock_passes_no_time() {
        let clock = ManualClock::new(TimeMs(1000));
        clock.step_to(TimeMs(0));
        assert_eq!((clock.now(), clock.monotonic()), (TimeMs(0), Duration::ZERO));
    }
}
