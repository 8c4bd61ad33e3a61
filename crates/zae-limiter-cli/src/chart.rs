//! Bars for the terminal: one row per label, readable at any width and in a pipe.

use std::fmt::Write as _;

use crate::escape::escaped;
use crate::table::{Paint, Tone};

/// How wide a chart is where no terminal says otherwise.
const WIDTH: usize = 80;
/// The longest a bar gets: beyond that it only makes the eye travel.
const BAR_MAX: usize = 60;
/// The shortest the longest bar may be. A terminal too narrow even for that gets no bars.
const BAR_MIN: usize = 8;
/// Between label, bar and value.
const GAP: usize = 2;

const FULL: char = '█';
/// One to seven eighths of a column.
const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
const EIGHTHS: u128 = 8;

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// A label and its value.
    Bar(String, i64),
    /// Something left out, in words.
    Gap(String),
}

/// Rows of bars under a title, all drawn to one scale.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    title: String,
    rows: Vec<Row>,
}

impl Chart {
    /// A chart of these rows.
    pub(crate) fn new(title: impl Into<String>, rows: Vec<Row>) -> Chart {
        Chart { title: title.into(), rows }
    }

    /// The chart, no wider than `width` unless labels and values alone are.
    pub(crate) fn render(&self, width: Option<usize>, paint: Paint) -> String {
        let (mut label_width, mut value_width, mut largest) = (0, 0, 0);
        for row in &self.rows {
            if let Row::Bar(label, value) = row {
                label_width = label_width.max(escaped(label).chars().count());
                value_width = value_width.max(value.to_string().len());
                largest = largest.max(*value);
            }
        }
        let room =
            width.unwrap_or(WIDTH).saturating_sub(label_width + value_width + 2 * GAP).min(BAR_MAX);
        let mut text = format!("{}\n", paint.apply(Tone::Strong, &escaped(&self.title)));
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = match row {
                Row::Gap(words) => writeln!(text, "{}", paint.apply(Tone::Dim, &escaped(words))),
                Row::Bar(label, value) => {
                    let label = escaped(label);
                    let padding = " ".repeat(label_width - label.chars().count() + GAP);
                    let bar =
                        if room < BAR_MIN { String::new() } else { bar(*value, largest, room) };
                    let gap = if bar.is_empty() { "" } else { "  " };
                    let tone = if *value < 0 { Tone::Warning } else { Tone::Plain };
                    let value = paint.apply(tone, &value.to_string());
                    writeln!(text, "{label}{padding}{}{gap}{value}", paint.apply(Tone::Good, &bar))
                }
            };
        }
        text
    }
}

/// A bar for `value` where `largest` takes `room` columns, to an eighth of a column. The bar of a
/// value above zero is never empty.
fn bar(value: i64, largest: i64, room: usize) -> String {
    let (Ok(value), Ok(largest)) = (u128::try_from(value), u128::try_from(largest)) else {
        return String::new();
    };
    if value == 0 || largest == 0 {
        return String::new();
    }
    let eighths = (value * EIGHTHS * room as u128).div_euclid(largest).max(1);
    let columns = usize::try_from(eighths.div_euclid(EIGHTHS)).unwrap_or(room);
    let rest = usize::try_from(eighths.rem_euclid(EIGHTHS)).unwrap_or(0);
    let mut bar: String = std::iter::repeat_n(FULL, columns).collect();
    bar.extend(rest.checked_sub(1).map(|index| PARTS[index]));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let bar = |label: &str, value| Row::Bar(label.into(), value);
        let rows = vec![
            bar("a", 1000),
            bar("bc", 500),
            Row::Gap("… 3 empty".into()),
            bar("d", 1),
            bar("e", 0),
            bar("f\u{7}", -5),
        ];
        Chart::new("tpm", rows)
    }

    #[test]
    fn bars_are_drawn_to_one_scale() {
        insta::assert_snapshot!(chart().render(Some(30), Paint(false)), @r"
        tpm
        a       ████████████████  1000
        bc      ████████  500
        … 3 empty
        d       ▏  1
        e       0
        f\u{7}  -5
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in 12..120 {
            let drawn = chart().render(Some(width), Paint(false));
            assert!(drawn.lines().all(|line| line.chars().count() <= width), "{width}\n{drawn}");
        }
    }

    #[test]
    fn a_narrow_terminal_gets_numbers_only() {
        let drawn = chart().render(Some(15), Paint(false));
        assert!(!drawn.contains(FULL) && drawn.contains("1000"), "{drawn}");
    }

    #[test]
    fn the_largest_numbers_there_are_fit() {
        let rows = vec![Row::Bar("a".into(), i64::MAX), Row::Bar("b".into(), i64::MIN)];
        let drawn = Chart::new("x", rows).render(Some(60), Paint(false));
        assert!(drawn.lines().all(|line| line.chars().count() <= 60), "{drawn}");
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let codes = ["\u{1b}[1m", "\u{1b}[2m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"];
        let painted = chart().render(None, Paint(true));
        assert!(painted.contains("\u{1b}[33m-5"), "{painted:?}");
        assert_eq!(
            codes.iter().fold(painted, |text, code| text.replace(code, "")),
            chart().render(None, Paint(false))
        );
    }
}
