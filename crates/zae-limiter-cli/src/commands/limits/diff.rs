//! `limits diff`.

use zae_limiter_manifest::Change;

use super::{Compared, PlanForm, compare, note_about_resumption, tone};
use crate::args::limits::LimitsFileArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Text, Tone};

/// Compares; what was managed and is no longer in the file is a difference too.
pub(crate) async fn run(context: &Context<'_>, args: &LimitsFileArgs) -> anyhow::Result<Exit> {
    let compared = compare(context, &args.file, false).await?;
    note_about_resumption(context, &compared.plan);
    let plan = &compared.plan;
    let differs = compared.registers || !plan.changes.is_empty() || !plan.kept.is_empty();
    let exit = context.printer.answer(&PlanForm::from(&compared), &text(&compared))?;
    Ok(if differs { Exit::Differs } else { exit })
}

fn text(compared: &Compared) -> Text {
    let mut lines = Vec::new();
    if compared.registers {
        lines.push(Cell::toned(format!("+ namespace {}", compared.namespace), Tone::Good));
    }
    let plan = &compared.plan;
    let mut differences: Vec<&Change> = plan.changes.iter().chain(&plan.kept).collect();
    differences.sort_by_key(|change| change.place());
    for change in differences {
        lines.extend(lines_of(change));
    }
    if lines.is_empty() {
        lines.push(Cell::plain("no difference"));
    }
    Text::new().lines(lines)
}

/// The place, then what the store has and what the file says, each on a line of its own.
fn lines_of(change: &Change) -> Vec<Cell> {
    let what = if change.what() == "flag" { " flag" } else { "" };
    let (before, after) = change.values();
    let head = format!("{} {}{what}", change.sign().mark(), change.place());
    let mut lines = vec![Cell::toned(head, tone(change.sign()))];
    lines.extend(before.map(|value| Cell::toned(format!("    store: {value}"), Tone::Bad)));
    lines.extend(super::along(change));
    lines.extend(after.map(|value| Cell::toned(format!("    file:  {value}"), Tone::Good)));
    lines
}
