//! The counters, in one place. `docs/metrics.md` is generated from [`ALL`] and checked by a test.

/// One counter: name and what it counts.
pub type Counter = (&'static str, &'static str);

const GRANTED: Counter = ("zae_limiter_granted_total", "Requests admitted, degraded ones excluded.");
const REFUSED: Counter = ("zae_limiter_refused_total", "Requests refused by a limit.");
const CONTENDED: Counter = ("zae_limiter_contended_total", "Requests refused because too many writers fought for a bucket.");
const DEGRADED: Counter = (
    "zae_limiter_degraded_total",
    "Requests admitted without a decision because the store was down and the policy is `allow`. Label `reason`.",
);
const BLOCKED: Counter =
    ("zae_limiter_blocked_total", "Requests refused because the store was down and the policy is `block`. Label `reason`.");
const SETTLED: Counter = ("zae_limiter_settled_total", "Jobs the background settler brought to their end.");
const ABANDONED: Counter =
    ("zae_limiter_abandoned_total", "Leases or writes that found the settler's queue full: what they held stays spent.");
const LOST: Counter = ("zae_limiter_lost_total", "Bucket changes given up: credits of unknown fate, and writes that failed too often.");
const OVERRIDES: Counter = ("zae_limiter_overrides_total", "Requests that brought limits of their own.");

/// Every counter there is.
pub const ALL: [Counter; 9] = [GRANTED, REFUSED, CONTENDED, DEGRADED, BLOCKED, SETTLED, ABANDONED, LOST, OVERRIDES];

pub(crate) fn granted() {
    metrics::counter!(GRANTED.0).increment(1);
}

pub(crate) fn refused() {
    metrics::counter!(REFUSED.0).increment(1);
}

pub(crate) fn contended() {
    metrics::counter!(CONTENDED.0).increment(1);
}

pub(crate) fn degraded(reason: &'static str) {
    metrics::counter!(DEGRADED.0, "reason" => reason).increment(1);
}

pub(crate) fn blocked(reason: &'static str) {
    metrics::counter!(BLOCKED.0, "reason" => reason).increment(1);
}

pub(crate) fn settled() {
    metrics::counter!(SETTLED.0).increment(1);
}

pub(crate) fn abandoned() {
    metrics::counter!(ABANDONED.0).increment(1);
}

pub(crate) fn lost(count: u64) {
    metrics::counter!(LOST.0).increment(count);
}

pub(crate) fn overrides() {
    metrics::counter!(OVERRIDES.0).increment(1);
}

/// The page `docs/metrics.md`.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(
        "# Metrics\n\nCounters through the [`metrics`](https://docs.rs/metrics) facade; install any recorder to see them. \
         No label carries an entity, a resource or a namespace.\n\n| counter | what it counts |\n|---|---|\n",
    );
    for (name, meaning) in ALL {
        page.push_str(&format!("| `{name}` | {meaning} |\n"));
    }
    page
}
