//! The same on a real engine, over the SDK: the dates are those of its answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use zae_limiter_core::TimeMs;
use zae_limiter_dynamodb::constants::CLOCK_OFF_MAX_MS;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::Table;
use zae_limiter_store::{BoxFuture, Clock, PageRequest, SystemClock};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::zae_limiter::{RateLimiter, Request};

/// The real clock, with a wall clock that can be stepped.
#[derive(Clone)]
struct Stepping {
    real: SystemClock,
    off_ms: Arc<AtomicI64>,
}

impl Clock for Stepping {
    fn now(&self) -> TimeMs {
        self.real.now().plus_ms(self.off_ms.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.real.sleep(duration)
    }
}

#[tokio::test]
async fn a_stepped_clock_moves_no_refill_instant_on_the_engine() {
    let engine = Engine::start();
    let clock = Stepping { real: SystemClock::new(), off_ms: Arc::new(AtomicI64::new(0)) };
    let builder = engine.stack("steps").clock(Arc::new(clock.clone()));
    let store = builder.clone().create().await.unwrap();
    let limits: Vec<zae_limiter_core::Limit> = vec!["rpm:60/min".parse().unwrap()];
    let limiter =
        RateLimiter::builder(store).clock(clock.clone()).default_limits(limits).build().unwrap();
    let namespace =
        limiter.namespaces(&PageRequest::first(1)).await.unwrap().items[0].id.to_string();
    let key = keys::bucket(&namespace, &"key".parse().unwrap(), &"gpt-4".parse().unwrap(), 0);
    let table = builder.table().await.unwrap();
    for step_ms in [0, 240_000, -240_000, 315_360_000_000, -315_360_000_000] {
        clock.off_ms.store(step_ms, Ordering::SeqCst);
        limiter
            .acquire(Request::new("key", "gpt-4").take("rpm", 1))
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
        let item =
            table.batch_get(std::slice::from_ref(&key), true).await.unwrap().items.pop().unwrap();
        let rf: i64 = item["rf"].as_n().unwrap().parse().unwrap();
        let ahead_ms = rf - clock.real.now().0;
        // Behind by as much as a busy machine takes, ahead by no more than is tolerated.
        assert!(
            (-60_000..=CLOCK_OFF_MAX_MS).contains(&ahead_ms),
            "rf is {ahead_ms} ms ahead after a step of {step_ms} ms"
        );
    }
}
