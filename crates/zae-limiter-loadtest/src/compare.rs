//! Two reports beside each other.

use serde::Serialize;

use crate::report::Report;

/// One figure of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The scenario, or `total`.
    pub scenario: String,
    /// Which figure.
    pub figure: &'static str,
    /// Of the first report.
    pub before: f64,
    /// Of the second.
    pub after: f64,
    /// The second in parts of the first; null when the first is 0.
    pub ratio: Option<f64>,
}

/// The figures that both reports have, by scenario.
#[must_use]
pub fn rows(before: &Report, after: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    let alone = before.scenarios.len() == 1 && after.scenarios.len() == 1;
    let parts = before.scenarios.iter().chain((!alone).then_some(&before.total));
    for part in parts {
        let mut others = after.scenarios.iter().chain((!alone).then_some(&after.total));
        let Some(other) = others.find(|other| other.scenario == part.scenario) else { continue };
        let figures = [
            ("granted_per_s", part.granted_per_s, other.granted_per_s),
            ("p50_us", part.latency_us.p50, other.latency_us.p50),
            ("p95_us", part.latency_us.p95, other.latency_us.p95),
            ("p99_us", part.latency_us.p99, other.latency_us.p99),
            ("max_us", part.latency_us.max, other.latency_us.max),
            ("refused", count(part.refused), count(other.refused)),
            ("errors", count(part.errors), count(other.errors)),
            ("unsent", count(part.unsent), count(other.unsent)),
        ];
        for (figure, before, after) in figures {
            let ratio = (before > 0.0).then(|| (after / before * 1_000.0).round() / 1_000.0);
            rows.push(Row { scenario: part.scenario.clone(), figure, before, after, ratio });
        }
    }
    rows
}

/// Why the two reports are not of the same thing, in words.
#[must_use]
pub fn differences(before: &Report, after: &Report) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{what}: {a} and {b}"));
        }
    };
    differ("users", before.run.users.to_string(), after.run.users.to_string());
    differ("processes", before.run.processes.to_string(), after.run.processes.to_string());
    differ("workers", before.run.workers.to_string(), after.run.workers.to_string());
    differ("local blocks", before.run.local_blocks.to_string(), after.run.local_blocks.to_string());
    differ("store", before.run.store.clone(), after.run.store.clone());
    let names = |report: &Report| {
        let names: Vec<&str> = report.scenarios.iter().map(|it| it.scenario.as_str()).collect();
        names.join(", ")
    };
    differ("scenarios", names(before), names(after));
    for (which, report) in [("the first", before), ("the second", after)] {
        if !report.complete {
            found.push(format!("completeness: {which} run was stopped"));
        }
    }
    found
}

#[expect(clippy::cast_precision_loss, reason = "a count beside other figures")]
fn count(count: u64) -> f64 {
    count as f64
}
