//! `usage list`.

use zae_limiter::usage::{ChartRow, UsageChart, table_rows};
use zae_limiter::wire::UsageForm;
use zae_limiter::{Page, RateLimiter, UsageQuery, UsageSnapshot};

use super::shared::listing;
use super::shared::usage;
use crate::args::history::UsageListArgs;
use crate::chart::Chart;
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Table, Text};

/// Pages that a chart may need.
const PAGES_MAX: usize = 10_000;

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
    table_rows(snapshots).for_each(|cells| table.row(cells.map(Cell::plain)));
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
    let whose = match (&query.entity, &query.resource) {
        (Some(entity), Some(resource)) => format!("{entity} on {resource}"),
        (Some(entity), None) => format!("{entity} on all resources"),
        (None, Some(resource)) => format!("all entities on {resource}"),
        (None, None) => "all".to_owned(),
    };
    let chart = |chart: UsageChart| {
        let title = format!("{} {} of {whose}", chart.limit, chart.window);
        let earlier = (chart.earlier > 0).then(|| {
            let hidden = chart.earlier;
            ChartRow::Gap(format!(
                "… {hidden} earlier windows; a longer --window or --end shows them"
            ))
        });
        Chart::new(title, earlier.into_iter().chain(chart.rows).collect())
    };
    UsageChart::of(snapshots).into_iter().map(chart).collect()
}

#[cfg(test)]
mod tests {
    use zae_limiter::domain::parse_rfc3339;
    use zae_limiter::{PageRequest, TimeMs, UsageWindow};

    use super::*;

    fn at(text: &str) -> TimeMs {
        parse_rfc3339(text).unwrap()
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
