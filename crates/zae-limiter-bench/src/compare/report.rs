//! What a comparison prints.

use std::fmt::Write;

use serde_json::{Value, json};

use super::judge::{MARGIN, Verdict};
use super::{Compared, Comparison};

/// A table in Markdown and the conclusion.
pub(super) fn table(comparison: &Comparison) -> String {
    let mut page = String::new();
    write_table(&mut page, comparison).expect("a String takes everything");
    page
}

fn write_table(page: &mut String, comparison: &Comparison) -> std::fmt::Result {
    let quick = if comparison.quick { " (quick: not for figures)" } else { "" };
    writeln!(
        page,
        "{} rounds{quick}. CPU per call, new build over old build inside a round: median [min..max].",
        comparison.rounds
    )?;
    writeln!(
        page,
        "A row is worse beyond the upper quartile of the old build over itself, times {MARGIN}.\n"
    )?;
    writeln!(
        page,
        "| row | old µs | new µs | new/old | old/old | allowed | exact figures, old → new | |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|---|")?;
    for row in &comparison.rows {
        writeln!(page, "| {} |", cells(row).join(" | "))?;
    }
    writeln!(page)?;
    for note in &comparison.notes {
        writeln!(page, "{note}")?;
    }
    for row in &comparison.rows {
        if let Some(why) = &row.failed {
            writeln!(page, "`{}` was not measured: {why}", row.name)?;
        }
    }
    match &comparison.worse()[..] {
        [] => writeln!(page, "No row is worse."),
        worse => writeln!(page, "Worse: {}.", worse.join(", ")),
    }
}

fn cells(row: &Compared) -> [String; 8] {
    let micros = |place: usize| {
        row.cpu_ns.map_or_else(String::new, |cpu_ns| format!("{:.3}", cpu_ns[place] / 1e3))
    };
    let (mut ratio, mut exact) = ([String::new(), String::new(), String::new()], Vec::new());
    for (name, verdict) in &row.verdicts {
        match verdict {
            Verdict::Exact { old, new } => exact.push(format!("{name} {old} → {new}")),
            Verdict::Ratio { median, range: [least, most], itself, bound }
                if ratio[0].is_empty() =>
            {
                ratio = [
                    format!("**{median:.3}** [{least:.2}..{most:.2}]"),
                    format!("{itself:.3}"),
                    format!("{bound:.3}"),
                ];
            }
            Verdict::Ratio { median, bound, .. } => {
                exact.push(format!("{name} × {median:.3} (allowed {bound:.3})"))
            }
        }
    }
    let is_worse = row.verdicts.iter().any(|(_, verdict)| verdict.is_worse());
    let mark = if row.failed.is_some() {
        "failed"
    } else if is_worse {
        "✘ worse"
    } else {
        "✔"
    };
    let [median, itself, bound] = ratio;
    [
        format!("`{}`", row.name),
        micros(0),
        micros(1),
        median,
        itself,
        bound,
        exact.join("; "),
        mark.to_owned(),
    ]
}

/// Everything, for programs.
pub(super) fn json(comparison: &Comparison) -> String {
    let verdict = |(name, verdict): &(&str, Verdict)| match verdict {
        Verdict::Ratio { median, range, itself, bound } => json!({
            "figure": name, "median": median, "range": range, "itself": itself, "allowed": bound, "worse": verdict.is_worse(),
        }),
        Verdict::Exact { old, new } => {
            json!({ "figure": name, "old": old, "new": new, "worse": verdict.is_worse() })
        }
    };
    let row = |row: &Compared| {
        let verdicts: Vec<Value> = row.verdicts.iter().map(verdict).collect();
        json!({ "name": row.name, "cpu_ns": row.cpu_ns, "figures": verdicts, "failed": row.failed })
    };
    let all = json!({
        "rounds": comparison.rounds,
        "quick": comparison.quick,
        "rows": comparison.rows.iter().map(row).collect::<Vec<_>>(),
        "worse": comparison.worse(),
        "failed": comparison.failed(),
        "notes": comparison.notes,
    });
    format!("{all:#}\n")
}
