//! Two builds against each other: `zae-limiter-bench compare OTHER_BINARY`.
//!
//! A round measures each row three times, one process after the other: the old build, the old build
//! again, the new build, in an order that turns from round to round. What disturbs the machine for
//! a minute disturbs all three alike.

mod judge;
mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::args::{Compare, Output, SuiteName};
use crate::rounds::tell;
use judge::{Series, Verdict};

/// Builds that count allocations lie beside those that do not, and are called so in addition.
const COUNTING: &str = "-allocations";
/// Figures that do not vary need no fifteen rounds.
const ROUNDS_COUNTING: u32 = 3;
/// Says that a row is worse. 1 is for a comparison that failed.
const EXIT_WORSE: u8 = 3;

/// The figures that are compared exactly.
const EXACT: [&str; 3] = ["allocations per op", "requests per op", "rows written per op"];

/// The three measurements of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Old,
    Again,
    New,
}

const ORDERS: [[Turn; 3]; 6] = {
    use Turn::{Again, New, Old};
    [
        [Old, New, Again],
        [New, Again, Old],
        [Again, Old, New],
        [New, Old, Again],
        [Old, Again, New],
        [Again, New, Old],
    ]
};

/// What was found about one row.
struct Compared {
    name: String,
    /// Why there is nothing to judge.
    failed: Option<String>,
    /// By figure: CPU or bytes, then what is exact.
    verdicts: Vec<(&'static str, Verdict)>,
    /// CPU of the old and the new build in nanoseconds per call, medians.
    cpu_ns: Option<[f64; 2]>,
}

/// Everything that was found.
struct Comparison {
    rows: Vec<Compared>,
    rounds: u32,
    quick: bool,
    /// What was not compared, as sentences.
    notes: Vec<String>,
}

impl Comparison {
    fn worse(&self) -> Vec<&str> {
        let is_worse = |row: &&Compared| row.verdicts.iter().any(|(_, verdict)| verdict.is_worse());
        self.rows.iter().filter(is_worse).map(|row| row.name.as_str()).collect()
    }

    fn failed(&self) -> Vec<&str> {
        self.rows.iter().filter(|row| row.failed.is_some()).map(|row| row.name.as_str()).collect()
    }
}

pub(crate) fn run(args: &Compare) -> Result<ExitCode> {
    let new = args.new.clone().map_or_else(std::env::current_exe, Ok).context("this program")?;
    let builds = Builds { old: args.other.clone(), new };
    let suites: &[SuiteName] = match args.suite {
        None => &[SuiteName::Embedded, SuiteName::Dynamodb],
        Some(SuiteName::Embedded) => &[SuiteName::Embedded],
        Some(SuiteName::Dynamodb) => &[SuiteName::Dynamodb],
    };
    let mut comparison =
        Comparison { rows: Vec::new(), rounds: args.rounds, quick: args.quick, notes: Vec::new() };
    let counting = builds.counting();
    if counting.is_none() {
        comparison.notes.push(format!(
            "Allocations were not compared: there is no `…{COUNTING}` beside both builds."
        ));
    }
    for suite in suites {
        let rows = common_rows(&builds, *suite, &args.only, &mut comparison.notes)?;
        let mut found = Rounds::new(*suite, args, rows)?;
        found.measure(&builds, args.rounds, Purpose::Cpu);
        if let Some(counting) = &counting {
            found.measure(counting, ROUNDS_COUNTING.min(args.rounds), Purpose::Allocations);
        }
        comparison.rows.extend(found.judged());
    }
    ensure!(!comparison.rows.is_empty(), "no row of both builds begins with {:?}", args.only);
    let text = match args.output {
        Output::Table => report::table(&comparison),
        Output::Json => report::json(&comparison),
    };
    crate::print(&text)?;
    let (failed, worse) = (comparison.failed(), comparison.worse());
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(if worse.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_WORSE) })
}

// ------------------------------------------------------------------------------------------ builds

struct Builds {
    old: PathBuf,
    new: PathBuf,
}

impl Builds {
    /// Those that count allocations, if both are there.
    fn counting(&self) -> Option<Builds> {
        let beside = |path: &Path| {
            let mut name = path.file_name()?.to_owned();
            name.push(COUNTING);
            Some(path.with_file_name(name)).filter(|path| path.exists())
        };
        Some(Builds { old: beside(&self.old)?, new: beside(&self.new)? })
    }

    fn of(&self, turn: Turn) -> &Path {
        match turn {
            Turn::Old | Turn::Again => &self.old,
            Turn::New => &self.new,
        }
    }
}

/// The rows that both builds have, without those of others: they are the same code in both.
fn common_rows(
    builds: &Builds,
    suite: SuiteName,
    only: &[String],
    notes: &mut Vec<String>,
) -> Result<Vec<String>> {
    let [old, new] = [&builds.old, &builds.new].map(|build| names(build, suite, only));
    let (old, new) = (old?, new?);
    for (some, others, which) in [(&old, &new, "new"), (&new, &old, "old")] {
        for name in some.iter().filter(|name| !others.contains(*name)) {
            notes.push(format!("The row `{name}` is missing in the {which} build."));
        }
    }
    Ok(old.into_iter().filter(|name| new.contains(name)).collect())
}

fn names(build: &Path, suite: SuiteName, only: &[String]) -> Result<Vec<String>> {
    let mut command = Command::new(build);
    command.args(["child", "rows", suite.as_str()]);
    let names = list(&answer(&mut command)?["rows"])?
        .iter()
        .map(|row| text(row).map(str::to_owned))
        .collect::<Result<Vec<_>>>()?;
    // A name that a row has means that row, any other the rows that begin with it.
    let means = |word: &String, name: &String| {
        if names.contains(word) { word == name } else { name.starts_with(word.as_str()) }
    };
    let is_wanted = |name: &&String| only.is_empty() || only.iter().any(|word| means(word, name));
    Ok(names.iter().filter(is_wanted).cloned().collect())
}

fn answer(command: &mut Command) -> Result<Value> {
    let output = command.output().with_context(|| format!("{command:?} cannot be started"))?;
    if !output.status.success() {
        let talk = String::from_utf8_lossy(&output.stderr);
        // The last lines say why; those before say what was done until then.
        let last: Vec<&str> = talk.lines().rev().take(3).collect();
        bail!("{command:?} failed: {}", last.into_iter().rev().collect::<Vec<_>>().join(" | "));
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("{command:?} printed no JSON"))
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().with_context(|| format!("not a list: {value}"))
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("not a text: {value}"))
}

// ------------------------------------------------------------------------------------------ rounds

/// What a build is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Cpu,
    /// Counting costs CPU, so nothing but the count is taken from such builds.
    Allocations,
}

/// What one process said about one row, by figure. CPU is in nanoseconds per call.
type Figures = BTreeMap<String, f64>;

const CPU: &str = "CPU";
const BYTES: &str = "bytes per key";
const ALLOCATIONS: &str = EXACT[0];

struct Rounds<'a> {
    suite: SuiteName,
    args: &'a Compare,
    /// By row and figure.
    series: Vec<(String, BTreeMap<String, Series>)>,
    /// Rows that failed, and why. They are not tried again.
    failed: BTreeMap<String, String>,
    /// Large files are made once per build and kept until the end.
    lasting: tempfile::TempDir,
}

impl<'a> Rounds<'a> {
    fn new(suite: SuiteName, args: &'a Compare, rows: Vec<String>) -> Result<Rounds<'a>> {
        let folder = args.folder.as_deref();
        let lasting = folder
            .map_or_else(tempfile::tempdir, tempfile::tempdir_in)
            .context("a folder for files")?;
        let series = rows.into_iter().map(|row| (row, BTreeMap::new())).collect();
        Ok(Rounds { suite, args, series, failed: BTreeMap::new(), lasting })
    }

    fn measure(&mut self, builds: &Builds, rounds: u32, purpose: Purpose) {
        for (round, order) in (0..rounds).zip(ORDERS.iter().cycle()) {
            tell(&format!(
                "{}: round {} of {rounds} ({purpose:?})",
                self.suite.as_str(),
                round + 1
            ));
            for place in 0..self.series.len() {
                let row = self.series[place].0.clone();
                if self.failed.contains_key(&row) {
                    continue;
                }
                match self.round(builds, &row, *order) {
                    Ok(figures) => self.series[place].1.add(figures, purpose),
                    Err(error) => {
                        tell(&format!("FAILED {row}: {error:#}"));
                        self.failed.insert(row, format!("{error:#}"));
                    }
                }
            }
        }
    }

    /// One row, measured by all three in turn.
    fn round(&self, builds: &Builds, row: &str, order: [Turn; 3]) -> Result<[(Turn, Figures); 3]> {
        let mut found = Vec::new();
        for turn in order {
            found.push((turn, self.once(builds.of(turn), row, turn)?));
        }
        found.try_into().ok().context("three turns")
    }

    fn once(&self, build: &Path, row: &str, turn: Turn) -> Result<Figures> {
        let lasting = self.lasting.path().join(format!("{turn:?}"));
        std::fs::create_dir_all(&lasting).context("a folder for files")?;
        let mut command = Command::new(build);
        command.args(["child", "round", self.suite.as_str(), row, "--lasting"]).arg(lasting);
        if let Some(folder) = &self.args.folder {
            command.arg("--folder").arg(folder);
        }
        if self.args.quick {
            command.arg("--quick");
        }
        figures_of(&answer(&mut command)?)
    }

    fn judged(self) -> Vec<Compared> {
        let Rounds { series, mut failed, .. } = self;
        let judge = |(name, mut figures): (String, BTreeMap<String, Series>)| {
            let mut verdicts = Vec::new();
            let cpu_ns = figures
                .get(CPU)
                .and_then(|cpu| Some([judge::median(&cpu.old)?, judge::median(&cpu.new)?]));
            for name in [CPU, BYTES] {
                verdicts.extend(
                    figures.remove(name).and_then(|series| Some((name, judge::ratio(&series)?))),
                );
            }
            for name in EXACT {
                verdicts.extend(
                    figures.remove(name).and_then(|series| Some((name, judge::exact(&series)?))),
                );
            }
            let nothing = || verdicts.is_empty().then(|| "nothing was measured".to_owned());
            Compared { failed: failed.remove(&name).or_else(nothing), name, verdicts, cpu_ns }
        };
        series.into_iter().map(judge).collect()
    }
}

trait Add {
    fn add(&mut self, round: [(Turn, Figures); 3], purpose: Purpose);
}

impl Add for BTreeMap<String, Series> {
    fn add(&mut self, round: [(Turn, Figures); 3], purpose: Purpose) {
        for (turn, figures) in round {
            for (name, value) in figures {
                // A build without a counter knows no allocations, and one with it no fair CPU.
                if (purpose == Purpose::Allocations) != (name == ALLOCATIONS) {
                    continue;
                }
                let series = self.entry(name).or_default();
                match turn {
                    Turn::Old => series.old.push(value),
                    Turn::Again => series.again.push(value),
                    Turn::New => series.new.push(value),
                }
            }
        }
    }
}

/// Reads what `child round` has printed: the JSON of a suite with one row and one sample.
fn figures_of(results: &Value) -> Result<Figures> {
    let missing = list(&results["missing"])?;
    ensure!(missing.is_empty(), "{}", missing[0]["why"]);
    let [row] = &list(&results["rows"])?[..] else { bail!("not one row: {results}") };
    let [sample] = &list(&row["samples"])?[..] else { bail!("not one sample: {row}") };
    let number = |value: &Value| value.as_f64().with_context(|| format!("not a number: {value}"));
    let mut figures = Figures::new();
    for (name, value) in sample["figures"].as_object().context("figures")? {
        figures.insert(name.clone(), number(value)?);
    }
    let (cpu_s, ops) = (number(&sample["cpu_s"])?, number(&sample["ops"])?);
    if cpu_s > 0.0 {
        figures.insert(CPU.to_owned(), cpu_s * 1e9 / ops);
    }
    Ok(figures)
}
