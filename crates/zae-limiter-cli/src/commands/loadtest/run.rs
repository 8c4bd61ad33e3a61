//! `loadtest run` and `loadtest ui`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use zae_limiter::{Clock, LocalBlocks, RateLimiter, SystemClock};
use zae_limiter_loadtest::report::{Collector, Part, Point, Report, paces};
#[cfg(feature = "deploy")]
use zae_limiter_loadtest::worker::{Source, Task};
use zae_limiter_loadtest::{Options, Run, Scenario, engine, html};

#[cfg(feature = "deploy")]
use super::fleet::Fleet;
use super::page::Page;
use super::{processes, scenarios};
use crate::args::loadtest::RunArgs;
use crate::commands::shared::stop;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::patience;
use crate::printer;
use crate::settings::StorePlace;
use crate::table::{Cell, Table, Text, Tone};

/// What a run is.
pub(super) struct Load<'a> {
    pub(super) scenarios: &'a [Arc<dyn Scenario>],
    pub(super) users: u32,
    pub(super) duration: Duration,
    pub(super) spawn_rate: Option<f64>,
    /// Processes of this machine.
    pub(super) processes: u32,
    /// Calls are served from tokens bought ahead.
    pub(super) local_blocks: bool,
    /// Errors of a hundred calls that the run may have.
    pub(super) max_errors_pct: Option<f64>,
    /// Lambda workers, what they are sent, and how many; then nothing runs here.
    #[cfg(feature = "deploy")]
    pub(super) workers: Option<(&'a Fleet, &'a [Source], u32)>,
}

pub(crate) async fn run(
    context: &Context<'_>,
    args: &RunArgs,
    page: Option<Page>,
) -> anyhow::Result<Exit> {
    if args.processes > 1 && context.settings.store == StorePlace::Memory {
        let failure = Failure::usage("--processes: each process would have a memory of its own");
        return Err(failure.hint("name a file with --store sqlite:PATH").into());
    }
    let chosen = match args.part {
        // The process that started this one has said it.
        Some(_) => {
            scenarios::chosen(&printer::Printer::new(context.printer.looks().silent()), &args.what)?
        }
        None => scenarios::chosen(context.printer, &args.what)?,
    };
    let scenarios = &chosen.scenarios;
    for (flag, path) in [("--json-file", &args.json_file), ("--html", &args.html)] {
        check_file(flag, path.as_deref())?;
    }
    #[cfg(feature = "deploy")]
    let fleet = match args.workers {
        Some(_) => Some(Fleet::find(context, args.duration).await?),
        None => None,
    };
    let limiter = match args.local_blocks {
        true => context.open_by(|builder| builder.local_blocks(LocalBlocks::default())).await?,
        false => context.open().await?,
    };
    if let Some((number, count)) = args.part {
        return part(context, args, scenarios, &limiter, (number, count)).await;
    }
    prepare(scenarios, &limiter, args.users).await?;
    patience::told();
    if let Some(page) = &page {
        context.printer.note(&format!("the page is at {}, until the run ends", page.url));
    }
    let load = Load {
        scenarios,
        users: args.users,
        duration: args.duration,
        spawn_rate: args.spawn_rate.0,
        processes: args.processes.min(args.users),
        local_blocks: args.local_blocks,
        max_errors_pct: Some(args.max_errors),
        #[cfg(feature = "deploy")]
        workers: (fleet.as_ref().zip(args.workers))
            .map(|(fleet, count)| (fleet, chosen.sources.as_slice(), count.min(args.users))),
    };
    let report = measure(context, &limiter, &load, page.as_ref()).await?;
    limiter.close().await;
    if let Some(blocks) = limiter.blocks().filter(|_| load.processes <= 1) {
        let (grants, orders) = (blocks.grants, blocks.orders);
        context.printer.note(&format!("{grants} calls came from blocks, by {orders} orders"));
    }
    // Told first: a full disk does not take the figures with it.
    context.printer.answer(&report, &text(&report))?;
    if let Some(page) = &page {
        page.show(report.clone(), true);
    }
    if let Some(path) = &args.json_file {
        write(path, &serde_json::to_string(&report)?)?;
    }
    if let Some(path) = &args.html {
        write(path, &html::page(&report))?;
        context.printer.note(&format!("the page of the report is {}", path.display()));
    }
    if let Some(page) = &page {
        page.linger(&SystemClock::new()).await;
    }
    Ok(ended(context, &report))
}

/// A file that cannot be written is found before the run, not after it.
fn check_file(flag: &str, path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let shown = path.display();
    if path.is_dir() {
        return Err(Failure::usage(format!("{flag} {shown}: is a folder")).hint("name a file"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            let failure = Failure::usage(format!("{flag} {shown}: its folder is not there"));
            Err(failure.hint(format!("make the folder {}", folder.display())))
        }
        _ => try_file(path).map_err(|error| {
            let failure = Failure::usage(format!("{flag} {shown}: {error}"));
            failure.hint("name a file that can be written")
        }),
    }
}

/// Opens a file for writing, and leaves what is there.
fn try_file(path: &Path) -> std::io::Result<()> {
    let is_new = !path.exists();
    std::fs::OpenOptions::new().append(true).create(true).open(path)?;
    if is_new { std::fs::remove_file(path) } else { Ok(()) }
}

/// What the end is worth: an incomplete report is told, and one that is of little use is an error.
fn ended(context: &Context<'_>, report: &Report) -> Exit {
    if report.lost > 0 {
        let (count, what) = match report.run.workers {
            0 => (report.run.processes, "processes"),
            workers => (workers, "workers"),
        };
        context.printer.warning(&format!(
            "{} of {count} {what} ended before their time; what they told until then is counted",
            report.lost
        ));
        return Exit::Error;
    }
    if !report.complete {
        context.printer.warning("the run was stopped: the report is of what there was until then");
    }
    let total = &report.total;
    if total.granted + total.refused == 0 {
        context.printer.warning("no call was answered");
        return Exit::Error;
    }
    if report.too_many_errors {
        let calls = total.granted + total.refused + total.errors;
        context.printer.warning(&format!(
            "{} of {calls} calls are errors, {}%; --max-errors allows {}%",
            total.errors,
            total.errors_pct,
            report.run.max_errors_pct.unwrap_or_default()
        ));
        return Exit::Error;
    }
    Exit::Ok
}

/// Stores what the scenarios need.
pub(super) async fn prepare(
    scenarios: &[Arc<dyn Scenario>],
    limiter: &RateLimiter,
    users: u32,
) -> anyhow::Result<()> {
    for scenario in scenarios {
        let prepared = scenario.prepare(limiter, users).await;
        prepared.with_context(|| format!("the scenario {} was not prepared", scenario.name()))?;
    }
    Ok(())
}

/// Runs, and tells meanwhile.
pub(super) async fn measure(
    context: &Context<'_>,
    limiter: &RateLimiter,
    load: &Load<'_>,
    page: Option<&Page>,
) -> anyhow::Result<Report> {
    #[cfg(feature = "deploy")]
    let workers = load.workers.map_or(0, |(.., count)| count);
    #[cfg(not(feature = "deploy"))]
    let workers = 0;
    let asked = Run {
        store: context.settings.store.to_string(),
        users: load.users,
        processes: if workers == 0 { load.processes } else { 0 },
        workers,
        duration_s: load.duration.as_secs_f64(),
        spawn_rate: load.spawn_rate,
        local_blocks: load.local_blocks,
        max_errors_pct: load.max_errors_pct,
    };
    let names = paces(load.scenarios);
    let mut collector = Collector::default();
    let stop = stop::wanted(false)?;
    let show = |collector: &Collector| {
        // First the page: whoever reads the line may look there at once.
        if let Some(page) = page {
            page.show(collector.report(asked.clone(), &names, 0), false);
        }
        if let Some(point) = collector.newest() {
            told(context, &point);
        }
    };
    #[cfg(feature = "deploy")]
    if let Some((fleet, sources, count)) = load.workers {
        let namespace = context.settings.namespace.as_str();
        let users = (load.users, count);
        let tasks = Task::split((namespace, sources), users, load.duration, load.spawn_rate);
        let lost = fleet.run(context, tasks, stop, |answer| {
            answer.intervals.into_iter().for_each(|interval| collector.add(interval));
        });
        let lost = lost.await?;
        return Ok(collector.report(asked, &names, lost));
    }
    let lost = if load.processes > 1 {
        let mut heard = 0;
        processes::run(load.processes, load.duration, stop, |interval| {
            heard += 1;
            collector.add(interval);
            // One line for the same interval of all.
            if u32::is_multiple_of(heard, load.processes) {
                show(&collector);
            }
        })
        .await?
    } else {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut options = Options::new(load.users, load.duration);
        options.spawn_rate = load.spawn_rate;
        engine::run(limiter, load.scenarios, &options, &clock, stop, |interval| {
            collector.add(interval);
            show(&collector);
        })
        .await;
        0
    };
    if context.printer.looks().progress {
        printer::progress("");
    }
    Ok(collector.report(asked, &names, lost))
}

/// One of several processes: its intervals, one per line.
async fn part(
    context: &Context<'_>,
    args: &RunArgs,
    scenarios: &[Arc<dyn Scenario>],
    limiter: &RateLimiter,
    (number, count): (u32, u32),
) -> anyhow::Result<Exit> {
    patience::told();
    let mut options = Options::new(args.users / count, args.duration);
    options.users += u32::from(number < args.users % count);
    options.spawn_rate = args.spawn_rate.0.map(|rate| rate / f64::from(count));
    options.numbers = (number, count);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let stop = stop::wanted(true)?;
    let say = |line: &str| context.printer.page(&format!("{line}\n"));
    engine::run(limiter, scenarios, &options, &clock, stop, |interval| {
        if let Ok(line) = serde_json::to_string(&interval) {
            // Nobody reads any more: standard input has ended too.
            let _ = say(&line);
        }
    })
    .await;
    limiter.close().await;
    say(processes::OVER)
}

fn told(context: &Context<'_>, point: &Point) {
    let line = format!(
        "{} s: {} users, {}/s, p50 {} p95 {} p99 {}, {} refused, {} errors",
        point.at_s,
        point.users,
        point.granted_per_s,
        time(point.p50_us),
        time(point.p95_us),
        time(point.p99_us),
        point.refused,
        point.errors
    );
    match context.printer.looks().progress {
        true => printer::progress(&line),
        false => context.printer.note(&line),
    }
}

/// A time for people.
pub(super) fn time(micros: f64) -> String {
    if micros >= 1_000_000.0 {
        format!("{:.2}s", micros / 1_000_000.0)
    } else if micros >= 1_000.0 {
        format!("{:.2}ms", micros / 1_000.0)
    } else {
        format!("{micros:.1}µs")
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} was not written", path.display()))
}

fn text(report: &Report) -> Text {
    let mut table = Table::new([
        "SCENARIO",
        "GRANTED/S:",
        "GRANTED:",
        "REFUSED:",
        "ERRORS:",
        "UNSENT:",
        "P50:",
        "P95:",
        "P99:",
        "P99.9:",
        "MAX:",
    ])
    .may_lack(&["P99.9", "UNSENT", "MAX"]);
    let alone = report.scenarios.len() == 1;
    for part in report.scenarios.iter().chain((!alone).then_some(&report.total)) {
        table.row(row(part));
    }
    let seconds = format!("{} of {} s", report.elapsed_s, report.run.duration_s);
    let mut text = Text::new().table(table).fields(vec![
        ("users", Cell::plain(report.run.users)),
        match report.run.workers {
            0 => ("processes", Cell::plain(report.run.processes)),
            workers => ("workers", Cell::plain(workers)),
        },
        ("time", Cell::plain(seconds)),
        ("measured", Cell::plain(&report.measured)),
    ]);
    if !report.total.errors_by_kind.is_empty() {
        let errors = report.total.errors_by_kind.iter();
        let errors: Vec<String> = errors.map(|(kind, count)| format!("{kind} {count}")).collect();
        text = text.line(Cell::toned(format!("errors: {}", errors.join(", ")), Tone::Warning));
    }
    text
}

fn row(part: &Part) -> Vec<Cell> {
    let us = &part.latency_us;
    let mut cells = vec![Cell::plain(&part.scenario), Cell::plain(part.granted_per_s)];
    let counts = [part.granted, part.refused, part.errors, part.unsent];
    cells.extend(counts.map(Cell::plain));
    cells.extend([us.p50, us.p95, us.p99, us.p999, us.max].map(|us| Cell::plain(time(us))));
    cells
}
