//! The best number of users: the most that a store serves before latency eats what more users
//! bring.

use serde::Serialize;

use crate::report::Report;

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// How many users.
    pub users: u32,
    /// Granted calls per second.
    pub granted_per_s: f64,
    /// In microseconds; null when nothing was granted.
    pub p95_us: Option<f64>,
    /// The baseline's p95 in parts of this step's: 1 is as fast as one user alone.
    pub efficiency: f64,
    /// How many were refused.
    pub refused: u64,
    /// How many had no answer.
    pub errors: u64,
}

/// What tuning found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Tuning {
    /// The most users that were measured at or above the threshold and without errors; null before
    /// any were.
    pub best_users: Option<u32>,
    /// False while there is a step left to try: the search was stopped, or one user alone fails.
    pub complete: bool,
    /// The threshold.
    pub threshold: f64,
    /// The baseline first.
    pub steps: Vec<Step>,
}

impl Tuning {
    /// Nothing tried yet.
    #[must_use]
    pub fn new(threshold: f64) -> Tuning {
        Tuning { threshold, ..Tuning::default() }
    }

    /// The number of users to try next, up to `max`; `None` when it is clear which is best. Steps
    /// double until one is below the threshold, then halve what lies between.
    #[must_use]
    pub fn next(&self, max: u32) -> Option<u32> {
        let Some(last) = self.steps.iter().map(|step| step.users).max() else { return Some(1) };
        let bad = self.steps.iter().filter(|step| !self.is_good(step)).map(|step| step.users).min();
        match (bad, self.best_users) {
            (None, _) if last >= max => None,
            (None, _) => Some(last.saturating_mul(2).min(max)),
            (Some(bad), Some(best)) if bad - best > 1 => Some(best + (bad - best) / 2),
            (Some(_), _) => None,
        }
    }

    /// What a step came to.
    pub fn add(&mut self, users: u32, report: &Report) {
        let part = &report.total;
        let p95 = Some(part.latency_us.p95).filter(|_| part.granted > 0);
        let base = self.steps.first().map_or(p95, |step| step.p95_us);
        let efficiency = match (base, p95) {
            (Some(base), Some(p95)) if p95 > 0.0 => ((base / p95) * 1_000.0).round() / 1_000.0,
            _ => 0.0,
        };
        let step = Step {
            users,
            granted_per_s: part.granted_per_s,
            p95_us: p95,
            efficiency,
            refused: part.refused,
            errors: part.errors,
        };
        if self.is_good(&step) {
            self.best_users = self.best_users.max(Some(users));
        }
        self.steps.push(step);
    }

    fn is_good(&self, step: &Step) -> bool {
        step.efficiency >= self.threshold && step.errors == 0
    }
}
