//! Usage for people: a table, and bars for the terminal. `zae-limiter usage list` prints the same.
//!
//! Both are made of the snapshots that [`RateLimiter::usage`](crate::RateLimiter::usage) returns,
//! and are text without colours.

use std::collections::BTreeMap;
use std::fmt;

use zae_limiter_core::{LimitName, Milli, TimeMs, UsageSnapshot, UsageWindow};

/// The most windows a chart shows: those that are the latest.
const WINDOWS_MAX: usize = 60;
/// From so many empty windows on they share one row.
const EMPTY_MIN: usize = 3;

/// How wide a chart is that is printed with `{}`.
pub const CHART_WIDTH: usize = 80;
/// The longest a bar gets: beyond that it only makes the eye travel.
const BAR_MAX: usize = 60;
/// The shortest the longest bar may be. A terminal too narrow even for that gets no bars.
const BAR_MIN: usize = 8;
/// Between two columns.
const GAP: usize = 2;

const FULL: char = '█';
/// One to seven eighths of a column.
const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
const EIGHTHS: u128 = 8;

/// One row of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChartRow {
    /// A window and the whole tokens used in it; below zero if more was given back than taken.
    Bar(String, i64),
    /// Something left out, in words.
    Gap(String),
}

/// The usage of one limit, window by window, summed over whom and what the snapshots are of.
///
/// Empty windows in between have a row too, or time would seem to stand still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageChart {
    /// The limit.
    pub limit: LimitName,
    /// The kind of window.
    pub window: UsageWindow,
    /// The rows, earliest window first.
    pub rows: Vec<ChartRow>,
    /// Earlier windows that are not among the rows: a chart has the latest 60.
    pub earlier: usize,
}

impl UsageChart {
    /// One chart per limit and kind of window, in the order of their names.
    #[must_use]
    pub fn of<'a>(snapshots: impl IntoIterator<Item = &'a UsageSnapshot>) -> Vec<UsageChart> {
        let mut sums: BTreeMap<(&LimitName, UsageWindow), BTreeMap<TimeMs, i64>> = BTreeMap::new();
        for snapshot in snapshots {
            for (limit, used) in &snapshot.counters {
                let windows = sums.entry((limit, snapshot.window)).or_default();
                let sum = windows.entry(snapshot.start).or_default();
                *sum = sum.saturating_add(used.0);
            }
        }
        let chart = |((limit, window), windows): ((&LimitName, UsageWindow), BTreeMap<_, _>)| {
            let earlier = windows.len().saturating_sub(WINDOWS_MAX);
            let rows = rows(windows.into_iter().skip(earlier), window);
            UsageChart { limit: limit.clone(), window, rows, earlier }
        };
        sums.into_iter().map(chart).collect()
    }

    /// The chart, no wider than `width` columns unless labels and values alone are.
    #[must_use]
    pub fn draw(&self, width: usize) -> String {
        let mut text = format!("{} {}\n", self.limit, self.window);
        if self.earlier > 0 {
            text.push_str(&format!("… {} earlier windows\n", self.earlier));
        }
        let scale = Scale::of(&self.rows, width);
        for row in &self.rows {
            match row {
                ChartRow::Gap(words) => text.push_str(words),
                ChartRow::Bar(label, value) => {
                    let padding = scale.label_width - label.chars().count() + GAP;
                    let bar = scale.bar(*value);
                    let gap = if bar.is_empty() { "" } else { "  " };
                    text.push_str(&format!("{label}{}{bar}{gap}{value}", " ".repeat(padding)));
                }
            }
            text.push('\n');
        }
        text
    }
}

impl fmt::Display for UsageChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.draw(CHART_WIDTH))
    }
}

/// How long the bars of some rows are: all of a chart are drawn to one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The columns of the longest label.
    pub label_width: usize,
    /// The columns of the longest bar.
    room: usize,
    /// The value that it stands for.
    largest: i64,
}

impl Scale {
    /// The scale by which rows fit into `width` columns, two between label, bar and value.
    #[must_use]
    pub fn of(rows: &[ChartRow], width: usize) -> Scale {
        let (mut label_width, mut value_width, mut largest) = (0, 0, 0);
        for row in rows {
            if let ChartRow::Bar(label, value) = row {
                label_width = label_width.max(label.chars().count());
                value_width = value_width.max(value.to_string().len());
                largest = largest.max(*value);
            }
        }
        let room = width.saturating_sub(label_width + value_width + 2 * GAP).min(BAR_MAX);
        Scale { label_width, room: if room < BAR_MIN { 0 } else { room }, largest }
    }

    /// The bar of a value, to an eighth of a column. That of a value above zero is never empty,
    /// where there is room for bars at all.
    #[must_use]
    pub fn bar(&self, value: i64) -> String {
        let (Ok(value), Ok(largest)) = (u128::try_from(value), u128::try_from(self.largest)) else {
            return String::new();
        };
        if value == 0 || largest == 0 || self.room == 0 {
            return String::new();
        }
        let eighths = (value * EIGHTHS * self.room as u128).div_euclid(largest).max(1);
        let columns = usize::try_from(eighths.div_euclid(EIGHTHS)).unwrap_or(self.room);
        let rest = usize::try_from(eighths.rem_euclid(EIGHTHS)).unwrap_or(0);
        let mut bar: String = std::iter::repeat_n(FULL, columns).collect();
        bar.extend(rest.checked_sub(1).and_then(|index| PARTS.get(index)));
        bar
    }
}

/// One row per window. Empty windows in between are shown too.
fn rows(windows: impl Iterator<Item = (TimeMs, i64)>, window: UsageWindow) -> Vec<ChartRow> {
    let mut rows = Vec::new();
    let mut expected: Option<TimeMs> = None;
    for (start, used) in windows {
        rows.extend(expected.into_iter().flat_map(|from| empty(from, start, window)));
        rows.push(ChartRow::Bar(label(start, window), Milli(used).floor_tokens()));
        expected = Some(window.next_start(start));
    }
    rows
}

/// The empty windows from one instant to another.
fn empty(from: TimeMs, until: TimeMs, window: UsageWindow) -> Vec<ChartRow> {
    let starts = std::iter::successors(Some(from), |start| Some(window.next_start(*start)));
    let starts: Vec<TimeMs> = starts.take_while(|start| *start < until).take(EMPTY_MIN).collect();
    if starts.len() < EMPTY_MIN {
        return starts.into_iter().map(|start| ChartRow::Bar(label(start, window), 0)).collect();
    }
    vec![ChartRow::Gap(format!("… nothing until {}", label(until, window)))]
}

/// `2026-01-31 14:00` for an hour; days and months as they are stored.
fn label(start: TimeMs, window: UsageWindow) -> String {
    let key = window.key(start);
    match window {
        UsageWindow::Hourly => key.replace('T', " ").trim_end_matches(":00Z").to_owned(),
        UsageWindow::Daily | UsageWindow::Monthly => key,
    }
}

/// Snapshots as a table: one row per window and limit, numbers on the right.
///
/// ```
/// # fn print(snapshots: &[zae_limiter::UsageSnapshot]) {
/// print!("{}", zae_limiter::usage::UsageTable(snapshots));
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UsageTable<'a>(pub &'a [UsageSnapshot]);

/// The titles of the columns; those of numbers stand on the right.
const TITLES: [(&str, bool); 6] = [
    ("WINDOW", false),
    ("ENTITY", false),
    ("RESOURCE", false),
    ("LIMIT", false),
    ("USED", true),
    ("GRANTS", true),
];

/// The cells of the table: window, entity, resource, limit, whole tokens used, grants. A snapshot
/// without counters has one row.
pub fn table_rows(snapshots: &[UsageSnapshot]) -> impl Iterator<Item = [String; 6]> {
    snapshots.iter().flat_map(|snapshot| {
        let row = |limit: String, used: String| {
            [
                snapshot.window.key(snapshot.start),
                snapshot.entity.to_string(),
                snapshot.resource.to_string(),
                limit,
                used,
                snapshot.events.to_string(),
            ]
        };
        let none = snapshot.counters.is_empty().then(|| row("-".to_owned(), "-".to_owned()));
        let used = |(limit, used): &(LimitName, Milli)| {
            row(limit.to_string(), used.floor_tokens().to_string())
        };
        none.into_iter().chain(snapshot.counters.iter().map(used)).collect::<Vec<_>>()
    })
}

impl fmt::Display for UsageTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = TITLES.map(|(title, _)| title.to_owned());
        let rows: Vec<[String; 6]> = std::iter::once(titles).chain(table_rows(self.0)).collect();
        let mut widths = [0; 6];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.len());
            }
        }
        for row in &rows {
            let cells = row.iter().zip(widths).zip(TITLES);
            let cells = cells.map(|((cell, width), (_, is_number))| match is_number {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zae_limiter_core::parse_rfc3339;

    use super::*;

    fn at(text: &str) -> TimeMs {
        parse_rfc3339(text).expect("an instant")
    }

    fn snapshot(start: TimeMs, window: UsageWindow, counters: &[(&str, i64)]) -> UsageSnapshot {
        let counter = |(limit, used): &(&str, i64)| (limit.parse().expect("a name"), Milli(*used));
        UsageSnapshot {
            entity: "key-1".parse().expect("an id"),
            resource: "gpt-4".parse().expect("a resource"),
            window,
            start,
            counters: counters.iter().map(counter).collect(),
            events: 1,
        }
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
        let bar = |label: &str, tokens| ChartRow::Bar(label.into(), tokens);
        let windows =
            [(at("2026-01-01"), 1_999), (at("2026-01-03"), 5_000), (at("2026-01-07"), -1)];
        let expected = vec![
            bar("2026-01-01", 1),
            bar("2026-01-02", 0),
            bar("2026-01-03", 5),
            ChartRow::Gap("… nothing until 2026-01-07".into()),
            bar("2026-01-07", -1),
        ];
        assert_eq!(rows(windows.into_iter(), UsageWindow::Daily), expected);
    }

    #[test]
    fn limits_and_kinds_of_windows_have_charts_of_their_own() {
        let day = at("2026-01-01");
        let snapshots = [
            snapshot(day, UsageWindow::Hourly, &[("tpm", 1_000), ("rpm", 7_000)]),
            snapshot(day, UsageWindow::Hourly, &[("tpm", 2_000)]),
            snapshot(day, UsageWindow::Daily, &[("tpm", 9_000)]),
        ];
        let drawn: Vec<String> = UsageChart::of(&snapshots).iter().map(|c| c.draw(40)).collect();
        let bar = "█".repeat(19);
        assert_eq!(
            drawn,
            [
                format!("rpm hourly\n2026-01-01 00:00  {bar}  7\n"),
                format!("tpm hourly\n2026-01-01 00:00  {bar}  3\n"),
                format!("tpm daily\n2026-01-01  {}  9\n", "█".repeat(25)),
            ]
        );
    }

    #[test]
    fn only_the_latest_windows_are_drawn() {
        let first = at("2026-01-01");
        let one = |hour: i64| {
            snapshot(first.plus_ms(hour * 3_600_000), UsageWindow::Hourly, &[("tpm", 1_000)])
        };
        let snapshots: Vec<UsageSnapshot> = (0..100).map(one).collect();
        let charts = UsageChart::of(&snapshots);
        assert_eq!((charts[0].earlier, charts[0].rows.len()), (40, 60));
        assert!(charts[0].to_string().starts_with("tpm hourly\n… 40 earlier windows\n"));
    }

    #[test]
    fn no_line_is_wider_than_asked_for_and_the_largest_numbers_fit() {
        let day = at("2026-01-01");
        let snapshots = [
            snapshot(day, UsageWindow::Daily, &[("tpm", i64::MAX)]),
            snapshot(UsageWindow::Daily.next_start(day), UsageWindow::Daily, &[("tpm", i64::MIN)]),
        ];
        let chart = &UsageChart::of(&snapshots)[0];
        for width in 40..120 {
            let drawn = chart.draw(width);
            assert!(drawn.lines().all(|line| line.chars().count() <= width), "{width}\n{drawn}");
        }
        assert!(!chart.draw(20).contains(FULL), "a narrow terminal gets numbers only");
    }

    #[test]
    fn tables_are_aligned_and_no_line_ends_with_a_space() {
        let snapshots = [
            snapshot(at("2026-01-01"), UsageWindow::Daily, &[("tpm", 1_500), ("requests", -1)]),
            snapshot(at("2026-01-02"), UsageWindow::Daily, &[]),
        ];
        let expected = "\
WINDOW      ENTITY  RESOURCE  LIMIT     USED  GRANTS
2026-01-01  key-1   gpt-4     tpm          1       1
2026-01-01  key-1   gpt-4     requests    -1       1
2026-01-02  key-1   gpt-4     -            -       1
";
        assert_eq!(UsageTable(&snapshots).to_string(), expected);
        assert_eq!(UsageTable(&[]).to_string().lines().count(), 1, "titles alone");
    }
}
