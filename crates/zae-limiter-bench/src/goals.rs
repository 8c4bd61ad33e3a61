//! The goals, each as a ratio inside a round or as a figure of a row.

use crate::cell::Sample;
use crate::rounds::Results;

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Measure {
    /// CPU of the first row over CPU of the second.
    Cpu(&'static str, &'static str),
    /// The same for the median latency.
    P50(&'static str, &'static str),
    /// The same for calls a second.
    Rate(&'static str, &'static str),
    /// What a row says about itself.
    Figure(&'static str, &'static str),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) what: &'static str,
    measure: Measure,
    pub(crate) bound: Bound,
}

const fn goal(what: &'static str, measure: Measure, bound: Bound) -> Goal {
    Goal { what, measure, bound }
}

use Bound::{AtLeast, AtMost};
use Measure::{Cpu, Figure, P50, Rate};

/// In the order of the tables in `docs/benchmarks.md`.
pub(crate) const EMBEDDED: [Goal; 28] = [
    goal("SQLite, store: CPU of a bare UPDATE", Cpu("sqlite-store", "bare-update"), AtMost(1.3)),
    goal(
        "SQLite, acquire + commit: CPU of a bare UPDATE",
        Cpu("sqlite-acquire", "bare-update"),
        AtMost(1.8),
    ),
    goal("SQLite, acquire + commit: p50 of Redis Lua", P50("sqlite-acquire", "redis"), AtMost(0.5)),
    goal("64 callers, 1k keys: rate of Redis Lua", Rate("sqlite-64", "redis-64"), AtLeast(1.5)),
    goal(
        "64 callers, one hot key: rate of Redis Lua",
        Rate("sqlite-64-hot", "redis-64-hot"),
        AtLeast(6.0),
    ),
    goal("FULL, 64 callers: rate of fdatasync", Rate("sqlite-full-64", "fdatasync"), AtLeast(6.0)),
    goal(
        "parent cascade, store: CPU of one level",
        Cpu("sqlite-store-chain", "sqlite-store"),
        AtMost(1.8),
    ),
    goal(
        "parent cascade, acquire: CPU of one level",
        Cpu("sqlite-acquire-chain", "sqlite-acquire"),
        AtMost(1.8),
    ),
    goal(
        "refusal, store: CPU of a grant",
        Cpu("sqlite-store-refused", "sqlite-store"),
        AtMost(0.5),
    ),
    goal(
        "refusal, acquire: CPU of a grant",
        Cpu("sqlite-acquire-refused", "sqlite-acquire"),
        AtMost(0.5),
    ),
    goal(
        "refusal: rows written",
        Figure("sqlite-acquire-refused", "rows written per op"),
        AtMost(0.0),
    ),
    goal("2 processes x 1 caller: rate of one", Rate("process-2x1", "process-1x1"), AtLeast(0.75)),
    goal("2 processes x 1 caller: least share", Figure("process-2x1", "least share"), AtLeast(0.5)),
    goal(
        "2 processes x 64 callers: rate of one",
        Rate("process-2x64", "process-1x64"),
        AtLeast(0.75),
    ),
    goal(
        "2 processes x 64 callers: least share",
        Figure("process-2x64", "least share"),
        AtLeast(0.5),
    ),
    goal(
        "2 processes x 64 callers, FULL: rate of one",
        Rate("process-full-2x64", "process-full-1x64"),
        AtLeast(0.75),
    ),
    goal(
        "2 processes x 64 callers, FULL: least share",
        Figure("process-full-2x64", "least share"),
        AtLeast(0.5),
    ),
    goal(
        "a million entities, store: CPU at 1k",
        Cpu("sqlite-store-1m", "sqlite-store"),
        AtMost(3.0),
    ),
    goal(
        "a million entities, acquire: CPU at 1k",
        Cpu("sqlite-acquire-1m", "sqlite-acquire"),
        AtMost(3.0),
    ),
    goal("memory, consume_now: CPU of two governors", Cpu("memory-store", "governor"), AtMost(2.0)),
    goal(
        "memory, a million keys: CPU of two governors",
        Cpu("memory-store-1m", "governor-1m"),
        AtMost(2.0),
    ),
    goal(
        "memory, a prepared request: CPU of two governors",
        Cpu("memory-prepared", "governor"),
        AtMost(2.2),
    ),
    goal(
        "limitador: CPU of memory acquire + commit",
        Cpu("limitador", "memory-acquire"),
        AtLeast(8.0),
    ),
    goal(
        "a decision from a block: CPU of two governors",
        Cpu("block-store", "governor"),
        AtMost(2.0),
    ),
    goal("a decision from a block: CPU of a map", Cpu("block-store", "map"), AtMost(3.5)),
    goal(
        "SQLite with blocks, acquire + commit: CPU without",
        Cpu("block-acquire-sqlite", "sqlite-acquire"),
        AtMost(0.2),
    ),
    goal(
        "64 callers with blocks, one hot key: rate of Redis Lua",
        Rate("block-64-hot", "redis-64-hot"),
        AtLeast(10.0),
    ),
    goal("memory: bytes per key", Figure("memory-weight", "bytes per key"), AtMost(320.0)),
];

/// Those of the limiter on DynamoDB, in the order of the table in `docs/benchmarks-dynamodb.md`.
pub(crate) const DYNAMODB: [Goal; 17] = [
    goal("acquire + commit: CPU of a bare UpdateItem", Cpu("acquire", "bare"), AtMost(1.25)),
    goal(
        "the same, its names and values given one by one",
        Cpu("acquire", "bare-written"),
        AtMost(1.25),
    ),
    goal(
        "Python 0.17.0, asyncio: CPU of our acquire + commit",
        Cpu("python", "acquire"),
        AtLeast(8.0),
    ),
    goal(
        "Python 0.17.0, threads: CPU of our acquire + commit",
        Cpu("python-sync", "acquire"),
        AtLeast(8.0),
    ),
    goal(
        "Python 0.17.0, 64 tasks: CPU of our acquire + commit, 64 tasks",
        Cpu("python-64", "acquire-64"),
        AtLeast(8.0),
    ),
    goal("acquire + commit: requests", Figure("acquire", "requests per op"), AtMost(1.0)),
    goal(
        "multi-threaded runtime: CPU of a bare UpdateItem",
        Cpu("acquire-mt", "bare-mt"),
        AtMost(1.25),
    ),
    goal("64 callers: CPU of a bare UpdateItem", Cpu("acquire-64", "bare-64"), AtMost(1.25)),
    goal(
        "64 callers, multi-threaded: CPU of a bare UpdateItem",
        Cpu("acquire-mt-64", "bare-mt-64"),
        AtMost(1.25),
    ),
    goal(
        "with an adjustment: CPU of two bare UpdateItems",
        Cpu("adjust", "bare-two"),
        AtMost(1.25),
    ),
    goal(
        "child and parent: CPU of two bare UpdateItems at once",
        Cpu("cascade", "bare-pair"),
        AtMost(1.25),
    ),
    goal(
        "blocking: CPU of a bare UpdateItem from another thread",
        Cpu("blocking", "bare-blocking"),
        AtMost(1.25),
    ),
    goal(
        "acquire + commit: CPU of the same with blocks",
        Cpu("acquire", "acquire-blocks"),
        AtLeast(40.0),
    ),
    goal(
        "with blocks: CPU of blocks on a MemoryStore",
        Cpu("acquire-blocks", "block-acquire"),
        AtMost(1.5),
    ),
    goal("with blocks: requests", Figure("acquire-blocks", "requests per op"), AtMost(0.02)),
    goal("refusal from memory: CPU of a bare UpdateItem", Cpu("refused", "bare"), AtMost(0.1)),
    goal("refusal from memory: requests", Figure("refused", "requests per op"), AtMost(0.01)),
];

/// How a goal came out.
pub(crate) enum Verdict {
    /// One value per round.
    Measured(Vec<f64>),
    /// The row that is not there.
    Missing(&'static str),
}

impl Goal {
    pub(crate) fn verdict(&self, results: &Results) -> Verdict {
        let (first, second) = match self.measure {
            Cpu(first, second) | P50(first, second) | Rate(first, second) => (first, Some(second)),
            Figure(first, _) => (first, None),
        };
        let Some(ours) = results.row(first) else { return Verdict::Missing(first) };
        let value = |ours: &Sample, theirs: Option<&Sample>| match (self.measure, theirs) {
            (Figure(_, name), _) => {
                ours.figures.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
            }
            (Cpu(..), Some(theirs)) => Some(cpu_per_op(ours) / cpu_per_op(theirs)),
            (P50(..), Some(theirs)) => Some(
                ours.latency.value_at_quantile(0.5) as f64
                    / theirs.latency.value_at_quantile(0.5) as f64,
            ),
            (Rate(..), Some(theirs)) => Some(rate(ours) / rate(theirs)),
            (Cpu(..) | P50(..) | Rate(..), None) => None,
        };
        let Some(second) = second else {
            return Verdict::Measured(
                ours.samples.iter().filter_map(|sample| value(sample, None)).collect(),
            );
        };
        let Some(theirs) = results.row(second) else { return Verdict::Missing(second) };
        let pairs = ours.samples.iter().zip(&theirs.samples);
        Verdict::Measured(pairs.filter_map(|(ours, theirs)| value(ours, Some(theirs))).collect())
    }
}

/// In nanoseconds, this process only.
pub(crate) fn cpu_per_op(sample: &Sample) -> f64 {
    sample.cpu.as_secs_f64() * 1e9 / sample.ops as f64
}

pub(crate) fn rate(sample: &Sample) -> f64 {
    sample.ops as f64 / sample.wall.as_secs_f64()
}

/// Least, middle and greatest.
pub(crate) fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    Some([*values.first()?, values[values.len() / 2], *values.last()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_values_is_their_median() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some([1.0, 2.0, 3.0]));
    }

    #[test]
    fn a_bound_includes_its_value() {
        assert!(AtMost(1.5).holds(1.5) && !AtMost(1.5).holds(1.6));
        assert!(AtLeast(1.5).holds(1.5) && !AtLeast(1.5).holds(1.4));
    }

    #[cfg(feature = "peers")]
    #[test]
    fn every_goal_names_rows_that_exist() {
        all_exist(&EMBEDDED, &crate::rows::all());
    }

    #[test]
    fn every_goal_of_dynamodb_names_rows_that_exist() {
        all_exist(&DYNAMODB, &crate::dynamodb::rows());
    }

    fn all_exist(goals: &[Goal], rows: &[crate::rows::Entry]) {
        for goal in goals {
            let names = match goal.measure {
                Cpu(first, second) | P50(first, second) | Rate(first, second) => {
                    vec![first, second]
                }
                Figure(first, _) => vec![first],
            };
            for name in names {
                assert!(rows.iter().any(|row| row.name == name), "{name}");
            }
        }
    }
}
