//! Virtual time, and an executor that lets it pass only when nobody has anything left to do.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use zae_limiter_core::TimeMs;
use zae_limiter_store::{BoxFuture, Clock};

/// The wall time at which every run starts: 2026-01-01T10:00:00Z.
const START: TimeMs = TimeMs(1_767_261_600_000);

/// A clock that jumps to the next instant at which somebody wants to be woken. Clones share the
/// same time.
#[derive(Clone, Debug, Default)]
pub(in crate::sim) struct VirtualTime(Arc<Mutex<Timers>>);

#[derive(Debug, Default)]
struct Timers {
    now: Duration,
    /// By instant, then in the order they were set.
    waiting: BTreeMap<(Duration, u64), Waker>,
    set: u64,
    /// The task that runs.
    task: usize,
}

impl VirtualTime {
    fn lock(&self) -> MutexGuard<'_, Timers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Jumps to the next instant; false when nobody waits for one before `end`.
    fn jump(&self, end: Duration) -> bool {
        let waker = {
            let mut timers = self.lock();
            let Some(((at, _), waker)) = timers.waiting.pop_first() else { return false };
            timers.now = timers.now.max(at);
            waker
        };
        waker.wake();
        self.lock().now < end
    }

    /// The number of the task that runs.
    pub(in crate::sim) fn task(&self) -> usize {
        self.lock().task
    }

    /// Runs every task until `end`, or until all of them are done.
    pub(in crate::sim) fn run(
        &self,
        mut tasks: Vec<Option<BoxFuture<'static, ()>>>,
        end: Duration,
    ) {
        let ready: Ready = Arc::new(Mutex::new((0..tasks.len()).collect()));
        let wakers: Vec<Waker> = (0..tasks.len())
            .map(|task| Waker::from(Arc::new(Bell { task, ready: Arc::clone(&ready) })))
            .collect();
        loop {
            let next = ready.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(task) = next else {
                if self.jump(end) {
                    continue;
                }
                return;
            };
            let Some(future) = &mut tasks[task] else { continue };
            self.lock().task = task;
            if future.as_mut().poll(&mut Context::from_waker(&wakers[task])).is_ready() {
                tasks[task] = None;
            }
        }
    }
}

impl Clock for VirtualTime {
    fn now(&self) -> TimeMs {
        START.plus_ms(i64::try_from(self.monotonic().as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.lock().now
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let time = self.clone();
        let until = self.monotonic().saturating_add(duration);
        let mut is_set = false;
        Box::pin(poll_fn(move |context| {
            let mut timers = time.lock();
            if timers.now >= until {
                return Poll::Ready(());
            }
            // One task waits for one instant at a time, so its waker stays the same.
            if !is_set {
                is_set = true;
                timers.set += 1;
                let place = (until, timers.set);
                timers.waiting.insert(place, context.waker().clone());
            }
            Poll::Pending
        }))
    }
}

type Ready = Arc<Mutex<VecDeque<usize>>>;

/// Puts a task into the queue.
struct Bell {
    task: usize,
    ready: Ready,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.task);
    }
}
