//! What a batch came to, for the shell, for the log and for metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use zae_limiter_core::{TimeMs, rfc3339};

use crate::fold::Batch;
use crate::record::padded;
use crate::upkeep::Kept;

/// Errors told in full; the rest is counted.
const ERRORS_MAX: usize = 10;

/// Buckets told of in the summary, the busiest first.
const HOTTEST_MAX: usize = 5;

/// What a batch came to.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Records of the batch.
    pub records: u64,
    /// Those of buckets.
    pub buckets: u64,
    /// Those of something that is not looked at.
    pub others: u64,
    /// Takes among the records, less those undone.
    pub takes: i64,
    /// Snapshots that were written.
    pub snapshots: u64,
    /// Records that were counted, once per snapshot.
    pub counted: u64,
    /// Records that had been counted before, once per snapshot.
    pub repeated: u64,
    /// Snapshots of namespaces that are gone, which were not written.
    pub skipped: u64,
    /// Records whose snapshot the table will never take, once per snapshot.
    pub lost: u64,
    /// Audit events that have expired.
    pub expired: u64,
    /// Those that were archived.
    pub archived: u64,
    /// Objects of the archive with events.
    pub objects: u64,
    /// Records that cannot be read.
    pub poison: u64,
    /// Objects of the archive with such records.
    pub letters: u64,
    /// What upkeep did.
    pub kept: Kept,
    /// The lowest number of a record whose effects are not complete, by stream shard. Everything
    /// from there on is to be delivered again; what was counted will not count twice.
    pub failures: BTreeMap<String, String>,
    /// What went wrong, the first few.
    pub errors: Vec<String>,
    /// How many things went wrong.
    pub error_count: u64,
    /// Writes and write units by shard of the buckets that have several.
    pub shards: BTreeMap<u32, (u64, u64)>,
    /// The buckets with the most records: key, records, units, count of shards.
    pub hottest: Vec<(String, u64, u64, i64)>,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    pub(crate) fn of(batch: &Batch, records: u64) -> Report {
        let mut report = Report {
            records,
            buckets: batch.buckets,
            others: batch.others,
            expired: u64::try_from(batch.removed.len()).unwrap_or(u64::MAX),
            poison: batch.poisoned,
            takes: batch.takes,
            ..Report::default()
        };
        for leaf in batch.leaves.iter().filter(|leaf| leaf.shard_count.1 > 1) {
            let (records, units) = report.shards.entry(leaf.shard).or_default();
            *records += leaf.records;
            *units += leaf.units;
        }
        let mut leaves: Vec<_> = batch.leaves.iter().collect();
        leaves.sort_by(|a, b| (b.records, &a.key).cmp(&(a.records, &b.key)));
        let told = |leaf: &&crate::fold::Leaf| {
            (leaf.key.0.clone(), leaf.records, leaf.units, leaf.shard_count.1)
        };
        report.hottest = leaves.iter().take(HOTTEST_MAX).map(told).collect();
        report
    }

    /// True when the whole batch may be acknowledged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }

    /// A record whose effects are not complete.
    pub(crate) fn failed(&mut self, stream_shard: &str, sequence: &str) {
        let lowest =
            self.failures.entry(stream_shard.to_owned()).or_insert_with(|| sequence.to_owned());
        if padded(sequence) < padded(lowest) {
            sequence.clone_into(lowest);
        }
    }

    pub(crate) fn error(&mut self, text: String) {
        self.error_count += 1;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(text);
        }
    }

    /// The counts, for the answer of a function.
    #[must_use]
    pub fn body(&self) -> Value {
        json!({
            "processed": self.records,
            "buckets": self.buckets,
            "others": self.others,
            "takes": self.takes,
            "snapshots_updated": self.snapshots,
            "counted": self.counted,
            "repeated": self.repeated,
            "skipped": self.skipped,
            "lost": self.lost,
            "events_expired": self.expired,
            "events_archived": self.archived,
            "objects": self.objects,
            "poison": self.poison,
            "letters": self.letters,
            "refills_written": self.kept.refills,
            "splits": self.kept.splits,
            "levelled": self.kept.levelled,
            "folds": self.kept.folds,
            "failures": self.failures.len(),
            "error_count": self.error_count,
            "errors": self.errors,
        })
    }

    /// The lines of a log: a summary, then metrics in the embedded format of CloudWatch, one line
    /// for the table and one for each shard of buckets that have several.
    #[must_use]
    pub fn lines(&self, table: &str, now: TimeMs) -> Vec<String> {
        let level = match self.error_count {
            _ if !self.failures.is_empty() || self.poison > 0 || self.lost > 0 => "ERROR",
            0 => "INFO",
            _ => "WARNING",
        };
        let hottest: Vec<Value> = self
            .hottest
            .iter()
            .map(|(key, records, units, shards)| {
                json!({ "key": key, "records": records, "units": units, "shard_count": shards })
            })
            .collect();
        let mut summary = json!({
            "timestamp": rfc3339(now),
            "level": level,
            "logger": "zae_limiter_aggregator",
            "message": "batch processed",
            "table": table,
            "took_ms": milliseconds(self.took),
            "first_failures": self.failures,
            "hottest": hottest,
        });
        if let (Value::Object(summary), Value::Object(body)) = (&mut summary, self.body()) {
            summary.extend(body);
        }
        let mut lines = vec![summary.to_string()];
        lines.push(metrics(
            now,
            &[("table", json!(table))],
            &[
                ("records", "Count", self.records),
                ("takes", "Count", u64::try_from(self.takes).unwrap_or(0)),
                ("snapshots", "Count", self.snapshots),
                ("repeated", "Count", self.repeated),
                ("skipped", "Count", self.skipped),
                ("archived", "Count", self.archived),
                ("poison", "Count", self.poison),
                ("lost", "Count", self.lost),
                ("failed", "Count", u64::try_from(self.failures.len()).unwrap_or(u64::MAX)),
                ("refills", "Count", self.kept.refills),
                ("splits", "Count", self.kept.splits),
                ("levelled", "Count", self.kept.levelled),
                ("folds", "Count", self.kept.folds),
                ("took", "Milliseconds", milliseconds(self.took)),
            ],
        ));
        for (shard, (records, units)) in &self.shards {
            lines.push(metrics(
                now,
                &[("table", json!(table)), ("bucket_shard", json!(shard.to_string()))],
                &[("shard_writes", "Count", *records), ("shard_units", "Count", *units)],
            ));
        }
        lines
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// One line in the embedded metrics format.
fn metrics(now: TimeMs, dimensions: &[(&str, Value)], values: &[(&str, &str, u64)]) -> String {
    let names: Vec<&str> = dimensions.iter().map(|(name, _)| *name).collect();
    let declared: Vec<Value> =
        values.iter().map(|(name, unit, _)| json!({ "Name": name, "Unit": unit })).collect();
    let mut line = json!({
        "_aws": {
            "Timestamp": now.0,
            "CloudWatchMetrics": [
                { "Namespace": "zae-limiter", "Dimensions": [names], "Metrics": declared },
            ],
        },
    });
    if let Value::Object(line) = &mut line {
        line.extend(dimensions.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        line.extend(values.iter().map(|(name, _, value)| ((*name).to_owned(), json!(value))));
    }
    line.to_string()
}
