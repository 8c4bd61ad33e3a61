//! Counters, the generated page, spans, and the JSON forms.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that fails says where; it may spawn what it tests")]

use std::sync::{Arc, Mutex};

use crate::support::Bench;
use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use zae_limiter::store::Fault;
use zae_limiter::{OnUnavailable, Request, StoreErrorKind};

/// Remembers every increment by counter name.
#[derive(Clone, Default)]
struct Tally(Arc<Mutex<Vec<(String, u64)>>>);

struct One(Tally, String);

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.0.0.lock().unwrap().push((self.1.clone(), value));
    }

    fn absolute(&self, _: u64) {}
}

impl Recorder for Tally {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(One(self.clone(), key.name().to_owned())))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl Tally {
    fn of(&self, name: &str) -> u64 {
        self.0.lock().unwrap().iter().filter(|(counter, _)| counter == name).map(|(_, value)| value).sum()
    }
}

#[test]
fn every_outcome_is_counted_once() {
    let tally = Tally::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    metrics::with_local_recorder(&tally, || {
        runtime.block_on(async {
            let bench = Bench::new();
            bench.system(&["rpm:2/day"]).await;
            let request = || Request::new("key", "gpt-4").take("rpm", 1);
            let unavailable = Fault::FailBefore(StoreErrorKind::Unavailable);
            bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
            drop(bench.limiter.acquire(request()).await.unwrap());
            bench.limiter.drain().await;
            bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 2)).await.unwrap_err();
            bench.script.once("consume", unavailable);
            bench.limiter.acquire(request()).await.unwrap_err();
            bench.script.once("consume", unavailable);
            bench.limiter.acquire(request().on_unavailable(OnUnavailable::Allow)).await.unwrap().commit().await.unwrap();
            bench.script.once("consume", Fault::FailBefore(StoreErrorKind::Busy));
            bench.limiter.acquire(request()).await.unwrap_err();
            let lease = bench.limiter.acquire(request().limits(crate::support::limits(&["rpm:2/day"]))).await.unwrap();
            bench.script.once("adjust", unavailable);
            lease.rollback().await.unwrap_err();
        });
    });
    let counted: Vec<(&str, u64)> = zae_limiter::metrics::ALL.iter().map(|(name, _)| (*name, tally.of(name))).collect();
    assert_eq!(
        counted,
        [
            ("zae_limiter_granted_total", 3),
            ("zae_limiter_refused_total", 1),
            ("zae_limiter_contended_total", 1),
            ("zae_limiter_degraded_total", 1),
            ("zae_limiter_blocked_total", 1),
            ("zae_limiter_settled_total", 1),
            ("zae_limiter_abandoned_total", 0),
            ("zae_limiter_lost_total", 1),
            ("zae_limiter_overrides_total", 1),
        ]
    );
}

#[test]
fn the_metrics_page_is_what_the_code_says() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let expected = zae_limiter::metrics::reference();
    let found = std::fs::read_to_string(&page).unwrap_or_default();
    assert_eq!(found, expected, "docs/metrics.md is generated: replace its text by the expected one");
}

#[cfg(feature = "serde")]
#[tokio::test]
async fn decisions_have_a_json_form() {
    let bench = Bench::new();
    bench.system(&["rpm:2/day"]).await;
    let lease = bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
    let granted = serde_json::to_value(zae_limiter::wire::Decision::from(&lease)).unwrap();
    assert_eq!((&granted["granted"], &granted["retry_after_ms"], &granted["limits"][0]["available"]), (&true.into(), &0.into(), &1.into()));
    lease.commit().await.unwrap();
    let refused = bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 3)).await.unwrap_err();
    let refused = serde_json::to_value(zae_limiter::wire::Decision::from(refused.exceeded().unwrap())).unwrap();
    assert_eq!(
        refused,
        serde_json::json!({
            "granted": false,
            "retry_after_ms": null,
            "limits": [{
                "entity_id": "key", "resource": "gpt-4", "limit_name": "rpm", "capacity": 2, "available": 1,
                "requested": 3, "exceeded": true, "retry_after_ms": null,
            }],
        })
    );
}
