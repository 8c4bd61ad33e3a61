//! A part of a run in another place: what it is asked to do, and what it answers.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zae_limiter::{Clock, RateLimiter};

use crate::builtin::Plan;
use crate::engine::{self, Interval, Options};
use crate::file;
use crate::scenario::{Scenario, ScenarioError};
use crate::tally::Tally;

/// The version of the form, of tasks and of answers.
pub const FORMAT: &str = "zae-limiter-loadtest-worker/1";

/// The most bytes of an answer. Lambda takes six megabytes.
pub const ANSWER_BYTES_MAX: usize = 5_500_000;

/// Intervals of a worker at most: an answer has all of them.
const INTERVALS_MAX: u64 = 100;

/// A scenario as it can be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// One that needs no file, by its name.
    Builtin(String),
    /// A file.
    Toml {
        /// The name of the file, without its end.
        stem: String,
        /// What is in it.
        text: String,
    },
}

impl Source {
    /// The scenario.
    pub fn plan(&self) -> Result<Plan, ScenarioError> {
        match self {
            Source::Builtin(name) => Plan::builtin(name)
                .ok_or_else(|| ScenarioError(format!("{name}: there is no such scenario"))),
            Source::Toml { stem, text } => file::parse(text, stem),
        }
    }
}

/// What a worker is asked to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The version of this form.
    pub format: String,
    /// The namespace of the limiter.
    pub namespace: String,
    /// What users do.
    pub scenarios: Vec<Source>,
    /// How many users this worker has.
    pub users: u32,
    /// The number of its first user, and the step to the next.
    pub numbers: (u32, u32),
    /// How long, in milliseconds.
    pub duration_ms: u64,
    /// Users of this worker that start per second; null starts all at once.
    pub spawn_rate: Option<f64>,
    /// How long an interval is, in milliseconds.
    pub interval_ms: u64,
}

impl Task {
    /// The tasks of so many workers: users have different numbers, and none is left out.
    #[must_use]
    pub fn split(
        (namespace, scenarios): (&str, &[Source]),
        (users, workers): (u32, u32),
        duration: Duration,
        spawn_rate: Option<f64>,
    ) -> Vec<Task> {
        let workers = workers.min(users).max(1);
        let interval = engine::interval(duration).as_secs().max(duration.as_secs() / INTERVALS_MAX);
        (0..workers)
            .map(|number| Task {
                format: FORMAT.to_owned(),
                namespace: namespace.to_owned(),
                scenarios: scenarios.to_vec(),
                users: users / workers + u32::from(number < users % workers),
                numbers: (number, workers),
                duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
                spawn_rate: spawn_rate.map(|rate| rate / f64::from(workers)),
                interval_ms: interval * 1_000,
            })
            .collect()
    }

    /// What the worker cannot do about it.
    pub fn check(&self) -> Result<Vec<Arc<dyn Scenario>>, ScenarioError> {
        if self.format != FORMAT {
            return Err(ScenarioError(format!(
                "the task has the form {}, and this worker knows {FORMAT}: push the workers again",
                self.format
            )));
        }
        if self.users == 0 || self.users > engine::USERS_MAX || self.scenarios.is_empty() {
            return Err(ScenarioError("the task has no users, no scenario or too many".to_owned()));
        }
        if self.interval_ms == 0 || self.duration_ms == 0 || self.duration_ms > 86_400_000 {
            return Err(ScenarioError("the task has no time, or more than a day".to_owned()));
        }
        let plan = |source: &Source| Ok(Arc::new(source.plan()?) as Arc<dyn Scenario>);
        self.scenarios.iter().map(plan).collect()
    }

    /// How long, from the first user on.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.duration_ms)
    }

    /// Does it. What the scenarios need was stored by who sent the task.
    pub async fn work(
        &self,
        limiter: &RateLimiter,
        scenarios: &[Arc<dyn Scenario>],
        clock: &Arc<dyn Clock>,
    ) -> Answer {
        let options = Options {
            users: self.users,
            duration: self.duration(),
            spawn_rate: self.spawn_rate,
            numbers: self.numbers,
            interval: Duration::from_millis(self.interval_ms),
        };
        let mut intervals = Vec::new();
        let forever = std::future::pending();
        engine::run(limiter, scenarios, &options, clock, forever, |it| intervals.push(it)).await;
        Answer { format: FORMAT.to_owned(), intervals }
    }
}

/// What a worker has seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The version of this form.
    pub format: String,
    /// All its intervals.
    pub intervals: Vec<Interval>,
}

impl Answer {
    /// The answer as JSON of at most so many bytes: an answer that is too long tells its series in
    /// fewer intervals, and loses no call.
    #[must_use]
    pub fn json(mut self, bytes_max: usize) -> serde_json::Value {
        loop {
            let json = serde_json::to_value(&self).unwrap_or_default();
            if self.intervals.len() <= 1 || json.to_string().len() <= bytes_max {
                return json;
            }
            let halved = self.intervals.chunks(2).map(joined).collect();
            self.intervals = halved;
        }
    }
}

/// Neighbours as one.
fn joined(parts: &[Interval]) -> Interval {
    let mut all = Interval::default();
    if let (Some(first), Some(last)) = (parts.first(), parts.last()) {
        (all.number, all.from_ms, all.users) = (first.number, first.from_ms, last.users);
        all.ms = (last.from_ms + last.ms).saturating_sub(first.from_ms);
    }
    for part in parts {
        all.tallies.resize(all.tallies.len().max(part.tallies.len()), Tally::default());
        all.tallies.iter_mut().zip(&part.tallies).for_each(|(sum, one)| sum.merge(one));
    }
    all
}
