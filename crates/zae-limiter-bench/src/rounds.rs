//! Runs the rows: each once per round, so that what disturbs one round disturbs its ratios little.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::args::Options;
use crate::cell::{Cell, Row, Sample};
use crate::goals::{self, Goal};
use crate::rows::{Context, Entry};

const ROUNDS: u32 = 7;
const ROUNDS_QUICK: u32 = 2;

/// What is to be measured.
pub(crate) struct Suite {
    pub(crate) rows: Vec<Entry>,
    pub(crate) goals: &'static [Goal],
    /// What to know about this build, as sentences.
    pub(crate) notes: Vec<&'static str>,
    /// Where files go, unless it is the system's temporary folder.
    pub(crate) folder: Option<PathBuf>,
    /// Where large files are kept for the next time, if they are.
    pub(crate) lasting: Option<PathBuf>,
}

impl Suite {
    pub(crate) fn embedded() -> Suite {
        Suite {
            rows: crate::rows::all(),
            goals: &goals::EMBEDDED,
            notes: Vec::new(),
            folder: None,
            lasting: None,
        }
    }

    pub(crate) fn dynamodb() -> Suite {
        Suite { rows: crate::dynamodb::rows(), goals: &goals::DYNAMODB, ..Suite::embedded() }
    }
}

/// Everything that was measured.
pub(crate) struct Results {
    pub(crate) rows: Vec<Measured>,
    /// Rows that could not be set up, and why.
    pub(crate) missing: Vec<(&'static str, String)>,
    pub(crate) rounds: u32,
    pub(crate) quick: bool,
    /// No row was left out on purpose.
    pub(crate) all: bool,
    /// The load of the machine before each round: how much else went on.
    pub(crate) loads: Vec<f64>,
    pub(crate) goals: &'static [Goal],
    pub(crate) notes: Vec<&'static str>,
}

pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// One per round.
    pub(crate) samples: Vec<Sample>,
}

impl Results {
    pub(crate) fn row(&self, name: &str) -> Option<&Measured> {
        self.rows.iter().find(|row| row.name == name)
    }
}

pub(crate) fn run(options: &Options, suite: Suite) -> Result<Results> {
    let Suite { rows, goals, notes, folder, lasting } = suite;
    let entries = wanted(rows, &options.only);
    ensure!(!entries.is_empty(), "no row begins with {:?}; --list names them", options.only);
    let (quick, all) = (options.quick, options.only.is_empty());
    let mut results = Results {
        rows: Vec::new(),
        missing: Vec::new(),
        rounds: 0,
        quick,
        all,
        loads: Vec::new(),
        goals,
        notes,
    };
    if options.list {
        for entry in entries {
            results.rows.push(Measured { name: entry.name, what: entry.what, samples: Vec::new() });
        }
        return Ok(results);
    }
    let context = Context::new(folder.as_deref(), lasting, options.quick)?;
    let mut ready: Vec<Box<dyn Row>> = Vec::new();
    for entry in entries {
        tell(&format!("setting up {}", entry.name));
        match (entry.make)(&context) {
            Ok(row) => {
                ready.push(row);
                results.rows.push(Measured {
                    name: entry.name,
                    what: entry.what,
                    samples: Vec::new(),
                });
            }
            Err(error) => {
                tell(&format!("SKIPPED {}: {error:#}", entry.name));
                results.missing.push((entry.name, format!("{error:#}")));
            }
        }
    }
    let cell = if options.quick { cell(20, 100) } else { cell(50, 400) };
    results.rounds = options.rounds.unwrap_or(if options.quick { ROUNDS_QUICK } else { ROUNDS });
    for round in 0..results.rounds {
        let load = load();
        tell(&format!("round {} of {}, load {load}", round + 1, results.rounds));
        results.loads.push(load);
        let mut order: Vec<usize> = (0..ready.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for place in order {
            let sample = ready[place].run(cell)?;
            results.rows[place].samples.push(sample);
        }
    }
    Ok(results)
}

/// A name that a row has means that row, any other the rows that begin with it.
fn wanted(entries: Vec<Entry>, only: &[String]) -> Vec<Entry> {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
    let means = |word: &String, name: &str| {
        if names.contains(&word.as_str()) { word == name } else { name.starts_with(word.as_str()) }
    };
    entries
        .into_iter()
        .filter(|entry| only.is_empty() || only.iter().any(|word| means(word, entry.name)))
        .collect()
}

fn cell(warm_up_ms: u64, time_ms: u64) -> Cell {
    Cell { warm_up: Duration::from_millis(warm_up_ms), time: Duration::from_millis(time_ms) }
}

/// How many wanted a core in the last minute; 0 where that is not known.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// Progress goes to stderr; stdout is for the figures.
pub(crate) fn tell(what: &str) {
    // Nobody listens, nothing to do.
    let _ = writeln!(std::io::stderr(), "{what}");
}
