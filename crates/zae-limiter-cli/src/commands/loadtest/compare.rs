//! `loadtest compare`.

use std::path::Path;

use serde::Serialize;
use zae_limiter_loadtest::compare::{Row, differences, rows};
use zae_limiter_loadtest::report::{FORMAT, Report};

use crate::args::loadtest::CompareArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text};

#[derive(Serialize)]
struct Form {
    /// Why the two are not of the same thing.
    differences: Vec<String>,
    rows: Vec<Row>,
}

pub(crate) fn run(context: &Context<'_>, args: &CompareArgs) -> anyhow::Result<Exit> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let form = Form { differences: differences(&before, &after), rows: rows(&before, &after) };
    for difference in &form.differences {
        context.printer.warning(&format!("the two runs differ in {difference}"));
    }
    let mut table = Table::new(["SCENARIO", "FIGURE", "BEFORE:", "AFTER:", "RATIO:"]);
    for row in &form.rows {
        table.row([
            Cell::plain(&row.scenario),
            Cell::plain(row.figure),
            Cell::plain(row.before),
            Cell::plain(row.after),
            Cell::plain(row.ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string())),
        ]);
    }
    let text = Text::new().table_or(table, "the two have no scenario in common");
    context.printer.answer(&form, &text)
}

fn read(path: &Path) -> Result<Report, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("the report {shown} cannot be read: {error}")))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("{shown} is no report: {error}"))
            .hint("`zae-limiter loadtest run --json-file FILE` writes one")
    })?;
    if report.format != FORMAT {
        let message = format!("{shown} is a report of the form {}, not {FORMAT}", report.format);
        return Err(Failure::usage(message).hint("run the load test again with this release"));
    }
    Ok(report)
}
