//! Clocks for tests. Waiting takes real time with the clocks for a real engine ([`StillClock`],
//! [`InstantClock`]), and none with [`HurriedClock`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use zae_limiter_core::TimeMs;
use zae_limiter_store::{BoxFuture, Clock, SystemClock};

/// Stands still until told to move.
#[derive(Clone, Debug)]
pub struct StillClock(Arc<AtomicI64>);

impl StillClock {
    /// Stands at the real time.
    #[must_use]
    pub fn new() -> StillClock {
        StillClock::at(SystemClock::new().now())
    }

    /// Stands at an instant.
    #[must_use]
    pub fn at(now: TimeMs) -> StillClock {
        StillClock(Arc::new(AtomicI64::new(now.0)))
    }

    /// Moves all clones of it.
    pub fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Default for StillClock {
    fn default() -> Self {
        StillClock::new()
    }
}

impl Clock for StillClock {
    fn now(&self) -> TimeMs {
        TimeMs(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now().0.unsigned_abs())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        SystemClock::new().sleep(duration)
    }
}

/// Stands still, except that waiting moves it by as much.
#[derive(Clone, Debug)]
pub struct HurriedClock(Arc<AtomicI64>);

impl HurriedClock {
    /// Stands at an instant.
    #[must_use]
    pub fn at(now: TimeMs) -> HurriedClock {
        HurriedClock(Arc::new(AtomicI64::new(now.0)))
    }

    /// Moves all clones of it.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

impl Clock for HurriedClock {
    fn now(&self) -> TimeMs {
        TimeMs(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now().0.unsigned_abs())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.advance(duration);
        Box::pin(std::future::ready(()))
    }
}

/// Shows real time, but no monotonic time passes, so an operation keeps its caller's time to the
/// millisecond.
#[derive(Debug, Default)]
pub struct InstantClock(SystemClock);

impl Clock for InstantClock {
    fn now(&self) -> TimeMs {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}
