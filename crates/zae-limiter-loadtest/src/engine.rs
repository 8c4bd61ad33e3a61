//! Users that start one by one, call, and end.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use zae_limiter::{Clock, RateLimiter};

use crate::scenario::{Outcome, Pacing, Scenario, Session};
use crate::tally::Tally;

/// The most users of one process.
pub const USERS_MAX: u32 = 100_000;

/// How long calls may take that are in flight at the end.
pub const GRACE: Duration = Duration::from_secs(11);

/// The same where somebody stops the run.
const STOP_GRACE: Duration = Duration::from_millis(300);

/// A timer wakes that much late at most without anybody's fault. A user that was idle and wakes
/// later than this was held up, and the call counts from the moment it was due.
const TIMER: Duration = Duration::from_millis(2);

/// A closed loop gives way to others after so many calls: a store may answer without ever waiting.
const TURN: u64 = 16;

/// How a run goes.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many users in this process.
    pub users: u32,
    /// How long, from the first user on.
    pub duration: Duration,
    /// Users that start per second; all at once without.
    pub spawn_rate: Option<f64>,
    /// The number of the first user, and the step to the next: the users of several processes have
    /// different numbers.
    pub numbers: (u32, u32),
    /// How long an interval of the series is.
    pub interval: Duration,
}

impl Options {
    /// So many users for so long, in one process.
    #[must_use]
    pub fn new(users: u32, duration: Duration) -> Options {
        Options { users, duration, spawn_rate: None, numbers: (0, 1), interval: interval(duration) }
    }
}

/// Intervals in the series of a report, at most.
const INTERVALS_MAX: u32 = 600;

/// How long an interval of a run of this length is: a second, or longer in a long run.
#[must_use]
pub fn interval(duration: Duration) -> Duration {
    Duration::from_secs((duration.as_secs().div_ceil(u64::from(INTERVALS_MAX))).max(1))
}

/// What happened in one interval, one tally per scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its number, from 0: intervals of one number are of the same time in all processes. A
    /// process that was held up leaves numbers out.
    pub number: u64,
    /// When it began, in milliseconds from the start.
    pub from_ms: u64,
    /// How much of it there was, in milliseconds; the last one may be shorter.
    pub ms: u64,
    /// Users at its end.
    pub users: u32,
    /// One per scenario.
    pub tallies: Vec<Tally>,
}

struct Board {
    users: u32,
    /// Nobody begins another call.
    stopped: bool,
    /// The time was over, and so was the one for calls that were in flight.
    is_late: bool,
    tallies: Vec<Tally>,
}

struct User {
    index: usize,
    scenario: Arc<dyn Scenario>,
    board: Arc<Mutex<Board>>,
    clock: Arc<dyn Clock>,
    start: Duration,
    end: Duration,
}

/// Runs the scenarios, a user of each in turn, until the time is over or `stop` is. Each interval
/// is told when it ends; their sum is the result. The call returns within [`GRACE`] of the end:
/// calls that take longer count as `abandoned`. Dropped, it ends all users at once. Returns how
/// long it took.
pub async fn run(
    limiter: &RateLimiter,
    scenarios: &[Arc<dyn Scenario>],
    options: &Options,
    clock: &Arc<dyn Clock>,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(Interval),
) -> Duration {
    let began = clock.monotonic();
    let end = began + options.duration;
    let blank = || scenarios.iter().map(|_| Tally::default()).collect::<Vec<_>>();
    let board =
        Arc::new(Mutex::new(Board { users: 0, stopped: false, is_late: false, tallies: blank() }));
    let mut users = JoinSet::new();
    for number in 0..options.users.min(USERS_MAX) {
        let user = options.numbers.0 + number * options.numbers.1;
        // By the number in the whole run: a process with one user does not always take the first.
        let index = user as usize % scenarios.len().max(1);
        let Some(scenario) = scenarios.get(index) else { break };
        let session = Session {
            limiter: limiter.clone(),
            clock: Arc::clone(clock),
            user,
            call: 0,
            paused: Duration::ZERO,
        };
        let after = options.spawn_rate.map_or(Duration::ZERO, |rate| {
            Duration::try_from_secs_f64(f64::from(number) / rate).unwrap_or(options.duration)
        });
        let user = User {
            index,
            scenario: Arc::clone(scenario),
            board: Arc::clone(&board),
            clock: Arc::clone(clock),
            start: began + after,
            end,
        };
        users.spawn(user.live(session));
    }
    let mut stop = pin!(stop);
    let mut since = began;
    let mut take = |since: &mut Duration, now: Duration| {
        let (count, tallies) = {
            let mut board = locked(&board);
            (board.users, std::mem::replace(&mut board.tallies, blank()))
        };
        let from = since.saturating_sub(began);
        let number = from.as_nanos() / options.interval.as_nanos().max(1);
        tell(Interval {
            number: u64::try_from(number).unwrap_or(u64::MAX),
            from_ms: millis(from),
            ms: millis(now.saturating_sub(began)) - millis(from),
            users: count,
            tallies,
        });
        *since = now;
    };
    loop {
        let now = clock.monotonic();
        // The next multiple of the interval: being woken late does not add up.
        let passed = since.saturating_sub(began).as_nanos() / options.interval.as_nanos().max(1);
        let passed = u32::try_from(passed).unwrap_or(u32::MAX).saturating_add(1);
        let next = (began + options.interval.saturating_mul(passed)).min(end);
        if now >= next && now < end {
            take(&mut since, now);
            continue;
        }
        if now >= end || first(stop.as_mut(), clock.sleep(next.saturating_sub(now))).await {
            break;
        }
    }
    let stopped = clock.monotonic().min(end);
    // Users that still call may end their call; nobody begins another one.
    let at_end = {
        let mut board = locked(&board);
        board.stopped = true;
        board.users
    };
    // One who stops a run by hand does not wait longer than a call usually takes.
    let patience = if stopped < end { STOP_GRACE } else { GRACE };
    let over = {
        let last = async { while users.join_next().await.is_some() {} };
        first(pin!(last), clock.sleep(patience)).await
    };
    if !over {
        locked(&board).is_late = stopped >= end;
        // Each of them says what it has not done when it is dropped.
        users.abort_all();
        while users.join_next().await.is_some() {}
    }
    locked(&board).users = at_end;
    let last = stopped.max(since);
    take(&mut since, last);
    stopped.saturating_sub(began)
}

fn locked(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl User {
    async fn live(self, mut session: Session) {
        let wait = self.start.saturating_sub(self.clock.monotonic());
        if wait > Duration::ZERO {
            self.clock.sleep(wait).await;
        }
        if self.clock.monotonic() >= self.end {
            return;
        }
        self.board().users += 1;
        let pacing = self.scenario.pacing();
        // Due since it should have started: a process that is too slow to start its users is
        // charged for that.
        let mut due = Due { user: &self, pacing, at: self.start, calls: false };
        loop {
            let mut now = self.clock.monotonic();
            let mut idle = false;
            if matches!(pacing, Pacing::Every(_)) && due.at > now {
                if due.at >= self.end {
                    return;
                }
                self.clock.sleep(due.at - now).await;
                (now, idle) = (self.clock.monotonic(), true);
            }
            if now >= self.end || self.board().stopped {
                return;
            }
            session.paused = Duration::ZERO;
            due.calls = true;
            let outcome = self.scenario.call(&mut session).await;
            due.calls = false;
            let ended = self.clock.monotonic();
            let service = ended.saturating_sub(now).saturating_sub(session.paused);
            let late = now.saturating_sub(due.at);
            let latency = match pacing {
                Pacing::ClosedLoop => service,
                Pacing::Every(_) if idle && late <= TIMER => service,
                Pacing::Every(_) => service + late,
            };
            if let Some(tally) = self.board().tallies.get_mut(self.index) {
                tally.record(&outcome, latency, service);
            }
            session.call += 1;
            match pacing {
                Pacing::Every(period) => due.at += period,
                Pacing::ClosedLoop if session.call.is_multiple_of(TURN) => {
                    tokio::task::yield_now().await
                }
                Pacing::ClosedLoop => {}
            }
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        locked(&self.board)
    }
}

/// The call that is due. A user that ends, or is ended, with calls that were due says so.
struct Due<'a> {
    user: &'a User,
    pacing: Pacing,
    at: Duration,
    /// The call is in flight.
    calls: bool,
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        let (user, mut board) = (self.user, self.user.board());
        let is_late = board.is_late;
        // A run that was stopped by hand owes no calls after that.
        let end = if board.stopped && !is_late { user.clock.monotonic() } else { user.end };
        let end = end.min(user.end);
        let Some(tally) = board.tallies.get_mut(user.index) else { return };
        if self.calls && is_late {
            let late = user.clock.monotonic().saturating_sub(self.at);
            tally.record(&Outcome::Failed("abandoned".to_owned()), late, late);
        }
        if let Pacing::Every(period) = self.pacing {
            // The call in flight was sent.
            let at = if self.calls { self.at + period } else { self.at };
            if at < end && !period.is_zero() {
                let unsent = 1 + (end - at).as_nanos().saturating_sub(1) / period.as_nanos();
                tally.unsent += u64::try_from(unsent).unwrap_or(u64::MAX);
            }
        }
    }
}

/// True when the first future is over before the second.
async fn first<T>(one: Pin<&mut impl Future<Output = T>>, other: impl Future<Output = ()>) -> bool {
    let (mut one, mut other) = (one, pin!(other));
    std::future::poll_fn(move |context: &mut Context<'_>| {
        if one.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        other.as_mut().poll(context).map(|()| false)
    })
    .await
}
