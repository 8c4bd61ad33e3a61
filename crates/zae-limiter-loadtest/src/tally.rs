//! Counts and histograms, which can be merged and sent.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::scenario::Outcome;

/// Longer latencies count as this: an hour.
const NANOS_MAX: u64 = 3_600_000_000_000;
/// Three digits: a value is told to a thousandth.
const DIGITS: u8 = 3;

/// Latencies, to a thousandth, in slots that can be added up: the percentiles of several processes
/// are those of all their calls, not a mean of percentiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Latency {
        let mut histogram = Histogram::new(DIGITS).expect("three digits are valid");
        histogram.auto(true);
        Latency(histogram)
    }
}

impl Latency {
    /// One more.
    pub fn record(&mut self, latency: Duration) {
        self.record_n(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), 1);
    }

    fn record_n(&mut self, nanos: u64, count: u64) {
        // The histogram grows up to the maximum, so that nothing is refused.
        let _ = self.0.record_n(nanos.clamp(1, NANOS_MAX), count);
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Latency) {
        let _ = self.0.add(&other.0);
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency, in microseconds, that this part of the calls did not exceed.
    #[must_use]
    pub fn quantile_us(&self, part: f64) -> f64 {
        micros(self.0.value_at_quantile(part))
    }

    /// The longest, in microseconds.
    #[must_use]
    pub fn max_us(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { micros(self.0.max()) }
    }

    /// The mean, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        round(self.0.mean() / 1_000.0)
    }

    /// The slots that are not empty: nanoseconds and count.
    pub fn slots(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|slot| (slot.value_iterated_to(), slot.count_at_value()))
    }

    /// The percentiles of a report.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.count(),
            mean: self.mean_us(),
            p50: self.quantile_us(0.5),
            p95: self.quantile_us(0.95),
            p99: self.quantile_us(0.99),
            p999: self.quantile_us(0.999),
            max: self.max_us(),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an hour in nanoseconds has fewer bits than a float"
)]
fn micros(nanos: u64) -> f64 {
    round(nanos as f64 / 1_000.0)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.slots())
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Latency, D::Error> {
        let mut latency = Latency::default();
        for (nanos, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            latency.record_n(nanos, count);
        }
        Ok(latency)
    }
}

/// Percentiles, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// How many calls.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of the calls took no longer.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// What calls came to. Refusals and errors are counted apart: a refusal is an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Of granted calls; of a paced scenario from the moment at which the call was due.
    pub granted: Latency,
    /// Of refused calls.
    pub refused: Latency,
    /// Of calls without an answer.
    pub failed: Latency,
    /// Of granted calls from the moment at which they were sent.
    pub service: Latency,
    /// Errors by their word.
    pub errors: BTreeMap<String, u64>,
    /// Calls that were due and not sent before the end.
    pub unsent: u64,
}

impl Tally {
    /// One more call.
    pub fn record(&mut self, outcome: &Outcome, latency: Duration, service: Duration) {
        match outcome {
            Outcome::Granted => {
                self.granted.record(latency);
                self.service.record(service);
            }
            Outcome::Refused => self.refused.record(latency),
            Outcome::Failed(word) => {
                self.failed.record(latency);
                *self.errors.entry(word.clone()).or_default() += 1;
            }
        }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Tally) {
        self.granted.merge(&other.granted);
        self.refused.merge(&other.refused);
        self.failed.merge(&other.failed);
        self.service.merge(&other.service);
        for (word, count) in &other.errors {
            *self.errors.entry(word.clone()).or_default() += count;
        }
        self.unsent += other.unsent;
    }

    /// How many calls ended.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.granted.count() + self.refused.count() + self.failed.count()
    }
}
