//! What is printed.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::cell::Sample;
use crate::goals::{Bound, Verdict, cpu_per_op, rate, spread};
use crate::rounds::{Measured, Results};

/// Two tables in Markdown, ready for the pages of `docs`.
pub(crate) fn table(results: &Results) -> String {
    let mut page = String::new();
    write_table(&mut page, results).expect("a String takes everything");
    page
}

fn write_table(page: &mut String, results: &Results) -> std::fmt::Result {
    let quick = if results.quick { " (quick: not for figures)" } else { "" };
    let loads: Vec<String> = results.loads.iter().map(|load| format!("{load:.1}")).collect();
    writeln!(
        page,
        "{} rounds{quick}; load before each: {}. Median [min..max].\n",
        results.rounds,
        loads.join(", ")
    )?;
    writeln!(
        page,
        "| row | what | ops/s | p50 µs | p99 µs | CPU µs/op | server CPU µs/op | also |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|---|")?;
    for row in &results.rows {
        let column = |digits, value: &dyn Fn(&Sample) -> Option<f64>| in_brief(row, digits, value);
        let ops = column(0, &|sample| Some(rate(sample)));
        let p50 = column(2, &|sample| micros(sample.latency.value_at_quantile(0.5)));
        let p99 = column(2, &|sample| micros(sample.latency.value_at_quantile(0.99)));
        let cpu = column(3, &|sample| (!sample.cpu.is_zero()).then(|| cpu_per_op(sample) / 1e3));
        let server =
            column(1, &|sample| Some(sample.server_cpu?.as_secs_f64() * 1e6 / sample.ops as f64));
        writeln!(
            page,
            "| `{}` | {} | {ops} | {p50} | {p99} | {cpu} | {server} | {} |",
            row.name,
            row.what,
            also(row)
        )?;
    }
    writeln!(page, "\n| goal | wanted | measured | |\n|---|---|---|---|")?;
    for goal in results.goals {
        let wanted = match goal.bound {
            Bound::AtMost(most) => format!("≤ {most}"),
            Bound::AtLeast(least) => format!("≥ {least}"),
        };
        let (measured, mark) = match goal.verdict(results) {
            Verdict::Missing(_) if !results.all => continue,
            Verdict::Missing(row) => (format!("no row `{row}`"), "–"),
            Verdict::Measured(values) => match spread(&values) {
                None => ("nothing".to_owned(), "–"),
                Some([least, median, most]) => (
                    format!("**{median:.2}** [{least:.2}..{most:.2}]"),
                    if goal.bound.holds(median) { "✔" } else { "✘" },
                ),
            },
        };
        writeln!(page, "| {} | {wanted} | {measured} | {mark} |", goal.what)?;
    }
    for (name, why) in &results.missing {
        writeln!(page, "\nThe row `{name}` is missing: {why}")?;
    }
    for note in &results.notes {
        writeln!(page, "\n{note}")?;
    }
    Ok(())
}

fn micros(nanos: u64) -> Option<f64> {
    (nanos > 0).then(|| nanos as f64 / 1e3)
}

fn in_brief(row: &Measured, digits: usize, value: &dyn Fn(&Sample) -> Option<f64>) -> String {
    let values: Vec<f64> = row.samples.iter().filter_map(value).collect();
    spread(&values).map_or_else(String::new, |[least, median, most]| {
        format!("{median:.digits$} [{least:.digits$}..{most:.digits$}]")
    })
}

/// The figures that only this row has.
fn also(row: &Measured) -> String {
    let Some(first) = row.samples.first() else { return String::new() };
    let figure = |&(name, _): &(&'static str, f64)| {
        let digits = if name.contains("bytes") { 0 } else { 2 };
        format!(
            "{name} {}",
            in_brief(row, digits, &|sample| sample
                .figures
                .iter()
                .find(|(known, _)| *known == name)
                .map(|found| found.1))
        )
    };
    first.figures.iter().map(figure).collect::<Vec<_>>().join("; ")
}

/// Everything, for programs.
pub(crate) fn json(results: &Results) -> String {
    let sample = |sample: &Sample| {
        json!({
            "ops": sample.ops,
            "wall_s": sample.wall.as_secs_f64(),
            "cpu_s": sample.cpu.as_secs_f64(),
            "server_cpu_s": sample.server_cpu.map(|time| time.as_secs_f64()),
            "p50_ns": sample.latency.value_at_quantile(0.5),
            "p99_ns": sample.latency.value_at_quantile(0.99),
            "figures": sample.figures.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<serde_json::Map<_, _>>(),
        })
    };
    let row = |row: &Measured| {
        let samples: Vec<Value> = row.samples.iter().map(sample).collect();
        json!({ "name": row.name, "what": row.what, "samples": samples })
    };
    let goal = |goal: &crate::goals::Goal| {
        let (bound, wanted) = match goal.bound {
            Bound::AtMost(most) => ("at_most", most),
            Bound::AtLeast(least) => ("at_least", least),
        };
        let (values, missing) = match goal.verdict(results) {
            Verdict::Measured(values) => (values, None),
            Verdict::Missing(row) => (Vec::new(), Some(row)),
        };
        let median = spread(&values).map(|[_, median, _]| median);
        let reached = median.map(|median| goal.bound.holds(median));
        json!({ "goal": goal.what, bound: wanted, "values": values, "median": median, "reached": reached, "missing_row": missing })
    };
    let missing: Vec<Value> =
        results.missing.iter().map(|(name, why)| json!({ "name": name, "why": why })).collect();
    let all = json!({
        "rounds": results.rounds,
        "quick": results.quick,
        "loads": results.loads,
        "rows": results.rows.iter().map(row).collect::<Vec<_>>(),
        "goals": results.goals.iter().map(goal).collect::<Vec<_>>(),
        "missing": missing,
    });
    format!("{all:#}\n")
}
