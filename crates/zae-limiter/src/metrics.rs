//! The metrics, in one place: counters, gauges and one histogram through the
//! [`metrics`](https://docs.rs/metrics) facade. `docs/metrics.md` lists them; a test compares the
//! page with this file.
//!
//! Without a recorder nothing is kept. With one, for example `metrics-exporter-prometheus`:
//!
//! ```ignore
//! metrics_exporter_prometheus::PrometheusBuilder::new().install()?; // serves :9000/metrics
//! zae_limiter::metrics::describe(); // after the recorder is installed
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use zae_limiter_core::Milli;
use zae_limiter_store::{BlockStats, metric};

/// The kind of number that a metric is.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Seconds, as a distribution.
    Histogram,
}

/// One metric.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// The help text that exporters print.
    pub help: &'static str,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

const GRANTED: Metric =
    counter("zae_limiter_granted_total", "Requests admitted, degraded ones excluded.");
const REFUSED: Metric = counter("zae_limiter_refused_total", "Requests refused by a limit.");
pub(crate) const CONTENDED: Metric = counter(
    "zae_limiter_contended_total",
    "Requests refused because too many writers fought for a bucket.",
);
const DEGRADED: Metric = counter(
    "zae_limiter_degraded_total",
    "Requests admitted without a decision because the store was down and the policy is `allow`. Label `reason`.",
);
const BLOCKED: Metric = counter(
    "zae_limiter_blocked_total",
    "Requests refused because the store was down and the policy is `block`. Label `reason`.",
);
pub(crate) const SETTLED: Metric =
    counter("zae_limiter_settled_total", "Background settlements completed.");
pub(crate) const ABANDONED: Metric = counter(
    "zae_limiter_abandoned_total",
    "Leases or writes that found the settler's queue full or lost its runtime: what they held stays spent.",
);
const LOST: Metric = counter(
    "zae_limiter_lost_total",
    "Bucket updates dropped: refunds of unknown outcome, and writes that ran out of retries.",
);
pub(crate) const OVERRIDES: Metric =
    counter("zae_limiter_overrides_total", "Requests that brought limits of their own.");
const CACHE_HITS: Metric = counter(
    "zae_limiter_config_cache_hits_total",
    "Look-ups of limits answered by the config cache. Brought up to date with every miss.",
);
const CACHE_MISSES: Metric =
    counter("zae_limiter_config_cache_misses_total", "Look-ups of limits that read the store.");
const CACHE_ENTRIES: Metric = Metric {
    name: "zae_limiter_config_cache_entries",
    kind: Kind::Gauge,
    help: "Entries of the config caches of this process. Brought up to date with every miss.",
};
const SETTLER_JOBS: Metric = Metric {
    name: "zae_limiter_settler_jobs",
    kind: Kind::Gauge,
    help: "Background settlements waiting or in flight.",
};
const SPLITS: Metric = counter(
    metric::SPLITS,
    "Shards split because they took more writes than one item can. DynamoDB only, like the next four.",
);
const FOLDS: Metric = counter(
    metric::FOLDS,
    "Buckets whose shards were folded into one item: 0 but in a program that runs an aggregator itself. The function and `aggregate` tell their folds in their answer and log.",
);
const GATHERS: Metric = counter(
    metric::GATHERS,
    "Reads of all shards of a bucket, to take from several of them or to refuse.",
);
const REPAIRS: Metric =
    counter(metric::REPAIRS, "Shards made because a foreign writer had left them out.");
const ORPHANS: Metric =
    counter(metric::ORPHANS, "Shards that belonged to no bucket and were removed.");
const BLOCK_GRANTS: Metric = counter(
    "zae_limiter_block_grants_total",
    "Requests served from local blocks, without the store. Brought up to date, like the next four, with every request that the store is asked for.",
);
const BLOCK_PACED: Metric = counter(
    "zae_limiter_block_paced_total",
    "Requests refused by local blocks without the store, because a limit was scarce a moment ago.",
);
const BLOCK_ORDERS: Metric = counter(
    "zae_limiter_block_orders_total",
    "Orders of local blocks: each is a write. Grants per order is what blocks save.",
);
const BLOCK_FADED: Metric = counter(
    "zae_limiter_block_faded_tokens_total",
    "Tokens that local blocks bought and did not use in time, over all limits: refill has them.",
);
const BLOCK_LOST: Metric = counter(
    "zae_limiter_block_lost_tokens_total",
    "Tokens of local blocks whose order or return failed, over all limits: spent until refilled.",
);
const STORE_SECONDS: Metric = Metric {
    name: "zae_limiter_store_seconds",
    kind: Kind::Histogram,
    help: "Time the store took to answer. Label `operation`: `acquire` (a decision with the configuration it had to read), `settle`, \
           `admin`. Timed from `describe` on, and not for the in-memory store.",
};

/// Every metric; for the page in the documentation.
#[doc(hidden)]
pub const ALL: [Metric; 24] = [
    GRANTED,
    REFUSED,
    CONTENDED,
    DEGRADED,
    BLOCKED,
    SETTLED,
    ABANDONED,
    LOST,
    OVERRIDES,
    CACHE_HITS,
    CACHE_MISSES,
    CACHE_ENTRIES,
    SETTLER_JOBS,
    SPLITS,
    FOLDS,
    GATHERS,
    REPAIRS,
    ORPHANS,
    BLOCK_GRANTS,
    BLOCK_PACED,
    BLOCK_ORDERS,
    BLOCK_FADED,
    BLOCK_LOST,
    STORE_SECONDS,
];

/// The metrics that have a label, which would be missing if they were set to zero.
const LABELLED: [&str; 3] = [DEGRADED.name, BLOCKED.name, STORE_SECONDS.name];

/// True once `describe` was called: only then are answers of the store timed.
static IS_TIMED: AtomicBool = AtomicBool::new(false);

/// Tells the installed recorder what each metric means, and sets those without a label to zero, so
/// that they are there before their first event. Call it once, after the recorder is installed:
/// only then are answers of the store timed, because a program without a recorder should not pay
/// for reading the clock.
pub fn describe() {
    IS_TIMED.store(true, Ordering::Relaxed);
    for metric in ALL {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram => {
                metrics::describe_histogram!(metric.name, metrics::Unit::Seconds, metric.help)
            }
        }
        if !LABELLED.contains(&metric.name) {
            match metric.kind {
                Kind::Counter => metrics::counter!(metric.name).increment(0),
                // Not `set`: a limiter that was built before may have counted already.
                Kind::Gauge => metrics::gauge!(metric.name).increment(0.0),
                Kind::Histogram => {}
            }
        }
    }
}

pub(crate) fn is_timed() -> bool {
    IS_TIMED.load(Ordering::Relaxed)
}

/// Counts an event that every call may have: its key is made once, not per event.
macro_rules! count_often {
    ($metric:expr) => {{
        static KEY: metrics::Key = metrics::Key::from_static_name($metric.name);
        static METADATA: metrics::Metadata<'static> =
            metrics::Metadata::new(module_path!(), metrics::Level::INFO, Some(module_path!()));
        metrics::with_recorder(|recorder| recorder.register_counter(&KEY, &METADATA)).increment(1);
    }};
}

pub(crate) fn granted() {
    count_often!(GRANTED);
}

pub(crate) fn refused() {
    count_often!(REFUSED);
}

/// Counts one event of a metric without a label.
pub(crate) fn count(metric: Metric) {
    metrics::counter!(metric.name).increment(1);
}

pub(crate) fn degraded(reason: &'static str) {
    metrics::counter!(DEGRADED.name, "reason" => reason).increment(1);
}

pub(crate) fn blocked(reason: &'static str) {
    metrics::counter!(BLOCKED.name, "reason" => reason).increment(1);
}

pub(crate) fn lost(count: u64) {
    metrics::counter!(LOST.name).increment(count);
}

/// A job came to the settler.
pub(crate) fn settler_job_began() {
    metrics::gauge!(SETTLER_JOBS.name).increment(1.0);
}

/// A job of the settler has ended.
pub(crate) fn settler_job_ended() {
    metrics::gauge!(SETTLER_JOBS.name).decrement(1.0);
}

/// The numbers that a config cache has published. Only differences are published, because several
/// caches of a process share the metrics.
#[derive(Debug, Default)]
pub(crate) struct CacheReport {
    said: Mutex<CacheNumbers>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheNumbers {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) entries: usize,
}

impl CacheReport {
    pub(crate) fn publish(&self, now: CacheNumbers) {
        // Only a recorder can panic under this lock; its numbers are late then.
        let said =
            std::mem::replace(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner), now);
        metrics::counter!(CACHE_HITS.name).increment(now.hits.saturating_sub(said.hits));
        metrics::counter!(CACHE_MISSES.name).increment(now.misses.saturating_sub(said.misses));
        metrics::gauge!(CACHE_ENTRIES.name).increment(now.entries as f64 - said.entries as f64);
    }
}

impl Drop for CacheReport {
    fn drop(&mut self) {
        let said = *self.said.get_mut().unwrap_or_else(PoisonError::into_inner);
        metrics::gauge!(CACHE_ENTRIES.name).decrement(said.entries as f64);
    }
}

/// The numbers that the blocks of a limiter have published.
#[derive(Debug, Default)]
pub(crate) struct BlockReport {
    said: Mutex<[u64; 5]>,
}

impl BlockReport {
    pub(crate) fn publish(&self, stats: &BlockStats) {
        let tokens = |amount: Milli| u64::try_from(amount.floor_tokens()).unwrap_or(0);
        let (faded, lost) = (tokens(stats.faded), tokens(stats.lost));
        let now = [stats.grants, stats.paced, stats.orders, faded, lost];
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let names = [BLOCK_GRANTS, BLOCK_PACED, BLOCK_ORDERS, BLOCK_FADED, BLOCK_LOST];
        for ((metric, now), said) in names.into_iter().zip(now).zip(said.iter_mut()) {
            // What has faded is taken back when its order was refused: a counter waits for it.
            if now > *said {
                metrics::counter!(metric.name).increment(now - *said);
                *said = now;
            }
        }
    }
}

// One function per operation: labels that are literals cost no allocation.

pub(crate) fn acquire_took(time: Duration) {
    metrics::histogram!(STORE_SECONDS.name, "operation" => "acquire").record(time);
}

pub(crate) fn settle_took(time: Duration) {
    metrics::histogram!(STORE_SECONDS.name, "operation" => "settle").record(time);
}

pub(crate) fn admin_took(time: Duration) {
    metrics::histogram!(STORE_SECONDS.name, "operation" => "admin").record(time);
}
