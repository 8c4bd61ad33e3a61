//! One key at work: it estimates, takes, calls the model, records what it really cost, and waits
//! when it is refused.

use std::sync::PoisonError;
use std::time::Duration;

use zae_limiter::store::{Entropy, SeededEntropy};
use zae_limiter::{AcquireError, Clock, RateLimiter, Request, SystemClock};

use super::SharedBoard;
use super::board::Event;
use super::world::{Habits, RESOURCE};

/// How long the model thinks: from, to.
const THINKING_MS: (u64, u64) = (40, 160);
/// The longest a refused key waits before it looks again.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Calls one key makes at least, so that even a short demo on a busy machine has something to show.
const CALLS_MIN: u32 = 3;
/// Calls one key makes at most, whatever the clock does.
const CALLS_MAX: u32 = 1_000_000;

/// What all clients share.
pub(super) struct Shared {
    pub(super) limiter: RateLimiter,
    pub(super) board: SharedBoard,
    pub(super) clock: SystemClock,
    /// By the monotonic clock.
    pub(super) end: Duration,
}

/// Calls until the end.
pub(super) async fn run(
    shared: Shared,
    key: &'static str,
    habits: Habits,
    number: usize,
) -> anyhow::Result<()> {
    // The same calls every time; only the clock differs.
    let dice = SeededEntropy::new(number as u64 + 1);
    for calls in 0..CALLS_MAX {
        if calls >= CALLS_MIN && shared.clock.monotonic() >= shared.end {
            break;
        }
        let pause = call(&shared, key, habits, &dice).await?;
        let left = shared.end.saturating_sub(shared.clock.monotonic());
        shared.clock.sleep(pause.min(left)).await;
    }
    Ok(())
}

/// One call; returns how long to pause after it.
async fn call(
    shared: &Shared,
    key: &'static str,
    habits: Habits,
    dice: &SeededEntropy,
) -> anyhow::Result<Duration> {
    let estimate = between(dice, habits.estimate);
    let request = Request::new(key, RESOURCE).take("rpm", 1).take("tpm", estimate);
    let event = match shared.limiter.acquire(request).await {
        Ok(lease) => {
            shared.clock.sleep(Duration::from_millis(between(dice, THINKING_MS))).await;
            let used = (estimate * between(dice, habits.cost_pct)).div_ceil(100);
            lease.record("tpm", used)?;
            lease.commit().await?;
            Event::Granted { estimate, used }
        }
        Err(AcquireError::Exceeded(report)) => {
            let wait = report.retry_after().duration();
            let reason = report.primary();
            let by = reason.map_or(key.to_owned(), |status| status.entity.to_string());
            let limit = reason.map_or("rpm".to_owned(), |status| status.limit.name().to_string());
            Event::Refused { by, limit, wait }
        }
        Err(error) => return Err(error.into()),
    };
    let pause = match &event {
        Event::Granted { .. } => Duration::from_millis(habits.pause_ms),
        Event::Refused { wait, .. } => wait.unwrap_or(WAIT_MAX).min(WAIT_MAX),
    };
    let now = shared.clock.monotonic();
    shared.board.lock().unwrap_or_else(PoisonError::into_inner).record(now, key, event);
    Ok(pause)
}

fn between(dice: &SeededEntropy, (from, to): (u64, u64)) -> u64 {
    from + dice.next_u64() % (to - from + 1)
}
