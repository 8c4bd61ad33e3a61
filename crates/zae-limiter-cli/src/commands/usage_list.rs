//! `usage list`.

use std::collections::BTreeMap;

use zae_limiter::wire::UsageForm;
use zae_limiter::{LimitName, Page, RateLimiter, TimeMs, UsageQuery, UsageSnapshot, UsageWindow};

use super::shared::listing;
use super::shared::usage;
use crate::args::history::UsageListArgs;
use crate::chart::{Chart, Row};
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Table, Text};

/// Pages that a chart may need.
const PAGES_MAX: usize = 10_000;
/// The most windows a chart shows: those that are the latest.
const WINDOWS_MAX: usize = 60;
/// From so many empty windows on they share one line.
const EMPTY_MIN: usize = 3;

pub(crate) async fn run(context: &Context<'_>, args: UsageListArgs) -> anyhow::Result<Exit> {
    let query = usage::query(args.query, args.page.request())?;
    let limiter = context.open().await?;
    if args.plot {
        return plot(context, &limiter, query).await;
    }
    let page = limiter.usage(&query).await?;
    let note = usage::why_empty(context, page.items.is_empty()).await;
    let form = listing::Form::new(&page, UsageForm::from).noted(note);
    listing::print(context, &form, table(&page.items), "no usage")
}

/// One row per window and limit.
fn table(snapshots: &[UsageSnapshot]) -> Table {
    let mut table = Table::new(["WINDOW", "ENTITY", "RESOURCE", "LIMIT", "USED:", "GRANTS:"]);
    for form in snapshots.iter().map(UsageForm::from) {
        let mut row = |limit: &str, used: String| {
            let (window, grants) = (form.window_start.as_str(), form.total_events.to_string());
            let cells = [window, &form.entity_id, &form.resource, limit, &used, &grants];
            table.row(cells.map(Cell::plain));
        };
        if form.counters.is_empty() {
            row("-", "-".to_owned());
        }
        form.counters.iter().for_each(|(limit, used)| row(limit, used.to_string()));
    }
    table
}

/// Draws everything the query matches: a page would end in the middle of a window.
async fn plot(
    context: &Context<'_>,
    limiter: &RateLimiter,
    query: UsageQuery,
) -> anyhow::Result<Exit> {
    let list = async |page| limiter.usage(&UsageQuery { page, ..query.clone() }).await;
    let pages = listing::walk(PAGES_MAX, list);
    let (items, _) = Progress::during(context.printer, "reading usage", pages).await?;
    let charts = charts(&items, &query);
    let note = usage::why_empty(context, items.is_empty()).await;
    let form = listing::Form::new(&Page { items, next: None }, UsageForm::from).noted(note.clone());
    let text = if charts.is_empty() {
        Text::of("no usage")
    } else {
        charts.into_iter().fold(Text::new(), Text::chart)
    };
    context.printer.answer(&form, &text)?;
    context.printer.note_beside(note.as_deref());
    usage::note_about_cascades(context, &query);
    Ok(Exit::Ok)
}

/// One chart per limit, summed over whom and what the query matches.
fn charts(snapshots: &[UsageSnapshot], query: &UsageQuery) -> Vec<Chart> {
    let mut limits: BTreeMap<&LimitName, BTreeMap<TimeMs, i64>> = BTreeMap::new();
    for snapshot in snapshots {
        for (limit, used) in &snapshot.counters {
            let sum = limits.entry(limit).or_default().entry(snapshot.start).or_default();
            *sum = sum.saturating_add(used.0);
        }
    }
    let whose = match (&query.entity, &query.resource) {
        (Some(entity), Some(resource)) => format!("{entity} on {resource}"),
        (Some(entity), None) => format!("{entity} on all resources"),
        (None, Some(resource)) => format!("all entities on {resource}"),
        (None, None) => "all".to_owned(),
    };
    let chart = |(limit, windows): (&LimitName, BTreeMap<TimeMs, i64>)| {
        let hidden = windows.len().saturating_sub(WINDOWS_MAX);
        let title = format!("{limit} {} of {whose}", query.window);
        let mut rows = rows(windows.into_iter().skip(hidden), query.window);
        if hidden > 0 {
            rows.insert(
                0,
                Row::Gap(format!(
                    "… {hidden} earlier windows; a longer --window or --end shows them"
                )),
            );
        }
        Chart::new(title, rows)
    };
    limits.into_iter().map(chart).collect()
}

/// One row per window. Empty windows in between are shown too, or time would seem to stand still.
fn rows(windows: impl Iterator<Item = (TimeMs, i64)>, window: UsageWindow) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut expected: Option<TimeMs> = None;
    for (start, used) in windows {
        rows.extend(expected.into_iter().flat_map(|from| empty(from, start, window)));
        rows.push(Row::Bar(label(start, window), zae_limiter::Milli(used).floor_tokens()));
        expected = Some(window.next_start(start));
    }
    rows
}

/// The empty windows from one instant to another.
fn empty(from: TimeMs, until: TimeMs, window: UsageWindow) -> Vec<Row> {
    let starts = std::iter::successors(Some(from), |start| Some(window.next_start(*start)));
    let starts: Vec<TimeMs> = starts.take_while(|start| *start < until).take(EMPTY_MIN).collect();
    if starts.len() < EMPTY_MIN {
        return starts.into_iter().map(|start| Row::Bar(label(start, window), 0)).collect();
    }
    vec![Row::Gap(format!("… nothing until {}", label(until, window)))]
}

/// `2026-01-31 14:00` for an hour; days and months as they are stored.
fn label(start: TimeMs, window: UsageWindow) -> String {
    let key = window.key(start);
    match window {
        UsageWindow::Hourly => key.replace('T', " ").trim_end_matches(":00Z").to_owned(),
        UsageWindow::Daily | UsageWindow::Monthly => key,
    }
}

#[cfg(test)]
mod tests {
    use zae_limiter::PageRequest;
    use zae_limiter::domain::parse_rfc3339;

    use super::*;

    fn at(text: &str) -> TimeMs {
        parse_rfc3339(text).unwrap()
    }

    #[test]
    fn labels_are_short() {
        let start = at("2026-01-31T00:00:00Z");
        assert_eq!(label(start, UsageWindow::Hourly), "2026-01-31 00:00");
        assert_eq!(label(start, UsageWindow::Daily), "2026-01-31");
        assert_eq!(label(start, UsageWindow::Monthly), "2026-01");
    }

    #[test]
    fn empty_windows_are_shown_and_many_share_a_line() {
        let bar = |label: &str, tokens| Row::Bar(label.into(), tokens);
        let windows =
            [(at("2026-01-01"), 1_999), (at("2026-01-03"), 5_000), (at("2026-01-07"), -1)];
        let expected = vec![
            bar("2026-01-01", 1),
            bar("2026-01-02", 0),
            bar("2026-01-03", 5),
            Row::Gap("… nothing until 2026-01-07".into()),
            bar("2026-01-07", -1),
        ];
        assert_eq!(rows(windows.into_iter(), UsageWindow::Daily), expected);
    }

    #[test]
    fn only_the_latest_windows_are_drawn() {
        let first = at("2026-01-01");
        let snapshot = |hour: i64| UsageSnapshot {
            entity: "key-1".parse().unwrap(),
            resource: "gpt-4".parse().unwrap(),
            window: UsageWindow::Hourly,
            start: first.plus_ms(hour * 3_600_000),
            counters: vec![("tpm".parse().unwrap(), zae_limiter::Milli(1_000))],
            events: 1,
        };
        let snapshots: Vec<UsageSnapshot> = (0..100).map(snapshot).collect();
        let page = PageRequest::first(1);
        let query = UsageQuery {
            entity: None,
            resource: None,
            window: UsageWindow::Hourly,
            from: None,
            until: None,
            page,
        };
        let drawn = Text::new()
            .chart(charts(&snapshots, &query).remove(0))
            .render(None, crate::table::Paint(false));
        assert!(drawn.starts_with("tpm hourly of all\n… 40 earlier windows"), "{drawn}");
        assert_eq!(drawn.lines().count(), 62, "{drawn}");
    }
}
