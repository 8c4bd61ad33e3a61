//! A limiter on a store with faults, an oracle below it, and polls by hand: for tests of single
//! moments.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Runtime;
use zae_limiter::{RateLimiter, Settled};
use zae_limiter_core::EntityId;
use zae_limiter_store::{Fault, FaultStore, ManualClock, PageRequest, SeededEntropy, Store};

use crate::oracle::books::Books;
use crate::oracle::inspect::{RESOURCES, compare_all, compare_usage};
use crate::oracle::journal::{CallLog, JournalStore, Party, finish};
use crate::sim::{Backend, Ground, start_clock};

/// Rounds of a drain; each lets a second pass.
const DRAIN_ROUNDS_MAX: usize = 1_000;

/// One limiter and everything around it. Nothing runs unless it is polled.
pub struct Rig {
    books: Books,
    clock: ManualClock,
    limiter: RateLimiter,
    before: Arc<AtomicU32>,
    after: Arc<AtomicU32>,
    inspector: Arc<dyn Store>,
    runtime: Runtime,
    _ground: Ground,
}

/// What is stored of one limit, in millitokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Takes and adjustments.
    pub consumed: i64,
    /// What is left.
    pub balance: i64,
}

impl Rig {
    /// A limiter on an empty store.
    #[must_use]
    pub fn new(backend: Backend) -> Rig {
        let books = Books::default();
        let clock = start_clock();
        let ground = Ground::new(backend, 0, true).expect("a place for the store");
        let inspector = ground.open(&clock, 1).expect("a store to look at");
        books.inspect_with("default", Arc::clone(&inspector));
        let (before, after) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let echo = Arc::clone(&after);
        let party = Party {
            books: books.clone(),
            client: 0,
            clock: clock.clone(),
            config_age_max: Duration::MAX,
            echo: Arc::new(move || echo.load(Ordering::Relaxed)),
        };
        let store = ground.open(&clock, 2).expect("the same store, as the limiter sees it");
        let journal = JournalStore::new(store, party.clone());
        let delay = Arc::clone(&before);
        let slow = FaultStore::new(Arc::new(journal), move |_: &'static str| {
            Fault::Yield(delay.load(Ordering::Relaxed))
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let builder = RateLimiter::builder(CallLog::new(Arc::new(slow), party))
            .clock(clock.clone())
            .entropy(SeededEntropy::new(3));
        let limiter = runtime.block_on(async { builder.build() }).expect("a limiter");
        Rig { books, clock, limiter, before, after, inspector, runtime, _ground: ground }
    }

    /// The limiter.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// From now on every call to the store is pending for `before` polls until it is carried out,
    /// and takes and adjustments for `after` more until they are answered.
    pub fn slow_down(&self, before: u32, after: u32) {
        self.before.store(before, Ordering::Relaxed);
        self.after.store(after, Ordering::Relaxed);
    }

    /// Runs something to its end.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Lets the settler finish, at full speed of the store, and checks that every sum is right.
    pub fn drain(&self) -> Settled {
        self.slow_down(0, 0);
        for _ in 0..DRAIN_ROUNDS_MAX {
            self.run(async {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            });
            if self.limiter.settled().pending == 0 {
                break;
            }
            self.clock.advance(Duration::from_secs(1));
        }
        self.check();
        self.limiter.settled()
    }

    /// Compares everything stored with what the oracle says.
    ///
    /// # Panics
    ///
    /// With the first broken promise.
    pub fn check(&self) {
        compare_all(&self.books, zae_limiter_store::Clock::now(&self.clock));
        compare_usage(&self.books, None);
        let broken = self.books.lock().broken.take();
        if let Some(broken) = broken {
            panic!("{broken}");
        }
    }

    /// What is stored of a limit of an entity, over all resources; `None` when nothing is.
    #[must_use]
    pub fn stored(&self, entity: &str, limit: &str) -> Option<Stored> {
        let entity: EntityId = entity.parse().expect("a valid entity id");
        let views = finish(self.inspector.buckets(&entity, &PageRequest::default()))
            .expect("a listing")
            .items;
        debug_assert!(
            views.iter().all(|view| RESOURCES.contains(&view.resource.as_str())),
            "the oracle looks at these only"
        );
        let states = views
            .iter()
            .flat_map(|view| view.state.all_limits())
            .filter(|state| state.name == limit);
        states.map(|state| Stored { consumed: state.consumed.0, balance: state.balance.0 }).reduce(
            |sum, more| Stored {
                consumed: sum.consumed + more.consumed,
                balance: sum.balance + more.balance,
            },
        )
    }

    /// Takes plus adjustments of a limit, in whole tokens.
    ///
    /// # Panics
    ///
    /// When they are not whole.
    #[must_use]
    pub fn consumed(&self, entity: &str, limit: &str) -> i64 {
        let milli = self.stored(entity, limit).map_or(0, |stored| stored.consumed);
        assert_eq!(milli.rem_euclid(1000), 0, "{milli} millitokens were consumed");
        milli.div_euclid(1000)
    }
}

/// What came of polling a future some times.
pub enum Polled<'a, T> {
    /// It came to its end, after that many polls.
    Ready(T, u32),
    /// It did not.
    Pending(Pin<Box<dyn Future<Output = T> + 'a>>),
}

/// Polls a future at most `times`.
pub fn poll_times<'a, T>(future: impl Future<Output = T> + 'a, times: u32) -> Polled<'a, T> {
    let mut future: Pin<Box<dyn Future<Output = T> + 'a>> = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    for poll in 1..=times {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Polled::Ready(value, poll);
        }
    }
    Polled::Pending(future)
}
