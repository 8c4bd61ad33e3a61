//! Runs in time that is told to pass.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use zae_limiter::domain::TimeMs;
use zae_limiter::store::BoxFuture;
use zae_limiter::{Clock, ManualClock, MemoryStore, RateLimiter};
use zae_limiter_loadtest::report::{Collector, Report, paces};
use zae_limiter_loadtest::{
    Interval, Options, Outcome, Pacing, Run, Scenario, ScenarioError, Session, engine,
};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// A scenario whose calls take what a function says: by user and call.
pub(crate) struct Scripted {
    pub(crate) name: &'static str,
    pub(crate) pacing: Pacing,
    pub(crate) takes: fn(u32, u64) -> (Duration, Outcome),
    pub(crate) clock: ManualClock,
    /// The users that called.
    pub(crate) seen: Arc<Mutex<Vec<u32>>>,
}

impl Scenario for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn pacing(&self) -> Pacing {
        self.pacing
    }

    fn prepare<'a>(
        &'a self,
        _: &'a RateLimiter,
        _: u32,
    ) -> BoxFuture<'a, Result<(), ScenarioError>> {
        Box::pin(async { Ok(()) })
    }

    fn call<'a>(&'a self, session: &'a mut Session) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            self.seen.lock().expect("no panic").push(session.user());
            let (time, outcome) = (self.takes)(session.user(), session.call());
            self.clock.sleep(time).await;
            outcome
        })
    }
}

/// What a run is made of.
pub(crate) struct Rig {
    pub(crate) clock: ManualClock,
    pub(crate) seen: Arc<Mutex<Vec<u32>>>,
    scenarios: Vec<Arc<dyn Scenario>>,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        let clock = ManualClock::new(TimeMs(1_700_000_000_000));
        Rig { clock, seen: Arc::default(), scenarios: Vec::new() }
    }

    pub(crate) fn scenario(
        mut self,
        name: &'static str,
        pacing: Pacing,
        takes: fn(u32, u64) -> (Duration, Outcome),
    ) -> Rig {
        let (clock, seen) = (self.clock.clone(), Arc::clone(&self.seen));
        self.scenarios.push(Arc::new(Scripted { name, pacing, takes, clock, seen }));
        self
    }

    /// Runs to the end, or until `stop_after`; what was told, and how long the call itself took.
    pub(crate) async fn run(
        &self,
        options: &Options,
        stop_after: Option<Duration>,
    ) -> (Vec<Interval>, Duration) {
        let limiter = RateLimiter::builder(MemoryStore::new()).build().expect("a limiter");
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let began = clock.monotonic();
        let mut intervals = Vec::new();
        let stop = async {
            match stop_after {
                Some(time) => clock.sleep(time).await,
                None => std::future::pending().await,
            }
        };
        let run = engine::run(&limiter, &self.scenarios, options, &clock, stop, |it| {
            intervals.push(it);
        });
        self.pump(run).await;
        let took = clock.monotonic() - began;
        (intervals, took)
    }

    /// The report of a run with these users.
    pub(crate) async fn report(&self, options: &Options) -> Report {
        let (intervals, _) = self.run(options, None).await;
        let mut collector = Collector::default();
        intervals.into_iter().for_each(|interval| collector.add(interval));
        let duration_s = options.duration.as_secs_f64();
        let asked = Run { users: options.users, processes: 1, duration_s, ..Run::default() };
        collector.report(asked, &paces(&self.scenarios), 0)
    }

    /// Lets a millisecond pass whenever nobody has anything left to do.
    pub(crate) async fn pump<T>(&self, run: impl Future<Output = T>) -> T {
        let mut run = std::pin::pin!(run);
        for _ in 0..1_000_000 {
            // Woken tasks run when this one gives way, in as many turns as they wake each other.
            for _ in 0..8 {
                let polled =
                    std::future::poll_fn(|context| Poll::Ready(run.as_mut().poll(context))).await;
                if let Poll::Ready(done) = polled {
                    return done;
                }
                tokio::task::yield_now().await;
            }
            self.clock.advance(MS);
        }
        panic!("the run does not end");
    }
}

/// Every call is granted and takes that long.
pub(crate) fn two_ms(_: u32, _: u64) -> (Duration, Outcome) {
    (2 * MS, Outcome::Granted)
}
