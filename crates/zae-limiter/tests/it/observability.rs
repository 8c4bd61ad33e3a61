//! Counters, the generated page, spans, and the JSON forms.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails says where; it may spawn what it tests"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::Bench;
use crate::support::START;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use zae_limiter::metrics::{ALL, Kind, Metric};
use zae_limiter::sqlite::SqliteStore;
use zae_limiter::store::{Fault, FaultStore};
use zae_limiter::{
    Level, ManualClock, MemoryStore, OnUnavailable, RateLimiter, Request, StoreErrorKind,
};

/// Remembers what was told about each metric, under its name and labels.
#[derive(Clone, Default)]
struct Tally(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    numbers: Vec<(String, f64)>,
    help: Vec<(String, String)>,
}

struct One(Tally, String);

impl One {
    fn add(&self, value: f64) {
        self.0.0.lock().unwrap().numbers.push((self.1.clone(), value));
    }
}

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for One {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        panic!("several limiters of a process share the gauges");
    }
}

impl HistogramFn for One {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Recorder for Tally {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.0.lock().unwrap().help.push((name.as_str().to_owned(), help.into_owned()));
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe_counter(name, unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe_counter(name, unit, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(self.one(key)))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(self.one(key)))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(self.one(key)))
    }
}

impl Tally {
    /// Labels that are reasons are left out: one name, one number.
    fn one(&self, key: &Key) -> One {
        let operation = key
            .labels()
            .find(|label| label.key() == "operation")
            .map(|label| format!(" {}", label.value()));
        One(self.clone(), format!("{}{}", key.name(), operation.unwrap_or_default()))
    }

    fn of(&self, name: &str) -> f64 {
        self.told(name).iter().sum()
    }

    fn told(&self, name: &str) -> Vec<f64> {
        self.0
            .lock()
            .unwrap()
            .numbers
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| *value)
            .collect()
    }
}

/// Runs `work` with a recorder of its own.
fn recorded(work: impl Future<Output = ()>) -> Tally {
    let tally = Tally::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&tally, || {
        runtime.block_on(work);
        drop(runtime);
    });
    tally
}

#[test]
fn every_metric_is_described_and_there_before_its_first_event() {
    let tally = recorded(async { zae_limiter::metrics::describe() });
    let told = tally.0.lock().unwrap();
    let names: Vec<&str> = told.help.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, zae_limiter::metrics::ALL.map(|metric| metric.name));
    assert!(told.help.iter().all(|(_, help)| help.ends_with('.')));
    let there =
        |name: &&str| told.numbers.iter().any(|(known, value)| known == name && *value == 0.0);
    let absent: Vec<&str> = names.into_iter().filter(|name| !there(name)).collect();
    // Those with a label come with their first value of it.
    assert_eq!(
        absent,
        ["zae_limiter_degraded_total", "zae_limiter_blocked_total", "zae_limiter_store_seconds"]
    );
}

#[test]
fn the_time_of_the_store_is_measured_by_the_clock_of_the_limiter() {
    let folder = tempfile::tempdir().unwrap();
    let tally = recorded(async {
        zae_limiter::metrics::describe();
        let (clock, script) = (ManualClock::new(START), crate::support::Script::default());
        let store = SqliteStore::open(folder.path().join("limits.db")).unwrap();
        let (plan, elapsing) = (script.clone(), clock.clone());
        // Every answer takes a quarter of a second.
        let store = FaultStore::new(Arc::new(store), move |operation: &'static str| {
            elapsing.advance(Duration::from_millis(250));
            plan.next(operation)
        });
        let limiter = RateLimiter::builder(store).clock(clock).build().unwrap();
        limiter.set_limits(&Level::System, crate::support::limits(&["rpm:60/min"])).await.unwrap();
        let lease = limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
        lease.rollback().await.unwrap();
        limiter.close().await;
    });
    // A decision about a key that is not cached reads first: two answers.
    assert_eq!(tally.told("zae_limiter_store_seconds admin"), [0.25]);
    assert_eq!(tally.told("zae_limiter_store_seconds acquire"), [0.5]);
    assert_eq!(tally.told("zae_limiter_store_seconds settle"), [0.25]);
}

#[test]
fn jobs_of_the_settler_and_entries_of_the_cache_come_and_go() {
    let tally = Tally::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    metrics::with_local_recorder(&tally, || {
        runtime.block_on(async {
            let bench = Bench::new();
            bench.system(&["rpm:60/min"]).await;
            let request = || Request::new("key", "gpt-4").take("rpm", 1);
            for _ in 0..3 {
                bench.limiter.acquire(request()).await.unwrap().commit().await.unwrap();
            }
            drop(bench.limiter.acquire(request()).await.unwrap());
            assert_eq!(tally.of("zae_limiter_settler_jobs"), 1.0, "submitted, not yet worked on");
            bench.limiter.drain().await;
            let stats = bench.limiter.cache_stats();
            assert_eq!((stats.hits, stats.misses, stats.entries), (3, 1, 1));
            assert_eq!(tally.of("zae_limiter_config_cache_hits_total"), 3.0);
            assert_eq!(tally.of("zae_limiter_config_cache_misses_total"), 1.0);
            assert_eq!(tally.of("zae_limiter_config_cache_entries"), 1.0);
            // A second limiter of the process adds to the same numbers.
            let second = bench.second();
            second.acquire(request()).await.unwrap().commit().await.unwrap();
            let _ = second.cache_stats();
            assert_eq!(tally.of("zae_limiter_config_cache_entries"), 2.0);
            assert_eq!(tally.of("zae_limiter_config_cache_misses_total"), 2.0);
        });
        drop(runtime);
    });
    assert_eq!(tally.of("zae_limiter_settler_jobs"), 0.0);
    assert_eq!(tally.of("zae_limiter_config_cache_entries"), 0.0, "gone with their limiters");
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
            bench
                .limiter
                .acquire(request().on_unavailable(OnUnavailable::Allow))
                .await
                .unwrap()
                .commit()
                .await
                .unwrap();
            bench.script.once("consume", Fault::FailBefore(StoreErrorKind::Busy));
            bench.limiter.acquire(request()).await.unwrap_err();
            let lease = bench
                .limiter
                .acquire(request().limits(crate::support::limits(&["rpm:2/day"])))
                .await
                .unwrap();
            bench.script.once("adjust", unavailable);
            lease.rollback().await.unwrap_err();
        });
    });
    // Those of a cache, of shards and of blocks are no outcomes.
    let other = ["cache", "splits", "folds", "gathers", "repairs", "orphans", "block_"];
    let is_outcome = |metric: &&Metric| {
        metric.kind == Kind::Counter && !other.iter().any(|part| metric.name.contains(part))
    };
    let counted: Vec<(&str, f64)> =
        ALL.iter().filter(is_outcome).map(|metric| (metric.name, tally.of(metric.name))).collect();
    assert_eq!(
        counted,
        [
            ("zae_limiter_granted_total", 3.0),
            ("zae_limiter_refused_total", 1.0),
            ("zae_limiter_contended_total", 1.0),
            ("zae_limiter_degraded_total", 1.0),
            ("zae_limiter_blocked_total", 1.0),
            ("zae_limiter_settled_total", 1.0),
            ("zae_limiter_abandoned_total", 0.0),
            ("zae_limiter_lost_total", 1.0),
            ("zae_limiter_overrides_total", 1.0),
        ]
    );
}

/// Knows which spans are open, each as its name and fields.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<SpansSeen>>);

#[derive(Default)]
struct SpansSeen {
    texts: Vec<String>,
    open: Vec<u64>,
}

struct SpanText<'a>(&'a mut String);

impl Visit for SpanText<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("zae_limiter::")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut seen = self.0.lock().unwrap();
        let mut text = span.metadata().name().to_owned();
        span.record(&mut SpanText(&mut text));
        seen.texts.push(text);
        Id::from_u64(seen.texts.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut seen = self.0.lock().unwrap();
        let text = usize::try_from(span.into_u64() - 1).unwrap();
        values.record(&mut SpanText(&mut seen.texts[text]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().open.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        assert_eq!(self.0.lock().unwrap().open.pop(), Some(span.into_u64()));
    }
}

impl Spans {
    /// The innermost open span.
    fn current(&self) -> String {
        let seen = self.0.lock().unwrap();
        let innermost = seen.open.last().map(|id| usize::try_from(id - 1).unwrap());
        innermost.map_or_else(|| "no span".to_owned(), |span| seen.texts[span].clone())
    }
}

/// Runs this one test again in a process of its own, unless it is alone already: a span that
/// another thread meets for the first time just when a subscriber arrives stays disabled.
fn is_alone(test: &str) -> bool {
    if std::env::args().any(|argument| argument == "--exact") {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let arguments = [&format!("observability::{test}"), "--exact", "--nocapture"];
    let inner = std::process::Command::new(program).args(arguments).output().unwrap();
    assert!(inner.status.success(), "{}", String::from_utf8_lossy(&inner.stderr));
    assert!(String::from_utf8_lossy(&inner.stdout).contains("1 passed"), "no such test: {test}");
    false
}

#[test]
fn the_store_is_called_inside_the_span_of_the_verb() {
    if !is_alone("the_store_is_called_inside_the_span_of_the_verb") {
        return;
    }
    let (spans, calls) = (Spans::default(), Arc::new(Mutex::new(Vec::new())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (open, called) = (spans.clone(), Arc::clone(&calls));
    let plan = move |operation: &'static str| {
        called.lock().unwrap().push(format!("{operation} in {}", open.current()));
        Fault::None
    };
    let work = async {
        let store = FaultStore::new(Arc::new(MemoryStore::new()), plan);
        let limiter = RateLimiter::builder(store).clock(ManualClock::new(START)).build().unwrap();
        limiter.set_limits(&Level::System, crate::support::limits(&["rpm:1/day"])).await.unwrap();
        let request = || Request::new("key", "gpt-4").take("rpm", 1);
        limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        limiter.acquire(request()).await.unwrap_err();
        limiter.disable(&Level::entity("key").unwrap()).await.unwrap();
        limiter.entity("key").await.unwrap();
        limiter.sweep(1).await.unwrap();
    };
    tracing::subscriber::with_default(spans.clone(), || runtime.block_on(work));
    assert_eq!(
        *calls.lock().unwrap(),
        [
            "set_limits in admin operation=\"set_limits\"",
            "resolve in acquire",
            "consume in acquire",
            "consume in acquire",
            "set_flag in admin operation=\"set_flag\"",
            "entity in admin operation=\"entity\"",
            "sweep_horizon in admin operation=\"sweep\"",
        ]
    );
    let seen = spans.0.lock().unwrap();
    assert!(seen.open.is_empty());
    let outcomes: Vec<&String> =
        seen.texts.iter().filter(|text| text.contains("outcome")).collect();
    assert_eq!(outcomes, ["acquire outcome=\"granted\"", "acquire outcome=\"refused\""]);
}

/// The page `docs/metrics.md`.
fn reference() -> String {
    let mut page = String::from(
        "# Metrics\n\nThe library reports through the [`metrics`](https://docs.rs/metrics) facade and keeps nothing itself. Install any \
         recorder\nand describe the metrics to it. With `metrics-exporter-prometheus`:\n\n```rust,ignore\n\
         metrics_exporter_prometheus::PrometheusBuilder::new().install()?; // serves :9000/metrics\n\
         zae_limiter::metrics::describe();                                 // after the recorder is installed\n```\n\n\
         `describe` also sets the counters without a label to zero, so that they are there before their first event,\n\
         and answers of the store are timed only after it: a program without a recorder should not pay for reading the clock.\n\
         No label carries an entity, a resource or a namespace.\n\n| metric | kind | what it says |\n|---|---|---|\n",
    );
    for metric in ALL {
        page.push_str(&format!(
            "| `{}` | {} | {} |\n",
            metric.name,
            format!("{:?}", metric.kind).to_lowercase(),
            metric.help
        ));
    }
    page
}

#[test]
fn the_metrics_page_is_what_the_code_says() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let expected = reference();
    let found = std::fs::read_to_string(&page).unwrap_or_default();
    assert_eq!(
        found, expected,
        "docs/metrics.md is generated: replace its text by the expected one"
    );
}

#[cfg(feature = "serde")]
#[tokio::test]
async fn decisions_have_a_json_form() {
    let bench = Bench::new();
    bench.system(&["rpm:2/day"]).await;
    let lease = bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
    let granted = serde_json::to_value(zae_limiter::wire::Decision::from(&lease)).unwrap();
    assert_eq!(
        (&granted["granted"], &granted["retry_after_ms"], &granted["limits"][0]["available"]),
        (&true.into(), &0.into(), &1.into())
    );
    lease.commit().await.unwrap();
    let refused =
        bench.limiter.acquire(Request::new("key", "gpt-4").take("rpm", 3)).await.unwrap_err();
    let refused =
        serde_json::to_value(zae_limiter::wire::Decision::from(refused.exceeded().unwrap()))
            .unwrap();
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
