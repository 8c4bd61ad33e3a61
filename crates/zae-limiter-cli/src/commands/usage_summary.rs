//! `usage summary`.

use serde::Serialize;
use zae_limiter::{PageRequest, UsageQuery, UsageSummary};

use super::shared::usage;
use crate::args::history::UsageQueryArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Table, Text};

#[derive(Serialize)]
struct Form {
    entity_id: Option<String>,
    resource: Option<String>,
    window: &'static str,
    snapshots: u64,
    first_window: Option<String>,
    last_window: Option<String>,
    limits: Vec<UsedForm>,
    /// What a reader should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct UsedForm {
    limit_name: String,
    total: i64,
    average: i64,
}

pub(crate) async fn run(context: &Context<'_>, args: UsageQueryArgs) -> anyhow::Result<Exit> {
    let query = usage::query(args, PageRequest::default())?;
    let limiter = context.open().await?;
    let summary = limiter.usage_summary(&query);
    let summary = Progress::during(context.printer, "reading usage", summary).await?;
    let note = usage::why_empty(context, summary.snapshots == 0).await;
    let form = form(&summary, &query, note);
    context.printer.answer(&form, &text(&form))?;
    context.printer.note_beside(form.note.as_deref());
    usage::note_about_cascades(context, &query);
    Ok(Exit::Ok)
}

fn form(summary: &UsageSummary, query: &UsageQuery, note: Option<String>) -> Form {
    let limits = summary.limits.iter().map(|limit| UsedForm {
        limit_name: limit.limit.to_string(),
        total: limit.total.floor_tokens(),
        average: limit.average.floor_tokens(),
    });
    Form {
        entity_id: query.entity.as_ref().map(ToString::to_string),
        resource: query.resource.as_ref().map(ToString::to_string),
        window: query.window.as_str(),
        snapshots: summary.snapshots,
        first_window: summary.first.map(|start| query.window.key(start)),
        last_window: summary.last.map(|start| query.window.key(start)),
        limits: limits.collect(),
        note,
    }
}

fn text(form: &Form) -> Text {
    let (Some(first), Some(last)) = (&form.first_window, &form.last_window) else {
        return Text::of("no usage");
    };
    let text = Text::new().fields(vec![
        ("entity", Cell::plain(form.entity_id.as_deref().unwrap_or("all"))),
        ("resource", Cell::plain(form.resource.as_deref().unwrap_or("all"))),
        ("windows", Cell::plain(format!("{} {}", form.snapshots, form.window))),
        ("first", Cell::plain(first)),
        ("last", Cell::plain(last)),
    ]);
    let mut table = Table::new(["LIMIT", "TOTAL:", "AVERAGE:"]);
    for limit in &form.limits {
        table.row([
            Cell::plain(&limit.limit_name),
            Cell::plain(limit.total),
            Cell::plain(limit.average),
        ]);
    }
    if table.is_empty() { text } else { text.table(table) }
}
