//! `loadtest tune`.

use zae_limiter_loadtest::tune::Tuning;

use super::run::{Load, measure, prepare, time};
use super::scenarios;
use crate::args::loadtest::TuneArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::patience;
use crate::table::{Cell, Table, Text, Tone};

pub(crate) async fn run(context: &Context<'_>, args: &TuneArgs) -> anyhow::Result<Exit> {
    let scenarios = scenarios::chosen(context.printer, &args.what)?.scenarios;
    let limiter = context.open().await?;
    prepare(&scenarios, &limiter, args.max_users).await?;
    patience::told();
    let mut tuning = Tuning::new(args.threshold);
    let (mut stopped, mut failing) = (false, false);
    while let Some(users) = tuning.next(args.max_users) {
        let is_first = tuning.steps.is_empty();
        let duration = if is_first { args.baseline_duration } else { args.step_duration };
        context.printer.note(&format!("{users} users for {} s", duration.as_secs_f64()));
        let load = Load {
            scenarios: &scenarios,
            users,
            duration,
            spawn_rate: None,
            processes: 1,
            local_blocks: false,
            max_errors_pct: None,
            #[cfg(feature = "deploy")]
            workers: None,
        };
        let report = measure(context, &limiter, &load, None).await?;
        if !report.complete {
            stopped = true;
            break;
        }
        tuning.add(users, &report);
        if is_first && report.total.errors > 0 {
            failing = true;
            break;
        }
    }
    limiter.close().await;
    tuning.complete = !stopped && !failing;
    let mut table =
        Table::new(["USERS:", "GRANTED/S:", "P95:", "EFFICIENCY:", "REFUSED:", "ERRORS:"]);
    for step in &tuning.steps {
        let tone = if Some(step.users) == tuning.best_users { Tone::Good } else { Tone::Plain };
        table.row([
            Cell::toned(step.users, tone),
            Cell::plain(step.granted_per_s),
            Cell::plain(step.p95_us.map_or("-".to_owned(), time)),
            Cell::plain(step.efficiency),
            Cell::plain(step.refused),
            Cell::plain(step.errors),
        ]);
    }
    let best = match tuning.best_users {
        None => "best: unknown, nothing good was measured".to_owned(),
        Some(users) => {
            let so_far = if tuning.complete { "" } else { " so far" };
            format!(
                "best{so_far}: {users} users (p95 of one user / p95 of the step is at least {})",
                tuning.threshold
            )
        }
    };
    let text = Text::new().table_or(table, "no step ended").line(Cell::plain(best));
    context.printer.answer(&tuning, &text)?;
    if failing {
        context.printer.warning("one user alone has errors already: there is nothing to tune");
        return Ok(Exit::Error);
    }
    let refused: u64 = tuning.steps.iter().map(|step| step.refused).sum();
    if refused > 0 {
        context.printer.warning(
            "limits refused calls: the steps measure these limits too; give the scenario limits that \
             never refuse",
        );
    }
    if stopped {
        context.printer.warning(match tuning.steps.is_empty() {
            true => "stopped: nothing was measured",
            false => "stopped: steps after this were not tried",
        });
    }
    Ok(Exit::Ok)
}
